"""`madlite scaling`: one tag on several numbers of GPUs or nodes, and how its number scales."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import click
import msgspec

from madlite.cli import setup
from madlite.cli.batch_options import (
    check_together,
    cluster_study_options,
    named_cluster,
    pretend_options,
    turn_options,
)
from madlite.cli.batches import Batch, BatchStart
from madlite.cli.options import (
    TagsCommand,
    batch_options,
    common_options,
    live_option,
    scaling_options,
    section,
    tag_words,
    tags_option,
)
from madlite.cli.planning import planner, preview, refuse_given
from madlite.cli.run import command as run_command
from madlite.cli.run import run_planned
from madlite.cli.setup import cards_option
from madlite.cli.studies import scaling_study_lines
from madlite.cli.terminal import echo, echo_lines
from madlite.errors import UsageProblem
from madlite.model import Scalar
from madlite.run.screen import PlannedRun
from madlite.study.efficiency import GPUS, NODES
from madlite.study.scaling import (
    Axis,
    PlannedPoint,
    check_nodes,
    order_runs,
    plan_points,
    run_scaling,
)

if TYPE_CHECKING:
    from madlite.plan.context import Options
    from madlite.run.screen import RunOutcome


def _joined(ctx: click.Context, param: click.Parameter, lists: Sequence[str]) -> str:
    """Return several lists as one: `--gpus 1,2 --gpus 4` is `--gpus 1,2,4`."""
    return ",".join(lists)


@click.command("scaling", cls=TagsCommand)
@tag_words
@tags_option
@cards_option
@section("Scaling")
@click.option(
    "--gpus", "counts", multiple=True, callback=_joined, metavar="LIST", help="Numbers of GPUs to run on: 1,2,4,8."
)
@click.option(
    "--nodes", "node_counts", multiple=True, callback=_joined, metavar="LIST", help="Numbers of nodes to run on: 1,2,4."
)
@click.option("--strong", is_flag=True, help="Keep the global batch; else each GPU keeps its work (weak scaling).")
@pretend_options("script and container request of each")
@live_option
@scaling_options
@batch_options
@turn_options
@cluster_study_options
@common_options
def command(**params: Any) -> int:
    """Run a tag on several numbers of GPUs or nodes: throughput per GPU and in total, speedup, efficiency.

    \b
    madlite scaling my_model --gpus 1,2,4,8
    madlite scaling my_model --gpus 1,8 --repeat 5
    madlite scaling my_model --gpus 2,4,8 --strong --set global_batch=64
    salloc -N4 --exclusive madlite scaling my_model --nodes 1,2,4
    madlite scaling my_model --nodes 1,2,4 --cluster mi300
    """
    from madlite.cli.submit import run_on_cluster, translated
    from madlite.store.batches import BatchLog

    over, counts = _wanted(params)
    params = {**run_command.make_context("run", [], resilient_parsing=True).params, **params}
    refuse_given({over}, "--nodes" if over == NODES else "--gpus", params)
    plugins = setup.load(params["no_plugins"], params["verbose"])
    to = translated(named_cluster(params), params)
    check_together(on_cluster=to is not None)
    if to is not None:
        params["nodes"] = max(counts) if over == NODES else None
        return run_on_cluster(to, plugins, params, ClusterScaling(counts, over, params))
    touch = not params["dry_run"]
    options = setup.make_options(params, touch)
    if over == NODES and options.nodes:
        check_nodes(counts, options.nodes, f"allocation {os.environ.get('SLURM_JOB_ID', '')}".rstrip())
    with ExitStack() as opened:
        journal = opened.enter_context(BatchLog(options.workspace, options.command)) if touch else None
        plan = partial(_plan_with, planner(plugins, options, params, touch), options)
        points = plan_points(counts, plan, strong=params["strong"], over=over)
        setup.print_problems(plugins.problems)
        if journal is None:
            return _preview(points, options, params)
        planned = order_runs(points, journal.id, params["repeat"] or 1)
        return run_planned(planned, options, plugins, params, journal, partial(ScalingBatch, journal=journal))


def _wanted(params: dict[str, Any]) -> tuple[Axis, list[int]]:
    """Return what varies, and its numbers.

    Raises:
        UsageProblem: neither or both are named, or a list has something else than numbers.
    """
    gpus, nodes = params["counts"], params["node_counts"]
    if gpus and nodes:
        what = f"--gpus {gpus} beside --nodes {nodes}: a study varies one of them"
        raise UsageProblem(what, f"--nodes {nodes} --set {GPUS}=8 gives each node 8 GPUs")
    if not (gpus or nodes):
        raise UsageProblem("scaling over what? neither --gpus nor --nodes is there", "--gpus 1,2,4,8")
    return (NODES, _counts(nodes, "--nodes", "nodes")) if nodes else (GPUS, _counts(gpus, "--gpus", "GPUs"))


def _counts(text: str, option: str, what: str) -> list[int]:
    """Return the numbers of a list.

    Raises:
        UsageProblem: it is none.
    """
    words = [word.strip() for word in text.split(",")]
    for word in words:
        if not (word.isascii() and word.isdigit() and len(word) < 7):
            raise UsageProblem(f"{option} {text!r}: {word!r} is no number of {what}", f"{option} 1,2,4,8")
    return [int(word) for word in words]


def _plan_with(plan: Any, options: Options, values: Mapping[str, Scalar]) -> Sequence[PlannedRun]:
    """Return the runs of the command with more values, which win over the command's own."""
    nodes = int(values.get(NODES, options.nodes))
    sets = (*options.sets, *((key, str(value)) for key, value in values.items() if key != NODES))
    made: Sequence[PlannedRun] = plan(msgspec.structs.replace(options, sets=sets, nodes=nodes))
    return made


