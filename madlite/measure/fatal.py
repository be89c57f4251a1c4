"""What ends a training for good, of the lines since its last step: no exit code shows in a log, and `tee` hides it.

What was said before a step did not end the training: Primus prints tracebacks of packages that it does without, and a
log goes on where a training was started again.
"""

from __future__ import annotations

import re

from madlite.measure.lines import Block, lines_with
from madlite.measure.rules import without_rank

# the kinds, in the order in which they explain
_MEMORY, _RAISED, _SIGNAL, _TRACEBACK, _LAUNCHER = range(5)
_MARK = "Traceback (most recent call last)"
_IGNORED = "Exception ignored"  # while the interpreter ends; its traceback comes soon
_SOON = 3  # lines, for other ranks write as well
_KINDS = (
    (_MEMORY, re.compile(r"OutOfMemoryError|(?:CUDA|HIP) out of memory|HSA_STATUS_ERROR_OUT_OF_RESOURCES")),
    (_LAUNCHER, re.compile(r"\bChildFailedError\b|\bfailed \(exitcode: -?[1-9]")),
    (_TRACEBACK, re.compile(re.escape(_MARK))),
    (
        _SIGNAL,
        re.compile(
            r"\b[Ss]ignal:? (?:6|7|8|9|11|15)\b|\bdeath signal\b|Segmentation fault"
            r"|\bSIG(?:ABRT|BUS|FPE|ILL|KILL|SEGV|TERM)\b|core dumped|\bKilled\s*$|\b\d+ Killed\b"
            r"|Memory access fault by GPU|slurmstepd: error: |HSA_STATUS_ERROR_|hipErrorIllegalAddress"
            r"|illegal memory access|Watchdog caught collective operation timeout|terminate called after throwing"
            r"|Fatal Python error|\bBus error\b|\bKeyboardInterrupt\b|\b\d+ Aborted\b"
            r"|\bTerminated\s*$|\bAborted\s*$|Exited with exit code [1-9]|exited with code [1-9]|Error: NCCL error"
        ),
    ),
)
# in one of these every line has that counts
_NEEDED = (
    *("OutOfMemoryError", "out of memory", "HSA_STATUS_ERROR", "ChildFailedError", "failed (exitcode", _MARK, _IGNORED),
    *("ignal", "SIG", "Segmentation fault", "core dumped", "Killed", "Memory access", "memory access", "slurmstepd"),
    *("HSA_STATUS", "hipError", "Watchdog", "terminate called", "Fatal Python", "Bus error", "KeyboardInt"),
    *("Aborted", "Terminated", "with exit code", "exited with code", "NCCL error"),
)
# the line that ends a traceback, also behind a logger's prefix
_EXCEPTION = re.compile(r"(?:^|[\]:] )[A-Za-z_][\w.]*(?:Error|Exception|Interrupt)(?:: |:?\s*$)")


def _may_end(text: str) -> bool:
    """Say whether a traceback can end with a line; of millions most cannot, and this is quick to see."""
    return "Error" in text or "Exception" in text or "Interrupt" in text


class FatalScan:
    """Keeps the line that explains best."""

    def __init__(self) -> None:
        self._there: set[str] = set()  # the lines of the block that hold a text that counts
        self.forget()

    def forget(self) -> None:
        """Forget all: the training went on."""
        self.line = ""
        self.launcher = ""  # the line by which a launcher says that a process of it failed
        self._best = _LAUNCHER + 1
        self._in_traceback = False
        self._ignored = 0  # of how many lines the next may begin a traceback that says nothing

    def take(self, block: Block) -> None:
        """Take lines in."""
        if self.may_be_in(block):
            for line in block.lines:
                self.feed(line)

    def may_be_in(self, block: Block) -> bool:
        """Say whether a line of the block, whose lines come next, can count: of most, none."""
        there = (text for text in _NEEDED if text in block.text)
        self._there = {line for text in there for _, line in lines_with(block.text, text)}
        return self._in_traceback or self._ignored > 0 or bool(self._there)

    def feed(self, text: str) -> None:
        """Take one line in."""
        if text not in self._there and not (self._in_traceback and _may_end(text)):
            self._ignored = max(0, self._ignored - 1)
            return
        text = without_rank(text)
        kind = next((kind for kind, pattern in _KINDS if pattern.search(text)), None)
        if kind == _TRACEBACK and self._ignored:
            kind, self._ignored = None, 0
        elif kind == _TRACEBACK:
            self._in_traceback = True
        elif kind in (None, _SIGNAL) and self._in_traceback and _EXCEPTION.search(text):
            kind, self._in_traceback = _RAISED, False
        self._ignored = _SOON if _IGNORED in text else max(0, self._ignored - 1)
        if kind is not None:
            self._note(kind, text)

    def end(self, line: str) -> None:
        """Take the line by which a launcher says that it failed."""
        self._note(_LAUNCHER, line)

    def _note(self, kind: int, line: str) -> None:
        if kind < self._best:
            self._best, self.line = kind, line
        if kind == _LAUNCHER and not self.launcher:
            self.launcher = line
