"""The folder of one run: the plan, what was rendered, the log, and the record that says it ended.

A folder without `record.json` whose lock nobody holds is a run that was cut off.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import stat
import time
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path

from madlite.errors import UsageProblem
from madlite.plan.make import RUNS, secrets_of
from madlite.run.regular import is_there, real_folders
from madlite.secrets import collect, masked_json
from madlite.types import RunPlan

ASKED_S, _ASKED_TURN_S = 2.0, 0.005  # who asks whether a lock is held has it for a moment
LOCK, HANDLE, RECORD, PLAN, LOG, CLEANED = "lock", "handle", "record.json", "plan.json", "run.log", "cleaned"
ROWS, STEPS, CONTEXT = "rows.json", "steps.jsonl", "context.json"
_NEW_LOCK = f".{LOCK}"
NOTE_BYTES = 16 << 10  # of the lock's file: taken from the disk at the start, for a note when it is full


def new_run_id(card_name: str, now: datetime | None = None) -> str:
    """Return an id that sorts by time and is safe as file name, container label and shell word."""
    slug = re.sub(r"[^A-Za-z0-9]+", "-", card_name).strip("-")[:40] or "run"
    return f"{(now or datetime.now(timezone.utc)):%Y%m%dT%H%M%S}-{slug}-{secrets.token_hex(3)}"


def check_runs_folder(workspace: Path) -> None:
    """Refuse a working folder in which something else has the name of the folder of runs.

    Raises:
        UsageProblem: it is a file, say.
    """
    runs = workspace / RUNS
    if runs.exists() and not runs.is_dir():
        raise UsageProblem(f"{runs} is no folder, and runs have their folders in one", f"mv {RUNS} {RUNS}.old")


class RunFolder:
    """An open run folder; the lock is held until `close`, also through a crash of the interpreter."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock = lock

    @classmethod
    def create(cls, plan: RunPlan, files: Iterable[tuple[str, bytes]], known: Iterable[str] = ()) -> RunFolder:
        """Make the folder, take its lock, and write the plan, `known` secrets masked, and the rendered files.

        Raises:
            UsageProblem: the working folder cannot be written to.
        """
        folder = None
        try:
            plan.folder.mkdir(parents=True)
            hide_from_git(plan.folder.parent)
            # nobody sees its lock before it is held and has its room: it would look like a run that was cut off
            folder = cls(plan.folder, _taken(plan.folder, _NEW_LOCK))
            folder.note(b"")
            (plan.folder / _NEW_LOCK).rename(plan.folder / LOCK)
            folder.write(PLAN, masked_json(plan, (*known, *collect({}, secrets_of(plan).values()))).encode())
            for name, data in files:
                folder.write(name, data)
        except (OSError, UsageProblem) as error:
            if folder is not None:
                folder.close()
            if isinstance(error, UsageProblem):
                raise
            raise UsageProblem(
                f"the run folder {plan.folder} cannot be made: {error.strerror}", "run madlite in a folder of yours"
            ) from error
        return folder

    @classmethod
    def reopen(cls, path: Path) -> RunFolder | None:
        """Return a folder that was begun and could not be filled, for what it still takes; None if that is nothing."""
        try:
            return cls(path, _taken(path))
        except OSError:
            return None

    def write(self, name: str, data: bytes) -> None:
        """Write one file of the folder as a whole: a reader sees the old one or the new one.

        A link that a workload laid in its place is replaced, whatever it names.

        Raises:
            UsageProblem: the name leads out of the folder.
            OSError: it cannot be written.
        """
        target = self.path / name
        if not Path(os.path.normpath(target)).is_relative_to(os.path.normpath(self.path)):
            raise UsageProblem(f"a file of run {self.path.name} would be outside of its folder: {name!r}")
        self._check_place()
        target.parent.mkdir(parents=True, exist_ok=True)
        if not Path(os.path.realpath(target.parent)).is_relative_to(os.path.realpath(self.path)):
            raise OSError(errno.ELOOP, f"a link is in the place of {target.parent.name}")
        beside = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            beside.unlink(missing_ok=True)  # a workload may have laid a link there
            with beside.open("xb") as file:
                file.write(data)
            beside.replace(target)
        except OSError:
            with suppress(OSError):
                beside.unlink(missing_ok=True)
            raise

    def stream(self, name: str, pieces: Iterable[bytes]) -> str:
        """Write one file piece by piece, whole or not at all; return what kept it from being written."""
        beside = self.path / f".{name}.{os.getpid()}"
        try:
            self._check_place()
            beside.unlink(missing_ok=True)
            with beside.open("xb") as file:
                file.writelines(pieces)
            beside.replace(self.path / name)
        except OSError as error:
            with suppress(OSError):
                beside.unlink(missing_ok=True)
            return f"{name} could not be written: {error.strerror}"
        return ""

    def _check_place(self) -> None:
        """Refuse to write where a workload moved the folder away and laid a link in its place."""
        if self.path.is_symlink():
            raise OSError(errno.ELOOP, "a link is in the place of the run's folder")

    def note(self, data: bytes) -> str:
        """Write into the lock's file, which is there with room for it: a full disk takes it, and one without inodes.

        Returns what kept it from being written; nothing as a note takes the last one away.  A file without its room
        says that there may be more to tell than it could take.
        """
        try:
            for size in (NOTE_BYTES, len(data)):  # over what is there first; a longer note needs more
                if os.pwrite(self._lock, data.ljust(NOTE_BYTES)[:size], 0) < size:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.ftruncate(self._lock, max(NOTE_BYTES, len(data)))
        except OSError as error:
            with suppress(OSError):
                os.ftruncate(self._lock, 0)
            return f"{LOCK} could not be written: {error.strerror}"
        return ""

    def remove(self, name: str) -> None:
        """Take one file away; where that is not possible, it stays."""
        with suppress(OSError):
            (self.path / name).unlink(missing_ok=True)

    def put(self, name: str, text: str) -> str:
        """Write one file of text; return what kept it from being written, for a full disk costs no verdict."""
        try:
            self.write(name, text.encode("utf-8", "backslashreplace"))
        except OSError as error:
            return f"{name} could not be written: {error.strerror}"
        return ""

    def close(self) -> None:
        """Give the lock back."""
        os.close(self._lock)


