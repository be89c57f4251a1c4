from __future__ import annotations

import pytest

from madlite.errors import CheckFailed
from tests.rows import each_row

from .stand_in import Bench, amd_list, amd_static
from .test_nvidia import TABLE, rows

NO_DRIVER = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."


def test_nothing_there_is_cpu_without_running_anything(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("madlite.machine.host.capture", lambda *_, **__: pytest.fail("a process was started"))
    machine = bench.detect()
    assert (machine.vendor, machine.gpus, machine.architecture) == ("CPU", (), "cpu")
    assert (machine.product, machine.device) == ("cpu", "cpu")
    assert machine.hostname


def test_display_adapters_bridges_and_a_bare_driver_are_no_gpu(bench: Bench) -> None:
    bench.pci("0000:00:02.0", "8086", "9a49", "030000")
    bench.pci("0000:c4:00.0", "1002", "1638", "030000")  # an APU's display
    bench.pci("0000:05:00.0", "10de", "1af1", "068000")  # an NVSwitch
    bench.pci("0000:06:00.1", "10de", "10fa", "040300")  # sound
    bench.file("dev/kfd")
    bench.file("dev/nvidiactl")
    bench.node(0)
    assert bench.detect().vendor == "CPU"


@each_row("complaint", [f"echo '{NO_DRIVER}'; exit 9", "echo 'No devices were found'; exit 6", "exit 0"])
def test_a_tool_without_a_gpu_anywhere_is_cpu_with_a_note(bench: Bench, complaint: str) -> None:
    bench.script("nvidia-smi", complaint)
    machine = bench.detect()
    assert machine.vendor == "CPU"
    assert [problem.where for problem in machine.problems] == ["nvidia-smi"]


@pytest.mark.host
def test_a_hanging_tool_without_a_gpu_anywhere_is_cpu_with_a_note(bench: Bench) -> None:
    bench.limit_s = 0.3
    bench.script("rocm-smi", "sleep 60")
    machine = bench.detect()
    assert machine.vendor == "CPU"
    assert "did not end within 0.3 s" in machine.problems[0].what


def kfd_device(bench: Bench) -> None:
    bench.file("dev/kfd")


def closed_nodes(bench: Bench) -> None:
    bench.node(0)
    (bench.root / "sys/class/kfd/kfd/topology/nodes/1/properties").mkdir(parents=True)  # reading it fails


def accelerator(bench: Bench) -> None:
    bench.pci("0000:1b:00.0", "1002", "ffff", "120000")


def known_id(bench: Bench) -> None:
    bench.node(0)
    bench.pci("0000:c1:00.0", "1002", "740c", "038000")


@each_row("trace", [kfd_device, closed_nodes, accelerator, known_id])
def test_an_amd_gpu_that_cannot_be_read_is_an_error(bench: Bench, trace: object) -> None:
    trace(bench)
    bench.script("rocm-smi", "echo 'ERROR:root:Driver not initialized (amdgpu not found in modules)'; exit 1")
    with pytest.raises(CheckFailed) as refused:
        bench.detect()
    assert "AMD GPUs are in this machine but cannot be read" in refused.value.message
    assert "amd-smi: not installed" in refused.value.message
    assert "rocm-smi: exit code 1: ERROR:root:Driver not initialized" in refused.value.message
    assert '{"gpu_vendor": "CPU"}' in refused.value.hint
    assert "--gpu-vendor" not in refused.value.hint


def test_gpus_that_a_tool_counts_but_cannot_name_are_an_error(bench: Bench) -> None:
    nothing = amd_static([0, 1], name="N/A", arch="N/A", id="N/A", mb=None)
    bench.tool("amd-smi", ("*static*", nothing), ("*list*", amd_list(["N/A", "N/A"])))
    with pytest.raises(CheckFailed, match="amd-smi lists 2 without naming them"):
        bench.detect()


@each_row("kind", ["030000", "030200"])
def test_an_nvidia_gpu_that_cannot_be_read_is_an_error(bench: Bench, kind: str) -> None:
    bench.pci("0000:17:00.0", "10de", "2330", kind)
    with pytest.raises(CheckFailed, match=r"NVIDIA GPUs.*0000:17:00\.0 \[10de:2330\].*nvidia-smi: not installed"):
        bench.detect()


@each_row("path", ["dev/nvidia0", "proc/driver/nvidia/gpus/0000:17:00.0/information"])
def test_nvidias_driver_shows_its_gpus(bench: Bench, path: str) -> None:
    bench.file(path)
    bench.script("nvidia-smi", f'echo "{NO_DRIVER}"; exit 9')
    with pytest.raises(CheckFailed, match=r"NVIDIA GPUs.*nvidia-smi: exit code 9: NVIDIA-SMI has failed"):
        bench.detect()


def test_gpu_vendor_cpu_turns_detection_off(bench: Bench) -> None:
    known_id(bench)
    machine = bench.detect(gpu_vendor="cpu")
    assert (machine.vendor, machine.sources["vendor"]) == ("CPU", "override gpu_vendor")


def test_nvidia_wins_where_both_answer(bench: Bench) -> None:
    bench.tool("nvidia-smi", ("*--query-gpu*", rows(2)), ("", TABLE))
    bench.tool("amd-smi", ("*static*", amd_static([0])), ("*list*", amd_list([1])))
    assert bench.detect().vendor == "NVIDIA"
    assert bench.detect(gpu_vendor="amd").vendor == "AMD"


def test_gpus_in_the_machine_count_more_than_a_tool(bench: Bench) -> None:
    bench.tool("nvidia-smi", ("*--query-gpu*", rows(2)), ("", TABLE))
    bench.mi300x(8)
    assert (bench.detect().vendor, len(bench.detect().gpus)) == ("AMD", 8)


def test_one_vendors_broken_display_card_does_not_stop_the_others_gpus(bench: Bench) -> None:
    bench.pci("0000:02:00.0", "10de", "1d01", "030000")
    bench.script("nvidia-smi", f'echo "{NO_DRIVER}"; exit 9')
    bench.mi300x(8)
    machine = bench.detect()
    assert machine.vendor == "AMD"
    assert [problem.where for problem in machine.problems] == ["nvidia-smi"]


def test_unlike_gpus_are_said_to_be_unlike(bench: Bench) -> None:
    bench.mi300x(1)
    bench.mi300x(1, first=2, gfx_target_version=90010, device_id=0x740F, simd_count=416)
    machine = bench.detect()
    assert machine.device == "MI300X"
    assert "MI300X, MI210" in machine.problems[0].what


MISMATCH = (
    "echo 'Failed to initialize NVML: Driver/library version mismatch'; echo 'NVML library version: 560.28'; exit 18"
)


def graphics(bench: Bench) -> None:
    """The processor's own GPU, as KFD lists it."""
    bench.node(1, simd_count=4, simd_per_cu=2, gfx_target_version=100306, device_id=0x164E, drm_render_minor=128)


@each_row(
    ("complaint", "said"),
    [
        (
            MISMATCH,
            "exit code 18: Failed to initialize NVML: Driver/library version mismatch; NVML library version: 560",
        ),
        (f'echo "{NO_DRIVER}"; exit 9', "exit code 9: NVIDIA-SMI has failed"),
        ("exit 0", "nvidia-smi: answered without a GPU"),
        ("echo 'No devices were found'", "answered without a GPU: No devices were found"),
        ("exit 3", "exit code 3: no output"),
    ],
)
def test_an_nvidia_gpu_and_what_its_tool_said_are_both_in_the_error(bench: Bench, complaint: str, said: str) -> None:
    bench.pci("0000:17:00.0", "10de", "2330", "030200")
    bench.script("nvidia-smi", complaint)
    with pytest.raises(CheckFailed) as refused:
        bench.detect()
    assert said in refused.value.message
    assert "PCI device 0000:17:00.0 [10de:2330]" in refused.value.message


def test_a_processors_graphics_do_not_stand_in_for_nvidia_gpus(bench: Bench) -> None:
    bench.pci("0000:17:00.0", "10de", "2330", "030200")
    bench.script("nvidia-smi", MISMATCH)
    graphics(bench)
    with pytest.raises(CheckFailed, match="NVIDIA GPUs are in this machine but cannot be read") as refused:
        bench.detect()
    assert "--gpu-vendor AMD" in refused.value.hint
    assert bench.detect(gpu_vendor="AMD").architecture == "gfx1036"


@each_row("complaint", [MISMATCH, f'echo "{NO_DRIVER}"; exit 9', "sleep 60"])
def test_a_broken_nvidia_tool_on_an_amd_machine_is_not_even_asked(bench: Bench, complaint: str) -> None:
    bench.script("nvidia-smi", complaint)
    bench.mi300x(2)
    machine = bench.detect()
    assert (machine.vendor, len(machine.gpus), machine.problems) == ("AMD", 2, ())


def test_broken_amd_tools_on_an_nvidia_machine_do_not_matter(bench: Bench) -> None:
    bench.file("dev/nvidia0")
    bench.tool("nvidia-smi", ("*--query-gpu*", rows(2)), ("", TABLE))
    for tool in ("amd-smi", "rocm-smi"):
        bench.script(tool, "echo 'ROCk module is NOT loaded' >&2; exit 1")
    machine = bench.detect()
    assert (machine.vendor, len(machine.gpus), machine.problems) == ("NVIDIA", 2, ())


def test_nvidias_answer_does_not_hide_instincts_silently(bench: Bench) -> None:
    bench.pci("0000:17:00.0", "10de", "1fb0", "030000")
    bench.tool("nvidia-smi", ("*--query-gpu*", rows(1)), ("", TABLE))
    bench.mi300x(8)
    machine = bench.detect()
    assert (machine.vendor, [problem.where for problem in machine.problems]) == ("NVIDIA", ["gpu_vendor"])
    assert machine.problems[0].what.startswith("8 AMD GPUs are here too")
    assert bench.detect(gpu_vendor="AMD").problems == bench.detect(gpu_vendor="NVIDIA").problems == ()


def test_every_tool_that_was_asked_is_in_the_error(bench: Bench) -> None:
    known_id(bench)
    bench.script("amd-smi", "echo 'AMDSMI_STATUS_NO_DRV' >&2; exit 255")
    bench.script("rocm-smi", "echo 'ERROR:root:Driver not initialized'; echo 'cat: no file'; exit 2")
    with pytest.raises(CheckFailed) as refused:
        bench.detect()
    for said in (
        "PCI device 0000:c1:00.0 [1002:740c]",
        "amd-smi: exit code 255: AMDSMI_STATUS_NO_DRV",
        "rocm-smi: exit code 2: ERROR:root:Driver not initialized; cat: no file",
    ):
        assert said in refused.value.message
