"""$MODEL_DIR: a checkout elsewhere whose cards, scripts and settings are brought into the working folder."""

from __future__ import annotations

import filecmp
import logging
import os
import shutil
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path

from madlite.errors import UsageProblem

BROUGHT = ("docker", "scripts", "models.json", "credential.json", "data.json")  # madengine 2's list
_log = logging.getLogger(__name__)


def find_model_dir(environ: Mapping[str, str], workspace: Path) -> Path | None:
    """Return the folder that MODEL_DIR names; None where it names none, or the working folder itself.

    Raises:
        UsageProblem: there is no such folder.
    """
    if not environ.get("MODEL_DIR"):
        return None
    folder = workspace / environ["MODEL_DIR"]
    if not folder.is_dir():
        raise UsageProblem(f"MODEL_DIR={environ['MODEL_DIR']} is no folder", "unset MODEL_DIR, or name a MAD checkout")
    return None if folder.resolve() == workspace.resolve() else folder.resolve()


def bring_model_dir(source: Path, workspace: Path, runs: str) -> int:
    """Copy what a MAD checkout consists of over the working folder, as madengine does; return how many files changed.

    A file of the working folder that differs is kept in a folder of its own below `runs` first, so nothing is lost.
    What cannot be copied is logged.
    """
    kept = workspace / runs / f"replaced-{datetime.now(timezone.utc):%Y%m%dT%H%M%S}"
    return sum(_bring(source / path, workspace / path, kept / path) for path in _files(source))


def _files(source: Path) -> Iterator[Path]:
    for name in BROUGHT:
        top = source / name
        if top.is_file():
            yield Path(name)
        for folder, inner, files in os.walk(top):
            inner[:] = sorted(set(inner) - {"__pycache__"})
            yield from (Path(folder, file).relative_to(source) for file in sorted(files))


def _bring(source: Path, target: Path, kept: Path) -> bool:
    try:
        if target.is_file() and filecmp.cmp(source, target, shallow=False):
            return False
        if os.path.lexists(target):
            kept.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(target, kept)
            _log.warning("%s is replaced by MODEL_DIR's; what was there is now %s", target, kept)
        target.parent.mkdir(parents=True, exist_ok=True)
        beside = target.with_name(f".{target.name}.{os.getpid()}")
        shutil.copy2(source, beside)
        beside.replace(target)
    except OSError as error:
        _log.warning("%s is not brought from MODEL_DIR: %s", target, error.strerror)
        return False
    return True
