"""The compute driver's view of AMD GPUs: /sys/class/kfd/kfd/topology, read without any tool.

Format: Linux, drivers/gpu/drm/amd/amdkfd/kfd_topology.c: one `name number` per line. `gfx_target_version` is
major·10000 + minor·100 + stepping, `unique_id` is decimal, `simd_count` is 0 for a CPU. A partitioned GPU is several
nodes with one `unique_id`.
"""

from __future__ import annotations

from pathlib import Path

from madlite.machine.facts import Seen
from madlite.machine.host import list_folder, read_file
from madlite.model import Value

TOPOLOGIES = ("sys/class/kfd/kfd/topology/nodes", "sys/devices/virtual/kfd/kfd/topology/nodes")
GPU_MEMORY = (1, 2)  # heap_type: frame buffer the CPU can, and cannot, map


class Topology(Value, frozen=True):
    """What KFD lists: `found` any node at all, `closed` GPU nodes this process must not read."""

    gpus: tuple[Seen, ...] = ()
    found: bool = False
    closed: int = 0


def read_topology(root: Path) -> Topology:
    """Return the GPU nodes in the order of their numbers, which is HIP's order."""
    folders = next(filter(None, (_nodes(root / place) for place in TOPOLOGIES)), [])
    gpus: list[Seen] = []
    closed = 0
    for folder in folders:
        numbers = _numbers(read_file(folder / "properties"))
        if numbers.get("simd_count"):
            gpus.append(_gpu(folder, numbers, len(gpus)))
        elif not numbers and read_file(folder / "gpu_id") != "0":
            closed += 1
    return Topology(gpus=tuple(gpus), found=bool(folders), closed=closed)


def _nodes(place: Path) -> list[Path]:
    return sorted((path for path in list_folder(place) if path.name.isdigit()), key=lambda path: int(path.name))


def _gpu(folder: Path, numbers: dict[str, int], position: int) -> Seen:
    return Seen(
        position=position,
        arch=_arch(numbers.get("gfx_target_version", 0)),
        memory_bytes=_memory_bytes(folder) or numbers.get("local_mem_size") or None,
        device_id=numbers.get("device_id") or None,
        compute_units=numbers["simd_count"] // (numbers.get("simd_per_cu") or 4),
        node_id=int(folder.name),
        render_minor=numbers.get("drm_render_minor") or None,
        unique_id=f"{numbers['unique_id']:016x}" if numbers.get("unique_id") else "",
        bus=_bus(numbers),
    )


def _arch(version: int) -> str:
    """Return gfx90a for 90010: minor and stepping are hexadecimal in the name."""
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}" if version else ""


def _bus(numbers: dict[str, int]) -> str:
    where = numbers.get("location_id", 0)
    return (
        f"{numbers.get('domain', 0):04x}:{where >> 8 & 0xFF:02x}:{where >> 3 & 0x1F:02x}.{where & 7}" if where else ""
    )


def _memory_bytes(folder: Path) -> int:
    banks = [_numbers(read_file(bank / "properties")) for bank in list_folder(folder / "mem_banks")]
    return sum(bank.get("size_in_bytes", 0) for bank in banks if bank.get("heap_type") in GPU_MEMORY)


def _numbers(text: str) -> dict[str, int]:
    pairs = (line.split() for line in text.splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal() and pair[1].isascii()}
