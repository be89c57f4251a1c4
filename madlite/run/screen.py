"""What passes between the engine and a door: plans that can start, what is shown meanwhile, and the outcome."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from threading import Lock
from typing import Any, Protocol

from msgspec.structs import replace

from madlite.errors import ExitCode
from madlite.model import Quantity, Result, RunPlan, Step, Value, to_json
from madlite.plan.submission import PlannedRun
from madlite.store.events import now
from madlite.store.folder import PROGRESS, ProgressFile, RunFolder

_MOST_POINTS = 500  # of a run's curve in the file of its progress
EVERY_S = 1.0  # between two writes of a run's progress; what comes in between is written with what comes next
_LOG = logging.getLogger(__name__)


def _figures(step: Step) -> dict[str, Any]:
    """Return speed, its unit and loss; what is not finite no JSON can say."""
    found: dict[str, Any] = {}
    if (speed := step.speed) is not None and math.isfinite(speed[1]):
        found = {"speed": speed[1], "unit": speed[0].label}
    loss = step.values.get(Quantity.LOSS)
    return {**found, "loss": loss if loss is not None and math.isfinite(loss) else None}


class Screen(Protocol):
    """Shows runs to people, each by its id; called from the runs' threads, never blocks one and never raises."""

    def started(self, plan: RunPlan, position: int, total: int) -> None:
        """A run starts, the `position`th of `total`."""

    def logs(self, plan: RunPlan) -> None:
        """The run's log is there."""

    def phase(self, text: str, run_id: str = "") -> None:
        """The run reports its current phase, e.g. how far a pull is."""

    def stopping(self, text: str, run_id: str) -> None:
        """The run is being ended."""

    def output(self, chunk: bytes, stream: int, run_id: str) -> None:
        """The workload printed something, secrets masked."""

    def mad_line(self, text: str, run_id: str) -> None:
        """A line that madengine would print of the run, secrets masked; the screen decides whether to show it."""

    def step(self, plan: RunPlan, step: Step) -> None:
        """The workload reported a training step."""

    def finished(self, plan: RunPlan, result: Result) -> None:
        """The run ended and its row is written."""

    def retrying(self, plan: RunPlan, result: Result, text: str) -> None:
        """The run failed and is tried again: how and when, as text."""

    def warn(self, text: str) -> None:
        """Something is wrong that does not end a run; the text names what it concerns."""

    def waiting(self, text: str) -> None:
        """No run can start, and why: other processes have the GPUs; "" once one can."""

    def end(self, lines: Iterable[str], run_id: str = "") -> None:
        """Lines below what has been shown, the last ones of what `begin` started."""

    def overall(self, ended: int, count: int, left_s: float | None) -> None:
        """How many runs of a batch have ended, of those that go on at the same time, and when the last one will have.

        `left_s` is None where nothing is known of how long they take.
        """


class ActivityScreen(Screen, Protocol):
    """Shows also what is no run: a build, a download."""

    def begin(self, lines: Iterable[str], steps: int | None = None, run_id: str = "") -> None:
        """It starts: what it is, and how far it has to go."""

    def advance(self, done: int, text: str, run_id: str = "") -> None:
        """It has come so far; called from several threads."""


