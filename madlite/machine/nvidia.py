"""Detect NVIDIA GPUs: the management library where the driver is here, else nvidia-smi."""

from __future__ import annotations

from pathlib import Path

from madlite.machine.facts import Source
from madlite.machine.found import Found
from madlite.machine.host import Host, find_tool, in_turn
from madlite.machine.nvidia_smi import NAME as TOOL
from madlite.machine.nvidia_smi import read_nvidia_smi
from madlite.machine.nvml import read_nvml


def has_nvidia_tool(host: Host) -> bool:
    """Say whether nvidia-smi is installed."""
    return find_tool(host, TOOL) is not None


def detect_nvidia(host: Host, *, present: bool) -> Found:
    """Return what the library or the tool says; the library only where `present`, and of the real machine."""
    if present and host.root == Path("/"):
        asked = in_turn(host, read_nvml, (read_nvidia_smi,), enough=lambda source: bool(source.gpus))
    else:
        asked = [read_nvidia_smi(host)]
    answer = next((source for source in asked if source.gpus), Source(name=""))
    origins = dict.fromkeys(("gpus", "arch", "product", "memory_bytes"), answer.name)
    return Found(
        vendor="NVIDIA",
        gpus=answer.gpus,
        driver_version=answer.driver_version,
        cuda_version=answer.runtime_version,
        origins={**origins, "driver_version": answer.name, "cuda_version": answer.name},
        asked=tuple(asked),
    )
