"""A Trainer's final figures against the steps of its log.

transformers 4 divides all the steps that were planned (`max_steps`) by the time, also where the training stopped before
or went on from a checkpoint; later versions those that were done.  Of how many steps the figures are follows from
`train_steps_per_second` × `train_runtime`.  `train_loss` is the sum of the losses of the steps that this process did,
divided by the number of its last step: after a checkpoint it is too small.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise

from madlite import number
from madlite_plugins.hf.step_numbers import Process, Sizes, limits, steps_range

_RATES = ("train_samples_per_second", "train_steps_per_second")
_NEAR = 0.02  # of the steps: as far as both may be apart
_APART, _APART_S = 0.01, 0.005  # of the time that two nodes say of one training
_ALIKE = 0.02  # of differences of a learning rate that falls in a straight line
_LATE = 1.5  # times as far as lines are apart, at the most
_REST = 0.2  # of the least loss of a line: that of the steps after the last one is no less
_MORE = 2.0  # lines that were to come


def figures_of(values: Mapping[str, str], done: int, least: int = 0) -> tuple[dict[str, str], str | None]:
    """Return the figures of the steps that were `done` in place of those of others, and "": they were compared.

    None where the figures do not show how many steps they cover.  Where `least` steps may have been done as well, for
    a checkpoint may be of any step between two lines, and the figures are of none of those, they are doubted.
    """
    low, high = _steps(values)
    if math.isnan(low) or done < 1:
        return {}, None
    if low - max(1.0, _NEAR * low) <= done and (least or done) <= high + max(1.0, _NEAR * high):
        return {}, ""
    if least and least < done:
        return {}, f"the framework's own summary is of {high:.0f} steps, and the log shows {least} to {done}"
    of = float(round((low + high) / 2)) or high
    rates = {name: number(values.get(name, "")) for name in _RATES}
    return {name: f"{rate * done / of:.6g}" for name, rate in rates.items() if math.isfinite(rate)}, ""


def bar_fits(process: Process, sizes: Sizes, values: Mapping[str, str]) -> bool:
    """Return whether the bar can be that of the training whose figures these are: they are of its steps, or those done.

    Any other tqdm of a script draws one that looks the same.
    """
    low, high = _steps(values)
    near = max(1.0, _NEAR * high)
    ends = (end - start for end in process.bar_ends for start in (0, process.start, sizes.start))
    return math.isnan(low) or any(low - near <= end <= high + near for end in ends)


def same_training(before: Mapping[str, str], values: Mapping[str, str]) -> bool:
    """Return whether figures are the same training's once more: with other digits, or of another node."""
    for name in ("train_loss", "epoch"):
        (low, high), (least, most) = (limits(figures.get(name, ""), 0.005) for figures in (before, values))
        if high < least or most < low:  # NaN is neither
            return False
    first, second = (number(figures.get("train_runtime", "")) for figures in (before, values))
    return not abs(first - second) > max(_APART * max(first, second), _APART_S)


def steps_done(process: Process, sizes: Sizes, values: Mapping[str, str]) -> tuple[int, int]:
    """Return how many steps a training did, at least and at most; 0 where nothing shows it for sure.

    One that went on from a checkpoint did so from any step before its first line, unless the log or its losses tell.
    """
    sure = sizes.step_at(values.get("epoch", ""))
    last = sure or (max(process.bar, process.n if process.is_exact else 0) if process.has_bar else 0)
    if 0 < sizes.start < (done := last or sizes.steps):
        return done - sizes.start, done - sizes.start
    start = process.start
    if not (last > start and (sure or process.bar_from_0 or not start)):
        return 0, 0
    if not start:
        return last, last
    mean = number(values.get("train_loss", ""))
    span = process.first_span(mean, last, process.gap) if (last - process.first) % process.gap == 0 else 0
    return last - process.first + (span or 1), last - process.first + (span or process.gap)


def doubt_of(process: Process, values: Mapping[str, str]) -> str | None:
    """Return why figures are doubtful of whose steps the log shows no count; None where nothing speaks against them."""
    low, high = _steps(values)
    if math.isnan(low) or not process.lines:
        return None
    of = f"the framework's own summary is of {high:.0f} steps"
    if process.start and not process.bar_from_0:
        return f"{of}, and the log begins after step {process.start}"
    if process.has_bar or process.is_quoted:  # later versions count the steps that were done
        return None
    if begun := _begun(process, values, round((low + high) / 2)):
        return f"{of}, and {begun}: the training went on from a checkpoint"
    if not any(_fits(lines, low, high) for lines in (process.lines, process.lines - 1) if lines):
        return f"{of}, of which {process.lines} lines show no regular part: the training stopped earlier, or went on"
    if (left := _left(process)) >= _MORE:
        return f"{of}, and the learning rate was to fall over {left:.0f} more lines: the training stopped earlier"
    return None


