"""Check a log's figures of one thing against each other: they are said twice, so one of two that differ is false."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterator
from itertools import pairwise

from madlite.machine.peaks import possible_peaks
from madlite.measure.checks import table
from madlite.measure.checks.figures import (
    LEAST,
    MOST,
    figure_text,
    rank_count,
    work_of_step,
    work_varies,
)
from madlite.measure.checks.table import CheckInput, CheckResult, check_result
from madlite.measure.window import median_in, steady_window, usable
from madlite.model import SPEEDS, Quantity, Status, Value, Window

_SEEN = {
    Quantity.TOKENS_SEEN: Quantity.TOKENS_PER_S_PER_GPU,
    Quantity.SAMPLES_SEEN: Quantity.SAMPLES_PER_S_PER_GPU,
}
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
    def agrees(self) -> bool:
        return self.least <= self.quotient <= self.most


def consistency(run: CheckInput) -> CheckResult:
    """Compare the figures of one thing: those of a window's steps, and a script's own number with its steps."""
    pairs = [*_pairs(run)]
    if apart := [pair for pair in pairs if not pair.agrees]:
        return check_result(table.FIGURES_DIFFER, f"two figures do not fit: {apart[0].text}")
    if pairs:
        return check_result(table.FIGURES_AGREE, "; ".join(pair.text for pair in pairs[:2]))
    return check_result(table.FIGURES_UNKNOWN, _why_unknown(run))


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
    found = next((one for one in wanted if one in of_steps), None)
    return steady_window(run.log.steps, found, run.expected.warmup_steps) if found is not None else None


def _speeds_and_times(run: CheckInput, window: Window) -> Iterator[_Pair]:
    """Yield each speed with the time of its step and its work, and what steps add to the tokens that were seen."""
    if work_varies(run):
        return
    steps, ranks = run.log.steps, rank_count(run.plan, run.log.config)
    took_s = median_in(steps, Quantity.STEP_TIME_S, window, run.expected.warmup_steps)
    seen = {of: _added(run, total) for total, of in _SEEN.items()}
    for speed in SPEEDS:
        work = work_of_step(speed, run.plan, run.log.config)
        rate = median_in(steps, speed, window, run.expected.warmup_steps)
        done = rate * took_s if rate and took_s else 0.0
        what = speed.label.partition("/")[0]
        said = f"{figure_text(rate or 0)} {speed.label} and {figure_text(took_s or 0)} s/step"
        if work is not None and done and not work.at_most:
            text = f"{said} are {figure_text(done)} {what} of a step on each GPU, and it has {figure_text(work.amount)}"
            yield _Pair(text=text, quotient=done / work.amount)
        if ranks and done and seen.get(speed):
            all_done = f"{figure_text(done * ranks)} {what} of a step"
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
    warmup = run.expected.warmup_steps
    mfu = median_in(run.log.steps, Quantity.MFU_PERCENT, window, warmup)
    tflops = median_in(run.log.steps, Quantity.TFLOPS_PER_GPU, window, warmup)
    if not mfu or not tflops or not _LEAST_MFU <= mfu <= 100 or tflops < _LEAST_TFLOPS:  # too few digits
        return
    peak = 100 * tflops / mfu
    nearest = min(possible_peaks(run.plan.machine if run.plan else None), key=lambda one: abs(one / peak - 1))
    text = (
        f"{figure_text(tflops)} TFLOP/s/GPU at an MFU of {mfu:.4g} % are of a peak of {figure_text(peak)}, "
        f"and the nearest that a GPU has is {figure_text(nearest)} TFLOP/s"
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
    quantity = next((one for one, name in _COUNTED if name.fullmatch(metric)), None)
    window = _window_of(run, quantity) if quantity is not None else None
    if quantity is None or window is None or window.median <= 0:
        return
    values = [value for value in run.log.steps.curve(quantity).values if usable(value) and value > 0]
    slowest = min(window.median, statistics.harmonic_mean(values))
    ranks = 1 if _OF_GPU.search(metric) else rank_count(run.plan, run.log.config) or math.inf  # of all GPUs, how many?
    least, most = _LEAST_OF_SCRIPT * slowest, MOST * window.max * ranks
    text = (
        f"the script reports {good[0].text} {metric}, and the steps of its log {figure_text(window.median)} "
        f"{quantity.label}"
    )
    yield _Pair(text=text, quotient=number / window.median, least=least / window.median, most=most / window.median)
