"""What follows a failed attempt of a run whose job does not retry inside: another attempt, with a job of its own.

The journal of the failed attempt names the next one, then the event log names its job.  Whoever follows may be killed
between the two: the next one goes on from there.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from madlite.batch.attempts import RetryPolicy, next_attempt
from madlite.jobs.failed_run import read_plan
from madlite.jobs.submission import PLANS, JobRun, Stored
from madlite.store.events import now
from madlite.store.folder import RunFolder, new_run_id
from madlite.store.journal import RunEntry, read_run
from madlite.store.record import result_of
from madlite.store.stored import load_result

_BUSY_S = 10.0  # until a cluster that did not answer is asked again


class Retrying:
    """When the further attempts of a submission's runs are due; `say` gets what is told of them."""

    def __init__(self, clock: Callable[[], float], say: Callable[[str], None]) -> None:
        self._clock, self._say = clock, say
        self._due_s: dict[str, float] = {}  # by the id of the attempt

    def follow(self, stored: Stored, run: JobRun, folder: Path) -> str:
        """Return the id of the attempt that follows the one of a folder, which has a result; "" where that stands.

        Raises:
            BlockingIOError: another process decides that now.
            OSError, RecordError, UsageProblem: the result or the plan cannot be read, or the next one not be noted.
        """
        if following := read_run(folder).next:
            return following
        record = load_result(folder).record
        result = result_of(record)
        plan = read_plan(stored.folder / PLANS / f"{run.number}.json")
        retries = stored.submission.retries
        policy = RetryPolicy(retries=retries.count, wait_s=retries.wait_s)
        earlier = result.attempt.earlier if result.attempt is not None else ()
        found = next_attempt(policy, plan, result, earlier)
        if found is None:
            return ""
        opened = RunFolder.reopen(folder)
        try:
            if following := read_run(folder).next:  # by now
                return following
            following = new_run_id(run.card)
            opened.note(RunEntry(at=now(), next=following))
        finally:
            opened.close()
        self._due_s[following] = self._clock() + found.wait_s
        self._say(f"{folder.name}: FAILURE [{result.code}] {result.reason}; {found.when}, as {following}")
        return following

    def is_due(self, attempt: str) -> bool:
        """Return whether an attempt has waited for long enough; one that an earlier command noted has."""
        return self._clock() >= self._due_s.get(attempt, 0.0)

    def postpone(self, attempt: str) -> None:
        """Wait a moment longer: the cluster does not answer."""
        self._due_s[attempt] = self._clock() + _BUSY_S
