"""Read the log of MAD's train_llama.py, which Accelerate starts.

Each micro-step is the caption of a progress bar, `[Test] Step: 64/128; TFLOP/s: …; iter time: …; tokens/s: …:  51%|`,
and drawn more than once; times have two decimals.  Step N/2 is the first that is no warm-up (ROCm/MAD ccdb8da2).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from madlite import NUMBER, EffectiveConfig, Event, Line
from madlite_plugins.micro_steps import ACCUMULATION, MicroSteps, micro_step

_MICRO_STEP = re.compile(
    rf"\[(?P<phase>Warmup|Test)\] Step: (?P<n>\d{{1,12}})/(?P<steps>\d{{1,12}}); TFLOP/s: (?P<tflops>{NUMBER}); "
    rf"iter time: (?P<time>{NUMBER}); tokens/s: (?P<speed>{NUMBER})(?=[:\s\x00]|$)"
)
_FINALS = ("Avg token per second: ", "Avg iter time: ", "TFLOP per iteration: ", "Avg TFLOP/s: ", "Peak memory use = ")


class TrainLlamaReader:
    """Follows one log."""

    def __init__(self, accumulation: int = ACCUMULATION) -> None:
        self._micro_steps = MicroSteps(accumulation)
        self._last: dict[tuple[int, int | None], int] = {}  # micro-step of each node and rank
        self._sized = False

    def knows(self, text: str) -> bool:
        """Return whether a line can be one of the script's."""
        return "; iter time: " in text or any(final in text for final in _FINALS)

    def feed(self, line: Line) -> Iterable[Event]:
        """Return the step that the line completes, or what else it says of the run."""
        if "; iter time: " not in line.text:
            return self._micro_steps.finals(line)
        return [event for found in _MICRO_STEP.finditer(line.text) for event in self._read(found, line)]

    def finish(self, outputs: Path) -> Iterable[Event]:
        """Return nothing: everything was in the log."""
        return ()

    def _read(self, found: re.Match[str], line: Line) -> Iterator[Event]:
        key, n = (line.node, line.rank), int(found["n"])
        if self._last.get(key) == n:  # the bar was drawn again
            return
        for begun in self._micro_steps.begin(n, line):
            self._last, self._sized = {}, False
            yield begun
        self._last[key] = n
        if found["phase"] == "Warmup" and not self._sized:
            self._sized = True
            half = int(found["steps"]) // 2
            yield EffectiveConfig(values={"steps": str(2 * half), "warmup_steps": str(half)})
        yield from self._micro_steps.add(micro_step(found, found["n"]), line)


def detect(head: Sequence[str]) -> float:
    """Say how surely these lines are the script's."""
    return 0.9 if any(_MICRO_STEP.search(text) for text in head) else 0.0
