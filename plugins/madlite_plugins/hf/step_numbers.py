"""Which step a Trainer's line is of: what its epoch comes to, its progress bar shows, or the lines before it count to.

The Trainer's epoch is the whole epochs, and of the one that goes on its forward passes by those it has.  It is printed
in full, with 2 decimals or with 4 digits, by version; `train_steps_per_second` with 3 decimals or 4 digits.
"""

from __future__ import annotations

import math
import re
from collections import deque

from madlite import number

_HELD = 8  # lines back to which another process may be
_IN_FULL = 7  # digits of an epoch that is not rounded
_SOON_S = 1.0  # a progress bar is drawn at least that often


class Sizes:
    """What the Trainer tells of a training before it begins; an evaluation's are no training's."""

    def __init__(self) -> None:
        self._coming: dict[str, int] = {}
        self._told: dict[str, int] = {}

    def note(self, name: str, size: int) -> None:
        """Take a size in; the number of steps is the last of a training's."""
        self._coming[name] = size
        if name == "steps":
            self._told, self._coming = self._coming, {}

    @property
    def steps(self) -> int:
        """The steps there are to be, 0 where nobody told."""
        return self._told.get("steps", 0)

    def step_at(self, epoch: str) -> int:
        """Return the one step that an epoch can be of; 0 where it may be several."""
        examples, batch, passes = (self._told.get(name, 0) for name in ("examples", "global_batch", "accumulation"))
        low, high = _limits(epoch, 0.005)
        if not (0 < passes <= batch and examples and 0 <= low <= high < 1e9):
            return 0
        one = batch // passes
        found: set[int] = set()
        for length in {max(1, examples // one), -(-examples // one)}:  # forward passes of an epoch
            for steps in {max(1, length // passes), -(-length // passes)}:
                ends = [whole * steps + part * length / passes for part, whole in map(math.modf, (low, high))]
                found |= _whole_between(min(ends), max(ends))
        found = {n for n in found if 0 < n <= self.steps}
        return found.pop() if len(found) == 1 else 0


class Process:
    """The lines of one process: how far its training is."""

    def __init__(self) -> None:
        self.n = 0
        self.ended = False
        self._bar, self._length = 0, 0
        self._seen: deque[tuple[str, str]] = deque(maxlen=_HELD)

    def is_again(self, label: str, text: str, epoch: str) -> bool:
        """Say whether another process of the node's told this step before: the same numbers, epoch and all.

        An epoch that is not rounded names the step alone; without one the lines' labels have to differ.
        """
        name = epoch if len(re.sub(r"\D", "", epoch)) >= _IN_FULL else text
        recent = [*self._seen][-1:] if self.ended else self._seen  # the same training may be in the log once more
        again = any(name == seen and (epoch or label != other) for other, seen in recent)
        if not again:
            self._seen.append((label, name))
        return again and self._bar <= self.n

    def watch(self, done: int, length: int, sizes: Sizes) -> None:
        """Note how far a bar is: the training's is the one before its first line, others have another length."""
        if (self.ended and done >= length) or (sizes.steps and length != sizes.steps):
            return
        if not self.n or self.ended or length == (self._length or length):
            self._bar, self._length = done, length

    def follow(self, other: Process) -> Process:
        """Return this process, with another one's bar."""
        self._bar, self._length = other._bar, other._length
        return self

    def count(self, epoch: str, sizes: Sizes) -> int:
        """Go on to the step of the next line, and return how many steps it covers."""
        before, sure = self.n, sizes.step_at(epoch)
        self.n = sure if sure > before else max(before + 1, self._bar)
        return self.n - before

    def end(self, values: dict[str, str], sizes: Sizes) -> int:
        """Note the training's end, and return how many steps it had after the last line: the figures tell."""
        before = self.n
        rate = number(values.get("train_steps_per_second", ""))
        last = sizes.step_at(values.get("epoch", "")) or steps_by_rate(values) or sizes.steps
        if before and not (self._bar and self._is_stopped(last, rate)):
            self.n = max(before, last)
        self.ended, self._bar, self._length = before > 0, 0, 0
        return self.n - before

    def _is_stopped(self, last: int, rate: float) -> bool:
        """Say whether a bar says that the training stopped before its last step: it lags by a moment alone."""
        return self._bar < last and not (last - self._bar) <= rate * _SOON_S


def steps_by_rate(values: dict[str, str]) -> int:
    """Return the steps that a training's time and rate come to; 0 where their digits leave several."""
    low, high = _limits(values.get("train_steps_per_second", ""), 0.0005)
    least, most = _limits(values.get("train_runtime", ""), 0.00005)
    if not (low >= 0 and least >= 0 and high * most < 1e9):  # NaN is neither
        return 0
    found = _whole_between(low * least, high * most)
    return found.pop() if len(found) == 1 else 0


def _limits(text: str, decimals: float) -> tuple[float, float]:
    """Return what a number was at least and at most before it was rounded to half a decimal, or to four digits."""
    value = number(text)
    digits = re.fullmatch(r"\d{1,12}(?:\.(\d{0,30}))?", text)
    if not math.isfinite(value):
        return math.nan, math.nan
    half = max(decimals, 5e-4 * abs(value))
    if digits and digits[1] is not None:
        half = min(half, 0.5 * 10.0 ** -len(digits[1]))
    return max(0.0, value - half), value + half


def _whole_between(low: float, high: float) -> set[int]:
    """Return the whole numbers from low to high, of many two."""
    slack = 1e-6 * max(1.0, high)
    first, last = math.ceil(low - slack), math.floor(high + slack)
    return set(range(first, min(last, first + 1) + 1))
