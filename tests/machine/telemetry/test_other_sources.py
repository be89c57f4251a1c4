"""The other sources: nvidia-smi, the files of AMD's driver; and which of them is taken."""

from __future__ import annotations

import sys
from threading import Event
from types import ModuleType

import pytest

from madlite.machine.host import Host
from madlite.machine.sources.amdgpu import AmdGpu, driver_facts
from madlite.machine.sources.nvidia_smi import NvidiaSmi
from madlite.machine.telemetry import open_sources
from madlite.model import Gpu
from tests.machine.stand_in import Bench

from .fakes import FakeError, FakeNvml, metric, printed

ROWS = "0, 611.50, 1755, 2619, 62, 71000, 99, 0x0000000000000004\n1, [N/A], 345, 2619, 30, 3, 0, [N/A]\n"


def host(bench: Bench, limit_s: float = 10) -> Host:
    return Host(root=bench.root, path=str(bench.bin), limit_s=limit_s, env={"PATH": "/usr/bin:/bin"})


def test_nvidia_smi_reads_the_gpus_of_the_run_and_names_one_that_it_does_not_list(bench: Bench) -> None:
    bench.tool("nvidia-smi", ("*clocks_event_reasons.active*", ROWS))
    first, second = NvidiaSmi(host(bench), (0, 1), Event()).read().readings
    assert (first.power_w, first.clock_mhz, first.temperature_c) == (611.5, 1755, 62)
    assert round(first.memory_used_gib or 0, 2) == 69.34
    assert first.slowed == {"power cap": 1.0}
    assert (second.power_w, second.slowed) == (None, None)
    assert [one.index for one in NvidiaSmi(host(bench), (1,), Event()).read().readings] == [1]
    bench.tool("nvidia-smi", ("*--query-gpu*", ROWS))
    assert NvidiaSmi(host(bench), (0, 5), Event()).read().problem == "it reports nothing of GPU 5"


def test_an_old_nvidia_smi_is_asked_by_the_old_name(bench: Bench) -> None:
    bench.tool("nvidia-smi", ("*clocks_throttle_reasons.active*", ROWS))
    source = NvidiaSmi(host(bench), (0,), Event())
    assert source.read().readings[0].slowed == {"power cap": 1.0}
    assert source.read().problem == ""


def amd_files(bench: Bench, bus: str, **files: str) -> None:
    for name, text in files.items():
        bench.file(f"sys/bus/pci/devices/{bus}/{name.replace('__', '/')}", f"{text}\n")


def test_files_of_amd_s_driver(bench: Bench) -> None:
    amd_files(
        bench,
        "0000:c1:00.0",
        gpu_busy_percent="97",
        mem_info_vram_used=str(64 << 30),
        vbios_version="113-M3000100-102",
        current_compute_partition="SPX",
        hwmon__hwmon4__power1_input="641000000",
        hwmon__hwmon4__power1_cap="750000000",
        hwmon__hwmon4__freq1_input="1702000000",
        hwmon__hwmon4__freq2_input="1300000000",
        hwmon__hwmon4__temp1_label="edge",
        hwmon__hwmon4__temp1_input="60000",
        hwmon__hwmon4__temp2_label="junction",
        hwmon__hwmon4__temp2_input="84500",
    )
    gpus = (Gpu(index=0, bus="0000:c1:00.0"), Gpu(index=1, bus="0000:c1:00.1"), Gpu(index=2))
    source = AmdGpu(bench.root, gpus)
    (reading,) = source.read().readings  # the partition beside it has none of its own
    assert (reading.index, reading.power_w, reading.clock_mhz, reading.memory_clock_mhz) == (0, 641.0, 1702.0, 1300.0)
    assert (reading.temperature_c, reading.memory_used_gib, reading.utilization_percent) == (84.5, 64.0, 97.0)
    assert driver_facts(bench.root, gpus) == {
        "vbios": "113-M3000100-102",
        "compute_partition": "SPX",
        "power_limit_w": "750",
    }
    assert source.processes() is None
    source.close()


def fake_library(monkeypatch: pytest.MonkeyPatch, error: FakeError | None) -> FakeNvml:
    library = FakeNvml()
    module = ModuleType("pynvml")
    module.__dict__.update({name: getattr(library, name) for name in dir(library) if not name.startswith("_")})
    if error:
        module.__dict__["nvmlInit"] = lambda: (_ for _ in ()).throw(error)
    monkeypatch.setitem(sys.modules, "pynvml", module)
    return library


def test_the_library_comes_before_nvidia_smi(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    # without any source each says why
    fake_library(monkeypatch, FakeError(12))
    opened, problem = open_sources("NVIDIA", [Gpu(index=0)], host(bench), Event())
    assert opened == []
    assert problem == "NVML: Not Supported; nvidia-smi: not installed"
    # nvidia smi stands in for a library that is not there
    fake_library(monkeypatch, FakeError(12))
    bench.tool("nvidia-smi", ("*clocks_event*", ROWS))
    (((source, _),), _) = open_sources("NVIDIA", [Gpu(index=0)], host(bench), Event())
    assert source.name == "nvidia-smi"
    fake_library(monkeypatch, None)
    bench.tool("nvidia-smi", ("*", ROWS))
    (((source, answer),), problem) = open_sources("NVIDIA", [Gpu(index=0)], host(bench), Event())
    assert (source.name, answer.readings[0].power_w, problem) == ("NVML", 600.0, "")


def test_amd_s_files_and_amd_smi_together(bench: Bench) -> None:
    gpus = [Gpu(index=0, bus="0000:c1:00.0")]
    bench.tool("amd-smi", ("metric*", printed([metric(0)], wrapped=True)))
    amd_files(bench, "0000:c1:00.0", hwmon__hwmon0__power1_average="500000000")
    opened, _ = open_sources("AMD", gpus, host(bench), Event())
    assert [source.name for source, _ in opened] == ["amdgpu", "amd-smi"]


def test_nothing_is_asked_once_the_run_is_over(bench: Bench) -> None:
    over = Event()
    over.set()
    assert open_sources("AMD", [Gpu(index=0)], host(bench), over) == ([], "")
