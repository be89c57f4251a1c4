"""Values as JSON."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from madlite.model.values import Json, Secret

# what JSON lets stand and terminals take for a command, or for the order in which text runs
_STEERING = re.compile("[\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")


def to_json(value: object) -> str:
    """Return a value as indented JSON; paths as text, secrets as `***`, infinities and NaN as null.

    Bytes of the command line that are no UTF-8 are written as escapes: JSON knows text alone.  So are characters that
    could steer the terminal of who looks at the file; the value is the same.
    """
    plain = msgspec.to_builtins(value, enc_hook=_encode, str_keys=True)
    try:
        data = msgspec.json.encode(plain)
    except UnicodeEncodeError:
        data = msgspec.json.encode(_as_utf8(plain))
    text = msgspec.json.format(data, indent=2).decode() + "\n"
    return text if text.isascii() and "\x7f" not in text else _STEERING.sub(_spelled, text)


def _spelled(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"


def _as_utf8(plain: Json) -> Json:
    if isinstance(plain, str):
        return plain.encode("utf-8", "backslashreplace").decode()
    if isinstance(plain, dict):
        return {_as_utf8(key): _as_utf8(item) for key, item in plain.items()}
    return [_as_utf8(item) for item in plain] if isinstance(plain, (list, tuple)) else plain


def _encode(value: object) -> object:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Secret):
        return "***"
    raise TypeError(f"{type(value).__name__} does not go into JSON")
