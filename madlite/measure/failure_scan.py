"""Find the line that says why a run ended."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from madlite.failure_rules import COMMON, read_failure_rules
from madlite.measure.clues import ERROR, ROOT, CandidateScan, FailureCandidate, first_cause
from madlite.measure.footer import FirstFailure
from madlite.measure.lines import Block, make_block
from madlite.measure.rules import RuleScan, without_rank
from madlite.measure.tracebacks import TracebackScan
from madlite.model import Cause, FailureRule

# What ends a training for good, of the lines since its last step: no exit code shows in a log, and `tee` hides it.
#
# What was said before a step did not end the training: Primus prints tracebacks of packages that it does without, and
# a log goes on where a training was started again.  The patterns are those failure rules that say whose end a line
# shows.

# the kinds, in the order in which they explain
_MEMORY, _RAISED, _PROCESS, _TRACEBACK, _LAUNCHER = range(5)


class FatalScan:
    """Keeps the line that explains best; without rules that show an end it goes by the common ones."""

    def __init__(self, rules: Iterable[FailureRule] = ()) -> None:
        told = [rule for rule in rules if rule.ends]
        self._rules = RuleScan(told or [rule for rule in read_failure_rules(COMMON) if rule.ends])
        self._size = 0  # characters taken in
        self._launcher = ""  # what a reader took for a launcher's word
        self._tracebacks = TracebackScan()
        self._best: tuple[int, str] | None = None
        self._said = ""  # by a launcher

    def forget(self) -> None:
        """Forget all: the training went on."""
        if self._size or self._launcher:  # not at each of millions of steps
            self._rules.clear()
            self._launcher, self._tracebacks, self._best, self._size = "", TracebackScan(), None, 0

    def take(self, block: Block) -> None:
        """Take lines in."""
        self._rules.feed(block, self._size)
        self._tracebacks.feed(block, self._size)
        self._size += len(block.text) + 1
        self._best = None

    def end(self, line: str) -> None:
        """Take the line by which a launcher says that it failed."""
        self._launcher = self._launcher or line
        self._best = None

    @property
    def line(self) -> str:
        """The line that explains best, "" where none shows an end."""
        return self._find()[1]

    @property
    def launcher(self) -> str:
        """The line by which a launcher says that a process of it failed."""
        self._find()
        return self._said

    def _find(self) -> tuple[int, str]:
        """Return the kind and the line that explains best; of one kind the first counts."""
        if self._best is None:
            none = self._tracebacks.code | self._tracebacks.aside
            found = [(_kind(hit.rule), hit.line) for hit in self._rules.hits() if hit.at not in none]
            if self._tracebacks.raised:
                found.append((_RAISED, self._tracebacks.raised[0].line))
            elif self._tracebacks.begun:
                found.append((_TRACEBACK, without_rank(self._tracebacks.begun)))
            said = next((line for kind, line in found if kind == _LAUNCHER), "")
            self._said = self._launcher or said
            if self._said:
                found.append((_LAUNCHER, self._said))
            self._best = min(found, key=_rank, default=(_LAUNCHER + 1, ""))
        return self._best


def _kind(rule: FailureRule) -> int:
    if rule.ends == "launcher":
        return _LAUNCHER
    return _MEMORY if rule.cause == Cause.GPU_MEMORY.value else _PROCESS


def _rank(found: tuple[int, str]) -> int:
    return found[0]


# The end of a log: its lines since the last training step, and what in them explains a failure.
#
# They are asked once the log is finished; a step that follows makes them none.  Of lines before the step the last few
# hundred are kept: a program may write its steps later than its errors, for its stdout is buffered.  A log without
# steps can be long: of it the first and the last megabytes are asked about all rules, what is between for exceptions
# alone.

_HELD = 4 * 1024 * 1024  # characters that wait for the log's end
_ASKED = _HELD  # characters at the begin of a log without steps that are asked about every rule too
_KEPT = 400  # lines before the step


class FailureScan:
    """Holds the lines since the last training step; `relabel` puts their ranks' labels in one form."""

    def __init__(self, rules: Iterable[FailureRule], relabel: Callable[[Iterable[str]], list[str]] = list) -> None:
        self._relabel = relabel
        self._rules = tuple(rules)
        self.fatal = FatalScan(self._rules)
        self._clues = CandidateScan(self._rules)
        self._held: deque[Block] = deque()
        self._before: deque[str] = deque(maxlen=_KEPT)
        self._best: tuple[FailureCandidate | None] | None = None  # once somebody asked

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
            self._clues = CandidateScan(self._rules)

    def finish(self) -> None:
        """Look at what is held: no more comes."""
        while self._held:
            self._best = None
            self._look(self._held.popleft())

    @property
    def clue(self) -> FailureCandidate | None:
        """What explains a failure best, of the lines since the last step, else of those before it."""
        if self._best is None:
            self._best = (self._find(),)
        return self._best[0]

    @property
    def late_clue(self) -> FailureCandidate | None:
        """The same of the lines since the last step alone."""
        return first_cause(self._clues.clues(), self.first_failure)

    @property
    def first_failure(self) -> FirstFailure | None:
        """What torchrun says that failed first."""
        return self._clues.first

    @property
    def exited(self) -> FailureCandidate | None:
        """How a process ended by itself that a launcher saw fail first."""
        return self._clues.exited

    def _look(self, block: Block, every_rule: bool = True) -> None:
        lines = self._relabel(block.lines)
        block = block if lines == block.lines else make_block(lines)
        self.fatal.take(block)
        self._clues.take(block, every_rule)

    def _find(self) -> FailureCandidate | None:
        late = self.late_clue
        if late is not None and late.tier <= ERROR:
            return late
        early = CandidateScan(self._rules)
        early.take(make_block(self._relabel(self._before)))
        return first_cause([clue for clue in early.clues() if _ends(clue)], self.first_failure) or late


def _ends(clue: FailureCandidate) -> bool:
    """Say whether a line before the step can have ended the training: a step came although a package was missing."""
    return clue.tier == ROOT or (clue.tier == ERROR and clue.uncaught and not clue.of_import and not clue.handled)
