"""Read the log of the benchmark's trainer and of its launcher (docs/backends/flux.md).

A step is `INFO - Step 7: {'step_time_gpu': 2.3041, 'fps_gpu': 4.3401, …}`: a Python dictionary whose keys differ from
version to version, with five significant digits, `nan` and `inf` bare, of the local main process of each node.  Speeds
are per GPU.  With torch.compile the trainer prints 0 for tflops/s, which is no number.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from madlite import NUMBER, EffectiveConfig, Ended, Event, Line, Phase, Quantity, Step, number
from madlite_plugins.flux.summary import read_summaries

_STEP = re.compile(r"INFO\]? - Step (\d{1,12}): \{('[^{}]*)\}")
_ITEM = re.compile(rf"'([\w/]{{1,60}})': ({NUMBER})\s*(?=,|$)")
_NAMES = {
    Quantity.LOSS: ("step_loss", "train_loss", "loss"),
    Quantity.LEARNING_RATE: ("lr",),
    Quantity.GRAD_NORM: ("grad_norm",),
    Quantity.STEP_TIME_S: ("step_time_gpu", "step_time_total", "step_time"),
    Quantity.IMAGES_PER_S_PER_GPU: ("fps_gpu", "fps"),
    Quantity.TFLOPS_PER_GPU: ("tflops/s", "tflops"),
}
_OPTIMIZED = "train_loss"  # what only a line has whose step ended with the optimizer's, in versions that print it
_COMMAND = re.compile(r"Executing command for run (\d{1,9}): (?:\S+ )?(?:accelerate|\S+/accelerate) launch\b(.*)")
_ARGUMENT_KEYS = {"num_iterations": "steps", "train_batch_size": "micro_batch"}
_ARGUMENT = re.compile(r"--(num_iterations|train_batch_size)[ =](\d{1,12})(?!\S)")
_PROCESSES = re.compile(r"\s{2,8}num_processes: (\d{1,6})\s*$")
_MIXED = re.compile(r"\s{2,8}mixed_precision: [\"']?(bf16|fp16|no)\b[\"']?\s*$")
_DONE = re.compile(r"Run \d{1,9} completed successfully!")
# hydra has a format of its own for what its program logs: [2026-11-21 00:26:03,018][root][ERROR] - Run 1 failed …
_FAILED = re.compile(r"ERROR\]? - Run \d{1,9} failed with return code (-?\d{1,9})\b")
_OTHERWISE = re.compile(
    r"ERROR\]? - Run \d{1,9} encountered an unexpected error: |INFO\]? - OOM-SKIPPED: Skipping run \d"
)


class FluxReader:
    """Follows one log; `now` gives the time, in seconds since the epoch, from which a summary is this run's."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._since = now()
        self._runs = 0
        self._last = 0  # of the steps
        self._end: Ended | None = None  # what the launcher said of the run's end
        self._marks: bool | None = None  # whether this version marks the optimizer's; None: not known yet
        self._pending: dict[
            tuple[int, int | None], list[Step]
        ] = {}  # by node and rank: micro-steps before the optimizer's

    def feed(self, line: Line) -> Iterable[Event]:
        """Return the step of a line, or what the launcher says of a run."""
        if " - Step " in line.text:
            events = [event for found in _STEP.finditer(line.text) for event in self._step(found, line)]
            # where the trainer writes into a log alone, which run.sh follows, its last lines may follow the launcher's
            return [*events, self._end] if events and self._end is not None else events
        if "un " in line.text or "num_processes" in line.text or "mixed_precision" in line.text:
            return self._launcher(line.text)
        return ()

    def finish(self, outputs: Path) -> Iterable[Event]:
        """Return what is left of the log's end, and what the launcher sums up in the files of this run."""
        yield from self._left()
        yield from read_summaries(outputs, self._since)

    def _step(self, found: re.Match[str], line: Line) -> Iterator[Event]:
        n, values = int(found[1]), dict(_ITEM.findall(found[2]))
        if not values:
            return
        if n <= 1 and self._last > n + 1:  # the trainer goes on from no checkpoint
            yield from self._begin()
        self._last = n
        pending = self._pending.setdefault((line.node, line.rank), [])
        step = Step(n=n, values=_quantities(values), rank=line.rank, t_s=line.t_s)
        if _OPTIMIZED in values:
            self._marks = True
            yield replace(step, values=_joined([*pending, step]))
            pending.clear()
            return
        if self._marks is None and pending and pending[-1].n != n:
            self._marks = False  # a version that never does: each of its lines is a step
        pending.append(step)
        if self._marks is False:
            yield from pending
            pending.clear()

    def _left(self) -> Iterator[Step]:
        """Yield what the log's end has left: steps of a version that marks none, else what failed of one cut short."""
        for pending in self._pending.values():
            if not self._marks:
                yield from pending
            elif (loss := _loss(pending)) is not None and not math.isfinite(loss):
                yield replace(pending[-1], values={Quantity.LOSS: loss})
        self._pending.clear()

    def _begin(self) -> Iterator[Event]:
        self._last, self._marks, self._end = 0, None, None
        self._pending.clear()
        yield Phase(name="training", begins=True)

    def _launcher(self, text: str) -> Iterator[Event]:
        if found := _COMMAND.search(text):
            self._runs += 1
            if self._runs > 1 or self._last:
                yield from self._begin()
            requested = {_ARGUMENT_KEYS[name]: value for name, value in _ARGUMENT.findall(found[2])}
            if requested:
                yield EffectiveConfig(values=requested)
        elif values := _config_of(text):
            yield EffectiveConfig(values=values)
        elif found := _DONE.search(text):
            self._end = Ended(marker=found[0])
            yield self._end
        elif found := _FAILED.search(text):
            yield Ended(marker=found[0], code=int(found[1]) or 1)
        elif found := _OTHERWISE.search(text):
            yield Ended(marker=found[0], code=1)


