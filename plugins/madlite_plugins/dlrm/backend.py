"""The backend: the benchmark's launcher with the plan's sizes, its results.csv as MAD's rows.

The benchmark prints no steps that could be judged: its progress bar has a rate that is smoothed already.  So the result
is its own figure, from the file, and only of a training that came to its end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from madlite import Finding, Reader, RecipeBackend, ResultRule, RunPlan, Variant
from madlite_plugins.choices import unknown_choice
from madlite_plugins.no_steps import NoSteps

PRECISIONS = ("TF32", "FP32")
RESULTS = "perf_DLRM.csv"  # as MAD's card names it
_GPUS = 8  # the launcher's own number


class Dlrm(RecipeBackend):
    """Runs launch_training_single_node.sh of the image."""

    name = "dlrm"
    book = Path(__file__).with_name("recipes.toml")
    template = "dlrm/run.sh.j2"
    files: Mapping[str, str] = {"results.py": "dlrm/results.py"}
    launcher = "torchrun"
    sizes = ("micro_batch", "steps")
    planned_options = {"p": "precision"}

    def result_rule(self) -> ResultRule:
        """Return the rule of a results file: one that the run makes of the benchmark's own."""
        return ResultRule(kind="multiple_results", file=RESULTS, loss_expected=False)

    def check_variant(self, plan: RunPlan, variant: Variant) -> Iterable[Finding]:
        """Find what the benchmark would refuse, or not do."""
        return _findings(plan, variant)

    def check_steps(self, plan: RunPlan, variant: Variant) -> Iterable[Finding]:
        """Find nothing: the benchmark takes its average of however many there are."""
        return ()

    def detect(self, head: Sequence[str]) -> float:
        """Recognise nothing: a log of the benchmark has no result in it."""
        return 0.0

    def reader(self, plan: RunPlan | None) -> Reader:
        """Return a reader that finds no steps."""
        return NoSteps()


def _findings(plan: RunPlan, variant: Variant) -> Iterator[Finding]:
    if plan.place.nodes > 1:
        yield Finding(message="the benchmark runs on one node alone", hint="NNODES=1", fatal=True, keys=("nnodes",))
    if plan.place.gpus_per_node != _GPUS:
        yield Finding(
            message=f"the benchmark's launcher starts {_GPUS} ranks, and here are {plan.place.gpus_per_node} GPUs",
            hint=f"run it on {_GPUS} GPUs",
            fatal=True,
            keys=("n_gpus",),
        )
    yield from unknown_choice("precision", variant.precision, PRECISIONS)
    if variant.seq_len is not None:
        yield Finding(
            message="a recommender has no sequences", hint="leave --seq-len out", fatal=True, keys=("seq_len",)
        )
    if int(plan.settings["seed"]) < 0:
        yield Finding(message=f"seed is {plan.settings['seed']}", hint="--set seed=1024", fatal=True, keys=("seed",))
    batch = (variant.micro_batch or 1) * _GPUS
    if variant.global_batch not in (None, batch):
        what = f"global batch {variant.global_batch} is not micro batch × GPUs = {batch}"
        yield Finding(
            message=what, hint="leave global_batch out", fatal=True, keys=("global_batch", "micro_batch", "n_gpus")
        )
