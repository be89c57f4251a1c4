"""Read the log of train_fsdp.py (pytorch-training-benchmark of March 2025; docs/backends/pytorch_fsdp.md).

Every line is a micro-step, and eight of them a step.  Numbers are those of rank 0, per GPU; no loss is printed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from madlite import NUMBER, EffectiveConfig, Event, Line, Phase, without_label
from madlite_plugins.micro_steps import ACCUMULATION, END, MicroSteps, micro_step

_MICRO_STEP = re.compile(
    rf"(?:Step: (?P<n>\d{{1,12}})|warming up iter: (?P<early>\d{{1,12}})/(?P<half>\d{{1,12}}(?:\.\d)?)); "
    rf"TFLOP/s: (?P<tflops>{NUMBER}); iteration time: (?P<time>{NUMBER}); token per second: (?P<speed>{NUMBER}){END}"
)
_SEQ_LEN = re.compile(r"Creating model with config:.{0,4000}\bmax_seq_len=(\d{1,12})\b")
_START = "Initing communication"
# what it prints with --enable_fp8, before its start, and the class of the model that it prints then
_FP8 = re.compile(r"PyTorch compile currently doesn't work with Transformer Engine|^\W*Fp8(?:LLaMA|Mistral)\($")
_COMPILING = "Compiling model...."


class TrainFsdpReader:
    """Follows one log."""

    def __init__(self, accumulation: int = ACCUMULATION) -> None:
        self._micro_steps = MicroSteps(accumulation)
        self._seq_len = 0
        self._sized = False

    def feed(self, line: Line) -> Iterable[Event]:
        """Return the step that the line completes, or what else it says of the run."""
        if "; iteration time: " in line.text:
            return [event for found in _MICRO_STEP.finditer(line.text) for event in self._read(found, line)]
        return self._remarks(line)

    def finish(self, outputs: Path) -> Iterable[Event]:
        """Return nothing: everything was in the log."""
        return ()

    def _read(self, found: re.Match[str], line: Line) -> Iterator[Event]:
        step = micro_step(found, found["n"] or found["early"])
        for begun in self._micro_steps.begin(step.at, line):
            self._sized = False
            yield begun
        if found["half"]:
            yield from self._sizes(float(found["half"]), step.speed * step.seconds)
        yield from self._micro_steps.add(step, line)

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
        if found := _SEQ_LEN.search(line.text):
            self._seq_len = int(found[1])
            yield EffectiveConfig(values={"seq_len": found[1]})
        elif _COMPILING in line.text:
            yield Phase(name="compile", t_s=line.t_s)
        elif _START in line.text:
            yield Phase(name="train", t_s=line.t_s, starts=True)
            yield EffectiveConfig(values={}, marked_precisions=("FP8",))
        elif _FP8.search(without_label(line)):
            yield EffectiveConfig(values={"precision": "FP8"})
        else:
            yield from self._micro_steps.finals(line)


def detect(head: Sequence[str]) -> float:
    """Say how surely these lines are the script's."""
    if any(_MICRO_STEP.search(text) for text in head):
        return 0.9
    return 0.6 if any(_START in text for text in head) else 0.0
