"""Published figures of trainings, a TOML file per document (docs/references.md)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from madlite import Reference, hookimpl


@hookimpl
def madlite_references() -> Iterable[Reference]:
    """Bring the figures of every document in this folder."""
    from madlite import read_references  # only where figures are compared: every command loads this module

    return [reference for file in sorted(Path(__file__).parent.glob("*.toml")) for reference in read_references(file)]
