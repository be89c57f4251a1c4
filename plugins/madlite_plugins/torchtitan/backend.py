"""The backend: which runs a card stands for, what they need, and what speaks against them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

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
from madlite_plugins.nodes import TorchrunBackend, loss_node
from madlite_plugins.torchtitan.args import PLANNED
from madlite_plugins.torchtitan.checks import findings, lines_left
from madlite_plugins.torchtitan.reader import END_MARK, TRAIN, TorchtitanReader, detect

TIKTOKEN_FILES = ("original/tokenizer.model",)
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
C4_PART = "en/c4-train.00000-of-01024.json.gz"  # some 320 MB: more text than a benchmark's steps read
_SHIM = "cpu_shim/sitecustomize.py"


class Torchtitan(TorchrunBackend):
    """Runs torchtitan from a TOML file that madlite renders for its era; reads the logs of every version."""

    name = "torchtitan"
    book = Path(__file__).with_name("recipes")
    template = "torchtitan/run.sh.j2"
    files = {
        "train.toml": "torchtitan/train.toml.j2",
        "check_config.py": "torchtitan/check_config.py",
        "make_assets.py": "torchtitan/make_assets.py",
        "fetch.py": "fetch.py",
    }
    step = TRAIN
    end_mark = END_MARK
    planned_options = PLANNED
    mad_metrics = (
        MadMetric(metric="tok_per_s_per_gpu", quantity=Quantity.TOKENS_PER_S_PER_GPU),
        MadMetric(metric="TFLOPS_per_gpu", quantity=Quantity.TFLOPS_PER_GPU),
    )

    def expand(self, request: Request, machine: Machine) -> Sequence[RunSpec]:
        """Return a RunSpec per run.

        Raises:
            UsageProblem: no recipe fits.
        """
        specs = [_fitted(spec, machine) for spec in super().expand(request, machine)]
        return [msgspec.structs.replace(spec, notes=(*spec.notes, *_notes(spec, request))) for spec in specs]

    def env(self, card: Card, variant: Variant, machine: Machine) -> Mapping[str, str]:
        """Return the book's variables; of a release whose image's own script trains, that release's and no others."""
        own = read_book(self.book).env.get(f"{machine.vendor} {variant.release}")
        return super().env(card, variant, machine) if own is None else own

    def check(self, plan: RunPlan) -> Iterable[Finding]:
        """Find what torchtitan would refuse, or what would make the number worthless."""
        return (*super().check(plan), *findings(plan), *_of_part(plan))

    def result_rule(self) -> ResultRule:
        """Return the steady window of the step lines, of the ranks whose output is kept."""
        return msgspec.structs.replace(super().result_rule(), ranks_setting="log_ranks")

    def result_node(self, plan: RunPlan) -> int | None:
        """Return the node that knows the loss, where a pipeline spans nodes."""
        return loss_node(plan)

    def check_steps(self, plan: RunPlan, variant: Variant) -> Iterable[Finding]:
        """Find too few log lines for a steady window."""
        if int(plan.settings["log_freq"]) > 1:
            return lines_left(plan, variant)
        return super().check_steps(plan, variant)

    def assets(self, plan: RunPlan) -> Iterable[Asset]:
        """Return what is fetched: nothing where text and tokenizer are made up, given, or in the image."""
        fetched = _fetched(plan)  # an image's own script reads the image's text
        return [asset for asset in fetched if asset.kind == "tokenizer"] if plan.settings["script"] else fetched

    def detect(self, head: Sequence[str]) -> float:
        """Recognise the prefix of every line, a step line, else how it failed to start."""
        return detect(head)

    def reader(self, plan: RunPlan | None) -> Reader:
        """Return a fresh reader."""
        return TorchtitanReader()


def _fitted(spec: RunSpec, machine: Machine) -> RunSpec:
    """Return the RunSpec with the files that its start needs: an image's own script, or ours with a shim for a CPU."""
    if spec.settings["script"]:
        start = FileTemplate(path="run.sh", template="torchtitan/script.sh.j2")
        fetch = next(file for file in spec.templates if file.path == "fetch.py")
        return msgspec.structs.replace(spec, templates=(start, fetch))
    if machine.vendor != "CPU":
        return spec
    shim = FileTemplate(path=_SHIM, template=f"torchtitan/{_SHIM}", raw=True)
    return msgspec.structs.replace(spec, templates=(*spec.templates, shim))


def _notes(spec: RunSpec, request: Request) -> Iterator[str]:
    """Yield what a user of MAD's tag should know of its run here."""
    settings, release = spec.settings, spec.variant.release if spec.variant else ""
    if settings["script"]:
        yield f"release {release} trains with its image's own {settings['script']}: only sizes and log_freq reach it"
    elif not settings["mock_data"] and request.settings.get("mock_data", "false").casefold() in ("false", "no", "0"):
        whose = f"{settings['tokenizer_repo']}'s"
        yield f"reads c4 and {whose} tokenizer from the hub, as MAD does; --mock-data needs neither"
    if release and not spec.image:
        yield (
            f"release {release} names no image: --runtime host uses the torchtitan that is installed "
            "(torchtitan==0.2.2, for FP8 torchao), --image REF one that has it"
        )


def _of_part(plan: RunPlan) -> Iterator[Finding]:
    """Find that a run does not stream, as MAD's runs do whose rows have the same name."""
    offline = str(plan.env.get("HF_HUB_OFFLINE", "")).lower() in ("1", "on", "yes", "true")
    if offline and any(asset.files == (C4_PART,) for asset in _fetched(plan)) and not plan.settings["script"]:
        yield Finding(
            message="c4 is read from a file that is here, not streamed: the loader does not wait for a network"
        )


def _fetched(plan: RunPlan) -> Iterator[Asset]:
    """Yield the tokenizer's files of the plan's era, and the part of c4 that a run without a network trains on."""
    settings = plan.settings
    repo, name = str(settings["tokenizer_repo"]), str(settings["dataset"])
    if repo and not settings["mock_data"] and not settings["hf_assets_path"]:
        files = TIKTOKEN_FILES if settings["era"] in ("0.0", "0.1") else TOKENIZER_FILES
        hint = "" if settings["script"] else "--mock-data, which needs none"
        yield Asset(kind="tokenizer", ref=repo, gated=repo.startswith("meta-llama/"), files=files, hint=hint)
    if settings["mock_data"] or settings["dataset_path"]:
        return
    if name in ("", "c4"):
        yield Asset(kind="dataset", ref="allenai/c4", files=(C4_PART,))
    else:
        yield Asset(
            kind="dataset", ref=name, source="made", hint="torchtitan streams it; --set dataset_path= names a folder"
        )
