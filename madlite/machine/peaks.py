"""What a run's GPUs can do at most, by number format: madlite's own table, peaks.toml, never a guess."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import msgspec

from madlite.machine.sources.base import GIB
from madlite.model import Gpu, Machine, Value

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
    peaks = (peak for one in of_gpu for number_format, peak in one.tflops.items() if number_format != "FP32")
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
    found = [one for one in gpu_peaks() if re.search(one.product, name, re.IGNORECASE)]
    return found if all(_NAMED.match(one.name) for one in found) else found[:1]


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
