"""A plan that can start, and after which failures it is tried again."""

from __future__ import annotations

from collections.abc import Callable

from madlite.model import Backend, Json, Knob, RunPlan, Runtime, Value
from madlite.plan.render import Rendered

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
