"""A submission: the runs that one command gave to a cluster, on the disk before the first job is.

`madlite_runs/jobs-<id>/` has submission.json, the plan files, the job scripts and the jobs' own output.  The event log
gets an event before and after each job is submitted, and when a run has ended: it has a row, or never gets one.  What
submits may be killed between any two of these; the name of a job finds it in the cluster's queue.

A submission that did not begin in the folder, which was copied or unpacked there, is left alone.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path

import msgspec

from madlite.errors import UsageProblem
from madlite.files import Folder, read_plain, shown, write_all, wrong_key
from madlite.model import Value, to_json
from madlite.plan.inputs import RUNS
from madlite.plan.submission import (
    ENVIRONMENT,
    OUTPUT,
    PLANS,
    PREFIX,
    SUBMISSION,
    VERSION,
    JobRun,
    JobScript,
    Submission,
    folder_of,
)
from madlite.platforms.registry import SCHEDULERS, is_job_id
from madlite.store.events import Event, EventLog, JobEnded, JobEvent, Submitted, append
from madlite.store.folder import open_runs, real_folders
from madlite.store.locks import acquire, is_locked

_LOG = logging.getLogger(__name__)
LOCK = "submitting"
_LIMIT_BYTES = 256 << 20
UNKNOWN_JOB = "unknown"  # of a script that certainly was submitted, and whose job nobody knows any more


class ScriptState(Value, frozen=True):
    """What the event log has of a script; `refused` beside a job is why no further attempt gets one."""

    job: str = ""
    refused: str = ""
    attempt: str = ""


class Stored(Value, frozen=True):
    """A submission as its folder has it: what is known of its scripts, by number, and of its runs, by id.

    `jobs` are the ids of the runs' jobs as the scheduler has them, of an array its element; of those that are known.
    """

    folder: Path
    submission: Submission
    scripts: dict[int, ScriptState]
    settled: dict[str, str]
    script_of: dict[str, JobScript]
    jobs: dict[str, str]

    @property
    def open_runs(self) -> tuple[JobRun, ...]:
        """The runs that have neither a row nor a reason for none."""
        return tuple(run for run in self.submission.runs if run.id not in self.settled)

    @property
    def unsubmitted(self) -> tuple[JobScript, ...]:
        """The scripts that have neither a job nor a reason for none, as far as is known."""
        done = {number for number, state in self.scripts.items() if state.job or state.refused}
        return tuple(script for script in self.submission.scripts if script.number not in done)

    def is_begun(self, script: JobScript) -> bool:
        """Return whether a script was submitted, or was about to be."""
        return script.number in self.scripts

    def plan_file(self, run: JobRun) -> Path:
        """Return the plan file of a run."""
        return self.folder / PLANS / f"{run.number}.json"

    def job_of(self, run: JobRun) -> str:
        """Return the id of a run's job; "" where none is known."""
        return self.jobs.get(run.id, "")

    def state_of(self, run: JobRun) -> ScriptState:
        """Return what is known of the script of a run."""
        return self.scripts.get(self.script_of[run.id].number, ScriptState())

    def is_submitting(self) -> bool:
        """Return whether a command is submitting it now."""
        return is_locked(self.folder / LOCK)


def new_submission_id() -> str:
    """Return an id that sorts by time and fits into the name of a job."""
    return f"{datetime.now(timezone.utc):%Y%m%dT%H%M%S}-{secrets.token_hex(3)}"


def job_name(submission_id: str, number: int) -> str:
    """Return the name of a job, which no other job has."""
    return f"madlite-{submission_id}-{number}"


