"""Runs of one command as values: plans that can start, retries, the scripts of their jobs, and the folder of both."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from madlite.model import Backend, FileName, Json, Knob, RunId, RunPlan, Runtime, Value
from madlite.plan.cluster import Cluster
from madlite.plan.inputs import RUNS
from madlite.plan.plan_file import Rendered

RESULTS_VARIABLE = "MADLITE_RESULTS_DIR"  # where a job's script leaves perf*.csv: `slurm.results_dir` of a context
_LONGEST_S = 600.0  # between two attempts


class PlannedRun(Value, frozen=True):
    """A plan that can start: with the backends that read it, its rendered files, its runtime and the context.

    A blocked plan of a card that could not be planned has neither backends nor files.  `requested` are the keys that
    the command set (`inputs.requested_keys`), None where all of it was, as in a plan file.  `with_micro_batch` plans
    this run with another micro batch: None where the trainer has one of its own.  `declared` are keys whose values the
    trainer does not get.  `gpus` are the ids that it may get, as many as it was planned with: none where it has to have
    those of its plan.
    """

    plan: RunPlan
    backends: tuple[Backend, ...]
    files: tuple[Rendered, ...]
    runtime: Runtime
    context: dict[str, Json] = {}
    context_left_out: tuple[str, ...] = ()  # places of secrets that the context had and this one has not
    declared: tuple[str, ...] = ()
    requested: frozenset[str] | None = None
    knobs: tuple[Knob, ...] = ()  # what `madlite tune` may change of it
    with_micro_batch: Callable[[int], PlannedRun | None] = lambda micro_batch: None
    gpus: tuple[int, ...] = ()


class RetryPolicy(Value, frozen=True):
    """Which failures of a run or a job are followed by another attempt.

    `retries` attempts follow a failure that passes, the first after `wait_s`, each later one after twice as long.
    With `oom_fallback` the next smaller micro batch follows a GPU's memory that ran out.  `elsewhere` where who started
    this attempt decides, and starts the next one.
    """

    retries: int = 0
    wait_s: float = 10.0
    elsewhere: bool = False
    oom_fallback: bool = False

    @property
    def is_active(self) -> bool:
        """Whether any failure is followed by another attempt."""
        return bool(self.retries) or self.oom_fallback

    def pause_s(self, retried: int) -> float:
        """Return how long to wait before the attempt that follows so many: each time twice as long."""
        return min(self.wait_s * 2.0**retried, max(_LONGEST_S, self.wait_s))


_T = TypeVar("_T")
VERSION = 1
PREFIX = "jobs-"  # of the folder
SUBMISSION, PLANS, SCRIPTS, OUTPUT, ENVIRONMENT = "submission.json", "plans", "scripts", "output", "environment"
HEALTH = "health"  # the check of each job's nodes before its run


class JobRun(Value, frozen=True):
    """A run of a submission: its plan file is `plans/<number>.json`, counted from 1."""

    id: RunId
    card: str
    number: int


class JobScript(Value, frozen=True):
    """A script of a submission: a job of the runs `first` … `first + count - 1`, an array where these are several.

    `name` is the job's in the queue, which no other job has.  `node` is the one that it has to get, "" for any.
    """

    number: int
    name: FileName
    first: int
    count: int
    nodes: int
    gpus: int  # of each node
    node: str = ""
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
    `description` is the cluster as its file had it then, with the nodes that the command leaves out and without the
    variables of runs.  Of a run whose micro batch may become smaller the plans are beside its own,
    `plans/<number>-<micro batch>.json`.  `options` are those of the command that are no part of a plan: each job's
    madlite has them, too.  At most `at_most` of the runs go on at the same time, 0: all.  `goes_on` is the first
    submission of a batch whose failed runs this one runs again, "" for the first.
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
    options: tuple[str, ...] = ()
    at_most: int = 0
    goes_on: FileName = ""
    description: Cluster = Cluster()
    version: int = VERSION


class ScriptInputs(NamedTuple):
    """What the text of a job is made from: its script of a submission, and the plans that are the script's own.

    `search` is where templates are looked for.  With `secrets` the job reads the submission's file of them.
    """

    submission: Submission
    script: JobScript
    planned: Sequence[PlannedRun]
    workspace: Path
    search: Sequence[Path]
    secrets: bool = False


def folder_of(workspace: Path, submission_id: str) -> Path:
    """Return where a submission has its files."""
    return workspace / RUNS / f"{PREFIX}{submission_id}"


def submitted_secrets(folder: Path) -> dict[str, str]:
    """Return the secrets of the submission in a folder by the names that its plans have for them."""
    try:
        text = (folder / ENVIRONMENT).read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return {}
    pairs = (word.partition("=") for word in shlex.split(text) if word != "export")
    return {name: value for name, _, value in pairs}
