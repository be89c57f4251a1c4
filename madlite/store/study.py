"""The folder of a study in the folder of runs: the caches of its runs while it goes on, and what it came to.

`study-ID` has a lock as long as its madlite lives.  The caches are removed at its end; what a kill left is `clean`'s.
One that did not begin in this folder was copied or unpacked there, and is not resumed.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from madlite.files import Folder, read_plain
from madlite.model import Json
from madlite.plan.inputs import RUNS
from madlite.store.events import EventLog, Requested, StudyStarted, append
from madlite.store.folder import exists, open_runs, real_folders
from madlite.store.locks import is_locked, open_locked

_LOG = logging.getLogger(__name__)
SUMMARY = "study.json"
_LIMIT_BYTES = 16 << 20
_CACHES, _LOCK, _PREFIX = "caches", "study.lock", "study-"
_NAME = re.compile(r"study-(?P<id>\d{8}T\d{6}-[0-9a-f]{6})")


class StudyFolder:
    """The folder of a study that goes on; its caches are there until `close`."""

    def __init__(self, home: Folder, lock: int) -> None:
        self._home, self._lock = home, lock

    @classmethod
    def create(
        cls, workspace: Path, study_id: str, kind: str = "", request: dict[str, Json] | None = None
    ) -> StudyFolder:
        """Make the folder and take its lock; the event log has what was asked for, for a command that resumes it.

        Raises:
            OSError: it cannot be made.
        """
        with open_runs(workspace, make=True) as runs:
            append(runs, StudyStarted(study=study_id, kind=kind, request=request or {}))
            home = runs.below(study_path(workspace, study_id).name, new=True)
        return cls._locked(home)

    @classmethod
    def _locked(cls, home: Folder) -> StudyFolder:
        try:
            return cls(home, open_locked(home, _LOCK))
        except OSError:
            home.close()
            raise

    @classmethod
    def reopen(cls, workspace: Path, study_id: str) -> StudyFolder:
        """Take the lock of the folder of a study that was cut off, which is made where there is none.

        Raises:
            BlockingIOError: its madlite lives.
            OSError: it cannot be opened, or was not made in this folder.
        """
        path, is_known = study_path(workspace, study_id), bool(EventLog.read(workspace / RUNS).made([study_id]))
        if not is_known and not exists(path):
            return cls.create(workspace, study_id)
        if not is_known:
            raise PermissionError(errno.EPERM, "it did not begin in this folder", str(path))
        with open_runs(workspace) as runs:
            home = runs.below(path.name, make=True)
        return cls._locked(home)

    @property
    def path(self) -> Path:
        """Where the folder is."""
        return self._home.path

    def make_caches(self, name: str, folders: Iterable[str], *, empty: bool = False) -> None:
        """Make the caches of a series or a run; `empty` removes what an earlier command left of them.

        Raises:
            OSError: they cannot be made.
        """
        if empty and exists(self.path / _CACHES / name):
            self._home.remove_tree(f"{_CACHES}/{name}")
        for folder in folders:
            self._home.below(f"{_CACHES}/{name}/{folder}", make=True).close()

    def write(self, name: str, text: str) -> str:
        """Write a file of the study; return the error message, "" if none."""
        try:
            self._home.write(name, text.encode("utf-8", "backslashreplace"))
        except OSError as error:
            return f"{self.path / name} could not be written: {error.strerror}"
        return ""

    def close(self) -> str:
        """Remove the caches and release the lock; return why something of them stays, "" if nothing does."""
        problem = remove_caches(self.path) if self._home.is_in_place() else f"{self.path} was moved away"
        if not problem:
            self._home.remove(_LOCK)
        os.close(self._lock)
        self._home.close()
        with suppress(OSError):  # it holds a summary
            self.path.rmdir()
        return problem


def read_summary(workspace: Path, study_id: str) -> bytes:
    """Return what a study came to, as it was written at its end.

    Raises:
        OSError: it cannot be read, or is no plain file.
    """
    return read_plain(study_path(workspace, study_id) / SUMMARY, links=False, limit_bytes=_LIMIT_BYTES)


def studies_of(workspace: Path, kind: str) -> list[StudyStarted]:
    """Return the studies of a kind that began in this folder and requested a run, the newest last.

    Those of another folder, which were copied here, are named in a warning.
    """
    log = EventLog.read(workspace / RUNS)
    requested = {requested.study for requested in log.of(Requested)}
    found = [study for study in log.of(StudyStarted) if study.kind == kind and study.study in requested]
    own = log.made(study.study for study in found)
    if foreign := [study.study for study in found if study.study not in own]:
        more = f" and {len(foreign) - 3} more" if len(foreign) > 3 else ""
        _LOG.warning(
            "study %s%s did not begin in this folder (%s was copied or moved here), so it is not resumed",
            ", ".join(foreign[:3]),
            more,
            RUNS,
        )
    return sorted((study for study in found if study.study in own), key=lambda study: study.study)


def is_running(workspace: Path, study_id: str) -> bool:
    """Return whether the madlite of a study lives."""
    return is_locked(study_path(workspace, study_id) / _LOCK)


def study_path(workspace: Path, study_id: str) -> Path:
    """Return where the folder of a study is."""
    return workspace / RUNS / f"{_PREFIX}{study_id}"


def has_caches(folder: Path) -> bool:
    """Return whether caches are in the folder of a study, of whichever series."""
    return exists(folder / _CACHES)


def caches_path(workspace: Path, study_id: str, name: str) -> Path:
    """Return where the caches of a series or a run of a study are."""
    return study_path(workspace, study_id) / _CACHES / name


def remove_caches(folder: Path) -> str:
    """Remove the caches of a study's folder; return why something of them stays, "" if nothing does.

    A link that a workload laid in their place is removed, and not followed.
    """
    caches = folder / _CACHES
    try:
        if caches.is_symlink():
            caches.unlink()
        elif exists(caches):
            shutil.rmtree(caches)
    except OSError as error:
        return f"{error.filename or caches} stays: {error.strerror or error}"
    return ""


def remove_study(folder: Path) -> str:
    """Remove what a study that was cut off left; return why something of it stays, "" if nothing does.

    What it came to is kept where it is known.
    """
    problem = remove_caches(folder)
    if not problem:
        with suppress(OSError):
            (folder / _LOCK).unlink(missing_ok=True)
            folder.rmdir()
    return problem


def cut_off_studies(workspace: Path) -> Iterator[tuple[str, Path]]:
    """Yield the ids and folders of the studies whose madlite is gone and that left something; links are skipped."""
    for folder in real_folders(workspace / RUNS):
        found = _NAME.fullmatch(folder.name)
        if found is None or is_locked(folder / _LOCK, unknown=True):
            continue
        if exists(folder / _LOCK) or has_caches(folder):
            yield found["id"], folder