def detect(head: Sequence[str]) -> float:
    """Say how surely these lines are the benchmark's."""
    if any((found := _STEP.search(text)) and "'fps" in found[2] for text in head):
        return 0.9
    return 0.7 if any((found := _COMMAND.search(text)) and " train.py" in found[2] for text in head) else 0.0


def _config_of(text: str) -> dict[str, str]:
    """Return what a line of the launcher's configuration says of ranks and precision."""
    if found := _PROCESSES.fullmatch(text):
        return {"world_size": found[1]}
    if found := _MIXED.fullmatch(text):
        return {"precision": "FP32" if found[1] == "no" else found[1].upper()}
    return {}


def _joined(parts: Sequence[Step]) -> dict[Quantity, float]:
    """Return the quantities of a step of its micro-steps: the last's, rates over the time of all of them.

    A loss that is none in one of them is the step's: its gradients are in the weights.
    """
    values = dict(parts[-1].values)
    if (loss := _loss(parts)) is not None:
        values[Quantity.LOSS] = loss
    times = [part.values.get(Quantity.STEP_TIME_S, 0.0) for part in parts]
    if len(parts) == 1 or not all(seconds > 0 for seconds in times):
        return values
    for rate in (Quantity.IMAGES_PER_S_PER_GPU, Quantity.TFLOPS_PER_GPU):
        if rate in values:
            done = sum(part.values.get(rate, 0.0) * seconds for part, seconds in zip(parts, times, strict=True))
            values[rate] = done / sum(times)
    return {**values, Quantity.STEP_TIME_S: sum(times)}


def _loss(parts: Sequence[Step]) -> float | None:
    """Return the first loss that is none, else the last one; None without any."""
    losses = [part.values[Quantity.LOSS] for part in parts if Quantity.LOSS in part.values]
    return next((loss for loss in losses if not math.isfinite(loss)), losses[-1] if losses else None)


def _quantities(values: Mapping[str, str]) -> dict[Quantity, float]:
    found = {}
    for quantity, names in _NAMES.items():
        name = next((name for name in names if name in values), None)
        if name is not None:
            found[quantity] = number(values[name])
    if not found.get(Quantity.TFLOPS_PER_GPU, 1.0):  # nothing counts them where the model is compiled
        del found[Quantity.TFLOPS_PER_GPU]
    return found
