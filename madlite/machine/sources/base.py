"""What a source answers (facts of GPUs, readings of them, processes on them), and how the tools' values are read.

Forms: amd-smi writes `{"value": n, "unit": "u"}`, a bare number or `N/A`; rocm-smi writes numbers as text. A value that
is not known is `N/A`, `N/A (Secondary die)`, `[Not Supported]`, `AMDSMI_STATUS_…`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from threading import Event

from madlite.machine.host import Host, ToolOutput, no_gpu_problem, run_tool
from madlite.model import Gpu, Json, Value, Vendor

GIB = 1 << 30
UNITS = {"B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
SIZE = re.compile(r"(\d{1,18}(?:\.\d{1,18})?)\s*(?:([KMGT])(?:I?B)?|(B))?", re.IGNORECASE)
NOTHING = re.compile(
    r"|n/a\b.*|\[.*\]|none|null|unknown|err!?|not supported.*|amdsmi_status_.*", re.IGNORECASE | re.DOTALL
)
NO_NAME = re.compile(r"0x[0-9a-f]+|advanced micro devices.*", re.IGNORECASE)
START = re.compile(r"^(?=[\[{])", re.MULTILINE)

# what holds a GPU's clocks down; "unspecified" besides, which may be the power limit
POWER_CAP = "power cap"  # normal at full load, so it is distinguished from throttling
THROTTLING = ("thermal", "hardware thermal", "hardware slowdown", "power brake", "PROCHOT",
              "voltage regulator thermal", "memory thermal")  # fmt: skip

# what is above is no measurement: a driver writes 65535 or 4294967295 where it has none
_MOST = {"power_w": 20_000.0, "clock_mhz": 20_000.0, "memory_clock_mhz": 20_000.0, "temperature_c": 200.0}
_MOST |= {"memory_used_gib": 16_384.0, "utilization_percent": 100.0}


class GpuFacts(Gpu, frozen=True):
    """One GPU as one source describes it; empty is what the source does not report.

    `index` is the source's own GPU id, `node_id` the KFD topology node, `bus` as in 0000:c1:00.0, `unique_id` 16 hex
    digits.
    """

    device_id: int | None = None
    compute_units: int | None = None
    node_id: int | None = None


class SourceReport(Value, frozen=True):
    """What one source reported about a machine; `problem` is empty where it did, `absent` where it is not installed."""

    name: str
    gpus: tuple[GpuFacts, ...] = ()
    driver_version: str = ""
    runtime_version: str = ""  # ROCm, or CUDA
    problem: str = ""
    absent: bool = False


class DetectedGpus(Value, frozen=True):
    """What detection of one vendor came to: GPUs in the order of their ids, `reports` what each source reported.

    `origins` names where a fact of the GPUs (`arch`, `product`, …) or of the machine came from.
    """

    vendor: Vendor
    gpus: tuple[GpuFacts, ...] = ()
    driver_version: str = ""
    rocm_version: str = ""
    cuda_version: str = ""
    origins: dict[str, str] = {}
    reports: tuple[SourceReport, ...] = ()
    pretended: bool = False  # more, or others, than are here


class Reading(Value, frozen=True, omit_defaults=True):
    """One GPU at one moment; None is what it does not report.

    `slowed` is why its clocks are held down and for which part of the moment (1 all of it), None where it does not
    say.  `counters` count the driver's ticks in which `reason/name` held, of `ticks` in all; both only ever grow, and
    so does `energy_j`.
    """

    index: int
    power_w: float | None = None
    energy_j: float | None = None
    clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    temperature_c: float | None = None
    memory_used_gib: float | None = None
    utilization_percent: float | None = None
    slowed: dict[str, float] | None = None
    counters: dict[str, float] | None = None
    ticks: float | None = None


class Sample(Value, frozen=True):
    """All GPUs at one moment, `t_s` seconds since the start of the run."""

    t_s: float
    gpus: tuple[Reading, ...]


class ReadResult(Value, frozen=True):
    """The readings of the GPUs that answered; `problem` is what could not be read."""

    readings: tuple[Reading, ...] = ()
    problem: str = ""


class GpuProcess(Value, frozen=True):
    """A process on a GPU, as the driver lists it; None is what it does not report."""

    pid: int
    gpu: int
    memory_bytes: int | None = None
    busy: bool | None = None
    name: str = ""


class TelemetrySource:
    """Reads GPUs; every method may block for as long as its driver does, and is called in the sampler's thread."""

    name = ""
    least_interval_s = 2.0  # between two readings, whatever a user requests: a tool is a process each time

    def read(self) -> ReadResult:
        """Return one reading of each GPU that answers."""
        raise NotImplementedError

    def processes(self) -> tuple[GpuProcess, ...] | None:
        """Return the processes on these GPUs; None where the source cannot report."""
        return None

    def facts(self) -> dict[str, str]:
        """Return what does not change during a run: firmware, power limit, partitions."""
        return {}

    def close(self) -> None:
        """Give back what reading took."""


