"""Checks of the figures: each against the others, and against the clock."""

from __future__ import annotations

import math
import re
import statistics
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, pairwise

from madlite.machine.products import possible_peaks
from madlite.measure.checks.base import CheckInput, CheckResult, failed, passed, unknown, warned
from madlite.measure.compute import apart_text
from madlite.measure.number import last_step, shown
from madlite.measure.steps import Steps, find_slope, median_in, steady_window, usable
from madlite.model import SPEEDS, Cause, Quantity, RunPlan, Status, Value, Window
from madlite.text import figure, whole_number

# Check a log's figures of one thing against each other: they are said twice, so one of two that differ is false.

# of what the clock allows: 28 real logs are between 0.996 and 1.024 on GPUs, and between 0.87 and 1.31 on CPUs
LEAST, MOST = 0.67, 1.5
_SEEN = {Quantity.TOKENS_SEEN: Quantity.TOKENS_PER_S_PER_GPU, Quantity.SAMPLES_SEEN: Quantity.SAMPLES_PER_S_PER_GPU}
_SCOPE = r"(?:(?:/|_per_)(?:gpu|device|gcd|rank))?"
_RATE = rf"(?:/|_per_)s(?:ec(?:ond)?)?{_SCOPE}"
_OF = r"(?:(?:train|training|avg|mean|average)_)?"
_COUNTED = tuple(
    (quantity, re.compile(pattern, re.IGNORECASE))
    for quantity, pattern in (
        (Quantity.TFLOPS_PER_GPU, rf"{_OF}tflops?(?:/s)?{_SCOPE}"),
        (Quantity.TOKENS_PER_S_PER_GPU, rf"{_OF}(?:tok(?:en)?s?{_RATE}|tps{_SCOPE}|tgs)"),
        (Quantity.SAMPLES_PER_S_PER_GPU, rf"{_OF}samples?{_RATE}"),
        (Quantity.IMAGES_PER_S_PER_GPU, rf"{_OF}(?:images?|imgs?){_RATE}"),
    )
)  # what the whole name of a script's metric counts: with any other word it may be of another phase or unit
_LEAST_OF_SCRIPT = 0.1  # of the steps' speed: a script's mean may hold evaluations, checkpoints and its start
_JUMPS = 10  # of the least difference of a total's values, by which it has to rise: it may be printed with few digits
_LEAST_MFU, _LEAST_TFLOPS = 0.5, 1.0
_OF_GPU = re.compile(r"gpu|device|gcd|rank|\btgs\b", re.IGNORECASE)


class _Pair(Value, frozen=True):
    """Two figures of one thing: what each comes to, and the quotient's bounds."""

    text: str
    quotient: float
    least: float = LEAST
    most: float = MOST

    @property
    def is_consistent(self) -> bool:
        return self.least <= self.quotient <= self.most


def consistency(run: CheckInput) -> CheckResult:
    """Compare the figures of one thing: those of a window's steps, and a script's own number with its steps."""
    pairs = [*_pairs(run)]
    if apart := [pair for pair in pairs if not pair.is_consistent]:
        return warned(f"two figures do not fit: {apart[0].text}")
    if pairs:
        return passed("; ".join(pair.text for pair in pairs[:2]))
    return unknown(_why_unknown(run))


def _why_unknown(run: CheckInput) -> str:
    if not run.log.steps:
        return "no step was read"
    return "its steps have texts of any length" if work_varies(run) else "no two of its figures are of one thing"


def _pairs(run: CheckInput) -> Iterator[_Pair]:
    window = run.window if run.by_steps else _window_of(run, None)
    if window is not None:
        yield from _speeds_and_times(run, window)
        yield from _mfu_and_tflops(run, window)
    if not run.by_steps:
        yield from _number_and_steps(run)


def _window_of(run: CheckInput, quantity: Quantity | None) -> Window | None:
    """Return the steady window of a quantity, or of the first that a script's steps have."""
    of_steps = run.log.steps.quantities()
    wanted = [quantity] if quantity is not None else [*SPEEDS, Quantity.STEP_TIME_S, Quantity.TFLOPS_PER_GPU]
    found = next((item for item in wanted if item in of_steps), None)
    return steady_window(run.log.steps, found, run.expected.warmup_steps) if found is not None else None


