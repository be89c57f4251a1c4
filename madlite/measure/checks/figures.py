"""Checks of the figures: each against the others, and against the clock."""

from __future__ import annotations

import math
import statistics
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from itertools import pairwise

from madlite.measure.checks import table
from madlite.measure.checks.table import CheckInput, CheckResult, check_result
from madlite.measure.compute import MOST_APART
from madlite.measure.number import shown
from madlite.measure.steps import Steps
from madlite.measure.window import median_in, usable
from madlite.model import Cause, Quantity, RunPlan, Status, Value, Window
from madlite.text import whole_number

# Checks of a run's figures: the number itself, the file it is in, the work that it comes to.


def metric(run: CheckInput) -> CheckResult:
    """Check whether there is a number that can be one."""
    number = run.number
    if run.other_node is not None:
        return check_result(table.NUMBER_ON_OTHER_NODE, f"the result is printed on node {run.other_node}")
    if number.cause is not Cause.NONE:
        row = table.NO_NUMBER if number.cause is Cause.NO_METRIC else table.INVALID_NUMBER
        return check_result(row, number.reason, number.evidence)
    if odd := _unread(run):
        return check_result(table.NUMBER_UNPARSED, odd)
    good = [metric for metric in number.metrics if metric.status is Status.SUCCESS]
    return check_result(table.NUMBER, ", ".join(f"{metric.text} {metric.metric}" for metric in good[-3:]))


def _unread(run: CheckInput) -> str:
    """Return that a number beside those of the result cannot be read, so that they may be none either; else ""."""
    rule, scan = run.expected.rule, run.log.scan
    if run.by_steps and (odd := run.log.training.unread.get(rule.headline)):
        unit = rule.headline.label
        return f"'{shown(odd)}' of a step is no number: what other steps report as {unit} may be none either"
    if run.by_steps and run.window is not None and (infinite := _infinite(run.log.steps, run.window)):
        unit = run.window.quantity.label
        return f"{infinite} of the steady steps report an infinite {unit}: what others report may be none either"
    if rule.kind == "performance_line" and scan.unread:
        return (
            f"'{shown(scan.unread.text)}' in '{shown(scan.unread.line)}' is no number: other lines' may be none either"
        )
    return ""


def _infinite(steps: Steps, window: Window) -> int:
    """Return how many of a window's steps report an infinite value, which the window leaves out."""
    curve = steps.curve(window.quantity)
    begin, end = bisect_left(curve.ns, window.first_step), bisect_right(curve.ns, window.last_step)
    return sum(math.isinf(value) for value in curve.values[begin:end])


def error_pattern(run: CheckInput) -> CheckResult:
    """Check whether a script that prints its own result printed an error, by madengine 2's rule."""
    if run.by_steps or not run.log.scanned or run.number.cause is not Cause.NONE:
        return check_result(table.NOT_SCANNED, _why_not_scanned(run))
    found = ", ".join(map(repr, run.log.matched_patterns))
    return (
        check_result(table.PATTERN, f"the script printed {found} beside its number")
        if found
        else check_result(table.NO_PATTERN)
    )


def artifact(run: CheckInput) -> CheckResult:
    """Check whether the results file is this run's: one that lay there before is not read at all."""
    rule, observed = run.expected.rule, run.observed
    if rule.kind != "multiple_results" or observed is None:
        return check_result(table.NO_ARTIFACT)
    if observed.results is None:
        return check_result(table.STALE, f"the run wrote no {rule.file}", run.log.best_error_line)
    return check_result(table.FRESH, rule.file)


def compute(run: CheckInput) -> CheckResult:
    """Check whether a GPU can do the work that the number comes to, and what the framework reports of it."""
    work = run.compute
    if (mfu := _mfu(run)) > 100:
        return check_result(table.MFU_ABOVE, f"the trainer reports an MFU of {mfu:.4g} %, which is above 100 %")
    if work is None:
        return check_result(table.COMPUTE_UNKNOWN, _why_not_counted(run))
    if work.mfu is None and work.peak_tflops is not None:
        return check_result(table.ABOVE_PEAK, work.no_mfu)
    if work.apart is not None and abs(work.apart) > MOST_APART:
        return check_result(table.COMPUTE_DIFFERS, f"the framework's TFLOP/s is {100 * work.apart:+.1f} % from ours")
    return check_result(table.COMPUTE_PLAUSIBLE, f"{work.tflops_per_gpu:.4g} TFLOP/s/GPU")


