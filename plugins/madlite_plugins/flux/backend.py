"""The backend: the benchmark's launcher, or its trainer under accelerate, with the plan's sizes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from madlite import (
    Asset,
    Finding,
    Machine,
    Reader,
    RecipeBackend,
    Request,
    ResultRule,
    RunPlan,
    RunSpec,
    Variant,
    read_book,
)
from madlite_plugins.flux.checks import findings
from madlite_plugins.flux.figures import FOREIGN, rule_of
from madlite_plugins.flux.reader import FluxReader, detect
from madlite_plugins.flux.settings import PLANNED, check_settings, is_repository
from madlite_plugins.flux.sweep import sweep_points
from madlite_plugins.flux.variables import variables_of

_NO_IMAGE = "this recipe names no image: --image-release v26.1, or another of its releases, does, or --image REF"
_GATED = ("black-forest-labs/",)


class Flux(RecipeBackend):
    """Runs FluxBenchmark or AMDiffusionBenchmark where it lies; reads their logs, also of runs it did not start."""

    name = "flux"
    book = Path(__file__).with_name("recipes.toml")
    template = "flux/run.sh.j2"
    files: Mapping[str, str] = {
        "launcher.yaml": "flux/launcher.yaml.j2",
        "fetch.py": "fetch.py",
        "follow.py": "flux/follow.py",
    }
    launcher = "accelerate"
    sizes = ("micro_batch", "steps")
    planned_options = PLANNED

    def expand(self, request: Request, machine: Machine) -> Sequence[RunSpec]:
        """Return a RunSpec per run, of a sweep one for each combination.

        Raises:
            UsageProblem: no recipe fits, or a value is none that the benchmark takes.
        """
        requested = request.settings
        check_settings(requested)
        specs = (self._finished(spec, requested, machine) for spec in super().expand(request, machine))
        return [point for spec in specs for point in sweep_points(spec, requested)]

    def _finished(self, spec: RunSpec, requested: Mapping[str, str], machine: Machine) -> RunSpec:
        """Return the RunSpec with what depends on what was asked: rule, variables, and a word on a missing image."""
        env = variables_of(spec, requested, machine.vendor, read_book(self.book).env)
        notes = spec.notes if spec.image or "image" in requested else (*spec.notes, _NO_IMAGE)
        return replace(spec, result_rule=rule_of(spec, requested), env=env, notes=notes)

    def result_rule(self) -> ResultRule:
        """Return the steady window of the steps, and what MAD takes from the launcher, calculated from them."""
        return FOREIGN

    def check_variant(self, plan: RunPlan, variant: Variant) -> Iterable[Finding]:
        """Find what the benchmark would refuse, or measure under a wrong name."""
        return findings(plan, variant)

    def assets(self, plan: RunPlan) -> Iterable[Asset]:
        """Return the model's repository and the data set's, where they are none of the user's own folders."""
        return tuple(_assets(plan))

    def detect(self, head: Sequence[str]) -> float:
        """Recognise a step's dictionary, else the launcher's command."""
        return detect(head)

    def reader(self, plan: RunPlan | None) -> Reader:
        """Return a fresh reader, for which what the launcher has summed up before now is another run's."""
        return FluxReader()


def _assets(plan: RunPlan) -> Iterable[Asset]:
    model, dataset = str(plan.settings["model_path"]), str(plan.settings["dataset"])
    if is_repository(model):
        hint, files = "--set model_path=FOLDER of one that is here", tuple(str(plan.settings["weights_files"]).split())
        yield Asset(kind="model", ref=model, gated=model.startswith(_GATED), files=files, hint=hint)
    if is_repository(dataset):
        revision = str(plan.settings["dataset_revision"])
        yield Asset(kind="dataset", ref=dataset, revision=revision, hint="--set dataset=FOLDER of one that is here")
