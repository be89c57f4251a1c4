"""Read torchtitan's training log.

Formats: torchtitan of early 2024 (`wps`) to 0.3, upstream and ROCm (docs/backends/torchtitan.md).  tps and tflops are
per device; memory is the peak reserved on one device since the last line, in GiB and in percent of the device.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from madlite import (
    NUMBER,
    EffectiveConfig,
    Ended,
    Event,
    Line,
    Phase,
    Quantity,
    Spans,
    Step,
    number,
    rank_before,
    step_pattern,
)
from madlite_plugins.torchtitan.structured import structured_steps

END_MARK = "Training completed"
_LOSS = rf"\s*(?P<n>\d{{1,12}})\s+loss:\s*(?P<loss>{NUMBER}|[-+]?(?i:nan|inf))\s+"
_MEMORY = rf"memory:\s*(?P<memory_reserved_gib>{NUMBER})GiB\((?P<memory_percent>{NUMBER})%\)"
# The mfu field ends every line, so a line that was cut off never gives a shortened number; each pattern begins with
# the text that is searched for, which makes the search quick.
TRAIN = step_pattern(
    rf"step:(?<!validate step:){_LOSS}(?:grad_norm:\s*(?P<grad_norm>{NUMBER})\s+)?{_MEMORY}\s+"
    rf"(?:tps|wps):\s*(?P<tokens_per_s_per_gpu>{NUMBER})(?:\s+tflops:\s*(?P<tflops_per_gpu>{NUMBER}))?"
    rf"\s+mfu:\s*(?:(?P<mfu_percent>{NUMBER})%|N/A)"
)
# A validation line ends with its tps, which nothing shows to be whole.
VALIDATE = step_pattern(rf"validate step:{_LOSS}{_MEMORY}")
_FACTS = {
    "Trainer is initialized": re.compile(
        r"local batch size (?P<micro_batch>\d+), global batch size (?P<global_batch>\d+), "
        r"gradient accumulation steps (?P<gradient_accumulation_steps>\d+), sequence length (?P<seq_len>\d+), "
        r"total steps (?P<steps>\d+) \(warmup (?P<warmup_steps>\d+)\)"
    ),
    "torchtitan version": re.compile(r"torchtitan version: (?P<torchtitan>\S+) "),
    "device mesh": re.compile(r"Building device mesh with parallelism: (?P<parallelism>.+)"),
    "Peak FLOPS": re.compile(r"Peak FLOPS used for computing MFU: (?P<peak_flops>\d\.\d+e[-+]\d\d)"),
    "total parameters": re.compile(r"Model (?P<family>[\w.-]+) (?P<flavor>[\w.-]+) size: [\d,]+ total parameters"),
}
_JOB = "Starting job: "
_PRECISION_STARTS = (_JOB, "torchtitan version: ")  # what is printed before it converts layers, or just after
_STARTS = {_JOB: "setup", "Trainer is initialized with ": "setup", "Training starts at step ": "train"}
_PRECISIONS = {
    "Float8 training active": "FP8",
    "Float8 tensorwise scaled training active": "FP8",
    "Swapped to Float8Linear layers": "FP8",
    "Swapped to FP8Linear layers": "FP8",  # Primus-Turbo's
    "Swapped to MXLinear layers": "MXFP8",
    "to use dynamic float8 rowwise quantization": "FP8",  # of experts alone
    "Converted Linear layers to MXFP8Linear": "MXFP8",  # since 0.3
    "to use dynamic mxfp8": "MXFP8",
    "Failed to swap to Float8Linear": "BF16",  # before 0.2: a GPU that has no FP8 trains all the same
}
_DEGREE = re.compile(r"\b(dp_replicate|dp_shard|pp|cp|tp|ep)=(\d{1,6})")
_OLD_MESH = re.compile(r"Building \d-D device mesh with \[([^\]]*)\], \[([\d, ]*)\]")  # before 0.2
_OF_WORLD = ("pp", "dp_replicate", "dp_shard", "cp", "tp")  # experts lie across these
_STARTED = re.compile(r'-m torchtitan\.train\b|\btorchtitan\.train FAILED|File "[^"]*\btorchtitan/[^"]*\.py", line ')


class TorchtitanReader:
    """Follows one log."""

    def __init__(self) -> None:
        self._spans = Spans()
        self._trained = False
        self._devices = 0  # that work on one rank's tokens: pipeline × context × tensor parallel

    def feed(self, line: Line) -> Iterable[Event]:
        """Return the line's steps, or what else it says of the run."""
        text = line.text
        if "%" in text and "GiB(" in text:
            return self._read_steps(line)
        if self._trained and "Train" not in text and _JOB not in text:
            return ()
        return self._read_remarks(text, line.t_s)

    def finish(self, outputs: Path) -> Iterable[Event]:
        """Return nothing, or the steps of the files beside a log that has none."""
        return () if self._trained else structured_steps(outputs, self._devices)

    def _read_steps(self, line: Line) -> list[Event]:
        found: list[Event] = []
        for match in TRAIN.regex.finditer(line.text):
            n, rank = int(match[1]), rank_before(line, match.start())
            values = _numbers(TRAIN.quantities, match)
            found.append(Step(n=n, values=values, rank=rank, t_s=line.t_s, span=self._spans.of(n, rank)))
            self._trained = True
        if "validate step:" in line.text:
            for match in VALIDATE.regex.finditer(line.text):
                values, rank = _numbers(VALIDATE.quantities, match), rank_before(line, match.start())
                found.append(Step(n=int(match[1]), values=values, rank=rank, t_s=line.t_s, phase="validate"))
        return found

    def _read_remarks(self, text: str, t_s: float) -> Iterator[Event]:
        yield from (Phase(name=name, t_s=t_s, starts=True) for mark, name in _STARTS.items() if mark in text)
        for mark, fact in _FACTS.items():
            if mark in text and (found := fact.search(text)):
                yield EffectiveConfig(values={**found.groupdict(), **self._mesh(found.groupdict())})
        if "device mesh with [" in text and (found := _OLD_MESH.search(text)):
            yield EffectiveConfig(values=_old_mesh(found))
        if any(start in text for start in _PRECISION_STARTS):
            yield EffectiveConfig(values={}, marked_precisions=("FP8",))
        if "Float8" in text or "FP8" in text or "MXLinear" in text or "to use dynamic " in text:
            yield from (EffectiveConfig(values={"precision": to}) for mark, to in _PRECISIONS.items() if mark in text)
        if "with torch.compile" in text:
            yield Phase(name="compile", t_s=t_s)
        if END_MARK in text:
            yield Ended(marker=END_MARK)

    def _mesh(self, fact: dict[str, str]) -> dict[str, str]:
        """Return the degrees of parallelism, and the number of ranks that they come to."""
        degrees = dict(_DEGREE.findall(fact.get("parallelism", "")))
        if not degrees.keys() >= set(_OF_WORLD):
            return {}
        self._devices = _product(degrees[name] for name in ("pp", "cp", "tp"))
        return {**degrees, "world_size": str(_product(degrees[name] for name in _OF_WORLD))}