def _speeds_and_times(run: CheckInput, window: Window) -> Iterator[_Pair]:
    """Yield each speed with the time of its step and its work, and what steps add to the tokens that were seen."""
    if work_varies(run):
        return
    steps, ranks = run.log.steps, rank_count(run.plan, run.log.config)
    took_s = median_in(steps, Quantity.STEP_TIME_S, window)
    seen = {of: _added(run, total) for total, of in _SEEN.items()}
    for speed in SPEEDS:
        work = work_of_step(speed, run.plan, run.log.config)
        rate = median_in(steps, speed, window)
        done = rate * took_s if rate and took_s else 0.0
        what = speed.label.partition("/")[0]
        said = f"{figure(rate or 0)} {speed.label} and {figure(took_s or 0)} s/step"
        if work is not None and done and not work.at_most:
            text = f"{said} are {figure(done)} {what} of a step on each GPU, and it has {figure(work.amount)}"
            yield _Pair(text=text, quotient=done / work.amount)
        if ranks and done and seen.get(speed):
            all_done = f"{figure(done * ranks)} {what} of a step"
            text = f"{said} on {ranks} GPUs are {all_done}, and {seen[speed]:,.0f} were seen in each"
            yield _Pair(text=text, quotient=done * ranks / seen[speed])


def _added(run: CheckInput, total: Quantity) -> float:
    """Return by how much each step raises a total; 0 where that is not known."""
    curve = run.log.steps.curve(total)
    if run.log.steps.restarts or not all(map(usable, curve.values)):
        return 0.0
    jumps = [after - before for before, after in pairwise(curve.values) if after > before]
    rise = curve.values[-1] - curve.values[0] if jumps else 0.0
    return rise / (curve.ns[-1] - curve.ns[0]) if jumps and rise >= _JUMPS * min(jumps) else 0.0


def _mfu_and_tflops(run: CheckInput, window: Window) -> Iterator[_Pair]:
    """Yield a trainer's TFLOP/s with its MFU, by the nearest peak that it can have counted with."""
    mfu = median_in(run.log.steps, Quantity.MFU_PERCENT, window)
    tflops = median_in(run.log.steps, Quantity.TFLOPS_PER_GPU, window)
    if not mfu or not tflops or not _LEAST_MFU <= mfu <= 100 or tflops < _LEAST_TFLOPS:  # too few digits
        return
    peak = 100 * tflops / mfu
    nearest = min(possible_peaks(run.plan.machine if run.plan else None), key=lambda item: abs(item / peak - 1))
    text = (
        f"{figure(tflops)} TFLOP/s/GPU at an MFU of {mfu:.4g} % are of a peak of {figure(peak)}, "
        f"and the nearest that a GPU has is {figure(nearest)} TFLOP/s"
    )
    yield _Pair(text=text, quotient=peak / nearest)


def _number_and_steps(run: CheckInput) -> Iterator[_Pair]:
    """Yield a script's own number with the speed of the steps that its log shows.

    It may be a mean that includes the warm-up, the best of the steps, or of the whole job where its name says nothing.
    """
    good = [metric for metric in run.number.metrics if metric.status is Status.SUCCESS]
    if len(good) != 1 or run.log.trainings > 1 or run.log.steps.restarts or not good[0].value:
        return
    metric, number = good[0].metric, good[0].value
    quantity = next((item for item, name in _COUNTED if name.fullmatch(metric)), None)
    window = _window_of(run, quantity) if quantity is not None else None
    if quantity is None or window is None or window.median <= 0:
        return
    values = [value for value in run.log.steps.curve(quantity).values if usable(value) and value > 0]
    slowest = min(window.median, statistics.harmonic_mean(values))
    ranks = 1 if _OF_GPU.search(metric) else rank_count(run.plan, run.log.config) or math.inf  # of all GPUs, how many?
    least, most = _LEAST_OF_SCRIPT * slowest, MOST * window.max * ranks
    of_steps = f"{figure(window.median)} {quantity.label}"
    text = f"the script reports {good[0].text} {metric}, and the steps of its log {of_steps}"
    yield _Pair(text=text, quotient=number / window.median, least=least / window.median, most=most / window.median)


