"""Folders that other users of the machine reach: pytest's own is shut to them, again by each pytest that begins."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def open_folder(mode: int = 0o755) -> Iterator[Path]:
    """Yield a new folder with this mode."""
    with tempfile.TemporaryDirectory(dir=_reachable()) as made:
        folder = Path(made)
        folder.chmod(mode)
        yield folder


def _reachable() -> str:
    """Return a folder that every user can reach: the usual one may be below one of ours."""
    for parent in (tempfile.gettempdir(), "/tmp", "/var/tmp"):
        place = Path(parent).resolve()
        if os.geteuid() != 0 or all(one.is_dir() and one.stat().st_mode & 0o001 for one in (place, *place.parents)):
            return str(place)
    pytest.skip("no folder for temporary files can be reached by another user")
