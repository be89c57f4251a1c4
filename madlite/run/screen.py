"""What passes between the engine and a door: plans that can start, what is shown meanwhile, and the outcome."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from madlite.errors import ExitCode
from madlite.model import Backend, Json, Result, RunPlan, Runtime, Step, Value
from madlite.plan.render import Rendered
from madlite.run.progress import ProgressWriter


class Screen(Protocol):
    """Shows runs to people, each by its id; called from the runs' threads, never blocks one and never raises."""

    def started(self, plan: RunPlan, position: int, total: int) -> None:
        """A run starts, the `position`th of `total`."""

    def logs(self, plan: RunPlan) -> None:
        """The run's log is there."""

    def phase(self, text: str, run_id: str) -> None:
        """The run says what it does now, e.g. how far a pull is."""

    def stopping(self, text: str, run_id: str) -> None:
        """The run is being ended."""

    def output(self, chunk: bytes, stream: int, run_id: str) -> None:
        """The workload printed something, secrets masked."""

    def told(self, text: str, run_id: str) -> None:
        """Madengine would say this line of the run, secrets masked; whether anybody wants it the screen knows."""

    def step(self, plan: RunPlan, step: Step) -> None:
        """The workload reported a training step."""

    def finished(self, plan: RunPlan, result: Result) -> None:
        """The run ended and its row is written."""

    def warn(self, text: str) -> None:
        """Something is wrong that does not end a run; the text names what it concerns."""


class RunEvents:
    """What one run tells while it goes on: to the screen, under its id, and to the file that says how far it is."""

    def __init__(self, screen: Screen, plan: RunPlan, progress: ProgressWriter) -> None:
        self._screen, self._plan, self._progress = screen, plan, progress

    def logs(self) -> None:
        """The run's log is there."""
        self._screen.logs(self._plan)

    def phase(self, text: str) -> None:
        """The run says what it does now."""
        self._progress.doing(text)
        self._screen.phase(text, self._plan.id)

    def action(self, kind: str, text: str) -> None:
        """An action of this kind begins."""
        self._progress.doing(text, state="running" if kind == "run" else "")
        self._screen.phase(text, self._plan.id)

    def stopping(self, text: str) -> None:
        """The run is being ended."""
        self._progress.stopping(text)
        self._screen.stopping(text, self._plan.id)

    def output(self, chunk: bytes, stream: int) -> None:
        """The workload printed something, secrets masked."""
        self._screen.output(chunk, stream, self._plan.id)

    def told(self, text: str) -> None:
        """Madengine would say this line of the run, secrets masked."""
        self._screen.told(text, self._plan.id)

    def step(self, step: Step) -> None:
        """The workload reported a training step."""
        self._progress.step(step)
        self._screen.step(self._plan, step)


class Planned(Value, frozen=True):
    """A plan that can start: with the backends that read it, its rendered files, its runtime and the context.

    A blocked one of a card that nothing could be planned for has neither backends nor files.  `unasked` plans its card
    again as if the command asked nothing of it.
    """

    plan: RunPlan
    backends: tuple[Backend, ...]
    files: tuple[Rendered, ...]
    runtime: Runtime
    context: dict[str, Json] = {}
    context_left_out: tuple[str, ...] = ()  # places of secrets that the context had and this one has not
    unasked: Callable[[], Sequence[Planned]] = tuple


class Outcome(Value, frozen=True):
    """What a batch came to: results of the first plans in order, names of cards that never started, the exit code.

    `kept_aside` are the cards of runs whose rows the results file did not take.
    `bug` is an error of madlite itself that ended the batch, after its row was written.
    """

    results: tuple[Result, ...]
    not_started: tuple[str, ...]
    exit_code: ExitCode
    bug: Exception | None = None
    kept_aside: tuple[str, ...] = ()
