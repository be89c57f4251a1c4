"""$MODEL_DIR: another checkout, whose cards, scripts and settings are copied into the working folder."""

from __future__ import annotations

import filecmp
import logging
import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from datetime import datetime, timezone
from pathlib import Path

from madlite.errors import UsageProblem
from madlite.files import Folder, is_file, open_plain

COPIED = ("docker", "scripts", "models.json", "credential.json", "data.json")  # madengine 2's list
_log = logging.getLogger(__name__)


def is_copied(source: Path, path: Path) -> bool:
    """Return whether the file at a path relative to the working folder is copied from `source`."""
    inside = not path.is_absolute() and ".." not in path.parts and path.parts[:1] != ()
    return inside and path.parts[0] in COPIED and is_file(source / path)


def copy_model_dir(source: Path, workspace: Path, runs: str) -> int:
    """Copy what a MAD checkout consists of over the working folder, as madengine does; return how many files changed.

    A file of the working folder that differs is copied into a new folder below `runs` first, so nothing is lost, and is
    there, old or new, at every moment.  What cannot be copied is logged; so is what a link is in the way of, for it may
    lead anywhere.

    Raises:
        UsageProblem: `runs` cannot be made in the working folder.
    """
    with ExitStack() as opened:
        try:
            here = opened.enter_context(Folder.open(workspace))
            folder = opened.enter_context(here.below(runs, make=True, private=True))
        except OSError as error:
            what = f"nothing can be copied from MODEL_DIR: {error.filename}: {error.strerror}"
            raise UsageProblem(what, "run madlite in a folder of yours") from error
        copier = _Copier(source, here, folder)
        return sum(map(copier.copy, _files(source, workspace)))


def _files(source: Path, workspace: Path) -> Iterator[Path]:
    """Yield the files to copy, relative to `source`; links are followed, but not into a parent folder of theirs."""
    parents = (source.stat(), workspace.stat())
    for name in COPIED:
        if os.path.lexists(source / name):
            yield from _below(source, Path(name), parents)


def _below(source: Path, path: Path, parents: tuple[os.stat_result, ...]) -> Iterator[Path]:
    try:
        here = (source / path).stat()
        names = sorted(file.name for file in (source / path).iterdir()) if stat.S_ISDIR(here.st_mode) else None
    except OSError as error:
        _log.warning("%s is not copied from MODEL_DIR: %s", path, error.strerror)
        return
    if names is None:
        yield path
    elif any(os.path.samestat(here, parent) for parent in parents):
        _log.warning("%s is not copied from MODEL_DIR: it leads back to a folder around it", path)
    else:
        for name in names:
            if name != "__pycache__":
                yield from _below(source, path / name, (*parents, here))


class _Copier:
    """Copies files from one folder to another; what they replace is kept below the folder of runs."""

    def __init__(self, source: Path, here: Folder, runs: Folder) -> None:
        self._source, self._here, self._runs = source, here, runs
        self._backup = f"replaced-{datetime.now(timezone.utc):%Y%m%dT%H%M%S}-{os.urandom(4).hex()}"

    def copy(self, path: Path) -> bool:
        """Copy one file if it differs; return whether it was copied."""
        try:
            with (
                self._here.parent_of(str(path), make=True) as (folder, name),
                os.fdopen(open_plain(self._source / path), "rb") as file,
            ):
                if _same_content(folder.path / name, self._source / path):
                    return False
                with folder.atomic(name, warn=False) as beside:  # the warning is that of the backup
                    disk = os.fstatvfs(folder.fd)
                    folder.copy_in(file.fileno(), path, beside, disk.f_bavail * disk.f_frsize)
                    if folder.holds(name):
                        self._back_up(folder, name, path)
                return True
        except OSError as error:
            _log.warning("%s is not copied from MODEL_DIR: %s", self._here.path / path, error.strerror or error)
            return False

    def _back_up(self, folder: Folder, name: str, path: Path) -> None:
        """Copy a file that is to be replaced; a link is made again, and what no file takes the place of is moved."""
        facts = folder.status(name)
        with self._runs.parent_of(f"{self._backup}/{path}", make=True) as (into, last):
            if stat.S_ISREG(facts.st_mode):
                with os.fdopen(folder.open_file(name, os.O_RDONLY, make=False), "rb") as file:
                    # by now it may be another command's copy, of another size
                    into.copy_in(file.fileno(), folder.path / name, last, os.fstat(file.fileno()).st_size)
            elif stat.S_ISLNK(facts.st_mode):
                os.symlink(os.readlink(name, dir_fd=folder.fd), last, dir_fd=into.fd)
            else:
                os.rename(name, last, src_dir_fd=folder.fd, dst_dir_fd=into.fd)
            _log.warning(
                "%s is replaced by MODEL_DIR's; what was there is now %s", folder.path / name, into.path / last
            )


def _same_content(place: Path, source: Path) -> bool:
    """Return whether two files, links followed, have the same content."""
    with suppress(OSError):
        return filecmp.cmp(place, source, shallow=False)
    return False
