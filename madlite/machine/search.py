"""Find the GPUs of this machine: which vendor is here, what its tools say, and what silence means."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from madlite.errors import CheckFailed
from madlite.machine.amd import detect_amd, has_amd_tool
from madlite.machine.facts import Source
from madlite.machine.found import Found
from madlite.machine.host import Host
from madlite.machine.kfd import Topology
from madlite.machine.nvidia import detect_nvidia, has_nvidia_tool
from madlite.machine.overrides import Asked
from madlite.machine.presence import Presence, look_for_gpus
from madlite.machine.products import is_instinct
from madlite.model import Vendor

VENDORS: tuple[Vendor, ...] = ("NVIDIA", "AMD")  # where both answer NVIDIA wins, as in madengine
WITHOUT_GPU = 'for a run without GPU: --additional-context \'{"gpu_vendor": "CPU"}\''
ELSEWHERE = {
    "AMD": "to plan for a machine that is elsewhere: --dry-run --machine 8xMI300X",
    "NVIDIA": "to plan for a machine that is elsewhere: --dry-run --machine 8xH100",
}
LOOK_HERE = {
    "AMD": "see what `amd-smi static` and `ls -l /dev/kfd /dev/dri` say (is this user in the groups video and render?)",
    "NVIDIA": "see what `nvidia-smi` says",
}


def search(asked: Asked, host: Host, topology: Topology) -> Found:
    """Return the GPUs that are here; vendor CPU where there is none.

    A vendor whose GPUs can be seen in the files is asked before one of which only a tool is installed. Where NVIDIA's
    are seen and cannot be read, an AMD display adapter does not stand in for them.

    Raises:
        CheckFailed: a GPU is here but nothing can read it, or none is here of the vendor asked for.
    """
    presence = look_for_gpus(host.root, topology)
    tried: list[Found] = []
    for vendor in sorted(VENDORS, key=lambda vendor: not _traces(presence, vendor)):
        if asked.vendor in (None, vendor) and (_traces(presence, vendor) or _has_tool(host, vendor)):
            found = _detect(vendor, host, topology, present=bool(_traces(presence, vendor)))
            readable = bool(found.gpus) and bool(found.gpus[0].arch or asked.arch)
            if readable and not (asked.vendor is None and _stands_in(found, presence)):
                others = _others(found, topology) if asked.vendor is None else ()
                return msgspec.structs.replace(found, asked=(*_sources([*tried, found]), *others))
            tried.append(found)
    _refuse_silence(asked, presence, tried)
    return Found(vendor="CPU", asked=_sources(tried))


def _detect(vendor: Vendor, host: Host, topology: Topology, *, present: bool) -> Found:
    if vendor == "NVIDIA":
        return detect_nvidia(host, present=present)
    return detect_amd(host, topology)


def _stands_in(found: Found, presence: Presence) -> bool:
    return found.vendor == "AMD" and bool(presence.nvidia) and not any(map(is_instinct, found.gpus))


def _others(found: Found, topology: Topology) -> list[Source]:
    """Return a note where NVIDIA's answer hides Instincts."""
    hidden = sum(map(is_instinct, topology.gpus)) if found.vendor == "NVIDIA" else 0
    note = f"{hidden} AMD GPUs are here too; the context's gpu_vendor AMD asks for them"
    return [Source(name="gpu_vendor", problem=note)] if hidden else []


def _traces(presence: Presence, vendor: Vendor) -> tuple[str, ...]:
    return presence.nvidia if vendor == "NVIDIA" else presence.amd


def _has_tool(host: Host, vendor: Vendor) -> bool:
    return has_nvidia_tool(host) if vendor == "NVIDIA" else has_amd_tool(host)


def _refuse_silence(asked: Asked, presence: Presence, tried: Iterable[Found]) -> None:
    """Nothing answered: that is a machine without GPU only where nothing shows one."""
    said = "; ".join(f"{source.name}: {source.problem}" for source in _sources(tried) if source.problem)
    said = f" ({said})" if said else ""
    for vendor in VENDORS:
        traces = (*_traces(presence, vendor), *_listings(vendor, tried))
        if traces and asked.vendor in (None, vendor):
            message = f"{vendor} GPUs are in this machine but cannot be read: {_some(traces)}{said}"
            raise CheckFailed(message, "; ".join([LOOK_HERE[vendor], *_passed_over(tried), WITHOUT_GPU]))
    if asked.vendor:
        by = next(key for field, key in asked.keys.items() if field in ("vendor", "arch", "product", "device"))
        none = f"{by} asks for {asked.vendor}, but no {asked.vendor} GPU is in this machine"
        raise CheckFailed(f"{none}{said}", ELSEWHERE[asked.vendor])


def _passed_over(tried: Iterable[Found]) -> list[str]:
    """Return the options that use GPUs which can be read, but did not stand in for others."""
    readable = [found.vendor for found in tried if found.gpus and found.gpus[0].arch]
    return [f"to use the {vendor} GPU: --gpu-vendor {vendor}" for vendor in readable]


def _listings(vendor: Vendor, tried: Iterable[Found]) -> list[str]:
    """Return the tools that counted GPUs without being able to say what they are."""
    counted = [source for found in tried if found.vendor == vendor for source in found.asked]
    tools = [source for source in counted if source.gpus and source.name != "KFD"]  # KFD is among the traces
    return [f"{source.name} lists {len(source.gpus)} without naming them" for source in tools]


def _some(traces: tuple[str, ...]) -> str:
    return ", ".join(traces[:3]) + (f" and {len(traces) - 3} more" if len(traces) > 3 else "")


def _sources(tried: Iterable[Found]) -> tuple[Source, ...]:
    return tuple(source for found in tried for source in found.asked)
