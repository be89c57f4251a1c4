"""NVIDIA GPUs through the management library, which is faster than nvidia-smi: facts and samples.

No process is started; a sample takes some 0.1 ms a GPU. Functions, units and the bits of the clocks' event reasons:
NVML API reference (nvmlDeviceGetPowerUsage in mW, nvmlDeviceGetTotalEnergyConsumption in mJ since the driver was
loaded, nvmlClocksEventReasons).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import TimeoutError
from typing import Any

from madlite.cancellation import in_thread
from madlite.machine.host import Host
from madlite.machine.sources.base import (
    GIB,
    GpuFacts,
    GpuProcess,
    Reading,
    ReadResult,
    SourceReport,
    TelemetrySource,
    bus_id,
    join_facts,
    make_reading,
)

NAME = "NVML"
# the idle bit, clocks that somebody set, sync boost and displays are no throttling
REASONS = {0x04: "power cap", 0x20: "thermal", 0x40: "hardware thermal", 0x80: "power brake"}
_HARDWARE = 0x08  # set with the hardware's thermal and brake bits too: a reason of its own only without them
_BY_HARDWARE = 0x40 | 0x80
SM, MEMORY, GPU_CORE = 1, 2, 0  # nvmlClockType_t, nvmlTemperatureSensors_t
# by the name of today, then by those of older drivers: the module has a function that its driver may lack
CLOCK_REASONS = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")  # 535
PROCESSES = ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetComputeRunningProcesses_v2")  # 510


def read_nvml(host: Host) -> SourceReport:
    """Return the GPUs of this machine; a driver that hangs costs the host's limit."""
    reading = in_thread(_read_installed, "madlite-nvml")  # a call into the driver cannot be ended, only be left behind
    try:
        return reading.result(host.limit_s)
    except TimeoutError:
        return SourceReport(name=NAME, problem=f"did not end within {host.limit_s:g} s")
    except Exception as error:  # noqa: BLE001 - another package may provide `pynvml`; nvidia-smi stands in
        return SourceReport(name=NAME, problem=f"{type(error).__name__}: {error}")


def _read_installed() -> SourceReport:
    import pynvml

    return read_library(pynvml)


def read_library(nvml: Any) -> SourceReport:
    """Return what the library reports; `nvml` is the module pynvml, or one of the same functions."""
    try:
        nvml.nvmlInit()
        gpus = tuple(_gpu(nvml, index) for index in range(nvml.nvmlDeviceGetCount()))
        cuda = nvml.nvmlSystemGetCudaDriverVersion_v2()  # 12080 is 12.8
        driver = nvml.nvmlSystemGetDriverVersion()
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
    name = nvml.nvmlDeviceGetName(handle)
    return GpuFacts(
        index=index,
        arch=name,
        product=name,
        memory_bytes=int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
        unique_id=nvml.nvmlDeviceGetUUID(handle),
        bus=bus_id(nvml.nvmlDeviceGetPciInfo(handle).busId),
    )


