"""Follows a log while it streams: lines → events, the result line, an error's, and those that explain a failure.

Memory is bounded by what is kept: the steps (8 bytes a number), the last lines, and the first of each kind of finding.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from msgspec.structs import replace

from madlite.failure_rules import explained
from madlite.measure.clues import FOLLOWER, Clue
from madlite.measure.ending import Ending
from madlite.measure.footer import FirstFailure
from madlite.measure.lines import Block, LineSplitter
from madlite.measure.memory_marks import MemoryMarks
from madlite.measure.patterns import PatternScan
from madlite.measure.performance import PerformanceScan
from madlite.measure.rules import plain
from madlite.measure.steps import APART, Steps
from madlite.measure.telling import LastLines
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
_DIGITS = 12  # more make no number of steps


class Follower:
    """Takes the output of the model's step, chunk by chunk; what it saw is in its attributes.

    `guest` reads the log of a script that says its number itself: what it finds decides nothing.
    """

    def __init__(
        self,
        readers: Iterable[Reader],
        rules: Iterable[FailureRule] = (),
        *,
        error_scan: ErrorScan | None = None,
        now: Callable[[], float] = lambda: float("nan"),
        on_step: Callable[[Step], None] = lambda step: None,
        on_event: Callable[[Event], None] = lambda event: None,
        guest: Reader | None = None,
    ) -> None:
        self.lines = 0  # that are not blank
        self.steps = Steps()
        self.ended = False  # since the last step
        self.summary: dict[str, str] = {}
        self.torn: tuple[str, ...] = ()  # figures of the summary in a last line that nothing ended
        self.config: dict[str, str] = {}  # what the log says that the run was given
        self.scan = PerformanceScan()
        self.memory = MemoryMarks()
        self.missed_mark = ""  # why a training without its end mark is none that came to its end
        self.nan_loss = ""
        self.trainings = 1  # that the log has one after another; what is kept is the last one's
        self._ending = Ending(rules)
        self._patterns = PatternScan(error_scan) if error_scan is not None else None
        self._readers = (*readers, *([guest] if guest is not None else []))
        self._guest = guest
        self._trained = 0  # lines with training steps
        self._highest: int | None = None  # of the training steps
        self.last_step = 0  # the highest of the training that goes on
        self.restarted_at: int | None = None  # the step to which the training went back last
        self._on_step, self._on_event = on_step, on_event
        self._last = LastLines()
        self.config_lines: dict[str, str] = {}  # key of `config` → the line that says it
        self._splitters = {1: LineSplitter(now), 2: LineSplitter(now)}

    def feed(self, chunk: bytes, stream: int = 1) -> None:
        """Take output of one stream."""
        splitter = self._splitters[stream]
        self._take(splitter.take(chunk), splitter)

    def finish(self, outputs: Path | None = None) -> None:
        """Take what was left without a line's end, and the files the framework left in `outputs`."""
        for splitter in self._splitters.values():
            self._take(splitter.take_rest(), splitter, whole=False)
        self._ending.finish()
        if outputs is not None:
            for reader in self._readers:
                self._ask(reader, "finish", outputs, "")

    @property
    def last_lines(self) -> list[str]:
        """The last lines of the log so far; another thread may ask."""
        return self._last.all

    @property
    def clue(self) -> Clue | None:
        """What explains a failure best: of the lines since the last step, else of those just before it.

        Known once the log is finished.  Of a log that went well it may be what somebody handled.
        """
        return self._ending.clue

    @property
    def late_clue(self) -> Clue | None:
        """The same of the lines since the last step alone."""
        return self._ending.late_clue

    @property
    def first_failure(self) -> FirstFailure | None:
        """What torchrun says since the last step that failed first."""
        return self._ending.first_failure

    @property
    def rule(self) -> FailureRule | None:
        """The rule that explains a failure best, its hint in the words of the line."""
        clue = self.clue
        if clue is None or clue.rule is None:
            return None
        return replace(clue.rule, hint=explained(clue.rule.hint, clue.groups))

    @property
    def rule_line(self) -> str:
        """The line that it matched."""
        clue = self.clue
        return clue.line if clue and clue.rule else ""

    @property
    def suspects(self) -> dict[str, str]:
        """The error patterns and their first lines; none where a reader knows the log, for its steps say more.

        A guest's steps do not: the number is none of theirs.
        """
        told = self.steps and self._guest is None
        return self._patterns.found if self._patterns is not None and not told else {}

    @property
    def scanned(self) -> bool:
        """Whether error patterns are looked for."""
        return self._patterns is not None

    @property
    def telling_line(self) -> str:
        """The line that explains a failure best: a clue's, else the last that looks like an error, else the last."""
        clue = self.clue
        if clue is not None and clue.tier <= FOLLOWER:
            return clue.line
        return self._last.telling or self._last.last

    @property
    def cut_line(self) -> str:
        """The line that explains best why no more steps came: a telling one since the last, else that step's own."""
        clue = self.clue
        if clue is not None and clue.tier <= FOLLOWER:
            return clue.line
        return self._last.telling or plain(self.step_line) or self._last.last

    @property
    def step_line(self) -> str:
        """The line of the last training step."""
        return self._last.step_line

    @property
    def fatal_line(self) -> str:
        """Of the lines since the last step the one that shows best that the training failed; "" where none does."""
        return self._ending.fatal.line

    @property
    def launcher_line(self) -> str:
        """The line since the last step by which a launcher says that the training failed."""
        return self._ending.fatal.launcher

    def _take(self, block: Block, splitter: LineSplitter, *, whole: bool = True) -> None:
        """Look at lines that came together, all of them for what is rare, and let the readers read each."""
        if not block.lines:
            return
        self.lines += len(block.lines)
        self._last.add(block)
        self.scan.feed(block, whole)
        self.memory.feed(block)
        if self._patterns is not None:
            self._patterns.feed(block)
        last = -1  # the place of the block's last training step
        for place, line in enumerate(splitter.number(block)) if self._readers else ():
            before = self._trained
            for reader in self._readers:
                self._ask(reader, "feed", line, line.text, whole)
            last = place if self._trained != before else last
        if last >= 0:
            self._last.step(block, last)
        self._ending.hold(block, last)

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
            if reader is not self._guest:  # its steps come no more, whatever the training does
                self._on_event(Phase(name="without a reader"))
            return
        for event in events:
            if reader is not self._guest:  # a script may well go on in silence after its training
                self._on_event(event)
            if isinstance(event, Step):
                self._on_step(event)

    def _note(self, event: Event, text: str, whole: bool) -> None:
        if isinstance(event, Step):
            if text and self._is_another(event):
                self._begin_again()
            self.steps.add(event)
            if event.phase == "train":
                self._note_training(event, text)
        elif isinstance(event, Summary):
            self._note_figures(_texts(event.values), whole)
        elif isinstance(event, EffectiveConfig):
            self.config.update(told := _texts(event.values))
            self.config_lines.update(dict.fromkeys(told, text))
        elif isinstance(event, Phase) and event.begins:
            self._begin_again()
        elif isinstance(event, Ended):
            self._note_end(event, text)

    def _note_end(self, event: Ended, text: str) -> None:
        if event.missed:
            self.missed_mark = event.marker
        elif event.code:
            self._ending.fatal.end(plain(text) or event.marker)
        else:
            self.ended = True

    def _note_figures(self, figures: Mapping[str, str], whole: bool) -> None:
        if whole:
            self.summary.update(figures)
        else:  # its number may have been cut short
            self.torn = tuple(figures)

    def _is_another(self, step: Step) -> bool:
        """Say whether a line's step is another training's first: the one before came to its end, and this goes back.

        Which of its trainings a script's number is of only the script knows.
        """
        done = self.ended or self.last_step >= (asked_steps(self.config) or math.inf)
        return done and self._guest is None and self.steps.starts_over(step, ended=self.ended)

    def _begin_again(self) -> None:
        """Forget the steps and figures of a training before this one, which has its own."""
        self.trainings += 1
        self.steps, self.summary, self.torn = Steps(), {}, ()
        self.nan_loss, self.missed_mark, self.ended = "", "", False
        self.last_step, self._highest, self.restarted_at = 0, None, None

    def _note_training(self, step: Step, text: str) -> None:
        """Look at a training step: its loss, and that the training goes on, where it comes from a line of the log."""
        loss = step.values.get(Quantity.LOSS)
        if loss is not None and not math.isfinite(loss) and not self.nan_loss:
            self.nan_loss = text.strip() or f"step {step.n}: loss {loss}"
        if text:
            self._trained += 1
            self._ending.forget()
        if text and self.ended and step.n != self._highest:  # the last step of other ranks may come after the mark
            self.ended = False
        self._highest = step.n if self._highest is None else max(self._highest, step.n)
        if step.n < self.last_step - APART:
            self.restarted_at = self.last_step = step.n
        self.last_step = max(self.last_step, step.n)


def asked_steps(config: Mapping[str, str]) -> int | None:
    """Return how many steps a log itself says there are to be; None where it does not."""
    text = config.get("steps", "").replace(",", "")
    return int(text) if text.isdecimal() and len(text) < _DIGITS else None


def _texts(values: Mapping[str, object]) -> dict[str, str]:
    """Return what a reader says of a log as text; what a pattern's group did not find is nothing."""
    return {name: str(value) for name, value in values.items() if value is not None}