# Checks of a run's figures: the number itself, the file it is in, the work that it comes to.


def metric(run: CheckInput) -> CheckResult:
    """Check whether there is a number that can be one."""
    number = run.number
    if run.other_node is not None:
        return unknown(f"the result is printed on node {run.other_node}")
    if number.cause is not Cause.NONE:
        return failed(number.reason, number.cause, number.evidence)
    if odd := _unread(run):
        return warned(odd)
    good = [metric for metric in number.metrics if metric.status is Status.SUCCESS]
    return passed(", ".join(f"{metric.text} {metric.metric}" for metric in good[-3:]))


def _unread(run: CheckInput) -> str:
    """Return that a number beside those of the result cannot be read, so that they may be none either; else ""."""
    rule, scan = run.expected.rule, run.log.scan
    if run.by_steps and (odd := run.log.training.unread.get(rule.headline)):
        unit = rule.headline.label
        return f"'{shown(odd)}' of a step is no number: what other steps report as {unit} may be none either"
    window = run.window if run.by_steps else None
    if window is not None and (infinite := sum(map(math.isinf, run.log.steps.curve(window.quantity).within(window)))):
        unit = window.quantity.label
        return f"{infinite} of the steady steps report an infinite {unit}: what others report may be none either"
    if rule.kind == "performance_line" and (number := scan.unread):
        return f"'{shown(number.text)}' in '{shown(number.line)}' is no number: other lines' may be none either"
    return ""


def error_pattern(run: CheckInput) -> CheckResult:
    """Check whether a script that prints its own result printed an error, by madengine 2's rule."""
    if run.by_steps or not run.log.scanned or run.number.cause is not Cause.NONE:
        return unknown(_why_not_scanned(run))
    if found := ", ".join(map(repr, run.log.matched_patterns)):
        return failed(f"the script printed {found} beside its number", Cause.ERROR_PATTERN)
    return passed("a card's own script printed none of MAD's error patterns")


def compute(run: CheckInput) -> CheckResult:
    """Check whether a GPU can do the work that the number comes to, and what the framework reports of it."""
    work = run.compute
    if (mfu := _mfu(run)) > 100:
        return warned(f"the trainer reports an MFU of {mfu:.4g} %, which is above 100 %")
    if work is None:
        return unknown(_why_not_counted(run))
    if work.mfu is None and work.peak_tflops is not None:
        return warned(work.no_mfu)
    if apart := apart_text(work):
        return unknown(apart, is_finding=True)
    return passed(f"{work.tflops_per_gpu:.4g} TFLOP/s/GPU")


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
    found = [interval for interval in _intervals(blocks, sorted(interrupted)) if interval is not None]
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


def summary(run: CheckInput) -> CheckResult:
    """Compare the steps that a framework's own summary is of with those that were read, as its reader knows them."""
    log = run.log
    if log.training.computed:
        return passed("it is of other steps, and computed from those that were read")
    if log.training.summary_doubt:
        return warned(log.training.summary_doubt)
    if log.training.summary_doubt is None:
        return unknown("its number of steps is not reported" if log.summary else "there is none")
    return passed("the framework's own summary is of the steps that were read")


def clock(run: CheckInput) -> CheckResult:
    """Compare a speed with the time between the lines of its steps: madlite's clock, or the log's own time stamps."""
    log, window = run.log, run.window
    if window is None:
        why = "there is no steady window" if run.by_steps else "a card's own script prints its own result"
        return unknown(why)
    by_time = window.quantity == Quantity.STEP_TIME_S
    work = Work(amount=1) if by_time else work_of_step(window.quantity, run.plan, log.config)
    if work is None or window.median <= 0:
        return unknown("it is not known how much work a step has on each GPU")
    step_s = window.median if by_time else work.amount / window.median
    if (longer := _longer_than_it_lived(run, window, work, step_s)) is not None:
        return longer
    if run.observed is not None and not math.isnan(log.training.first_stamp_s):
        return unknown("when its lines came is not known")
    found = compare_with_clock(log.steps, window, log.training.interrupted)
    if isinstance(found, str):
        return unknown(found)
    agrees = not found.is_too_fast(step_s) and (work.at_most or not found.is_too_slow(step_s))
    name = "the log's own time stamps" if run.observed is None else "madlite's clock"
    text = _compared(window, work, found, name, is_consistent=agrees)
    if agrees:
        return passed(text)
    return unknown(text, is_finding=True) if work_varies(run) else warned(text)


