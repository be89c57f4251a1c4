"""The checks of a result: what each may say."""

from __future__ import annotations

from typing import Literal

from madlite.measure.monitor import LogMonitor
from madlite.measure.multiple import FileResults
from madlite.model import Cause, Check, Compute, Exit, Metric, ResultRule, RunPlan, Value, Variant, Window

# What each check can come to and what follows: the one place that the code and docs/verdict.md have it from.

CheckStatus = Literal["pass", "warn", "fail", "unknown"]


class CheckRow(Value, frozen=True):
    """One outcome of a check: when it applies, and of a failed one the causes that the run can have by it.

    Where `when` has several cases the result's text states which one applies.
    """

    check: str
    status: CheckStatus
    when: str
    causes: tuple[Cause, ...] = ()

    @property
    def outcome(self) -> str:
        """The consequence for the run."""
        if self.status == "fail":
            return f"FAILURE ({', '.join(cause.value for cause in self.causes)})"
        return {"pass": "the number stands", "warn": "SUCCESS, suspect"}.get(self.status, "nothing")


class CheckResult(Value, frozen=True):
    """The result of one check of one run; `cause` and `evidence`, the line that shows it, are of a failed one."""

    row: CheckRow
    text: str
    cause: Cause = Cause.NONE
    evidence: str = ""

    @property
    def check(self) -> Check:
        """The check as records have it."""
        return Check(name=self.row.check, status=self.row.status, text=self.text)


def check_result(row: CheckRow, text: str = "", evidence: str = "", cause: Cause = Cause.NONE) -> CheckResult:
    """Return a result by its row; a failed one has the row's first cause where it names none."""
    of_row = row.causes[0] if row.causes else Cause.NONE
    return CheckResult(
        row=row, text=text or row.when, cause=cause if cause is not Cause.NONE else of_row, evidence=evidence
    )


# in the order in which they explain: of several denials the first is the verdict's
EXIT_OK = CheckRow("exit_code", "pass", "the model's step ended with exit code 0")
EXIT_EARLY = CheckRow("exit_code", "pass", "madlite ended the run, as --until was reached")
STOPPED = CheckRow(
    "exit_code",
    "fail",
    "madlite ended the run: over its time limit, hung, or on a signal",
    (Cause.TIMEOUT, Cause.HANG, Cause.INTERRUPTED),
)
STEP_FAILED = CheckRow("exit_code", "fail", "a step before the model's own failed", (Cause.PREPARE,))
EXIT_NONZERO = CheckRow("exit_code", "fail", "the model's step ended with another exit code than 0", (Cause.EXIT_CODE,))
NO_EXIT = CheckRow("exit_code", "unknown", "a log that madlite did not make has no exit code")

LOSS_FINITE = CheckRow("loss", "pass", "every loss is finite")
LOSS_NAN = CheckRow(
    "loss", "fail", "a loss is NaN or infinite, or 0 where the gradient's norm is not finite", (Cause.NAN_LOSS,)
)
LOSS_MISSING = CheckRow("loss", "fail", "no step reports a loss, though the framework prints one", (Cause.NAN_LOSS,))
LOSS_NAN_ELSEWHERE = CheckRow(
    "loss", "warn", "the same in the log of a card's own script, or in a line that is no step's"
)
LOSS_ZERO = CheckRow(
    "loss", "warn", "every loss is 0 and no gradient, or a high loss is followed by 0, to the end or three times"
)
LOSS_UNPARSED = CheckRow("loss", "warn", "a step's loss is text that is no number")
LOSS_UNKNOWN = CheckRow("loss", "unknown", "no step was read, or the framework prints no loss")

LAST_STEP_REACHED = CheckRow(
    "last_step",
    "pass",
    "the last step that was asked for is there, or the last line of several steps each and then the end mark",
)
ENOUGH_STEPS = CheckRow("last_step", "pass", "madlite ended the run, as --until was reached")
NO_STEP = CheckRow("last_step", "fail", "the log has no training step, or none of those asked for", (Cause.NO_METRIC,))
STEPS_ON_OTHER_NODE = CheckRow(
    "last_step", "unknown", "of several nodes another one alone prints the steps, and this one has none"
)
CUT_SHORT = CheckRow("last_step", "fail", "the log ends before the last step that was asked for", (Cause.INCOMPLETE,))
CUT_SHORT_SCRIPT = CheckRow(
    "last_step", "warn", "the log of a card's own script ends before the number of steps it reports"
)
END_UNCERTAIN = CheckRow(
    "last_step", "warn", "the last line of several steps each is there, and no end mark is to be expected"
)
WENT_BACK = CheckRow("last_step", "warn", "the steps went back: several trainings are in one window")
LAST_WITHOUT_STEP = CheckRow("last_step", "fail", "the last of several trainings has no step", (Cause.INCOMPLETE,))
LAST_WITHOUT_END = CheckRow("last_step", "fail", "the last of several trainings has no end mark", (Cause.INCOMPLETE,))
LAST_WITHOUT_END_ODD = CheckRow("last_step", "warn", "the same in a log that madlite did not make")
STEPS_UNKNOWN = CheckRow(
    "last_step", "unknown", "the number of steps is not reported, or the steps of a script are unknown"
)

