"""Read the log of a Hugging Face Trainer, preferring the lines that madlite's own training script prints.

Formats: transformers 4 prints dictionaries of numbers, transformers 5 quotes numbers of four digits; neither names the
step.  `log_metrics` prints the final figures once more, a line each, and a Trainer that is told to log its info the
run's sizes.  Our script prints `madlite-step {…}`, one JSON object per step with its number, per GPU, `madlite-config
{…}` before, and a `madlite-summary {…}` with the Trainer's figures in full (docs/backends/hf.md).  Lines of MAD's
train_llama.py are read as well.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from madlite import NUMBER, EffectiveConfig, Ended, Event, Line, Phase, Quantity, Step, Summary, number
from madlite_plugins.hf import train_llama
from madlite_plugins.hf.rules import END_MARK
from madlite_plugins.hf.state import QUANTITIES, read_state
from madlite_plugins.hf.step_numbers import Process, Sizes
from madlite_plugins.micro_steps import ACCUMULATION

_OWN = re.compile(r"madlite-(step|summary|config) (\{[^{}\[\]]*\})")
_DICTIONARY = re.compile(r"\{'[^{}]*\}")
_ITEM = re.compile(rf"'(\w+)': '?({NUMBER})'?(?=[,}}])")
_BAR = re.compile(r"(?:\[\w{1,40}\]:|\d{1,6}:)?\s{0,80}\d{1,3}%\|[^|]*\| (\d{1,9})/(\d{1,9}) \[")
_METRIC = re.compile(rf"\s{{0,80}}((?:train|epoch|num_input)\w{{0,60}})\s{{1,80}}=\s{{1,80}}({NUMBER})\s*")
_LABEL = re.compile(r"\s{0,80}\S{0,40}")  # what a launcher puts before a process's line
_SIZES = {
    "Num examples": "examples",
    "Gradient Accumulation steps": "accumulation",
    "Total optimization steps": "steps",
    "Instantaneous batch size per device": "micro_batch",
    "Total train batch size (w. parallel, distributed & accumulation)": "global_batch",
}
_SIZE = re.compile(rf"({'|'.join(map(re.escape, _SIZES))}) = (\d[\d,]{{0,15}})(?![^\s\x00])")
_CONFIG = ("steps", "micro_batch", "global_batch")
_NAMES = {
    **QUANTITIES,
    "tokens_per_s_per_gpu": Quantity.TOKENS_PER_S_PER_GPU,
    "samples_per_s_per_gpu": Quantity.SAMPLES_PER_S_PER_GPU,
    "step_time_s": Quantity.STEP_TIME_S,
    "memory_reserved_gib": Quantity.MEMORY_RESERVED_GIB,
}


class HuggingFaceReader:
    """Follows one log, which may have one training after another, and each step's line of every process."""

    def __init__(self, accumulation: int = ACCUMULATION) -> None:
        self._llama = train_llama.TrainLlamaReader(accumulation)
        self._own: int | None = None  # the last step of our own lines
        self._own_ended = False
        self._sizes = Sizes()
        self._processes: dict[tuple[int, int | None], Process] = {}
        self._rank: int | None = None
        self._finals: dict[str, str] = {}

    def feed(self, line: Line) -> Iterable[Event]:
        """Return the events of one line."""
        if "madlite-" in line.text and (own := tuple(self._read_own(line))):
            return own
        if self._llama.knows(line.text):
            return self._llama.feed(line)
        self._watch_bar(line)
        if "{'" in line.text:
            return self._read_dictionaries(line)
        return self._remarks(line.text) if " = " in line.text else ()

    def finish(self, outputs: Path) -> Iterable[Event]:
        """Return the steps of trainer_state.json in full precision, where the log had the Trainer's own alone."""
        trained = any(process.n for process in self._processes.values())
        return read_state(outputs, self._rank) if trained and self._own is None else ()

    def _read_own(self, line: Line) -> Iterator[Event]:
        for kind, text in _OWN.findall(line.text):
            values = _parse(text)
            n = number(values.get("n", ""))
            if kind == "summary" and values:
                yield from self._end(values)
            elif kind == "config" and values:
                yield EffectiveConfig(values=values)
            elif kind == "step" and 0 <= n < 1e12:
                if self._own is not None and self._own_ended and n <= self._own:
                    yield self._begin(line)
                self._own, self._own_ended = int(n), False
                yield Step(n=int(n), values=_quantities(values), rank=line.rank, t_s=line.t_s)

    def _read_dictionaries(self, line: Line) -> Iterator[Event]:
        for found in _DICTIONARY.finditer(line.text):
            values = dict(_ITEM.findall(found[0]))
            if "loss" in values and self._own is None:
                yield from self._read_step(found, values, line)
            elif "train_runtime" in values and "loss" not in values:
                process = self._process(line)
                if self._own is None and (span := process.end(values, self._sizes)):
                    yield Step(n=process.n, values={}, rank=line.rank, t_s=line.t_s, span=span)
                yield from self._end(values)

    def _read_step(self, found: re.Match[str], values: dict[str, str], line: Line) -> Iterator[Event]:
        process, epoch = self._process(line), values.get("epoch", "")
        label = _LABEL.match(line.text, 0, found.start())
        if process.is_again(label[0] if label else "", found[0], epoch):
            return
        if process.ended:
            yield self._begin(line)
            process = self._processes[line.node, line.rank] = Process().follow(process)
            process.is_again(label[0] if label else "", found[0], epoch)
        span = process.count(epoch, self._sizes)
        self._rank = line.rank
        yield Step(n=process.n, values=_quantities(values), rank=line.rank, t_s=line.t_s, span=span)

    def _begin(self, line: Line) -> Phase:
        """Forget the training before this line's."""
        self._processes, self._finals = {}, {}
        return Phase(name="train", t_s=line.t_s, begins=True)

    def _process(self, line: Line) -> Process:
        """Return the process that a line is of; a new one has the bar of the lines that name no rank."""
        key = (line.node, line.rank)
        if key not in self._processes:
            unnamed = self._processes.get((line.node, None))
            self._processes[key] = Process().follow(unnamed) if unnamed else Process()
        return self._processes[key]

    def _end(self, values: dict[str, str]) -> Iterator[Event]:
        self._own_ended = self._own is not None
        self._finals.update(values)
        yield Summary(values=values)
        yield Ended(marker=END_MARK)

    def _remarks(self, text: str) -> Iterator[Event]:
        """Yield a final figure of `log_metrics`, where it has more digits, or a size told before the training."""
        if found := _METRIC.fullmatch(text.rstrip("\0")):
            name, figure = found[1], found[2]
            if len(figure) > len(self._finals.get(name, "")):
                self._finals[name] = figure
                yield Summary(values={name: figure})
        elif found := _SIZE.search(text):
            name, size = _SIZES[found[1]], found[2].replace(",", "")
            self._sizes.note(name, int(size))
            if name in _CONFIG:
                yield EffectiveConfig(values={name: size})

    def _watch_bar(self, line: Line) -> None:
        """Note how far a bar is: of a line without a rank it is every process's of the node."""
        if "%|" not in line.text or not (found := _BAR.match(line.text.lstrip())):
            return
        own = self._process(line)
        for (node, _), process in self._processes.items():
            if process is own or (line.rank is None and node == line.node):
                process.watch(int(found[1]), int(found[2]), self._sizes)


def recognise(head: Sequence[str]) -> float:
    """Say how surely these lines are a Trainer's, or train_llama.py's."""
    if any(_OWN.search(text) for text in head):
        return 1.0
    if sure := train_llama.recognise(head):
        return sure
    names = {name for text in head for part in _DICTIONARY.findall(text) for name, _ in _ITEM.findall(part)}
    if {"loss", "learning_rate"} <= names or {"train_runtime", "train_samples_per_second"} <= names:
        return 0.8
    return 0.3 if any("trainable params: " in text and "trainable%: " in text for text in head) else 0.0


def _quantities(values: dict[str, str]) -> dict[Quantity, float]:
    return {_NAMES[name]: number(text) for name, text in values.items() if name in _NAMES}


def _parse(text: str) -> dict[str, str]:
    """Return the numbers of a flat JSON object as text; nothing of a line that was cut or garbled."""
    try:
        return {str(name): str(value) for name, value in json.loads(text).items() if isinstance(value, (int, float))}
    except (ValueError, RecursionError):
        return {}
