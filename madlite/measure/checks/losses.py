"""Checks of what a training computes: its losses, how they move, and the gradient's norm."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from itertools import groupby, pairwise

from madlite.measure.checks.base import CheckInput, CheckResult, failed, passed, unknown, warned
from madlite.measure.number import last_step, shown
from madlite.measure.window import find_slope
from madlite.model import Cause, Quantity

_PART = 5  # the first and the last fifth of the steps are compared
_LEAST = 3  # steps of such a part, and of the start
_RISE = 1.3  # how far above the first losses the last ones are at least, where they explode
_JUMPS = 6.0  # and by how many of the usual changes from step to step
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
    far = _JUMPS * _usual_change(losses)
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
    return level * _JUMPS * min(_usual_change(logs), statistics.median(bends))


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
