from __future__ import annotations

import json

import pytest

from tests.rows import each_row

from .stand_in import GIB, Bench, amd_list, amd_static, rocm_cards

EIGHT = list(range(8))


@each_row("wrapped", [True, False], ids=["object", "list"])
def test_eight_mi300x_by_amd_smi_alone(bench: Bench, wrapped: bool) -> None:
    bench.tool("amd-smi", ("*static*", amd_static(EIGHT, wrapped=wrapped)), ("*list*", amd_list(EIGHT)))
    machine = bench.detect()
    assert (machine.vendor, machine.architecture, machine.device) == ("AMD", "gfx942", "MI300X")
    assert machine.product == "AMD Instinct MI300X"
    assert [gpu.index for gpu in machine.gpus] == EIGHT
    assert {gpu.memory_bytes for gpu in machine.gpus} == {196592 << 20}
    assert machine.gpus[3].bus == "0000:13:00.0"
    assert machine.driver_version == "6.12.12"
    assert machine.sources["architecture"] == "amd-smi"
    assert machine.problems == ()


def test_kfd_gives_render_nodes_in_the_order_of_amd_smis_ids(bench: Bench) -> None:
    bench.node(0)
    bench.mi300x(4)
    bench.tool("amd-smi", ("*static*", amd_static([0, 1, 2, 3])), ("*list*", amd_list([3, 1, 4, 2])))
    machine = bench.detect()
    assert [gpu.render_minor for gpu in machine.gpus] == [130, 128, 131, 129]
    assert [gpu.bus for gpu in machine.gpus] == ["0000:03:00.0", "0000:01:00.0", "0000:04:00.0", "0000:02:00.0"]
    assert machine.sources["architecture"] == "KFD"
    assert machine.sources["product"] == "amd-smi"


def test_older_rocm_is_matched_to_kfd_by_unique_id(bench: Bench) -> None:
    bench.mi300x(2)
    cards = json.loads(rocm_cards(2, series_key="Card series", name="AMD Instinct MI300X"))
    cards["card0"]["Unique ID"], cards["card1"]["Unique ID"] = "0xa102", "0xa101"
    bench.tool("rocm-smi", ("*", json.dumps(cards)))
    assert [gpu.render_minor for gpu in bench.detect().gpus] == [129, 128]


def test_memory_tells_an_unnamed_mi325x(bench: Bench) -> None:
    static = amd_static(EIGHT, name="N/A", id="N/A", mb=262128)
    bench.tool("amd-smi", ("*static*", static), ("*list*", amd_list(EIGHT)))
    machine = bench.detect()
    assert (machine.device, machine.product) == ("MI325X", "AMD Instinct MI325X")
    assert machine.sources["product"] == "table of products"


@each_row(
    ("name", "device"), [("AMD Instinct MI350X VF", "MI350X"), ("AMD Instinct MI355X VF", "MI355X"), ("N/A", "gfx950")]
)
def test_gfx950_is_told_apart_by_name(bench: Bench, name: str, device: str) -> None:
    static = amd_static(EIGHT, name=name, arch="gfx950", id="N/A", mb=294896, units=256)
    bench.tool("amd-smi", ("*static*", static), ("*list*", amd_list(EIGHT)))
    assert bench.detect().device == device


@each_row("key", ["Card series", "Card Series"])
def test_rocm_smi_alone_in_both_spellings(bench: Bench, key: str) -> None:
    bench.tool("rocm-smi", ("*--json*", "WARNING: low power state\n\n" + rocm_cards(4, series_key=key)))
    machine = bench.detect()
    assert (len(machine.gpus), machine.architecture, machine.device) == (4, "gfx942", "MI325X")
    assert machine.gpus[2].memory_bytes == 255 * GIB + 900 * (1 << 20)
    assert machine.gpus[2].bus == "0000:42:00.0"
    assert machine.driver_version == "6.8.5"


def test_rocm_smis_decimal_stepping_is_gfx90a(bench: Bench) -> None:
    cards = rocm_cards(1, series_key="Card Series", name="AMD INSTINCT MI200 (MCM) OAM", gfx="gfx9010")
    bench.tool("rocm-smi", ("*", cards.replace("0x74a5", "0x7408")))
    machine = bench.detect()
    assert (machine.architecture, machine.device) == ("gfx90a", "MI250X")


def test_kfd_alone_names_the_product_by_its_device_id(bench: Bench) -> None:
    bench.node(0)
    bench.node(1)
    bench.mi300x(2, first=9)
    bench.mi300x(2, first=11)  # sorted as numbers: 9, 10, 11, 12
    machine = bench.detect()
    assert [gpu.render_minor for gpu in machine.gpus] == [136, 137, 138, 139]
    assert (machine.product, machine.device) == ("AMD Instinct MI300X", "MI300X")
    assert machine.gpus[0].memory_bytes == 192 * GIB - (16 << 20)
    assert machine.gpus[0].unique_id == "000000000000a109"
    assert machine.problems == ()


