"""Read the steps of a script's log by the format that its user describes (step_format.py)."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from madlite import (
    QUANTITIES,
    STEPS_APART,
    Ended,
    Event,
    Line,
    Missed,
    Quantity,
    Reader,
    Spans,
    Step,
    Unread,
    number_or_none,
    rank_before,
    without_label,
)
from madlite_plugins.torchrun.step_format import NAMES, SPELLINGS, STEP_NAMES

_DIGIT = re.compile("[0-9]")
_MOST = 10**12  # a step beyond is a garbled number
_TRIES = 8  # objects of one line that are inspected
_SHARED = (
    Quantity.TOKENS_PER_S_PER_GPU,
    Quantity.SAMPLES_PER_S_PER_GPU,
    Quantity.IMAGES_PER_S_PER_GPU,
    Quantity.TFLOPS_PER_GPU,
    Quantity.TOKENS_PER_S_PER_GPU_MEAN,
    Quantity.TFLOPS_PER_GPU_MEAN,
)


class Scale(NamedTuple):
    """What makes a script's numbers those of one GPU: ranks, those that share a speed, a step's tokens per GPU."""

    ranks: int = 1
    shared: int = 1
    tokens: float = 0.0


class OwnReader:
    """Follows one log; `steps` reads a step's line, where it is None a JSON object after `prefix` is one.

    Where `mark_decides`, a log that does not end with the end mark is one of a training that failed.
    """

    def __init__(
        self,
        steps: Reader | None = None,
        *,
        prefix: str = "",
        keys: Mapping[str, str] | None = None,
        end_mark: str = "",
        mark_decides: bool = False,
        scale: Scale | None = None,
        prints: bool = True,
    ) -> None:
        self._prints = prints  # whether steps are expected here: of several nodes most scripts print on the first
        self._steps = steps
        self._prefix = prefix
        self._keys = keys or {}
        self._end_mark = end_mark
        self._mark_decides = mark_decides
        self._ended = False  # since the last step
        self._highest = -1
        self._missed = Missed()
        self._scale = scale or Scale()
        self._is_own = scale is not None
        self._spans = Spans()
        self._trained = False

    def feed(self, line: Line) -> Iterable[Event]:
        """Return the line's steps, and its end mark: ranks that write at once share a line."""
        found: list[Event] = [
            self._taken(event) if isinstance(event, Step) else event
            for event in (self._steps.feed(line) if self._steps is not None else self._by_json(line))
        ]
        if self._end_mark and self._end_mark in line.text:
            found.append(Ended(marker=self._end_mark))
            self._ended = True
        if not found and not self._trained:
            self._missed.see(line.text)
        return found or ()

    def finish(self, outputs: Path) -> Iterable[Event]:
        """Return that the end mark is missing, where it alone tells the end; state how the log was not as stated."""
        if self._prints or self._trained:
            words = self._missed.words(self._trained, self._way())
            yield from self._steps.finish(outputs) if self._steps is not None else (Unread(text=text) for text in words)
        if self._mark_decides and self._end_mark and not self._ended and self._trained:
            marker = f"the end mark {self._end_mark!r} was not printed after the last step"
            yield Ended(marker=marker, missed=True)

    def _way(self) -> str:
        """Return how a step is read, in the user's words."""
        after = f" after {self._prefix!r}" if self._prefix else ""
        return f"json: an object with a step and a number{after}"

    def _by_json(self, line: Line) -> Iterator[Step]:
        for at, values in objects_in(line.text, self._prefix):
            rank = values.get("rank")
            own_rank = rank if isinstance(rank, int) and not isinstance(rank, bool) and 0 <= rank < _MOST else None
            numbers, unread = numbers_of(values, self._keys)
            yield from self._step(numbers, rank_before(line, at) if own_rank is None else own_rank, line, unread)

    def _step(
        self, numbers: Mapping[str, float], rank: int | None, line: Line, unread: Mapping[str, str]
    ) -> Iterator[Step]:
        n = numbers.get("n", math.nan)
        values = {NAMES[name][0]: value * NAMES[name][1] for name, value in numbers.items() if name != "n"}
        odd = {NAMES[name][0]: text for name, text in unread.items() if name != "n"}
        if 0 <= n < _MOST and (values or odd):
            span = self._spans.of(int(n), rank)
            yield Step(n=int(n), values=values, rank=rank, t_s=line.t_s, span=span, unread=odd)

    def _taken(self, step: Step) -> Step:
        """Return a step with its numbers made those of one GPU."""
        self._trained = True
        # other ranks' last steps may come after the mark
        if step.n > self._highest or step.n < self._highest - STEPS_APART:
            self._highest, self._ended = step.n, False
        return replace(step, values=self._scaled(dict(step.values)))

    def _scaled(self, values: dict[Quantity, float]) -> dict[Quantity, float]:
        for quantity in _SHARED:
            if quantity in values:
                values[quantity] /= self._scale.shared
        of_job = [item for item in values if f"{item.name}_per_gpu" in QUANTITIES] if self._is_own else []
        for quantity in of_job:  # of a log of others the ranks are unknown
            values.setdefault(QUANTITIES[f"{quantity.name}_per_gpu"], values.pop(quantity) / self._scale.ranks)
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


def numbers_of(values: Mapping[str, object], keys: Mapping[str, str]) -> tuple[dict[str, float], dict[str, str]]:
    """Return an object's numbers by their names, and the texts of those that are none but have digits.

    `keys` go before the names that need none, also where those say the same for the whole job or for one GPU.
    """
    found: dict[str, float] = {}
    unread: dict[str, str] = {}
    told: set[str] = set()
    for key, value in sorted(values.items(), key=lambda item: item[0] not in keys):
        usual = SPELLINGS.get(key.lower(), key)
        name = keys.get(key) or ("n" if key in STEP_NAMES and "n" not in keys.values() else usual)
        if (name == "n" or name in NAMES) and (key in keys or (name not in found and _counted(name) not in told)):
            parsed = _number(value, name)
            if parsed is not None:
                found[name] = parsed
                told |= {_counted(name)} if key in keys else set()
            elif isinstance(value, str) and _DIGIT.search(value):
                unread[name] = value
    return found, {name: text for name, text in unread.items() if name not in found}


def _counted(name: str) -> str:
    """Return what a number counts, in whatever unit and of however many GPUs."""
    return name if name == "n" else NAMES[name][0].name.removesuffix("_per_gpu")


def detect(head: Sequence[str]) -> float:
    """Say how surely these lines are such objects: little, for other programs write some as well."""
    for text in head:
        if without_label(Line(text=text, rank=0)).startswith("{"):
            read = [numbers_of(values, {})[0] for _, values in objects_in(text)]
            if any("n" in numbers and len(numbers) > 1 for numbers in read):
                return 0.2
    return 0.0


def _number(value: object, name: str) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        return number_or_none(value, name) if isinstance(value, str) else float(value)
    except OverflowError:
        return None
