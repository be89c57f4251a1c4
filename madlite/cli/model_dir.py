"""$MODEL_DIR: a checkout elsewhere whose cards, scripts and settings are brought into the working folder."""

from __future__ import annotations

import fcntl
import filecmp
import logging
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from functools import cache
from pathlib import Path

from madlite.errors import UsageProblem
from madlite.files import is_file, is_folder

BROUGHT = ("docker", "scripts", "models.json", "credential.json", "data.json")  # madengine 2's list
_LOCK = ".bringing.lock"
_log = logging.getLogger(__name__)


def find_model_dir(environ: Mapping[str, str], workspace: Path) -> Path | None:
    """Return the folder that MODEL_DIR names; None where it names none, or the working folder itself.

    Raises:
        UsageProblem: there is no such folder.
    """
    if not environ.get("MODEL_DIR"):
        return None
    folder = workspace / environ["MODEL_DIR"]
    if not is_folder(folder):
        raise UsageProblem(f"MODEL_DIR={environ['MODEL_DIR']} is no folder", "unset MODEL_DIR, or name a MAD checkout")
    return None if folder.resolve() == workspace.resolve() else folder.resolve()


def is_brought(source: Path | None, path: Path) -> bool:
    """Say whether a file of that path, relative to the working folder, is one that comes from `source`."""
    inside = not path.is_absolute() and ".." not in path.parts and path.parts[:1] != ()
    return source is not None and inside and path.parts[0] in BROUGHT and is_file(source / path)


def bring_model_dir(source: Path, workspace: Path, runs: str) -> int:
    """Copy what a MAD checkout consists of over the working folder, as madengine does; return how many files changed.

    A file of the working folder that differs is kept in a new folder below `runs` first, so nothing is lost, and is
    there, old or new, at every moment.  Of several that bring at once, one after the other does.  What cannot be copied
    is logged.

    Raises:
        UsageProblem: `runs` cannot be made in the working folder.
    """
    kept = cache(lambda: Path(tempfile.mkdtemp(prefix=f"replaced-{_now()}-", dir=workspace / runs)))
    with _alone(workspace / runs):
        return sum(_bring(source, workspace, path, kept) for path in _files(source, workspace))


def _now() -> str:
    return f"{datetime.now(timezone.utc):%Y%m%dT%H%M%S}"


@contextmanager
def _alone(runs: Path) -> Iterator[None]:
    """Keep others from bringing into this folder meanwhile."""
    try:
        runs.mkdir(parents=True, exist_ok=True)
        lock = os.open(runs / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        what = f"nothing can be brought from MODEL_DIR: {error.filename}: {error.strerror}"
        raise UsageProblem(what, "run madlite in a folder of yours") from error
    try:
        with suppress(OSError):  # a file system without locks: each file comes whole all the same
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _files(source: Path, workspace: Path) -> Iterator[Path]:
    """Yield what is to be brought, relative to `source`; links are followed, but not into a folder around them."""
    around = (source.stat(), workspace.stat())
    for name in BROUGHT:
        if os.path.lexists(source / name):
            yield from _below(source, Path(name), around)


def _below(source: Path, path: Path, around: tuple[os.stat_result, ...]) -> Iterator[Path]:
    try:
        here = (source / path).stat()
        names = sorted(one.name for one in (source / path).iterdir()) if stat.S_ISDIR(here.st_mode) else None
    except OSError as error:
        _log.warning("%s is not brought from MODEL_DIR: %s", path, error.strerror)
        return
    if names is None:
        yield path
    elif any(os.path.samestat(here, one) for one in around):
        _log.warning("%s is not brought from MODEL_DIR: it leads back to a folder around it", path)
    else:
        for name in names:
            if name != "__pycache__":
                yield from _below(source, path / name, (*around, here))


def _bring(source: Path, workspace: Path, path: Path, kept: Callable[[], Path]) -> bool:
    target = workspace / path
    beside = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        if target.is_file() and filecmp.cmp(source / path, target, shallow=False):
            return False
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source / path, beside)
        if os.path.lexists(target):
            _keep(target, kept() / path)
            _log.warning("%s is replaced by MODEL_DIR's; what was there is now %s", target, kept() / path)
        beside.replace(target)
    except OSError as error:
        _log.warning("%s is not brought from MODEL_DIR: %s", target, error.strerror or error)
        with suppress(OSError):
            beside.unlink(missing_ok=True)
        return False
    return True


def _keep(target: Path, kept: Path) -> None:
    """Give what is to be replaced a second name; a folder, which has but one, is moved."""
    kept.parent.mkdir(parents=True, exist_ok=True)
    if target.is_dir() and not target.is_symlink():
        shutil.move(target, kept)
        return
    try:
        os.link(target, kept, follow_symlinks=False)
    except OSError:  # a file system without second names, or another one
        shutil.copy2(target, kept, follow_symlinks=False)
