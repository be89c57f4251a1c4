"""The end of a log: its lines since the last training step, and what in them explains a failure.

They are asked once the log is finished; a step that follows makes them none.  Of lines before the step the last few
hundred are kept: a program may write its steps later than its errors, for its stdout is buffered.  A log without steps
can be long: of it the first and the last megabytes are asked about all rules, what is between for exceptions alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from madlite.measure.clues import ERROR, ROOT, Clue, ClueScan, first_cause
from madlite.measure.fatal import FatalScan
from madlite.measure.footer import FirstFailure
from madlite.measure.lines import Block, make_block
from madlite.model import FailureRule

_HELD = 4 * 1024 * 1024  # characters that wait for the log's end
_ASKED = _HELD  # characters at the begin of a log without steps that are asked about every rule too
_KEPT = 400  # lines before the step


class Ending:
    """Holds the lines since the last training step; `relabel` puts their ranks' labels in one form."""

    def __init__(self, rules: Iterable[FailureRule], relabel: Callable[[Iterable[str]], list[str]] = list) -> None:
        self._relabel = relabel
        self._rules = tuple(rules)
        self.fatal = FatalScan(self._rules)
        self._clues = ClueScan(self._rules)
        self._held: deque[Block] = deque()
        self._before: deque[str] = deque(maxlen=_KEPT)
        self._best: tuple[Clue | None] | None = None  # once somebody asked

    def hold(self, block: Block, trained: int | None) -> None:
        """Take lines in, of which the first `trained` go up to the last training step; None without one."""
        self._best = None
        if trained is not None:
            for one in self._held:
                self._before.extend(one.lines[-_KEPT:])
            self._before.extend(block.lines[:trained][-_KEPT:])
            self._held.clear()
            block = make_block(block.lines[trained:])
        self._held.append(block)
        while sum(len(one.text) for one in self._held) > _HELD:
            self._look(self._held.popleft(), every_rule=self._clues.size < _ASKED)

    def forget(self) -> None:
        """Forget what was found: the training went on."""
        self.fatal.forget()
        if self._clues.size:
            self._clues = ClueScan(self._rules)

    def finish(self) -> None:
        """Look at what is held: no more comes."""
        while self._held:
            self._best = None
            self._look(self._held.popleft())

    @property
    def clue(self) -> Clue | None:
        """What explains a failure best, of the lines since the last step, else of those before it."""
        if self._best is None:
            self._best = (self._find(),)
        return self._best[0]

    @property
    def late_clue(self) -> Clue | None:
        """The same of the lines since the last step alone."""
        return first_cause(self._clues.clues(), self.first_failure)

    @property
    def first_failure(self) -> FirstFailure | None:
        """What torchrun says that failed first."""
        return self._clues.first

    @property
    def exited(self) -> Clue | None:
        """How a process ended by itself that a launcher saw fail first."""
        return self._clues.exited

    def _look(self, block: Block, every_rule: bool = True) -> None:
        lines = self._relabel(block.lines)
        block = block if lines == block.lines else make_block(lines)
        self.fatal.take(block)
        self._clues.take(block, every_rule)

    def _find(self) -> Clue | None:
        late = self.late_clue
        if late is not None and late.tier <= ERROR:
            return late
        early = ClueScan(self._rules)
        early.take(make_block(self._relabel(self._before)))
        return first_cause([clue for clue in early.clues() if _ends(clue)], self.first_failure) or late


def _ends(clue: Clue) -> bool:
    """Say whether a line before the step can have ended the training: a step came although a package was missing."""
    return clue.tier == ROOT or (clue.tier == ERROR and clue.uncaught and not clue.of_import and not clue.handled)
