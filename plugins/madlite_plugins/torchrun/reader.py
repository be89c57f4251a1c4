"""Read the steps of a script's log as its user says they look (words.py)."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from madlite import Ended, Event, Line, Quantity, Step, number
from madlite_plugins.steps import Spans, rank_before
from madlite_plugins.torchrun.words import NAMES, STEP_NAMES

_MOST = 10**12  # a step beyond is a garbled number
_TRIES = 8  # objects of one line that are looked at
_SHARED = (
    Quantity.TOKENS_PER_S_PER_GPU,
    Quantity.SAMPLES_PER_S_PER_GPU,
    Quantity.IMAGES_PER_S_PER_GPU,
    Quantity.TFLOPS_PER_GPU,
    Quantity.TOKENS_PER_S_PER_GPU_MEAN,
    Quantity.TFLOPS_PER_GPU_MEAN,
)


class Scale(NamedTuple):
    """What a script's numbers are made per GPU by: how many ranks share a speed, and a step's tokens per GPU or 0."""

    ranks: int = 1
    tokens: float = 0.0


class OwnReader:
    """Follows one log; `pattern` tells a step's line, where it is None a JSON object after `prefix` does.

    A script that counts from 0 has done step n + 1 when it prints n.
    """

    def __init__(
        self,
        pattern: re.Pattern[str] | None = None,
        *,
        prefix: str = "",
        keys: Mapping[str, str] | None = None,
        end_mark: str = "",
        scale: Scale | None = None,
    ) -> None:
        self._pattern = pattern
        self._prefix = prefix
        self._keys = keys or {}
        self._end_mark = end_mark
        self._scale = scale or Scale()
        self._spans = Spans()
        self._offset: int | None = None

    def feed(self, line: Line) -> Iterable[Event]:
        """Return the line's steps, or its end mark."""
        found: list[Event] = list(self._by_pattern(line) if self._pattern is not None else self._by_json(line))
        if not found and self._end_mark and self._end_mark in line.text:
            found.append(Ended(marker=self._end_mark))
        return found or ()

    def finish(self, outputs: Path) -> Iterable[Event]:
        """Return nothing: everything was in the log."""
        return ()

    def _by_pattern(self, line: Line) -> Iterator[Step]:
        for found in self._pattern.finditer(line.text) if self._pattern else ():
            told = {name: number_in(text) for name, text in found.groupdict().items() if text is not None}
            numbers = {name: value for name, value in told.items() if value is not None}
            yield from self._step(numbers, rank_before(line, found.start()), line)

    def _by_json(self, line: Line) -> Iterator[Step]:
        for at, values in objects_in(line.text, self._prefix):
            rank = values.get("rank")
            told = rank if isinstance(rank, int) and not isinstance(rank, bool) and 0 <= rank < _MOST else None
            yield from self._step(numbers_of(values, self._keys), rank_before(line, at) if told is None else told, line)

    def _step(self, numbers: Mapping[str, float], rank: int | None, line: Line) -> Iterator[Step]:
        n = numbers.get("n", math.nan)
        values = {NAMES[name][0]: value * NAMES[name][1] for name, value in numbers.items() if name != "n"}
        if not 0 <= n < _MOST or not values:
            return
        if self._offset is None:
            self._offset = 1 if n < 1 else 0
        step = int(n) + self._offset
        yield Step(n=step, values=self._scaled(values), rank=rank, t_s=line.t_s, span=self._spans.of(step, rank))

    def _scaled(self, values: dict[Quantity, float]) -> dict[Quantity, float]:
        for quantity in _SHARED:
            if quantity in values:
                values[quantity] /= self._scale.ranks
        seconds = values.get(Quantity.STEP_TIME_S, 0.0)
        if self._scale.tokens and seconds > 0 and Quantity.TOKENS_PER_S_PER_GPU not in values:
            values[Quantity.TOKENS_PER_S_PER_GPU] = self._scale.tokens / seconds
        return values


def objects_in(text: str, prefix: str = "") -> Iterator[tuple[int, dict[str, object]]]:
    """Yield place and content of the JSON objects of a line that stand right after `prefix`."""
    decoder, opening = json.JSONDecoder(), prefix + "{"
    at = text.find(opening)
    for _ in range(_TRIES):
        if at < 0:
            return
        begin = at + len(prefix)
        try:
            value, end = decoder.raw_decode(text, begin)
        except (ValueError, RecursionError):  # cut off, another's words in it, or too deep for any log
            value, end = {}, begin + 1
        if value:
            yield begin, value
        at = text.find(opening, end)


def numbers_of(values: Mapping[str, object], keys: Mapping[str, str]) -> dict[str, float]:
    """Return an object's numbers by their names; `keys` go before the names that need none."""
    found: dict[str, float] = {}
    for key, value in values.items():
        name = keys.get(key) or ("n" if key in STEP_NAMES and "n" not in keys.values() else key)
        if (name == "n" or name in NAMES) and (name not in found or key in keys):
            told = _number(value)
            if told is not None:
                found[name] = told
    return found


def number_in(text: str) -> float | None:
    """Return a text's number, without what often stands behind one; None where it is no number, not even a NaN."""
    bare = text.strip().rstrip(",;|)]}%")
    value = number(bare)
    return None if math.isnan(value) and "nan" not in bare.lower() else value


def recognise(head: Sequence[str]) -> float:
    """Say how surely these lines are such objects: little, for other programs write some as well."""
    for text in head:
        if text.startswith("{"):
            told = [numbers_of(values, {}) for _, values in objects_in(text)]
            if any("n" in one and len(one) > 1 for one in told):
                return 0.2
    return 0.0


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        return number_in(value) if isinstance(value, str) else float(value)
    except OverflowError:
        return None
