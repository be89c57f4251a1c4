"""The readings that all sources share, form by form."""

from __future__ import annotations

from madlite.machine.sources.base import (
    bus_id,
    clean,
    find_json,
    gfx_name,
    parse_int,
    pci_id,
    product_name,
    short_version,
    size_bytes,
    unique_hex,
)
from tests.rows import each_row

MIB, GIB = 1 << 20, 1 << 30


@each_row(
    "nothing",
    ["", "N/A", "n/a ", "[N/A]", "[Not Supported]", "[GPU requires reset]", "N/A (Secondary die)", "None", "Unknown",
     "UNKNOWN", "ERR!", "AMDSMI_STATUS_NOT_SUPPORTED - Feature not supported", "Not supported on the given system",
     None, [], {}],
)  # fmt: skip
def test_every_way_of_saying_nothing(nothing: object) -> None:
    assert clean(nothing) == ""
    assert (parse_int(nothing), size_bytes(nothing), pci_id(nothing)) == (None, None, None)
    assert (unique_hex(nothing), bus_id(nothing), gfx_name(nothing), short_version(nothing)) == ("", "", "", "")


@each_row(
    ("value", "size"),
    [
        ({"value": 196592, "unit": "MB"}, 196592 * MIB),
        ({"value": "192", "unit": "GB"}, 192 * GIB),
        ({"value": "N/A", "unit": "MB"}, None),
        ("192 GB", 192 * GIB),
        ("287.5 GiB", 575 * GIB // 2),
        ("81559 MiB", 81559 * MIB),
        ("16G", 16 * GIB),
        ("206141652992 B", 206141652992),
        ("0.25 TB", 256 * GIB),
        (64512, 64512 * MIB),
        (0, None),
        ("a lot", None),
        ("9" * 5000, None),
    ],
)
def test_sizes(value: object, size: int | None) -> None:
    assert size_bytes(value) == size


@each_row(
    ("value", "device"),
    [*((value, 0x74B5) for value in ("0x74b5", "74b5", "74B5", 29877, "29877", {"value": 29877})), ("7408", 0x7408)],
)
def test_device_ids_are_hexadecimal_or_decimal(value: object, device: int) -> None:
    assert pci_id(value) == device


@each_row(
    ("value", "unique"),
    [
        ("0xC0FFEE0000000001", "c0ffee0000000001"),
        ("GPU-c0ffee0000000001", "c0ffee0000000001"),
        (13907095858110791681, "c0ffee0000000001"),
        ("13907095858110791681", "c0ffee0000000001"),
        ("0xa102", "000000000000a102"),
        ("GPU-XX", ""),
        ("0x0", ""),
        ("0000000000000000", ""),
        (0, ""),
        (-1, ""),
        (True, ""),
    ],
)
def test_unique_ids_are_the_same_number_in_every_form(value: object, unique: str) -> None:
    assert unique_hex(value) == unique


@each_row(
    ("value", "bus"),
    [
        ("0000:C1:00.0", "0000:c1:00.0"),
        ("00000000:1B:00.0", "0000:1b:00.0"),
        ("00010000:1B:00.7", "10000:1b:00.7"),
        ("c1:00.0", ""),
    ],
)
def test_addresses_are_as_sysfs_writes_them(value: str, bus: str) -> None:
    assert bus_id(value) == bus


@each_row(
    ("value", "arch"),
    [
        ("gfx942", "gfx942"),
        ("GFX950", "gfx950"),
        ("amdgcn-amd-amdhsa--gfx90a:sramecc+:xnack-", "gfx90a"),
        ("gfx9010", "gfx90a"),
        ("gfx9012", "gfx90c"),
        ("gfx1010", "gfx1010"),
        ("gfx1201", "gfx1201"),
    ],
)
def test_architectures(value: str, arch: str) -> None:
    assert gfx_name(value) == arch


@each_row(
    ("value", "version"),
    [
        ("6.12.12", "6.12.12"),
        ("Linux version 6.5.0-14-generic (builder@host) (gcc-12 (Ubuntu 12.3.0) 12.3.0)", "6.5.0-14-generic"),
        ("Linuxversion5.14.0-503.el9.x86_64(builder@host)(gcc(GCC)11.5.0)", "5.14.0-503.el9.x86_64"),
        ("no number", ""),
    ],
)
def test_a_driver_version_can_be_a_kernels_banner(value: str, version: str) -> None:
    assert short_version(value) == version


@each_row("value", ["0x74a1", "Advanced Micro Devices, Inc. [AMD/ATI]", "N/A", None])
def test_what_stands_in_a_products_place_is_no_product(value: object) -> None:
    assert product_name(value) == ""


@each_row(
    ("text", "documents"),
    [
        ('{"a": 1}', [{"a": 1}]),
        ("[warning] old driver\n[{}]\nafter", [[{}]]),
        ('[]\n{\n  "b": [\n    2\n  ]\n}\n[3]\n', [[], {"b": [2]}, [3]]),
        ('[\n  {"gpu": 0},\n  {"gpu": 1', []),  # cut off: its parts are no answer
        ('[\n{"gpu": 0},\n{"gpu": 1}\n]', [[{"gpu": 0}, {"gpu": 1}]]),
        ("plain", []),
    ],
)
def test_documents_among_text(text: str, documents: list[object]) -> None:
    assert find_json(text) == documents
