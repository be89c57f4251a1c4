from __future__ import annotations

from types import SimpleNamespace

from madlite.machine.sources.base import GpuProcess
from madlite.machine.sources.nvml import Nvml, throttle_reasons
from tests.rows import each_row

from .fakes import GIB, FakeNvml


def test_a_reading_has_the_library_s_values_in_our_units() -> None:
    (first, second) = Nvml(FakeNvml(energy_mj=[5_000, 7_000]), (0, 1)).read().readings
    assert (first.index, first.power_w, first.energy_j, second.power_w) == (0, 600.0, 5.0, 640.0)
    assert (first.clock_mhz, first.memory_clock_mhz, first.temperature_c) == (1755, 2619, 61)
    assert (first.memory_used_gib, first.utilization_percent, first.slowed) == (70.0, 99.0, {})
    assert [one.index for one in Nvml(FakeNvml(), (1,)).read().readings] == [1]


def test_a_gpu_that_is_lost_mid_run_is_named_and_the_other_goes_on() -> None:
    library = FakeNvml()
    source = Nvml(library, (0, 1))
    assert source.read().problem == ""
    library.lost = {1}
    answer = source.read()
    assert [one.index for one in answer.readings] == [0]
    assert answer.problem == "GPU 1: GPU is lost"


def test_what_a_gpu_does_not_support_or_cannot_have_is_not_known() -> None:
    library = FakeNvml(without={"power", "energy", "reasons", "utilisation"})
    (reading,) = Nvml(library, (0,)).read().readings
    assert (reading.power_w, reading.energy_j, reading.slowed, reading.utilization_percent) == (None,) * 4
    assert reading.temperature_c == 61
    library = FakeNvml(milliwatts=[4_294_967_295, 0])
    assert Nvml(library, (0,)).read().readings[0].power_w is None


@each_row(
    ("bits", "words"),
    [
        (0x00, []),
        (0x01, []),  # idle
        (0x02 | 0x10 | 0x100, []),  # clocks that somebody set, sync boost, display
        (0x04, ["power cap"]),
        (0x20, ["thermal"]),
        (0x08 | 0x40, ["hardware thermal"]),
        (0x08 | 0x80, ["power brake"]),
        (0x08, ["hardware slowdown"]),
        (0x04 | 0x20, ["power cap", "thermal"]),
    ],
)
def test_the_bits_of_the_clocks_event_reasons(bits: int, words: list[str]) -> None:
    assert throttle_reasons(bits) == words
    assert Nvml(FakeNvml(bits=bits), (0,)).read().readings[0].slowed == dict.fromkeys(words, 1.0)


def test_older_drivers_and_modules_cost_what_they_lack_alone() -> None:
    # a library of before driver 535 has the old name
    class Old(FakeNvml):
        nvmlDeviceGetCurrentClocksEventReasons = property(lambda self: self.none)  # AttributeError

        def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: int) -> int:
            return 0x20

    assert Nvml(Old(), (0,)).read().readings[0].slowed == {"thermal": 1.0}

    # a module of today on a driver that lacks the new functions
    class OldDriver(FakeNvml):
        def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: int) -> int:
            return 0x20

        def nvmlDeviceGetComputeRunningProcesses_v2(self, handle: int) -> list[object]:
            return [SimpleNamespace(pid=11, usedGpuMemory=GIB)]

    source = Nvml(OldDriver(without={"reasons", "users"}), (0,))
    assert source.read().readings[0].slowed == {"thermal": 1.0}
    assert source.processes() == (GpuProcess(pid=11, gpu=0, memory_bytes=GIB),)

    # one that has neither
    source = Nvml(FakeNvml(without={"reasons", "users"}), (0,))
    assert source.read().readings[0].slowed is None and source.processes() is None

    # a module without a function costs that value alone
    class OldModule(FakeNvml):
        nvmlDeviceGetTotalEnergyConsumption = property(lambda self: self.none)  # AttributeError

    (reading,) = Nvml(OldModule(), (0,)).read().readings
    assert (reading.power_w, reading.energy_j) == (600.0, None)


def test_processes_and_memory_that_is_not_told() -> None:
    users = [
        (0, SimpleNamespace(pid=11, usedGpuMemory=3 * GIB)),
        (1, SimpleNamespace(pid=12, usedGpuMemory=None)),
        (1, SimpleNamespace(pid=13, usedGpuMemory=(1 << 64) - 1)),
    ]
    found = Nvml(FakeNvml(users=users), (0, 1)).processes()
    assert found == (
        GpuProcess(pid=11, gpu=0, memory_bytes=3 * GIB),
        GpuProcess(pid=12, gpu=1),
        GpuProcess(pid=13, gpu=1),
    )
    assert Nvml(FakeNvml(without={"users"}), (0,)).processes() is None


def test_facts_of_gpus_that_are_alike_are_said_once() -> None:
    told = Nvml(FakeNvml(without={"mig"}), (0, 1)).facts()
    assert told == {"vbios": "96.00.99.00.0A", "power_limit_w": "700", "ecc": "on", "persistence": "on"}


def test_the_library_is_given_back() -> None:
    library = FakeNvml()
    source = Nvml(library, (0,))
    source.read()
    source.read()
    assert library.open == 1
    source.close()
    assert library.open == 0
