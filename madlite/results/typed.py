"""Cells and JSON: what is a number in a file of JSON, spelled as it was written."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence

import msgspec

from madlite.measure.limits import is_too_long
from madlite.model import Json
from madlite.results.lines import readable

_NUMBER = re.compile(r"([-+]?)(0|[1-9][0-9]*)?(\.[0-9]*)?([eE][-+]?[0-9]+)?")
_ESCAPED = re.compile(r"\\u(?:[dD]|0000)")  # what may stand for no text
_LINE_ENDS = tuple((char.encode(), b"\\u%04x" % ord(char)) for char in "\x85\u2028\u2029")  # JSON lets them stand
_NO_NUMBER = frozenset(("", "nan", "+nan", "-nan", "n/a", "na", "null", "none", "inf", "+inf", "-inf", "infinity"))


def as_number(text: str) -> msgspec.Raw | None:
    """Return a number as JSON spells it, digit for digit; None for text that is none, or none that JSON knows.

    `0012` is text: JSON has no such number, and it may be a name.  So is one of too many digits, which costs readers
    the whole file.
    """
    found = None if is_too_long(text) else _NUMBER.fullmatch(text)
    if found is None:
        return None
    sign, whole, fraction, exponent = (part or "" for part in found.groups())
    digits = fraction if len(fraction) > 1 else ""
    if not (whole or digits) or not math.isfinite(float(text)):
        return None
    return msgspec.Raw(f"{'-' if sign == '-' else ''}{whole or '0'}{digits}{exponent}".encode())


def typed_rows(rows: Sequence[Mapping[str, str]]) -> list[dict[str, Json]]:
    """Return the rows of a table as objects: a column with numbers alone holds numbers, any other text.

    A blank is null; so is what says "no number" (nan, inf, N/A, none, …) in a column of numbers.
    """
    texts: dict[str, list[str]] = {}
    for row in rows:
        for name, text in row.items():
            texts.setdefault(name, []).append(text)
    columns = {name: iter(_column(column)) for name, column in texts.items()}
    return [{name: next(columns[name]) for name in row} for row in rows]


def _column(texts: Sequence[str]) -> list[Json]:
    numbers = [as_number(text.strip()) for text in texts]
    others = {text.strip().lower() for text, number in zip(texts, numbers, strict=True) if number is None}
    if any(number is not None for number in numbers) and others <= _NO_NUMBER:
        return [*numbers]
    return [text if text.strip() else None for text in texts]


def read_json(data: bytes) -> Json:
    """Return JSON with every number as it is spelled; NaN and infinities, which madengine writes, are null.

    Texts are readable, on as many lines as they have: half of a surrogate pair, which Python's own writer escapes, is
    no text to others.

    Raises:
        ValueError: it is no JSON.
        RecursionError: it is nested too deeply.
    """
    text = data.decode("utf-8-sig")
    value = json.loads(text, parse_float=_raw, parse_int=_raw, parse_constant=lambda name: None)
    return _readable(value) if _ESCAPED.search(text) else value


def _readable(value: Json) -> Json:
    if isinstance(value, dict):
        return {readable(name): _readable(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_readable(item) for item in value]
    return readable(value) if isinstance(value, str) else value


def _raw(text: str) -> msgspec.Raw:
    return msgspec.Raw(text.encode())


def on_one_line(value: Json) -> bytes:
    """Return a value as JSON on one line, as madengine writes it."""
    return _in_words(msgspec.json.format(msgspec.json.encode(value), indent=0))


def indented(value: Json) -> bytes:
    """Return a value as JSON over many lines, as madengine writes it."""
    return _in_words(msgspec.json.format(msgspec.json.encode(value), indent=2))


def _in_words(data: bytes) -> bytes:
    """Return JSON of the same value in which nothing inside of a text ends a line to any program."""
    if data.isascii():
        return data
    for raw, spelled in _LINE_ENDS:
        data = data.replace(raw, spelled)
    return data


def as_cell(value: Json) -> str:
    """Return a value as the text of a CSV cell: null is blank, lists and objects are JSON on one line."""
    if value is None:
        return ""
    return value if isinstance(value, str) else on_one_line(value).decode()
