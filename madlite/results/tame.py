"""Values as they may stand in a record: no number that JSON does not know, no secret in what somebody typed or said."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from enum import Enum
from functools import lru_cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec

_LEFT_OUT = object()


def tame(value: Any, mask: Callable[[str], str]) -> Any:
    """Return a value with its texts masked and without NaN and infinities; None where nothing of it is left.

    Such a number is None where the field may be, and else takes with it what cannot be without it: a window whose mean
    is no number is no window.  Words of a fixed set, as those of an enumeration, are no secrets.
    """
    tamed = _tame(value, mask)
    return None if tamed is _LEFT_OUT else tamed


def _tame(value: Any, mask: Callable[[str], str]) -> Any:
    if isinstance(value, Enum) or value is None:
        return value
    if isinstance(value, str):
        return mask(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else _LEFT_OUT
    if isinstance(value, msgspec.Struct):
        return _struct(value, mask)
    if isinstance(value, Mapping):
        pairs = ((mask(key) if type(key) is str else key, _tame(item, mask)) for key, item in value.items())
        return {key: item for key, item in pairs if item is not _LEFT_OUT}
    if isinstance(value, (tuple, list)):
        return tuple(item for one in value if (item := _tame(one, mask)) is not _LEFT_OUT)
    return value


def _struct(value: msgspec.Struct, mask: Callable[[str], str]) -> Any:
    fields: dict[str, Any] = {}
    for name, (fixed, optional) in _fields(type(value)).items():
        old = getattr(value, name)
        new = old if fixed else _tame(old, mask)
        if new is _LEFT_OUT and not optional:
            return _LEFT_OUT
        fields[name] = None if new is _LEFT_OUT else new
    return msgspec.structs.replace(value, **fields)


@lru_cache(maxsize=64)
def _fields(kind: type[msgspec.Struct]) -> dict[str, tuple[bool, bool]]:
    """Return for each field whether its words are of a fixed set, and whether it may be None."""
    hints = get_type_hints(kind)
    return {
        name: (get_origin(hints[name]) is Literal, type(None) in get_args(hints[name]))
        for name in kind.__struct_fields__
    }