def _taken(folder: Path, name: str = LOCK) -> int:
    lock = os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        hold(lock)
    except OSError:
        os.close(lock)
        raise
    return lock


def hold(lock: int, limit_s: float = ASKED_S) -> None:
    """Take a lock of our own, which nobody has for longer than it takes to ask whether it is held.

    Raises:
        OSError: somebody has it, or there are no locks here.
    """
    until_s = time.monotonic() + limit_s
    while True:
        try:
            return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until_s:
                raise
            time.sleep(_ASKED_TURN_S)


def is_alive(folder: Path) -> bool:
    """Say whether a madlite process still holds the run."""
    return is_held(folder / LOCK)


def is_held(path: Path, *, unknown: bool = False) -> bool:
    """Say whether a process holds a lock; not that of a file that is gone; `unknown`, where it cannot be asked."""
    try:
        lock = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return unknown
    try:  # shared: two that ask do not take each other for its holder, and NFS wants a file open for writing otherwise
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(lock)
    return False


def unfinished(workspace: Path) -> tuple[Path, ...]:
    """Return the folders of runs that were cut off, oldest first; on a full disk one has no plan, only its lock."""
    runs = workspace / RUNS
    if not runs.is_dir():
        return ()
    candidates = [one for one in real_folders(runs) if is_there(one / PLAN) or is_there(one / LOCK)]
    # the lock first: a run that ends between the two questions has its record by then
    return tuple(path for path in candidates if not is_alive(path) and not _has_ended(path))


def _has_ended(folder: Path) -> bool:
    """Say whether a run's end is on the disk; a link or a folder of such a name is a workload's."""
    for name in (RECORD, CLEANED):
        with suppress(OSError):
            if stat.S_ISREG((folder / name).lstat().st_mode):
                return True
    return False


def hide_from_git(runs: Path) -> None:
    """Keep the folder of runs out of the checkout's version control."""
    ignore = runs / ".gitignore"
    if not ignore.exists():
        ignore.write_text("*\n")