def detect(head: Sequence[str]) -> float:
    """Say how surely these lines are torchtitan's: the prefix of every line, a step line, else how it was started."""
    if any("[titan] 20" in text or "torchtitan version:" in text for text in head):
        return 0.9
    if any(TRAIN.regex.search(text) for text in head):
        return 0.7
    return 0.3 if any("torchtitan" in text and _STARTED.search(text) for text in head) else 0.0


def _old_mesh(found: re.Match[str]) -> dict[str, str]:
    """Return the same of a mesh that names the degrees above 1 alone."""
    names, sizes = re.findall(r"\w+", found[1]), re.findall(r"\d{1,6}", found[2])
    degrees = {name: size for name, size in zip(names, sizes, strict=False) if name in _OF_WORLD}
    return {**degrees, "world_size": str(_product(sizes))}


def _product(degrees: Iterable[str]) -> int:
    return math.prod(map(int, degrees))


def _numbers(quantities: tuple[Quantity, ...], found: re.Match[str]) -> dict[Quantity, float]:
    """Return a line's numbers, without the loss of -1 that ranks without the last pipeline stage print.

    A cross entropy is never below 0.
    """
    values = {quantity: number(text) for quantity, text in zip(quantities, found.groups()[1:], strict=True) if text}
    if values.get(Quantity.LOSS) == -1:
        del values[Quantity.LOSS]
    return values
