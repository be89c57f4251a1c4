"""The backend: which runs a card stands for, what they need, and what they leave."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from madlite import (
    Asset,
    Card,
    FileTemplate,
    Finding,
    Machine,
    MadMetric,
    Quantity,
    Reader,
    Request,
    ResultRule,
    RunPlan,
    RunSpec,
    Variant,
    read_book,
)
from madlite_plugins.nodes import TorchrunBackend
from madlite_plugins.torchtune.checks import findings
from madlite_plugins.torchtune.reader import TorchtuneReader, detect

_MEMORY = MadMetric(metric="max_memory_alloc", quantity=Quantity.MEMORY_ALLOCATED_GIB, rule="max", second_half=True)
_SPEED = MadMetric(
    metric="avg_tokens_per_s_per_gpu", quantity=Quantity.TOKENS_PER_S_PER_GPU, rule="mean", second_half=True
)
_OWN = FileTemplate(path="base.yaml", template="torchtune/base.yaml.j2")
_CPU = FileTemplate(path="cpu_ranks.py", template="torchtune/cpu_ranks.py", raw=True)


class Torchtune(TorchrunBackend):
    """Runs torchtune's recipes with its own configurations or madlite's; reads the logs of 0.2 to 0.6."""

    name = "torchtune"
    book = Path(__file__).with_name("recipes")
    template = "torchtune/run.sh.j2"
    files = {
        "changes.yaml": "torchtune/changes.yaml.j2",
        "find_recipes.py": "torchtune/find_recipes.py",
        "make_config.py": "torchtune/make_config.py",
        "make_assets.py": "torchtune/make_assets.py",
        "fetch.py": "fetch.py",
    }
    planned_options = {
        **{"batch_size": "micro_batch", "gradient_accumulation_steps": "gas", "max_steps_per_epoch": "steps"},
        **{"tokenizer.max_seq_len": "seq_len", "dataset.packed": "packed", "epochs": "epochs"},
        **{"dtype": "precision", "enable_fp8_training": "precision", "tensor_parallel_dim": "tp", "config": "recipe"},
    }

    def expand(self, request: Request, machine: Machine) -> Sequence[RunSpec]:
        """Return a RunSpec per run.

        Raises:
            UsageProblem: no recipe fits.
        """
        return [_fitted(spec, machine) for spec in super().expand(request, machine)]

    def result_rule(self) -> ResultRule:
        """Return the steady window of the tokens by second, and the two figures of MAD's script."""
        return ResultRule(kind="steps", mad=(_MEMORY, _SPEED), printed_on="first")

    def env(self, card: Card, variant: Variant, machine: Machine) -> Mapping[str, str]:
        """Return the variables that MAD's script of the release sets in the image."""
        env, book = super().env(card, variant, machine), read_book(self.book)
        if machine.vendor != "AMD":
            return env
        since = {**book.defaults, **book.releases.get(variant.release, {})}["mad_variables"]
        return {**env, **book.env[f"AMD {since}"]}

    def check(self, plan: RunPlan) -> Iterable[Finding]:
        """Find what torchtune would refuse, or what would make the number worthless."""
        image = read_book(self.book).releases.get(plan.variant.release if plan.variant else "", {}).get("image", "")
        return (*super().check(plan), *findings(plan, str(image)))

    def result_node(self, plan: RunPlan) -> int | None:
        """Return the first node: rank 0 alone prints."""
        return 0

    def assets(self, plan: RunPlan) -> Iterable[Asset]:
        """Return what is fetched: weights and data that are neither made up nor given."""
        return _fetched(plan.settings)

    def detect(self, head: Sequence[str]) -> float:
        """Recognise a recipe's configuration or a step line, else the bar."""
        return detect(head)

    def reader(self, plan: RunPlan | None) -> Reader:
        """Return a fresh reader."""
        ours = plan is not None and plan.backend == self.name
        return TorchtuneReader(str(plan.settings.get("tp", 1)) if plan is not None and ours else "1")


def _fitted(spec: RunSpec, machine: Machine) -> RunSpec:
    """Return the RunSpec with the files and figures that it has on this machine."""
    own = () if spec.settings["family"] else (_OWN,)
    rule = spec.result_rule
    if machine.vendor == "CPU":  # torchtune knows no memory of a CPU
        own, rule = (*own, _CPU), replace(rule, mad=(_SPEED,))
    notes = (*spec.notes, *_notes(spec))
    if not spec.settings["packed"]:
        spec = replace(spec, shape=replace(spec.shape, unknown="the texts are not packed: their lengths vary"))
    return replace(spec, templates=(*spec.templates, *own), result_rule=rule, notes=notes)


def _notes(spec: RunSpec) -> Iterator[str]:
    """Yield what a reader of the number should know."""
    if not spec.settings["packed"]:
        yield (
            "not packed: torchtune counts the tokens of labels alone, so the speed depends on the texts' lengths and "
            "compares with no other backend's"
        )
    if spec.settings["dataset"] == "wikitext":
        yield "no validation set is run; MAD's command for Llama 3.1 70B on WikiText runs one (VALIDATE=True)"
    if not spec.image:
        yield (
            "no image: --runtime host uses the torchtune that is installed (torchtune==0.6.1 torchao==0.14.1, in an "
            "environment without PEFT), --image REF one that has it"
        )


def _fetched(settings: Mapping[str, object]) -> Iterator[Asset]:
    if settings["weights"] == "fetched" and not settings["weights_path"]:
        repo = str(settings["repo"])
        made = "" if settings["family"] else ", or --set weights=made, which needs none"
        yield Asset(
            kind="model",
            ref=repo,
            gated=repo.startswith("meta-llama/"),
            files=tuple(str(settings["weights_files"]).split()),
            hint=f"--set weights_path=FOLDER for weights that are here{made}",
        )
    words = str(settings.get(f"data_{settings['dataset']}", "")).split()  # the words that run.sh gives to fetch.py
    if not settings["mock_data"] and not settings["dataset_path"] and words:
        yield Asset(kind="dataset", ref=words[0], files=tuple(words[1:]), hint="--mock-data, which needs none")
