"""What one command gives to a scheduler, as values: its runs, the scripts of their jobs, and the folder of both."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from madlite.model import FileName, RunId, Value
from madlite.plan.cluster import Cluster
from madlite.plan.inputs import RUNS
from madlite.plan.planned import RetryPolicy

_T = TypeVar("_T")
VERSION = 1
PREFIX = "jobs-"  # of the folder
SUBMISSION, PLANS, SCRIPTS, OUTPUT, ENVIRONMENT = "submission.json", "plans", "scripts", "output", "environment"


class JobRun(Value, frozen=True):
    """A run of a submission: its plan file is `plans/<number>.json`, counted from 1."""

    id: RunId
    card: str
    number: int


class JobScript(Value, frozen=True):
    """A script of a submission: a job of the runs `first` … `first + count - 1`, an array where these are several.

    `name` is the job's in the queue, which no other job has.
    """

    number: int
    name: FileName
    first: int
    count: int
    nodes: int
    gpus: int  # of each node
    ending: FileName = "sh"

    def of(self, runs: Sequence[_T]) -> Sequence[_T]:
        """Return its own of all runs of the submission, or of what there is for each of them."""
        return runs[self.first - 1 : self.first - 1 + self.count]

    @property
    def file(self) -> str:
        """The script's name in the submission's folder."""
        return f"{SCRIPTS}/{self.number}.{self.ending}"


class Submission(Value, frozen=True):
    """The runs that one command gave to a cluster, and the scripts of their jobs; `output` is the results file.

    `study` is the kind of the study that the runs are, which has the submission's id; "" where they are none.
    `description` is the cluster as its file had it then, but for the variables of runs.  Of a run whose micro batch may
    become smaller the plans are beside its own, `plans/<number>-<micro batch>.json`.  Once `max_failures` runs have
    failed no other is started.
    """

    id: FileName
    cluster: str
    scheduler: str
    created: str
    command: tuple[str, ...]
    output: str
    runs: tuple[JobRun, ...]
    scripts: tuple[JobScript, ...]
    columns: tuple[str, ...] = ()
    strict_header: bool = False
    study: str = ""
    retry: RetryPolicy = RetryPolicy()
    max_failures: int = 0  # 0: all are started
    description: Cluster = Cluster()
    version: int = VERSION


def folder_of(workspace: Path, submission_id: str) -> Path:
    """Return where a submission has its files."""
    return workspace / RUNS / f"{PREFIX}{submission_id}"
