"""Micro-steps → steps, of AMD's scripts that print every forward and backward pass (train_fsdp.py, train_llama.py).

The optimizer runs in every eighth: a line alone says too high a speed in seven of eight.  So a step here is a whole
window of accumulation, its speed all tokens over all its time.  Both scripts end with the same averages.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from madlite import NUMBER, Ended, Event, Line, Phase, Quantity, Step, Summary, number

ACCUMULATION = 8  # the scripts' default
AVERAGE_SPEED = "Avg token per second"
AVERAGE_TFLOPS = "Avg TFLOP/s"
END_MARK = "Peak memory use"
END = r"(?![^\s\x00])"  # of a number that was not cut: some collectors of logs leave a NUL before the newline
_MOST = 10**9  # a micro-step beyond is a garbled number
_FINAL = re.compile(
    rf"(?P<key>Avg token per second|Avg iter time|TFLOP per iteration|Avg TFLOP/s)[:,] (?P<value>{NUMBER}){END}"
)
_PEAK = re.compile(rf"Peak memory use = (?P<value>{NUMBER})MB")


class MicroStep(NamedTuple):
    """One line's numbers, per GPU: its place from 0, seconds, tokens/s and TFLOP/s."""

    at: int
    seconds: float
    speed: float
    tflops: float


class MicroSteps:
    """Takes the micro-steps and the last lines of one log; each rank of each node has windows of its own."""

    def __init__(self, accumulation: int = ACCUMULATION) -> None:
        self._accumulation = max(1, accumulation)
        self._windows: dict[tuple[int, int | None], list[MicroStep]] = {}
        self._last = -1
        self._ended = False

    def begin(self, at: int, line: Line) -> Iterator[Event]:
        """Yield that micro-step `at` is another training's: the one before has ended, and it is none of its last."""
        if self._ended and at < self._last:
            self._ended, self._last = False, -1
            self._windows.clear()
            yield Phase(name="train", t_s=line.t_s, begins=True)

    def add(self, step: MicroStep, line: Line) -> Iterator[Step]:
        """Yield the step that a micro-step completes; none of a window whose beginning or a line is not in the log."""
        if step.at > _MOST:
            return
        self._last = max(self._last, step.at)
        place, key = step.at % self._accumulation, (line.node, line.rank)
        window = self._windows.setdefault(key, [])
        if place == 0:
            window.clear()
        if place != len(window):
            return
        window.append(step)
        if len(window) == self._accumulation:
            values = _over(window)
            window.clear()
            if values:
                yield Step(n=step.at + 1, values=values, rank=line.rank, t_s=line.t_s, span=self._accumulation)

    def finals(self, line: Line) -> Iterator[Event]:
        """Yield an average that the script prints at its end, or the peak of memory, its last line."""
        if found := _FINAL.search(line.text):
            yield Summary(values={found["key"]: found["value"]})
        elif found := _PEAK.search(line.text):
            self._ended = True
            yield Summary(values={"Peak memory use (MB)": found["value"]})
            yield Ended(marker=END_MARK)


def micro_step(found: re.Match[str], at: str) -> MicroStep:
    """Return a match's numbers; its groups are `time`, `speed` and `tflops`."""
    numbers = (number(found[name]) for name in ("time", "speed", "tflops"))
    return MicroStep(int(at), *numbers)


def _over(window: Sequence[MicroStep]) -> dict[Quantity, float]:
    """Return a window's time, and its speeds as sums over that time; nothing where a number of it is none."""
    seconds = sum(step.seconds for step in window)
    tokens = sum(step.speed * step.seconds for step in window)
    tflop = sum(step.tflops * step.seconds for step in window)
    if not (math.isfinite(seconds) and seconds > 0 and math.isfinite(tokens) and math.isfinite(tflop)):
        return {}
    return {
        Quantity.TOKENS_PER_S_PER_GPU: tokens / seconds,
        Quantity.TFLOPS_PER_GPU: tflop / seconds,
        Quantity.STEP_TIME_S: seconds,
    }
