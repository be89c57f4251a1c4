"""What brings runs here whose jobs do not write to the working folder: threads of the process that waits for them.

Each takes the plan of a run to its result, as `madlite run` does, over a job that is there already: it reads the log
from its beginning.  The process may be killed at any time, for another one reads the same log.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path

from madlite.cancellation import in_thread
from madlite.errors import MadliteError
from madlite.files import Folder
from madlite.jobs.submission import read_stored
from madlite.model import Runtime
from madlite.plan.submission import OUTPUT, PLANS, JobRun, RetryPolicy, submitted_secrets
from madlite.run.screen import Screen
from madlite.store.folder import RECORD, RESULT, exists, open_runs
from madlite.store.locks import open_locked, release

_MOST = 16  # at the same time
_TRIES = 3


class Followers:
    """The jobs that this process follows, each in a thread; nobody else follows the same run meanwhile.

    A run's lock is open while it is followed, and free as soon as this process has ended, however.
    """

    def __init__(self) -> None:
        self._running: dict[str, tuple[Future[None], Path]] = {}
        self._failed: Counter[str] = Counter()

    def follow(self, folder: Path, job: str, run: JobRun, runtime: Runtime, environ: Mapping[str, str]) -> None:
        """Start to follow the job of a run of the submission in `folder`, unless that is done, or somebody does it.

        `runtime` has the job as the session of the plan, whose secrets are those of `environ` and of the submission.
        """
        home = folder.parent / run.id
        self._reap()
        if job in self._running or self.gave_up(job) or len(self._running) >= _MOST:
            return
        try:
            with Folder.open(folder / OUTPUT) as output:
                lock = open_locked(output, f"{run.number}.lock", 0)
        except OSError as error:
            self._failed[job] += not isinstance(error, BlockingIOError)
            return
        if _is_done(home):
            release(lock)
            return
        given = {**environ, **submitted_secrets(folder)}
        try:  # who ends the command does not wait for pods: another one reads their logs
            work = in_thread(lambda: _follow(folder, run, runtime, given, lock), f"madlite-{run.id}")
        except RuntimeError:  # this user may have no further thread
            release(lock)
            self._failed[job] += 1
            return
        self._running[job] = work, home

    def gave_up(self, job: str) -> bool:
        """Return whether a job could not be followed, and is not tried again."""
        return self._failed[job] >= _TRIES

    def are_busy(self) -> bool:
        """Return whether one of them is being followed."""
        return any(not work.done() for work, _ in self._running.values())

    def _reap(self) -> None:
        for job, (work, home) in list(self._running.items()):
            if work.done():
                del self._running[job]
                self._failed[job] += not _is_done(home)


def _is_done(home: Path) -> bool:
    return exists(home / RESULT) or exists(home / RECORD)


def _follow(folder: Path, run: JobRun, runtime: Runtime, environ: Mapping[str, str], lock: int) -> None:
    """Follow a run to its result; what keeps it from that is the last line of its output."""
    screen = _Output(folder / OUTPUT / f"{run.number}.out")
    try:
        follow_run(folder, run, runtime, environ, screen)
    except MadliteError as problem:
        screen.say(f"error: {problem.message}")
    except Exception as error:  # noqa: BLE001 - nobody waits for this thread: it would be lost
        screen.say(f"error: {type(error).__name__}: {error}")
    finally:
        release(lock)


class _Output:
    """A screen of a run that is followed: what is wrong is kept in a file of the submission, the rest not shown."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def _ignore(self, *_shown: object, **_named: object) -> None:
        """Show nothing."""

    started = logs = phase = stopping = output = mad_line = step = _ignore
    finished = retrying = waiting = end = overall = _ignore

    def warn(self, text: str) -> None:
        """Something is wrong that does not end a run."""
        self.say(f"warning: {text}")

    def say(self, text: str) -> None:
        """Add a line; a disk that is full loses it, and no run."""
        try:
            with self._file.open("a", encoding="utf-8") as output:
                output.write(f"{text}\n")
        except OSError:
            return


def follow_run(folder: Path, run: JobRun, runtime: Runtime, environ: Mapping[str, str], screen: Screen) -> None:
    """Take the plan of a run of the submission in `folder` to its result by a runtime that has its job already.

    The folder of one that was cut off goes, for the log is read anew.

    Raises:
        MadliteError: the plan cannot be read any more, or has nothing to run on here.
        Exception: a bug, once the result is written.
    """
    from madlite.backends.loader import load_with_readers
    from madlite.batch.resume import standing_before
    from madlite.batch.runner import Batch, BatchSettings
    from madlite.plan.context import Options
    from madlite.plan.plan_file import read_plan_file
    from madlite.run.from_plan import bind_plan, planned_environ
    from madlite.run.planning import check_plans

    workspace, stored = folder.parent.parent, read_stored(folder)
    if exists(folder.parent / run.id):
        with open_runs(workspace) as runs:
            runs.remove_tree(run.id)
    saved = read_plan_file(folder / PLANS / f"{run.number}.json", environ)
    options = Options(
        workspace=workspace,
        output=workspace / "perf.csv",
        rows=False,  # who settles the runs writes them
        strict_header=stored is not None and stored.submission.strict_header,
        columns=stored.submission.columns if stored is not None else (),
        environ=planned_environ(saved, environ),
        python=sys.executable,
        user=(os.getuid(), os.getgid()),
        command=saved.command,
    )
    own = stored.submission.options if stored is not None else ()
    plugins = load_with_readers(environ, only_built_in="--no-plugins" in own)
    bound = bind_plan(saved, run.id, options, saved.plan.machine, plugins, {runtime.name: runtime})
    planned, warnings = check_plans([bound], plugins, "--no-lint" not in own)
    for text in warnings:
        screen.warn(text)
    # for the record: who settles the runs starts a further attempt
    retry = RetryPolicy(retries=stored.submission.retry.retries if stored is not None else 0, elsewhere=True)
    settings = BatchSettings(retry=retry, standing=standing_before(planned[0].plan))
    outcome = Batch(planned, options, plugins, screen, settings=settings).run()
    if outcome.bug is not None:
        raise outcome.bug
