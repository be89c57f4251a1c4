"""How jobs have ended, asked about as seldom as can be, and what they wrote last."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress

from madlite.files import read_regular
from madlite.jobs.schedulers import JobState, Scheduler, Unreachable
from madlite.jobs.submission import OUTPUT, JobRun, Stored

POLL_S = 10.0  # between two questions to the scheduler
LONG_S = 60.0  # after the end of a job, by the cluster's clock, its files certainly are seen here
_PATIENCE_S = 600.0  # for accounting that does not answer, where the controller has forgotten a job
_LIMIT_BYTES = 1 << 20
_ERROR = re.compile(
    rb"^(?:(?:error|slurmstepd(?:-[\w.-]+)?: error|srun: error|sbatch: error):|/\S+: line \d+:)\s*(.+)$", re.MULTILINE
)


class JobEnds:
    """The ends of jobs as far as the scheduler has told them; `tell` gets what people are told, once each."""

    def __init__(self, scheduler: Scheduler, clock: Callable[[], float], tell: Callable[[str], None]) -> None:
        self._scheduler, self._clock, self._tell = scheduler, clock, tell
        self._ends: dict[str, JobState] = {}
        self._ask_from = 0.0  # when those whose end could not be told may be asked about again
        self._unanswered: dict[str, float] = {}  # since when accounting does not tell of a job
        self.asked: set[str] = set()  # jobs that are over and were asked about at once

    def __contains__(self, job: object) -> bool:
        return job in self._ends

    def find_long_over(self, jobs: Sequence[str]) -> None:
        """Ask once about jobs in no queue, and note the ends of those that ended a minute ago."""
        self.asked.update(jobs)
        if not jobs:
            return
        with suppress(Unreachable):
            found = self._scheduler.ended(jobs)
            before_s = time.time() - LONG_S
            self._ends |= {job: one for job, one in found.items() if one.is_over and 0 < one.ended_s < before_s}

    def of(self, job: str, others: Collection[str], *, patient: bool) -> JobState | None:
        """Return how a job in no queue ended, and ask about `others` with it; None where that is not known now."""
        if job in self._ends:
            return self._ends[job]
        if self._clock() < self._ask_from:
            return None
        found: Mapping[str, JobState] | None = None
        with suppress(Unreachable):
            found = self._scheduler.ended(list(dict.fromkeys((job, *others))))
            self._ends |= {one: state for one, state in found.items() if state.state and state.is_over}
        state = JobState() if found is None else found.get(job, JobState())
        if found is None or not state.is_over or (patient and self._waits_for_accounting(job, state)):
            self._ask_from = self._clock() + POLL_S
            return None
        return self._ends.setdefault(job, state)

    def _waits_for_accounting(self, job: str, state: JobState) -> bool:
        """Return whether the end of a job that only accounting knows may still be told."""
        if state.state or not state.reason:
            return False
        self._tell(f"how job {job.partition('_')[0]} ended is not known yet: {state.reason}; accounting is waited for")
        since = self._unanswered.setdefault(job, self._clock())
        return self._clock() - since < _PATIENCE_S


def last_error(stored: Stored, run: JobRun) -> str:
    """Return the last error line of the output of a run's job, as madlite, srun or Slurm wrote it; "" for none."""
    script = stored.script_of[run.id]
    name = f"{script.number}-{run.number - script.first + 1}.out" if script.count > 1 else f"{script.number}.out"
    try:
        data = read_regular(stored.folder / OUTPUT / name, _LIMIT_BYTES)
    except OSError:
        return ""
    found = _ERROR.findall(data[-65536:])
    return found[-1].decode("utf-8", "replace").strip()[:300] if found else ""