NO_PATTERN = CheckRow("error_pattern", "pass", "a card's own script printed none of MAD's error patterns")
PATTERN = CheckRow(
    "error_pattern",
    "fail",
    "a card's own script printed an error pattern beside its number, which stays in the row",
    (Cause.ERROR_PATTERN,),
)
NOT_SCANNED = CheckRow("error_pattern", "unknown", "not scanned: a rendered run, the scan switched off, or no number")

LAUNCHER_OK = CheckRow("launcher", "pass", "after the last step no launcher reports a failed process")
LAUNCHER_FAILED = CheckRow(
    "launcher",
    "fail",
    "after the last step a launcher reports a failed process, despite exit code 0",
    (Cause.EXIT_CODE,),
)
LAUNCHER_WARNING = CheckRow("launcher", "warn", "the same in the log of a card's own script whose errors are allowed")
ERROR_WITHOUT_END_MARK = CheckRow(
    "launcher",
    "fail",
    "after the last step a line looks like a failure, and the end mark that the framework always prints is missing",
    (Cause.EXIT_CODE,),
)
ERROR_AFTER_LAST_STEP = CheckRow(
    "launcher", "warn", "the same where no end mark is to be expected, or of a log that madlite did not make"
)
LAUNCHER_STOPPED = CheckRow(
    "launcher", "unknown", "madlite ended the run: later messages of its processes follow from that"
)

END_MARK_FOUND = CheckRow("end_mark", "pass", "the framework's end mark comes after the last step")
REQUIRED_MARK_MISSING = CheckRow(
    "end_mark", "fail", "the end mark that decides the result is missing", (Cause.INCOMPLETE,)
)
END_MARK_MISSING = CheckRow("end_mark", "warn", "the framework always prints one, and it is missing")
NO_END_MARK = CheckRow(
    "end_mark", "unknown", "the framework prints none, another node does, there is no step, or madlite ended the run"
)

FRESH = CheckRow("artifact", "pass", "the results file was written since the start")
STALE = CheckRow("artifact", "fail", "there is no results file, or only one from before the start", (Cause.NO_METRIC,))
NO_ARTIFACT = CheckRow("artifact", "unknown", "the result is in no file")

NUMBER = CheckRow("metric", "pass", "there is a number, finite and of the right sign")
NUMBER_UNPARSED = CheckRow(
    "metric", "warn", "there is a number, and some steps or lines have text that is none, or an infinite one"
)
NO_NUMBER = CheckRow(
    "metric", "fail", "there is no number after the warm-up, in no line, or in no file", (Cause.NO_METRIC,)
)
NUMBER_ON_OTHER_NODE = CheckRow("metric", "unknown", "of several nodes another one prints the result")
INVALID_NUMBER = CheckRow(
    "metric", "fail", "the number is text, NaN, infinite, or a speed of 0 or less", (Cause.BAD_NUMBER,)
)

SUMMARY_CONSISTENT = CheckRow("summary", "pass", "the framework's own summary is of the steps that were read")
SUMMARY_COMPUTED = CheckRow("summary", "pass", "it is of other steps, and computed from those that were read")
SUMMARY_INCONSISTENT = CheckRow(
    "summary", "warn", "it is of other steps than were read, or a figure of it is no number"
)
SUMMARY_UNKNOWN = CheckRow("summary", "unknown", "there is none, or its number of steps is not reported")

CONFIG_SAME = CheckRow("config", "pass", "the configuration that the trainer's log reports is as planned")
CONFIG_DIFFERS = CheckRow(
    "config",
    "fail",
    "the log reports another sequence length, batch, world size or precision than the row",
    (Cause.CONFIG,),
)
CONFIG_DIFFERS_MINOR = CheckRow("config", "warn", "the log reports other steps, model or parallel degrees than planned")
PRECISION_NOT_SEEN = CheckRow(
    "config", "warn", "the log has the trainer's start, and not the line that names the planned precision"
)
CONFIG_UNKNOWN = CheckRow(
    "config", "unknown", "the log does not report it, there is no plan, or a card's own script decides"
)

ALL_RANKS = CheckRow("ranks", "pass", "the ranks that print are there, each with as many steps")
RANKS_MISSING = CheckRow("ranks", "warn", "fewer ranks report steps than were to print, or several do and not all")
RANKS_UNEVEN = CheckRow("ranks", "warn", "a rank stops before the last step that others reach, or reports fewer steps")
RANK_SPEEDS_DIFFER = CheckRow("ranks", "warn", "ranks of one training report speeds that are more than a fifth apart")
RANKS_MIXED = CheckRow("ranks", "warn", "most steps are reported again with other numbers, and no label names the rank")
RANKS_ON_CPU = CheckRow("ranks", "warn", "the card asks for several GPUs, and ran on a machine without one")
RANKS_UNKNOWN = CheckRow("ranks", "unknown", "no line names its rank, or a card's own script may train more than once")

