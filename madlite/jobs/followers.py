"""Processes that bring runs to the working folder whose jobs cannot write there: a `madlite run --plan` each."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from madlite.jobs.submission import OUTPUT, PLANS, JobRun, read_stored
from madlite.process import start
from madlite.store.folder import RECORD, RESULT, exists, open_runs
from madlite.store.locks import acquire

_MOST = 16  # at the same time
_TRIES = 3


class Followers:
    """What this process started; it goes on without it, and nobody else follows the same run meanwhile.

    A run's lock is open in the process that follows it, and free as soon as that one has ended, however.
    """

    def __init__(self) -> None:
        self._running: dict[str, tuple[subprocess.Popen[bytes], Path]] = {}
        self._failed: Counter[str] = Counter()

    def follow(self, folder: Path, job: str, run: JobRun, environ: Mapping[str, str]) -> None:
        """Start to follow the job of a run of the submission in `folder`, unless that is done, or somebody does it."""
        home = folder.parent / run.id
        self._reap()
        if job in self._running or self.gave_up(job) or len(self._running) >= _MOST:
            return
        if exists(home / RESULT) or exists(home / RECORD):
            return
        try:
            lock = os.open(
                folder / OUTPUT / f"{run.number}.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
            )
            try:
                acquire(lock, 0)
                self._running[job] = _start(folder, run, environ, lock), home
            finally:
                os.close(lock)
        except BlockingIOError:
            return
        except OSError:
            self._failed[job] += 1

    def gave_up(self, job: str) -> bool:
        """Return whether a job could not be followed, and is not tried again."""
        return self._failed[job] >= _TRIES

    def are_busy(self) -> bool:
        """Return whether one of them runs."""
        return any(process.poll() is None for process, _ in self._running.values())

    def _reap(self) -> None:
        for job, (process, home) in list(self._running.items()):
            if process.poll() is not None:
                del self._running[job]
                self._failed[job] += not (exists(home / RESULT) or exists(home / RECORD))


def _start(folder: Path, run: JobRun, environ: Mapping[str, str], lock: int) -> subprocess.Popen[bytes]:
    """Start what follows a run; the folder of one that was killed meanwhile goes, for the log is read anew.

    Raises:
        OSError: it cannot be started.
    """
    workspace = folder.parent.parent
    if exists(folder.parent / run.id):
        with open_runs(workspace) as runs:
            runs.remove_tree(run.id)
    plan = folder / PLANS / f"{run.number}.json"
    stored = read_stored(folder)
    retries = stored.submission.retries.count if stored is not None else 0
    again = ["--retry", str(retries)] if retries else []  # for the record: who settles the runs starts an attempt
    with (folder / OUTPUT / f"{run.number}.out").open("ab") as output:
        return start(
            [sys.executable, "-m", "madlite", "run", "--plan", str(plan), "--no-rows", "--attempt", run.id, *again],
            env=environ,
            cwd=workspace,
            stdout=output.fileno(),
            stderr=subprocess.STDOUT,
            pass_fds=[lock],
        )
