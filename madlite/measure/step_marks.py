"""What is noted beside the steps of one training: what was done between them, which of them is no number, when."""

from __future__ import annotations

import math
import re
from array import array
from datetime import date

from msgspec.structs import replace

from madlite.measure.steps import Steps
from madlite.model import Quantity, Step

# When a line of a log was written, by its own time stamp: in `madlite parse` there is no other clock.
#
# Dates as ISO 8601 and loggers have them (`2026-11-22 10:00:03,123`, `[20261122 10:00:03]`), or a time of day alone.

_HEAD = 400  # characters in which a stamp is looked for
_TIME = r"(\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?(?![\d<:])"  # a progress bar's time is followed by <
_DATED = re.compile(rf"(?<!\d)(\d{{4}})([-/]?)(\d\d)\2(\d\d)[T _]{_TIME}", re.ASCII)
_OF_DAY = re.compile(rf"(?<![\d:]){_TIME}", re.ASCII)
_DAY_S = 86400.0


def stamp_s(text: str) -> float:
    """Return the seconds of a line's first time stamp, since any fixed moment; NaN where it has none."""
    if ":" not in text[:_HEAD]:
        return math.nan
    if found := _DATED.search(text, 0, _HEAD):
        year, _, month, day, *clock = found.groups()
        try:
            return date(int(year), int(month), int(day)).toordinal() * _DAY_S + _of_day(clock)
        except ValueError:
            return math.nan
    found = _OF_DAY.search(text, 0, _HEAD)
    return _of_day(list(found.groups())) if found else math.nan


def _of_day(clock: list[str | None]) -> float:
    hours, minutes, seconds, part = (text or "0" for text in clock)
    return int(hours) * 3600 + int(minutes) * 60 + float(f"{seconds}.{part}")


# what a trainer does beside its steps, by a line between two of them; and texts of which such a line has one
_ASIDE = re.compile(
    r"(?i)(?:\b|_)(?:valid|eval|val[ _/]?loss|test[ _/]?loss|checkpoint|ckpt|sav(?:e|ed|ing)\b|snapshot|profil|compil"
    r"|dump(?:s|ed|ing)?\b|generating|sampling)"
)
_ASIDE_TEXTS = (
    "val",
    "Val",
    "VAL",
    "heckpoint",
    "HECKPOINT",
    "ckpt",
    "sav",
    "Sav",
    "SAV",
    "napshot",
    "rofil",
    "ompil",
    "ump",
    "enerating",
    "ampling",
    "est loss",
    "est_loss",
)
_FEWEST, _MOSTLY = 3, 0.9  # numbers that two logs of one training share, and the part of them that is the same


class StepMarks:
    """Of the training that goes on.

    `ended_before` where one before it had the framework's end mark; `before` are the steps of the one before it, and
    `before_s` the time of their last one; `first_stamp_s` is the log's own first time stamp, NaN where its lines have
    another time or none.
    """

    def __init__(self) -> None:
        self.ended_before, self.first_stamp_s = False, math.nan
        self.before, self.before_s = Steps(), math.nan
        self.overlaps = False  # a step's own stamp is earlier than that of the training before
        self.unread: dict[Quantity, str] = {}  # what a step should say, and the first text of it that is no number
        self.computed: dict[str, str] = {}  # figures of the summary that are of the steps which were read
        self.summary_doubt: str | None = None  # None: nobody compared the summary with the steps
        self.interrupted = array("q")  # steps before whose line something else was done than training
        self.is_aside = False  # since the last step
        self.noted = self.skipped = 0  # lines of steps, and those of them of which the optimizer left out each

    def of_another(self, steps: Steps, *, ended: bool) -> StepMarks:
        """Return the marks of a training after this one, which has these steps."""
        marks = StepMarks()
        marks.ended_before, marks.first_stamp_s = self.ended_before or ended, self.first_stamp_s
        reach = steps.reach()
        marks.before, marks.before_s = steps, (steps.reported_s(reach[1]) if reach else None) or math.nan
        return marks

    def is_of_another_rank(self, steps: Steps) -> bool:
        """Say whether these steps are those of the training before once more, as another of its ranks told them.

        Both were at the same time by the log's stamps, and have the same losses, which ranks share, but other numbers
        beside them: else a log would stand there twice.
        """
        if not self.overlaps:
            return False
        losses, others = (_alike(self.before, steps, of_loss) for of_loss in (True, False))
        return losses >= _MOSTLY and others < _MOSTLY

    def look(self, text: str) -> None:
        """Look at a line between two steps."""
        self.is_aside = self.is_aside or _ASIDE.search(text) is not None

    def note(self, step: Step, *, another_rank_s: bool) -> None:
        """Take a training step in; the same one of another rank says nothing of what was done since."""
        self.noted, self.skipped = self.noted + 1, self.skipped + step.skipped
        for quantity, odd in step.unread.items():
            self.unread.setdefault(quantity, odd)
        if self.is_aside and not another_rank_s:
            self.interrupted.append(step.n)
            self.is_aside = False

    def stamped(self, step: Step, text: str) -> Step:
        """Return a step of a log that madlite did not make with the time of its line's own stamp."""
        if not text or not math.isnan(step.t_s):
            return step
        at = stamp_s(text)
        if math.isnan(self.first_stamp_s):
            self.first_stamp_s = at
        if not math.isfinite(at):
            return step
        t_s = 1.0 + at - self.first_stamp_s
        self.overlaps = self.overlaps or t_s < self.before_s
        return replace(step, t_s=t_s)


def _alike(before: Steps, after: Steps, of_loss: bool) -> float:
    """Return the part of the numbers of steps that both have which are the same; 0 where there are too few."""
    same = count = 0
    for quantity in before.quantities() & after.quantities():
        if (quantity == Quantity.LOSS) == of_loss:
            old, new = (
                dict(zip(curve.ns, curve.values, strict=True))
                for curve in (before.curve(quantity), after.curve(quantity))
            )
            both = old.keys() & new.keys()
            count += len(both)
            same += sum(1 for n in both if old[n] == new[n])
    return same / count if count >= _FEWEST else 0.0


class RepeatedSteps:
    """Counts steps that come again with other values: several ranks' whose lines no label tells apart.

    Those of a training that was started again after a few steps do too, up to where it was; then it goes on.
    """

    def __init__(self) -> None:
        self._surely, self._perhaps = 0, 0
        self._last = -1
        self._reached = -1  # up to where they may be of a training that was started again

    @property
    def count(self) -> int:
        """How many there were."""
        return self._surely + self._perhaps

    def note(self, step: Step, steps: Steps, highest: int) -> None:
        """Take a training step in before `steps` does, of which `highest` is the highest."""
        if step.n == self._last:
            return
        if step.n > self._reached:
            self._perhaps = 0
            self._reached = highest if steps.starts_over(step, ended=True) else -1
        if steps.is_otherwise(step):
            again = step.n <= self._reached
            self._last, self._surely, self._perhaps = step.n, self._surely + (not again), self._perhaps + again


def may_be_aside(text: str) -> bool:
    """Say whether one of many lines may tell of something else than training: a quick test."""
    return any(one in text for one in _ASIDE_TEXTS)