def _longer_than_it_lived(run: CheckInput, window: Window, work: Work, step_s: float) -> CheckResult | None:
    """Return that the steps would have taken longer than the process lived; None where they fit, or it is unknown."""
    ended = run.observed.exit if run.observed is not None else None
    count = window.last_step - window.first_step + 1
    if ended is None or not ended.duration_s or work.at_most or work_varies(run):
        return None
    if LEAST * count * step_s <= ended.duration_s:
        return None
    text = (
        f"{count} steps at {figure(window.median)} {window.quantity.label} take {figure(count * step_s)} s, "
        f"and the training ran for {figure(ended.duration_s)} s"
    )
    return failed(text, Cause.BAD_NUMBER)


def work_varies(run: CheckInput) -> bool:
    """Return whether steps have texts of any length: how many tokens count in a step is known to the trainer alone."""
    planned = run.plan.settings.get("packed", "") if run.plan is not None else ""
    return "false" in (run.log.config.get("packed", "").lower(), str(planned).lower())


def _compared(window: Window, work: Work, found: Clocked, clock_name: str, *, is_consistent: bool) -> str:
    unit = window.quantity.label
    most = "at most " if work.at_most else ""
    by_time = window.quantity == Quantity.STEP_TIME_S
    steps, seconds = found.steps, found.seconds
    done = f"{steps} steps" if by_time else f"{steps} steps × {most}{figure(work.amount)} {unit.partition('/')[0]}"
    speed = seconds / steps if by_time else work.amount * steps / seconds
    return (
        f"reported {figure(window.median)} {unit}, {'and' if is_consistent else 'but'} {done} took "
        f"{figure(seconds)} s by {clock_name}: {most}{figure(speed)} {unit}"
    )


# Checks of what a training computes: its losses, how they move, and the gradient's norm.


_PART = 5  # the first and the last fifth of the steps are compared
_LEAST = 3  # steps of such a part, and of the start
_RISE = 1.3  # how far above the first losses the last ones are at least, where they explode
_LOSS_JUMPS = 6.0  # and by how many of the usual changes from step to step
_LEAP = 10.0  # how far above those before it the last loss alone is, where it explodes
_CALM = 0.9  # of the losses before the last fifth: as few as are above may be spikes
_ENDLESS = 2  # norms at the end that are not finite: one alone may be a step of FP16, whose scale is too high then
_GRADIENT = 100.0  # how far above the first norms, and above 1, the last ones are
_FLAT = 0.02  # of the loss at the start: what rises by less stays where it was
_NOISE = 4.5  # changes from step to step by which a median of few noisy losses differs from another
_TO_CHANGE = 3**-0.5  # of independent noise a change from step to step is so much of a change of the change
_CHANCE = 1.2  # how far above a choice by chance, ln(vocabulary), no training stays
_FEWEST_TOKENS = 256  # of a vocabulary of tokens, the bytes; a smaller one is of letters or sounds, as CTC has them
_FAR_ABOVE = 1.5  # times that bound: a loss that begins higher is summed over tokens or steps, and no mean of a token's
_AWAY = 3.0  # how far above the first loss all of the last fifth are, where it never came back
_TRENDS = 5  # losses whose trend can be distinguished from their scatter
_FACTORS, _FACTORS_OF_NO_LEAP = 5.0, 8.0  # and by how many of the usual factors from step to step
_NEAR_ZERO, _HIGH, _PART_OF_START = 0.05, 0.3, 0.2  # a loss above, which is 0 in the next step, did not fall there
# and what stays below the first of these did not explode: GRPO's loss and a KL divergence begin with 0 by design
_FEW = 25  # losses: of fewer those of the later half, or of the last fifth, may be close to one another by chance
_ZEROS = 3  # in a row: fewer may be batches whose tokens are all masked


