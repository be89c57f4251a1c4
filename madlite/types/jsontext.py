"""Values as JSON."""

from __future__ import annotations

from pathlib import Path

import msgspec

from madlite.types.values import Json, Secret


def to_json(value: object) -> str:
    """Return a value as indented JSON; paths as text, secrets as `***`, infinities and NaN as null.

    Bytes of the command line that are no UTF-8 are written as escapes: JSON knows text alone.
    """
    plain = msgspec.to_builtins(value, enc_hook=_encode, str_keys=True)
    try:
        data = msgspec.json.encode(plain)
    except UnicodeEncodeError:
        data = msgspec.json.encode(_as_utf8(plain))
    return msgspec.json.format(data, indent=2).decode() + "\n"


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
