from __future__ import annotations

import sys
import threading
from types import ModuleType, SimpleNamespace

import pytest

from madlite.machine.detect import detect_nvidia
from madlite.machine.host import Host
from madlite.machine.products import short_name
from madlite.machine.sources.base import GpuFacts
from madlite.machine.sources.nvml import NAME, read_library, read_nvml
from tests.rows import each_row

from .stand_in import Bench

H100 = "NVIDIA H100 80GB HBM3"
TABLE = """\
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 575.57.08              Driver Version: 575.57.08      CUDA Version: 12.9     |
+-----------------------------------------+------------------------+----------------------+
"""


def rows(count: int, name: str = H100, mib: str = "81559") -> str:
    return "".join(
        f"{n}, {name}, GPU-0d{n}e0000-1111-2222-3333-444455556666, {mib}, 00000000:{n + 0x1B:02X}:00.0, 575.57.08\n"
        for n in range(count)
    )


def test_eight_h100_by_the_query(bench: Bench) -> None:
    bench.tool("nvidia-smi", ("*--query-gpu*", rows(8)), ("", TABLE))
    machine = bench.detect()
    assert (machine.vendor, len(machine.gpus)) == ("NVIDIA", 8)
    assert (machine.architecture, machine.product, machine.device) == (H100, H100, "H100")
    assert machine.gpus[1].bus == "0000:1c:00.0"
    assert machine.gpus[1].memory_bytes == 81559 << 20
    assert (machine.driver_version, machine.cuda_version) == ("575.57.08", "12.9")
    assert machine.sources["gpus"] == "nvidia-smi"
    assert machine.problems == ()


@each_row("name", ["[GPU is lost]", "[Unknown Error]", "ERR!", "[GPU requires reset]"])
def test_a_lost_gpu_is_left_out_and_named_and_the_others_keep_their_ids(bench: Bench, name: str) -> None:
    first, lost, last = rows(3).splitlines(keepends=True)
    lost = f"1, {name}, [N/A], [N/A], 00000000:1C:00.0, [N/A]\n"
    bench.tool("nvidia-smi", ("*--query-gpu*", first + lost + last), ("", TABLE))
    machine = bench.detect()
    assert [gpu.index for gpu in machine.gpus] == [0, 2]
    assert [(problem.where, problem.what) for problem in machine.problems] == [("nvidia-smi", "1 GPUs without a name")]


def test_addresses_are_not_taken_for_products(bench: Bench) -> None:
    bench.tool("nvidia-smi", ("*", "GPU 00000000:18:00.0\n    Product Name : NVIDIA H100 80GB HBM3\nGPU 1:\n"))
    assert bench.detect().gpus == ()


@each_row(
    ("row", "memory", "uuid", "bus", "driver"),
    [
        ("0, NVIDIA H200, GPU-a, 143771 MiB, 00000000:0F:00.0, 570.1", 143771 << 20, "GPU-a", "0000:0f:00.0", "570.1"),
        ("0, NVIDIA H200, [Not Supported], [Not Supported], [Not Supported], 570.1", None, "", "", "570.1"),
        ("0, NVIDIA H200, [N/A], [N/A], 0000000F:01:00.0, [N/A]", None, "", "000f:01:00.0", "575.57.08"),
        ("0, NVIDIA H200, GPU-aa, N/A, N/A, N/A", None, "GPU-aa", "", "575.57.08"),
    ],
)  # fmt: skip
def test_fields_without_a_value(bench: Bench, row: str, memory: int | None, uuid: str, bus: str, driver: str) -> None:
    heading = "index, name, uuid, memory.total [MiB], pci.bus_id, driver_version\n"
    bench.tool("nvidia-smi", ("*--query-gpu*", f"{heading}{row}\n"), ("", TABLE))
    machine = bench.detect()
    (gpu,) = machine.gpus
    assert (gpu.product, gpu.memory_bytes, gpu.unique_id, gpu.bus) == ("NVIDIA H200", memory, uuid, bus)
    assert (machine.driver_version, machine.cuda_version) == (driver, "12.9")


