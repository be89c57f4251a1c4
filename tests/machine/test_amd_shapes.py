"""What AMD's tools print, version by version: each shape must come out as the same facts. All values are invented."""

from __future__ import annotations

import json

import pytest

from tests.rows import each_row

from .stand_in import Bench, amd_list, amd_static, rocm_cards

MIB = 1 << 20
WARNING = "WARNING: GpuProcess is missing the following required groups: render, video.\n"
STATIC, LIST = "*static*", "*list*"


def entry(number: object, **sections: object) -> dict[str, object]:
    asic = {"market_name": "AMD Instinct MI300X", "device_id": "0x74a1", "target_graphics_version": "gfx942"}
    return {"gpu": number, "asic": asic, "vram": {"size": {"value": 196592, "unit": "MB"}}, **sections}


@each_row(
    "static",
    [
        json.dumps([entry(0), entry(1)]),
        json.dumps({"gpu_data": [entry(0), entry(1)]}),
        json.dumps({"cpu_data": [{"cpu": 0}], "gpu_data": [entry(0), entry(1)]}, indent=4),
        json.dumps([{"cpu": 0, "smu": "N/A"}, entry(0), entry(1)], indent=2),
        f"{json.dumps([{'cpu': 0}], indent=4)}\n{json.dumps([entry(0), entry(1)], indent=4)}",
        f"{json.dumps(entry(0), indent=4)}\n{json.dumps(entry(1), indent=4)}",
        f"{WARNING}[2025-01-01] old firmware\n{json.dumps([entry(0), entry(1)])}\nAMDSMI_STATUS_NO_PERM",
        json.dumps([entry("0"), entry("1")]),
        json.dumps([entry(0, vram={"size": "196592 MB"}), entry(1, vram={"size": 196592})]),
        json.dumps([entry(0, bus="N/A", driver="N/A", board=None), entry(1)]),
        json.dumps([entry(0, board={"product_name": "Advanced Micro Devices, Inc. [AMD/ATI]"}), entry(1)]),
    ],
    ids=["list", "object", "cpus beside", "cpus among", "cpus before", "one by one", "text around", "text ids",
         "sizes as text", "sections n/a", "vendor for board"],
)  # fmt: skip
def test_amd_smi_in_every_form(bench: Bench, static: str) -> None:
    bench.tool("amd-smi", (STATIC, static), (LIST, amd_list([1, 2])))
    machine = bench.detect()
    assert [(gpu.index, gpu.product, gpu.memory_bytes) for gpu in machine.gpus] == [
        (0, "AMD Instinct MI300X", 196592 * MIB),
        (1, "AMD Instinct MI300X", 196592 * MIB),
    ]
    assert (machine.architecture, machine.device) == ("gfx942", "MI300X")


@each_row(
    ("asic", "arch", "product", "device"),
    [
        ({"market_name": "AMD Instinct MI300X VF", "device_id": "0x74b5"}, "gfx942", "AMD Instinct MI300X VF",
         "MI300X"),
        ({"market_name": "N/A", "device_id": "0x74b9"}, "gfx942", "AMD Instinct MI325X", "MI325X"),
        ({"market_name": "AMD Radeon Graphics", "device_id": "0x75b3"}, "gfx950", "AMD Instinct MI355X", "MI355X"),
        ({"market_name": "0x740f", "device_id": "0x740f"}, "gfx90a", "AMD Instinct MI210", "MI210"),
        ({"market_name": "MI308X", "device_id": 29858}, "gfx942", "MI308X", "MI308X"),
        ({"market_name": "N/A", "device_id": "30115"}, "gfx950", "AMD Instinct MI355X", "MI355X"),
        ({"market_name": "Aqua Vanjaram [Instinct MI325X]"}, "gfx942", "Aqua Vanjaram [Instinct MI325X]", "MI325X"),
        ({"market_name": "N/A", "target_graphics_version": "GFX942", "num_compute_units": "N/A"}, "gfx942", "gfx942",
         "gfx942"),
    ],
)  # fmt: skip
def test_guests_and_older_libraries_name_gpus_otherwise(
    bench: Bench, asic: dict[str, object], arch: str, product: str, device: str
) -> None:
    facts = {"gpu": 0, "asic": {"asic_serial": "0x0000000000000000", **asic}, "vram": {"size": "N/A"}}
    bench.tool(
        "amd-smi", (STATIC, json.dumps([facts])), (LIST, '[{"gpu": 0, "bdf": "0000:05:00.0", "node_id": "N/A"}]')
    )
    machine = bench.detect()
    assert (machine.architecture, machine.product, machine.device) == (arch, product, device)
    assert (machine.gpus[0].unique_id, machine.gpus[0].bus) == ("", "0000:05:00.0")


def test_a_guest_without_unique_ids_is_matched_by_address(bench: Bench) -> None:
    bench.mi300x(4, unique_id=0)
    cards = json.loads(rocm_cards(4, series_key="Card Series", name="AMD Instinct MI300X VF"))
    for number, bus in enumerate((4, 2, 1, 3)):
        cards[f"card{number}"] |= {"Unique ID": "N/A", "PCI Bus": f"0000:{bus:02X}:00.0"}
    bench.tool("rocm-smi", ("*", json.dumps(cards)))
    assert [gpu.render_minor for gpu in bench.detect().gpus] == [131, 129, 128, 130]


