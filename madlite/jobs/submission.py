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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path

import msgspec

from madlite.batch.collect import attempts_of
from madlite.files import Folder, read_plain, shown, wrong_key
from madlite.model import Value
from madlite.plan.inputs import RUNS
from madlite.plan.submission import ENVIRONMENT, PLANS, PREFIX, SUBMISSION, VERSION, JobRun, JobScript, Submission
from madlite.platforms.registry import SCHEDULERS, is_job_id
from madlite.store.events import Event, EventLog, JobEnded, JobEvent, append
from madlite.store.folder import open_runs, real_folders
from madlite.store.locks import is_locked, open_locked
from madlite.text import first_of

_LOG = logging.getLogger(__name__)
LOCK = "submitting"
_LIMIT_BYTES = 256 << 20
UNKNOWN_JOB = "unknown"  # of a script that certainly was submitted, and whose job nobody knows any more


class Stored(Value, frozen=True):
    """A submission as its folder has it: what is known of its scripts, by number, and of its runs, by id.

    `scripts` has all events of each in one; `refused` beside a job is why no further attempt gets one.  `jobs` are the
    ids of the runs' jobs as the scheduler has them, of an array its element; of those that are known.
    """

    folder: Path
    submission: Submission
    scripts: dict[int, JobEvent]
    settled: dict[str, str]
    script_of: dict[str, JobScript]
    jobs: dict[str, str]

    @property
    def batch(self) -> tuple[str, str]:
        """The first submission of the batch whose runs these are, and its cluster."""
        return self.submission.goes_on or self.submission.id, self.submission.cluster

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

    def state_of(self, run: JobRun) -> JobEvent:
        """Return what is known of the script of a run."""
        return self.scripts.get(self.script_of[run.id].number, JobEvent())

    def is_submitting(self) -> bool:
        """Return whether a command is submitting it now."""
        return is_locked(self.folder / LOCK)


def new_submission_id() -> str:
    """Return an id that sorts by time and fits into the name of a job."""
    return f"{datetime.now(timezone.utc):%Y%m%dT%H%M%S}-{secrets.token_hex(3)}"


def job_name(submission_id: str, number: int) -> str:
    """Return the name of a job, which no other job has."""
    return f"madlite-{submission_id}-{number}"


@contextmanager
def locked(home: Folder) -> Iterator[None]:
    """Hold the lock of a submission's folder, once nobody else does."""
    lock = open_locked(home, LOCK)
    try:
        yield
    finally:
        os.close(lock)


@contextmanager
def submitting(folder: Path) -> Iterator[None]:
    """Keep other commands from submitting what has no job, and from giving it up.

    Raises:
        BlockingIOError: another command is submitting it.
        OSError: the folder cannot be opened.
    """
    with open_runs(folder.parent.parent) as runs, runs.below(folder.name) as home, locked(home):
        yield


def note(folder: Path, *events: JobEvent | JobEnded) -> None:
    """Record events of a submission, on the disk when this returns.

    Raises:
        OSError: they cannot be written.
    """
    own = (msgspec.structs.replace(event, submission=folder.name.removeprefix(PREFIX)) for event in events)
    with open_runs(folder.parent.parent) as runs:
        append(runs, *own, durable=True)


def settle(folder: Path, runs: Mapping[str, str]) -> Stored | None:
    """Note runs that have come to their end, each with how, and return the submission with them.

    The last one's end removes the file of secrets.

    Raises:
        OSError: it cannot be noted.
    """
    note(folder, *(JobEnded(run=run, how=how) for run, how in runs.items()))
    stored = read_stored(folder)
    if stored is not None and not stored.open_runs:
        with suppress(OSError), open_runs(folder.parent.parent) as all_runs, all_runs.below(folder.name) as home:
            home.remove(ENVIRONMENT)
    return stored


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
    scripts: dict[int, JobEvent] = {}
    settled: dict[str, str] = {}
    for event in _events(folder, submission):
        if isinstance(event, JobEnded):
            settled[event.run] = event.how
        elif isinstance(event, JobEvent):
            before = scripts.get(event.script, event)
            known = {key: getattr(event, key) or getattr(before, key) for key in ("job", "refused", "attempt")}
            scripts[event.script] = msgspec.structs.replace(event, **known)
    script_of = {run.id: script for script in submission.scripts for run in script.of(submission.runs)}
    return Stored(
        folder=folder,
        submission=submission,
        scripts=scripts,
        settled=settled,
        script_of=script_of,
        jobs={run.id: _job(run, script_of[run.id], scripts) for run in submission.runs if run.id in script_of},
    )


def _job(run: JobRun, script: JobScript, scripts: Mapping[int, JobEvent]) -> str:
    job = scripts[script.number].job if script.number in scripts else ""
    return f"{job}_{run.number - script.first + 1}" if job and script.count > 1 else job


def stored_submissions(workspace: Path, *, warn: bool = True) -> tuple[Stored, ...]:
    """Return the submissions of a working folder, the oldest first.

    Those with open runs that were not made there are named in a warning, unless `warn` is off.
    """
    runs = workspace / RUNS
    folders = [real_folder for real_folder in real_folders(runs) if real_folder.name.startswith(PREFIX)]
    own = EventLog.read(runs).made(folder.name.removeprefix(PREFIX) for folder in folders)
    # not by their ids, of which those of one second sort by chance
    found = sorted(filter(None, map(read_stored, folders)), key=lambda stored: stored.submission.created)
    foreign = [each.folder for each in found if each.submission.id not in own and each.open_runs]
    if foreign and warn:
        _LOG.warning(
            "%s: did not begin in this folder (copied or moved here), so left alone; madlite runs collect writes the "
            "rows of runs that ended here, madlite cluster jobs lists jobs",
            first_of([f"{RUNS}/{folder.name}" for folder in foreign], 3),
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


def folders_of_jobs(workspace: Path) -> set[Path]:
    """Return the folders of the runs that jobs of a cluster still have: what becomes of them their jobs decide."""
    stored = stored_submissions(workspace, warn=False)
    open_runs = [workspace / RUNS / run.id for submission in stored for run in submission.open_runs]
    return {folder for first in open_runs for folder in (first, *attempts_of(first))}
