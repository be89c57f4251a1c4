"""Files that a killed run left: the folder its script ran in, and what was not yet whole."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from madlite.plan.make import RUNS
from madlite.safe_read import read_regular
from madlite.workspace.claims import held_model_dir
from madlite.workspace.folder import PLAN, is_alive, is_held, is_there, real_folders

OWN = "run_directory"  # a name that MAD and madlite alone use
CLONE_MARK = ".git/madlite"
_LIMIT_PLAN_BYTES = 16 << 20
# what becomes another file in one step: `.NAME.PID`, and under the lock of NAME `.NAME.new` and `.NAME.….widening`
_OF_PROCESS = re.compile(r"\..+\.(?:log|csv|json|jsonl|html)\.(\d+)")
_WIDENING = re.compile(r"\.(?P<name>.+)\.[a-z0-9_]{8}\.widening")
_SIDE = re.compile(r"\.(?:perf_(?:entry|super|entry_super)\.(?:json|csv)|common_info\.json)\.new")
_SIDE_LOCK = ".side_files.lock"
_OF_RUN = re.compile(r"\..+\.\d+|\.rows\.csv")


def sweep(folder: Path) -> None:
    """Remove what the run of this folder left beside it; what another run may still use stays.

    Raises:
        OSError: something of it cannot be removed.
    """
    workspace = folder.parent.parent
    name = _model_dir(folder)
    if not (name and _is_ours(workspace / name)):
        return
    with held_model_dir(folder.parent, name) as is_free:
        if is_free:
            shutil.rmtree(workspace / name)


def unwhole(workspace: Path) -> Iterator[Path]:
    """Yield files that a killed madlite did not bring to their end, in the workspace and in the folders of its runs.

    Links are none, and neither is what a process that lives may be writing.
    """
    runs = workspace / RUNS
    for folder in (workspace, runs):
        yield from (path for path in _hidden(folder) if _is_dead(path, runs) and path.exists())
    for folder in real_folders(runs):
        if not is_alive(folder):
            yield from (path for path in _hidden(folder) if _OF_RUN.fullmatch(path.name))


def _hidden(folder: Path) -> Iterator[Path]:
    try:
        found = sorted(folder.glob(".*"))
    except OSError:
        return
    yield from (path for path in found if is_there(path) and path.is_file() and not path.is_symlink())


def _is_dead(path: Path, runs: Path) -> bool:
    if found := _OF_PROCESS.fullmatch(path.name):
        return not _may_write(int(found[1]), path)
    if found := _WIDENING.fullmatch(path.name):
        return not is_held(path.with_name(found["name"]), unknown=True)
    return bool(_SIDE.fullmatch(path.name)) and not is_held(runs / _SIDE_LOCK, unknown=True)


def _may_write(pid: int, path: Path) -> bool:
    """Say whether the process lives that made a file; one of the same number that began later did not."""
    import psutil

    try:
        began_s = psutil.Process(pid).create_time()
        return began_s <= path.lstat().st_mtime + 1.0  # the clocks of both are coarse
    except (psutil.NoSuchProcess, OverflowError, ValueError, OSError):
        return False
    except psutil.Error:
        return True


def _model_dir(folder: Path) -> str:
    """Return the folder of the run's script as its plan has it, a plain name; "" where it had none, or is to stay."""
    plan: dict[str, object] = {}
    with suppress(OSError, ValueError, RecursionError):
        plan = json.loads(read_regular(folder / PLAN, _LIMIT_PLAN_BYTES))
    if not isinstance(plan, dict):
        return ""
    name = str(plan.get("model_dir") or "")
    stays = plan.get("keep_alive") or plan.get("keep_model_dir")
    return "" if stays or "/" in name or name in (".", "..") else name


def _is_ours(place: Path) -> bool:
    own = re.fullmatch(rf"{OWN}(_\w+)?", place.name) or (place / CLONE_MARK).is_file()
    return bool(own) and place.is_dir() and not place.is_symlink()