def _mfu(run: CheckInput) -> float:
    """Return the MFU that the trainer itself reports, the median of its steady steps; 0 where it reports none."""
    values = [value for value in run.log.steps.curve(Quantity.MFU_PERCENT).values if usable(value)]
    of_window = median_in(run.log.steps, Quantity.MFU_PERCENT, run.window) if run.window else None
    return of_window if of_window is not None else statistics.median(values or [0.0])


def _why_not_scanned(run: CheckInput) -> str:
    if run.by_steps:
        return "not scanned: the run is judged by its steps"
    return "not scanned: there is no number" if run.log.scanned else "not scanned: the scan is switched off"


def _why_not_counted(run: CheckInput) -> str:
    plan, variant = run.plan, run.plan.variant if run.plan else None
    if plan is None or not run.by_steps:
        return "a card's own script prints its own result" if plan else "there is no plan that names the model"
    if run.window is None:
        return "there is no steady window"
    if plan.architecture is None:
        return "the model's shape is not known"
    sized = variant is not None and bool(variant.seq_len)
    return "its tokens per second are not known" if sized else "its sequence length is not known"


# The trainer's clock against another: the time between its lines, by madlite's clock or the log's own time stamps.
#
# A speed times the time that its steps took is the tokens that they would have had.  Time in which no step was done is
# left out: of intervals with a validation, a checkpoint or another phase, and of those that are much longer than
# usual, which are skipped.  Lines that arrive together are taken together; where all do, or few, the clock is
# unknown.

# of what the clock allows: 28 real logs are between 0.996 and 1.024 on GPUs, and between 0.87 and 1.31 on CPUs
LEAST, MOST = 0.67, 1.5
_MOST_LINES = 10_000  # that are looked at, the last of a window
_TOGETHER = 0.05  # of the usual time between two lines: lines that are closer arrived together
_TOGETHER_S = 0.002
_USUAL = 3.0  # times the usual time of a step: in a longer interval something else was done
_FEWEST, _FEWEST_BLOCKS = 2, 3  # intervals; where lines come in blocks the last one waits for the program's end
_LEAST_S = 0.005  # of a step that the speed does not explain: printing takes time as well
_PER_SEQUENCE = (Quantity.SAMPLES_PER_S_PER_GPU, Quantity.IMAGES_PER_S_PER_GPU)
_RANKS = ("nproc_per_node", "cpu_ranks")  # settings of runs without GPUs
_PASSES = ("accumulation", "gradient_accumulation_steps", "grad_accumulation")


class Work(Value, frozen=True):
    """Tokens, samples or images of a step on each GPU; `at_most` where parallel degrees may lower them, unknown."""

    amount: float
    at_most: bool = False


class Clocked(Value, frozen=True):
    """What the clock says of `steps` steps: the seconds that they took, without what was done between them.

    `all_steps` and `all_s` are of the whole time from the first line to the last.
    """

    steps: int
    seconds: float
    all_steps: int
    all_s: float

    def is_too_fast(self, step_s: float) -> bool:
        """Whether steps of `step_s` seconds would have taken far less time."""
        took_s = self.seconds / self.steps
        return took_s > MOST * step_s and took_s - step_s > _LEAST_S

    def is_too_slow(self, step_s: float) -> bool:
        """Whether steps of `step_s` seconds would have taken far more time than there was."""
        return self.all_s / self.all_steps < LEAST * step_s


def compare_with_clock(steps: Steps, window: Window, interrupted: Sequence[int]) -> Clocked | str:
    """Return what the clock says of a window's steps, or why that is unknown.

    `interrupted` are steps before whose line something else than training was done, in order.
    """
    blocks = _blocks(_reports(steps, window))
    if len(blocks) < 2:
        return "the lines have no time" if not blocks else "all lines arrived at once"
    found = [one for one in _intervals(blocks, sorted(interrupted)) if one is not None]
    in_blocks = any(lines > 1 for _, _, lines in blocks)
    if len(found) < (_FEWEST_BLOCKS if in_blocks else _FEWEST):
        return "too few of the steps' times are known that hold nothing else"
    usual = statistics.median_low(seconds / steps for steps, seconds in found)
    kept = [(steps, seconds) for steps, seconds in found if seconds / steps <= _USUAL * usual]
    return Clocked(
        steps=sum(steps for steps, _ in kept),
        seconds=sum(seconds for _, seconds in kept),
        all_steps=blocks[-1][0] - blocks[0][0],
        all_s=blocks[-1][1] - blocks[0][1],
    )


