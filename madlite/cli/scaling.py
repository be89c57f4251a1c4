"""`madlite scaling`: one tag on several numbers of GPUs or nodes, and how its number scales."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from typing import Any

import click

from madlite.backends.loader import Plugins
from madlite.cli import setup
from madlite.cli.arguments import TextType
from madlite.cli.batch_options import (
    check_together,
    cluster_study_options,
    named_cluster,
    pretend_options,
    resume_option,
    turn_options,
)
from madlite.cli.batches import resume_as_begun
from madlite.cli.options import (
    TagsCommand,
    batch_options,
    common_options,
    live_option,
    models_options,
    scaling_options,
    section,
)
from madlite.cli.planning import Planner, planner, preview, refuse_given, translated
from madlite.cli.run import StudyPlan, run_study, with_run_options
from madlite.cli.studies import plan_with, preview_grid
from madlite.cli.terminal import echo_lines
from madlite.errors import UsageProblem
from madlite.plan.context import Options
from madlite.plan.submission import PlannedRun
from madlite.study.scaling import GPUS, NODES, Axis, check_nodes, plan_points


def _counts(text: str) -> list[int]:
    counts = [int(word) for word in text.split(",")]
    if min(counts) < 1 or len(set(counts)) < len(counts):
        raise ValueError(text)
    return counts


_COUNTS = TextType("list of different numbers", _counts, "1,2,4,8")


@click.command("scaling", cls=TagsCommand)
@models_options
@section("Scaling")
@click.option("--gpus", "counts", type=_COUNTS, metavar="LIST", help="Numbers of GPUs: 1,2,4,8.")
@click.option("--nodes", "node_counts", type=_COUNTS, metavar="LIST", help="Numbers of nodes: 1,2.")
@click.option("--strong", is_flag=True, help="Keep the global batch; else each GPU keeps its work (weak scaling).")
@pretend_options("script and container request of each")
@live_option
@scaling_options
@batch_options
@resume_option
@turn_options
@cluster_study_options
@common_options
def command(**params: Any) -> int:
    """Run a tag on several numbers of GPUs or nodes, and show how it scales.

    Shown are throughput per GPU and in total, speedup and efficiency.

    \b
    madlite scaling my_model --gpus 1,2,4,8
    madlite scaling my_model --gpus 1,8 --repeat 5
    madlite scaling my_model --gpus 2,4,8 --strong --set global_batch=64
    salloc -N4 --exclusive madlite scaling my_model --nodes 1,2,4
    madlite scaling my_model --nodes 1,2,4 --cluster mi300
    """
    if (code := resume_as_begun()) is not None:
        return code
    over, counts = _wanted(params)
    params = with_run_options(params)
    refuse_given({over}, "--nodes" if over == NODES else "--gpus", params)
    plugins = setup.load(params["no_plugins"])
    to = translated(named_cluster(params), params)
    check_together(on_cluster=to is not None)
    points = Points(counts, over, params)
    if to is not None:
        from madlite.cli.submit import run_on_clusters

        params["nodes"] = max(counts) if over == NODES else None
        return run_on_clusters([to], plugins, params, points)
    return run_study(plugins, params, partial(_plan, points, params))


def _plan(points: Points, params: dict[str, Any], plugins: Plugins, options: Options) -> StudyPlan:
    if points.over == NODES and options.nodes:
        check_nodes(points.counts, options.nodes, f"allocation {os.environ.get('SLURM_JOB_ID', '')}".rstrip())
    planned = points.plan(planner(plugins, options, params, not params["dry_run"]), options)
    return StudyPlan(planned, partial(_preview, planned, options, params))


def _wanted(params: dict[str, Any]) -> tuple[Axis, list[int]]:
    """Return what varies, and its numbers.

    Raises:
        UsageProblem: neither or both are named.
    """
    gpus, nodes = params["counts"], params["node_counts"]
    if gpus and nodes:
        raise UsageProblem(
            "--gpus beside --nodes: a study varies one of them", f"--set {GPUS}=8 gives each node 8 GPUs"
        )
    if not (gpus or nodes):
        raise UsageProblem("scaling over what? neither --gpus nor --nodes is there", "--gpus 1,2,4,8")
    return (NODES, nodes) if nodes else (GPUS, gpus)


def _preview(planned: Sequence[PlannedRun], options: Options, params: dict[str, Any]) -> None:
    for run in preview_grid(planned, params):
        echo_lines(preview(run, options.environ))


class Points:
    """A run of each number of GPUs, or of nodes: here, or each a job of a cluster."""

    def __init__(self, counts: Sequence[int], over: Axis, params: dict[str, Any]) -> None:
        self.counts, self.over, self._strong = counts, over, params["strong"]

    def check(self, nodes: int, cluster: str) -> None:
        """Refuse more nodes than the cluster has.

        Raises:
            UsageProblem: it has not so many.
        """
        if self.over == NODES:
            check_nodes(self.counts, nodes, f"cluster '{cluster}'")

    def plan(self, plan: Planner, options: Options) -> Sequence[PlannedRun]:
        """Return the run of each point.

        Raises:
            UsageProblem: as in `plan_points`.
        """
        with_values, on_cluster = plan_with(plan, options), options.elsewhere
        return plan_points(self.counts, with_values, strong=self._strong, over=self.over, on_cluster=on_cluster)
