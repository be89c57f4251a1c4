"""Copy what a run left in the workspace."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Sequence
from pathlib import Path

_LOG = logging.getLogger(__name__)


def copy_matching(workspace: Path, patterns: Sequence[str], into: Path) -> None:
    """Copy the files below `workspace` that match a glob pattern into the folder `into`, by their own names."""
    for pattern in patterns:
        for path in sorted(workspace.glob(pattern)):
            if path.is_file() and path.parent != into:
                into.mkdir(parents=True, exist_ok=True)
                _copy(path, into / path.name)


def _copy(path: Path, to: Path) -> None:
    try:
        shutil.copy2(path, to)
    except OSError as error:
        _LOG.warning("%s is not collected: %s", path, error.strerror)