def work_of_step(quantity: Quantity, plan: RunPlan | None, config: Mapping[str, str]) -> Work | None:
    """Return the tokens, samples or images of a step on each GPU; None where that is not known.

    The trainer's log goes before the plan.  Where the number of ranks that share a global batch is unknown, it is what
    one rank passes through the model in a step: GPUs that share a rank's sequences have less each, never more.
    """
    variant = plan.variant if plan else None
    sizes = {
        name: whole_number(config.get(name, "")) or (getattr(variant, name) if variant else None) or 0
        for name in ("seq_len", "micro_batch", "global_batch")
    }
    each = 1 if quantity in _PER_SEQUENCE else sizes["seq_len"]
    if quantity != Quantity.TOKENS_PER_S_PER_GPU and quantity not in _PER_SEQUENCE:
        return None
    ranks = rank_count(plan, config)
    if sizes["global_batch"] and ranks:
        return Work(amount=each * sizes["global_batch"] / ranks) if each else None
    passes = whole_number(config.get("gradient_accumulation_steps", "")) or (_passes(plan) if plan else 0)
    amount = each * sizes["micro_batch"] * passes
    return Work(amount=amount, at_most=True) if amount else None


def _reports(steps: Steps, window: Window) -> list[tuple[int, float]]:
    """Return number and time of the window's lines, and of the line before them."""
    ns = steps.curve(window.quantity).ns
    begin, end = max(0, bisect_left(ns, window.first_step) - 1), bisect_right(ns, window.last_step)
    reports = [(n, steps.reported_s(n)) for n in ns[max(begin, end - _MOST_LINES) : end]]
    return [(n, at) for n, at in reports if at is not None]


def _blocks(reports: Sequence[tuple[int, float]]) -> list[tuple[int, float, int]]:
    """Return lines that arrived together as one: the last one's step, the first one's time, and how many they are."""
    if not reports:
        return []
    gaps = [after - before for (_, before), (_, after) in pairwise(reports)]
    near = max(_TOGETHER_S, _TOGETHER * statistics.median_low(gaps or [0.0]))
    blocks: list[tuple[int, float, int]] = []
    for n, at in reports:
        if blocks and 0 <= at - blocks[-1][1] <= near:
            blocks[-1] = (n, blocks[-1][1], blocks[-1][2] + 1)
        else:
            blocks.append((n, at, 1))
    return blocks


def _intervals(blocks: Sequence[tuple[int, float, int]], interrupted: Sequence[int]) -> list[tuple[int, float] | None]:
    """Return the steps and seconds between blocks, None where something else was done or the clock went back."""
    held = array("q", interrupted)
    found: list[tuple[int, float] | None] = []
    for (before, began_s, _), (last, ended_s, _) in pairwise(blocks):
        dirty = bisect_right(held, before) < bisect_right(held, last)
        good = not dirty and last > before and ended_s > began_s
        found.append((last - before, ended_s - began_s) if good else None)
    return found


def rank_count(plan: RunPlan | None, config: Mapping[str, str]) -> int:
    """Return how many ranks a run has, by its log, else by its plan; 0 where neither has it."""
    if (of_log := whole_number(config.get("world_size", ""))) or plan is None:
        return of_log or 0
    planned = [whole_number(str(plan.settings.get(name, ""))) or 0 for name in _RANKS]
    return max(1, plan.place.nodes) * max(1, plan.place.gpus_per_node or max(planned))


def _passes(plan: RunPlan) -> int:
    """Return how many forward passes a step has, as far as the plan defines it."""
    return max(1, *(whole_number(str(plan.settings.get(name, ""))) or 0 for name in _PASSES))


# Checks of speeds: a framework's own summary against the steps that were read, and its clock against another.

_LARGE, _HUGE = 999.95, 1e12  # between these a figure is written out, in groups of three digits


