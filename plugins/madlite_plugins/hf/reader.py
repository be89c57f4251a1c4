"""Read the log of a Hugging Face Trainer, preferring the lines that madlite's own training script prints.

Formats: transformers 4 prints dictionaries of numbers, transformers 5 quotes numbers of four digits; neither names the
step.  `log_metrics` prints the final figures once more, a line each, and a Trainer that is told to log its info the
run's sizes.  Our script prints `madlite-step {…}`, one JSON object per step with its number, per GPU, `madlite-config
{…}` before, and a `madlite-summary {…}` with the Trainer's figures in full (docs/backends/hf.md).  Lines of MAD's
train_llama.py are read as well.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from madlite import (
    ANY_NUMERAL,
    NUMBER,
    EffectiveConfig,
    Ended,
    Event,
    Line,
    Phase,
    Quantity,
    Step,
    Summary,
    is_foreign,
    number,
    without_label,
)
from madlite_plugins.hf import train_llama
from madlite_plugins.hf.final_figures import bar_fits, doubt_of, doubt_of_unread, figures_of, same_training, steps_done
from madlite_plugins.hf.rules import END_MARK
from madlite_plugins.hf.state import QUANTITIES, read_state
from madlite_plugins.hf.step_numbers import Process, Sizes
from madlite_plugins.micro_steps import ACCUMULATION

_MARKED = ("BF16", "FP16", "FP8")  # what accelerate calls its mixed precision, which madlite's script prints
_OWN = re.compile(r"madlite-(step|summary|config) (\{[^{}\[\]]*\})")
_DICTIONARY = re.compile(r"\{'[^{}]*\}")
_TEXT = rf"({ANY_NUMERAL}|{NUMBER})"
_ITEM = re.compile(rf"'(\w+)': '?{_TEXT}'?(?=[,}}])")
_BAR = re.compile(
    r"(?:\[\w{1,40}\]:|\d{1,6}:)?\s{0,80}\d{1,3}%\|[^|]*\| (\d{1,9})/(\d{1,9}) \["
    r"(?:[\d:]{4,12}<[\d:?]{1,12}, {1,8}([\d.]{1,12})(it/s|s/it))?"
)
_NAN = re.compile(r"(:\s{0,4})[-+]?nan\b", re.IGNORECASE)  # as Python prints it; JSON has one spelling alone
_METRIC = re.compile(rf"\s{{0,80}}((?:train|epoch|num_input)\w{{0,60}})\s{{1,80}}=\s{{1,80}}{_TEXT}\s*")
_LABEL = re.compile(r"\s{0,80}\S{0,40}")  # what a launcher puts before a process's line
_SIZES = {
    "Num examples": "examples",
    "Gradient Accumulation steps": "accumulation",
    "Total optimization steps": "steps",
    "Instantaneous batch size per device": "micro_batch",
    "Total train batch size (w. parallel, distributed & accumulation)": "global_batch",
}
_SIZE = re.compile(rf"({'|'.join(map(re.escape, _SIZES))}) = (\d[\d,]{{0,15}})(?![^\s\x00])")
_START = "Continuing training from global step "
_STARTS = re.compile(rf"{_START}(\d{{1,12}})(?!\S)")
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
        self._is_own = False  # whether the log is our script's: the Trainer of each node prints its own lines beside
        self._own_first = 0
        self._own_ended = False
        self._sizes = Sizes()
        self._processes: dict[tuple[int, int | None], Process] = {}
        self._rank: int | None = None
        self._finals: dict[str, str] = {}
        self._waits: dict[tuple[int, int | None], _Waiting] = {}  # lines whose step their process's next one tells
        self._firsts: dict[tuple[int, int | None], _Waiting] = {}  # first lines whose step the second one tells
        self._last: tuple[Process, dict[str, str]] | None = None  # the training that ended last, and its figures

    def feed(self, line: Line) -> Iterable[Event]:
        """Return the events of one line."""
        if "madlite-" in line.text and (own := tuple(self._read_own(line))):
            return own
        if self._llama.knows(line.text):
            return self._llama.feed(line)
        if (line.node, line.rank) not in self._waits and "%|" not in line.text and "{'" not in line.text:
            return self._remarks(line) if " = " in line.text or _START in line.text else ()
        is_blank = not without_label(line).strip()  # it clears a bar
        return () if is_blank else tuple(self._read_trainer(line))

    def finish(self, outputs: Path) -> Iterable[Event]:
        """Return the steps of trainer_state.json in full precision, where the log had the Trainer's own alone."""
        late = list(self._late())
        trained = any(process.n for process in self._processes.values())
        return (*late, *(read_state(outputs, self._rank) if trained and self._own is None else ()))

    def _read_own(self, line: Line) -> Iterator[Event]:
        for kind, text in _OWN.findall(line.text):
            values = _parse(text)
            n = number(values.get("n", ""))
            if kind == "summary" and values:
                yield from self._end(values, None)
            elif kind == "config" and values:
                self._is_own = True
                yield Phase(name="train", t_s=line.t_s, starts=True)
                yield EffectiveConfig(values=values, marked_precisions=_MARKED if "precision" in values else ())
            elif kind == "step" and 0 <= n < 1e12:
                if self._own is not None and self._own_ended and n <= self._own:
                    yield from self._begin(line)
                    self._own = None
                self._own_first = int(n) if self._own is None else min(int(n), self._own_first)
                self._own, self._own_ended = int(n), False
                yield Step(n=int(n), values=_quantities(values), rank=line.rank, t_s=line.t_s)

    def _read_trainer(self, line: Line) -> Iterator[Event]:
        """Yield the step of the line before, where it waited, and what this one says."""
        bars = self._watch_bar(line)
        for key, waits in [*self._waits.items()]:
            if waits.process.is_rival_s(waits.rival) and key in self._waits:
                yield from self._move(key)
            elif rate := bars.get(waits.process):
                yield from self._place(key, rate)
            elif key == (line.node, line.rank):
                yield from self._resolve(key)
                yield self._waits.pop(key).step(in_a_block="{'loss'" in line.text)
        if self._last and self._last[0] in bars and not self._last[0].is_bar_next:
            yield from self._compare(*self._last)
        if "{'" in line.text:
            self._last = None
            yield from self._read_dictionaries(line)
        elif " = " in line.text or _START in line.text:
            yield from self._remarks(line)

    def _read_dictionaries(self, line: Line) -> Iterator[Event]:
        for found in _DICTIONARY.finditer(line.text):
            texts = dict(_ITEM.findall(found[0]))
            if "loss" in texts and self._own is None and not self._is_own:
                yield from self._read_step(found, _Figures(texts), line)
            elif "train_runtime" in texts and "loss" not in texts:
                yield from self._read_end(found[0], _Figures(texts), line)

    def _read_end(self, text: str, figures: _Figures, line: Line) -> Iterator[Event]:
        yield from self._resolve((line.node, line.rank))
        process, values = self._process(line), figures.values
        if process.ended and self._own is None and not same_training(process.final, values):  # that printed no step
            yield from self._begin(line)
            process = self._processes[line.node, line.rank] = process.next_training()
        process.final, process.is_quoted = values, "'train_runtime': '" in text
        process.unread = figures.unread
        if process.has_bar and not bar_fits(process, self._sizes, values):
            process.drop_bar()
        doubtful = not self._sizes.start and bool(doubt_of(process, values))
        if self._own is None and (span := process.end(values, self._sizes, doubtful=doubtful)):
            yield Step(n=process.n, values={}, rank=line.rank, t_s=line.t_s, span=span)
        yield from self._end(values, process)

    def _read_step(self, found: re.Match[str], figures: _Figures, line: Line) -> Iterator[Event]:
        values = figures.values
        process, epoch = self._process(line), values.get("epoch", "")
        label = _LABEL.match(line.text, 0, found.start())
        if process.is_again(label[0] if label else "", found[0], epoch):
            return
        if process.is_another(epoch):
            yield from self._begin(line)
            process = self._processes[line.node, line.rank] = process.next_training()
            process.is_again(label[0] if label else "", found[0], epoch)
        self._rank = line.rank
        unread = {_NAMES[name]: text for name, text in figures.unread.items() if name in _NAMES}
        waits = _Waiting(process, values, line, process.bar, unread, process.rival)
        if waits.enter(self._sizes):
            yield waits.placed(late=False)
        else:
            self._waits[line.node, line.rank] = waits

    def _place(self, key: tuple[int, int | None], rate: float) -> Iterator[Event]:
        """Yield the step of the line that waited, by the bar after it; a first line may have to wait on."""
        waits = self._waits.pop(key)
        if waits.process.leaves_open(waits.bar, rate):
            self._firsts[key] = waits
            return
        yield from self._resolve(key, waits.bar)
        waits.process.place_by_bar(waits.bar, rate)
        yield waits.placed()

    def _resolve(self, key: tuple[int, int | None], before: int = 0) -> Iterator[Step]:
        """Yield the step of a process's first line, where it waits on, by the bar `before` the second one."""
        if first := self._firsts.pop(key, None):
            first.process.resolve(before)
            yield first.placed()

    def _move(self, key: tuple[int, int | None]) -> Iterator[Event]:
        """Begin another training with a line that waited: the bar after it shows that it is none of this one's.

        Nor are those of other processes that came behind a bar of that length.
        """
        length = waits.rival[1] if (waits := self._waits[key]).rival else 0
        moved = {
            other: waiting
            for other, waiting in self._waits.items()
            if waiting.rival is not None and waiting.rival[1] == length
        }
        self._waits = {other: waiting for other, waiting in self._waits.items() if other not in moved}
        yield from self._begin(waits.line)
        for other, waiting in moved.items():
            process = self._processes[other] = waiting.process.next_training()
            again = waiting._replace(process=process, bar=waiting.rival[0] if waiting.rival else 0, rival=None)
            if again.enter(self._sizes):
                yield again.placed()
                continue
            self._waits[other] = again
            if other == key:
                yield from self._place(key, math.ulp(0))

    def _begin(self, line: Line) -> Iterator[Event]:
        """Forget the training before this line's, after the steps of it that other processes still wait to tell."""
        yield from self._late()
        self._processes, self._finals, self._last = {}, {}, None
        yield Phase(name="train", t_s=line.t_s, begins=True)

    def _late(self) -> Iterator[Step]:
        """Yield the steps that no later line reports."""
        for key in [*self._firsts]:
            yield from self._resolve(key)
        for waits in self._waits.values():
            yield waits.step(in_a_block=False)
        self._waits.clear()

    def _process(self, line: Line) -> Process:
        """Return the process that a line is of; a new one has the bar of the lines that name no rank."""
        key = (line.node, line.rank)
        if key not in self._processes:
            unnamed = self._processes.get((line.node, None))
            self._processes[key] = Process().follow(unnamed) if unnamed else Process()
        return self._processes[key]

    def _end(self, values: dict[str, str], process: Process | None) -> Iterator[Event]:
        """Yield a training's figures and its end; the bar of its process may be drawn once more after them."""
        self._own_ended = self._own is not None
        self._finals.update(values)
        if self._own is not None:
            computed, doubt = figures_of(values, self._own - self._own_first + 1)
            yield Summary(values=values, computed=computed, doubt=doubt)
        elif process is not None:
            self._last = (process, values)
            yield from self._compare(process, values)
        else:
            yield Summary(values=values)
        yield Ended(marker=END_MARK)

    def _compare(self, process: Process, values: dict[str, str]) -> Iterator[Event]:
        """Yield the Trainer's figures, as those of the steps that its log shows."""
        if process.unread:
            yield Summary(values=values, doubt=doubt_of_unread(process.unread))
            return
        least, most = steps_done(process, self._sizes, values)
        if most:
            computed, doubt = figures_of(values, most, least)
            yield Summary(values=values, computed=computed, doubt=doubt)
        else:
            yield Summary(values=values, doubt=doubt_of(process, values))

    def _remarks(self, line: Line) -> Iterator[Event]:
        """Yield a final figure of `log_metrics`, where it has more digits, or a size told before the training."""
        text = without_label(line)
        if found := _METRIC.fullmatch(text.rstrip("\0")):
            name, figure = found[1], found[2]
            if is_foreign(figure, groups=False):
                yield Summary(values={}, doubt=doubt_of_unread({name: figure}))
            elif len(figure) > len(self._finals.get(name, "")):
                self._finals[name] = figure
                yield Summary(values={name: figure})
        elif found := _STARTS.search(text):
            self._sizes.start = int(found[1])
        elif found := _SIZE.search(text):
            name, size = _SIZES[found[1]], found[2].replace(",", "")
            self._sizes.note(name, int(size))
            if name == "steps":  # which no evaluation tells
                yield Phase(name="train", t_s=line.t_s, starts=True)
            if name in _CONFIG:
                yield EffectiveConfig(values={name: size})

    def _watch_bar(self, line: Line) -> dict[Process, float]:
        """Note how far a bar is: of a line without a rank it is every process's of the node.

        Returns the processes whose training's bar it is, with its steps a second.
        """
        if "%|" not in line.text or not (found := _BAR.match(without_label(line).lstrip())):
            return {}
        rate = number(found[3] or "")
        rate = (rate if found[4] == "it/s" else 1 / rate) if rate > 0 else math.ulp(0)
        own = self._process(line)
        near = [
            process
            for (node, _), process in self._processes.items()
            if process is own or (line.rank is None and node == line.node)
        ]
        return {process: rate for process in near if process.watch(int(found[1]), int(found[2]), self._sizes)}


