"""Copy what a run left in the workspace."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from madlite.safe_read import copy_inside

_LOG = logging.getLogger(__name__)


def copy_matching(workspace: Path, patterns: Sequence[str], into: Path) -> None:
    """Copy the files below `workspace` that match a glob pattern into the folder `into`, by their own names.

    A link is followed as long as it stays in the workspace: a workload must not bring files of the caller's to light.
    """
    for pattern in patterns:
        for path in sorted(workspace.glob(pattern)):
            if path.is_file() and path.parent != into:
                into.mkdir(parents=True, exist_ok=True)
                copy_whole(path, into / path.name, workspace)


def copy_whole(path: Path, to: Path, root: Path) -> None:
    """Copy a file below `root` so that a reader sees the old one or the new one; what cannot be copied is logged."""
    try:
        copy_inside(path, root, to)
    except OSError as error:
        _LOG.warning("%s was not copied to %s: %s", path, to, error.strerror)
