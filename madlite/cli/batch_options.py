"""Options of commands that make many runs, and what such commands refuse of the others."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import click

from madlite.cli.arguments import FiniteRange, whole_number
from madlite.cli.options import F, group
from madlite.errors import UsageProblem

NOT_MEASURED = {
    "skip_model_run": ("--skip-model-run", "no run has a number"),
    "keep_alive": ("--keep-alive", "what each run leaves running would slow down the next one"),
}
"""Options of `run` beside which no numbers can be compared: by their parameter, the option and why."""


def refuse(params: Mapping[str, Any], refused: Mapping[str, tuple[str, str]], where: str, instead: str = "") -> None:
    """Refuse options that a command does not go together with; `where` is "beside tune", say.

    Raises:
        UsageProblem: the command line has one; its hint is to leave it out, or `instead`.
    """
    for name, (option, why) in refused.items():
        if params.get(name):
            choice = f"{option} or {instead}" if instead else option
            raise UsageProblem(f"{option} {where}: {why}", f"leave {choice} out")


def pretend_options(what: str) -> Callable[[F], F]:
    """Add --dry-run, which prints `what`, and --machine."""
    return group(
        click.option("-n", "--dry-run", is_flag=True, help=f"Print {what}, and touch nothing."),
        click.option(
            "--machine", default="", metavar="NxGPU", help="With --dry-run: pretend this machine, e.g. 8xMI300X."
        ),
    )


def check_pretended(params: Mapping[str, Any]) -> None:
    """Refuse --machine for what is run.

    Raises:
        click.UsageError: it is given without --dry-run.
    """
    if params["machine"] and not params["dry_run"]:
        raise click.UsageError("--machine only pretends: use it with --dry-run")


class _AtOnce(click.types.IntParamType):
    """A number of runs at the same time, or `auto`, which is 0."""

    name = "N|auto"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number."""
        number = 0
        if value == "auto":
            return number
        with suppress(ValueError):
            number = int(value)
        if number < 1:
            self.fail(f"{value!r} is neither a number of runs nor auto", param, ctx)
        return number


parallel_options = group(
    click.option(
        "--parallel",
        type=_AtOnce(),
        metavar="N|auto",
        help="Run so many at the same time, each on GPUs of its own; docs/parallel.md.  [default: 1]",
    ),
    click.option(
        "--exclusive", is_flag=True, help="Give each run all GPUs of the machine: no other run with GPUs beside it."
    ),
    click.option(
        "--bind",
        type=click.Choice(("off", "numa")),
        default="off",
        help="Keep a run to the CPUs and memory of its GPUs' NUMA nodes: numa.  [default: off]",
    ),
    click.option("--fail-fast", is_flag=True, help="Start no other run once one failed."),
    click.option("--max-failures", type=whole_number(1), metavar="N", help="Start no other run once N failed."),
)
"""Add the options of several runs."""
_REPEAT = click.option(
    "--repeat", type=whole_number(1), metavar="N", help="Run each of them N times, in turns; docs/repeat.md."
)
_SETTLE = (
    click.option(
        "--settle",
        is_flag=False,
        flag_value="first",
        metavar="[=CELSIUS]",
        help="Wait before each run until the GPUs are as cool as this, or as at the first run's start.",
    ),
    click.option(
        "--settle-timeout",
        type=FiniteRange(0),
        default=300.0,
        metavar="SECONDS",
        help="The longest wait of --settle.  [default: 300]",
    ),
)
repeat_options = group(
    _REPEAT,
    click.option("--cold", is_flag=True, help="With --repeat: each run compiles and tunes anew; no warm-up."),
    *_SETTLE,
)
"""Add the options of runs that are repeated, and of how each of them begins."""
settle_options = group(*_SETTLE)
"""Add the options of how each of several runs begins."""
turn_options = group(_REPEAT, *_SETTLE)
"""Add the same without those of caches."""
interrupt_option = click.option(
    "--on-interrupt",
    type=click.Choice(["leave", "cancel"]),
    help="What a signal does with the jobs.  [default: a terminal asks; else INT, TERM cancel, HUP leaves]",
)
"""Add --on-interrupt."""
_CLUSTER = click.option(
    "--cluster", default=None, metavar="NAME", help="Run as jobs of this cluster of cluster.toml.  [$MADLITE_CLUSTER]"
)
_JOBS = (
    click.option("--exclude", multiple=True, metavar="NODE,…", help="With --cluster: no job on these nodes."),
    click.option("--detach", is_flag=True, help="With --cluster: print the jobs and do not wait; madlite attach does."),
    interrupt_option,
)
_NODES = click.option(
    "--nodes",
    type=whole_number(1),
    metavar="N",
    help="Nodes of each run: with --cluster (default 1), or the first N of an allocation (default all).",
)
cluster_options = group(_CLUSTER, _NODES, *_JOBS)
"""Add the options of runs that are jobs of a cluster."""
cluster_plan_options = group(_CLUSTER, _NODES)
"""Add those that decide the plans of such runs."""
cluster_study_options = group(_CLUSTER, *_JOBS)
"""Add the same of a study that varies the nodes."""


