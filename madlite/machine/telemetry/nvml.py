"""Sample NVIDIA GPUs through the management library: no process is started, some 0.1 ms a GPU.

Functions, units and the bits of the clocks' event reasons: NVML API reference (nvmlDeviceGetPowerUsage in mW,
nvmlDeviceGetTotalEnergyConsumption in mJ since the driver was loaded, nvmlClocksEventReasons).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from madlite.machine.telemetry.reading import (
    GIB,
    HARDWARE,
    HARDWARE_THERMAL,
    POWER_BRAKE,
    POWER_CAP,
    THERMAL,
    Answer,
    Reading,
    User,
    plausible,
)

# the idle bit, clocks that somebody set, sync boost and displays are no throttling
REASONS = {0x04: POWER_CAP, 0x20: THERMAL, 0x40: HARDWARE_THERMAL, 0x80: POWER_BRAKE}
_HARDWARE = 0x08  # set with the hardware's thermal and brake bits too: a reason of its own only without them
_BY_HARDWARE = 0x40 | 0x80
SM, MEMORY, GPU_CORE = 1, 2, 0  # nvmlClockType_t, nvmlTemperatureSensors_t


class Nvml:
    """The library, initialised; `library` is the module pynvml, or one of the same functions.

    Raises:
        library.NVMLError: there is no driver, or it does not answer.
    """

    name = "NVML"
    least_interval_s = 0.1

    def __init__(self, library: Any, indexes: Sequence[int]) -> None:
        self._nvml = library
        library.nvmlInit()
        self._indexes = tuple(indexes)
        self._errors = (library.NVMLError, OSError, ValueError, AttributeError)

    def read(self) -> Answer:
        """Return one reading of each GPU that is not lost."""
        readings, problems = [], []
        for index in self._indexes:
            try:
                readings.append(self._reading(index, self._nvml.nvmlDeviceGetHandleByIndex(index)))
            except self._errors as error:
                problems.append(f"GPU {index}: {error}")
        return Answer(readings=tuple(readings), problem="; ".join(problems))

    def users(self) -> tuple[User, ...] | None:
        """Return the compute processes; a GPU's utilisation tells whether any of its processes is busy."""
        found: list[User] = []
        for index in self._indexes:
            try:
                handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
                listed = self._nvml.nvmlDeviceGetComputeRunningProcesses(handle)
            except self._errors:
                return None
            found += [User(pid=int(one.pid), gpu=index, memory_bytes=_memory(one)) for one in listed]
        return tuple(found)

    def facts(self) -> dict[str, str]:
        """Return VBIOS, power limit in watts, MIG, ECC and persistence mode, where all GPUs are asked and alike."""
        nvml = self._nvml
        asked: dict[str, Callable[[Any], str]] = {
            "vbios": lambda handle: _text(nvml.nvmlDeviceGetVbiosVersion(handle)),
            "power_limit_w": lambda handle: f"{nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000:g}",
            "mig": lambda handle: _on(nvml.nvmlDeviceGetMigMode(handle)[0]),
            "ecc": lambda handle: _on(nvml.nvmlDeviceGetEccMode(handle)[0]),
            "persistence": lambda handle: _on(nvml.nvmlDeviceGetPersistenceMode(handle)),
        }
        found = {name: [self._told(ask, index) for index in self._indexes] for name, ask in asked.items()}
        return {name: ", ".join(dict.fromkeys(filter(None, told))) for name, told in found.items() if any(told)}

    def close(self) -> None:
        """Give the library back."""
        try:
            self._nvml.nvmlShutdown()
        except self._errors:  # a driver that went away has nothing to give back
            return

    def _told(self, ask: Callable[[Any], str], index: int) -> str:
        try:
            return ask(self._nvml.nvmlDeviceGetHandleByIndex(index))
        except self._errors:
            return ""

    def _reading(self, index: int, handle: Any) -> Reading:
        nvml = self._nvml
        power = nvml.nvmlDeviceGetPowerUsage  # asked first and without a guard where it tells that a GPU is lost
        values = {
            "power_w": self._ask(power, handle, scale=1000, lost=True),
            "energy_j": self._ask(nvml.nvmlDeviceGetTotalEnergyConsumption, handle, scale=1000),
            "clock_mhz": self._ask(nvml.nvmlDeviceGetClockInfo, handle, SM),
            "memory_clock_mhz": self._ask(nvml.nvmlDeviceGetClockInfo, handle, MEMORY),
            "temperature_c": self._ask(nvml.nvmlDeviceGetTemperature, handle, GPU_CORE),
            "memory_used_gib": self._ask(lambda one: nvml.nvmlDeviceGetMemoryInfo(one).used, handle, scale=GIB),
            "utilization_percent": self._ask(lambda one: nvml.nvmlDeviceGetUtilizationRates(one).gpu, handle),
        }
        bits = self._ask(_reasons_of(nvml), handle)
        slowed = None if bits is None else dict.fromkeys(reasons(int(bits)), 1.0)
        return Reading(index=index, **plausible(**values), slowed=slowed)  # type: ignore[arg-type]

    def _ask(
        self, call: Callable[..., Any], handle: Any, *more: int, scale: float = 1, lost: bool = False
    ) -> float | None:
        """Return a number, None where this GPU does not tell it; a GPU that is `lost` is an error."""
        try:
            return float(call(handle, *more)) / scale
        except self._errors as error:
            if lost and _is_lost(self._nvml, error):
                raise
            return None


def reasons(bits: int) -> list[str]:
    """Return in words why a GPU's clocks are held down."""
    found = [word for bit, word in REASONS.items() if bits & bit]
    return [*found, HARDWARE] if bits & _HARDWARE and not bits & _BY_HARDWARE else found


def _reasons_of(nvml: Any) -> Callable[..., Any]:
    """Return the question by its name of today, or by the one of before driver 535."""
    names = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
    found: Callable[..., Any] = getattr(nvml, names[0] if hasattr(nvml, names[0]) else names[1])
    return found


def _is_lost(nvml: Any, error: Exception) -> bool:
    gone = [getattr(nvml, name, None) for name in ("NVML_ERROR_GPU_IS_LOST", "NVML_ERROR_UNINITIALIZED")]
    return getattr(error, "value", None) in [code for code in gone if code is not None]


def _memory(process: Any) -> int | None:
    used = getattr(process, "usedGpuMemory", None)
    return int(used) if used is not None and int(used) < 1 << 60 else None  # all bits set: it does not tell


def _on(value: int) -> str:
    return "on" if value else "off"


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
