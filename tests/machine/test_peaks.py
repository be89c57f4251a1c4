"""Peaks of GPUs: by their products' names, never a guess."""

from __future__ import annotations

import pytest

from madlite.machine.products import FORMATS, PRODUCTS, Peak, find_peak, gpu_peaks
from madlite.model import Gpu, Machine, Vendor
from tests.rows import each_row

GIB = 1 << 30


def machine(*products: str, memory_gib: float | None = None, vendor: Vendor = "NVIDIA", device: str = "") -> Machine:
    memory = None if memory_gib is None else int(memory_gib * GIB)
    gpus = tuple(Gpu(index=n, product=product, memory_bytes=memory) for n, product in enumerate(products))
    return Machine(vendor=vendor, gpus=gpus, product=products[0], device=device)


def peak(here: Machine, precision: str = "BF16") -> Peak | str:
    return find_peak(here, [gpu.index for gpu in here.gpus], precision)


@each_row(
    ("product", "memory_gib", "of", "tflops"),
    [
        ("NVIDIA H100 80GB HBM3", 79.6, "H100 BF16", 989.4),
        ("NVIDIA H100 NVL", 93.6, "H100 NVL BF16", 835.5),
        ("NVIDIA H100 PCIe", 79.6, "H100 PCIe BF16", 756.0),
        ("NVIDIA H200", 140.4, "H200 BF16", 989.4),
        ("NVIDIA H200 NVL", 140.4, "H200 NVL BF16", 835.5),
        ("NVIDIA B200", 179.1, "B200 BF16", 2250.0),
        ("NVIDIA A100-SXM4-80GB", 80.0, "A100 BF16", 312.0),
        ("NVIDIA A100-PCIE-40GB", 40.0, "A100 BF16", 312.0),
        ("AMD Instinct MI300X", 192.0, "MI300X BF16", 1307.4),
        ("AMD Instinct MI325X OAM", 256.0, "MI325X BF16", 1307.4),
        ("AMD Instinct MI355X", 288.0, "MI355X BF16", 2516.6),
        ("AMD Instinct MI300X VF", 191.7, "MI300X BF16", 1307.4),
        ("AMD Instinct MI250X", 64.0, "MI250X BF16", 191.5),
    ],
)
def test_a_product_has_its_own_peak(product, memory_gib, of, tflops):
    found = peak(machine(product, product, memory_gib=memory_gib))
    assert (found.of, found.tflops) == (of, tflops)
    assert "data sheet" in found.source or "white paper" in found.source


@each_row(
    "product",
    ["NVIDIA H100", "NVIDIA H20", "NVIDIA H800", "NVIDIA GB200", "NVIDIA GeForce RTX 4090", "AMD Instinct MI308X", ""]
    + ["NVIDIA H100 64GB HBM2", "NVIDIA A800-SXM4-80GB", "NVIDIA L40", "AMD Instinct MI300X HF"],
)
def test_a_product_that_is_not_known_for_sure_has_none(product):
    text = peak(machine(product, device="gfx942"))
    assert isinstance(text, str) and text.startswith("no peak is known of ")


def test_a_gpu_that_its_driver_does_not_name_goes_by_the_device_that_was_found():
    found = peak(machine("AMD Radeon Graphics", memory_gib=192, vendor="AMD", device="MI300X"))
    assert found.of == "MI300X BF16"


@each_row(
    ("product", "device", "of"),
    [
        ("AMD Instinct MI250X / MI250", "MI250X", "MI250X BF16"),
        ("AMD Instinct MI250X/MI250", "MI250", "MI250 BF16"),
        ("AMD INSTINCT MI200 (MCM) OAM LC MBA HPE C2", "MI250X", "MI250X BF16"),
    ],
)
def test_a_name_of_two_products_or_of_a_family_goes_by_the_device(product, device, of):
    assert peak(machine(product, memory_gib=64, vendor="AMD", device=device)).of == of


