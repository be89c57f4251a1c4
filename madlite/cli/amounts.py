"""Sizes (`500M`, `50G`) and ages (`30d`, `12h`) as options have them."""

from __future__ import annotations

import re
from typing import Any

import click

_AGE = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,3})?)\s*([mhdw])")
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


SIZE, AGE = SizeType(), AgeType()


def counted(count: int, what: str) -> str:
    """Return a count with its noun: `1 run`, `2 runs`."""
    return f"{count} {what}{'' if count == 1 else 's'}"
