"""Read the log of MAD's train_llama.py, which Accelerate starts: train_fsdp.py's lines in other words.

Each micro-step is the caption of a progress bar, `[Test] Step: 64/128; TFLOP/s: …; iter time: …; tokens/s: …:  51%|`,
and drawn more than once; times have two decimals.  Step N/2 is the first that is no warm-up (ROCm/MAD ccdb8da2).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from msgspec.structs import replace

from madlite import NUMBER, Event, Line
from madlite_plugins.pytorch_fsdp.reader import ACCUMULATION, TrainFsdpReader

_MICRO_STEP = re.compile(
    rf"\[(?P<phase>Warmup|Test)\] Step: (?P<n>\d{{1,12}})/(?P<steps>\d{{1,12}}); TFLOP/s: (?P<tflops>{NUMBER}); "
    rf"iter time: (?P<time>{NUMBER}); tokens/s: (?P<speed>{NUMBER})(?=:|\s|$)"
)
_FINALS = ("Avg token per second: ", "Avg iter time: ", "TFLOP per iteration: ", "Avg TFLOP/s: ", "Peak memory use = ")


class TrainLlamaReader:
    """Follows one log."""

    def __init__(self, accumulation: int = ACCUMULATION) -> None:
        self._words = TrainFsdpReader(accumulation)
        self._last = -1

    def knows(self, text: str) -> bool:
        """Say whether a line can be one of the script's."""
        return "; iter time: " in text or any(final in text for final in _FINALS)

    def feed(self, line: Line) -> Iterable[Event]:
        """Return the step that the line completes, or what else it says of the run."""
        if "; iter time: " not in line.text:
            return self._words.feed(line)
        return [event for found in _MICRO_STEP.finditer(line.text) for event in self._micro_step(found, line)]

    def finish(self, outputs: Path) -> Iterable[Event]:
        """Return nothing: everything was in the log."""
        return ()

    def _micro_step(self, found: re.Match[str], line: Line) -> Iterable[Event]:
        if int(found["n"]) == self._last:  # the bar was drawn again
            return ()
        self._last = int(found["n"])
        name = f"Step: {found['n']}"
        if found["phase"] == "Warmup":
            name = f"warming up iter: {found['n']}/{int(found['steps']) // 2}"
        numbers = f"TFLOP/s: {found['tflops']}; iteration time: {found['time']}; token per second: {found['speed']}"
        return self._words.feed(replace(line, text=f"{name}; {numbers}"))


def recognise(head: Sequence[str]) -> float:
    """Say how surely these lines are the script's."""
    return 0.9 if any(_MICRO_STEP.search(text) for text in head) else 0.0
