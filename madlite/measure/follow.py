"""Follows a log while it streams: lines → events, the result line, an error's, and those that explain a failure.

Memory is bounded by what is kept: the steps (8 bytes a number), the last lines, and the first of each kind of finding.
"""

from __future__ import annotations

import logging
import math
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from madlite.measure.fatal import FatalScan
from madlite.measure.lines import Block, LineSplitter, make_block
from madlite.measure.patterns import PatternScan
from madlite.measure.performance import PerformanceScan
from madlite.measure.rules import RuleScan, without_rank
from madlite.measure.steps import Steps
from madlite.types import (
    EffectiveConfig,
    Ended,
    ErrorScan,
    Event,
    FailureRule,
    Line,
    Phase,
    Quantity,
    Reader,
    Step,
    Summary,
)

_log = logging.getLogger(__name__)
_TELLING = re.compile(
    r"\b\w*(?:Error|Exception)\b:|\berror:|\bfatal:|out of memory|not found|No such file", re.IGNORECASE
)
# torchrun's own footer says that a rank failed, not why
_FOOTER = re.compile(r"ChildFailedError|elastic\.multiprocessing|exitcode\s*:|error_file:|traceback : ")
_RULED = re.compile(r"[-=*_#~+]{5,}\s*$")  # a line of them says nothing
_KEPT = 400
_HELD = 4 * 1024 * 1024  # characters since the last step that wait for the log's end
_APART = 5  # steps that lines of ranks may come apart; further back is a training that was started again


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
        self.lines = 0  # that are not blank
        self.steps = Steps()
        self.ended = False  # since the last step
        self.summary: dict[str, str] = {}
        self.torn: tuple[str, ...] = ()  # figures of the summary in a last line that nothing ended
        self.config: dict[str, str] = {}  # what the log says that the run was given
        self.scan = PerformanceScan()
        self.nan_loss = ""
        self.trainings = 1  # that the log has one after another; what is kept is the last one's
        self._rules = RuleScan(rules)
        self._patterns = PatternScan(error_scan) if error_scan is not None else None
        self._readers = tuple(readers)
        self._fatal = FatalScan()
        self._held: deque[Block] = deque()
        self._trained = 0  # lines with training steps
        self._highest: int | None = None  # of the training steps
        self.last_step = 0  # the highest of the training that goes on
        self.restarted_at: int | None = None  # the step to which the training went back last
        self._on_step = on_step
        self._tail: deque[str] = deque(maxlen=_KEPT)
        self._splitters = {1: LineSplitter(now), 2: LineSplitter(now)}

    def feed(self, chunk: bytes, stream: int = 1) -> None:
        """Take output of one stream."""
        splitter = self._splitters[stream]
        self._take(splitter.take(chunk), splitter)

    def finish(self, outputs: Path | None = None) -> None:
        """Take what was left without a line's end, and the files the framework left in `outputs`."""
        for splitter in self._splitters.values():
            self._take(splitter.take_rest(), splitter, whole=False)
        while self._held:
            self._fatal.take(self._held.popleft())
        if outputs is not None:
            for reader in self._readers:
                self._ask(reader, "finish", outputs, "")

    @property
    def rule(self) -> FailureRule | None:
        """The rule that matched first."""
        return self._rules.rule

    @property
    def rule_line(self) -> str:
        """The line that it matched."""
        return self._rules.line

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
        plain = [text for text in self._tail if not _RULED.search(text)]
        return without_rank((telling or plain or list(self._tail) or [""])[-1])

    @property
    def fatal_line(self) -> str:
        """Of the lines since the last step the one that shows best that the training failed; "" where none does."""
        return self._fatal.line

    @property
    def launcher_line(self) -> str:
        """The line since the last step by which a launcher says that the training failed."""
        return self._fatal.launcher

    def _take(self, block: Block, splitter: LineSplitter, *, whole: bool = True) -> None:
        """Look at lines that came together, all of them for what is rare, and let the readers read each."""
        if not block.lines:
            return
        self.lines += len(block.lines)
        self._tail.extend(block.lines[-_KEPT:])
        self.scan.feed(block, whole)
        self._rules.feed(block)
        if self._patterns is not None:
            self._patterns.feed(block)
        last = -1  # the place of the block's last training step
        for place, line in enumerate(splitter.number(block)) if self._readers else ():
            before = self._trained
            for reader in self._readers:
                self._ask(reader, "feed", line, line.text, whole)
            last = place if self._trained != before else last
        self._hold(block, last)

    def _hold(self, block: Block, last: int) -> None:
        """Keep the lines since the last training step: what of them ended the training is asked at the log's end."""
        if last >= 0:
            self._held.clear()
            block = make_block(block.lines[last + 1 :])
        self._held.append(block)
        while sum(len(one.text) for one in self._held) > _HELD:
            self._fatal.take(self._held.popleft())

    def _ask(self, reader: Reader, member: str, argument: Line | Path, text: str, whole: bool = True) -> None:
        """Take a reader's events in; one that raises or tells nonsense is left out from then on."""
        try:
            answer = getattr(reader, member)(argument)
            if answer == ():  # of most lines, millions of them
                return
            events = tuple(answer)
            for event in events:
                self._note(event, text, whole)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the border to a plugin's reader
            _log.warning("reader %s failed and is left out: %r", type(reader).__name__, error)
            self._readers = tuple(other for other in self._readers if other is not reader)
            return
        for event in events:
            if isinstance(event, Step):
                self._on_step(event)

    def _note(self, event: Event, text: str, whole: bool) -> None:
        if isinstance(event, Step):
            self.steps.add(event)
            if event.phase == "train":
                self._note_training(event, text)
        elif isinstance(event, Summary):
            self._note_figures(_texts(event.values), whole)
        elif isinstance(event, EffectiveConfig):
            self.config.update(_texts(event.values))
        elif isinstance(event, Phase) and event.begins:
            self._begin_again()
        elif isinstance(event, Ended) and event.code:
            self._fatal.end(without_rank(text) or event.marker)
        elif isinstance(event, Ended):
            self.ended = True

    def _note_figures(self, figures: Mapping[str, str], whole: bool) -> None:
        if whole:
            self.summary.update(figures)
        else:  # its number may have been cut short
            self.torn = tuple(figures)

    def _begin_again(self) -> None:
        """Forget the steps and figures of a training before this one, which has its own."""
        self.trainings += 1
        self.steps, self.summary, self.torn = Steps(), {}, ()
        self.nan_loss, self.ended = "", False
        self.last_step, self._highest, self.restarted_at = 0, None, None

    def _note_training(self, step: Step, text: str) -> None:
        """Look at a training step: its loss, and that the training goes on, where it comes from a line of the log."""
        loss = step.values.get(Quantity.LOSS)
        if loss is not None and not math.isfinite(loss) and not self.nan_loss:
            self.nan_loss = text.strip() or f"step {step.n}: loss {loss}"
        if text:
            self._trained += 1
            self._fatal.forget()
        if text and self.ended and step.n != self._highest:  # the last step of other ranks may come after the mark
            self.ended = False
        self._highest = step.n if self._highest is None else max(self._highest, step.n)
        if step.n < self.last_step - _APART:
            self.restarted_at = self.last_step = step.n
        self.last_step = max(self.last_step, step.n)


def _texts(values: Mapping[str, object]) -> dict[str, str]:
    """Return what a reader says of a log as text; what a pattern's group did not find is nothing."""
    return {name: str(value) for name, value in values.items() if value is not None}
