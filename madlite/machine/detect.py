"""From overrides and what is found to one Machine, each fact with its origin."""

from __future__ import annotations

import socket
from collections.abc import Mapping

import msgspec

from madlite.machine.found import Found
from madlite.machine.host import Host
from madlite.machine.kfd import read_topology
from madlite.machine.overlay import overlay
from madlite.machine.overrides import Asked, Override, read_overrides
from madlite.machine.pretend import is_here, pretend
from madlite.machine.products import find_product, short_name
from madlite.machine.render_nodes import doubt_render_nodes
from madlite.machine.search import search
from madlite.machine.system import doubt_numa_balancing, find_host_os
from madlite.model import Gpu, Machine, Problem

THIS = Host()
RENAMED = {"arch": "architecture"}  # where Machine's word for a fact differs from a GPU's
TOLD = ("gpus", "arch", "product", "memory_bytes", "render_minor", "driver_version", "rocm_version", "cuda_version")


def detect_machine(overrides: Mapping[str, Override], *, host: Host = THIS) -> Machine:
    """Return what is on this machine, or the machine that the overrides describe.

    Overrides: gpu_vendor (AMD, NVIDIA, CPU), gpu_arch or MAD_SYSTEM_GPU_ARCHITECTURE, gpu_product or
    MAD_SYSTEM_GPU_PRODUCT_NAME, device (MI300X), n_gpus (count of the machine), gpu_renderDs (render node numbers by
    GPU id), rocm_version, cuda_version, MAD_ROCM_PATH, numa_balancing (0 or 1, as in /proc); other keys are ignored.
    A GPU and a count are a whole machine, for which no tool runs unless it is this one; fewer correct what is found.
    A machine with GPUs that are not here is marked as pretended.

    Raises:
        UsageProblem: an override that cannot be meant.
        CheckFailed: a GPU is here but cannot be read, or none is here of the vendor asked for.
    """
    asked = read_overrides(overrides)
    found = overlay(_find(asked, host), asked)
    return _gpu_machine(found, asked, host) if found.gpus else _cpu_machine(found, asked, host)


def _find(asked: Asked, host: Host) -> Found:
    if asked.vendor == "CPU":
        return Found(vendor="CPU")
    topology = read_topology(host.root)
    if asked.rocm_path:
        host = msgspec.structs.replace(host, rocm_path=asked.rocm_path)
    if asked.describes_a_machine and not is_here(asked, topology):
        return pretend(asked)
    return search(asked, host, topology)


def _cpu_machine(found: Found, asked: Asked, host: Host) -> Machine:
    problems = _problems(found)
    if (asked.n_gpus or asked.renders) and asked.vendor is None:
        key = asked.keys.get("n_gpus", "gpu_renderDs")
        problems += (Problem(where=key, what="without effect: no GPU is here, and no gpu_arch or device says which"),)
    origin = asked.origin("vendor") if asked.vendor else "no trace of a GPU under /sys, /dev and /proc"
    return Machine(
        hostname=socket.gethostname(), host_os=find_host_os(host), sources={"vendor": origin}, problems=problems
    )


def _gpu_machine(found: Found, asked: Asked, host: Host) -> Machine:
    first = found.gpus[0]
    device = find_product(asked.device)
    return Machine(
        vendor=found.vendor,
        gpus=_gpus(found),
        architecture=first.arch,
        product=first.product or first.arch,
        device=device.device if device else asked.device or short_name(first, found.vendor),
        driver_version=found.driver_version,
        rocm_version=found.rocm_version,
        cuda_version=found.cuda_version,
        hostname=socket.gethostname(),
        host_os=find_host_os(host),
        sources=_sources(found, asked),
        problems=(*_problems(found), *_mixture(found), *_surroundings(found, asked, host)),
        pretended=found.pretended,
    )


def _gpus(found: Found) -> tuple[Gpu, ...]:
    return tuple(
        Gpu(
            index=gpu.position,
            arch=gpu.arch,
            product=gpu.product,
            memory_bytes=gpu.memory_bytes,
            render_minor=gpu.render_minor,
            unique_id=gpu.unique_id,
            bus=gpu.bus,
        )
        for gpu in found.gpus
    )


def _sources(found: Found, asked: Asked) -> dict[str, str]:
    told = {RENAMED.get(fact, fact): found.origins[fact] for fact in TOLD if found.origins.get(fact)}
    vendor = asked.origin("vendor") if "vendor" in asked.keys else told.get("gpus", "")
    device = asked.origin("device") if asked.device else told.get("product", told.get("architecture", ""))
    return {"vendor": vendor, "device": device, **told}


def _problems(found: Found) -> tuple[Problem, ...]:
    return tuple(source.as_problem() for source in found.asked if source.problem and not source.absent)


def _mixture(found: Found) -> list[Problem]:
    kinds = list(dict.fromkeys(short_name(gpu, found.vendor) for gpu in found.gpus))
    if len(kinds) < 2:
        return []
    return [Problem(where="gpus", what=f"not all alike: {', '.join(kinds)}; the machine is taken for the first")]


def _surroundings(found: Found, asked: Asked, host: Host) -> tuple[Problem, ...]:
    """Return what about the host itself hinders AMD GPUs; of a machine that is not here what the context says of it."""
    if found.vendor != "AMD":
        return ()
    here = () if found.pretended else doubt_render_nodes(host.root, found.gpus)
    numa = doubt_numa_balancing(host, asked.numa_balancing) if asked.numa_balancing or not found.pretended else ()
    return tuple(doubt.as_problem() for doubt in (*here, *numa))
