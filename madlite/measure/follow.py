"""Follows a log while it streams: lines → events, the result line, an error's, and those that explain a failure."""

from __future__ import annotations

import logging
import math
import re
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path

from madlite.measure.lines import LineSplitter
from madlite.measure.patterns import PatternScan
from madlite.measure.performance import PerformanceScan
from madlite.types import Ended, ErrorScan, Event, FailureRule, Line, Quantity, Reader, Step, Summary

_log = logging.getLogger(__name__)
_TELLING = re.compile(
    r"\b\w*(?:Error|Exception)\b:|\berror:|\bfatal:|out of memory|not found|No such file", re.IGNORECASE
)
# torchrun's own footer says that a rank failed, not why
_FOOTER = re.compile(r"ChildFailedError|elastic\.multiprocessing|exitcode\s*:|error_file:|traceback : ")
_PREFIX = re.compile(r"^(?:\[(?:rank|default)\d+\]:\s?)+")
_KEPT = 400


class Follower:
    """Takes the output of the model's step, chunk by chunk; what it saw is in its attributes."""

    def __init__(
        self,
        readers: Iterable[Reader],
        rules: Iterable[FailureRule] = (),
        *,
        error_scan: ErrorScan | None = None,
        now: Callable[[], float] = lambda: float("nan"),
        on_step: Callable[[Step], None] = lambda step: None,
    ) -> None:
        self.steps: list[Step] = []
        self.ended = False
        self.summary: dict[str, str] = {}
        self.scan = PerformanceScan()
        self.nan_loss = ""
        self.rule: FailureRule | None = None
        self.rule_line = ""
        self._patterns = PatternScan(error_scan) if error_scan is not None else None
        self._readers = list(readers)
        self._rules = [(re.compile(rule.pattern), rule) for rule in rules]  # checked where plugins gave them
        self._on_step = on_step
        self._tail: deque[str] = deque(maxlen=_KEPT)
        self._splitters = {1: LineSplitter(now), 2: LineSplitter(now)}

    def feed(self, chunk: bytes, stream: int = 1) -> None:
        """Take output of one stream."""
        for line in self._splitters[stream].feed(chunk):
            self._line(line)

    def finish(self, outputs: Path | None = None) -> None:
        """Take what was left without a line's end, and the files the framework left in `outputs`."""
        for splitter in self._splitters.values():
            for line in splitter.flush():
                self._line(line)
        for reader in list(self._readers) if outputs is not None else ():
            for event in self._ask(reader, "finish", outputs):
                self._event(event, "")

    @property
    def suspects(self) -> dict[str, str]:
        """The error patterns and their first lines; none where a reader knows the log, for its steps say more."""
        return self._patterns.found if self._patterns is not None and not self.steps else {}

    @property
    def telling_line(self) -> str:
        """The line that explains a failure best: a rule's, else the last that looks like an error, else the last."""
        if self.rule_line:
            return self.rule_line
        telling = [text for text in self._tail if _TELLING.search(text) and not _FOOTER.search(text)]
        return _PREFIX.sub("", (telling or list(self._tail) or [""])[-1].strip())

    def _line(self, line: Line) -> None:
        self._tail.append(line.text)
        self.scan.feed(line)
        if self._patterns is not None:
            self._patterns.feed(line)
        if self.rule is None:
            self._match_rules(line.text)
        for reader in list(self._readers):
            for event in self._ask(reader, "feed", line):
                self._event(event, line.text)

    def _ask(self, reader: Reader, member: str, argument: object) -> tuple[Event, ...]:
        try:
            return tuple(getattr(reader, member)(argument))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the border to a plugin's reader
            _log.warning("reader %s failed and is left out: %r", type(reader).__name__, error)
            self._readers.remove(reader)
            return ()

    def _match_rules(self, text: str) -> None:
        for pattern, rule in self._rules:
            if pattern.search(text):
                self.rule, self.rule_line = rule, _PREFIX.sub("", text.strip())
                return

    def _event(self, event: Event, text: str) -> None:
        if isinstance(event, Step):
            self.steps.append(event)
            loss = event.values.get(Quantity.LOSS)
            if loss is not None and not math.isfinite(loss) and event.phase == "train" and not self.nan_loss:
                self.nan_loss = text.strip() or f"step {event.n}: loss {loss}"
            self._on_step(event)
        elif isinstance(event, Summary):
            self.summary.update(event.values)
        elif isinstance(event, Ended):
            self.ended = True
