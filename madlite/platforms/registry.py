"""The platforms that come with madlite, by name: the runtime of each, and the scheduler of those that have one.

What a platform is made of stands in its folder, which is loaded once it is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from madlite.model import Runtime
from madlite.plan.cluster import Cluster, KubernetesSettings
from madlite.plan.schedulers import Description, Followers, Scheduler


def outliving_runtimes(environ: Mapping[str, str]) -> dict[str, Runtime]:
    """Return those whose sessions go on where nothing of this machine ends them."""
    return {name: runtime for name, runtime in builtin_runtimes(environ).items() if not runtime.traits.shares_files}


def builtin_runtimes(
    environ: Mapping[str, str],
    kubernetes: KubernetesSettings = KubernetesSettings(),  # noqa: B008 - frozen
) -> dict[str, Runtime]:
    """Return a fresh runtime for each name; no engine is contacted before it is used."""
    from madlite.platforms.docker.runtime import DockerRuntime
    from madlite.platforms.host.runtime import HostRuntime
    from madlite.platforms.kubernetes.runtime import KubernetesRuntime
    from madlite.platforms.slurm.runtime import SlurmRuntime

    runtimes: tuple[Runtime, ...] = (
        DockerRuntime(environ),
        HostRuntime(environ),
        SlurmRuntime(environ),
        KubernetesRuntime(kubernetes),
    )
    return {runtime.name: runtime for runtime in runtimes}


def _slurm() -> type[Scheduler]:
    from madlite.platforms.slurm.scheduler import Slurm

    return Slurm


def _kubernetes() -> type[Scheduler]:
    from madlite.platforms.kubernetes.scheduler import Kubernetes

    return Kubernetes


SCHEDULERS: Mapping[str, Callable[[], type[Scheduler]]] = {"slurm": _slurm, "kubernetes": _kubernetes}
"""What returns the class of each scheduler, by the name that the cluster file has for it."""


def scheduler_of(cluster: Cluster, environ: Mapping[str, str], followers: Followers) -> Scheduler:
    """Return the scheduler of a cluster; nothing is asked of it yet.

    Raises:
        UsageProblem: the cluster's description has what says nothing to it.
    """
    return SCHEDULERS[cluster.scheduler]()(cluster, environ, followers)


def describe_cluster(name: str, partition: str, gpu: str, environ: Mapping[str, str], workspace: Path) -> Description:
    """Return a cluster file made by asking the cluster whose commands are here; `name` and `partition` may be "".

    Raises:
        UsageProblem: no cluster answers, or it has no such partition.
    """
    from madlite.platforms.slurm.partitions import describe

    return describe(name, partition, gpu, environ, workspace)


def is_job_id(text: str, scheduler: str) -> bool:
    """Return whether a text is an id as this scheduler gives its jobs."""
    return bool(SCHEDULERS[scheduler]().job_ids.fullmatch(text))
