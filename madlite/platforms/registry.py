"""The runtimes that come with madlite, by name."""

from __future__ import annotations

from collections.abc import Mapping

from madlite.model import Runtime
from madlite.platforms.docker.runtime import DockerRuntime
from madlite.platforms.host.runtime import HostRuntime
from madlite.platforms.kubernetes.runtime import FOLLOWED, KubernetesRuntime
from madlite.platforms.kubernetes.settings import KubernetesSettings
from madlite.platforms.slurm.runtime import SlurmRuntime


def outliving_runtimes(environ: Mapping[str, str]) -> dict[str, Runtime]:
    """Return those whose sessions go on where nothing of this machine ends them."""
    return {name: runtime for name, runtime in builtin_runtimes(environ).items() if not runtime.traits.shares_files}


def builtin_runtimes(
    environ: Mapping[str, str],
    kubernetes: KubernetesSettings = KubernetesSettings(),  # noqa: B008 - frozen
) -> dict[str, Runtime]:
    """Return a fresh runtime for each name; no engine is contacted before it is used."""
    runtimes: tuple[Runtime, ...] = (
        DockerRuntime(environ),
        HostRuntime(environ),
        SlurmRuntime(environ),
        KubernetesRuntime(kubernetes, environ.get(FOLLOWED, "")),
    )
    return {runtime.name: runtime for runtime in runtimes}