class ToolSource(TelemetrySource):
    """Reads the GPUs of these numbers by a tool, until `cancelled` is set.

    `forms` are the arguments of a reading, those of the newest tool first: the first that is answered is used.
    """

    forms: tuple[tuple[str, ...], ...] = ()

    def __init__(self, host: Host, indexes: Sequence[int], cancelled: Event) -> None:
        self._host, self._cancelled = host, cancelled
        self._indexes = tuple(indexes)
        self._forms = self.forms

    def read(self) -> ReadResult:
        """Return one reading of each GPU that the tool reports, and why GPUs are lacking."""
        for form in self._forms:
            output = self._run(*form)
            if (readings := self.parse(output.text)) or output.hung or output.absent:
                break
        if readings:  # what fails from now on is not the arguments' fault
            self._forms = (form,)
        found = {reading.index: reading for reading in readings if reading.index in self._indexes}
        missing = ", ".join(str(index) for index in self._indexes if index not in found)
        lacking = f"it reports nothing of GPU {missing}" if found else no_gpu_problem(output.text)
        problem = (output.problem or lacking) if missing else ""
        return ReadResult(readings=tuple(found.values()), problem=problem)

    def parse(self, text: str) -> Sequence[Reading]:
        """Return what the tool printed about each of the machine's GPUs."""
        raise NotImplementedError

    def _run(self, *arguments: str) -> ToolOutput:
        return run_tool(self._host, self.name, *arguments, cancelled=self._cancelled)


def make_reading(
    index: int,
    values: dict[str, float | None],
    slowed: dict[str, float] | None = None,
    counters: dict[str, float] | None = None,
    ticks: float | None = None,
) -> Reading:
    """Return the reading without the values that no GPU can have."""
    plausible = {
        name: float(value) for name, value in values.items() if value is not None and is_plausible(name, value)
    }
    return Reading(index=index, **plausible, slowed=slowed, counters=counters, ticks=ticks)


