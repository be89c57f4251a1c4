"""Detect AMD GPUs: KFD for count, architecture and render nodes, the tools for names, versions and their order."""

from __future__ import annotations

from madlite.machine.amd_smi import ask_rocm_version, read_amd_smi
from madlite.machine.facts import Source
from madlite.machine.found import Found
from madlite.machine.host import Host, find_tool, in_turn
from madlite.machine.kfd import Topology
from madlite.machine.merge import merge_sources
from madlite.machine.products import complete
from madlite.machine.rocm import read_driver_version, read_rocm_version
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
    gpus = tuple(complete(gpu) for gpu in merged.gpus)
    origins = {**dict.fromkeys(("arch", "product"), "table of products"), **merged.origins}
    driver, origins["driver_version"] = _driver(host, tools)
    rocm, origins["rocm_version"] = read_rocm_version(host)
    if not rocm and tools[0].gpus:  # not of an amd-smi that hangs
        rocm, origins["rocm_version"] = ask_rocm_version(host), "amd-smi version"
    return Found(
        vendor="AMD", gpus=gpus, driver_version=driver, rocm_version=rocm, origins=origins, asked=(kfd, *tools)
    )


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