def doubt_of_unread(texts: Mapping[str, str]) -> str:
    """Return that figures are written as in another language, so that others may be as well."""
    name = next((name for name in _RATES if name in texts), next(iter(texts)))
    text = texts[name]
    return f"{name} is '{text}', which is no number: the Trainer separates no groups of digits, and decimals by a dot"


def _steps(values: Mapping[str, str]) -> tuple[float, float]:
    """Return the steps that the figures are of, at least and at most; NaN where they do not report, or of none."""
    low, high = steps_range(values)
    return (low, high) if low > 0 else (math.nan, math.nan)


def _fits(lines: int, low: float, high: float) -> bool:
    """Return whether so many lines can be those of a training of low to high steps, one every so many steps."""
    least = math.floor(low / (lines + 1)) + 1
    return least <= math.floor(high / lines + 1e-9)


def _begun(process: Process, values: Mapping[str, str], steps: int) -> str:
    """Return what shows that steps before the first line's are of an earlier process, "" where nothing does.

    Without a checkpoint the lines are those of one step in so many, from the first on, and perhaps of the first itself.
    """
    most, least = steps // process.lines, steps // (process.lines + 1) + 1  # steps that lines are apart
    first, latest = _first_step(process, values, steps)
    if _is_late(process) or first > most:
        return f"the log's first line is of epoch {process.first_epoch}"
    mean_loss = f"the train_loss of {values.get('train_loss', '')}"
    if 0 < (span := _first_span(process, values, steps)) < most:
        return f"{mean_loss} is that of a first line of {span} steps, and others have {most}"
    if latest <= 2 * steps / (process.lines + 2):  # that of a second line or a later one would be above
        return ""
    lines = steps / max(least, first)  # that there can be without a checkpoint
    if first <= 1:  # the first line may be that of the first step alone
        lines = max(lines, 1 + steps / (steps // process.lines + 1))
    rest = _REST * process.least_loss * max(0.0, lines - process.lines)  # of steps after the last line
    _, mean = limits(values.get("train_loss", ""), 0.0)
    if mean > 0 and process.losses + rest > mean * lines:  # NaN is not
        return f"{mean_loss} is less than what the losses of {process.lines} lines come to"
    return ""


def _first_span(process: Process, values: Mapping[str, str], steps: int) -> int:
    """Return of how many steps the first line is by its losses, where lines go up to the last of all steps; else 0."""
    first, last = number(process.first_epoch), number(values.get("epoch", ""))
    ends = process.epoch == values.get("epoch") and steps % process.lines == 0
    if not (ends and last > 0 and abs(first * process.lines / last - 1) < _NEAR):
        return 0
    return process.first_span(number(values.get("train_loss", "")), steps, steps // process.lines)


def _first_step(process: Process, values: Mapping[str, str], steps: int) -> tuple[float, float]:
    """Return which step the first line is of, at least and at most, by its epoch and the last one's.

    Where an epoch's last step has fewer passes than others an epoch is by less than a step from where it would be.
    """
    (low, high), (least, most) = (limits(text, 0.005) for text in (process.first_epoch, values.get("epoch", "")))
    if not (0 < most < math.inf and low >= 0):
        return 0.0, math.inf
    return (steps - 1) * low / most - 1, (steps + 1) * high / least + 1 if least > 0 else math.inf


def _is_late(process: Process) -> bool:
    """Return whether the first line's epoch is later than lines are apart: steps before it are not in the log."""
    first, _ = limits(process.first_epoch, 0.005)
    _, last = limits(process.epoch, 0.005)
    if process.lines < 2 or not last > first:  # NaN is not
        return False
    return first > _LATE * (last - first) / (process.lines - 1)


def _left(process: Process) -> float:
    """Return how many lines a learning rate that falls in a straight line to 0 was to have after the last one."""
    rates = [*process.rates]
    falls = [before - after for before, after in pairwise(rates)]
    if len(rates) < 3 or min(falls) <= 0 or max(falls) - min(falls) > _ALIKE * max(falls):
        return 0.0
    return rates[-1] / falls[-1]