class _Figures:
    """The numbers of a Trainer's dictionary, and the texts that are numbers of another language alone.

    The Trainer separates no groups of digits: a comma within a number is none of its own.
    """

    def __init__(self, texts: dict[str, str]) -> None:
        self.unread = {name: text for name, text in texts.items() if is_foreign(text, groups=False)}
        self.values = {name: text for name, text in texts.items() if name not in self.unread}


class _Waiting(NamedTuple):
    """A step of the Trainer's, and what the bar showed before its line."""

    process: Process
    values: dict[str, str]
    line: Line
    bar: int
    unread: dict[Quantity, str]
    rival: tuple[int, int] | None = None  # a bar of another length before it

    def enter(self, sizes: Sizes) -> bool:
        """Take the line in as its process's next, and say whether its step is known."""
        self.process.rates.append(number(self.values.get("learning_rate", "")))
        self.process.note_loss(self.values.get("loss", ""))
        return self.process.place(self.values.get("epoch", ""), sizes)

    def step(self, *, in_a_block: bool) -> Step:
        """Return the step where no bar tells which it is."""
        self.process.place_without_bar(in_a_block)
        return self.placed()

    def placed(self, *, late: bool = True) -> Step:
        """Return the step, whose place is known."""
        line, process = self.line, self.process
        return Step(
            n=process.n,
            values=_quantities(self.values),
            rank=line.rank,
            t_s=line.t_s,
            span=process.span,
            unread=self.unread,
            late=late,
        )


def detect(head: Sequence[str]) -> float:
    """Say how surely these lines are a Trainer's, or train_llama.py's."""
    if any(_OWN.search(text) for text in head):
        return 1.0
    if sure := train_llama.detect(head):
        return sure
    names = {name for text in head for part in _DICTIONARY.findall(text) for name, _ in _ITEM.findall(part)}
    if {"loss", "learning_rate"} <= names or {"train_runtime", "train_samples_per_second"} <= names:
        return 0.8
    return 0.3 if any("trainable params: " in text and "trainable%: " in text for text in head) else 0.0


def _quantities(values: dict[str, str]) -> dict[Quantity, float]:
    return {_NAMES[name]: number(text) for name, text in values.items() if name in _NAMES}


def _parse(text: str) -> dict[str, str]:
    """Return the numbers and the precision of a flat JSON object as text; nothing of a line cut or garbled."""
    try:
        items = json.loads(_NAN.sub(r"\1NaN", text)).items()
        return {
            str(name): str(value) for name, value in items if isinstance(value, (int, float)) or name == "precision"
        }
    except (ValueError, RecursionError):
        return {}
