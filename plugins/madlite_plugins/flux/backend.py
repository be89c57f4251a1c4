"""The backend: the benchmark's launcher, or its trainer under accelerate, with the plan's sizes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from madlite import (
    Asset,
    Draft,
    Finding,
    Machine,
    MadMetric,
    Quantity,
    Reader,
    RecipeBackend,
    Request,
    ResultRule,
    RunPlan,
)
from madlite_plugins.flux.checks import findings
from madlite_plugins.flux.reader import FluxReader, recognise
from madlite_plugins.flux.summary import FPS, TFLOPS
from madlite_plugins.flux.sweep import sweep_points
from madlite_plugins.flux.words import is_repository, refuse_words

WARMUP = 5  # steps that the launcher leaves out of its averages
# what a pipeline of diffusers reads: the folders of its parts, not the checkpoints in one file beside them
PARTS = ("model_index.json", "*/*.json", "*/*.txt", "*/*.model", "*/*.safetensors")
_GATED = ("black-forest-labs/",)
_BY_LAUNCHER = (
    MadMetric(metric="FPS_per_GPU", rule="summary", key=FPS),
    MadMetric(metric="TFLOPS_per_GPU", rule="summary", key=TFLOPS),
)
# what the launcher calculates, of a run or a log without it
_BY_STEPS = (
    MadMetric(metric="FPS_per_GPU", quantity=Quantity.IMAGES_PER_S_PER_GPU, rule="mean", start=WARMUP),
    MadMetric(metric="TFLOPS_per_GPU", quantity=Quantity.TFLOPS_PER_GPU, rule="mean", start=WARMUP),
)


class Flux(RecipeBackend):
    """Runs FluxBenchmark or AMDiffusionBenchmark where it lies; reads their logs, also of runs it did not start."""

    name = "flux"
    book = Path(__file__).with_name("recipes.toml")
    template = "flux/run.sh.j2"
    files: Mapping[str, str] = {
        "accelerate.yaml": "flux/accelerate.yaml.j2",
        "launcher.yaml": "flux/launcher.yaml.j2",
        "fetch.py": "fetch.py",
        "follow.py": "flux/follow.py",
    }
    launcher = "accelerate"
    sizes = ("micro_batch", "steps")

    def expand(self, request: Request, machine: Machine) -> Sequence[Draft]:
        """Return a draft per run, of a sweep one for each combination.

        Raises:
            UsageProblem: no recipe fits, or a value is none that the benchmark takes.
        """
        refuse_words(request.settings)
        drafts = super().expand(request, machine)
        return [_ruled(one, request.settings) for draft in drafts for one in sweep_points(draft, request.settings)]

    def result_rule(self) -> ResultRule:
        """Return the steady window of the steps, and what MAD takes from the launcher, calculated from them."""
        return ResultRule(
            kind="steps",
            headline=Quantity.IMAGES_PER_S_PER_GPU,
            headline_metric="images_per_s_per_gpu",
            mad=_BY_STEPS,
        )

    def check(self, plan: RunPlan) -> Iterable[Finding]:
        """Find what the benchmark would refuse, or measure under a wrong name."""
        own = findings(plan, plan.variant) if plan.variant else ()
        return (*super().check(plan), *own)

    def assets(self, plan: RunPlan) -> Iterable[Asset]:
        """Return the model's repository and the data set's, where they are none of the user's own folders."""
        return tuple(_assets(plan))

    def recognise(self, head: Sequence[str]) -> float:
        """Recognise a step's dictionary, else the launcher's command."""
        return recognise(head)

    def reader(self, plan: RunPlan | None) -> Reader:
        """Return a fresh reader, for which what the launcher has summed up before now is another run's."""
        return FluxReader()


def _ruled(draft: Draft, asked: Mapping[str, str]) -> Draft:
    """Return the draft with MAD's figures from where its start leaves them, and with compile beside a batch size."""
    rule = draft.result_rule
    if asked.get("start", draft.settings["start"]) == "launcher":
        rule = replace(rule, mad=_BY_LAUNCHER)
    if "compile" in asked or draft.settings["dynamo_backends"] or asked.get("dynamo_backends"):
        rule = replace(rule, columns=("compile",))
    return replace(draft, result_rule=rule)


def _assets(plan: RunPlan) -> Iterable[Asset]:
    model, dataset = str(plan.settings["model_path"]), str(plan.settings["dataset"])
    if is_repository(model):
        hint = "--set model_path=FOLDER of one that is here"
        yield Asset(kind="model", ref=model, gated=model.startswith(_GATED), files=PARTS, hint=hint)
    if is_repository(dataset):
        revision = str(plan.settings["dataset_revision"])
        yield Asset(kind="dataset", ref=dataset, revision=revision, hint="--set dataset=FOLDER of one that is here")
