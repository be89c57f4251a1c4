"""What ends a training for good, of the lines since its last step: no exit code shows in a log, and `tee` hides it.

What was said before a step did not end the training: Primus prints tracebacks of packages that it does without, and a
log goes on where a training was started again.  The patterns are those failure rules that say whose end a line shows.
"""

from __future__ import annotations

from collections.abc import Iterable

from madlite.failure_rules import COMMON, read_failure_rules
from madlite.measure.lines import Block
from madlite.measure.rules import RuleScan, without_rank
from madlite.measure.tracebacks import TracebackScan
from madlite.model import Cause, FailureRule

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
