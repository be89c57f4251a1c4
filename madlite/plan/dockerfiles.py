"""Which Dockerfiles belong to a card here: lookup by prefix, and the `# CONTEXT` filter of their first lines.

Rule (docs/differences.md): candidates are `<dockerfile>.*`; a file is left out when a key of its header exists in the
context with another value.  One without a header is left out too, as MAD never meant it to be built.
"""

from __future__ import annotations

import ast
import errno
import glob
import re
from collections.abc import Mapping
from pathlib import Path

from madlite.errors import UsageProblem
from madlite.files import exists, is_folder, shown
from madlite.model import Card, Value
from madlite.safe_read import read_as_spelled

_HEADER_LINES = 5
_CONTEXT = re.compile(r"#\s*CONTEXT\s+(\{.*\})")
_BASE = re.compile(r"^ARG\s+BASE_DOCKER=(?:\"([^\"]*)\"|'([^']*)'|(\S+))", re.MULTILINE)

_STAGE = re.compile(r"^[ \t]*FROM[ \t].*[ \t]AS[ \t]+(\S+)", re.MULTILINE | re.IGNORECASE)


class Dockerfile(Value, frozen=True):
    """A Dockerfile of a card: where it is, its build context, its base image and its stages' names in lower case."""

    path: Path
    context: Path
    base: str
    stages: frozenset[str] = frozenset()


class Found(Value, frozen=True):
    """The Dockerfiles that fit, and why others do not."""

    fitting: tuple[Dockerfile, ...] = ()
    refused: tuple[str, ...] = ()


def find_dockerfiles(card: Card, context: Mapping[str, str]) -> Found:
    """Return the card's Dockerfiles that fit the context, in the order of their names.

    Raises:
        UsageProblem: one of them cannot be read.
    """
    if not card.dockerfile:
        return Found()
    fitting, refused = [], []
    for path in _candidates(card.root / card.dockerfile):
        if is_folder(path) or not exists(path):
            continue
        text = read_dockerfile(path, card.root)
        reason = _mismatch(text, context)
        if reason:
            refused.append(f"{path.name}: {reason}")
        else:
            stages = frozenset(name.lower() for name in _STAGE.findall(text))
            fitting.append(Dockerfile(path=path, context=_build_context(card), base=base_of(text), stages=stages))
    return Found(fitting=tuple(fitting), refused=tuple(refused))


def read_dockerfile(path: Path, root: Path) -> str:
    """Return a Dockerfile's text; one of the checkout `root` is no link out of it.

    Raises:
        UsageProblem: it cannot be read, or is a pipe or the like, or such a link.
    """
    try:
        data = read_as_spelled(path, root)
    except OSError as error:
        hint = "copy it there, or name it in the card by its whole path" if error.errno == errno.EXDEV else ""
        raise UsageProblem(f"{shown(path)} cannot be read: {error.strerror}", hint) from None
    return data.decode(errors="replace")


def _candidates(prefix: Path) -> list[Path]:
    if not prefix.name or not is_folder(prefix.parent):
        return []
    return sorted(prefix.parent.glob(f"{glob.escape(prefix.name)}.*"))


def base_of(text: str) -> str:
    """Return the image named by `ARG BASE_DOCKER=`, or nothing."""
    found = _BASE.search(text)
    return next((group for group in found.groups() if group), "") if found else ""


def _build_context(card: Card) -> Path:
    """Return where COPY reads from: `./docker`, or the folder itself for Primus images (as madengine 2)."""
    if card.dockercontext:
        return card.root / card.dockercontext
    return card.root if "primus" in card.dockerfile else card.root / "docker"


def _mismatch(text: str, context: Mapping[str, str]) -> str:
    header = _header(text)
    if isinstance(header, str):
        return header
    for key, wanted in header.items():
        here = context.get(str(key))
        if here is not None and str(here) != str(wanted):
            return f"its header wants {key} {wanted}, here it is {here}"
    return ""


def _header(text: str) -> dict[object, object] | str:
    for line in text.splitlines()[:_HEADER_LINES]:
        found = _CONTEXT.search(line)
        if found:
            try:
                value = ast.literal_eval(found[1])
            except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
                return f"its header cannot be read: {line.strip()}"
            return value if isinstance(value, dict) else f"its header is no table: {line.strip()}"
    return "no `# CONTEXT {...}` line in its first five"
