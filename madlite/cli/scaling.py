"""`madlite scaling`: one tag on several numbers of GPUs or nodes, and how its number scales."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import click

from madlite.cli import setup
from madlite.cli.batch_options import (
    check_together,
    cluster_study_options,
    named_cluster,
    pretend_options,
    resume_option,
    turn_options,
)
from madlite.cli.batches import resume_last, resumes_as_begun
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
from madlite.cli.studies import plan_with, preview_grid
from madlite.cli.terminal import echo, echo_lines
from madlite.errors import UsageProblem
from madlite.plan.planned import PlannedRun
from madlite.study.scaling import GPUS, NODES, Axis, check_nodes, plan_points, read_counts

if TYPE_CHECKING:
    from madlite.cli.planning import Planner
    from madlite.plan.context import Options


def _joined(ctx: click.Context, param: click.Parameter, lists: Sequence[str]) -> str:
    """Return several lists as one: `--gpus 1,2 --gpus 4` is `--gpus 1,2,4`."""
    return ",".join(lists)


@click.command("scaling", cls=TagsCommand)
@tag_words
@tags_option
@cards_option
@section("Scaling")
@click.option("--gpus", "counts", multiple=True, callback=_joined, metavar="LIST", help="Numbers of GPUs: 1,2,4,8.")
@click.option("--nodes", "node_counts", multiple=True, callback=_joined, metavar="LIST", help="Numbers of nodes: 1,2.")
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
    from madlite.cli.submit import run_on_cluster, translated
    from madlite.store.batches import BatchLog

    if params["resume"] and resumes_as_begun():
        return resume_last()
    over, counts = _wanted(params)
    params = {**run_command.make_context("run", [], resilient_parsing=True).params, **params}
    refuse_given({over}, "--nodes" if over == NODES else "--gpus", params)
    plugins = setup.load(params["no_plugins"])
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
        plan = plan_with(planner(plugins, options, params, touch), options)
        planned = plan_points(counts, plan, strong=params["strong"], over=over)
        setup.print_problems(plugins.problems)
        if journal is None:
            return _preview(planned, options, params)
        return run_planned(planned, options, plugins, params, journal)


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
    return (NODES, read_counts(nodes, NODES)) if nodes else (GPUS, read_counts(gpus, GPUS))


def _preview(planned: Sequence[PlannedRun], options: Options, params: dict[str, Any]) -> int:
    firsts, order = preview_grid(planned, params)
    for run in firsts:
        echo_lines(preview(run, options.environ))
    for text in order:
        echo(text)
    return 0


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

    def plan(self, plan: Planner, options: Options) -> Sequence[PlannedRun]:
        """Return the run of each point.

        Raises:
            UsageProblem: as in `plan_points`.
        """
        with_values = plan_with(plan, options)
        return plan_points(self._counts, with_values, strong=self._params["strong"], over=self._over, on_cluster=True)
