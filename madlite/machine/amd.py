"""Detect AMD GPUs: KFD for count, architecture and render nodes, the tools for names, versions and their order."""

from __future__ import annotations

from madlite.machine.amd_smi import read_amd_smi
from madlite.machine.facts import Seen, Source
from madlite.machine.found import Found
from madlite.machine.host import Host, find_tool, in_turn
from madlite.machine.kfd import Topology
from madlite.machine.merge import merge_sources
from madlite.machine.products import complete, is_instinct
from madlite.machine.render_nodes import fill_render_minors
from madlite.machine.rocm import find_rocm_version, read_driver_version
from madlite.machine.rocm_smi import read_rocm_smi
from madlite.machine.rocminfo import read_rocminfo

TOOLS = ("amd-smi", "rocm-smi", "rocminfo")


def has_amd_tool(host: Host) -> bool:
    """Say whether any of AMD's tools is installed."""
    return any(find_tool(host, name) for name in TOOLS)


def detect_amd(host: Host, topology: Topology) -> Found:
    """Return what KFD and the tools say together; without GPUs where none of them lists one."""
    tools = in_turn(host, read_amd_smi, (read_rocm_smi, read_rocminfo), enough=_names_a_product)
    silence = "" if topology.gpus else _silence(topology)
    kfd = Source(name="KFD", gpus=topology.gpus, problem=silence, absent=not topology.closed)
    merged = merge_sources(kfd, tools)
    known = fill_render_minors(host.root, (complete(gpu) for gpu in merged.gpus))
    gpus = _without_displays(known)
    origins = {**merged.origins, **_filled_in(merged.gpus, known)}
    driver, origins["driver_version"] = _driver(host, tools)
    rocm, origins["rocm_version"] = find_rocm_version(host, amd_smi=bool(tools[0].gpus))
    return Found(
        vendor="AMD",
        gpus=gpus,
        driver_version=driver,
        rocm_version=rocm,
        origins=origins,
        asked=(kfd, *tools, *_left_out(known, gpus)),
    )


def _without_displays(gpus: tuple[Seen, ...]) -> tuple[Seen, ...]:
    """Return the GPUs less those known to be no Instinct, where there is one: nobody benchmarks both together."""
    kept = tuple(gpu for gpu in gpus if is_instinct(gpu) or not gpu.arch)
    return kept if any(map(is_instinct, kept)) else gpus


def _filled_in(told: tuple[Seen, ...], known: tuple[Seen, ...]) -> dict[str, str]:
    """Return where the facts came from that no source told."""
    by = {"arch": "table of products", "product": "table of products", "render_minor": "/sys/bus/pci/devices"}
    both = list(zip(told, known, strict=True))
    return {fact: origin for fact, origin in by.items() if any(getattr(a, fact) != getattr(b, fact) for a, b in both)}


def _left_out(known: tuple[Seen, ...], gpus: tuple[Seen, ...]) -> list[Source]:
    names = [f"{gpu.position} ({gpu.product or gpu.arch})" for gpu in known if gpu not in gpus]
    return [Source(name="gpus", problem=f"left out as no Instinct: GPU {', '.join(names)}")] if names else []


def _names_a_product(source: Source) -> bool:
    return any(gpu.product for gpu in source.gpus)


def _silence(topology: Topology) -> str:
    if topology.closed:
        return f"{topology.closed} nodes may not be read by this user"
    return "lists no GPU" if topology.found else "no topology below /sys"


def _driver(host: Host, tools: list[Source]) -> tuple[str, str]:
    known = [(read_driver_version(host.root), "/sys/module/amdgpu/version")]
    known += [(tool.driver_version, tool.name) for tool in tools]
    return next((both for both in known if both[0]), ("", ""))
