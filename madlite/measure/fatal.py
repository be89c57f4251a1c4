"""What ends a training for good, of the lines since its last step: no exit code shows in a log, and `tee` hides it.

What was said before a step did not end the training: Primus prints tracebacks of packages that it does without, and a
log goes on where a training was started again.
"""

from __future__ import annotations

import re

from madlite.measure.grammar import OUT_OF_MEMORY, WATCHERS
from madlite.measure.lines import Block, lines_with
from madlite.measure.rules import without_rank
from madlite.measure.tracebacks import TracebackScan

# the kinds, in the order in which they explain
_MEMORY, _RAISED, _SIGNAL, _TRACEBACK, _LAUNCHER = range(5)
_KINDS = (
    (_MEMORY, OUT_OF_MEMORY),
    (
        _LAUNCHER,  # torchrun's, Slurm's, DeepSpeed's, Open MPI's and Hydra's
        re.compile(
            r"\bChildFailedError\b|\bfailed \(exitcode: -?[1-9]"
            r"|\bsrun: error: .*\b(?:Exited with exit code [1-9]|Killed|Terminated|Aborted|Segmentation fault)"
            r"|\bsrun: error: .*\b(?:Bus error|Out Of Memory)"
            r"|\blaunch\.py:\d+:\w+\] .*exits with return code = -?[1-9]"
            r"|\bmpi(?:run|exec) (?:detected|noticed) that .*(?:non-zero status|exited on signal [1-9])"
        ),
    ),
    (
        _SIGNAL,
        re.compile(
            r"\b[Ss]ignal:? (?:6|7|8|9|11|15)\b|\bdeath signal\b|Segmentation fault"
            # not what a program sends to others, nor the names of signals that it will catch
            r"|(?<![Ss]ending )\bSIG(?:ABRT|BUS|FPE|ILL|KILL|SEGV|TERM)\b(?!=|\s+handler)"
            r"|core dumped|\bKilled\s*$"
            rf"|\b\d+ (?:Killed|Aborted)\b(?!\s+{WATCHERS})"
            r"|Memory access fault by GPU|slurmstepd: error: |HSA_STATUS_ERROR_|hipErrorIllegalAddress"
            r"|illegal memory access|Watchdog caught collective operation timeout|terminate called after throwing"
            r"|Fatal Python error|\bBus error\b|\bKeyboardInterrupt\b"
            r"|\bTerminated\s*$|\bAborted\s*$|Exited with exit code [1-9]|exited with code [1-9]|Error: NCCL error"
        ),
    ),
)
# in one of these every line has that counts
_NEEDED = (
    *("OutOfMemoryError", "out of memory", "HSA_STATUS_ERROR", "ChildFailedError", "failed (exitcode"),
    *("ignal", "SIG", "Segmentation fault", "core dumped", "Killed", "Memory access", "memory access", "slurmstepd"),
    *("HSA_STATUS", "hipError", "Watchdog", "terminate called", "Fatal Python", "Bus error", "KeyboardInt"),
    *("Aborted", "Terminated", "with exit code", "exited with code", "NCCL error"),
    *("srun: error", "exits with return code", "mpirun ", "mpiexec "),
)


class FatalScan:
    """Keeps the line that explains best."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Forget all: the training went on."""
        self.line = ""
        self.launcher = ""  # the line by which a launcher says that a process of it failed
        self._best = _LAUNCHER + 1
        self._tracebacks = TracebackScan()

    def take(self, block: Block) -> None:
        """Take lines in; of most blocks none can count, which is quick to see."""
        there = [text for text in _NEEDED if text in block.text]
        if there:
            found = {at: line for text in there for at, line in lines_with(block.text, text)}
            for _, line in sorted(found.items()):
                self._read(line)
        self._tracebacks.feed(block)
        if self._tracebacks.raised:
            self._note(_RAISED, self._tracebacks.raised[0].line)
        elif self._tracebacks.begun:
            self._note(_TRACEBACK, without_rank(self._tracebacks.begun))

    def end(self, line: str) -> None:
        """Take the line by which a launcher says that it failed."""
        self._note(_LAUNCHER, line)

    def _read(self, line: str) -> None:
        text = without_rank(line)
        kind = next((kind for kind, pattern in _KINDS if pattern.search(text)), None)
        if kind is not None:
            self._note(kind, text)

    def _note(self, kind: int, line: str) -> None:
        if kind < self._best:
            self._best, self.line = kind, line
        if kind == _LAUNCHER and not self.launcher:
            self.launcher = line
