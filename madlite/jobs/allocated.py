"""Which machines runs are on: the nodes of an allocation, those that a context gives them to, or this one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from msgspec.structs import replace

from madlite.errors import UsageProblem
from madlite.plan.cluster import KubernetesSettings
from madlite.plan.context import TARGETS, Context, Options
from madlite.plan.inputs import find_node_values, is_task_of_several
from madlite.platforms.contexts import named_nodes
from madlite.platforms.registry import DIRECT, asked_tables, find_allocation
from madlite.text import counted

if TYPE_CHECKING:
    from madlite.platforms.slurm.allocation import Allocation


def allocated(
    named: str, asked: int | None, environ: Mapping[str, str], context: Callable[[], Context] | None
) -> tuple[str, int, str]:
    """Return the runtime and the nodes of runs in the allocation that this process is in, and a note on it.

    In one of several nodes a run is on all of them, or on the first ones, as many as are asked for, unless a runtime
    is `named`.  Where no number is `asked` for, that of the context counts; None of a study, which has its own.

    Raises:
        UsageProblem: it would be on all of them once for each task of srun, or each rank has a madlite; or the nodes
            that are asked for are not there.
    """
    find_node_values(environ)
    here = find_allocation(environ)
    if here is not None and is_task_of_several(environ):
        return named, 0, _each_its_own(named, asked, here)
    one_alone = here is not None and named not in ("", here.runtime)
    asked_by = "--nodes"
    if asked is None and here is not None and context is not None:
        asked, asked_by = _of_context(context())
    if asked is not None:
        _check_nodes(asked, asked_by, here, named if one_alone else "")
    if here is None or one_alone:
        return named, 0, ""
    if here.count == 1 and not named and not here.starts_one:
        return "", 0, f"in allocation {here.job_id}: its one node alone, with the GPUs that it has there"
    if asked is not None and asked < here.count:
        which = f"the first {asked} of its {here.count} nodes" if asked > 1 else f"the first of its {here.count} nodes"
        return here.runtime, asked, f"in allocation {here.job_id}: on {which}"
    which = f"its {here.count} nodes" if here.count > 1 else "its one node"
    return here.runtime, here.count, f"in allocation {here.job_id}: on {which}"


def _each_its_own(named: str, asked: int | None, here: Allocation) -> str:
    """Return a note on an allocation on each of whose nodes a madlite was started.

    Raises:
        UsageProblem: each is asked for what is about all nodes.
    """
    if named == here.runtime:
        what = f"--runtime {named} in every task of srun or mpirun: each would run on all nodes"
        raise UsageProblem(what, "madlite run …, without it")
    note = f"in allocation {here.job_id}: each of its nodes has a madlite of its own"
    if asked is not None:
        raise UsageProblem(f"--nodes {asked} {note}", "leave --nodes out, or madlite run …, without srun or mpirun")
    return note


def _of_context(context: Context) -> tuple[int | None, str]:
    """Return the nodes of each run that a context asks for, None where it does not, and how messages name that.

    Raises:
        UsageProblem: it is no number.
    """
    if context.target == DIRECT:  # whose machines are none of an allocation
        return None, ""
    count = named_nodes(context)
    return count if count > 1 else None, f"{context.origins.get('distributed', 'context')}: distributed.nnodes"


def _check_nodes(asked: int, asked_by: str, here: Allocation | None, on_one: str) -> None:
    """Refuse nodes that a run cannot have; `on_one` is the runtime that is asked for and knows one node alone.

    Raises:
        UsageProblem: there is no allocation, it has fewer, or the runtime would use one.
    """
    if here is None:
        what = f"{asked_by} {asked} without --cluster, and this is no allocation of Slurm"
        raise UsageProblem(what, f"add --cluster NAME, or salloc -N{asked} madlite run …")
    if asked > here.count:
        what = f"{asked_by} {asked}: allocation {here.job_id} has {counted(here.count, 'node')}"
        raise UsageProblem(what, f"--nodes {here.count}, or salloc -N{asked} for more")
    if asked > 1 and on_one:
        what = f"{asked_by} {asked} beside --runtime {on_one}: it would run on this node alone"
        raise UsageProblem(what, "leave --runtime out; $MADLITE_CONTAINER says what nodes run it in")


def check_context_nodes(context: Context, options: Options, *, is_asked: bool) -> None:
    """Refuse a context that asks for other nodes than runs are on, unless the command asks for some, which win.

    Raises:
        UsageProblem: it does.
    """
    asked, asked_by = _of_context(context)
    if asked is None or is_asked:
        return
    have = options.nodes or find_node_values(options.environ).nnodes
    have = have or int((context.typed.multi_node_args or {}).get("NNODES", 0))
    if not have:
        _check_nodes(asked, asked_by, None, "")
    if have != asked:
        what = f"{asked_by} {asked}, and each run is on {counted(have, 'node')}"
        raise UsageProblem(what, "leave it out of the context")


def on_pods(settings: KubernetesSettings, context: Context, options: Options) -> Options:
    """Return the options of runs that a context gives to pods.

    Raises:
        UsageProblem: the number of nodes is none.
    """
    nodes = named_nodes(context) or settings.nodes
    runtime = options.runtime or DIRECT
    origin = options.runtime_origin if options.runtime else context.origins.get("k8s", "context")
    asked = options.nodes or (nodes if nodes > 1 else 0)
    return replace(options, runtime=runtime, runtime_origin=origin, nodes=asked)


def check_local_target(context: Context) -> None:
    """Refuse a context that targets other machines.

    Raises:
        UsageProblem: it does.
    """
    keys = context.typed
    sent = asked_tables(context)
    if keys.deploy and context.target != "local":
        sent.append("deploy")
    target = str(keys.deployment_config.get("target") or "local")
    if TARGETS.get(target.lower()) not in ("local", context.target if context.target == DIRECT else ""):
        sent.append("deployment_config")
    if sent:
        raise UsageProblem(
            f"{context.origins.get(sent[0], 'context')}: key '{sent[0]}' asks for other machines",
            "--cluster NAME sends runs to those of a cluster file; leave the key out to run on this machine alone",
        )
