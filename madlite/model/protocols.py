"""What backends, readers, runtimes, sessions and exporters are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from pathlib import Path
from typing import Literal, Protocol, TypeAlias

from madlite.model.plans import Action, Card, Machine, Place, Problem, Request, RunPlan, RunSpec, Traits
from madlite.model.results import Asset, Completed, Event, Exit, Finding, ImageUsed, JobOutcome, Line, Sink
from madlite.model.values import Json, Value

Say: TypeAlias = Callable[[str], None]


class Reader(Protocol):
    """Reads one run's log, line by line; a fresh one for each run."""

    def feed(self, line: Line) -> Iterable[Event]:
        """Return the events of one line; never raises for what a log may hold."""

    def finish(self, outputs: Path) -> Iterable[Event]:
        """Return the events of files the framework left in `outputs`."""


class Backend(Protocol):
    """Knows one training framework."""

    name: str

    def claim(self, card: Card, checkout: Path) -> int:
        """Return the priority of this backend's claim on the card: 0 for none; the highest wins.

        Those that claim it equally share it, each with other modes of it; two that have the same mode are an error.
        """

    def expand(self, request: Request, machine: Machine) -> Sequence[RunSpec]:
        """Return one spec per run of the card.

        Raises:
            UsageProblem: the requested combination is unknown.
        """

    def check(self, plan: RunPlan) -> Iterable[Finding]:
        """Return what is wrong with the plan, before anything starts."""

    def assets(self, plan: RunPlan) -> Iterable[Asset]:
        """Return what the plan needs from elsewhere."""

    def detect(self, head: Sequence[str]) -> float:
        """Return the confidence (0 to 1) that the first lines of a log are this framework's."""

    def reader(self, plan: RunPlan | None) -> Reader:
        """Return a fresh reader; None stands for a log madlite did not start."""


class Session(Protocol):
    """A place held open in which actions run one by one, on one node or on several at the same time."""

    handle: str  # enough for Runtime.cancel and outcome, also from another process
    nodes: tuple[str, ...]  # their names in the order of the numbers that output has; "" where one needs no name
    shell: str  # the command that opens a shell in it while it is kept, "" where there is none
    notes: tuple[str, ...]  # what could not be ended; complete once the session is closed

    def run(self, action: Action, out: Sink) -> Exit:
        """Run the action to its end; `out` gets its output as it comes, from this thread alone.

        An action of kind `run` starts on every node, any other on the first one where all share the workspace.  On
        several nodes each is told NNODES, its NODE_RANK, and the first one's address as MASTER_ADDR.
        """

    def probe(self, argv: Sequence[str], node: int, limit_s: float) -> Completed:
        """Run a short command beside the action, as whoever sees most there, and return what it printed.

        Safe from another thread, and without a consequence for the run.  It ends by `limit_s`, or a second or two later
        where the engine hangs; a command that goes on is ended.  Asked only where the traits say `sees_processes`.

        Raises:
            RuntimeProblem: nothing can be started there, e.g. the container is paused.
        """

    def stop(self, grace_s: float) -> None:
        """End the running action on every node: INT, `grace_s`, TERM, `grace_s`, KILL. Safe from another thread."""

    def collect(self, patterns: Sequence[str], into: Path) -> None:
        """Copy the files of the workspace that match into the folder `into`, by their own names.

        `patterns` are glob patterns relative to the workspace; what does not match anything is left out.
        """


class GpuSession(Session, Protocol):
    """A session of a runtime whose traits have `names_gpus`."""

    def gpu_ids(self, node: int) -> tuple[int, ...] | None:
        """Return the numbers that a node's own drivers give to the run's GPUs there; None while they are not known.

        Safe from another thread.
        """


