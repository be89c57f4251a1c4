"""The YAML files of a Primus tree, each over those it names as its bases; hardened, since a tree is anybody's.

A file's bases are under `extends`, in files of v25.9 `bases` or `includes`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from madlite import read_inside

_BASES = ("includes", "bases", "extends")
_LARGEST_BYTES = 1 << 20  # a config has a few thousand
_OPENERS = re.compile(r"[\[{]|[-?][ \t]")  # what a list or table can begin with, and so lie in another
_MOST_OPENERS = 4000  # a config has some tens
_MOST_FILES = 16  # that extend one another


def read_config(file: Path, tree: Path) -> dict[str, Any]:
    """Return a file of a tree over its bases, as far as they are there; none of them lies outside of the tree.

    Raises:
        ValueError: it cannot be read or is no YAML mapping; the text states which.
    """
    try:
        return _merged(file, tree, [])
    except OSError as error:
        raise ValueError(f"it cannot be read: {error.strerror}") from None
    except RecursionError:  # an alias may stand for what it is part of
        raise ValueError("it is nested too deep") from None


def _merged(file: Path, tree: Path, read: list[Path]) -> dict[str, Any]:
    """Return a file over those it extends, as far as they are there; `read` holds what was read for the first one."""
    if len(read) == _MOST_FILES:
        raise ValueError(f"it extends more than {_MOST_FILES} files, or files in a circle")
    read.append(file)
    content = _load(file, tree)
    bases = [base for key in _BASES for base in _listed(content.pop(key, None))]
    merged: dict[str, Any] = {}
    for base in bases:
        if isinstance(base, str) and (file.parent / base).is_file():
            merged = _over(merged, _merged(file.parent / base, tree, read))
    return _over(merged, content)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    tables = (key for key in above if isinstance(below.get(key), dict) and isinstance(above[key], dict))
    return {**below, **above, **{key: _over(below[key], above[key]) for key in tables}}


def _load(file: Path, tree: Path) -> dict[str, Any]:
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as quick, where libyaml is
    text = _text_of(file, tree)
    try:
        content = yaml.load(text, loader)  # noqa: S506 - both are safe loaders
    except (yaml.YAMLError, ValueError, TypeError) as error:  # a date that is none is a ValueError
        raise ValueError(f"it is no YAML that can be read: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict):
        raise ValueError(f"it must be a YAML mapping, found {type(content).__name__}")
    return content


def _text_of(file: Path, tree: Path) -> str:
    """Return a file's text, if it is of a config's kind: libyaml ends the process where brackets lie too deep."""
    if not file.is_file() or file.stat().st_size > _LARGEST_BYTES:
        raise ValueError("it is no plain file of the size that a config has")
    try:
        text = read_inside(file, tree, limit_bytes=_LARGEST_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError("it is no UTF-8 text") from None
    if sum(1 for _ in _OPENERS.finditer(text)) > _MOST_OPENERS:
        raise ValueError("it has more lists and tables than a config")
    return text
