"""Read the log of a Hugging Face Trainer, preferring the lines that madlite's own training script prints.

Formats: transformers 4 prints dictionaries of numbers, transformers 5 quotes numbers of four digits; neither names the
step.  Our script prints `madlite-step {…}`, one JSON object per step with its number, per GPU, and a
`madlite-summary {…}` with the Trainer's figures in full (docs/backends/hf.md).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from madlite import NUMBER, Ended, Event, Line, Quantity, Step, Summary, number

_OWN = re.compile(r"madlite-(step|summary) (\{[^{}\[\]]*\})")
_DICTIONARY = re.compile(r"\{'[^{}]*\}")
_ITEM = re.compile(rf"'(\w+)': '?({NUMBER})'?(?=[,}}])")
_BAR = re.compile(r"(?:\[\w{1,40}\]:)?\s{0,80}\d{1,3}%\|[^|]*\| (\d{1,9})/(\d{1,9}) \[")
_NAMES = {
    "loss": Quantity.LOSS,
    "grad_norm": Quantity.GRAD_NORM,
    "learning_rate": Quantity.LEARNING_RATE,
    "tokens_per_s_per_gpu": Quantity.TOKENS_PER_S_PER_GPU,
    "samples_per_s_per_gpu": Quantity.SAMPLES_PER_S_PER_GPU,
    "step_time_s": Quantity.STEP_TIME_S,
    "memory_reserved_gib": Quantity.MEMORY_RESERVED_GIB,
}


class HuggingFaceReader:
    """Follows one log.

    A Trainer's line without a number is the step after the last one, or the one its progress bar shows where that is
    further on: then the line covers several steps.
    """

    def __init__(self) -> None:
        self._own = False
        self._n = 0
        self._bar = 0
        self._steps_in_bar = 0

    def feed(self, line: Line) -> Iterable[Event]:
        """Return the events of one line."""
        if "madlite-s" in line.text:
            return self._read_own(line)
        self._watch_bar(line.text)
        if "{'" not in line.text:
            return ()
        return self._read_dictionaries(line)

    def finish(self, outputs: Path) -> Iterable[Event]:
        """Return nothing: everything was in the log."""
        return ()

    def _read_own(self, line: Line) -> Iterator[Event]:
        for kind, text in _OWN.findall(line.text):
            values = _parse(text)
            n = number(values.get("n", ""))
            if kind == "summary" and values:
                yield from _end(values)
            elif 0 <= n < 1e12:
                self._own = True
                yield Step(n=int(n), values=_quantities(values), rank=line.rank, t_s=line.t_s)

    def _read_dictionaries(self, line: Line) -> Iterator[Event]:
        for text in _DICTIONARY.findall(line.text):
            values = dict(_ITEM.findall(text))
            if "loss" in values and not self._own:
                before, self._n = self._n, max(self._n + 1, self._bar)
                yield Step(n=self._n, values=_quantities(values), rank=line.rank, t_s=line.t_s, span=self._n - before)
            elif "train_runtime" in values and "loss" not in values:
                yield from _end(values)

    def _watch_bar(self, text: str) -> None:
        """Note how far the training's bar is: the first one of the log, later ones of other lengths are not its."""
        if found := _BAR.match(text.lstrip()):
            done, total = int(found[1]), int(found[2])
            self._steps_in_bar = self._steps_in_bar or total
            if total == self._steps_in_bar:
                self._bar = done


def recognise(head: Sequence[str]) -> float:
    """Say how surely these lines are a Trainer's."""
    if any(_OWN.search(text) for text in head):
        return 1.0
    names = {name for text in head for part in _DICTIONARY.findall(text) for name, _ in _ITEM.findall(part)}
    if {"loss", "learning_rate"} <= names or {"train_runtime", "train_samples_per_second"} <= names:
        return 0.8
    return 0.3 if any("trainable params: " in text and "trainable%: " in text for text in head) else 0.0


def _end(values: dict[str, str]) -> Iterator[Event]:
    yield Summary(values=values)
    yield Ended(marker="train_runtime")


def _quantities(values: dict[str, str]) -> dict[Quantity, float]:
    return {_NAMES[name]: number(text) for name, text in values.items() if name in _NAMES}


def _parse(text: str) -> dict[str, str]:
    """Return the numbers of a flat JSON object as text; nothing of a line that was cut or garbled."""
    try:
        return {str(name): str(value) for name, value in json.loads(text).items() if isinstance(value, (int, float))}
    except ValueError:
        return {}
