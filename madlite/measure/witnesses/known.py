"""What is known of a run when it is judged."""

from __future__ import annotations

from madlite.measure.follow import Follower
from madlite.measure.multiple import Read
from madlite.model import (
    Cause,
    Compute,
    Exit,
    Metric,
    ResultRule,
    RunPlan,
    Value,
    Variant,
    Window,
)

_DIGITS = 5  # more make no number of a node


class Witnesses(Value, frozen=True):
    """What the engine saw from outside: how the run's action ended, who ended it, results file, company on the GPUs."""

    exit: Exit | None = None
    stopped: Cause = Cause.NONE
    stopped_text: str = ""
    stopped_line: str = ""  # what shows why, e.g. where the ranks of a hung run are
    failed_action: str = ""  # the kind of an action before the run that failed
    failed_line: str = ""  # what that action said
    failed_node: str = ""  # of several, in words, the one that failed first
    node_log: Follower | None = None  # and its own output
    results: Read | None = None
    skipped: bool = False  # the model's step was left out on request
    strangers: tuple[str, ...] | None = None  # processes on the run's GPUs that are not its own; None: nobody looked


class Asked(Value, frozen=True):
    """What a training was to do, and how its number is taken; `steps` None where nobody knows how many."""

    rule: ResultRule
    warmup_steps: int = Variant(model="").warmup_steps
    steps: int | None = None
    columns: dict[str, str] = {}  # of its result rows


class Number(Value, frozen=True):
    """A run's result rows, or why there is none: the cause, a sentence, and the line that shows it."""

    metrics: tuple[Metric, ...] = ()
    cause: Cause = Cause.NONE
    reason: str = ""
    evidence: str = ""
    findings: tuple[str, ...] = ()


class Known(Value, frozen=True):
    """All of it; `plan` and `seen` are None of a log that madlite did not make."""

    asked: Asked
    log: Follower
    number: Number
    plan: RunPlan | None = None
    seen: Witnesses | None = None
    window: Window | None = None
    compute: Compute | None = None

    @property
    def by_steps(self) -> bool:
        """Whether the run is judged by its training steps; else a card's own script says its number."""
        return self.asked.rule.kind == "steps"

    @property
    def elsewhere(self) -> int | None:
        """The node that prints the steps of this one's training; None where this one does, or shows a failure."""
        plan, printed_on = self.plan, self.asked.rule.printed_on
        own = node_of(plan) if plan is not None else None
        if plan is None or own is None or not self.by_steps or printed_on == "each":
            return None
        node = 0 if printed_on == "first" else plan.place.nodes - 1
        return node if node != own and not self.log.steps and not self.log.fatal_line else None

    @property
    def failing_log(self) -> Follower:
        """The output that explains a failure: of several nodes that of the one which failed first."""
        return self.log if self.seen is None or self.seen.node_log is None else self.seen.node_log

    @property
    def ran(self) -> bool:
        """Whether the model's own step was started: without it the log says nothing."""
        return self.seen is None or (self.seen.exit is not None and not self.seen.failed_action)


def node_of(plan: RunPlan) -> int | None:
    """Return which node of several a plan is for; None of one that is for all of its nodes, and where nobody says."""
    told = str(plan.settings.get("node_rank") or plan.env.get("NODE_RANK", ""))
    if plan.place.whole or not told.isdecimal() or len(told) > _DIGITS:
        return None
    return int(told)