@each_row(
    ("product", "device"),
    [
        (H100, "H100"),
        ("NVIDIA H100 NVL", "H100"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA GH200 480GB", "GH200"),
        ("NVIDIA GB200", "GB200"),
        ("NVIDIA GB10", "GB10"),
        ("NVIDIA L40S", "L40S"),
        ("Tesla V100-SXM2-32GB", "V100"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX PRO 6000"),
        ("NVIDIA RTX A6000", "RTX A6000"),
        ("NVIDIA Something New", "NVIDIA Something New"),
    ],
)
def test_short_names(product: str, device: str) -> None:
    assert short_name(GpuFacts(index=0, arch=product, product=product), "NVIDIA") == device


class FakeError(Exception):
    pass


def library(*, lost: bool = False, start: Exception | None = None) -> SimpleNamespace:
    """The functions of pynvml that are used, in the types its older versions returned."""

    def init() -> None:
        if start:
            raise start

    def handle(index: int) -> int:
        if lost and index == 1:
            raise FakeError("GPU is lost")
        return index

    return SimpleNamespace(
        NVMLError=FakeError,
        nvmlInit=init,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: 2,
        nvmlSystemGetCudaDriverVersion_v2=lambda: 12080,
        nvmlSystemGetDriverVersion=lambda: "570.86.15",
        nvmlDeviceGetHandleByIndex=handle,
        nvmlDeviceGetName=lambda _: "NVIDIA B200",
        nvmlDeviceGetMemoryInfo=lambda _: SimpleNamespace(total=183359 << 20),
        nvmlDeviceGetUUID=lambda index: f"GPU-{index}",
        nvmlDeviceGetPciInfo=lambda index: SimpleNamespace(busId=f"00000000:0{index + 1}:00.0"),
    )


def test_the_management_library_answers_all_facts() -> None:
    source = read_library(library())
    assert [(gpu.product, gpu.unique_id, gpu.bus) for gpu in source.gpus] == [
        ("NVIDIA B200", "GPU-0", "0000:01:00.0"),
        ("NVIDIA B200", "GPU-1", "0000:02:00.0"),
    ]
    assert source.gpus[0].memory_bytes == 183359 << 20
    assert (source.driver_version, source.runtime_version, source.problem) == ("570.86.15", "12.8", "")


@each_row("broken", [library(lost=True), library(start=FakeError("Driver Not Loaded"))])
def test_the_management_librarys_errors_are_a_problem_without_gpus(broken: SimpleNamespace) -> None:
    source = read_library(broken)
    assert source.gpus == ()
    assert source.problem in ("GPU is lost", "Driver Not Loaded")


@each_row("lacks", ["nvmlSystemGetCudaDriverVersion_v2", "NVMLError"])
def test_a_library_without_a_function_is_a_problem_without_gpus(monkeypatch: pytest.MonkeyPatch, lacks: str) -> None:
    module = ModuleType("pynvml")
    module.__dict__.update(vars(library()))
    delattr(module, lacks)
    if lacks == "NVMLError":
        module.nvmlInit = lambda: 1 // 0
    monkeypatch.setitem(sys.modules, "pynvml", module)
    report = read_nvml(Host())
    assert report.gpus == () and report.problem.startswith("AttributeError: ") and lacks in report.problem


def test_a_management_library_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()
    monkeypatch.setattr("madlite.machine.sources.nvml.read_library", lambda _: released.wait())
    assert read_nvml(Host(limit_s=0.05)).problem == "did not end within 0.05 s"
    released.set()


def test_of_the_real_machine_the_library_is_asked_first() -> None:
    """Whatever GPUs this machine has, and without any: no exception, and the library's own answer or reason."""
    found = detect_nvidia(Host(), present=True)
    assert found.reports[0].name == NAME and (found.reports[0].gpus or found.reports[0].problem)
