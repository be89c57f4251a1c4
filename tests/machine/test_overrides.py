from __future__ import annotations

from types import SimpleNamespace

import pytest

from madlite.errors import CheckFailed, UsageProblem
from madlite.machine.detect import detect_machine
from tests.rows import each_row

from .stand_in import GIB, Bench, amd_list, amd_static
from .test_nvidia import TABLE, rows


@pytest.fixture
def loud(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A machine on which no tool may run."""
    for tool in ("amd-smi", "rocm-smi", "nvidia-smi"):
        bench.script(tool, "exit 0")
    monkeypatch.setattr("madlite.machine.host.capture", lambda *_, **__: pytest.fail("a process was started"))
    return SimpleNamespace(detect=bench.detect)  # of one machine for all rows


@each_row(
    "overrides",
    [
        {"gpu_vendor": "amd", "device": "MI300X", "n_gpus": 8},
        {"device": "mi300x", "n_gpus": "8"},
        {"gpu_product": "AMD Instinct MI300X OAM", "n_gpus": 8},
        {"gpu_vendor": "AMD", "MAD_SYSTEM_GPU_PRODUCT_NAME": "AMD Instinct MI300X", "n_gpus": 8},
        {"gpu_vendor": "AMD", "gpu_arch": "gfx942:sramecc+:xnack-", "device": "MI300X", "n_gpus": 8},
    ],
)
def test_eight_mi300x_that_are_elsewhere(loud: Bench, overrides: dict[str, object]) -> None:
    machine = loud.detect(**overrides)
    assert (machine.vendor, machine.architecture, machine.device) == ("AMD", "gfx942", "MI300X")
    assert machine.product.startswith("AMD Instinct MI300X")
    assert [gpu.index for gpu in machine.gpus] == list(range(8))
    assert {gpu.memory_bytes for gpu in machine.gpus} == {192 * GIB}
    assert machine.pretended


@each_row(
    ("device", "arch", "product", "memory_gib"),
    [
        ("MI300X", "gfx942", "AMD Instinct MI300X", 192),
        ("MI325X", "gfx942", "AMD Instinct MI325X", 256),
        ("MI350X", "gfx950", "AMD Instinct MI350X", 288),
        ("MI355X", "gfx950", "AMD Instinct MI355X", 288),
    ],
)
def test_a_described_instinct_lacks_nothing(loud: Bench, device: str, arch: str, product: str, memory_gib: int) -> None:
    machine = loud.detect(device=device, n_gpus=8)
    assert (machine.vendor, machine.architecture, machine.product, machine.device) == ("AMD", arch, product, device)
    assert {(gpu.arch, gpu.product, gpu.memory_bytes) for gpu in machine.gpus} == {(arch, product, memory_gib * GIB)}
    # a GPU that can be divided into eight takes eight numbers
    assert [gpu.render_minor for gpu in machine.gpus] == [128, 136, 144, 152, 160, 168, 176, 184]
    assert (machine.rocm_version, machine.cuda_version) == ("7.0.0", "")
    assert machine.sources["rocm_version"] == machine.sources["render_minor"] == f"usual for {device}"
    assert machine.problems == ()


def test_what_is_said_of_a_machine_comes_before_what_is_usual_and_is_named(loud: Bench) -> None:
    # what is usual gives way to what is said
    machine = loud.detect(device="MI300X", n_gpus=2, rocm_version="6.4.1", gpu_renderDs=[130, 133])
    assert machine.rocm_version == "6.4.1"
    assert [gpu.render_minor for gpu in machine.gpus] == [130, 133]
    # an architecture alone leaves the device open
    machine = loud.detect(gpu_vendor="AMD", gpu_arch="gfx942", n_gpus=4)
    assert (machine.device, machine.gpus[0].memory_bytes) == ("gfx942", None)
    # each fact names its override
    sources = loud.detect(gpu_vendor="AMD", device="MI355X", n_gpus=8, rocm_version="7.0").sources
    assert sources["vendor"] == "override gpu_vendor"
    assert sources["gpus"] == "override n_gpus"
    assert sources["architecture"] == sources["memory_bytes"] == "override device"
    assert sources["rocm_version"] == "override rocm_version"


def test_a_described_nvidia_machine_has_a_cuda_release_and_no_render_nodes(loud: Bench) -> None:
    machine = loud.detect(device="H100", n_gpus=2)
    assert (machine.cuda_version, machine.rocm_version) == ("12.8", "")
    assert {gpu.render_minor for gpu in machine.gpus} == {None}


def test_undivided_gpus_are_numbered_one_by_one(loud: Bench) -> None:
    machine = loud.detect(device="MI250X", n_gpus=4)
    assert [gpu.render_minor for gpu in machine.gpus] == [128, 129, 130, 131]
    assert (machine.architecture, machine.gpus[1].memory_bytes) == ("gfx90a", 64 * GIB)


@each_row("overrides", [{"device": "h200"}, {"gpu_vendor": "NVIDIA", "gpu_arch": "NVIDIA H200"}])
def test_nvidia_elsewhere_has_its_product_as_architecture(loud: Bench, overrides: dict[str, object]) -> None:
    machine = loud.detect(n_gpus=8, cuda_version="12.8", **overrides)
    assert (machine.vendor, machine.architecture, machine.device) == ("NVIDIA", "NVIDIA H200", "H200")
    assert (machine.cuda_version, machine.sources["cuda_version"]) == ("12.8", "override cuda_version")


def test_describing_the_machine_one_is_on_keeps_its_render_nodes(bench: Bench) -> None:
    bench.mi300x(8)
    machine = bench.detect(gpu_vendor="AMD", MAD_SYSTEM_GPU_ARCHITECTURE="gfx942", n_gpus=8)
    assert [gpu.render_minor for gpu in machine.gpus] == list(range(128, 136))
    assert not machine.pretended
    assert bench.detect(device="MI325X", n_gpus=8).pretended


def test_render_nodes_prove_no_gpu(bench: Bench) -> None:
    """A GPU-less machine must not become eight MI300X by a list of numbers."""
    with pytest.raises(CheckFailed, match="no AMD GPU is in this machine"):
        bench.detect(gpu_vendor="AMD", device="MI300X", gpu_renderDs=list(range(128, 136)))


def test_render_nodes_choose_among_the_gpus_and_add_none(bench: Bench) -> None:
    bench.mi300x(2)
    machine = bench.detect(gpu_renderDs=[140, 141, 142])
    assert [gpu.render_minor for gpu in machine.gpus] == [140, 141]
    assert machine.problems[0].what == "3 asked for, 2 are here"
    assert machine.sources["render_minor"] == "override gpu_renderDs"
    assert [gpu.render_minor for gpu in bench.detect(gpu_renderDs=[141]).gpus] == [141]


@each_row(
    ("overrides", "pretended"),
    [
        ({}, False),
        ({"gpu_vendor": "CPU"}, False),
        ({"n_gpus": 1}, False),
        ({"n_gpus": 3}, True),
        ({"device": "mi300x"}, False),
        ({"device": "MI325X"}, True),
        ({"device": "MI9999X"}, True),
        ({"gpu_arch": "gfx942"}, False),
        ({"gpu_arch": "gfx950"}, True),
        ({"gpu_product": "AMD Instinct MI300X VF"}, False),
        ({"gpu_product": "AMD Instinct MI355X"}, True),
        ({"gpu_product": "node of the lab"}, False),
        ({"rocm_version": "7.0"}, False),
    ],
)
def test_a_machine_with_gpus_that_are_not_here_is_marked(
    bench: Bench, overrides: dict[str, object], pretended: bool
) -> None:
    bench.mi300x(2)
    assert bench.detect(**overrides).pretended is pretended


@each_row(("overrides", "pretended"), [({"device": "h100"}, False), ({"gpu_arch": "NVIDIA H200"}, True)])
def test_another_nvidia_gpu_than_is_here_is_marked(bench: Bench, overrides: dict[str, object], pretended: bool) -> None:
    bench.tool("nvidia-smi", ("*--query-gpu*", rows(2)), ("", TABLE))
    assert bench.detect(**overrides).pretended is pretended


def test_a_vendor_alone_restricts_detection(bench: Bench) -> None:
    bench.tool("nvidia-smi", ("*--query-gpu*", rows(2)), ("", TABLE))
    with pytest.raises(CheckFailed, match="gpu_vendor asks for AMD, but no AMD GPU is in this machine") as refused:
        bench.detect(gpu_vendor="AMD")
    assert "--dry-run --machine 8xMI300X" in refused.value.hint
    assert bench.detect(gpu_vendor="nvidia").device == "H100"


def test_single_facts_correct_what_was_found(bench: Bench) -> None:
    bench.tool("amd-smi", ("*static*", amd_static(list(range(8)))), ("*list*", amd_list(list(range(8)))))
    machine = bench.detect(n_gpus=4, gpu_product="AMD Instinct MI308X", rocm_version="6.3.0")
    assert (len(machine.gpus), machine.product, machine.device) == (4, "AMD Instinct MI308X", "MI308X")
    assert (machine.architecture, machine.rocm_version) == ("gfx942", "6.3.0")
    assert machine.sources["product"] == "override gpu_product"


def test_more_gpus_than_are_here_are_planned_for_and_said(bench: Bench) -> None:
    bench.mi300x(2)
    machine = bench.detect(n_gpus=8)
    assert [gpu.render_minor for gpu in machine.gpus] == [128, 129, *[None] * 6]
    assert machine.problems[0].what == "8 asked for, 2 are here"
    assert len(bench.detect(n_gpus="-1").gpus) == 2, "all that are here"


def test_gpus_that_are_added_take_the_ids_that_are_free(bench: Bench) -> None:
    first, _, last = rows(3).splitlines(keepends=True)
    bench.tool("nvidia-smi", ("*--query-gpu*", first + last), ("", TABLE))
    assert [gpu.index for gpu in bench.detect(n_gpus=4).gpus] == [0, 2, 1, 3]


def test_a_count_without_a_gpu_is_said_to_be_without_effect(bench: Bench) -> None:
    machine = bench.detect(n_gpus=8)
    assert (machine.vendor, machine.gpus) == ("CPU", ())
    assert machine.problems[0].where == "n_gpus"


@each_row(
    ("overrides", "word"),
    [
        ({"gpu_vendor": "INTEL"}, "INTEL"),
        ({"n_gpus": "many"}, "many"),
        ({"n_gpus": 0}, "0"),
        ({"n_gpus": 2.5}, "2.5"),
        ({"gpu_renderDs": ["renderD128"]}, "renderD128"),
        ({"device": "MI300X", "n_gpus": 4, "gpu_renderDs": [128, 129]}, "2 render nodes for 4"),
        ({"gpu_vendor": "AMD", "device": "MI9999X", "n_gpus": 8}, "MI9999X"),
    ],
)
def test_what_cannot_be_meant_is_refused(bench: Bench, overrides: dict[str, object], word: str) -> None:
    with pytest.raises(UsageProblem) as refused:
        bench.detect(**overrides)
    assert word in refused.value.message


@each_row(("vendor", "architecture"), [("AMD", ""), ("NVIDIA", "NVIDIA")])
def test_a_machine_may_have_gpus_of_which_the_vendor_alone_is_known(vendor, architecture):
    machine = detect_machine({"gpu_vendor": vendor, "device": vendor, "n_gpus": 8})
    assert (machine.vendor, machine.device, machine.architecture) == (vendor, vendor, architecture)
    assert len(machine.gpus) == 8 and machine.pretended and machine.problems == ()
