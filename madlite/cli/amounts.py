"""Sizes (`500M`, `50G`), ages (`30d`, `12h`) and times (`2d` ago, `2026-11-01`) as options have them."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from typing import Any

import click

_AGE = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,3})?)\s*([mhdw])")
_DAY = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2})(?:[T ]([0-9]{2}:[0-9]{2}(?::[0-9]{2})?)Z?)?")
_SECONDS = {"m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


class SizeType(click.ParamType):  # type: ignore[type-arg]
    """A number of bytes: `500M`, `2G`."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the bytes that a text names."""
        from madlite.plan.fields import as_size

        try:
            return value if isinstance(value, int) else int(as_size(value))
        except ValueError:
            self.fail(f"{value!r} is no size: write 500M or 2G, at least 16K", param, ctx)


class AgeType(click.ParamType):  # type: ignore[type-arg]
    """A number of seconds: `90m`, `12h`, `30d`, `4w`."""

    name = "age"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the seconds that a text names."""
        found = value if isinstance(value, float) else _AGE.fullmatch(value.strip())
        if isinstance(found, float):
            return found
        if found is None:
            self.fail(f"{value!r} is no age: write 90m, 12h, 30d or 4w", param, ctx)
        return float(found[1]) * _SECONDS[found[2]]


class TimeType(click.ParamType):  # type: ignore[type-arg]
    """A time in UTC: an age, counted back from now, a day, or a day with a time of day.

    A day alone begins there; with `end` it ends there, as the next one begins.
    """

    name = "time"

    def __init__(self, *, end: bool = False) -> None:
        self._end = end

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        """Return the time that a text names."""
        if isinstance(value, datetime):
            return value
        try:
            return self._time(value.strip())
        except (ValueError, OverflowError):  # a 31st of February, more days than years have
            self.fail(f"{value!r} is no time: write 2d, 12h, 2026-11-01 or 2026-11-01T14:30", param, ctx)

    def _time(self, text: str) -> datetime:
        if ago := _AGE.fullmatch(text):
            return datetime.now(timezone.utc) - timedelta(seconds=float(ago[1]) * _SECONDS[ago[2]])
        found = _DAY.fullmatch(text)
        if found is None:
            raise ValueError(text)
        day = datetime.fromisoformat(f"{found[1]}T{found[2] or '00:00'}+00:00")
        return day + timedelta(days=1 if self._end and not found[2] else 0)


SIZE, AGE = SizeType(), AgeType()
SINCE, UNTIL = TimeType(), TimeType(end=True)


def counted(count: int, what: str) -> str:
    """Return a count with its noun: `1 run`, `2 runs`."""
    return f"{count} {what}{'' if count == 1 else 's'}"