class OpenSubmission:
    """The folder of a submission, open for notes; while it is made its lock is held, until `close`."""

    def __init__(self, home: Folder, lock: int = -1) -> None:
        self._home, self._lock = home, lock

    @property
    def path(self) -> Path:
        """Where the folder is."""
        return self._home.path

    @classmethod
    def create(
        cls,
        workspace: Path,
        submission: Submission,
        files: Iterable[tuple[str, bytes]],
        environment: Mapping[str, str],
    ) -> OpenSubmission:
        """Make the folder with its plan files and scripts; `environment` goes to a file that its owner alone can read.

        Raises:
            UsageProblem: it cannot be made.
        """
        try:
            with open_runs(workspace, make=True) as runs:
                home = runs.below(f"{PREFIX}{submission.id}", new=True)
            os.fchmod(home.fd, 0o700)
            lock = home.open_file(LOCK)
            acquire(lock)
            opened = cls(home, lock)
            home.below(OUTPUT, new=True).close()
            if environment:
                opened._write_private(environment)
            for name, data in files:
                with home.parent_of(name, make=True) as (folder, last):
                    fd = folder.create(last, mode=0o600)
                    try:
                        write_all(fd, data)
                    finally:
                        os.close(fd)
            with open_runs(workspace) as runs:
                event = Submitted(submission=submission.id, runs=tuple(run.id for run in submission.runs))
                append(runs, event, durable=True)
            home.write(SUBMISSION, to_json(submission).encode())
            os.fsync(home.fd)
        except OSError as error:
            where = error.filename or folder_of(workspace, submission.id)
            raise UsageProblem(
                f"the files of the jobs cannot be written: {error.strerror or error} ({where})",
                "run madlite in a folder of yours, on a disk with room",
            ) from error
        return opened

    @classmethod
    def reopen(cls, folder: Path, *, submitting: bool = False) -> OpenSubmission:
        """Open the folder of an earlier submission for notes; with `submitting` also to submit what was not.

        Raises:
            BlockingIOError: another command is submitting it.
            OSError: it cannot be opened.
        """
        with open_runs(folder.parent.parent) as runs:
            opened = cls(runs.below(folder.name))
        if submitting:
            try:
                opened._lock = opened._home.open_file(LOCK)
                acquire(opened._lock)
            except OSError:
                opened.close()
                raise
        return opened

    def note(self, *events: JobEvent | JobEnded) -> None:
        """Record events of this submission, on the disk when this returns.

        Raises:
            OSError: they cannot be written.
        """
        own = (msgspec.structs.replace(event, submission=self._home.path.name.removeprefix(PREFIX)) for event in events)
        with open_runs(self._home.path.parent.parent) as runs:
            append(runs, *own, durable=True)

    def settle(self, runs: Mapping[str, str]) -> None:
        """Note runs that have come to their end, each with how; the last one's end removes the file of secrets.

        Raises:
            OSError: it cannot be noted.
        """
        self.note(*(JobEnded(run=run, how=how) for run, how in runs.items()))
        stored = read_stored(self._home.path)
        if stored is not None and not stored.open_runs:
            self._home.remove(ENVIRONMENT)

    def submitted(self) -> None:
        """Release the lock: every script has its job, or a reason for none."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def close(self) -> None:
        """Close the folder."""
        self.submitted()
        self._home.close()

    def __enter__(self) -> OpenSubmission:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _write_private(self, environment: Mapping[str, str]) -> None:
        from madlite.plan.render import quote_shell

        fd = self._home.create(ENVIRONMENT, mode=0o600)
        try:
            lines = [f"export {name}={quote_shell(value)}\n" for name, value in environment.items()]
            write_all(fd, "".join(lines).encode("utf-8", "surrogateescape"))
        finally:
            os.close(fd)


def read_stored(folder: Path) -> Stored | None:
    """Return the submission of a folder; None where it has none that can be read: it was cut off while it was made."""
    try:
        data = read_plain(folder / SUBMISSION, links=False, limit_bytes=_LIMIT_BYTES)
        submission = msgspec.json.decode(data, type=Submission)
    except msgspec.ValidationError as error:
        what = wrong_key(error, msgspec.json.decode(data))[1]
        _LOG.warning("%s: its %s is not read: %s", shown(folder), SUBMISSION, what)
        return None
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
    if submission.version != VERSION or folder.lstat().st_uid != os.geteuid():
        return None
    if folder.name != f"{PREFIX}{submission.id}" or submission.scheduler not in SCHEDULERS:
        return None
    scripts: dict[int, ScriptState] = {}
    settled: dict[str, str] = {}
    for note in _events(folder, submission):
        if isinstance(note, JobEnded):
            settled[note.run] = note.how
        elif isinstance(note, JobEvent):
            before = scripts.get(note.script, ScriptState())
            scripts[note.script] = ScriptState(
                job=note.job or before.job,
                refused=note.refused or before.refused,
                attempt=note.attempt or before.attempt,
            )
    script_of = {run.id: script for script in submission.scripts for run in script.of(submission.runs)}
    return Stored(
        folder=folder,
        submission=submission,
        scripts=scripts,
        settled=settled,
        script_of=script_of,
        jobs={run.id: _job(run, script_of[run.id], scripts) for run in submission.runs if run.id in script_of},
    )


def _job(run: JobRun, script: JobScript, scripts: Mapping[int, ScriptState]) -> str:
    job = scripts[script.number].job if script.number in scripts else ""
    return f"{job}_{run.number - script.first + 1}" if job and script.count > 1 else job


def stored_submissions(workspace: Path, wanted: Sequence[str] = (), *, warn: bool = True) -> tuple[Stored, ...]:
    """Return the submissions of a working folder, the oldest first; with `wanted` those of these ids.

    Those with open runs that were not made there are named in a warning, unless `warn` is off.
    """
    runs = workspace / RUNS
    folders = [real_folder for real_folder in real_folders(runs) if real_folder.name.startswith(PREFIX)]
    if wanted:
        folders = [folder for folder in folders if folder.name.removeprefix(PREFIX) in wanted]
    own = EventLog.read(runs).made(folder.name.removeprefix(PREFIX) for folder in folders)
    found = [stored for folder in folders if (stored := read_stored(folder)) is not None]
    foreign = [
        submission.folder.name for submission in found if submission.submission.id not in own and submission.open_runs
    ]
    if foreign and warn:
        more = f" and {len(foreign) - 3} more" if len(foreign) > 3 else ""
        _LOG.warning(
            "%s%s: did not begin in this folder (copied or moved here), so left alone; madlite runs collect writes the "
            "rows of runs that ended here, squeue --me lists jobs",
            ", ".join(f"{RUNS}/{name}" for name in foreign[:3]),
            more,
        )
    return tuple(submission for submission in found if submission.submission.id in own)


def _events(folder: Path, submission: Submission) -> Iterator[Event]:
    """Yield the events of a submission; an id of a job that is none of its scheduler's is left out."""
    for event in EventLog.read(folder.parent).about(submission.id):
        if isinstance(event, JobEvent) and event.job != UNKNOWN_JOB and not is_job_id(event.job, submission.scheduler):
            # a script whose job is none is looked for by its name
            yield msgspec.structs.replace(event, job="")
        else:
            yield event
