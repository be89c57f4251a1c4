"""Files that a killed run left in the workspace: the folder its script ran in, and what was not yet whole."""

from __future__ import annotations

import json
import re
import shutil
from contextlib import suppress
from pathlib import Path

from madlite.run.folder import PLAN, is_held

OWN = "run_directory"  # a name that MAD and madlite alone use
CLONE_MARK = ".git/madlite"
# `.NAME.PID`, which becomes NAME in one step
_UNFINISHED = re.compile(r"\..+\.(?:log|csv|json)\.(\d+)")


def sweep(folder: Path) -> None:
    """Remove what the run of this folder left beside it; what another run may still use stays.

    Raises:
        OSError: something of it cannot be removed.
    """
    import psutil

    workspace = folder.parent.parent
    for path in workspace.glob(".*"):
        found = _UNFINISHED.fullmatch(path.name)
        if found and path.is_file() and not psutil.pid_exists(int(found[1])):
            path.unlink(missing_ok=True)
    name = _model_dir(folder)
    if name and _is_ours(workspace / name) and not is_held(folder.parent / f".{name}.lock"):
        shutil.rmtree(workspace / name)


def _model_dir(folder: Path) -> str:
    """Return the folder of the run's script as its plan has it, a plain name; "" where it had none, or is to stay."""
    plan: dict[str, object] = {}
    with suppress(OSError, ValueError):
        plan = json.loads((folder / PLAN).read_text(encoding="utf-8"))
    name = str(plan.get("model_dir") or "")
    stays = plan.get("keep_alive") or plan.get("keep_model_dir")
    return "" if stays or "/" in name or name in (".", "..") else name


def _is_ours(place: Path) -> bool:
    own = re.fullmatch(rf"{OWN}(_\w+)?", place.name) or (place / CLONE_MARK).is_file()
    return bool(own) and place.is_dir() and not place.is_symlink()
