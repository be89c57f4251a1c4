"""Sample NVIDIA GPUs through the management library: no process is started, some 0.1 ms a GPU.

Functions, units and the bits of the clocks' event reasons: NVML API reference (nvmlDeviceGetPowerUsage in mW,
nvmlDeviceGetTotalEnergyConsumption in mJ since the driver was loaded, nvmlClocksEventReasons).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
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
# by the name of today, then by those of older drivers: the module has a function that its driver may lack
CLOCK_REASONS = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")  # 535
PROCESSES = ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetComputeRunningProcesses_v2")  # 510


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
            listed = self._processes(index)
            if listed is None:
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

    def _processes(self, index: int) -> Sequence[Any] | None:
        for name in PROCESSES:
            try:
                listed: Sequence[Any] = getattr(self._nvml, name)(self._nvml.nvmlDeviceGetHandleByIndex(index))
            except self._errors:
                continue
            return listed
        return None

    def _told(self, ask: Callable[[Any], str], index: int) -> str:
        try:
            return ask(self._nvml.nvmlDeviceGetHandleByIndex(index))
        except self._errors:
            return ""

    def _reading(self, index: int, handle: Any) -> Reading:
        ask = partial(self._ask, handle)
        values = {  # the power first, and without a guard where it tells that a GPU is lost
            "power_w": ask("nvmlDeviceGetPowerUsage", scale=1000, lost=True),
            "energy_j": ask("nvmlDeviceGetTotalEnergyConsumption", scale=1000),
            "clock_mhz": ask("nvmlDeviceGetClockInfo", SM),
            "memory_clock_mhz": ask("nvmlDeviceGetClockInfo", MEMORY),
            "temperature_c": ask("nvmlDeviceGetTemperature", GPU_CORE),
            "memory_used_gib": ask("nvmlDeviceGetMemoryInfo", field="used", scale=GIB),
            "utilization_percent": ask("nvmlDeviceGetUtilizationRates", field="gpu"),
        }
        bits = self._bits(handle)
        slowed = None if bits is None else dict.fromkeys(reasons(int(bits)), 1.0)
        return Reading(index=index, **plausible(**values), slowed=slowed)  # type: ignore[arg-type]

    def _bits(self, handle: Any) -> float | None:
        told = (self._ask(handle, name) for name in CLOCK_REASONS)
        return next((bits for bits in told if bits is not None), None)

    def _ask(
        self, handle: Any, name: str, *more: int, field: str = "", scale: float = 1, lost: bool = False
    ) -> float | None:
        """Return a number, None where this GPU or its driver does not tell it; a GPU that is `lost` is an error."""
        try:
            told = getattr(self._nvml, name)(handle, *more)
            return float(getattr(told, field) if field else told) / scale
        except self._errors as error:
            if lost and _is_lost(self._nvml, error):
                raise
            return None


def reasons(bits: int) -> list[str]:
    """Return in words why a GPU's clocks are held down."""
    found = [word for bit, word in REASONS.items() if bits & bit]
    return [*found, HARDWARE] if bits & _HARDWARE and not bits & _BY_HARDWARE else found


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
