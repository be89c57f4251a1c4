"""When a line of a log was written, by its own time stamp: in `madlite parse` there is no other clock.

Dates as ISO 8601 and loggers have them (`2026-11-22 10:00:03,123`, `[20261122 10:00:03]`), or a time of day alone.
"""

from __future__ import annotations

import math
import re
from datetime import date

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