@each_row(("version", "arch"), [(90402, "gfx942"), (90010, "gfx90a"), (90500, "gfx950"), (110001, "gfx1101")])
def test_kfds_target_version_is_decimal_pairs(bench: Bench, version: int, arch: str) -> None:
    bench.mi300x(1, gfx_target_version=version)
    assert bench.detect().architecture == arch


@each_row(("simds", "device"), [(440, "MI250X"), (416, "MI250")])
def test_one_device_id_of_two_products_is_told_apart_by_compute_units(bench: Bench, simds: int, device: str) -> None:
    bench.mi300x(2, gfx_target_version=90010, device_id=0x740C, simd_count=simds)
    assert bench.detect().device == device


def test_each_partition_of_a_divided_mi300x_is_a_gpu_with_its_own_render_node(bench: Bench) -> None:
    for node in range(16):
        numbers = {"simd_count": 152, "gfx_target_version": 90402, "device_id": 0x74A1, "drm_render_minor": 128 + node}
        whose = {"unique_id": 0xC0 + node // 8, "location_id": (5 + node // 8 << 8) + node % 8}
        bench.node(node + 2, banks=((1, 24 * GIB),), **numbers, **whose)
    bench.tool("amd-smi", ("*static*", amd_static([0, 1])), ("*list*", "[]"))
    machine = bench.detect()
    assert [gpu.render_minor for gpu in machine.gpus] == list(range(128, 144))
    assert [gpu.bus for gpu in machine.gpus][7:9] == ["0000:05:00.7", "0000:06:00.0"]
    assert len({gpu.unique_id for gpu in machine.gpus}) == 2
    assert machine.device == "MI300X"
    assert {gpu.memory_bytes for gpu in machine.gpus} == {24 * GIB}


HALF = amd_static(EIGHT)[:900]


@each_row(
    "text", ["", "\udcff\udcfe\udc90\x00\x01[[[{\udc80" * 50, "[" * 5000, HALF, "{}", "[]", "N/A", '[1, {"gpu": "x"}]'],
    ids=["empty", "noise", "deep", "half", "object", "list", "n/a", "wrong types"],
)  # fmt: skip
def test_an_answer_that_is_none_leads_to_the_next_tool(bench: Bench, text: str) -> None:
    bench.tool("amd-smi", ("*", text))
    bench.tool("rocm-smi", ("*", rocm_cards(2, series_key="Card Series")))
    machine = bench.detect()
    assert (len(machine.gpus), machine.device, machine.sources["product"]) == (2, "MI325X", "rocm-smi")
    assert {problem.where for problem in machine.problems} == {"amd-smi"}
    bench.tool("rocm-smi", ("*", text))
    bench.mi300x(2)
    machine = bench.detect()
    assert (len(machine.gpus), machine.device, machine.sources["product"]) == (2, "MI300X", "table of products")
    assert {problem.where for problem in machine.problems} == {"amd-smi", "rocm-smi"}


def test_na_everywhere_is_filled_from_the_next_tool(bench: Bench) -> None:
    static = amd_static([0, 1], name="N/A", arch="N/A", id="N/A", mb=None, driver="N/A", units="N/A")
    bench.tool("amd-smi", ("*static*", static), ("*list*", amd_list(["N/A", "N/A"])))
    bench.tool("rocm-smi", ("*", rocm_cards(2, series_key="Card Series")))
    machine = bench.detect()
    assert (len(machine.gpus), machine.architecture, machine.device) == (2, "gfx942", "MI325X")
    assert machine.driver_version == "6.8.5"


@pytest.mark.host
def test_a_hanging_tool_is_named_and_another_ones_answer_used(bench: Bench) -> None:
    bench.limit_s = 5.0  # the other one answers within it on a busy machine, too
    bench.script("amd-smi", f'echo "$*" >> "{bench.folder}/calls"; sleep 60 & sleep 60')
    bench.tool("rocm-smi", ("*", rocm_cards(8, series_key="Card Series")))
    machine = bench.detect()
    assert (len(machine.gpus), machine.device) == (8, "MI325X")
    assert [(problem.where, problem.what) for problem in machine.problems] == [("amd-smi", "did not end within 5 s")]
    calls = (bench.folder / "calls").read_text().splitlines()
    assert sorted(calls) == ["list --json", "static --json"]  # both at once, and none after them


def test_a_failing_tool_is_named_with_what_it_said(bench: Bench) -> None:
    bench.mi300x(1)
    bench.script("amd-smi", "echo 'Traceback' >&2; echo \"ModuleNotFoundError: No module named 'amdsmi'\" >&2; exit 1")
    machine = bench.detect()
    assert machine.device == "MI300X"
    assert machine.problems[0].what == "exit code 1: ModuleNotFoundError: No module named 'amdsmi'"


def test_tools_are_not_told_which_gpus_a_shell_hides(bench: Bench) -> None:
    (bench.folder / "all").write_text(rocm_cards(2, series_key="Card Series"))
    bench.script("rocm-smi", f'[ -z "$ROCR_VISIBLE_DEVICES" ] && cat "{bench.folder}/all"')
    bench.env = {"ROCR_VISIBLE_DEVICES": "0"}
    assert len(bench.detect().gpus) == 2
