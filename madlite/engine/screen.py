"""What passes between the engine and a door: plans that can start, what is shown meanwhile, and the outcome."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from madlite.errors import ExitCode
from madlite.plan.render import Rendered
from madlite.types import Backend, Json, Result, RunPlan, Runtime, Step, Value


class Screen(Protocol):
    """Shows a run to people; never blocks it and never raises."""

    def started(self, plan: RunPlan, position: int, total: int) -> None:
        """A run starts, the `position`th of `total`."""

    def logs(self, plan: RunPlan) -> None:
        """The run's log is there."""

    def phase(self, text: str) -> None:
        """The run says what it does now, e.g. how far a pull is."""

    def stopping(self, text: str) -> None:
        """The run is being ended; called from another thread."""

    def output(self, chunk: bytes, stream: int) -> None:
        """The workload printed something, secrets masked."""

    def told(self, text: str) -> None:
        """Madengine would say this line of the run, secrets masked; whether anybody wants it the screen knows."""

    def step(self, plan: RunPlan, step: Step) -> None:
        """The workload reported a training step."""

    def finished(self, plan: RunPlan, result: Result) -> None:
        """The run ended and its row is written."""

    def warn(self, text: str) -> None:
        """Something is wrong that does not end the run."""


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
    unasked: Callable[[], Sequence[Planned]] = tuple


class Outcome(Value, frozen=True):
    """What a batch came to: results in order, names of cards that never started, and the exit code.

    `kept_aside` are the cards of runs whose rows the results file did not take.
    `bug` is an error of madlite itself that ended the batch, after its row was written.
    """

    results: tuple[Result, ...]
    not_started: tuple[str, ...]
    exit_code: ExitCode
    bug: Exception | None = None
    kept_aside: tuple[str, ...] = ()
