"""A container's request in the words of `docker run`, as madengine prints them; what is started is asked of the API."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from madlite.model import EnvValue, RunPlan, Secret

_FUSE = "/dev/fuse"


def option_lines(plan: RunPlan) -> tuple[str, str]:
    """Return the lines of a plan's GPUs and of all its options, in madengine's order; secrets are ***."""
    gpus = " ".join(_gpus(plan))
    return f"GPU arguments: {gpus}", f"Docker options: {' '.join(_options(plan, gpus))}"


def _options(plan: RunPlan, gpus: str) -> Iterator[str]:
    given = plan.engine_options
    yield f"--network {given.network} -u {given.user}"
    yield from (f"--group-add {name}" for name in given.group_add)
    yield from (f"--cap-add {name}" for name in given.cap_add)
    yield from (f"--device {name}" for name in plan.devices if name == _FUSE)
    yield from (f"--security-opt {text}" for text in given.security_opt)
    yield from (f"--ulimit {text}" for text in given.ulimits)
    yield from ([f"--ipc={given.ipc}"] if given.ipc else [])
    yield from filter(None, [gpus])
    yield from ([f"--cpuset-cpus {given.cpuset}"] if given.cpuset else [])
    yield from (f"--env {name}={_shown(value)}" for name, value in plan.env.items())
    for mount in plan.mounts:
        end = ":ro" if mount.read_only else ""
        yield f"-v {shlex.quote(f'{mount.source}:{mount.target}{end}')}"
    yield from filter(None, [given.extra])


def _gpus(plan: RunPlan) -> Iterator[str]:
    if plan.machine.vendor == "NVIDIA" and plan.place.gpu_ids:
        yield f"--gpus '\"device={','.join(map(str, plan.place.gpu_ids))}\"'"
    yield from (f"--device={name}" for name in plan.devices if name != _FUSE)


def _shown(value: EnvValue) -> str:
    return "***" if isinstance(value, Secret) else shlex.quote(value)
