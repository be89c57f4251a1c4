"""Read torchtitan's training log.

Formats: torchtitan of early 2024 (`wps`) to 0.3, upstream and ROCm (docs/backends/torchtitan.md).  tps and tflops are
per device; memory is the peak reserved on one device since the last line, in GiB and in percent of the device.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from madlite import NUMBER, EffectiveConfig, Ended, Event, Line, Phase, Quantity, Step, StepPattern, step_pattern

END_MARK = "Training completed"
_NUMBERS = (
    rf"step:\s*(?P<n>\d{{1,12}})\s+loss:\s*(?P<loss>{NUMBER})\s+(?:grad_norm:\s*(?P<grad_norm>{NUMBER})\s+)?"
    rf"memory:\s*(?P<memory_reserved_gib>{NUMBER})GiB\((?P<memory_percent>{NUMBER})%\)\s+"
    rf"(?:tps|wps):\s*(?P<tokens_per_s_per_gpu>{NUMBER})"
)
# The mfu field ends every line, so a line that was cut off never gives a shortened number.
TRAIN = step_pattern(
    rf"(?<!validate ){_NUMBERS}(?:\s+tflops:\s*(?P<tflops_per_gpu>{NUMBER}))?"
    rf"\s+mfu:\s*(?:(?P<mfu_percent>{NUMBER})%|N/A)"
)
VALIDATE = step_pattern(rf"validate {_NUMBERS}(?![\d,.])")
_RANK = re.compile(r"\[rank-?(\d{1,9})(?:/\d+)?\]")
_SIZES = re.compile(
    r"Trainer is initialized with local batch size (?P<micro_batch>\d+), global batch size (?P<global_batch>\d+), "
    r"gradient accumulation steps (?P<gradient_accumulation_steps>\d+), sequence length (?P<seq_len>\d+), "
    r"total steps (?P<steps>\d+)"
)
_FACTS = (
    _SIZES,
    re.compile(r"torchtitan version: (?P<torchtitan>\S+)"),
    re.compile(r"Building device mesh with parallelism: (?P<parallelism>.+)"),
    re.compile(r"Peak FLOPS used for computing MFU: (?P<peak_flops>\S+)"),
)
_PHASES = {"Training starts at step": "train", "with torch.compile": "compile"}


class TorchtitanReader:
    """Follows one log; knows for each rank which step it printed last, to say how many steps a line covers."""

    def __init__(self) -> None:
        self._last: dict[int | None, int] = {}

    def feed(self, line: Line) -> Iterable[Event]:
        """Return the line's steps, or what else it says of the run."""
        if "loss:" in line.text:
            return [*self._train(line), *_steps(VALIDATE, line, "validate")]
        return _remarks(line.text, line.t_s)

    def finish(self, outputs: Path) -> Iterable[Event]:
        """Return nothing: everything was in the log."""
        return ()

    def _train(self, line: Line) -> Iterator[Step]:
        for step in _steps(TRAIN, line, "train"):
            before = self._last.get(step.rank, step.n - 1)
            self._last[step.rank] = step.n
            yield msgspec.structs.replace(step, span=max(1, step.n - before), values=_without_placeholder(step.values))


def _steps(pattern: StepPattern, line: Line, phase: str) -> Iterator[Step]:
    """Yield the line's steps, each of the rank named last before it: two ranks share a line where writes met."""
    for found in pattern.regex.finditer(line.text):
        ranks = _RANK.findall(line.text, 0, found.start())
        part = msgspec.structs.replace(line, text=found[0], rank=int(ranks[-1]) if ranks else line.rank)
        yield from (msgspec.structs.replace(step, phase=phase) for step in pattern.steps(part))


def _without_placeholder(values: dict[Quantity, float]) -> dict[Quantity, float]:
    """Leave out the loss of -1 that ranks without the last pipeline stage print; a cross entropy is never below 0."""
    return {key: value for key, value in values.items() if key is not Quantity.LOSS or value != -1}


def _remarks(text: str, t_s: float) -> Iterator[Event]:
    for fact in _FACTS:
        if found := fact.search(text):
            yield EffectiveConfig(values=found.groupdict())
    for mark, phase in _PHASES.items():
        if mark in text:
            yield Phase(name=phase, t_s=t_s)
    if END_MARK in text:
        yield Ended(marker=END_MARK)
