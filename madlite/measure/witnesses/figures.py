"""Witnesses of a run's figures: losses, the number itself, the file it is in, the work that it comes to."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from itertools import pairwise

from madlite.measure.compute import MOST_APART
from madlite.measure.number import last_step
from madlite.measure.witnesses import table
from madlite.measure.witnesses.known import Known
from madlite.measure.witnesses.table import Testimony, say
from madlite.types import Cause, Quantity, Status

_PART = 5  # the first and the last fifth of the steps are compared
_LEAST = 3  # steps of such a part
_RISE = 1.3  # how far above the first losses the last ones are at least, where they explode
_JUMPS = 6.0  # and by how many of the usual changes from step to step
_LEAP = 10.0  # how far above those before it the last loss alone is, where it explodes
_CALM = 0.9  # of the losses before the last fifth: as few as are above may be spikes
_GRADIENT = 100.0  # how far above the first norms, and above 1, the last ones are


def loss(known: Known) -> Testimony:
    """Ask whether every loss is finite."""
    log, has_loss = known.log, Quantity.LOSS in known.log.steps.quantities()
    if log.nan_loss:
        row = table.LOSS_NAN if known.by_steps else table.LOSS_ODD
        return say(row, "the loss is not finite", log.nan_loss)
    if known.by_steps and known.asked.rule.loss_expected and not has_loss and last_step(known.asked, log) is not None:
        return say(table.LOSS_GONE, "no step reports a loss", log.telling_line)
    if has_loss:
        return say(table.LOSS_FINE)
    return say(table.LOSS_UNKNOWN, "no step has a loss" if log.steps else "no step was read")


def loss_trend(known: Known) -> Testimony:
    """Ask whether the loss explodes: last steps far above the first ones, by far more than it scatters.

    Compared are the medians of the first and of the last fifth of the steps.  How much a loss scatters is the median
    change from one step to the next: a diffusion's is as large as what its medians differ by, an explosion's is small
    against it.  The last loss alone has to be much further away from all but the spikes before it.
    """
    losses = [value for value in known.log.steps.curve(Quantity.LOSS).values if math.isfinite(value)]
    if any(value <= 0 for value in losses[:_LEAST]):
        return say(table.LOSS_SHORT, "the first losses are not above 0")
    if (climb := _climb(losses)) or (climb := _leap(losses)):
        return say(table.LOSS_RISES, climb)
    first, last = _ends(losses)
    if math.isnan(first):
        return say(table.LOSS_SHORT, f"{len(losses)} losses are too few" if losses else "no step has a loss")
    return _gradient(known) or say(table.LOSS_FALLS, f"the loss goes from {first:.4g} to {last:.4g}")


def metric(known: Known) -> Testimony:
    """Ask whether there is a number that can be one."""
    number = known.number
    if number.cause is not Cause.NONE:
        row = table.NO_NUMBER if number.cause is Cause.NO_METRIC else table.NO_RESULT
        return say(row, number.reason, number.evidence)
    good = [metric for metric in number.metrics if metric.status is Status.SUCCESS]
    return say(table.NUMBER, ", ".join(f"{metric.text} {metric.metric}" for metric in good[-3:]))


def error_pattern(known: Known) -> Testimony:
    """Ask whether a script that says its number printed an error, by madengine 2's rule."""
    if known.by_steps or not known.log.scanned or known.number.cause is not Cause.NONE:
        return say(table.NOT_SCANNED, _why_not_scanned(known))
    found = ", ".join(map(repr, known.log.suspects))
    return say(table.PATTERN, f"the script printed {found} beside its number") if found else say(table.NO_PATTERN)


def artifact(known: Known) -> Testimony:
    """Ask whether the results file is this run's: one that lay there before is not read at all."""
    rule, seen = known.asked.rule, known.seen
    if rule.kind != "multiple_results" or seen is None:
        return say(table.NO_ARTIFACT)
    if seen.results is None:
        return say(table.STALE, f"the run wrote no {rule.file}", known.log.telling_line)
    return say(table.FRESH, rule.file)


def compute(known: Known) -> Testimony:
    """Ask whether a GPU can do the work that the number comes to, and what the framework says of it."""
    work = known.compute
    if work is None:
        return say(table.NOT_COUNTED, _why_not_counted(known))
    if work.mfu is None and work.peak_tflops is not None:
        return say(table.IMPOSSIBLE, work.no_mfu)
    if work.apart is not None and abs(work.apart) > MOST_APART:
        return say(table.COUNTED_OTHERWISE, f"the framework's TFLOP/s is {100 * work.apart:+.1f} % from ours")
    return say(table.COUNTED, f"{work.tflops_per_gpu:.4g} TFLOP/s/GPU")


def _why_not_scanned(known: Known) -> str:
    if known.by_steps:
        return "not looked for: the run is judged by its steps"
    return "not looked for: there is no number" if known.log.scanned else "not looked for: the scan is switched off"


def _why_not_counted(known: Known) -> str:
    plan, variant = known.plan, known.plan.variant if known.plan else None
    if plan is None or not known.by_steps:
        return "a card's own script says its number itself" if plan else "no plan says which model this is"
    if known.window is None:
        return "there is no steady window"
    if plan.architecture is None:
        return "the model's shape is not known"
    sized = variant is not None and bool(variant.seq_len)
    return "its tokens per second are not known" if sized else "its sequence length is not known"


def _gradient(known: Known) -> Testimony | None:
    norms = list(known.log.steps.curve(Quantity.GRAD_NORM).values)
    first, last = _ends(norms)
    if not norms or math.isnan(first) or (math.isfinite(last) and last <= _GRADIENT * max(first, 1.0)):
        return None
    rises = f"the gradient norm rises from {first:.4g} to {last:.4g}"
    return say(table.GRADIENT_RISES, rises if math.isfinite(last) else "the gradient norm is not finite")


def _climb(losses: Sequence[float]) -> str:
    """Return that the last losses are far above the first ones, "" where they are not."""
    first, last = _ends(losses)
    if math.isnan(first) or last <= _RISE * first:
        return ""
    usual = statistics.median(abs(after - before) for before, after in pairwise(losses))
    told = f"the loss rises from {first:.4g} to {last:.4g} (medians of the first and last steps)"
    return told if last - first > _JUMPS * usual else ""


def _leap(losses: Sequence[float]) -> str:
    """Return that the last loss is far above those before it, "" where it is not."""
    level = _level(losses)
    far = bool(level) and losses[-1] > _LEAP * level
    return f"the last loss is {losses[-1]:.4g}, far above the {level:.4g} before it" if far else ""


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
