"""`madlite scaling`: one tag on several numbers of GPUs, and how its number scales."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import click
import msgspec

from madlite.cli import setup
from madlite.cli.options import (
    TagsCommand,
    batch_options,
    common_options,
    live_option,
    scaling_options,
    tag_words,
    tags_option,
    turn_options,
)
from madlite.cli.planning import planner
from madlite.cli.run import command as run_command
from madlite.cli.run import preview, run_planned
from madlite.cli.setup import cards_option
from madlite.cli.terminal import echo
from madlite.errors import UsageProblem
from madlite.model import Json, Scalar
from madlite.run.screen import Planned
from madlite.study.efficiency import GPUS, scaling_lines
from madlite.study.scaling import PAGE, PlannedPoint, order_runs, plan_points, run_scaling
from madlite.workspace.study import SUMMARY, study_path

if TYPE_CHECKING:
    from madlite.backends.loader import Plugins
    from madlite.cli.screens import PlainScreen
    from madlite.plan.context import Options
    from madlite.results.batch_journal import BatchJournal
    from madlite.run.batch import BatchSettings
    from madlite.run.screen import RunOutcome

_REFUSED = {
    "skip_model_run": ("--skip-model-run", "no run has a number, so there is nothing to compare"),
    "keep_alive": ("--keep-alive", "what each run leaves running would slow down the next one"),
}


@click.command("scaling", cls=TagsCommand)
@tag_words
@tags_option
@cards_option
@click.option("--gpus", "counts", required=True, metavar="LIST", help="Numbers of GPUs to run on: 1,2,4,8.")
@click.option("--strong", is_flag=True, help="Keep the global batch; else each GPU keeps its work (weak scaling).")
@click.option("-n", "--dry-run", is_flag=True, help="Print script and container request of each, and touch nothing.")
@live_option
@click.option("--machine", default="", metavar="NxGPU", help="With --dry-run: pretend this machine, e.g. 8xMI300X.")
@scaling_options
@batch_options
@turn_options
@common_options
def command(**params: Any) -> int:
    """Run a tag on several numbers of GPUs: throughput per GPU and in total, speedup, efficiency.

    \b
    madlite scaling my_model --gpus 1,2,4,8
    madlite scaling my_model --gpus 1,8 --repeat 3
    madlite scaling my_model --gpus 2,4,8 --strong --set global_batch=64
    """
    from madlite.results.batch_journal import BatchJournal

    params = {**run_command.make_context("run", [], resilient_parsing=True).params, **params}
    for name, (option, why) in _REFUSED.items():
        if params[name]:
            raise UsageProblem(f"{option} in a scaling study: {why}", f"leave {option} out")
    if params["machine"] and not params["dry_run"]:
        raise click.UsageError("--machine only pretends: use it with --dry-run")
    counts = _counts(params["counts"])
    plugins = setup.load(params["no_plugins"], params["verbose"])
    touch = not params["dry_run"]
    options = setup.make_options(params, touch)
    if any(key == GPUS for key, _ in options.sets):
        raise UsageProblem(f"--set {GPUS} beside --gpus, which sets it", f"leave --set {GPUS} out")
    with ExitStack() as opened:
        journal = opened.enter_context(BatchJournal(options.workspace, options.command)) if touch else None
        plan = partial(_plan_with, planner(plugins, options, params, touch), options)
        points = plan_points(counts, plan, strong=params["strong"])
        setup.print_problems(plugins.problems)
        if journal is None:
            return _preview(points, options, params)
        planned = order_runs(points, journal.id, params["repeat"] or 1)
        return run_planned(planned, options, plugins, params, journal, ScalingBatch)


def _counts(text: str) -> list[int]:
    """Return the numbers of a list.

    Raises:
        UsageProblem: it is none.
    """
    words = [word.strip() for word in text.split(",")]
    for word in words:
        if not (word.isascii() and word.isdigit() and len(word) < 7):
            raise UsageProblem(f"--gpus {text!r}: {word!r} is no number of GPUs", "--gpus 1,2,4,8")
    return [int(word) for word in words]


def _plan_with(plan: Any, options: Options, values: Mapping[str, Scalar]) -> Sequence[Planned]:
    """Return the runs of the command with more values, which win over the command's own."""
    sets = (*options.sets, *((key, str(value)) for key, value in values.items()))
    made: Sequence[Planned] = plan(msgspec.structs.replace(options, sets=sets))
    return made


def _preview(points: Sequence[PlannedPoint], options: Options, params: dict[str, Any]) -> int:
    runs = order_runs(points, "dry-run", params["repeat"] or 1)
    for one in runs[: len(points)]:
        echo(preview(one, options.environ))
    echo("# --- order of the runs")
    for number, one in enumerate(runs, 1):
        study = one.plan.study
        varied = ", ".join(f"{key}={value}" for key, value in study.varied.items()) if study else ""
        which = f"  (run {study.index} of {study.count})" if study else ""
        echo(f"{number}/{len(runs)}  {one.plan.card.name} · {varied}{which}")
    return 0


class ScalingBatch:
    """The runs of a scaling study; after `run`, what they came to."""

    def __init__(self, planned: Sequence[Planned], params: dict[str, Any], journal: BatchJournal) -> None:
        self._journal = journal
        self.planned = planned
        self.study: Json = None
        self.problems: tuple[str, ...] = ()
        self.lines: list[str] = []

    def run(self, options: Options, plugins: Plugins, screen: PlainScreen, settings: BatchSettings) -> RunOutcome:
        """Run all of them, as `run_scaling` does."""
        study_id = self._journal.id
        ended = run_scaling(self.planned, study_id, options, plugins, screen, self._journal, settings)
        self.problems = ended.problems
        self.study = {"id": study_id, "kind": "scaling", "scalings": msgspec.to_builtins(ended.scalings)}
        where = study_path(options.workspace, study_id).relative_to(options.workspace)
        self.lines = [f"scaling {study_id}"]
        self.lines += [f"  {text}" for one in ended.scalings for text in scaling_lines(one)]
        self.lines.append(f"  madlite runs --of {study_id}; {where / SUMMARY}; {where / PAGE}")
        return ended.runs
