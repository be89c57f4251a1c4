"""$MODEL_DIR: another checkout, whose cards, scripts and settings are copied into the working folder."""

from __future__ import annotations

import errno
import filecmp
import logging
import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path

from madlite.errors import UsageProblem
from madlite.files import Folder, is_file, open_plain
from madlite.store.locks import acquire

COPIED = ("docker", "scripts", "models.json", "credential.json", "data.json")  # madengine 2's list
_LOCK = ".bringing.lock"
_log = logging.getLogger(__name__)


def is_copied(source: Path, path: Path) -> bool:
    """Return whether the file at a path relative to the working folder is copied from `source`."""
    inside = not path.is_absolute() and ".." not in path.parts and path.parts[:1] != ()
    return inside and path.parts[0] in COPIED and is_file(source / path)


def copy_model_dir(source: Path, workspace: Path, runs: str) -> int:
    """Copy what a MAD checkout consists of over the working folder, as madengine does; return how many files changed.

    A file of the working folder that differs is kept in a new folder below `runs` first, so nothing is lost, and is
    there, old or new, at every moment.  Concurrent copies run one after another.  What cannot be copied
    is logged; so is what a link is in the way of, for it may lead anywhere.

    Raises:
        UsageProblem: `runs` cannot be made in the working folder.
    """
    with _locked_folders(workspace, runs) as (here, kept):
        copier = _Copier(source, here, kept)
        return sum(map(copier.copy, _files(source, workspace)))


@contextmanager
def _locked_folders(workspace: Path, runs: str) -> Iterator[tuple[Folder, Folder]]:
    """Lock this folder against concurrent copies; yield it and the folder of runs, opened."""
    with ExitStack() as opened:
        try:
            here = opened.enter_context(Folder.open(workspace))
            folder = opened.enter_context(here.below(runs, make=True, private=True))
            lock = folder.open_file(_LOCK)
            opened.callback(os.close, lock)
        except OSError as error:
            what = f"nothing can be copied from MODEL_DIR: {error.filename}: {error.strerror}"
            raise UsageProblem(what, "run madlite in a folder of yours") from error
        with suppress(OSError):  # a file system without locks: each file comes whole all the same
            acquire(lock, None)
        yield here, folder


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
    """Copies files from one folder to another; what they replace is backed up below the folder of runs."""

    def __init__(self, source: Path, here: Folder, runs: Folder) -> None:
        self._source, self._here, self._runs = source, here, runs
        self._backup = ""  # the folder of what was replaced, once anything was

    def copy(self, path: Path) -> bool:
        """Copy one file if it differs; return whether it was copied."""
        try:
            with self._here.parent_of(str(path), make=True) as (folder, name):
                return self._replace(path, folder, name)
        except OSError as error:
            _log.warning("%s is not copied from MODEL_DIR: %s", self._here.path / path, error.strerror or error)
            return False

    def _replace(self, path: Path, folder: Folder, name: str) -> bool:
        fd = open_plain(self._source / path)
        try:
            if _same_content(folder.path / name, self._source / path):
                return False
            disk, size = os.fstatvfs(folder.fd), os.fstat(fd).st_size
            copied = size + (folder.status(name).st_size if folder.holds(name) else 0)  # what is replaced is kept
            if copied > disk.f_bavail * disk.f_frsize:
                raise OSError(errno.ENOSPC, f"it is larger ({copied} bytes) than what is free", str(path))
            with folder.atomic(name, warn=False) as beside:  # the warning is that of the backup
                folder.copy_in(fd, path, beside, size)
                if folder.holds(name):
                    self._back_up(folder, name, path)
        finally:
            os.close(fd)
        return True

    def _back_up(self, folder: Folder, name: str, path: Path) -> None:
        """Copy a file that is to be replaced; a link is made again, a folder is moved."""
        if not self._backup:
            self._backup = f"replaced-{datetime.now(timezone.utc):%Y%m%dT%H%M%S}-{os.urandom(4).hex()}"
            os.mkdir(self._backup, 0o700, dir_fd=self._runs.fd)
        with self._runs.parent_of(f"{self._backup}/{path}", make=True) as (into, last):
            if stat.S_ISREG(folder.status(name).st_mode):
                fd = folder.open_file(name, os.O_RDONLY, make=False)
                try:
                    into.copy_in(fd, folder.path / name, last, os.fstat(fd).st_size)
                finally:
                    os.close(fd)
            elif stat.S_ISLNK(folder.status(name).st_mode):  # it stays until the file takes its place
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