class Nvml(TelemetrySource):
    """Samples by the library; `library` is the module pynvml, or one of the same functions."""

    name = NAME
    least_interval_s = 0.1

    def __init__(self, library: Any, indexes: Sequence[int]) -> None:
        self._nvml = library
        self._indexes = tuple(indexes)
        self._is_open = False
        self._errors = (getattr(library, "NVMLError", OSError), OSError, ValueError, AttributeError)

    def read(self) -> ReadResult:
        """Return one reading of each GPU that is not lost."""
        readings, problems = [], []
        try:
            if not self._is_open:
                self._nvml.nvmlInit()
            self._is_open = True
        except self._errors as error:
            return ReadResult(problem=str(error))
        for index in self._indexes:
            try:
                readings.append(self._reading(index))
            except self._errors as error:
                problems.append(f"GPU {index}: {error}")
        return ReadResult(readings=tuple(readings), problem="; ".join(problems))

    def processes(self) -> tuple[GpuProcess, ...] | None:
        """Return the compute processes; a GPU's utilisation shows whether any of its processes is busy."""
        found: list[GpuProcess] = []
        for index in self._indexes:
            listed = self._first(PROCESSES, index)
            if listed is None:
                return None
            found += [GpuProcess(pid=int(item.pid), gpu=index, memory_bytes=_memory(item)) for item in listed]
        return tuple(found)

    def facts(self) -> dict[str, str]:
        """Return VBIOS, power limit in watts, MIG, ECC and persistence mode."""
        return join_facts(map(self._facts, self._indexes))

    def close(self) -> None:
        """Give the library back."""
        try:
            self._nvml.nvmlShutdown()
        except self._errors:  # a driver that went away has nothing to give back
            return

    def _facts(self, index: int) -> dict[str, str]:
        answers = {name: (self._query(function, index), word) for name, (function, word) in FACTS.items()}
        return {name: word(value) for name, (value, word) in answers.items() if value is not None}

    def _reading(self, index: int) -> Reading:
        self._nvml.nvmlDeviceGetHandleByIndex(index)
        power = self._query("nvmlDeviceGetPowerUsage", index, lost=True)  # it shows that a GPU is lost
        energy = self._query("nvmlDeviceGetTotalEnergyConsumption", index)
        memory = self._query("nvmlDeviceGetMemoryInfo", index)
        used = self._query("nvmlDeviceGetUtilizationRates", index)
        bits = self._first(CLOCK_REASONS, index)
        values = {
            "power_w": None if power is None else power / 1000,
            "energy_j": None if energy is None else energy / 1000,
            "clock_mhz": self._query("nvmlDeviceGetClockInfo", index, SM),
            "memory_clock_mhz": self._query("nvmlDeviceGetClockInfo", index, MEMORY),
            "temperature_c": self._query("nvmlDeviceGetTemperature", index, GPU_CORE),
            "memory_used_gib": None if memory is None else memory.used / GIB,
            "utilization_percent": None if used is None else used.gpu,
        }
        return make_reading(index, values, None if bits is None else dict.fromkeys(throttle_reasons(bits), 1.0))

    def _first(self, functions: Sequence[str], index: int) -> Any:
        """Return the value of the first function that this GPU and its driver have; None without."""
        answers = (self._query(function, index) for function in functions)
        return next((value for value in answers if value is not None), None)

    def _query(self, function: str, index: int, *more: int, lost: bool = False) -> Any:
        """Return the value of a function; None where this GPU or its driver lacks it.  A `lost` GPU is an error."""
        try:
            return getattr(self._nvml, function)(self._nvml.nvmlDeviceGetHandleByIndex(index), *more)
        except self._errors as error:
            if lost and _is_lost(self._nvml, error):
                raise
        return None


def throttle_reasons(bits: int) -> list[str]:
    """Return as text what holds a GPU's clocks down."""
    found = [word for bit, word in REASONS.items() if bits & bit]
    return [*found, "hardware slowdown"] if bits & _HARDWARE and not bits & _BY_HARDWARE else found


def _is_lost(nvml: Any, error: Exception) -> bool:
    return getattr(error, "value", None) in (nvml.NVML_ERROR_GPU_IS_LOST, nvml.NVML_ERROR_UNINITIALIZED)


def _memory(process: Any) -> int | None:
    used = process.usedGpuMemory
    return int(used) if used is not None and int(used) < 1 << 60 else None  # all bits set: it does not report


def _on(value: int) -> str:
    return "on" if value else "off"


FACTS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "vbios": ("nvmlDeviceGetVbiosVersion", str),
    "power_limit_w": ("nvmlDeviceGetEnforcedPowerLimit", lambda milliwatts: f"{milliwatts / 1000:g}"),
    "mig": ("nvmlDeviceGetMigMode", lambda modes: _on(modes[0])),
    "ecc": ("nvmlDeviceGetEccMode", lambda modes: _on(modes[0])),
    "persistence": ("nvmlDeviceGetPersistenceMode", _on),
}