LOSS_FALLS = CheckRow("loss_trend", "pass", "the loss does not explode, nor ends above where it began")
LOSS_RISES = CheckRow(
    "loss_trend",
    "warn",
    "the last loss is far above those before, or the last fifth's above the start or ln(vocabulary)",
)
GRADIENT_NAN = CheckRow("loss_trend", "warn", "a gradient norm is NaN")
GRADIENT_SKIPPED = CheckRow("loss_trend", "warn", "the optimizer skipped most of the steps")
GRADIENT_RISES = CheckRow(
    "loss_trend", "warn", "the gradient norm of the last steps is not finite or far above the first ones'"
)
GRADIENT_ZERO = CheckRow("loss_trend", "warn", "the gradient norm of every step is 0, and the loss does not fall")
LOSS_SHORT = CheckRow("loss_trend", "unknown", "too few losses, or a loss that is not above 0")

MEMORY_OK = CheckRow("memory", "pass", "no line reports memory that ran out or an allocation that was retried")
MEMORY_ENDED = CheckRow("memory", "fail", "GPU memory ran out, which ended a run that failed", (Cause.EXIT_CODE,))
MEMORY_OUT = CheckRow("memory", "warn", "a line reports that GPU memory ran out, though the run continued")
MEMORY_RETRIED = CheckRow("memory", "warn", "the allocator had to free its cache and try again, which costs time")

NETWORK_RDMA = CheckRow("network", "pass", "RCCL or NCCL reports that the nodes are connected by RDMA")
NETWORK_SOCKETS = CheckRow(
    "network", "warn", "RCCL or NCCL reports sockets between nodes, though they have RDMA devices"
)
NETWORK_UNKNOWN = CheckRow(
    "network", "unknown", "one node, no RDMA device that is used, or no line of NCCL_DEBUG=INFO reports the network"
)

NO_FOREIGN_PROCESSES = CheckRow("foreign_processes", "pass", "no other process used the GPUs")
FOREIGN_PROCESSES = CheckRow("foreign_processes", "warn", "a process that is not the run's used its GPUs")
GPU_NOT_LEASED = CheckRow(
    "foreign_processes", "warn", "other users do not see the lease of the run's GPUs, and may have shared them"
)
FOREIGN_UNKNOWN = CheckRow(
    "foreign_processes", "unknown", "no GPU, sampling is off, or the GPUs do not report their processes"
)

COMPUTE_PLAUSIBLE = CheckRow(
    "compute", "pass", "the work per second is possible; where the framework counts it too, within 2 %"
)
ABOVE_PEAK = CheckRow("compute", "warn", "the work per second is above the GPU's peak")
MFU_ABOVE = CheckRow("compute", "warn", "the trainer itself reports an MFU above 100 %")
COMPUTE_DIFFERS = CheckRow(
    "compute", "unknown", "the framework's figure is more than 2 % apart, which is reported as a finding"
)
COMPUTE_UNKNOWN = CheckRow(
    "compute", "unknown", "the model's shape, or its tokens, are not known, or there is no window"
)

CLOCK_AGREES = CheckRow("clock", "pass", "the speed fits the time between the lines of its steps")
TOO_FAST = CheckRow("clock", "warn", "the speed is more than 1.5 times what the clock allows")
TOO_SLOW = CheckRow("clock", "warn", "the speed is less than 0.67 times what the clock shows")
LONGER_THAN_LIVED = CheckRow("clock", "fail", "the steps would take longer than the training ran", (Cause.BAD_NUMBER,))
CLOCK_DIFFERS = CheckRow(
    "clock", "unknown", "they are that far apart, and steps have texts of any length, which is reported as a finding"
)
CLOCK_UNKNOWN = CheckRow("clock", "unknown", "the work of a step is not known, or too few of the times")

FIGURES_AGREE = CheckRow("consistency", "pass", "the log's figures of one thing agree with each other")
FIGURES_DIFFER = CheckRow(
    "consistency", "warn", "two figures of one thing are apart by a factor of more than 1.5, or less than 0.67"
)
FIGURES_UNKNOWN = CheckRow("consistency", "unknown", "no two figures are of one thing, or what a step has is not known")

TABLE: tuple[CheckRow, ...] = tuple(row for row in globals().values() if isinstance(row, CheckRow))


# The input of the checks.

_DIGITS = 5  # more make no number of a node


class Observation(Value, frozen=True):
    """What the engine saw from outside: how the run's action ended, who ended it, results file, company on the GPUs."""

    exit: Exit | None = None
    stopped: Cause = Cause.NONE
    stopped_text: str = ""
    stopped_line: str = ""  # what shows why, e.g. where the ranks of a hung run are
    ended_early: str = ""  # by madlite, as its steps were enough: why
    failed_action: str = ""  # the kind of an action before the run that failed
    failed_line: str = ""  # what that action printed
    failed_node: str = ""  # of several, as text, the one that failed first
    node_log: LogMonitor | None = None  # and its own output
    results: FileResults | None = None
    skipped: bool = False  # the model's step was left out on request
    unshared_lease: str = ""  # why others may not see the lease of the run's GPUs
    foreign_processes: tuple[str, ...] | None = (
        None  # processes on the run's GPUs that are not its own; None: not sampled
    )


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
