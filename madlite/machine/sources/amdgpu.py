"""Samples of AMD GPUs by the graphics driver's files, which cost next to nothing.

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
    Reading,
    ReadResult,
    TelemetrySource,
    clean,
    join_facts,
    make_reading,
    parse_float,
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
