"""The platforms that come with madlite, by name: the runtime of each, and the scheduler of those that have one.

What a platform is made of stands in its folder, which is loaded once it is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from madlite.errors import UsageProblem
from madlite.model import Json, Runtime
from madlite.plan.cluster import Cluster, KubernetesSettings
from madlite.plan.context import TABLES, Context
from madlite.plan.schedulers import Scheduler, Translation
from madlite.platforms.contexts import target_of

if TYPE_CHECKING:
    from madlite.platforms.slurm.allocation import Allocation


def outliving_runtimes(environ: Mapping[str, str]) -> dict[str, Runtime]:
    """Return those whose sessions go on where nothing of this machine ends them."""
    return {name: runtime for name, runtime in builtin_runtimes(environ).items() if not runtime.traits.shares_files}


def _docker(environ: Mapping[str, str], context: Context) -> Runtime:
    from madlite.platforms.docker.runtime import DockerRuntime

    return DockerRuntime(environ)


def _host(environ: Mapping[str, str], context: Context) -> Runtime:
    from madlite.platforms.host.runtime import HostRuntime

    return HostRuntime(environ)


def _allocation(environ: Mapping[str, str], context: Context) -> Runtime:
    from madlite.platforms.slurm.runtime import SlurmRuntime

    return SlurmRuntime(environ)


def _pods(environ: Mapping[str, str], context: Context) -> Runtime:
    from madlite.platforms.kubernetes.runtime import KubernetesRuntime

    of_pods = settings_of_pods(context)
    return KubernetesRuntime(of_pods[0] if of_pods is not None else None)


_RUNTIMES: Mapping[str, Callable[[Mapping[str, str], Context], Runtime]] = {
    "docker": _docker,
    "host": _host,
    "slurm": _allocation,
    "kubernetes": _pods,
}


def builtin_runtimes(
    environ: Mapping[str, str],
    context: Context = Context(),  # noqa: B008 - frozen
    names: Collection[str] = (),
) -> dict[str, Runtime]:
    """Return a fresh runtime for each name, by what a context says of it; no engine is contacted before it is used.

    Where all of `names` are madlite's, they alone are loaded.

    Raises:
        UsageProblem: the context says what cannot be used.
    """
    wanted = names if names and _RUNTIMES.keys() >= set(names) else _RUNTIMES
    return {name: make(environ, context) for name, make in _RUNTIMES.items() if name in wanted}


def _slurm() -> type[Scheduler]:
    from madlite.platforms.slurm.scheduler import Slurm

    return Slurm


def _kubernetes() -> type[Scheduler]:
    from madlite.platforms.kubernetes.scheduler import Kubernetes

    return Kubernetes


SCHEDULERS: Mapping[str, Callable[[], type[Scheduler]]] = {"slurm": _slurm, "kubernetes": _kubernetes}
"""What returns the class of each scheduler, by the name that the cluster file has for it."""


DIRECT = "kubernetes"
"""The platform whose runtime takes the runs of a context by itself; the others' runs are jobs."""


def translate(
    context: Context, deployment: Mapping[str, Json], base: Cluster | None, environ: Mapping[str, str], nodes: int = 0
) -> Translation | None:
    """Return the cluster of runs that are jobs: `base` of the cluster file, with what the context says over it.

    None where they are none: a context alone describes a Slurm, and pods by `direct_values`.  `nodes` that the command
    asks for win over the context's.

    Raises:
        UsageProblem: a value cannot be used.
    """
    target = base.scheduler if base is not None else target_of(context, deployment)
    if target == "slurm":
        from madlite.platforms.slurm.context import cluster_of_slurm

        return cluster_of_slurm(context, deployment, base, environ, nodes)
    if target != DIRECT or base is None:
        return None
    from madlite.platforms.kubernetes.context import cluster_of_pods

    return cluster_of_pods(context, deployment, base)


def direct_values(context: Context, deployment: Mapping[str, Json]) -> Translation | None:
    """Return what a context and the deployment of a manifest say of runs without jobs; None where they have none.

    Raises:
        UsageProblem: a value cannot be used.
    """
    if target_of(context, deployment) != DIRECT or asked_tables(context):
        return None
    from madlite.platforms.kubernetes.context import values_of_pods

    return values_of_pods(context, deployment)


def runtime_values(cluster: Cluster) -> dict[str, Json]:
    """Return what the runtime of a cluster's runs has of their context; of Slurm nothing, whose scripts have it.

    Raises:
        UsageProblem: the cluster says what has no effect on pods.
    """
    if cluster.scheduler != DIRECT:
        return {}
    from madlite.platforms.kubernetes.context import context_of_pods

    return context_of_pods(cluster)


def settings_of_pods(context: Context) -> tuple[KubernetesSettings, tuple[str, ...]] | None:
    """Return what a context says of the pods of runs without jobs, and notes on it; None where it says nothing.

    Raises:
        UsageProblem: a value cannot be used.
    """
    if not any(TABLES[key] == DIRECT for key in TABLES.keys() & context.values.keys()):
        return None
    from madlite.platforms.kubernetes.settings import settings_in

    return settings_in(context)


def asked_tables(context: Context) -> list[str]:
    """Return the tables of a context that ask for jobs of a cluster, and nothing else."""
    return [key for key, platform in TABLES.items() if getattr(context.typed, key) and platform != DIRECT]


def find_allocation(environ: Mapping[str, str]) -> Allocation | None:
    """Return the nodes of a cluster that this process was given; None where it is in no allocation."""
    if not (environ.get("SLURM_JOB_ID") or environ.get("SPUR_JOB_ID")):
        return None
    from madlite.platforms.slurm.allocation import allocation_of

    return allocation_of(environ)


def preemption_here(environ: Mapping[str, str]) -> str:
    """Return that another job preempts the one that this process is in, as text; "" where none does."""
    here = find_allocation(environ)
    return here.preemption() if here is not None else ""


def step_on_node(cluster: Cluster, environ: Mapping[str, str]) -> tuple[list[str], dict[str, str], str]:
    """Return what starts a command on a node, its environment, and madlite's command there.

    The node is the first one of this allocation, else that of a job of its own.

    Raises:
        UsageProblem: the cluster is no Slurm, or its commands are not here.
        RuntimeProblem: Slurm does not answer.
    """
    from madlite.platforms.slurm.allocation import job_environment
    from madlite.platforms.slurm.scheduler import Slurm
    from madlite.platforms.slurm.script import madlite_on, step_of_a_job

    if not cluster.name and (here := find_allocation(environ)) is not None:
        return here.step(here.nodes[:1]), here.environment(), madlite_on(cluster)
    if cluster.scheduler != Slurm.name:
        raise UsageProblem(f"cluster '{cluster.name}' is no Slurm", "without --build-on-compute images are built here")
    slurm = Slurm(cluster, environ)
    return step_of_a_job(slurm.check_here(), slurm.not_good()), job_environment(environ), madlite_on(cluster)


def scheduler_of(cluster: Cluster, environ: Mapping[str, str]) -> Scheduler:
    """Return the scheduler of a cluster; nothing is asked of it yet.

    Raises:
        UsageProblem: the cluster's description has what says nothing to it.
    """
    return SCHEDULERS[cluster.scheduler]()(cluster, environ)


def is_job_id(text: str, scheduler: str) -> bool:
    """Return whether a text is an id as this scheduler gives its jobs."""
    return bool(SCHEDULERS[scheduler]().job_ids.fullmatch(text))
