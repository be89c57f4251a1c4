"""Which step a Trainer's line is of: what its epoch comes to, the bar drawn after it shows, or the lines count to.

The Trainer's epoch is the whole epochs, and of the one that goes on its forward passes by those it has.  It is printed
in full, with 2 decimals or with 4 digits, by version; `train_steps_per_second` with 3 decimals or 4 digits.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Mapping

from madlite import number

_LOOKBACK = 8  # lines back to which another process may be
_IN_FULL = 7  # digits of an epoch that is not rounded
_SOON_S = 1.0  # a progress bar is drawn at least that often
_ROUNDED = 5e-4  # of a loss
_ROUNDING_STEPS = 0.05  # as far as what rounded losses come to is from a whole number of steps
_LAG_S = 0.5  # and usually so often
_FURTHER = 6  # a bar of another process of the same training is not so far behind
_RATES = 3  # learning rates that show a straight line


class Sizes:
    """What the Trainer reports about a training before it begins; an evaluation's are no training's."""

    def __init__(self) -> None:
        self.start = 0  # the step that a checkpoint was of, as the log tells
        self._coming: dict[str, int] = {}
        self._config: dict[str, int] = {}

    def note(self, name: str, size: int) -> None:
        """Take a size in; the number of steps is the last of a training's."""
        self._coming[name] = size
        if name == "steps":
            self._config, self._coming, self.start = self._coming, {}, 0

    @property
    def steps(self) -> int:
        """The steps there are to be, 0 where unknown."""
        return self._config.get("steps", 0)

    def step_at(self, epoch: str) -> int:
        """Return the one step that an epoch can be of; 0 where it may be several."""
        examples, batch, passes = (self._config.get(name, 0) for name in ("examples", "global_batch", "accumulation"))
        low, high = limits(epoch, 0.005)
        if not (0 < passes <= batch and examples and 0 <= low <= high < 1e9):
            return 0
        pass_examples = batch // passes
        found: set[int] = set()
        for length in {max(1, examples // pass_examples), -(-examples // pass_examples)}:  # forward passes of an epoch
            for steps in {max(1, length // passes), -(-length // passes)}:
                ends = [epochs * steps + part * length / passes for part, epochs in map(math.modf, (low, high))]
                found |= _integers_between(min(ends), max(ends))
        found = {n for n in found if 0 < n <= self.steps}
        return found.pop() if len(found) == 1 else 0


class Process:
    """The lines of one process: how far its training is.

    A progress bar lags: it is drawn ten times a second.  But it is drawn again right after a line, and then shows the
    Trainer's own count; lines a regular distance apart need no bar.  Where lines come in blocks, as of a stdout that is
    buffered, no bar says anything of them.
    """

    def __init__(self) -> None:
        self.n = 0
        self.ended = False
        self.first = 0  # the step of the first line
        self.lines = 0
        self.span = 1  # steps that the last line covers
        self.is_quoted = False  # the figures: transformers 5 does that
        self.is_exact = True  # whether each line's step is the Trainer's own count
        self.bar_from_0 = False  # the bar was drawn before the first step
        self.first_epoch, self.epoch = "", ""  # of the first and the last line
        self.final: dict[str, str] = {}  # figures
        self.unread: dict[str, str] = {}  # those of another language
        self.rates: deque[float] = deque(maxlen=_RATES)  # learning rates of the last lines
        self._later_losses, self.least_loss = 0.0, math.inf
        self.first_loss = 0.0
        self.bar, self._length = 0, 0
        self._gap, self._gap_before = 0, 0
        self._in_blocks = False
        self._bar_again = False  # the bar began again
        self.is_bar_next = False  # the bar is that of a training after this one, which ended
        self.rival: tuple[int, int] | None = None  # a bar of another length: an evaluation's, or another training's
        self._rival_from_0 = False
        self._open: tuple[int, int] | None = None  # what the bar showed before and after a first line of unknown step
        self._bars_first = False  # each step's bar is drawn before its line, and none after it
        self._recent: deque[tuple[str, str]] = deque(maxlen=_LOOKBACK)

    @property
    def start(self) -> int:
        """The steps that were done before this training went on: of a first line that covers more than others do."""
        return self.first - self.gap if 0 < self.gap < self.first else 0

    @property
    def gap(self) -> int:
        """How many steps lines are apart, 0 where that is not known."""
        return self._gap or self._gap_before

    @property
    def has_bar(self) -> bool:
        """Whether a bar of this training was drawn."""
        return self._length > 0

    @property
    def bar_ends(self) -> tuple[int, int]:
        """How far the bar was drawn, and how long it is."""
        return self.bar, self._length

    def drop_bar(self) -> None:
        """Forget the bar: it is none of this training's."""
        self.bar, self._length, self.bar_from_0 = 0, 0, False

    @property
    def losses(self) -> float:
        """What the losses of the lines come to together, at least; the first line's may be that of one step alone."""
        return (self._later_losses + self.least_loss) * (1 - _ROUNDED)

    def note_loss(self, text: str) -> None:
        """Take the loss of the next line in."""
        value = number(text)
        value = value if math.isfinite(value) else 0.0
        self.first_loss = self.first_loss if self.lines else value
        self._later_losses += value if self.lines else 0.0
        self.least_loss = min(self.least_loss, value)

    def first_span(self, mean: float, steps: int, gap: int) -> int:
        """Return how many steps the first line is of, whose lines are `gap` apart and go up to the last of `steps`.

        The mean loss is the sum over the steps that were done, divided by all of them; 0 where that is no whole
        number.
        """
        if not (self.first_loss > 0 and mean > 0):
            return 0
        span = (mean * steps - gap * self._later_losses) / self.first_loss
        return round(span) if 0.5 < span < gap + 0.5 and abs(span - round(span)) < _ROUNDING_STEPS else 0

    def is_again(self, label: str, text: str, epoch: str) -> bool:
        """Return whether another process of the node's told this step before: the same numbers, epoch and all.

        An epoch that is not rounded names the step alone; without one the lines' labels have to differ.
        """
        name = epoch if len(re.sub(r"\D", "", epoch)) >= _IN_FULL else text
        recent = [*self._recent][-1:] if self.ended else self._recent  # the same training may be in the log once more
        again = any(name == seen and (epoch or label != other) for other, seen in recent)
        if not again:
            self._recent.append((label, name))
        return again and self.bar <= self.n

    def is_another(self, epoch: str) -> bool:
        """Return whether a line is another training's: this one ended, its epoch goes back, or its bar began again."""
        now, before = number(epoch), number(self.epoch)
        back, forward = now < before, now > before  # of none neither
        return self.ended or back or (self._bar_again and self.n > 0 and not forward)

    def watch(self, done: int, length: int, sizes: Sizes) -> bool:
        """Note how far a bar is, and say whether it is the training's: others have another length."""
        if (self.ended and done >= length) or (sizes.steps and length != sizes.steps):
            return False
        if not (not self.lines or self.ended or length == (self._length or length)):
            goes_on = self.rival is not None and self.rival[1] == length and self.rival[0] <= done
            self._rival_from_0 = done == 0 or (self._rival_from_0 and goes_on)
            self.rival = (done, length)
            return False
        if self.ended and (done == 0 or length != self._length):
            self.is_bar_next, self.bar_from_0 = True, False
        self._bar_again = self._bar_again or (done == 0 and self.bar > 0) or (done == 1 and self.bar > _FURTHER)
        self.bar_from_0 = self.bar_from_0 or done == 0
        self.bar, self._length, self.rival = done, length, None
        return True

    def is_rival_s(self, before: tuple[int, int] | None) -> bool:
        """Return whether a line is another training's: the bar after it is that of another length `before` it, further.

        An evaluation's has come to its end by then, or begins again.
        """
        if before is None or self.rival is None or self.rival is before:
            return False
        (was, length), (done, now) = before, self.rival
        return length == now and was < length and max(1, was) <= done

    def follow(self, other: Process) -> Process:
        """Return this process, with another one's bar."""
        self.bar, self._length, self.bar_from_0 = other.bar, other._length, other.bar_from_0
        return self

    def next_training(self) -> Process:
        """Return the same process in the training after this one, with the bar that was drawn of that."""
        process = Process()
        if self.rival is not None:
            (process.bar, process._length), process.bar_from_0 = self.rival, self._rival_from_0
        elif self.is_bar_next or self._bar_again:
            process.follow(self)
        return process

    def place(self, epoch: str, sizes: Sizes) -> bool:
        """Go on to the step of the next line; False where the bar that is drawn after it has to tell which it is."""
        self.first_epoch = self.first_epoch if self.lines else epoch
        self.epoch, self.lines, self._bar_again = epoch, self.lines + 1, False
        if self._open is not None:
            return False
        if (sure := sizes.step_at(epoch)) > self.n:
            self._go(sure)
        elif self.rival is not None:  # the next bar tells whose line this is
            return False
        elif self._in_blocks or not self.has_bar:
            self.is_exact = self.is_exact and self._gap > 0 and not self._in_blocks
            self._go(self.n + (self._gap or 1))
        elif counted := self._counted(self.bar):
            self._go(counted)
        else:
            return False
        return True

    def _counted(self, bar: int) -> int:
        """Return the step of the next line where lines are a regular distance apart; 0 where the bar is further."""
        if self._gap and bar <= self.n + self._gap:
            return self.n + self._gap
        return bar if self.first > 1 and bar == self.n + self.first else 0

    def place_by_bar(self, before: int, rate: float) -> None:
        """Go on to the step of the line that waited: the bar after it shows its count, unless that is a later one.

        `before` is what the bar showed before the line, `rate` its steps a second.
        """
        if counted := self._counted(before):
            self._go(counted)
            return
        now = before == 0 or (self._is_near(before, rate) and not self._bars_first)
        self._go(max(self.n + 1, self.bar if now else before))

    def leaves_open(self, before: int, rate: float) -> bool:
        """Return whether a first line may be of the bar before it or of the one after it: the second line tells."""
        if self.n or self.lines != 1 or not (0 < before < self.bar and self._is_near(before, rate)):
            return False
        self._open = (before, self.bar)
        return True

    def resolve(self, before: int = 0) -> None:
        """Go on to the step of the first line; `before` is what the bar showed before the second one.

        A training's lines are those of one step in so many, so that the second step is twice the first: by the bars
        before the lines, or by those after them, which is how the Trainer writes them.
        """
        if self._open is None:
            return
        (first, after), self._open = self._open, None
        self._bars_first = before == 2 * first and self.bar != 2 * after
        self._go(first if self._bars_first else after)

    def _is_near(self, before: int, rate: float) -> bool:
        return self.bar - before <= max(1.0, rate * _LAG_S)

    def place_without_bar(self, in_a_block: bool) -> None:
        """Go on to the step of the line that waited where another line follows: of the next one, lines are a block."""
        if counted := self._counted(self.bar):
            self._go(counted)
            return
        self._in_blocks = self._in_blocks or in_a_block
        self.is_exact = self.is_exact and not self._in_blocks
        self._go(self.n + 1 if in_a_block else max(self.n + 1, self.bar))

    def _go(self, n: int) -> None:
        if self.n:
            gap = n - self.n
            self._gap, self._gap_before = (gap if gap == self._gap_before else 0), gap
        self.first, self.n, self.span = self.first or n, n, n - self.n

    def end(self, values: dict[str, str], sizes: Sizes, *, doubtful: bool) -> int:
        """Note the training's end, and return how many steps it had after the last line: the figures tell.

        Those that are `doubtful` tell nothing.
        """
        before = self.n
        rate = number(values.get("train_steps_per_second", ""))
        last = sizes.step_at(values.get("epoch", "")) or steps_by_rate(values) or sizes.steps
        if before and not (self.bar and self._is_stopped(last, rate)) and not (doubtful or self._goes_on(last)):
            self.n = max(before, last)
        self.ended = True
        return self.n - before

    def _goes_on(self, last: int) -> bool:
        """Return whether as many steps would be left as lines are apart: they would have had a line."""
        return bool(self._gap) and self.is_exact and last - self.n >= self._gap

    def _is_stopped(self, last: int, rate: float) -> bool:
        """Return whether a bar shows that the training stopped before its last step: it lags by a moment alone."""
        return self.bar < last and not (last - self.bar) <= rate * _SOON_S


def steps_by_rate(values: dict[str, str]) -> int:
    """Return the steps that a training's time and rate come to; 0 where their digits leave several."""
    low, high = steps_range(values)
    found = _integers_between(low, high) if high < 1e9 else set()  # NaN is not
    return found.pop() if len(found) == 1 else 0


def steps_range(values: Mapping[str, str]) -> tuple[float, float]:
    """Return the steps that a training's time and rate are of, at least and at most; NaN where they do not report."""
    rates = limits(values.get("train_steps_per_second", ""), 0.0005)
    times = limits(values.get("train_runtime", ""), 0.00005)
    low, high = rates[0] * times[0], rates[1] * times[1]
    return (low, high) if low >= 0 and high < 1e12 else (math.nan, math.nan)


def limits(text: str, decimals: float) -> tuple[float, float]:
    """Return what a number was at least and at most before it was rounded to half a decimal, or to four digits."""
    value = number(text)
    digits = re.fullmatch(r"\d{1,12}(?:\.(\d{0,30}))?", text)
    if not math.isfinite(value):
        return math.nan, math.nan
    half = max(decimals, 5e-4 * abs(value))
    if digits and digits[1] is not None:
        half = min(half, 0.5 * 10.0 ** -len(digits[1]))
    return max(0.0, value - half), value + half


def _integers_between(low: float, high: float) -> set[int]:
    """Return the whole numbers from low to high, of many two."""
    slack = 1e-6 * max(1.0, high)
    first, last = math.ceil(low - slack), math.floor(high + slack)
    return set(range(first, min(last, first + 1) + 1))
