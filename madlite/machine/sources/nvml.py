"""NVIDIA GPUs through the management library, which is faster than nvidia-smi: facts and samples.

No process is started; a sample takes some 0.1 ms a GPU. Functions, units and the bits of the clocks' event reasons:
NVML API reference (nvmlDeviceGetPowerUsage in mW, nvmlDeviceGetTotalEnergyConsumption in mJ since the driver was
loaded, nvmlClocksEventReasons).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from madlite.machine.host import Host
from madlite.machine.sources.base import (
    GIB,
    HARDWARE,
    HARDWARE_THERMAL,
    POWER_BRAKE,
    POWER_CAP,
    THERMAL,
    GpuFacts,
    GpuProcess,
    Reading,
    ReadResult,
    SourceReport,
    TelemetrySource,
    bus_id,
    make_reading,
)

NAME = "NVML"
NOT_INSTALLED = "not installed (pip install nvidia-ml-py)"
# the idle bit, clocks that somebody set, sync boost and displays are no throttling
REASONS = {0x04: POWER_CAP, 0x20: THERMAL, 0x40: HARDWARE_THERMAL, 0x80: POWER_BRAKE}
_HARDWARE = 0x08  # set with the hardware's thermal and brake bits too: a reason of its own only without them
_BY_HARDWARE = 0x40 | 0x80
SM, MEMORY, GPU_CORE = 1, 2, 0  # nvmlClockType_t, nvmlTemperatureSensors_t
# by the name of today, then by those of older drivers: the module has a function that its driver may lack
CLOCK_REASONS = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")  # 535
PROCESSES = ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetComputeRunningProcesses_v2")  # 510


def read_nvml(host: Host) -> SourceReport:
    """Return the GPUs of this machine; a driver that hangs costs the host's limit."""
    reports: list[SourceReport] = []
    # A call into the driver cannot be ended; a daemon thread at least does not keep the process.
    reading = threading.Thread(target=lambda: reports.append(_read()), daemon=True)
    reading.start()
    reading.join(host.limit_s)
    return reports[0] if reports else SourceReport(name=NAME, problem=f"did not end within {host.limit_s:g} s")


def _read() -> SourceReport:
    try:
        import pynvml
    except ImportError:
        return SourceReport(name=NAME, problem=NOT_INSTALLED, absent=True)
    return read_library(pynvml)


def read_library(nvml: Any) -> SourceReport:
    """Return what the library says; `nvml` is the module pynvml, or one of the same functions."""
    try:
        nvml.nvmlInit()
        gpus = tuple(_gpu(nvml, index) for index in range(nvml.nvmlDeviceGetCount()))
        cuda = nvml.nvmlSystemGetCudaDriverVersion_v2()  # 12080 is 12.8
        driver = _text(nvml.nvmlSystemGetDriverVersion())
        nvml.nvmlShutdown()
    except (nvml.NVMLError, OSError, ValueError) as error:  # one lost GPU: the count would be wrong
        return SourceReport(name=NAME, problem=str(error))
    return SourceReport(
        name=NAME,
        gpus=gpus,
        driver_version=driver,
        runtime_version=f"{cuda // 1000}.{cuda % 1000 // 10}",
        problem="" if gpus else "answered without a GPU",
    )


def _gpu(nvml: Any, index: int) -> GpuFacts:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    name = _text(nvml.nvmlDeviceGetName(handle))
    return GpuFacts(
        position=index,
        arch=name,
        product=name,
        memory_bytes=int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
        unique_id=_text(nvml.nvmlDeviceGetUUID(handle)),
        bus=bus_id(_text(nvml.nvmlDeviceGetPciInfo(handle).busId)),
    )


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def open_nvml(indexes: Sequence[int]) -> tuple[TelemetrySource | None, str]:
    """Return the library as a source of samples, or why there is none."""
    try:
        import pynvml
    except ImportError:
        return None, NOT_INSTALLED
    try:
        return Nvml(pynvml, indexes), ""
    except (pynvml.NVMLError, OSError) as error:
        return None, str(error)


