"""What is where, for all that may be seen."""

from __future__ import annotations

from pathlib import Path


def is_file(path: Path) -> bool:
    """Return whether a file is there; where nobody may look there is none."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False