def _preview(points: Sequence[PlannedPoint], options: Options, params: dict[str, Any]) -> int:
    runs = order_runs(points, "dry-run", params["repeat"] or 1)
    for one in runs[: len(points)]:
        echo_lines(preview(one, options.environ))
    echo("# --- order of the runs")
    for number, one in enumerate(runs, 1):
        study = one.plan.study
        varied = ", ".join(f"{key}={value}" for key, value in study.varied.items()) if study else ""
        which = f"  (run {study.index} of {study.count})" if study else ""
        echo(f"{number}/{len(runs)}  {one.plan.card.name} · {varied}{which}")
    return 0


class ScalingBatch(Batch):
    """The runs of a scaling study; after `run`, what they came to."""

    def run(self, start: BatchStart) -> RunOutcome:
        """Run all of them, as `run_scaling` does."""
        study_id, options = self._journal.id, start.options
        ended = run_scaling(self.planned, study_id, options, start.plugins, start.screen, self._journal, start.settings)
        self.problems = ended.problems
        self.study = {"id": study_id, "kind": "scaling", "scalings": msgspec.to_builtins(ended.scalings)}
        self.lines = [*scaling_study_lines(study_id, ended.scalings, options.workspace)]
        return ended.runs


class ClusterScaling:
    """A scaling study whose runs are jobs of a cluster, one of each point."""

    def __init__(self, counts: Sequence[int], over: Axis, params: dict[str, Any]) -> None:
        self._counts, self._over, self._params = counts, over, params

    def check(self, nodes: int, cluster: str) -> None:
        """Refuse more nodes than the cluster has.

        Raises:
            UsageProblem: it has not so many.
        """
        if self._over == NODES:
            check_nodes(self._counts, nodes, f"cluster '{cluster}'")

    def plan(
        self, plan: Callable[[Options], list[PlannedRun]], options: Options, study_id: str
    ) -> Sequence[PlannedRun]:
        """Return the runs of all points.

        Raises:
            UsageProblem: as in `plan_points`.
        """
        with_values = partial(_plan_with, plan, options)
        strong = self._params["strong"]
        points = plan_points(self._counts, with_values, strong=strong, over=self._over, on_cluster=True)
        return order_runs(points, study_id, self._params["repeat"] or 1)
