"""The GPUs madlite knows by name.

AMD's PCI device ids follow the node labels of ROCm's GPU operator (virtual functions included), memory is what one
device shows to a workload: MI250X, MI250 are two devices per module. NVIDIA's names and sizes are nvidia-smi's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import msgspec

from madlite.machine.sources.base import GIB, GpuFacts
from madlite.model import Gpu, Machine, Value, Vendor

# What a run's GPUs can do at most, by number format: madlite's own table, peaks.toml, never a guess.

TABLE = Path(__file__).with_name("peaks.toml")
FORMATS = ("BF16", "FP16", "FP8", "MXFP8", "MXFP4", "TF32", "FP32")
UNKNOWN_GPU_TFLOPS = 312.0  # A100's, by which torchtitan counts the MFU of a GPU that it does not know
_PART = 0.7  # of the memory: a driver keeps less to itself, and a part of a GPU has half of it at most
# A product of its own, as AMD's drivers spell it out; MI200 and MI300 are families, which name no product.
_NAMED = re.compile(r"MI\d{3}", re.IGNORECASE)
_FAMILY = re.compile(r"\bMI[234]00\b", re.IGNORECASE)


class GpuPeaks(Value, frozen=True):
    """A line of the table: `product` is a pattern of its name, `tflops` the dense peak by number format."""

    name: str
    product: str
    memory_gib: float
    tflops: dict[str, float]
    source: str


class Peak(Value, frozen=True):
    """The dense peak of one device in TFLOP/s; `of` says whose and in which number format."""

    tflops: float
    of: str
    source: str


@cache
def gpu_peaks() -> tuple[GpuPeaks, ...]:
    """Return the table."""
    import tomli

    lines = tomli.loads(TABLE.read_text(encoding="utf-8"))["gpu"]
    tables = [{**line, "tflops": {key: line[key] for key in FORMATS if key in line}} for line in lines]
    return msgspec.convert(tables, tuple[GpuPeaks, ...])


def find_peak(machine: Machine, gpu_ids: Iterable[int], precision: str) -> Peak | str:
    """Return the peak of each of a run's GPUs in a number format, or why there is none."""
    used = [gpu for gpu in machine.gpus if gpu.index in set(gpu_ids)]
    if not used:
        return "a CPU has no peak here"
    found = [_entry_of(gpu, machine) for gpu in used]
    entry = found[0]
    if any(other != entry for other in found):
        return "its GPUs are not all of one kind"
    if entry is None:
        return f"no peak is known of {used[0].product or machine.product or machine.device}"
    if part := _part(used, machine, entry):
        return part
    number_format = precision.upper()
    if number_format not in entry.tflops:
        return f"no peak of {entry.name} is known in {precision or 'an unnamed number format'}"
    return Peak(tflops=entry.tflops[number_format], of=f"{entry.name} {number_format}", source=entry.source)


def possible_peaks(machine: Machine | None) -> tuple[float, ...]:
    """Return the dense peaks in TFLOP/s by which a trainer may count its MFU: of a machine's GPU, else of all.

    Those of its matrix units: by that of FP32 no trainer counts.
    """
    entry = _entry_of(machine.gpus[0], machine) if machine is not None and machine.gpus else None
    of_gpu = [entry] if entry is not None else gpu_peaks()
    peaks = (peak for item in of_gpu for number_format, peak in item.tflops.items() if number_format != "FP32")
    return (*peaks, UNKNOWN_GPU_TFLOPS)


def _entry_of(gpu: Gpu, machine: Machine) -> GpuPeaks | None:
    """Return the line of a GPU's product; where a driver does not report which AMD GPU it is, of the machine's device.

    One name stands for MI250X and MI250.  A product that a driver names and the table lacks has no line, whatever
    else it looks like.
    """
    named = _lines(gpu.product)
    if len(named) == 1 or machine.vendor != "AMD":
        return named[0] if named else None
    if not named and _NAMED.search(_FAMILY.sub("", gpu.product)):
        return None
    of_device = _lines(machine.device)
    return of_device[0] if len(of_device) == 1 and (not named or of_device[0] in named) else None


def _lines(name: str) -> list[GpuPeaks]:
    """Return the lines whose patterns are in a name: NVIDIA's first alone, for its special ones come first."""
    found = [peak for peak in gpu_peaks() if re.search(peak.product, name, re.IGNORECASE)]
    return found if all(_NAMED.match(item.name) for item in found) else found[:1]


def _part(used: list[Gpu], machine: Machine, entry: GpuPeaks) -> str:
    """Return that a device is a part of a GPU: a MIG instance, or a partition such as CPX; "" of whole ones."""
    least = min((gpu.memory_bytes for gpu in used if gpu.memory_bytes), default=None)
    # partitions are a device's functions, 0c:00.0 and 0c:00.1; those that the run has not got report them too
    slots = [_slot(gpu) for gpu in machine.gpus]
    if least is not None and least < _PART * entry.memory_gib * GIB:
        return f"a device with {least / GIB:.0f} GiB is a part of {entry.name}'s {entry.memory_gib:g}"
    shared = any(_slot(gpu) and slots.count(_slot(gpu)) > 1 for gpu in used)
    if shared or any("MIG " in gpu.product for gpu in used):
        return f"its devices are parts of {entry.name}"
    return ""


def _slot(gpu: Gpu) -> str:
    """Return where a GPU sits, without its function; "" where that is not known."""
    return gpu.bus.rpartition(".")[0] or gpu.bus


