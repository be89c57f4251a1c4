"""JSON whose numbers stay as they are spelled: text in, text out, as files beside perf.csv have it."""

from __future__ import annotations

import json
import re

import msgspec

from madlite.model import Json

_ESCAPED = re.compile(r"\\u(?:[dD]|0000)")  # what may stand for no text
_ESCAPED_BYTES = re.compile(_ESCAPED.pattern.encode())
_LINE_ENDS = tuple((char.encode(), b"\\u%04x" % ord(char)) for char in "\x85\u2028\u2029")  # JSON lets them stand


def readable(text: str) -> str:
    r"""Return text that every reader of a file can read: what is no text is escaped, as `\udc80` or `\x00`.

    One bad byte keeps pandas from reading the whole file, and one NUL the csv module of Python 3.10.
    """
    if text.isascii() and "\0" not in text:
        return text
    return text.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode()


def read_json(data: bytes) -> Json:
    """Return JSON with every number as it is spelled; NaN and infinities, which madengine writes, are null.

    Texts are readable, on as many lines as they have: half of a surrogate pair, which Python's own writer escapes, is
    invalid to other readers.

    Raises:
        ValueError: it is no JSON.
        RecursionError: it is nested too deeply.
    """
    text = data.decode("utf-8-sig")
    value = json.loads(text, parse_float=_raw, parse_int=_raw, parse_constant=lambda name: None)
    return _readable(value) if _ESCAPED.search(text) else value


def spelled_objects(data: bytes) -> list[msgspec.Raw] | None:
    """Return the objects of a JSON list as they are spelled; None where `read_json` has to look, or of another thing.

    It needs a tenth of the memory, and of the time.
    """
    try:
        found = msgspec.json.decode(data, type=list[msgspec.Raw])
        are_objects = all(isinstance(msgspec.json.decode(item), dict) for item in found)  # decoded one by one
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return found if are_objects and not _ESCAPED_BYTES.search(data) else None


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
    return _escape_line_ends(msgspec.json.format(msgspec.json.encode(value), indent=0))


def indented(value: Json) -> bytes:
    """Return a value as JSON over many lines, as madengine writes it."""
    return _escape_line_ends(msgspec.json.format(msgspec.json.encode(value), indent=2))


def _escape_line_ends(data: bytes) -> bytes:
    """Return JSON of the same value in which nothing inside of a text ends a line to any program."""
    if data.isascii():
        return data
    for raw, spelled in _LINE_ENDS:
        data = data.replace(raw, spelled)
    return data
