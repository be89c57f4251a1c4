"""Sample AMD GPUs by the driver's files, which cost next to nothing: power, clocks, temperature, memory, utilisation.

Format: Linux, Documentation/gpu/amdgpu/thermal.rst: below the PCI device `gpu_busy_percent`, `mem_info_vram_used` in
bytes, and in `hwmon/hwmon*` `power1_average` or `power1_input` in µW, `freq1_input` (sclk) and `freq2_input` (mclk) in
Hz, `temp*_input` in m°C with its `temp*_label`.  A partition, and the second die of an MI250X, has none of its own.
Newer drivers count energy and throttling, too: amd_metrics.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec.structs import replace

from madlite.machine.facts import clean
from madlite.machine.host import list_folder, read_file
from madlite.machine.telemetry.amd_metrics import read_counters
from madlite.machine.telemetry.reading import GIB, Answer, Reading, User, number, plausible
from madlite.model import Gpu

NAME = "amdgpu"
POWERS = ("power1_average", "power1_input")
LABELS = ("junction", "edge")


class AmdFiles:
    """The files of the GPUs that have any.

    `counts`: they tell of all GPUs, throttling included.  Where they do not a tool is asked beside them, whose counters
    are not mixed with these; where they do for processes alone, if it is asked at all.
    """

    name = NAME
    least_interval_s = 0.1

    def __init__(self, root: Path, gpus: Sequence[Gpu]) -> None:
        self.counts = False
        self._folders = [(gpu.index, root / "sys/bus/pci/devices" / gpu.bus) for gpu in gpus if gpu.bus]
        self._monitors = {index: _monitor(folder) for index, folder in self._folders}
        told = {one.index for one in self._readings() if one.power_w is not None}
        tables = {index for index, folder in self._folders if read_counters(folder / "gpu_metrics")}
        self.counts = bool(gpus) and all(gpu.index in told & tables for gpu in gpus)

    def read(self) -> Answer:
        """Return one reading of each GPU whose power they tell; the others are a tool's."""
        return Answer(readings=tuple(one for one in self._readings() if one.power_w is not None))

    def _readings(self) -> Iterator[Reading]:
        for index, folder in self._folders:
            reading = _reading(index, folder, self._monitors[index])
            counted = read_counters(folder / "gpu_metrics") if self.counts else None
            told = {name: getattr(counted, name) for name in counted.__struct_fields__} if counted else {}
            yield replace(reading, **told)

    def users(self) -> tuple[User, ...] | None:
        """Not know: who uses a GPU is told elsewhere."""
        return None

    def facts(self) -> dict[str, str]:
        """Return VBIOS, power limit in watts and partitions."""
        asked = {"vbios": "vbios_version", "compute_partition": "current_compute_partition"}
        asked |= {"memory_partition": "current_memory_partition"}
        told = {name: [clean(read_file(folder / file)) for _, folder in self._folders] for name, file in asked.items()}
        limits = (number(read_file(monitor / "power1_cap")) for monitor in self._monitors.values())
        told["power_limit_w"] = [f"{limit / 1e6:g}" for limit in limits if limit]
        return {name: ", ".join(dict.fromkeys(filter(None, texts))) for name, texts in told.items() if any(texts)}

    def close(self) -> None:
        """Have nothing to give back."""


def _monitor(folder: Path) -> Path:
    return next(iter(list_folder(folder / "hwmon")), folder / "hwmon")


def _reading(index: int, folder: Path, monitor: Path) -> Reading:
    values = {
        "power_w": _first(monitor, POWERS, 1e6),
        "clock_mhz": _first(monitor, ("freq1_input",), 1e6),
        "memory_clock_mhz": _first(monitor, ("freq2_input",), 1e6),
        "temperature_c": _first(monitor, _inputs(monitor), 1e3),
        "memory_used_gib": _first(folder, ("mem_info_vram_used",), GIB),
        "utilization_percent": _first(folder, ("gpu_busy_percent",), 1),
    }
    return Reading(index=index, **plausible(**values))  # type: ignore[arg-type]


def _inputs(monitor: Path) -> list[str]:
    """Return the files of temperatures, that of the hottest spot first."""
    labels = {read_file(monitor / f"temp{n}_label"): f"temp{n}_input" for n in range(1, 4)}
    return [labels[label] for label in LABELS if label in labels]


def _first(folder: Path, names: Sequence[str], scale: float) -> float | None:
    found = next((value for name in names if (value := number(read_file(folder / name))) is not None), None)
    return None if found is None else found / scale
