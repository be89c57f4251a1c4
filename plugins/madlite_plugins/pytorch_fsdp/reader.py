"""Read the log of train_fsdp.py (pytorch-training-benchmark of March 2025; docs/backends/pytorch_fsdp.md).

Every line is a micro-step, and the optimizer runs in every eighth: a line alone says too high a speed in seven of
eight.  So a step here is a whole window of accumulation, its speed all tokens over all its time.  Numbers are those of
rank 0, per GPU; no loss is printed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from madlite import NUMBER, EffectiveConfig, Ended, Event, Line, Phase, Quantity, Step, Summary, number

ACCUMULATION = 8  # the script's default
AVERAGE_SPEED = "Avg token per second"
AVERAGE_TFLOPS = "Avg TFLOP/s"
_MOST = 10**9  # a micro-step beyond is a garbled number
_MICRO_STEP = re.compile(
    rf"(?:Step: (?P<n>\d{{1,12}})|warming up iter: (?P<early>\d{{1,12}})/(?P<half>\d{{1,12}}(?:\.\d)?)); "
    rf"TFLOP/s: (?P<tflops>{NUMBER}); iteration time: (?P<time>{NUMBER}); token per second: (?P<speed>{NUMBER})(?!\S)"
)
_FINAL = re.compile(
    rf"(?P<key>Avg token per second|Avg iter time|TFLOP per iteration|Avg TFLOP/s)[:,] (?P<value>{NUMBER})(?!\S)"
)
_PEAK = re.compile(rf"Peak memory use = (?P<value>{NUMBER})MB")
_SEQ_LEN = re.compile(r"Creating model with config:.{0,4000}\bmax_seq_len=(\d{1,12})\b")
_COMPILING = "Compiling model...."


class TrainFsdpReader:
    """Follows one log."""

    def __init__(self, accumulation: int = ACCUMULATION) -> None:
        self._accumulation = max(1, accumulation)
        self._window: list[tuple[float, float, float]] = []  # s, tokens, TFLOP of each micro-step since it began
        self._seq_len = 0
        self._sized = False

    def feed(self, line: Line) -> Iterable[Event]:
        """Return the step that the line completes, or what else it says of the run."""
        if "; iteration time: " in line.text:
            return [event for found in _MICRO_STEP.finditer(line.text) for event in self._micro_step(found, line)]
        return self._remarks(line)

    def finish(self, outputs: Path) -> Iterable[Event]:
        """Return nothing: everything was in the log."""
        return ()

    def _micro_step(self, found: re.Match[str], line: Line) -> Iterator[Event]:
        index, seconds = int(found["n"] or found["early"]), number(found["time"])
        if found["half"]:
            yield from self._sizes(float(found["half"]), number(found["speed"]) * seconds)
        if index > _MOST:
            return
        place = index % self._accumulation
        if place == 0:
            self._window = []
        if place != len(self._window):
            return  # its beginning is not in this log
        self._window.append((seconds, number(found["speed"]) * seconds, number(found["tflops"]) * seconds))
        if len(self._window) == self._accumulation:
            values = _over(self._window)
            self._window = []
            if values:
                yield Step(n=index + 1, values=values, rank=line.rank, t_s=line.t_s, span=self._accumulation)

    def _sizes(self, half: float, tokens: float) -> Iterator[Event]:
        """Yield once how many micro-steps there are to be, and how many sequences each has."""
        if self._sized:
            return
        self._sized = True
        values = {"steps": f"{2 * half:.0f}", "warmup_steps": f"{half:.0f}"}
        if self._seq_len and math.isfinite(tokens) and tokens > 0:
            values["micro_batch"] = f"{tokens / self._seq_len:.0f}"
        yield EffectiveConfig(values=values)

    def _remarks(self, line: Line) -> Iterator[Event]:
        text = line.text
        if found := _SEQ_LEN.search(text):
            self._seq_len = int(found[1])
            yield EffectiveConfig(values={"seq_len": found[1]})
        elif found := _FINAL.search(text):
            yield Summary(values={found["key"]: found["value"]})
        elif found := _PEAK.search(text):
            yield Summary(values={"Peak memory use (MB)": found["value"]})
            yield Ended(marker="Peak memory use")
        elif _COMPILING in text:
            yield Phase(name="compile", t_s=line.t_s)


def recognise(head: Sequence[str]) -> float:
    """Say how surely these lines are the script's."""
    if any(_MICRO_STEP.search(text) for text in head):
        return 0.9
    return 0.6 if any("Initing communication" in text for text in head) else 0.0


def _over(window: Sequence[tuple[float, float, float]]) -> dict[Quantity, float]:
    """Return a window's time, and its speeds as sums over that time; nothing where a number of it is none."""
    seconds, tokens, tflop = (sum(column) for column in zip(*window, strict=True))
    if not (math.isfinite(seconds) and seconds > 0 and math.isfinite(tokens) and math.isfinite(tflop)):
        return {}
    return {
        Quantity.TOKENS_PER_S_PER_GPU: tokens / seconds,
        Quantity.TFLOPS_PER_GPU: tflop / seconds,
        Quantity.STEP_TIME_S: seconds,
    }
