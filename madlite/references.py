r"""Published figures as TOML data (docs/references.md).

::

    source = "README of tiny 1.2"        # a key of the file is one of each reference that has none of its own
    date = "2026-05"
    [[reference]]
    model = "Tiny-1B"
    device = "MI300X"
    precision = "BF16"
    seq_len = 4096
    metric = "tokens_per_s_per_gpu"
    value = 9500.0
    condition = "ROCm 7.1, 8x MI300X 750 W"

Keys are the fields of `Reference`.
"""

from __future__ import annotations

import math
import re
from datetime import date
from pathlib import Path
from typing import Any

import msgspec

from madlite.errors import UsageProblem, did_you_mean
from madlite.files import read_text, shown, wrong_key
from madlite.model import QUANTITIES, Quantity, Reference

FILE = "madlite_references.toml"
"""The name of a user's own file, in the working folder."""
KEYS = Reference.__struct_fields__
_REQUIRED = ("model", "device", "metric", "source")
_DATE = re.compile(r"\d{4}(?:-(?:0[1-9]|1[0-2])(?:-(?:0[1-9]|[12]\d|3[01]))?)?", re.ASCII)
_HINT = "docs/references.md lists the keys"


def read_references(path: Path) -> tuple[Reference, ...]:
    """Return the published figures of a TOML file, in its order.

    Raises:
        UsageProblem: it cannot be read, or a reference of it cannot be used; the message names the file, the reference
            by its place, and the key.
    """
    where = f"references {shown(path)}"
    shared = _table(path, where)
    listed = shared.pop("reference", [])
    if not isinstance(listed, list):
        raise UsageProblem(f"{where}: key 'reference' is no list of tables: write [[reference]]", _HINT)
    _check_keys(shared, where, (*KEYS, "reference"))
    return tuple(_reference(shared, values, f"{where}, reference {n}") for n, values in enumerate(listed, 1))


def flaw_of(reference: Reference) -> str:
    """Return why a reference cannot be compared with; "" where it can."""
    try:
        msgspec.convert(msgspec.to_builtins(reference), Reference)
    except msgspec.ValidationError as error:
        return wrong_key(error)[1] or str(error)
    if blank := [name for name in _REQUIRED if not getattr(reference, name).strip()]:
        return f"key '{blank[0]}' is missing or empty"
    if not math.isfinite(reference.value) or reference.value <= 0:
        return f"key 'value': {reference.value:g} is no figure above 0"
    if reference.date and not _DATE.fullmatch(reference.date):
        return f"key 'date': {reference.date!r} is no YYYY, YYYY-MM or YYYY-MM-DD"
    counts = ((name, getattr(reference, name)) for name in ("seq_len", "micro_batch", "global_batch", "gpus", "nodes"))
    return next((f"key '{name}': {n} is no count above 0" for name, n in counts if n is not None and n < 1), "")


# What a metric counts, by its quantity: documents spell one unit in many ways.

_UNIT = re.compile(
    r"(?:avg|mean|model)?[_ ]?(?:(?P<tokens>tok(?:en)?s?)|(?P<images>images?|fps)|(?P<samples>samples?)"
    r"|(?P<tflops>tflops?))(?P<by_time>/s)?/gpu"
)
_BY_GROUP = {
    "tokens": Quantity.TOKENS_PER_S_PER_GPU,
    "images": Quantity.IMAGES_PER_S_PER_GPU,
    "samples": Quantity.SAMPLES_PER_S_PER_GPU,
    "tflops": Quantity.TFLOPS_PER_GPU,
}


def unit_of(metric: str, unit: str = "") -> str:
    """Return the canonical unit of a metric, by its `unit` or else its name; "" where neither is known.

    `TFLOPS/s/GPU`, `TFLOPS_per_gpu` and `tflops_per_gpu` are `TFLOP/s/GPU`; `FPS/GPU` is `images/s/GPU`.
    """
    known = {quantity.unit.casefold(): quantity.unit for quantity in QUANTITIES.values() if quantity.unit}
    for text in (unit, metric):
        plain = text.strip().casefold().replace("_per_", "/").replace("second", "s").replace("sec", "s")
        if plain in known:
            return known[plain]
        if plain in QUANTITIES:
            return QUANTITIES[plain].unit
        if found := _by_pattern(plain.replace(" ", "")):
            return found
    return unit.strip()


def _by_pattern(plain: str) -> str:
    """Return the unit that a spelling stands for; tokens and samples need their time, FPS and TFLOPS have it."""
    found = _UNIT.fullmatch(plain)
    if found is None or not (found["by_time"] or found["tflops"] or found["images"] == "fps"):
        return ""
    return next(quantity.unit for group, quantity in _BY_GROUP.items() if found[group])


# Reading.


def _table(path: Path, where: str) -> dict[str, Any]:
    import tomli

    text = read_text(path, where)
    try:
        return tomli.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageProblem(f"{where} is no TOML: {error}", _HINT) from None


def _reference(shared: dict[str, Any], values: object, where: str) -> Reference:
    if not isinstance(values, dict):
        raise UsageProblem(f"{where} is no table: write [[reference]]", _HINT)
    _check_keys(values, where, KEYS)
    given = {**shared, **values}.items()
    merged = {key: value.isoformat() if isinstance(value, date) else value for key, value in given}
    if missing := [key for key in (*_REQUIRED, "value") if key not in merged]:
        raise UsageProblem(f"{where}: key '{missing[0]}' is missing or empty", _HINT)
    try:
        reference = msgspec.convert(merged, Reference)
    except msgspec.ValidationError as error:
        raise UsageProblem(f"{where}: {wrong_key(error)[1] or error}", _HINT) from None
    if flaw := flaw_of(reference):
        raise UsageProblem(f"{where}: {flaw}", _HINT)
    return reference


def _check_keys(values: dict[str, Any], where: str, known: tuple[str, ...]) -> None:
    """Refuse a key that nothing reads; the suggestion is part of the sentence, which alone is shown of a plugin."""
    if unknown := [key for key in values if key not in known]:
        close = did_you_mean(unknown[0], known, most=1)
        raise UsageProblem(f"{where}: key '{unknown[0]}' is unknown" + (f"; {close}" if close else ""), _HINT)
