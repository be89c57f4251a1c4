"""One GPU as one source describes it, and the readings that all sources share.

Forms: amd-smi writes `{"value": n, "unit": "u"}`, a bare number or `N/A`; rocm-smi writes numbers as text. A value that
is not known is `N/A`, `N/A (Secondary die)`, `[Not Supported]`, `AMDSMI_STATUS_…`.
"""

from __future__ import annotations

import json
import re
from fractions import Fraction

from madlite.model import Json, Problem, Value

UNITS = {"B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
SIZE = re.compile(r"(\d{1,18}(?:\.\d{1,9})?)\s*(?:([KMGT])(?:I?B)?|(B))?", re.IGNORECASE)
NOTHING = re.compile(
    r"|n/a\b.*|\[.*\]|none|null|unknown|err!?|not supported.*|amdsmi_status_.*", re.IGNORECASE | re.DOTALL
)
NO_NAME = re.compile(r"0x[0-9a-f]+|advanced micro devices.*", re.IGNORECASE)
START = re.compile(r"^(?=[\[{])", re.MULTILINE)


class Seen(Value, frozen=True):
    """One GPU as one source sees it; empty is what the source does not say.

    `position` is the source's own GPU id, `node_id` the KFD topology node, `bus` as in 0000:c1:00.0, `unique_id`
    16 hex digits.
    """

    position: int
    arch: str = ""
    product: str = ""
    memory_bytes: int | None = None
    device_id: int | None = None
    compute_units: int | None = None
    node_id: int | None = None
    render_minor: int | None = None
    unique_id: str = ""
    bus: str = ""


class Source(Value, frozen=True):
    """What one source answered; `problem` is empty where it did, `absent` where it is not installed."""

    name: str
    gpus: tuple[Seen, ...] = ()
    driver_version: str = ""
    runtime_version: str = ""  # ROCm, or CUDA
    problem: str = ""
    absent: bool = False

    def as_problem(self) -> Problem:
        """Return the problem under the source's name."""
        return Problem(where=self.name, what=self.problem)


def clean(value: Json) -> str:
    """Return a value as text, empty for every way of saying nothing."""
    text = str(value).strip() if isinstance(value, str | int | float) else ""
    return "" if NOTHING.fullmatch(text) else text


def product_name(value: Json) -> str:
    """Return the name of a product, empty for a number or the vendor's name in its place."""
    text = clean(value)
    return "" if NO_NAME.fullmatch(text) else text


def whole(value: Json) -> int | None:
    """Return a whole number from 304, "304", "0x74a1" or {"value": 304}; None where there is none."""
    if isinstance(value, dict):
        value = value.get("value")
    try:
        return int(clean(value), 0)
    except ValueError:
        return None


def pci_id(value: Json) -> int | None:
    """Return a PCI device id from "0x74a1", "74a1" or 29857; four digits are hexadecimal, as PCI ids are printed."""
    text = clean(value)
    return int(text, 16) if re.fullmatch(r"[0-9a-fA-F]{4}", text) else whole(value)


def size_bytes(value: Json) -> int | None:
    """Return bytes from {"value": 196592, "unit": "MB"}, "192 GB" or 196592; the tools' MB, also unsaid, is 2**20."""
    if isinstance(value, dict):
        value = f"{clean(value.get('value'))} {clean(value.get('unit'))}".strip()
    found = SIZE.fullmatch(clean(value))
    if not found:
        return None
    unit = (found[2] or found[3] or "M").upper()
    return int(Fraction(found[1]) * UNITS[unit]) or None


def unique_hex(value: Json) -> str:
    """Return a GPU's unique id as 16 hex digits from 0x…, GPU-…, a number or its decimal text; empty for zero."""
    text = clean(value)
    found = re.fullmatch(r"(?:0x|GPU-)?([0-9a-f]{1,16})", text, re.IGNORECASE)
    if re.fullmatch(r"[0-9]{17,20}", text) or (isinstance(value, int) and text.isdecimal()):
        number = int(text)
    else:
        number = int(found[1], 16) if found else 0
    return f"{number:016x}" if number else ""


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