@each_row("device", ["gfx90a", "MI300X"])
def test_a_name_of_two_products_has_no_peak_where_the_device_does_not_say_which(device):
    text = peak(machine("AMD Instinct MI250X / MI250", memory_gib=64, vendor="AMD", device=device))
    assert text == "no peak is known of AMD Instinct MI250X / MI250"


@each_row("product", ["AMD Instinct MI308X", "AMD Instinct MI309XHF", "AMD Instinct MI300X HF"])
def test_a_named_gpu_without_a_line_never_goes_by_what_its_memory_looks_like(product):
    text = peak(machine(product, memory_gib=192, vendor="AMD", device="MI300X"))
    assert text == f"no peak is known of {product}"


@each_row(
    ("product", "memory_gib"),
    [("AMD Instinct MI300X", 24), ("AMD Instinct MI300X", 96), ("NVIDIA H100 80GB HBM3", 9.75)]
    + [("NVIDIA A100-SXM4-80GB MIG 3g.40gb", 39.5)],
)
def test_a_part_of_a_gpu_has_none(product, memory_gib):
    assert "part of" in peak(machine(product, memory_gib=memory_gib))


def test_devices_of_one_bus_functions_of_one_device_and_mig_instances_are_parts():
    gpus = tuple(Gpu(index=n, product="AMD Instinct MI300X", bus="0000:05:00.0") for n in range(8))
    assert peak(Machine(vendor="AMD", gpus=gpus)) == "its devices are parts of MI300X"
    assert find_peak(Machine(vendor="AMD", gpus=gpus), [3], "BF16") == "its devices are parts of MI300X"
    gpus = tuple(Gpu(index=n, product="AMD Instinct MI300X", bus=f"0000:{n // 4:02x}:00.{n % 4}") for n in range(8))
    assert find_peak(Machine(vendor="AMD", gpus=gpus), [4], "BF16") == "its devices are parts of MI300X"
    whole = tuple(Gpu(index=n, product="AMD Instinct MI300X", bus=f"0000:{n:02x}:00.0") for n in range(8))
    assert peak(Machine(vendor="AMD", gpus=whole)).of == "MI300X BF16"
    assert peak(machine("NVIDIA H200 MIG 1g.18gb")) == "its devices are parts of H200"


def test_a_cpu_a_mixed_machine_and_a_format_without_a_published_peak_have_none():
    here = machine("NVIDIA H200", "NVIDIA H100 80GB HBM3")
    assert peak(here) == "its GPUs are not all of one kind"
    assert find_peak(here, [1], "BF16").of == "H100 BF16"
    assert peak(machine("NVIDIA A100-SXM4-80GB"), "FP8") == "no peak of A100 is known in FP8"
    assert peak(machine("AMD Instinct MI300X"), "MXFP8") == "no peak of MI300X is known in MXFP8"
    assert peak(machine("NVIDIA H200"), "") == "no peak of H200 is known in an unnamed number format"
    assert peak(machine("AMD Instinct MI355X"), "mxfp4").tflops == 10066.3
    assert peak(Machine()) == "a CPU has no peak here"


def test_every_line_has_a_source_and_the_memory_of_its_product():
    memory = {product.device: product.memory_mib / 1024 for product in PRODUCTS}
    for one in gpu_peaks():
        assert one.source and set(one.tflops) <= set(FORMATS) and one.tflops["BF16"] > 0
        if one.name in memory and one.name != "A100":
            assert one.memory_gib == pytest.approx(memory[one.name], rel=0.02)


def test_formats_of_fewer_bits_are_quicker():
    for one in gpu_peaks():
        for slow, quick in (("FP32", "TF32"), ("TF32", "BF16"), ("BF16", "FP8"), ("FP8", "MXFP8"), ("MXFP8", "MXFP4")):
            if slow in one.tflops and quick in one.tflops:
                assert one.tflops[slow] <= one.tflops[quick], one.name