class Nvml(TelemetrySource):
    """Samples by the library, initialised; `library` is the module pynvml, or one of the same functions.

    Raises:
        library.NVMLError: there is no driver, or it does not answer.
    """

    name = NAME
    least_interval_s = 0.1

    def __init__(self, library: Any, indexes: Sequence[int]) -> None:
        self._nvml = library
        library.nvmlInit()
        self._indexes = tuple(indexes)
        self._errors = (library.NVMLError, OSError, ValueError, AttributeError)

    def read(self) -> ReadResult:
        """Return one reading of each GPU that is not lost."""
        readings, problems = [], []
        for index in self._indexes:
            try:
                readings.append(self._reading(index, self._nvml.nvmlDeviceGetHandleByIndex(index)))
            except self._errors as error:
                problems.append(f"GPU {index}: {error}")
        return ReadResult(readings=tuple(readings), problem="; ".join(problems))

    def processes(self) -> tuple[GpuProcess, ...] | None:
        """Return the compute processes; a GPU's utilisation tells whether any of its processes is busy."""
        found: list[GpuProcess] = []
        for index in self._indexes:
            listed = self._first_of(PROCESSES, index)
            if listed is None:
                return None
            found += [GpuProcess(pid=int(one.pid), gpu=index, memory_bytes=_memory(one)) for one in listed]
        return tuple(found)

    def facts(self) -> dict[str, str]:
        """Return VBIOS, power limit in watts, MIG, ECC and persistence mode, those of several GPUs side by side."""
        words: dict[str, tuple[str, Callable[[Any], str]]] = {
            "vbios": ("nvmlDeviceGetVbiosVersion", _text),
            "power_limit_w": ("nvmlDeviceGetEnforcedPowerLimit", lambda milliwatts: f"{milliwatts / 1000:g}"),
            "mig": ("nvmlDeviceGetMigMode", lambda modes: _on(modes[0])),
            "ecc": ("nvmlDeviceGetEccMode", lambda modes: _on(modes[0])),
            "persistence": ("nvmlDeviceGetPersistenceMode", _on),
        }
        facts: dict[str, str] = {}
        for name, (function, word) in words.items():
            values = [self._first_of((function,), index) for index in self._indexes]
            if told := dict.fromkeys(word(value) for value in values if value is not None):
                facts[name] = ", ".join(told)
        return facts

    def close(self) -> None:
        """Give the library back."""
        try:
            self._nvml.nvmlShutdown()
        except self._errors:  # a driver that went away has nothing to give back
            return

    def _first_of(self, functions: Sequence[str], index: int) -> Any:
        """Return what the first function says of a GPU that its driver has; None without."""
        for name in functions:
            try:
                return getattr(self._nvml, name)(self._nvml.nvmlDeviceGetHandleByIndex(index))
            except self._errors:
                continue
        return None

    def _reading(self, index: int, handle: Any) -> Reading:
        number = partial(self._number, handle)
        values = {  # the power first, and without a guard where it tells that a GPU is lost
            "power_w": number("nvmlDeviceGetPowerUsage", scale=1000, lost=True),
            "energy_j": number("nvmlDeviceGetTotalEnergyConsumption", scale=1000),
            "clock_mhz": number("nvmlDeviceGetClockInfo", SM),
            "memory_clock_mhz": number("nvmlDeviceGetClockInfo", MEMORY),
            "temperature_c": number("nvmlDeviceGetTemperature", GPU_CORE),
            "memory_used_gib": number("nvmlDeviceGetMemoryInfo", field="used", scale=GIB),
            "utilization_percent": number("nvmlDeviceGetUtilizationRates", field="gpu"),
        }
        bits = self._first_of(CLOCK_REASONS, index)
        return make_reading(index, values, None if bits is None else dict.fromkeys(held_by(bits), 1.0))

    def _number(
        self, handle: Any, name: str, *more: int, field: str = "", scale: float = 1, lost: bool = False
    ) -> float | None:
        """Return a number, None where this GPU or its driver does not tell it; a GPU that is `lost` is an error."""
        try:
            value = getattr(self._nvml, name)(handle, *more)
            return float(getattr(value, field) if field else value) / scale
        except self._errors as error:
            if lost and _is_lost(self._nvml, error):
                raise
            return None


def held_by(bits: int) -> list[str]:
    """Return in words what holds a GPU's clocks down."""
    found = [word for bit, word in REASONS.items() if bits & bit]
    return [*found, HARDWARE] if bits & _HARDWARE and not bits & _BY_HARDWARE else found


def _is_lost(nvml: Any, error: Exception) -> bool:
    return getattr(error, "value", None) in (nvml.NVML_ERROR_GPU_IS_LOST, nvml.NVML_ERROR_UNINITIALIZED)


def _memory(process: Any) -> int | None:
    used = process.usedGpuMemory
    return int(used) if used is not None and int(used) < 1 << 60 else None  # all bits set: it does not tell


def _on(value: int) -> str:
    return "on" if value else "off"