class Runtime(Protocol):
    """Executes plans somewhere; code depends on its `traits`, never on its name."""

    name: str
    traits: Traits

    def supports(self, place: Place) -> bool:
        """Return whether plans for this place can run here; one that cannot is a FAILURE before it starts."""

    def available(self) -> Problem | None:
        """Return why this runtime cannot be used now, or None."""

    def request(self, plan: RunPlan) -> Mapping[str, Json]:
        """Return the request to the engine, for display; touches nothing."""

    def prepare(self, plan: RunPlan, say: Say) -> ImageUsed:
        """Build, pull or find the image, off the run's clock.

        Raises:
            RuntimeProblem: the engine, the image or the disk does not allow it.
        """

    def open(self, plan: RunPlan) -> AbstractContextManager[Session]:
        """Open a session; leaving it ends every process in it, unless the plan keeps it alive."""

    def cancel(self, handle: str) -> None:
        """End a session without an owner, with all that is in it; one that is gone is fine.

        Raises:
            RuntimeProblem: it cannot be ended, or is none of madlite's.
        """

    def outcome(self, handle: str) -> JobOutcome | None:
        """Return the engine's state of a session, also of one that ended; None where it has none.

        Raises:
            RuntimeProblem: the engine cannot be queried.
        """


class ManifestRuntime(Runtime, Protocol):
    """A runtime whose traits have `manifests`."""

    def manifest(self, plan: RunPlan, files: Mapping[str, bytes]) -> str:
        """Return the request to the engine as its own tool takes it, secrets as `***`; touches nothing.

        `files` are the rendered ones, by their names in the run's folder.

        Raises:
            RuntimeProblem: they cannot be sent.
        """


# Results on their way to another program: one row each, and what writes them.


class ExportRow(Value, frozen=True):
    """One result of one run, as every export has it.

    `key` is the same whenever this result is exported: of the run's id, model and metric, or else of the row's content.
    Texts are printable and without secrets, numbers finite; "" and None are what is not known.  `value` is None where
    the run has no number, which `status` and `cause` explain; `suspect` says why a number is doubtful.  `started` is in
    UTC, `steady_cv` std ÷ mean of the steady steps, `source` the run's folder or the file and its line, `facts` what
    the run ran with.
    """

    key: str
    model: str
    metric: str = ""
    value: float | None = None
    unit: str = ""
    direction: Literal["higher", "lower", "neutral"] = "neutral"
    status: str = ""
    cause: str = ""
    suspect: str = ""
    backend: str = ""
    recipe: str = ""
    mode: str = ""
    precision: str = ""
    seq_len: int | None = None
    micro_batch: int | None = None
    global_batch: int | None = None
    device: str = ""
    gpus: int | None = None
    nodes: int | None = None
    runtime: str = ""
    args: str = ""
    settings: str = ""
    env: str = ""
    varied: str = ""
    run: str = ""
    started: datetime | None = None
    steady_cv: float | None = None
    source: str = ""
    facts: dict[str, str] = {}


class ExportOptions(Value, frozen=True):
    """How an export is made: `append` keeps what the target has, `values` are those of `--option NAME=VALUE`."""

    append: bool = False
    values: dict[str, str] = {}


class Exported(Value, frozen=True):
    """What an export did: results that came new, those that were there, what to print as the target, warnings."""

    new: int
    present: int = 0
    target: str = ""
    notes: tuple[str, ...] = ()


class Exporter(Protocol):
    """What writes results somewhere; `madlite export --to NAME` calls it.

    `summary` is its line in `madlite export --list`, `options` the names that `--option` may have; with "append" among
    them it knows `--append`.  One with arguments and options of its own is a `madlite.ExportCommand`.
    """

    name: str
    summary: str
    options: tuple[str, ...]

    def write(self, rows: Iterable[ExportRow], target: str, options: ExportOptions) -> Exported:
        """Write results to what `-o` names, "" where it names nothing; a result that is there is not doubled.

        Raises:
            UsageProblem: the target cannot be used: nothing was written.
            RuntimeProblem: it broke off; what was written is named.
        """
