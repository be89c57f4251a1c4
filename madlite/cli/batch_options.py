"""Options of commands that make many runs, and which of all options do not go together."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import click

from madlite.cli.arguments import FiniteRange, TextType, count_option, file_option, matching, number_option
from madlite.cli.options import F, group, is_given, section, spelled
from madlite.errors import UsageProblem

# What says nothing without another option, and what excludes each other: by the names of their values.
_NEEDS = (
    ("check", "dry_run"),
    ("machine", "dry_run"),
    ("fail_on", "baseline"),
    ("settle_timeout", "settle"),
    ("cold", "repeat"),
    ("retry_wait", "retry"),
    ("zip_values", "sweep"),
    ("failed", "resume"),
    ("exclude", "cluster"),
    ("each_node", "cluster"),
    ("exclude_list", "each_node"),
    ("cluster", "build_on_compute"),
    ("detach", "cluster"),
    ("dependency", "cluster"),
    ("begin", "cluster"),
    ("on_interrupt", "cluster"),
)
EVERY = "all"
"""The value of --each-node without a list."""
MACHINE_OR_CLUSTER = ("machine", "cluster", "the cluster file names the machine")
_EXCLUDE = (
    ("no_rows", "output", "madlite runs collect -o FILE writes it"),
    ("resume", "dry_run", "it goes on with a batch, and --dry-run touches nothing"),
    ("sweep", "plan_file", "a plan is frozen"),
    ("oom_fallback", "plan_file", "a plan is frozen"),
    ("fail_fast", "max_failures", "it is --max-failures 1"),
    ("keep_going", "fail_fast", "the one goes on after failures, the other ends after one"),
    *((name, "cluster", "all jobs are submitted at once") for name in ("keep_going", "fail_fast", "max_failures")),
    *(("skip_model_run", name, "no run has a number") for name in ("repeat", "sweep")),
    *(("keep_alive", name, "what each leaves running would slow down the next one") for name in ("repeat", "sweep")),
    ("parallel", "repeat", "the runs of a series would disturb each other"),
    ("parallel", "exclusive", "each run is to have the machine to itself"),
    ("parallel", "keep_alive", "what a run leaves running would be on the GPUs of the next one"),
    ("plan_file", "cluster", "a plan file is run where it is started; --tags plans for the cluster"),
    ("no_rows", "cluster", "the rows are written when the jobs have ended; --detach leaves them to collect"),
    MACHINE_OR_CLUSTER,
    ("check", "cluster", "only a job can tell"),
    ("live_output", "cluster", "madlite log RUN --follow shows a job's output"),
    ("keep_alive", "cluster", "a job takes all of its processes with it"),
    ("settle", "cluster", "the nodes of a job are not known before it starts"),
    ("each_node", "nodes", "each run is on one node by itself"),
    ("exclude_list", "detach", "no run has ended"),
    ("exclude_list", "dry_run", "no run has ended"),
    ("cold", "cluster", "the runs of a cluster use the user's caches"),
    ("exclusive", "cluster", "exclusive in the cluster file gives a job its nodes alone"),
    ("resume", "cluster", "--resume with --cluster NAME goes on with the last submission to it"),
    ("baseline", "detach", "madlite compare compares once the rows are there"),
    ("summary_output", "detach", "madlite runs --json has what became of the runs"),
    ("fail_on_suspect", "detach", "no run has ended"),
    ("cleanup_perf", "detach", "no run has ended"),
)
_Pairs: TypeAlias = Iterable[tuple[str, str, str]]


def check_together(excluding: _Pairs = _EXCLUDE, *, on_cluster: bool = False) -> None:
    """Refuse options of the command line that say nothing without another one, or beside it.

    `on_cluster`: its runs are jobs, whoever named the cluster.

    Raises:
        UsageProblem: there are such options.
    """
    context = click.get_current_context()
    options = {name: spelled(name) for name in (str(param.name) for param in context.command.params)}
    values = context.params
    named = {name for name in options if is_given(name) and values.get(name) not in (None, "", ())}
    named -= {name for name in named if values[name] is False}
    given = named | ({"cluster"} if on_cluster else set())
    for name, other in _NEEDS:
        if name in given and other in options.keys() - given:
            raise UsageProblem(f"{options[name]} without {options[other]}", f"add {options[other]}")
    for name, other, why in excluding:
        if {name, other} <= given and (name != "parallel" or "cluster" not in given):  # each job has nodes of its own
            what = f"{options[name]} beside {options[other]}: {why}"
            out = " or ".join(options[text] for text in (name, other) if text in named)
            raise UsageProblem(what, f"leave {out} out")


def pretend_options(what: str) -> Callable[[F], F]:
    """Add --dry-run, which prints `what`, and --machine."""
    return group(
        section("Plan"),
        click.option("-n", "--dry-run", is_flag=True, help=f"Print {what}, and touch nothing."),
        click.option("--machine", default="", metavar="NxGPU", help="With --dry-run: pretend this machine: 8xMI300X."),
    )


def _at_once(text: str) -> int | None:
    """Return a number of runs at the same time: of `auto` 0, and None of 1, as they run anyway."""
    number = 0 if text == "auto" else int(text)
    if number < 1 and text != "auto":
        raise ValueError(text)
    return None if number == 1 else number


_AT_ONCE = TextType("number of runs", _at_once, "4 or auto")
parallel_options = group(
    section("Several runs"),
    click.option(
        "--at-most",
        "--parallel",
        "parallel",
        type=_AT_ONCE,
        metavar="N|auto",
        help="Run so many at once; docs/parallel.md.  [default: 1; of a cluster's jobs all]",
    ),
    click.option("--exclusive", is_flag=True, help="Give each run all GPUs of the machine."),
    click.option(
        "--bind",
        type=click.Choice(("off", "numa")),
        default="off",
        help="Keep runs to their GPUs' NUMA nodes.  [default: off]",
    ),
    click.option("--fail-fast", is_flag=True, help="Start no other run once one failed."),
    count_option("--max-failures", 1, "Start no other run once N failed."),
)
"""Add the options of several runs."""
_REPEAT = count_option("--repeat", 1, "Run each of them N times; docs/repeat.md.")
_KEEP_GOING = click.option(
    "--keep-going", is_flag=True, help="Go on where the first runs of a study all failed with the same error."
)
_SETTLE = (
    click.option(
        "--settle",
        is_flag=False,
        flag_value="first",
        metavar="[=CELSIUS]",
        help="Wait before each run until the GPUs are as cool as this, or as at the first run's start.",
    ),
    number_option("--settle-timeout", FiniteRange(0), 300, "SECONDS", "Longest settling."),
)
repeat_options = group(
    section("Repeats"),
    _REPEAT,
    click.option("--cold", is_flag=True, help="With --repeat: each run compiles and tunes anew; no warm-up."),
    _KEEP_GOING,
    *_SETTLE,
)
"""Add the options of runs that are repeated, and of how each of them begins."""
settle_options = group(section("Repeats"), *_SETTLE)
"""Add the options of how each of several runs begins."""
turn_options = group(section("Repeats"), _REPEAT, _KEEP_GOING, *_SETTLE)
"""Add the same without those of caches."""
interrupt_option = click.option(
    "--on-interrupt",
    type=click.Choice(["leave", "cancel"]),
    help="What a signal does with the jobs.  [default: a terminal asks; else INT, TERM cancel, HUP leaves]",
)
"""Add --on-interrupt."""
_CLUSTER = click.option(
    "--cluster",
    multiple=True,
    callback=lambda ctx, param, names: ",".join(names) if names else None,
    metavar="NAME",
    help="Run as jobs of this cluster; run takes several, in turns.  [$MADLITE_CLUSTER]",
)


def _nodes(ctx: click.Context, param: click.Parameter, words: tuple[str, ...]) -> list[str]:
    """Return the nodes of lists and, as sbatch has it, of files: what has a slash is one."""
    from madlite.plan.inputs import nodes_in, split_hosts

    return [node for word in words for node in (nodes_in(Path(word)) if "/" in word else split_hosts(word))]


exclude_option = click.option(
    "--exclude",
    multiple=True,
    callback=_nodes,
    metavar="NODE,…|./FILE",
    help="With --cluster: no job on these nodes, or on those of a file.",
)
"""Add --exclude."""


_START = TextType("start", matching(r"[\w:+.,?@/-]+"), "it as sbatch has it: afterok:1234, 16:00, now+2hours")
_JOBS = (
    click.option(
        "--dependency", type=_START, metavar="LIST", help="With --cluster: start after these jobs: afterok:1234."
    ),
    click.option("--begin", type=_START, metavar="TIME", help="With --cluster: start no earlier: 16:00, now+2hours."),
    exclude_option,
    click.option("--detach", is_flag=True, help="With --cluster: do not wait; madlite cluster attach does."),
    interrupt_option,
)
_NODES = count_option("--nodes", 1, "Nodes of each run.  [default: 1, or all of an allocation]")
cluster_option = click.option("--cluster", metavar="NAME", help="With --build-on-compute: a job of this cluster.")


_SOME_NODES = TextType("list of nodes", matching(r"(?s).*[^ ,].*"), "n1,n2 or n[1-4]; --each-node alone is every node")
_EACH_NODE = (
    click.option(
        "--each-node",
        is_flag=False,
        flag_value=EVERY,
        type=_SOME_NODES,
        metavar="[=NODE,…]",
        help="With --cluster: run on every node, or on each of these, by itself; compare them at the end.",
    ),
    file_option(
        "--exclude-list", what="With --each-node: write the nodes to leave out to FILE, for --exclude of sbatch."
    ),
)
cluster_options = group(section("Cluster"), _CLUSTER, _NODES, *_EACH_NODE, *_JOBS)
"""Add the options of runs that are jobs of a cluster."""
cluster_plan_options = group(section("Cluster"), _CLUSTER, _NODES)
"""Add those that decide the plans of such runs."""
cluster_study_options = group(section("Cluster"), _CLUSTER, *_JOBS)
"""Add the same of a study that varies the nodes."""


def named_cluster(params: Mapping[str, Any]) -> str:
    """Return the cluster that a command names, by option or environment; "" for none.

    Runs of an allocation are in it, unless the option says otherwise.

    Raises:
        UsageProblem: its name is empty.
    """
    from madlite.jobs.file import VARIABLE
    from madlite.platforms.registry import find_allocation

    given: str | None = params.get("cluster")
    if given is not None and not all(name.strip() for name in given.split(",")):
        what = f"--cluster has no name: '{given}'"
        raise UsageProblem(what, "a variable without a value? cluster.toml has the names")
    here = params.get("plan_file") is not None or params.get("machine") or find_allocation(os.environ) is not None
    return given or ("" if here else os.environ.get(VARIABLE, "").strip())


def cluster_names(named: str) -> list[str]:
    """Return the clusters that a command names, each once."""
    return [*dict.fromkeys(name for part in named.split(",") if (name := part.strip()))]


def _refuse_cluster(ctx: click.Context, param: click.Parameter, name: str | None) -> None:
    if not ctx.resilient_parsing and (named := named_cluster({**ctx.params, "cluster": name})):
        raise UsageProblem(
            f"cluster {named} beside {ctx.info_name}: it chooses each run by those before, which would wait in the "
            "queue one after another",
            f"salloc -N1 --exclusive madlite {ctx.info_name} …, which makes all of them in one allocation; "
            f"env -u MADLITE_CLUSTER madlite {ctx.info_name} … makes them here",
        )


# not eager: what is read before a value that is not given is all that is given
no_cluster = click.option("--cluster", default=None, hidden=True, expose_value=False, callback=_refuse_cluster)
"""Say why a command has no --cluster, and what to do instead."""
sweep_options = group(
    section("Sweeps"),
    click.option("--sweep", multiple=True, metavar="KEY=A,B", help="Run with each of these values; docs/sweep.md."),
    click.option("--zip", "zip_values", is_flag=True, help="Pair the values of several --sweep instead."),
)
"""Add the options of a sweep."""
retry_options = group(
    section("Failed runs"),
    count_option("--retry", 0, "Retry up to N times what may pass; docs/resume.md.", default=0),
    number_option("--retry-wait", FiniteRange(0, 86400), 10, "SECONDS", "First wait; doubles."),
)
"""Add the options of runs that are tried again."""
resume_option = group(
    section("Failed runs"),
    click.option("--resume", is_flag=True, help="Go on with the last batch here that was interrupted; docs/resume.md."),
    click.option("--failed", is_flag=True, help="With --resume: run again what failed in the last batch."),
)
"""Add --resume and --failed."""
resume_study_option = click.option(
    "--resume",
    "resume_study",
    is_flag=False,
    flag_value="last",
    metavar="[=ID]",
    help="Go on with this study, or the newest of the same options, from its records; no run is repeated.",
)
"""Add --resume of a search."""
recovery_options = group(
    section("Failed runs"),
    retry_options,
    click.option("--oom-fallback", is_flag=True, help="Retry with a smaller micro batch where memory ran out."),
    resume_option,
)
"""Add the same, --oom-fallback and --resume."""