def summary(run: CheckInput) -> CheckResult:
    """Compare the steps that a framework's own summary is of with those that were read, as its reader knows them."""
    log = run.log
    if log.training.computed:
        return check_result(table.SUMMARY_COMPUTED)
    if log.training.summary_doubt:
        return check_result(table.SUMMARY_INCONSISTENT, log.training.summary_doubt)
    if log.training.summary_doubt is None:
        return check_result(
            table.SUMMARY_UNKNOWN, "its number of steps is not reported" if log.summary else "there is none"
        )
    return check_result(table.SUMMARY_CONSISTENT)


def clock(run: CheckInput) -> CheckResult:
    """Compare a speed with the time between the lines of its steps: madlite's clock, or the log's own time stamps."""
    log, window = run.log, run.window
    if window is None:
        why = "there is no steady window" if run.by_steps else "a card's own script prints its own result"
        return check_result(table.CLOCK_UNKNOWN, why)
    by_time = window.quantity == Quantity.STEP_TIME_S
    work = Work(amount=1) if by_time else work_of_step(window.quantity, run.plan, log.config)
    if work is None or window.median <= 0:
        return check_result(table.CLOCK_UNKNOWN, "it is not known how much work a step has on each GPU")
    step_s = window.median if by_time else work.amount / window.median
    if (longer := _longer_than_it_lived(run, window, work, step_s)) is not None:
        return longer
    if run.observed is not None and not math.isnan(log.training.first_stamp_s):
        return check_result(table.CLOCK_UNKNOWN, "when its lines came is not known")
    found = compare_with_clock(log.steps, window, log.training.interrupted)
    if isinstance(found, str):
        return check_result(table.CLOCK_UNKNOWN, found)
    row = table.TOO_FAST if found.is_too_fast(step_s) else table.CLOCK_AGREES
    if not work.at_most and found.is_too_slow(step_s):
        row = table.TOO_SLOW
    name = "the log's own time stamps" if run.observed is None else "madlite's clock"
    text = _compared(window, work, found, name, agrees=row is table.CLOCK_AGREES)
    return check_result(table.CLOCK_DIFFERS if row is not table.CLOCK_AGREES and work_varies(run) else row, text)


def _longer_than_it_lived(run: CheckInput, window: Window, work: Work, step_s: float) -> CheckResult | None:
    """Return that the steps would have taken longer than the process lived; None where they fit, or it is unknown."""
    ended = run.observed.exit if run.observed is not None else None
    count = window.last_step - window.first_step + 1
    if ended is None or not ended.duration_s or work.at_most or work_varies(run):
        return None
    if LEAST * count * step_s <= ended.duration_s:
        return None
    text = (
        f"{count} steps at {figure_text(window.median)} {window.quantity.label} take {figure_text(count * step_s)} s, "
        f"and the training ran for {figure_text(ended.duration_s)} s"
    )
    return check_result(table.LONGER_THAN_LIVED, text)


def work_varies(run: CheckInput) -> bool:
    """Return whether steps have texts of any length: how many tokens count in a step is known to the trainer alone."""
    plan = run.plan
    return run.log.config.get("packed", "").lower() == "false" or (
        plan is not None and str(plan.settings.get("packed", "")).lower() == "false"
    )


def _compared(window: Window, work: Work, found: Clocked, clock_name: str, *, agrees: bool) -> str:
    unit = window.quantity.label
    most = "at most " if work.at_most else ""
    by_time = window.quantity == Quantity.STEP_TIME_S
    steps, seconds = found.steps, found.seconds
    done = f"{steps} steps" if by_time else f"{steps} steps × {most}{figure_text(work.amount)} {unit.partition('/')[0]}"
    speed = seconds / steps if by_time else work.amount * steps / seconds
    return (
        f"reported {figure_text(window.median)} {unit}, {'and' if agrees else 'but'} {done} took "
        f"{figure_text(seconds)} s by {clock_name}: {most}{figure_text(speed)} {unit}"
    )


def figure_text(value: float) -> str:
    """Return a figure with as many digits as say something, without an exponent where it is an ordinary one."""
    return f"{value:,.0f}" if _LARGE <= abs(value) < _HUGE else f"{value:.4g}"