class RunEvents:
    """The events of one run while it goes on: to the screen, under its id, and to `progress.json` in its folder.

    They may come from several threads; what keeps the file from being written costs the run nothing.
    """

    def __init__(
        self, screen: Screen, plan: RunPlan, started: str, mask: Callable[[str], str], clock: Callable[[], float]
    ) -> None:
        self._screen, self._plan = screen, plan
        self._now = ProgressFile(started=started, steps=plan.trained_steps or None)
        self._points: dict[int, tuple[int, float | None, float | None]] = {}
        self._each = 1  # so many steps, one is kept
        self._mask, self._clock = mask, clock
        self._folder: RunFolder | None = None
        self._first: Step | None = None  # of the training, from which the step rate is computed
        self._written_s = -math.inf
        self._lock = Lock()

    def open(self, folder: RunFolder) -> None:
        """Have a folder to write to."""
        self._folder = folder
        self._change()

    def logs(self) -> None:
        """The run's log is there."""
        self._screen.logs(self._plan)

    def phase(self, text: str, kind: str = "") -> None:
        """The run reports its current phase, or that an action of a kind begins."""
        changed = {"state": "running"} if kind == "run" and self._now.state != "stopping" else {}
        self._change(soon=bool(changed), doing=self._mask(text), **changed)
        self._screen.phase(text, self._plan.id)

    def stopping(self, text: str) -> None:
        """The run is being ended."""
        self._change(state="stopping", doing=self._mask(text))
        self._screen.stopping(text, self._plan.id)

    def output(self, chunk: bytes, stream: int) -> None:
        """The workload printed something, secrets masked."""
        self._screen.output(chunk, stream, self._plan.id)

    def mad_line(self, text: str) -> None:
        """A line that madengine would print of the run, secrets masked."""
        self._screen.mad_line(text, self._plan.id)

    def step(self, step: Step) -> None:
        """The workload reported a training step."""
        if step.phase == "train":
            if self._first is None or step.n <= self._first.n:
                self._first = step
            figures = _figures(step)
            self._keep(step.n, figures.get("speed"), figures["loss"])
            self._change(soon=False, step=step.n, left_s=self._left_s(step), **figures)
        self._screen.step(self._plan, step)

    def ended(self, result: Result, doing: str = "") -> None:
        """Note how the run ended, and what is done about it; nothing is written any more after it."""
        status, cause = result.status.value, result.code
        self._change(state="ended", doing=doing, left_s=None, status=status, cause=cause, ended=now("seconds"))
        with self._lock:
            self._folder = None

    def _keep(self, n: int, speed: float | None, loss: float | None) -> None:
        """Keep a step for the curve of the run, of too many every other one."""
        with self._lock:
            if n % self._each == 0:
                self._points[n] = (n, speed, loss)
            if len(self._points) > _MOST_POINTS:
                self._each *= 2
                self._points = {at: point for at, point in self._points.items() if at % self._each == 0}

    def _left_s(self, step: Step) -> float | None:
        first, steps = self._first, self._now.steps
        if first is None or not steps or step.n <= first.n:
            return None
        return max(0.0, (steps - step.n) * (step.t_s - first.t_s) / (step.n - first.n))

    def _change(self, *, soon: bool = True, **values: Any) -> None:
        """Note values, and write them: at once, or where they need not be there `soon`, if it is time again."""
        with self._lock:
            self._now = replace(self._now, **values)
            if soon or self._clock() >= self._written_s + EVERY_S:
                self._write()

    def _write(self) -> None:
        """Write what is known now; called with the lock held."""
        if self._folder is None:
            return
        self._written_s = self._clock()
        written = replace(self._now, updated=now("seconds"), points=tuple(self._points.values()))
        if problem := self._folder.write_text(PROGRESS, to_json(written)):
            _LOG.debug("%s", problem)


class RunOutcome(Value, frozen=True):
    """What a batch came to: results in the order of the plans, names of cards that never started, the exit code.

    Runs at the same time end in any order, and a batch can end before all have: `pair` says which result is whose.

    `pending` are the cards of runs whose rows the results file did not take.
    `bug` is an error of madlite itself that ended the batch, after its row was written.
    """

    results: tuple[Result, ...]
    not_started: tuple[str, ...]
    exit_code: ExitCode
    bug: Exception | None = None
    pending: tuple[str, ...] = ()

    @property
    def has_left(self) -> bool:
        """Whether runs are left that `--resume` would run: never started, without a row, or not tried again."""
        given_up = any(result.attempt is not None and result.attempt.given_up for result in self.results)
        return bool(self.not_started or self.pending) or given_up


def _attempts(result: Result) -> Iterator[str]:
    """Yield the ids of a run's attempts: it was planned as one of them."""
    yield result.plan_id
    if result.attempt is not None:
        yield from (item.run for item in result.attempt.earlier)


def pair(planned: Sequence[PlannedRun], results: Iterable[Result]) -> list[tuple[PlannedRun, Result | None]]:
    """Return each plan with its result, that of its last attempt; None for a run that never started."""
    by_id = {name: result for result in results for name in _attempts(result)}
    return [(run, by_id.get(run.plan.id)) for run in planned]
