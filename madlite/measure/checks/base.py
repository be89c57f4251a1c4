"""What the checks of a run's number are given, and what they answer."""

from __future__ import annotations

from typing import Literal

from madlite.measure.monitor import LogMonitor
from madlite.measure.performance import FileResults
from madlite.model import Cause, Compute, Exit, Metric, ResultRule, RunPlan, Value, Variant, Window
from madlite.model.results import StopReason

CheckStatus = Literal["pass", "warn", "fail", "unknown"]


class CheckResult(Value, frozen=True):
    """The result of one check of one run; docs/verdict.md lists when each check has which status.

    `cause` and `evidence`, the line that shows it, are of a failed one.  The text of one that `is_finding` is one of
    the run, though the check passes no judgement.
    """

    status: CheckStatus
    text: str
    cause: Cause = Cause.NONE
    evidence: str = ""
    is_finding: bool = False


def passed(text: str) -> CheckResult:
    """Return that the number stands."""
    return CheckResult(status="pass", text=text)


def warned(text: str) -> CheckResult:
    """Return that a success is suspect."""
    return CheckResult(status="warn", text=text)


def failed(text: str, cause: Cause, evidence: str = "") -> CheckResult:
    """Return that the run is a failure."""
    return CheckResult(status="fail", text=text, cause=cause, evidence=evidence)


def unknown(text: str, *, is_finding: bool = False) -> CheckResult:
    """Return that the check lacks what it needs, and what that is."""
    return CheckResult(status="unknown", text=text, is_finding=is_finding)


# The input of the checks.

_DIGITS = 5  # more make no number of a node


class Observation(Value, frozen=True):
    """What the engine saw from outside: how the run's action ended, who ended it, results file, company on the GPUs."""

    exit: Exit | None = None
    stop: StopReason | None = None  # why madlite ended it
    failed_action: str = ""  # the kind of an action before the run that failed
    failed_line: str = ""  # what that action printed
    failed_node: str = ""  # of several, as text, the one that failed first
    node_log: LogMonitor | None = None  # and its own output
    results: FileResults | None = None
    skipped: bool = False  # the model's step was left out on request
    unshared_lease: str = ""  # why others may not see the lease of the run's GPUs
    # processes on the run's GPUs that are not its own; None: not sampled
    foreign_processes: tuple[str, ...] | None = None

    @property
    def stopped(self) -> StopReason | None:
        """Why madlite ended it before it was done."""
        return self.stop if self.stop is not None and self.stop.cause is not Cause.NONE else None

    @property
    def ended_early(self) -> StopReason | None:
        """Why madlite ended it as its steps were enough."""
        return self.stop if self.stop is not None and self.stop.cause is Cause.NONE else None


class Expected(Value, frozen=True):
    """What a training was to do, and how its number is taken; `steps` None if their number is unknown."""

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


class CheckInput(Value, frozen=True):
    """All of it; `plan` and `observed` are None of a log that madlite did not make."""

    expected: Expected
    log: LogMonitor
    number: Number
    plan: RunPlan | None = None
    observed: Observation | None = None
    window: Window | None = None
    compute: Compute | None = None

    @property
    def by_steps(self) -> bool:
        """Whether the run is judged by its training steps; else a card's own script prints its number."""
        return self.expected.rule.kind == "steps"

    @property
    def other_node(self) -> int | None:
        """The node that prints the steps of this one's training; None where this one does, or shows a failure."""
        plan, printed_on = self.plan, self.expected.rule.printed_on
        own = node_of(plan) if plan is not None else None
        if plan is None or own is None or not self.by_steps or printed_on == "each":
            return None
        node = 0 if printed_on == "first" else plan.place.nodes - 1
        return node if node != own and not self.log.steps and not self.log.failures.fatal_line else None

    @property
    def failure_log(self) -> LogMonitor:
        """The output that explains a failure: of several nodes that of the one which failed first."""
        return self.log if self.observed is None or self.observed.node_log is None else self.observed.node_log

    @property
    def ran(self) -> bool:
        """Whether the model's own step was started: without it the log has no meaning."""
        return self.observed is None or (self.observed.exit is not None and not self.observed.failed_action)


def node_of(plan: RunPlan) -> int | None:
    """Return the node of several that a plan is for; None of a plan for all of its nodes, or if it is not reported."""
    number = str(plan.settings.get("node_rank") or plan.env.get("NODE_RANK", ""))
    if plan.place.whole or not number.isdecimal() or len(number) > _DIGITS:
        return None
    return int(number)
