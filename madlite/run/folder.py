"""The folder of one run: the plan, what was rendered, the log, and the record that says it ended.

A folder without `record.json` whose lock nobody holds is a run that was cut off.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import time
from collections.abc import Callable, Iterable
from datetime import datetime, timezone
from pathlib import Path

from madlite.errors import UsageProblem
from madlite.plan.make import RUNS, secrets_of
from madlite.secrets import collect, masked_json
from madlite.types import RunPlan

_TURN_S = 0.2
LOCK, HANDLE, RECORD, PLAN, LOG, CLEANED = "lock", "handle", "record.json", "plan.json", "run.log", "cleaned"


def new_run_id(card_name: str, now: datetime | None = None) -> str:
    """Return an id that sorts by time and is safe as file name, container label and shell word."""
    slug = re.sub(r"[^A-Za-z0-9]+", "-", card_name).strip("-")[:40] or "run"
    return f"{(now or datetime.now(timezone.utc)):%Y%m%dT%H%M%S}-{slug}-{secrets.token_hex(3)}"


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
        try:
            plan.folder.mkdir(parents=True)
            _hide_from_git(plan.folder.parent)
            lock = os.open(plan.folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            folder = cls(plan.folder, lock)
            folder.write(PLAN, masked_json(plan, (*known, *collect({}, secrets_of(plan).values()))).encode())
            for name, data in files:
                folder.write(name, data)
        except OSError as error:
            raise UsageProblem(
                f"the run folder {plan.folder} cannot be made: {error.strerror}", "run madlite in a folder of yours"
            ) from error
        return folder

    def write(self, name: str, data: bytes) -> None:
        """Write one file of the folder as a whole: a reader sees the old one or the new one.

        Raises:
            UsageProblem: the name leads out of the folder.
            OSError: it cannot be written.
        """
        target = self.path / name
        if not target.resolve().is_relative_to(self.path.resolve()):
            raise UsageProblem(f"a file of run {self.path.name} would be outside of its folder: {name!r}")
        target.parent.mkdir(parents=True, exist_ok=True)
        beside = target.with_name(f".{target.name}.{os.getpid()}")
        beside.write_bytes(data)
        beside.replace(target)

    def close(self) -> None:
        """Give the lock back."""
        os.close(self._lock)


def claim_model_dir(plan: RunPlan) -> tuple[str, int]:
    """Return the name of a folder of the workspace for the plan's script, and the lock that keeps it ours.

    It is the name that MAD's scripts know, unless another run of this workspace is in it.

    Raises:
        OSError: the workspace cannot be written to.
    """
    runs = plan.folder.parent
    runs.mkdir(parents=True, exist_ok=True)
    for name in (plan.model_dir, f"{plan.model_dir}_{plan.id[-6:]}"):
        lock = os.open(runs / f".{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
        else:
            return name, lock
    raise BlockingIOError(f"{plan.model_dir} is in use by other runs")


def claim_results(plan: RunPlan, keep_waiting: Callable[[], bool]) -> int | None:
    """Take the lock of the results file that the plan's script leaves in the workspace; None for a plan without one.

    Scripts write it to the one place that all runs of a folder share, so runs that use the same name take turns.

    Raises:
        OSError: the workspace cannot be written to.
        TimeoutError: `keep_waiting` said no before the lock was free.
    """
    name = plan.result_rule.file.replace("/", "_")
    if plan.result_rule.kind != "multiple_results" or not name:
        return None
    plan.folder.parent.mkdir(parents=True, exist_ok=True)
    lock = os.open(plan.folder.parent / f".{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not keep_waiting():
                os.close(lock)
                raise TimeoutError(f"another run of this folder still uses {name}") from None
            time.sleep(_TURN_S)
        else:
            return lock


def is_alive(folder: Path) -> bool:
    """Say whether a madlite process still holds the run."""
    return is_held(folder / LOCK)


def is_held(path: Path) -> bool:
    """Say whether a process holds a lock; one that is not there, or cannot be looked at, is not known to be held."""
    try:
        lock = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(lock)
    return False


def unfinished(workspace: Path) -> tuple[Path, ...]:
    """Return the folders of runs that were cut off, oldest first."""
    runs = workspace / RUNS
    if not runs.is_dir():
        return ()
    candidates = sorted(path.parent for path in runs.glob(f"*/{PLAN}"))
    ended = (RECORD, CLEANED)
    # the lock first: a run that ends between the two questions has its record by then
    return tuple(
        path for path in candidates if not is_alive(path) and not any((path / name).exists() for name in ended)
    )


def _hide_from_git(runs: Path) -> None:
    ignore = runs / ".gitignore"
    if not ignore.exists():
        ignore.write_text("*\n")
