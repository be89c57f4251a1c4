"""Numbers as a page writes and draws them."""

from __future__ import annotations

import math
from collections.abc import Sequence


def figure(value: float | None) -> str:
    """Return a number with four significant digits, five where it is 10,000 or more: `9,210`, `542.9`, `0.0123`."""
    if value is None or not math.isfinite(value):
        return "–"
    size = abs(value)
    if size >= 1e9 or 0 < size < 1e-4:
        return f"{value:.3e}"
    if size >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def percent(part: float | None) -> str:
    """Return a part of 1 in percent: `0.42 %`, `98.4 %`."""
    if part is None or not math.isfinite(part):
        return "–"
    return f"{100 * part:.2f} %" if abs(part) < 0.1 else f"{100 * part:.1f} %"


def change(part: float | None) -> str:
    """Return a change in percent with its sign: `+1.3 %`, `−4.2 %`."""
    if part is None or not math.isfinite(part):
        return "–"
    return f"{100 * part:+.1f} %".replace("-", "−")


def counted(n: int, one: str, many: str = "") -> str:
    """Return a count with its noun: `1 result`, `2,113 results`."""
    return f"{n:,} {one if n == 1 else many or one + 's'}"


def rounded(value: float) -> float:
    """Return a number with six significant digits, as a chart needs it."""
    return float(f"{value:.6g}")


def thinned(values: Sequence[float], most: int) -> Sequence[int]:
    """Return the indices of at most so many values that have the shape of all: of each piece the ends of its range."""
    if len(values) <= most:
        return range(len(values))
    size = -(-len(values) // (most // 2))
    found: list[int] = []
    for begin in range(0, len(values), size):
        piece = values[begin : begin + size]
        found += sorted({begin + piece.index(min(piece)), begin + piece.index(max(piece))})
    return found
