"""One GPU as one source describes it, and the readings that all sources share.

Forms: amd-smi writes `{"value": n, "unit": "u"}`, a bare number or `N/A`; rocm-smi writes numbers as text.
"""

from __future__ import annotations

import json
import re

from madlite.types import Json, Problem, Value

UNITS = {"B": 1, "KB": 1 << 10, "KIB": 1 << 10, "MB": 1 << 20, "MIB": 1 << 20, "GB": 1 << 30, "GIB": 1 << 30}
NOTHING = {"", "n/a", "[n/a]", "none", "unknown", "[unknown error]", "[not supported]"}
MISPRINTED = {"gfx9010": "gfx90a"}  # rocm-smi prints the stepping 10 in decimal
START = re.compile(r"^\s*(?=[\[{])", re.MULTILINE)


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
    return "" if text.lower() in NOTHING else text


def whole(value: Json) -> int | None:
    """Return a whole number from 304, "304", "0x74a1" or {"value": 304}; None where there is none."""
    if isinstance(value, dict):
        value = value.get("value")
    try:
        return int(clean(value), 0)
    except ValueError:
        return None


def size_bytes(value: Json) -> int | None:
    """Return bytes from {"value": 196592, "unit": "MB"}; the tools' MB is 2**20 bytes."""
    number = whole(value)
    unit = clean(value.get("unit")) if isinstance(value, dict) else ""
    return number * UNITS.get(unit.upper() or "MB", 1 << 20) if number else None


def unique_hex(value: Json) -> str:
    """Return a GPU's unique id as 16 hex digits from 0x…, GPU-… or a number."""
    if isinstance(value, int):
        return f"{value:016x}" if value else ""
    found = re.fullmatch(r"(?:0x|GPU-)?([0-9a-f]{1,16})", clean(value), re.IGNORECASE)
    return found[1].lower().zfill(16) if found else ""


def bus_id(value: Json) -> str:
    """Return a PCI address as sysfs writes it: 0000:c1:00.0, from upper case and NVIDIA's eight-digit domain."""
    found = re.fullmatch(r"0*([0-9a-f]{4}):([0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f])", clean(value).lower())
    return f"{found[1]}:{found[2]}" if found else ""


def gfx_name(value: Json) -> str:
    """Return gfx942 from a text that names it."""
    found = re.search(r"\bgfx[0-9a-f]{3,5}\b", clean(value))
    return MISPRINTED.get(found[0], found[0]) if found else ""


def short_version(value: Json) -> str:
    """Return the version number out of a driver's version, which can be a whole kernel banner."""
    found = re.search(r"\d+(?:\.\d+)+(?:-[\w.~+-]+)?", clean(value))
    return found[0] if found else ""


def find_json(text: str) -> Json:
    """Return the first JSON list or object that starts a line, whatever stands around it; None without one."""
    decoder = json.JSONDecoder()
    for start in list(START.finditer(text))[:50]:
        try:
            return decoder.raw_decode(text, start.end())[0]
        except (ValueError, RecursionError):
            continue
    return None
