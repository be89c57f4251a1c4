"""AMD GPUs by the files of their drivers, which cost next to nothing: samples, topology, and who uses the GPUs.

Formats: Linux, Documentation/gpu/amdgpu/thermal.rst: below the PCI device `gpu_busy_percent`, `mem_info_vram_used` in
bytes, and in `hwmon/hwmon*` `power1_average` or `power1_input` in µW, `freq1_input` (sclk) and `freq2_input` (mclk) in
Hz, `temp*_input` in m°C with its `temp*_label`. A partition, and the second die of an MI250X, has none of its own.

The table `gpu_metrics`, drivers/gpu/drm/amd/include/kgd_pp_interface.h: a header of size (16 bit), format and content
revision (8 bit each). From 1.6 on there is the energy in 2**-16 J (64 bit), a time, and then 32-bit counters: of all
ticks, and of those in which clocks were held down for five reasons. 1.9 is a list of fields, each after 64 bit that say
what it is. Older tables do not count.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

from madlite.machine.host import list_folder, read_file
from madlite.machine.sources.base import (
    GIB,
    GpuFacts,
    GpuProcess,
    Reading,
    ReadResult,
    TelemetrySource,
    clean,
    join_facts,
    make_reading,
    parse_float,
    parse_int,
)
from madlite.model import Gpu, Value

POWERS = ("power1_average", "power1_input")
LABELS = ("junction", "edge")
FACTS = {
    "vbios": "vbios_version",
    "compute_partition": "current_compute_partition",
    "memory_partition": "current_memory_partition",
}
# of the counters after that of the ticks
REASONS = (
    "PROCHOT/prochot",
    "power cap/ppt",
    "thermal/socket_thermal",
    "voltage regulator thermal/vr_thermal",
    "memory thermal/hbm_thermal",
)
_ENERGY_AT = {(1, 6): 16, (1, 7): 24, (1, 8): 24}
_COUNTERS = struct.Struct(f"<QQ{len(REASONS) + 1}I")
_LISTED = (1, 9)
_ENERGY_ID = 7  # of the list; the others follow it
_MOST_FIELDS = 1000
_TYPES = 8  # unsigned and signed of 1, 2, 4, 8 bytes in turn
_NONE = 0xFFFFFFFF


class DriverCounters(Value, frozen=True):
    """What a table counts, since the driver was loaded."""

    energy_j: float
    ticks: float
    counters: dict[str, float]


class AmdGpu(TelemetrySource):
    """The files of the GPUs that have any.

    `counts`: they cover all GPUs, throttling included.  Where they do not a tool is read beside them, whose counters
    are not mixed with these.
    """

    name = "amdgpu"
    least_interval_s = 0.1

    def __init__(self, root: Path, gpus: Sequence[Gpu]) -> None:
        self.counts = False
        self._folders = {gpu.index: _folder(root, gpu) for gpu in gpus if gpu.bus}
        self._monitors = {index: monitor_folder(folder) for index, folder in self._folders.items()}
        told = {reading.index for reading in self.read().readings}
        tables = {index for index, folder in self._folders.items() if read_counters(folder / "gpu_metrics")}
        self.counts = bool(gpus) and all(gpu.index in told & tables for gpu in gpus)

    def read(self) -> ReadResult:
        """Return one reading of each GPU whose power they tell; the others are a tool's."""
        readings = (self._reading(index) for index in self._folders)
        return ReadResult(readings=tuple(reading for reading in readings if reading.power_w is not None))

    def _reading(self, index: int) -> Reading:
        folder, monitor = self._folders[index], self._monitors[index]
        labels = {read_file(monitor / f"temp{n}_label"): f"temp{n}_input" for n in range(1, 4)}
        counted = read_counters(folder / "gpu_metrics") if self.counts else None
        values = {
            "power_w": _first(monitor, POWERS, 1e6),
            "energy_j": counted.energy_j if counted else None,
            "clock_mhz": _first(monitor, ("freq1_input",), 1e6),
            "memory_clock_mhz": _first(monitor, ("freq2_input",), 1e6),
            "temperature_c": _first(monitor, [labels[label] for label in LABELS if label in labels], 1e3),
            "memory_used_gib": _first(folder, ("mem_info_vram_used",), GIB),
            "utilization_percent": _first(folder, ("gpu_busy_percent",), 1),
        }
        counters, ticks = (counted.counters, counted.ticks) if counted else (None, None)
        return make_reading(index, values, counters=counters, ticks=ticks)


