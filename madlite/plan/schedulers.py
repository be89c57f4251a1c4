"""What a scheduler of a platform has to do, and what it says of jobs; `platforms.registry` names those there are."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, Protocol

from madlite.errors import RuntimeProblem
from madlite.model import Cause, Json, Runtime, Value
from madlite.plan.cluster import Cluster
from madlite.plan.context import Options
from madlite.plan.submission import JobScript, ScriptInputs


class JobEnd(Value, frozen=True):
    """Why a job ended, or its run has no result of its own, as the row and the record have it."""

    cause: Cause
    reason: str
    hint: str = ""


TIMED_OUT = JobEnd(Cause.TIMEOUT, "the job's time was over", "a longer time in the cluster file, or fewer steps")


def cancelled_end(nodes: str = "") -> JobEnd:
    """Return the end of a job that somebody cancelled."""
    return JobEnd(Cause.INTERRUPTED, f"the job was cancelled{f' on {nodes}' if nodes else ''}")


class JobState(Value, frozen=True):
    """What a scheduler says of a job; `state` is its own word, which people see, "" where it does not know the job.

    `stage` is how far it is, `unknown` before the scheduler was asked.

    `reason` is why a job waits, or ended so; where there is no state, why nobody could be asked of it.  `never` is what
    to change of one that can never start as it was asked for, `waits` what to do about one that is held, or waits for
    a limit of its group, and may do so for ever.

    `ended_by` is why the scheduler ended it, None of one whose script ended by itself, and then `succeeded` or not.
    `code` is the exit code of its script, `signal` what ended it, `derived` the highest exit code of its steps.
    `ends` is when its time is over, as the scheduler writes it; `restarts` how often it was queued again, and `earlier`
    why it had ended before that, None where nobody knows.
    """

    state: str = ""
    stage: Literal["unknown", "pending", "running", "over"] = "over"
    reason: str = ""
    never: str = ""
    waits: str = ""
    ended_by: JobEnd | None = None
    succeeded: bool = False
    code: int | None = None
    signal: int = 0
    derived: int | None = None
    nodes: str = ""
    ends: str = ""
    restarts: int = 0
    earlier: JobEnd | None = None


class Unreachable(RuntimeProblem):
    """The scheduler does not answer: what was asked for may have happened all the same."""


class Refused(RuntimeProblem):
    """The scheduler does not take a job, and would not take it a second time."""


class Translation(Value, frozen=True):
    """What a context says of where runs go: a cluster with it over it, and the nodes of each run (0: it does not say).

    `values` go below the context of the runs, in the place of its keys TRANSLATED; `notes` are for the user.
    """

    cluster: Cluster = Cluster()
    nodes: int = 0
    values: dict[str, Json] = {}
    notes: tuple[str, ...] = ()


class Scheduler(Protocol):
    """What gives jobs to nodes.  Jobs are named by the ids that it gave them; those of an array as `ARRAY_INDEX`.

    It takes values and gives values: what a job's end means for its run is decided by who asks.
    """

    name: str
    job_ids: re.Pattern[str]  # what its ids look like: others are no arguments of its commands
    ending: str  # of the names of scripts
    queues_again: bool  # whether a job may wait again after it has begun
    retries_inside: bool  # whether a job tries its run again by itself; else each further attempt is another job
    reads_credentials: bool  # whether a job reads credential.json of the working folder by itself

    def __init__(self, cluster: Cluster, environ: Mapping[str, str]) -> None:
        """Ask nothing of the cluster yet.

        Raises:
            UsageProblem: the cluster's description has what says nothing to it.
        """

    def adjust(self, options: Options) -> Options:
        """Return the options of plans with what the cluster decides, such as the runtime.

        Raises:
            UsageProblem: they ask for something else.
        """

    def exclude(self, nodes: Sequence[str]) -> None:
        """Leave nodes, and those of host lists, out of the cluster that `check_here` returns, and of scripts made now.

        Raises:
            UsageProblem: one of them has no name of a node, where that can be known.
        """

    def start(self, options: Mapping[str, str]) -> None:
        """Let `begin` and `dependency`, as Slurm has them, decide when the jobs of scripts made from now on start.

        Raises:
            UsageProblem: the scheduler has no such thing.
        """

    def script(self, inputs: ScriptInputs) -> str:
        """Return the text of a job of these plans, as `--dry-run` prints it.

        Raises:
            MadliteError: it cannot be made.
        """

    def check_here(self) -> Cluster:
        """Refuse a machine from which no job can be given to the cluster; return this very cluster for later commands.

        Raises:
            UsageProblem: its commands are not here, say.
        """

    def array_limit(self) -> int:
        """Return how many runs one job can have; 1 where there are no arrays."""

    def nodes(self) -> dict[str, str]:
        """Return the nodes of jobs by name, each with why none can begin there: it is down, or left out; "" if one can.

        Raises:
            Unreachable: the cluster did not answer.
        """

    def submit(self, folder: Path, script: JobScript, attempt: str = "", exclude: Sequence[str] = ()) -> str:
        """Give a script of the submission in `folder` to the cluster, and return the job's id.

        `exclude` are further nodes that it must not get, where the cluster checks the nodes of jobs.

        `attempt` is the id of its run where that is a further attempt, of schedulers whose jobs do not retry inside.

        Raises:
            Refused: the cluster does not take it.
            Unreachable: it did not answer.
        """

    def find(self, names: Sequence[str]) -> dict[str, str]:
        """Return the ids of jobs by their names, of those that have ended for as long as they are known.

        Raises:
            Unreachable: the cluster did not answer.
        """

    def queue(self, jobs: Sequence[str]) -> dict[str, JobState]:
        """Return the states of the jobs that wait or run, by one question for all of them.

        Raises:
            Unreachable: the cluster did not answer.
        """

    def ended(self, jobs: Sequence[str]) -> dict[str, JobState]:
        """Return the states of jobs that are in no queue any more, as far as the cluster remembers them.

        Raises:
            Unreachable: the cluster did not answer.
        """

    def end_in(self, error: str, nodes: str) -> JobEnd | None:
        """Return why a job that waits again was ended before, by the last error of its output; None if that is mute."""

    def runtime_of(self, job: str, *, ended: bool) -> Runtime | None:
        """Return what has a job that has begun as the session of its plan, for who brings the run here by its log.

        With `ended` of a job alone that is over; None where jobs write to the working folder by themselves.
        """

    def release(self, jobs: Sequence[str]) -> None:
        """Forget jobs whose runs have their rows.

        Raises:
            Unreachable: the cluster did not answer.
        """

    def cancel(self, jobs: Sequence[str]) -> None:
        """End jobs, whether they wait or run; those that are over are no error.

        Raises:
            Unreachable: the cluster did not answer.
        """