def named_cluster(params: Mapping[str, Any]) -> str:
    """Return the cluster that a command names, by option or environment; "" for none.

    Runs of an allocation are in it, unless the option says otherwise.

    Raises:
        UsageProblem: it is empty, or given beside a pretended machine.
    """
    from madlite.jobs.file import VARIABLE
    from madlite.platforms.slurm.allocation import allocation_of

    if params.get("cluster") == "":
        raise UsageProblem("--cluster has no name: ''", "a variable without a value? cluster.toml has the names")
    given: str = params.get("cluster") or ""
    if given and params.get("machine"):
        what = f"--machine {params['machine']} beside --cluster {given}: its runs are planned for the cluster's GPUs"
        raise UsageProblem(what, "gpu and gpus_per_node of the cluster file say what they are; leave --machine out")
    if given or params.get("plan_file") is not None or params.get("machine") or allocation_of(os.environ) is not None:
        return given
    return os.environ.get(VARIABLE, "").strip()


def _refuse_cluster(ctx: click.Context, param: click.Parameter, name: str | None) -> None:
    if ctx.resilient_parsing:
        return
    named = named_cluster({**ctx.params, "cluster": name})
    if not named:
        return
    command = f"madlite {ctx.info_name} …"
    hint = f"salloc -N1 --exclusive {command}, which makes all of them in one allocation"
    origin = f"--cluster {name}"
    if not name:
        from madlite.jobs.file import VARIABLE

        origin = f"{VARIABLE}={named}"
        hint += f"; env -u {VARIABLE} {command} makes them here"
    raise UsageProblem(
        f"{origin} beside {ctx.info_name}: it chooses each run by those before, which would wait in the queue one "
        "after another",
        hint,
    )


# not eager: what is read before a value that is not given is all that is given
no_cluster = click.option("--cluster", default=None, hidden=True, expose_value=False, callback=_refuse_cluster)
"""Say why a command has no --cluster, and what to do instead."""
sweep_options = group(
    click.option(
        "--sweep",
        multiple=True,
        metavar="KEY=A,B",
        help="Run once with each of these values of --set; several: every combination; docs/sweep.md.",
    ),
    click.option("--zip", "zip_values", is_flag=True, help="Pair the values of several --sweep instead."),
)
"""Add the options of a sweep."""
retry_options = group(
    click.option(
        "--retry",
        type=whole_number(0),
        default=0,
        metavar="N",
        help="Try a run up to N times again that a server, the hub, a port or a preemption ended; docs/resume.md.",
    ),
    click.option(
        "--retry-wait",
        type=FiniteRange(0, 86400),
        default=10.0,
        metavar="SECONDS",
        help="The wait before the first retry, doubled for each later one.  [default: 10]",
    ),
    click.option(
        "--oom-fallback", is_flag=True, help="Run with the next smaller micro batch where a GPU's memory ran out."
    ),
)
"""Add the options of runs that are tried again."""
resume_option = click.option(
    "--resume",
    is_flag=True,
    help="Go on with the last batch of this folder that was killed or interrupted; alone: with its own command.",
)
"""Add --resume."""