def loss(run: CheckInput) -> CheckResult:
    """Check whether every loss is finite, and none turned 0."""
    log, has_loss = run.log, Quantity.LOSS in run.log.steps.quantities()
    if log.nan_loss:
        text = "the loss is not finite"
        return failed(text, Cause.NAN_LOSS, log.nan_loss) if run.by_steps else warned(text)
    if Quantity.LOSS in log.training.unread:
        return warned(f"a loss is '{shown(log.training.unread[Quantity.LOSS])}', which is no number")
    if run.by_steps and run.expected.rule.loss_expected and not has_loss and not _is_in_search(run):
        return failed("no step reports a loss", Cause.NAN_LOSS, log.best_error_line)
    if line := _nan_of_other_lines(run):
        return warned(f"a line reports a loss that is not finite: {line}")
    if zero := _zero(_losses(run), moves=any(run.log.steps.curve(Quantity.GRAD_NORM).values)):
        return warned(zero)
    if has_loss:
        return passed("every loss is finite")
    return unknown("no step has a loss" if log.steps else "no step was read")


def _is_in_search(run: CheckInput) -> bool:
    """Return whether no step was read, or none but those that FP16's search for its scale left out, before the end.

    What ended the log then is the cause, and no loss of NaN.
    """
    log, last = run.log, last_step(run.expected, run.log)
    if last is None:
        return True
    steps = run.expected.steps
    is_over = log.ended or (steps is not None and last + log.steps.from_zero >= steps)
    return log.training.noted > 0 and log.training.skipped == log.training.noted and not is_over


def loss_trend(run: CheckInput) -> CheckResult:
    """Check whether the loss explodes, or ends above where it began.

    Compared are medians: of the last fifth of the steps, of the first three, of the first fifth.  How much a loss
    scatters is how far the last ones are apart, and the usual change from one step to the next: a diffusion's is as
    large as what its medians differ by.  The last loss alone has to be much further away from all but spikes before it.
    """
    losses = _losses(run)
    if norm := run.log.nan_norm or _nan_norm_of_other_lines(run):
        return warned(f"a gradient norm is NaN: {norm}")
    if 2 * (skipped := run.log.training.skipped) > (of := run.log.training.noted):
        text = f"the optimizer skipped {skipped} of {of} steps: their weights did not change"
        return warned(text)
    if any(value <= 0 for value in losses[:_LEAST]):
        return _gradient(run) or unknown("the first losses are not above 0")
    if climb := _climb(losses) or _leap(losses) or _above_start(losses) or _above_chance(losses, _vocabulary(run)):
        return warned(climb)
    first, last = _ends(losses)
    if gradient := _gradient(run):
        return gradient
    if math.isnan(first):
        return unknown(f"{len(losses)} losses are too few" if losses else "no step has a loss")
    return passed(f"the loss goes from {first:.4g} to {last:.4g}")


def _losses(run: CheckInput) -> list[float]:
    return [value for value in run.log.steps.curve(Quantity.LOSS).values if math.isfinite(value)]


def _nan_of_other_lines(run: CheckInput) -> str:
    """Return a line with a loss of NaN that is none of the steps by which the run is judged, "" without one.

    To which of its trainings a script's number belongs is unknown, so those before the last one's count too.
    """
    log = run.log
    if run.by_steps:
        return log.loss_scan.nan if log.trainings == 1 else ""
    return log.loss_scan.nan or log.nan_before


def _nan_norm_of_other_lines(run: CheckInput) -> str:
    """Return a line with a gradient norm of NaN that no reader read, where no loss is NaN itself; "" without one."""
    scan = run.log.loss_scan
    return "" if scan.nan or run.log.nan_loss or run.log.trainings > 1 else scan.nan_norm


