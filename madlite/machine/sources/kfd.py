"""AMD GPUs by the compute driver's files, read without any tool or rights: the topology, and who uses the GPUs.

Formats: Linux, drivers/gpu/drm/amd/amdkfd. kfd_topology.c, /sys/class/kfd/kfd/topology: one `name number` per line.
`gfx_target_version` is major·10000 + minor·100 + stepping, `unique_id` is decimal, `simd_count` is 0 for a CPU. A
partitioned GPU is several nodes with one `unique_id`. kfd_process.c, /sys/class/kfd/kfd/proc: a folder per process,
named by its id in the machine's own table, with `vram_<gpu_id>` in bytes and `stats_<gpu_id>/cu_occupancy` in compute
units.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from madlite.machine.host import list_folder, read_file
from madlite.machine.sources.base import GpuFacts, GpuProcess, parse_int
from madlite.model import Gpu, Value

NODES, PROCESSES = "sys/class/kfd/kfd/topology/nodes", "sys/class/kfd/kfd/proc"
GPU_MEMORY = (1, 2)  # heap_type: frame buffer the CPU can, and cannot, map


class Topology(Value, frozen=True):
    """What KFD lists: `found` any node at all, `closed` GPU nodes this process must not read."""

    gpus: tuple[GpuFacts, ...] = ()
    found: bool = False
    closed: int = 0


def read_topology(root: Path) -> Topology:
    """Return the GPU nodes in the order of their numbers, which is HIP's order."""
    numbered = [path for path in list_folder(root / NODES) if path.name.isdigit()]
    gpus: list[GpuFacts] = []
    closed = 0
    for folder in sorted(numbered, key=lambda path: int(path.name)):
        numbers = _numbers(folder / "properties")
        if numbers.get("simd_count"):
            gpus.append(_gpu(folder, numbers, len(gpus)))
        elif not numbers and read_file(folder / "gpu_id") != "0":
            closed += 1
    return Topology(gpus=tuple(gpus), found=bool(numbered), closed=closed)


def _gpu(folder: Path, numbers: dict[str, int], index: int) -> GpuFacts:
    version, where = numbers.get("gfx_target_version", 0), numbers.get("location_id", 0)
    # gfx90a is 90010: minor and stepping are hexadecimal in the name
    arch = f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}" if version else ""
    bus = f"{numbers.get('domain', 0):04x}:{where >> 8 & 0xFF:02x}:{where >> 3 & 0x1F:02x}.{where & 7}"
    return GpuFacts(
        index=index,
        arch=arch,
        memory_bytes=_memory_bytes(folder) or numbers.get("local_mem_size") or None,
        device_id=numbers.get("device_id") or None,
        compute_units=numbers["simd_count"] // (numbers.get("simd_per_cu") or 4),
        node_id=int(folder.name),
        render_minor=numbers.get("drm_render_minor") or None,
        unique_id=f"{numbers['unique_id']:016x}" if numbers.get("unique_id") else "",
        bus=bus if where else "",
    )


def _memory_bytes(folder: Path) -> int:
    banks = [_numbers(bank / "properties") for bank in list_folder(folder / "mem_banks")]
    return sum(bank.get("size_in_bytes", 0) for bank in banks if bank.get("heap_type") in GPU_MEMORY)


def _numbers(file: Path) -> dict[str, int]:
    pairs = (line.split() for line in read_file(file).splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal() and pair[1].isascii()}


def driver_ids(root: Path, gpus: Sequence[Gpu]) -> dict[int, int]:
    """Return the driver's id of GPUs, id → index; a GPU is found by its render node, else by its address."""
    named: dict[int, int] = {}
    for node in read_topology(root).gpus:
        same = [gpu for gpu in gpus if gpu.render_minor is not None and gpu.render_minor == node.render_minor]
        same = same or [gpu for gpu in gpus if gpu.render_minor is None and gpu.bus and gpu.bus == node.bus]
        gpu_id = parse_int(read_file(root / NODES / str(node.node_id) / "gpu_id"))
        if len(same) == 1 and gpu_id:
            named[gpu_id] = same[0].index
    return named


def kfd_processes(root: Path, gpus: Sequence[Gpu]) -> tuple[GpuProcess, ...] | None:
    """Return the processes on these GPUs; None where the driver lists no processes."""
    if not (root / PROCESSES).is_dir() or not (ids := driver_ids(root, gpus)):
        return None
    return tuple(
        GpuProcess(pid=int(folder.name), gpu=index, memory_bytes=memory, busy=_is_busy(folder, gpu))
        for folder in list_folder(root / PROCESSES)
        if folder.name.isdecimal()
        for gpu, index in ids.items()
        if (memory := parse_int(read_file(folder / f"vram_{gpu}"))) is not None
    )


def _is_busy(folder: Path, gpu: int) -> bool | None:
    units = parse_int(read_file(folder / f"stats_{gpu}/cu_occupancy"))
    return None if units is None else units > 0