@each_row(
    ("said", "problem"),
    [
        ("AttributeError: 'Namespace' object has no attribute 'violation'",
         "answered without a GPU: AttributeError: 'Namespace' object has no attribute 'violation'"),
        ("[]", "answered without a GPU"),
        ("", "answered without a GPU"),
        ("GPU: 0\n    ASIC:\n        MARKET_NAME: N/A\n", "answered without a GPU: GPU: 0"),
    ],
)  # fmt: skip
def test_an_answer_without_a_gpu_is_told(bench: Bench, said: str, problem: str) -> None:
    bench.mi300x(1)
    bench.tool("amd-smi", ("*", said))
    assert [(one.where, one.what) for one in bench.detect().problems] == [("amd-smi", problem)]


def cpx(bench: Bench, cards: int = 2, parts: int = 8) -> None:
    """KFD nodes of divided MI300X, from 1: one unique id and one bus per card, the functions count the parts."""
    for number in range(cards * parts):
        card, part = divmod(number, parts)
        bench.mi300x(
            1, first=number + 1, simd_count=1216 // parts, unique_id=0xC0 + card, location_id=(5 + card << 8) + part
        )


def static_parts(cards: int, parts: int) -> str:
    """amd-smi's answer: only the first partition of a card has all its values, and names the whole card's memory."""
    full = {"market_name": "AMD Instinct MI300X", "device_id": "0x74a1", "num_compute_units": 304 // parts}
    rest = {"market_name": "N/A", "device_id": "N/A", "num_compute_units": 304 // parts}
    return json.dumps(
        [{"gpu": number, "asic": rest if number % parts else full, "vram": {"size": {"value": 196592, "unit": "MB"}}}
         for number in range(cards * parts)]
    )  # fmt: skip


@each_row("parts", [2, 4, 8], ids=["DPX", "QPX", "CPX"])
@each_row("places", ["node ids", "functions", "one address"])
def test_each_partition_has_its_own_render_node(bench: Bench, parts: int, places: str) -> None:
    cpx(bench, 2, parts)
    spots = []
    for number in range(2 * parts):
        card, part = divmod(number, parts)
        function = part if places == "functions" else 0
        node = {"node_id": number + 1} if places == "node ids" else {}
        spots.append({"gpu": number, "bdf": f"0000:{5 + card:02x}:00.{function}", "partition_id": part, **node})
    bench.tool("amd-smi", (STATIC, static_parts(2, parts)), (LIST, json.dumps(spots)))
    machine = bench.detect()
    assert [gpu.render_minor for gpu in machine.gpus] == [128 + n for n in range(2 * parts)]
    assert [gpu.index for gpu in machine.gpus] == list(range(2 * parts))
    assert {gpu.product for gpu in machine.gpus} == {"AMD Instinct MI300X"}
    assert (machine.device, machine.problems) == ("MI300X", ())


def igpu(bench: Bench, number: int) -> None:
    bench.node(number, simd_count=4, simd_per_cu=2, gfx_target_version=100306, device_id=0x164E, drm_render_minor=140)


@each_row("first", [1, 0], ids=["after", "before"])
def test_a_processors_graphics_beside_instincts_are_left_out(bench: Bench, first: int) -> None:
    """The ids of the others stay those of the tools."""
    igpu(bench, 9 * first)
    bench.mi300x(2)
    machine = bench.detect()
    assert [gpu.render_minor for gpu in machine.gpus] == [128, 129]
    assert [gpu.index for gpu in machine.gpus] == ([0, 1] if first else [1, 2])
    assert (machine.architecture, machine.device) == ("gfx942", "MI300X")
    left_out = f"left out as no Instinct: GPU {2 if first else 0} (gfx1036)"
    assert [problem.what for problem in machine.problems] == [left_out]


def test_graphics_alone_are_a_gpu(bench: Bench) -> None:
    igpu(bench, 1)
    assert (bench.detect().architecture, bench.detect().problems) == ("gfx1036", ())


def test_amd_smi_of_a_virtualisation_host_lists_what_no_one_can_use(bench: Bench) -> None:
    from madlite.errors import CheckFailed

    host = [{"gpu": 0, "bdf": "0000:0c:00.0", "uuid": "ab", "vfs": [{"vf": 0, "bdf": "0000:0c:02.0"}]}]
    bench.tool("amd-smi", ("*", json.dumps(host)))
    with pytest.raises(CheckFailed, match=r"amd-smi lists 1 without naming them.*rocm-smi: not installed"):
        bench.detect()


def test_a_driver_under_its_older_key_with_a_kernels_banner(bench: Bench) -> None:
    banner = "Linuxversion6.14.3-7-generic(buildd@host)(x86_64-linux-gnu-gcc-13(Ubuntu13.3.0)13.3.0)#7-UbuntuSMP"
    static = json.loads(amd_static([0], wrapped=False))
    static[0]["driver"] = {"driver_name": "amdgpu", "driver_version": banner}
    bench.tool("amd-smi", (STATIC, json.dumps(static)), (LIST, amd_list([1])))
    assert bench.detect().driver_version == "6.14.3-7-generic"
