"""Where a command line finds cards and templates: $MADLITE_HOME, and $MODEL_DIR in place of the working folder."""

from __future__ import annotations

import os
from pathlib import Path

from madlite.run.model_dir import find_model_dir


def home() -> Path | None:
    """Return $MADLITE_HOME, where models.json and templates/ are looked for first."""
    named = os.environ.get("MADLITE_HOME")
    return Path(named) if named else None


def find_workspace(touch: bool) -> Path:
    """Return the working folder, or, for a command that may not `touch` it, the folder that MODEL_DIR would bring.

    Raises:
        UsageProblem: MODEL_DIR names no folder.
    """
    here = Path.cwd()
    return here if touch else find_model_dir(os.environ, here) or here
