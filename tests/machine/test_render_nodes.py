"""From the ids of GPUs to the device files that a container is given."""

from __future__ import annotations

from madlite.plan.container import make_devices
from madlite.plan.place import expand_ids
from tests.rows import each_row

from .stand_in import Bench, amd_list, amd_static

ALWAYS = ("/dev/fuse", "/dev/kfd")


def devices(bench: Bench, ids: str, **overrides: object) -> list[str]:
    found = make_devices(bench.detect(**overrides), expand_ids(ids))
    assert found[:2] == ALWAYS
    return [path.removeprefix("/dev/dri/renderD") for path in found[2:]]


def eight(bench: Bench) -> None:
    """GPUs whose render nodes have holes, on nodes that amd-smi counts from the back."""
    for node, minor in enumerate((128, 136, 137, 150, 152, 168, 190, 191), start=1):
        bench.mi300x(1, first=node, drm_render_minor=minor)
    bench.tool("amd-smi", ("*static*", amd_static(list(range(8)))), ("*list*", amd_list(list(range(8, 0, -1)))))


@each_row(
    ("ids", "minors"),
    [
        ("0-7", ["191", "190", "168", "152", "150", "137", "136", "128"]),
        ("0", ["191"]),
        ("2,5-6", ["168", "137", "136"]),
        ("7", ["128"]),
    ],
)
def test_holes_and_order_among_the_render_nodes(bench: Bench, ids: str, minors: list[str]) -> None:
    eight(bench)
    assert devices(bench, ids) == minors
    assert bench.detect().problems == ()


def test_a_context_names_them_by_id(bench: Bench) -> None:
    eight(bench)
    assert devices(bench, "1,3", gpu_renderDs=[200, 201, 202, 203, 204, 205, 206, 207]) == ["201", "203"]


def test_a_subset_with_graphics_left_out_keeps_the_tools_ids(bench: Bench) -> None:
    bench.node(0, simd_count=4, simd_per_cu=2, gfx_target_version=100306, drm_render_minor=128)
    bench.mi300x(3, first=2)
    assert devices(bench, "1,3") == ["129", "131"]


def test_without_kfd_sysfs_tells_them_by_address(bench: Bench) -> None:
    bench.tool("amd-smi", ("*static*", amd_static([0, 1])), ("*list*", amd_list([1, 2])))
    for bus, minor in (("0000:10:00.0", 144), ("0000:11:00.0", 131)):
        bench.file(f"sys/bus/pci/devices/{bus}/drm/card1/dev")
        bench.file(f"sys/bus/pci/devices/{bus}/drm/renderD{minor}/dev")
        bench.file(f"dev/dri/renderD{minor}")
    assert devices(bench, "0-1") == ["144", "131"]
    assert bench.detect().sources["render_minor"] == "/sys/bus/pci/devices"
    assert bench.detect().problems == ()


def test_a_node_that_is_not_there_is_told(bench: Bench) -> None:
    bench.mi300x(4)
    for minor in (129, 131):
        (bench.root / f"dev/dri/renderD{minor}").unlink()
    assert [(problem.where, problem.what) for problem in bench.detect().problems] == [
        ("/dev/dri", "has no renderD129, renderD131")
    ]
    bench.file("dev/dri/renderD160")
    assert bench.detect(gpu_renderDs=[160]).problems == ()