def driver_facts(root: Path, gpus: Sequence[Gpu]) -> dict[str, str]:
    """Return VBIOS, power limit in watts and partitions."""
    return join_facts(_facts(_folder(root, gpu)) for gpu in gpus if gpu.bus)


def _facts(folder: Path) -> dict[str, str]:
    limit = parse_float(read_file(monitor_folder(folder) / "power1_cap"))
    facts = {name: clean(read_file(folder / file)) for name, file in FACTS.items()}
    return {**facts, "power_limit_w": f"{limit / 1e6:g}" if limit else ""}


def _folder(root: Path, gpu: Gpu) -> Path:
    return root / "sys/bus/pci/devices" / gpu.bus


def monitor_folder(folder: Path) -> Path:
    """Return where the power, clocks and temperatures of a GPU's folder are; where they would be if it had any."""
    return next(iter(list_folder(folder / "hwmon")), folder)


def _first(folder: Path, names: Sequence[str], scale: float) -> float | None:
    found = next((value for name in names if (value := parse_float(read_file(folder / name))) is not None), None)
    return None if found is None else found / scale


def read_counters(path: Path) -> DriverCounters | None:
    """Return what a GPU's table counts; None where it does not."""
    try:
        table = path.read_bytes()
        _, *revision = struct.unpack_from("<HBB", table)
        energy, _, ticks, *counts = _unpack(table, (revision[0], revision[1]))
    except (OSError, struct.error, KeyError):
        return None
    if not 0 < ticks < _NONE:
        return None
    told = {name: float(count) for name, count in zip(REASONS, counts, strict=True) if count != _NONE}
    return DriverCounters(energy_j=energy / (1 << 16), ticks=float(ticks), counters=told)


def _unpack(table: bytes, revision: tuple[int, int]) -> tuple[int, ...]:
    """Return energy, time, ticks and those of each reason.

    Raises:
        KeyError: the revision is another one, or lacks a field.
        struct.error: the table is cut off.
    """
    if revision != _LISTED:
        return _COUNTERS.unpack_from(table, _ENERGY_AT[revision])
    fields = dict(_fields(table))
    return tuple(fields[_ENERGY_ID + place] for place in range(len(REASONS) + 3))


def _fields(table: bytes) -> Iterator[tuple[int, int]]:
    """Yield the number and first value of each field; of its 64 bit 10 state how many, 10 the number, 4 the type."""
    (count,) = struct.unpack_from("<i", table, 4)
    at = 8
    for _ in range(min(count, _MOST_FIELDS)):
        (code,) = struct.unpack_from("<Q", table, at)
        type_ = code >> 20 & 0xF
        size = 1 << type_ // 2
        value = table[at + 8 : at + 8 + size]
        if type_ >= _TYPES or len(value) < size:
            return
        yield code >> 10 & 0x3FF, int.from_bytes(value, "little")
        at += 8 + size * max(1, code & 0x3FF)


# AMD GPUs by the compute driver's files, read without any tool or rights: the topology, and who uses the GPUs.
#
# Formats: Linux, drivers/gpu/drm/amd/amdkfd. kfd_topology.c, /sys/class/kfd/kfd/topology: one `name number` per line.
# `gfx_target_version` is major·10000 + minor·100 + stepping, `unique_id` is decimal, `simd_count` is 0 for a CPU. A
# partitioned GPU is several nodes with one `unique_id`. kfd_process.c, /sys/class/kfd/kfd/proc: a folder per process,
# named by its id in the machine's own table, with `vram_<gpu_id>` in bytes and `stats_<gpu_id>/cu_occupancy` in compute
# units.


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