def join_facts(of_gpus: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Return the facts of several GPUs side by side, those that are alike once."""
    texts: dict[str, list[str]] = {}
    for name, text in (fact for facts in of_gpus for fact in facts.items() if fact[1]):
        texts.setdefault(name, []).append(text)
    return {name: ", ".join(dict.fromkeys(values)) for name, values in texts.items()}


def is_plausible(name: str, value: float) -> bool:
    """Return whether a GPU that runs can have a value: its power is never 0, which is how older tools leave it out."""
    return 0 <= value <= _MOST.get(name, math.inf) and not (name == "power_w" and value == 0)


def clean(value: Json) -> str:
    """Return a value as text, empty for every way of saying nothing."""
    text = str(value).strip() if isinstance(value, str | int | float) else ""
    return "" if NOTHING.fullmatch(text) else text


def product_name(value: Json) -> str:
    """Return the name of a product, empty for a number or the vendor's name in its place."""
    text = clean(value)
    return "" if NO_NAME.fullmatch(text) else text


def parse_int(value: Json) -> int | None:
    """Return a whole number from 304, "304", "0x74a1" or {"value": 304}; None where there is none."""
    if isinstance(value, dict):
        value = value.get("value")
    try:
        return int(clean(value), 0)
    except ValueError:
        return None


def parse_float(value: Json) -> float | None:
    """Return a number from 140, "140.0", "140 W" or {"value": 140, "unit": "W"}; None for N/A and the like."""
    if isinstance(value, dict):
        value = value.get("value")
    try:
        found = float((clean(value).split() or [""])[0].rstrip("%"))
    except ValueError:
        return None
    return found if math.isfinite(found) else None


def first_number(section: Mapping[str, Json], names: Sequence[str], field: str = "") -> float | None:
    """Return the first number among the values of these names that a reading's field can have."""
    numbers = (parse_float(section.get(name)) for name in names)
    return next((value for value in numbers if value is not None and is_plausible(field, value)), None)


def pci_id(value: Json) -> int | None:
    """Return a PCI device id from "0x74a1", "74a1" or 29857; four digits are hexadecimal, as PCI ids are printed."""
    text = clean(value)
    return int(text, 16) if re.fullmatch(r"[0-9a-fA-F]{4}", text) else parse_int(value)


def gib(value: Json) -> float | None:
    """Return GiB from {"value": 283, "unit": "MB"} or "0.3 GB"; the tools' MB, also unsaid, is 2**20."""
    if isinstance(value, dict):
        value = f"{clean(value.get('value'))} {clean(value.get('unit'))}".strip()
    found = SIZE.fullmatch(clean(value))
    return float(Fraction(found[1]) * UNITS[(found[2] or found[3] or "M").upper()] / GIB) if found else None


def size_bytes(value: Json) -> int | None:
    """Return bytes from {"value": 196592, "unit": "MB"}, "192 GB" or 196592; None for 0."""
    return round((gib(value) or 0) * GIB) or None


def unique_hex(value: Json) -> str:
    """Return a GPU's unique id as 16 hex digits from 0x…, GPU-…, a number or its decimal text; empty for zero."""
    text = clean(value)
    found = re.fullmatch(r"(?:0x|GPU-)?([0-9a-f]{1,16})", text, re.IGNORECASE)
    if re.fullmatch(r"[0-9]{17,20}", text) or (isinstance(value, int) and text.isdecimal()):
        identity = int(text)
    else:
        identity = int(found[1], 16) if found else 0
    return f"{identity:016x}" if identity else ""


def bus_id(value: Json) -> str:
    """Return a PCI address as sysfs writes it: 0000:c1:00.0, from upper case and NVIDIA's eight-digit domain."""
    found = re.fullmatch(r"0*([0-9a-f]{4,8}):([0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f])", clean(value).lower())
    return f"{found[1]}:{found[2]}" if found else ""


def gfx_name(value: Json) -> str:
    """Return gfx942 from a text that names it; rocm-smi's gfx9010 is gfx90a, its stepping printed in decimal."""
    found = re.search(r"\bgfx[0-9a-f]{3,5}\b", clean(value).lower())
    if not found:
        return ""
    decimal = re.fullmatch(r"(gfx9\d)(1\d)", found[0])
    return f"{decimal[1]}{int(decimal[2]):x}" if decimal else found[0]


def short_version(value: Json) -> str:
    """Return the version number out of a driver's version, which can be a whole kernel banner."""
    found = re.search(r"\d+(?:\.\d+)+(?:-[\w.~+-]+)?", clean(value))
    return found[0] if found else ""


def find_json(text: str) -> list[Json]:
    """Return the JSON lists and objects that start at the beginning of a line, whatever stands around them.

    What is indented belongs to a document that was cut off: half an answer could be a wrong count.
    """
    decoder = json.JSONDecoder()
    documents: list[Json] = []
    end = 0
    for start in [found.start() for found in START.finditer(text)][:50]:
        if start < end:
            continue
        try:
            document, end = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            continue
        documents.append(document)
    return documents