class Product(Value, frozen=True):
    """A GPU on the market; `compute_units` of one device, all partitions together."""

    device: str
    vendor: Vendor
    name: str
    memory_mib: int
    arch: str = ""  # AMD only: NVIDIA's architecture is the name
    device_ids: tuple[int, ...] = ()
    compute_units: int | None = None


def _amd(device: str, arch: str, memory_gib: int, compute_units: int, *device_ids: int) -> Product:
    return Product(
        device=device,
        vendor="AMD",
        name=f"AMD Instinct {device}",
        memory_mib=memory_gib << 10,
        arch=arch,
        device_ids=device_ids,
        compute_units=compute_units,
    )


def _nvidia(device: str, name: str, memory_mib: int) -> Product:
    return Product(device=device, vendor="NVIDIA", name=name, memory_mib=memory_mib)


PRODUCTS = (
    _amd("MI300X", "gfx942", 192, 304, 0x74A1, 0x74A9, 0x74B5, 0x74BD),
    _amd("MI325X", "gfx942", 256, 304, 0x74A5, 0x74B9),
    _amd("MI350X", "gfx950", 288, 256, 0x75A0, 0x75B0),
    _amd("MI355X", "gfx950", 288, 256, 0x75A3, 0x75B3),
    _amd("MI300A", "gfx942", 128, 228, 0x74A0),
    _amd("MI308X", "gfx942", 192, 80, 0x74A2, 0x74A8, 0x74B6),
    _amd("MI250X", "gfx90a", 64, 110, 0x7408, 0x740C),
    _amd("MI250", "gfx90a", 64, 104, 0x740C),
    _amd("MI210", "gfx90a", 64, 104, 0x740F, 0x7410),
    _amd("MI100", "gfx908", 32, 120, 0x738C, 0x738E),
    _nvidia("H100", "NVIDIA H100 80GB HBM3", 81559),
    _nvidia("H200", "NVIDIA H200", 143771),
    _nvidia("B200", "NVIDIA B200", 183359),
    _nvidia("A100", "NVIDIA A100-SXM4-80GB", 81920),
)
INSTINCT_IDS = frozenset(number for product in PRODUCTS for number in product.device_ids)
INSTINCT_ARCHS = frozenset(product.arch for product in PRODUCTS if product.arch)

# MI308X has MI300X's memory but is always known by its name or id; two gfx950 products have the same memory.
BY_MEMORY_GIB = {("gfx942", 192): "MI300X", ("gfx942", 256): "MI325X", ("gfx942", 128): "MI300A"}
AMD_NAME = re.compile(r"\bMI\d{2,3}[AX]?\b", re.IGNORECASE)
NVIDIA_NAME = re.compile(r"\b(?:(?:RTX|GTX)(?: PRO)? \w*\d+\w*|(?:GH|GB|[ABHLPTV])\d{1,4}[A-Z]?)\b")


def find_product(name: str) -> Product | None:
    """Return the product whose short name is this, or the only one a longer name holds."""
    named = _named(name)
    return named[0] if len(named) == 1 else None


def is_vendor(name: str) -> bool:
    """Return whether a text names a vendor of GPUs and no GPU: which one it is is not known."""
    return name in ("AMD", "NVIDIA")


def short_name(gpu: GpuFacts, vendor: Vendor) -> str:
    """Return MI300X, H100, … for a GPU, its architecture or full name where that is all that is known."""
    if vendor == "NVIDIA":
        found = NVIDIA_NAME.search(gpu.product)
        return found[0] if found else gpu.product
    for candidates in (_named(gpu.product), [item for item in PRODUCTS if gpu.device_id in item.device_ids]):
        narrowed = [candidate for candidate in candidates if candidate.compute_units == gpu.compute_units]
        for only in (candidates, narrowed):
            if len(only) == 1:
                return only[0].device
    unlisted = {item.upper() for item in AMD_NAME.findall(gpu.product)} - {item.device for item in PRODUCTS}
    # the driver keeps a few MiB to itself, hence rounded
    by_memory = BY_MEMORY_GIB.get((gpu.arch, round((gpu.memory_bytes or 0) / GIB)), "")
    return by_memory or (unlisted.pop() if len(unlisted) == 1 else gpu.arch)


def complete(gpu: GpuFacts) -> GpuFacts:
    """Return an AMD GPU with the architecture and product name of the table, where it has none.

    A driver library older than the GPU names it AMD Radeon Graphics; that is no name for an Instinct.
    """
    by_id = [product for product in PRODUCTS if gpu.device_id in product.device_ids]
    listed = find_product(short_name(gpu, "AMD"))
    arch = gpu.arch or next((product.arch for product in (listed, *by_id) if product), "")
    named = gpu.product if "instinct" in gpu.product.lower() or AMD_NAME.search(gpu.product) else ""
    product = named or (listed.name if listed else gpu.product)
    return msgspec.structs.replace(gpu, arch=arch, product=product)


def is_instinct(gpu: GpuFacts) -> bool:
    """Return whether this is an AMD compute GPU, not a display adapter that can compute."""
    return gpu.device_id in INSTINCT_IDS or gpu.arch in INSTINCT_ARCHS


def _named(name: str) -> list[Product]:
    words = {word.upper() for word in AMD_NAME.findall(name)} or {name.strip().upper(), *NVIDIA_NAME.findall(name)}
    return [product for product in PRODUCTS if product.device in words]