def _zero(losses: Sequence[float], *, moves: bool) -> str:
    """Return that every loss is 0, or 0 follows a high one; "" where it fell there, or never is.

    GRPO's may be 0 by design: then there are gradients, and the model `moves`.
    """
    if len(losses) >= _ZEROS and not any(losses) and not moves:
        return "the loss of every step is 0"
    start = statistics.median(losses[:_LEAST]) if losses else 0.0
    high = max(_NEAR_ZERO, min(_HIGH, _PART_OF_START * start))
    before, done = 0.0, 0
    for value, row in groupby(losses):
        count = len(list(row))
        done += count
        if value == 0 and before > high and (count >= _ZEROS or done == len(losses)):
            return f"the loss is 0 after {before:.4g}"
        before = value
    return ""


def _vocabulary(run: CheckInput) -> int:
    """Return how many tokens the model chooses from, as the log reports, else the plan; 0 if neither has it."""
    plan = run.plan
    planned = plan.architecture.vocab if plan is not None and plan.architecture is not None else 0
    return run.log.loss_scan.vocabulary or planned


def _gradient(run: CheckInput) -> CheckResult | None:
    norms = list(run.log.steps.curve(Quantity.GRAD_NORM).values)
    first, last = _ends(norms)
    if len(norms) >= _ZEROS and not any(norms) and not _falls(_losses(run)):
        return warned("the gradient norm of every step is 0: no weight changes")
    if len(norms) > 1 and not any(map(math.isfinite, norms[-_ENDLESS:])):
        return warned("the gradient norm is not finite")
    if not norms or math.isnan(first) or (math.isfinite(last) and last <= _GRADIENT * max(first, 1.0)):
        return None
    rises = f"the gradient norm rises from {first:.4g} to {last:.4g}"
    return warned(rises if math.isfinite(last) else "the gradient norm is not finite")


def _falls(losses: Sequence[float]) -> bool:
    """Return whether the loss ends below its start: a trainer that does not compute the norm may print 0 for it."""
    first, last = _ends(losses)
    return last < (1 - _FLAT) * first  # NaN is not


