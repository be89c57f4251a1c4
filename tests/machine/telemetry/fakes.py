"""Stand-ins for drivers: a library of pynvml's functions, and outputs of tools. All values are invented."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

GIB = 1 << 30


class FakeError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__("GPU is lost" if value == 15 else "Not Supported")
        self.value = value


LOST, UNSUPPORTED = FakeError(15), FakeError(3)


class FakeNvml(SimpleNamespace):
    """Two H100; `lost` GPUs answer no more, `without` names functions that they do not support."""

    NVMLError = FakeError
    NVML_ERROR_GPU_IS_LOST, NVML_ERROR_UNINITIALIZED = 15, 1

    def __init__(self, **facts: object) -> None:
        super().__init__(
            lost=set(), without=set(), bits=0, milliwatts=[600_000, 640_000], energy_mj=[0, 0], users=[], open=0
        )
        self.__dict__.update(facts)

    def _told(self, name: str, handle: int, value: object) -> object:
        if handle in self.lost:
            raise LOST
        if name in self.without:
            raise UNSUPPORTED
        return value

    def nvmlInit(self) -> None:
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetPowerUsage(self, handle: int) -> object:
        return self._told("power", handle, self.milliwatts[handle])

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: int) -> object:
        return self._told("energy", handle, self.energy_mj[handle])

    def nvmlDeviceGetClockInfo(self, handle: int, kind: int) -> object:
        return self._told("clock", handle, {1: 1755, 2: 2619}[kind])

    def nvmlDeviceGetTemperature(self, handle: int, sensor: int) -> object:
        return self._told("temperature", handle, 61 + sensor)

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> object:
        return self._told("memory", handle, SimpleNamespace(used=70 * GIB))

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> object:
        return self._told("utilisation", handle, SimpleNamespace(gpu=99, memory=60))

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: int) -> object:
        return self._told("reasons", handle, self.bits)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> object:
        return self._told("users", handle, [one for gpu, one in self.users if gpu == handle])

    def nvmlDeviceGetVbiosVersion(self, handle: int) -> object:
        return self._told("vbios", handle, "96.00.99.00.0A")

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: int) -> object:
        return self._told("limit", handle, 700_000)

    def nvmlDeviceGetMigMode(self, handle: int) -> object:
        return self._told("mig", handle, (0, 0))

    def nvmlDeviceGetEccMode(self, handle: int) -> object:
        return self._told("ecc", handle, (1, 1))

    def nvmlDeviceGetPersistenceMode(self, handle: int) -> object:
        return self._told("persistence", handle, 1)


def value(number: object, unit: str) -> dict[str, object]:
    return {"value": number, "unit": unit}


def metric(gpu: int, *, watts: object = 612, throttle: dict[str, object] | None = None, **parts: object) -> dict:
    """One GPU's entry of `amd-smi metric --json`."""
    entry = {
        "gpu": gpu,
        "usage": {"gfx_activity": value(96, "%"), "mm_activity": "N/A", "gfx_busy_inst": {"xcp_0": ["N/A"]}},
        "power": {"socket_power": value(watts, "W"), "gfx_voltage": value("N/A", "mV"), "throttle_status": "N/A"},
        "clock": {
            "gfx_0": {"clk": value(1480, "MHz"), "max_clk": value(2100, "MHz"), "clk_locked": "DISABLED"},
            "gfx_1": {"clk": value(1520, "MHz")},
            "gfx_2": {"clk": "N/A"},
            "mem_0": {"clk": value(1300, "MHz")},
            "vclk_0": {"clk": value(29, "MHz")},
        },
        "temperature": {"edge": "N/A", "hotspot": value(83, "C"), "mem": value(61, "C")},
        "energy": {"total_energy_consumption": value(1234567.5, "J")},
        "mem_usage": {"total_vram": value(196592, "MB"), "used_vram": value(163840, "MB")},
    }
    return {**entry, **({"throttle": throttle} if throttle is not None else {}), **parts}


def printed(entries: list[dict], *, wrapped: bool, noise: str = "") -> str:
    document = {"gpu_data": entries} if wrapped else entries
    return f"{noise}{json.dumps(document, indent=4)}\n{noise}"


def first_table(proc: Path) -> None:
    """A /proc that shows all processes of the machine."""
    (proc / "self/ns").mkdir(parents=True)
    (proc / "self/ns/pid").symlink_to("pid:[4026531836]")
    (proc / "1").mkdir()
    (proc / "1/stat").write_text(f"1 (init) S 0 1{' 0' * 17} 4096 0\n")
