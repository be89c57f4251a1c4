"""What launchers say at the end: which rank failed first, and how its process ended.

Format: torch/distributed/elastic/multiprocessing/errors and api.py, PyTorch 1.9 to 2.13, as logs show them.  Slurm's
and Open MPI's words are asked for exit codes alone: a task may be a whole node, whose ranks torchrun tells.
"""

from __future__ import annotations

import re
import signal

from madlite.measure.grammar import without_label
from madlite.measure.lines import Block, lines_with
from madlite.types import Value

_ROOT = "Root Cause"
_SHORT = "failed (exitcode"
_FAILED = re.compile(r"failed \(exitcode: (?P<code>-?\d{1,9})\) local_rank: (?P<rank>\d{1,9})")
_RANK = re.compile(r"^\s*rank\s+: (?P<rank>\d{1,9})\b")
_CODE = re.compile(r"^\s*exitcode\s+: (?P<code>-?\d{1,9})\b")
_END = re.compile(r"^\s*={5,}\s*$")
_EXITED = (": Exited with exit code ", "Process name: [[")
_TASKS = re.compile(r"\bsrun: error: \S+: tasks? (?P<tasks>[\d,-]{1,400}): Exited with exit code [1-9]")
_PROCESS = re.compile(r"^\s*Process name: \[\[\d{1,9},\d{1,9}\],(?P<tasks>\d{1,9})\]")
_LONGEST = 600  # lines of the table's last part, which may hold a traceback
_TOLD = (-signal.SIGTERM, -signal.SIGINT)  # how a launcher ends the ranks that did not fail


class FirstFailure(Value, frozen=True):
    """The failure that a launcher saw first; `code` is negative for a signal."""

    at: int
    code: int
    rank: int | None = None
    line: str = ""

    @property
    def was_told(self) -> bool:
        """Whether it was told to end, as those are that did not fail."""
        return self.code in _TOLD


class FooterScan:
    """Keeps the first table, of several nodes that of one which was not merely told to end."""

    def __init__(self) -> None:
        self._tables: list[FirstFailure] = []
        self._short: FirstFailure | None = None
        self._left = 0  # lines of an open table
        self._rank: int | None = None
        self._tasks = ""  # that Slurm or Open MPI saw exit first

    def raised(self, rank: int | None) -> bool:
        """Say whether a launcher saw a rank fail first, by an exit code: of no rank whether it saw any do so."""
        if (first := self.first) is not None:
            return first.code > 0 and (rank is None or first.rank in (None, rank))
        return bool(self._tasks) and (rank is None or _holds(self._tasks, rank))

    @property
    def first(self) -> FirstFailure | None:
        """What the launcher says failed first; None where no launcher says so."""
        told = [*self._tables, *([self._short] if self._short else [])]
        return next((one for one in told if not one.was_told), told[0] if told else None)

    def feed(self, block: Block, begin: int = 0) -> None:
        """Take lines in, which begin at a place of the log."""
        if self._left or _ROOT in block.text or _SHORT in block.text:
            for at, line in lines_with(block.text):
                self._take(begin + at, line)
        if not self._tasks:
            lines = (line for needed in _EXITED if needed in block.text for _, line in lines_with(block.text, needed))
            found = (_TASKS.search(line) or _PROCESS.match(without_label(line)) for line in lines)
            self._tasks = next((one["tasks"] for one in found if one), "")

    def _take(self, at: int, line: str) -> None:
        text = without_label(line)
        if _ROOT in text and "first observed failure" in text:
            self._left, self._rank = _LONGEST, None
        elif self._left:
            self._left = 0 if _END.match(text) else self._left - 1
            self._read(at, text)
        elif self._short is None and (found := _FAILED.search(text)):
            self._short = FirstFailure(at=at, code=int(found["code"]), rank=int(found["rank"]), line=text.strip())

    def _read(self, at: int, text: str) -> None:
        if found := _RANK.match(text):
            self._rank = int(found["rank"])
        elif found := _CODE.match(text):
            self._tables.append(FirstFailure(at=at, code=int(found["code"]), rank=self._rank, line=text.strip()))
            del self._tables[16:]


def _holds(tasks: str, rank: int) -> bool:
    """Say whether Slurm's list of tasks (`0,2-5`) holds a rank."""
    ends = (part.partition("-") for part in tasks.split(",") if part[:1].isdecimal())
    return any(int(low) <= rank <= int(high if high.isdecimal() else low) for low, _, high in ends)


def signal_name(number: int) -> str:
    """Return a signal's name, SIGKILL for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