def _climb(losses: Sequence[float]) -> str:
    """Return that the last losses are far above the first ones, "" where they are not."""
    first, last = _ends(losses)
    if math.isnan(first) or last <= max(_RISE * first, _NEAR_ZERO):
        return ""
    text = f"the loss rises from {first:.4g} to {last:.4g} (medians of the first and last steps)"
    far = _LOSS_JUMPS * _usual_change(losses)
    if len(losses) < _FEW:
        far = max(far, _NOISE * _usual_change(losses[len(losses) // 2 :]))
    return text if last - first > far else ""


def _leap(losses: Sequence[float]) -> str:
    """Return that the last loss is far above those before it, "" where it is not."""
    level = _level(losses)
    far = bool(level) and losses[-1] > max(_LEAP * level, _NEAR_ZERO)
    return f"the last loss is {losses[-1]:.4g}, far above the {level:.4g} before it" if far else ""


def _above_start(losses: Sequence[float]) -> str:
    """Return that the loss ends above where it began by more than it scatters, "" where it does not."""
    if len(losses) < 2 * _LEAST:
        return ""
    last, start = _last_part(losses), statistics.median(losses[:_LEAST])
    level = statistics.median(last)
    late = losses[len(losses) // 2 :]  # an explosion's own changes are no scatter
    scatter = max(_scatter(late, last, level), _scatter_of_few(losses, level), _FLAT * start)
    if level > _NEAR_ZERO and level - start > scatter:
        return f"the loss ends at {level:.4g}, above the {start:.4g} that it began with (medians of the steps)"
    if losses[0] >= 1 and min(last) > _AWAY * losses[0] and _is_far(losses, level):
        return f"the loss begins with {losses[0]:.4g} and ends at {level:.4g}, never near that again"
    return ""


def _scatter(late: Sequence[float], last: Sequence[float], level: float) -> float:
    """Return how far losses scatter: those that fall at the end beside their trend, in logarithms a straight line.

    A loss that still falls from an explosion is far apart from one step to the next, and scatters little.
    """
    apart = max(max(last) - min(last), _NOISE * _usual_change(late))
    if len(late) < _TRENDS or min(late) <= 0:
        return apart
    logs = [math.log(value) for value in late]
    part = logs[-len(last) :]
    slope = find_slope(part)
    if slope >= 0:
        return apart
    changes = [after - before for before, after in pairwise(logs)]
    beside = [value - slope * at for at, value in enumerate(part)]
    spread = (max(beside) - min(beside)) * len(part) / (len(part) - 2)  # two of them any line goes through
    return level * max(spread, _NOISE * _TO_CHANGE * _usual_change(changes))


def _is_far(losses: Sequence[float], level: float) -> bool:
    """Return whether a level is further above the first loss than losses of this scatter are from one another.

    Without a leap from it the first one may be low by chance.
    """
    logs = [math.log(value) for value in losses if value > 0]
    factors = _FACTORS if max(losses) > _AWAY * _LEAP * losses[0] else _FACTORS_OF_NO_LEAP
    return math.log(level / losses[0]) > factors * _usual_change(logs)


def _above_chance(losses: Sequence[float], vocabulary: int) -> str:
    """Return that the loss ends above that of a choice by chance, "" if it does not or their number is unknown."""
    if vocabulary < _FEWEST_TOKENS or len(losses) < _LEAST:
        return ""
    level, chance = statistics.median(_last_part(losses)), math.log(vocabulary)
    words = f"the loss ends at {level:.4g}, and a choice by chance of {vocabulary} tokens has {chance:.4g}"
    return words if level > _CHANCE * chance and not _is_summed(losses, level, _CHANCE * chance) else ""


def _is_summed(losses: Sequence[float], level: float, bound: float) -> bool:
    """Return whether losses begin above what a token's can be, and so are no mean of tokens', rather than exploded.

    They begin far above or fall from there; and they never rise far above the first one, but for a step or two.
    """
    start = statistics.median(losses[:_LEAST])
    heights = (statistics.median(losses[at : at + _LEAST]) for at in range(len(losses) - _LEAST + 1))
    began = losses[0] > bound and (start > _FAR_ABOVE * bound or level < start)
    return began and max(heights) <= _AWAY * losses[0]


def _scatter_of_few(losses: Sequence[float], level: float) -> float:
    """Return how far medians of few losses are apart by chance: those of the later half may be close to one another.

    By how far each is from the one before, or from the mean of the two beside it, in logarithms.  The lesser counts,
    for a jump is in more of the latter, and a trend in none of them.
    """
    if len(losses) >= _FEW or min(losses) <= 0:
        return 0.0
    logs = [math.log(value) for value in losses]
    bends = [abs(logs[at] - (logs[at - 1] + logs[at + 1]) / 2) for at in range(1, len(logs) - 1)]
    return level * _LOSS_JUMPS * min(_usual_change(logs), statistics.median(bends))


def _usual_change(losses: Sequence[float]) -> float:
    return statistics.median(abs(after - before) for before, after in pairwise(losses))


def _last_part(losses: Sequence[float]) -> Sequence[float]:
    return losses[-max(_LEAST, len(losses) // _PART) :]


def _level(losses: Sequence[float]) -> float:
    """Return what the last loss is measured by: all before it where they are few, 0 where they are too few."""
    if len(losses) < 2 * _LEAST:
        return max(losses[:-1]) if len(losses) >= _LEAST else 0.0
    part = max(_LEAST, len(losses) // _PART)
    before = sorted(losses[:-part])
    return max(statistics.median(losses[:part]), statistics.median(losses), before[int(_CALM * (len(before) - 1))])


def _ends(values: Sequence[float]) -> tuple[float, float]:
    """Return the medians of the first and of the last steps, NaN of too few; what is not finite is above all."""
    if len(values) < 2 * _LEAST:
        return math.nan, math.nan
    part = max(_LEAST, len(values) // _PART)
    high = [value if math.isfinite(value) else math.inf for value in values]
    return statistics.median(high[:part]), statistics.median(high[-part:])
