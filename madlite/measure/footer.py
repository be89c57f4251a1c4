"""What launchers say at the end: which rank failed first, and how its process ended.

Format: torch/distributed/elastic/multiprocessing/errors and api.py, PyTorch 1.9 to 2.13, as logs show them.  Slurm's
and Open MPI's words are asked for exit codes alone: a task may be a whole node, whose ranks torchrun tells.
"""

from __future__ import annotations

import re

from madlite.measure.grammar import TOLD, rank_in, signal_of, signal_of_code, without_label
from madlite.measure.lines import Block, lines_with
from madlite.model import Value

_ROOT = "Root Cause"
_SHORT = "failed (exitcode"
_ENTRY = "(local_rank: "
_FAILED = re.compile(r"failed \(exitcode: (?P<code>-?\d{1,9})\) local_rank: (?P<rank>\d{1,9})")
_RANK = re.compile(r"^\s*rank\s+: (?P<rank>\d{1,9})\b")
_CODE = re.compile(r"^\s*exitcode\s+: (?P<code>-?\d{1,9})\b")
_END = re.compile(r"^\s*={5,}\s*$")
_EXITED = (": Exited with exit code ", "Process name: [[")
_TASKS = re.compile(
    r"\bsrun: error: \S{1,400}: tasks? (?P<tasks>[\d,-]{1,400}): Exited with exit code (?P<code>[1-9]\d{0,4})"
)
_PROCESS = re.compile(r"^\s*Process name: \[\[\d{1,9},\d{1,9}\],(?P<tasks>\d{1,9})\]")
_SPAWN = "ProcessExitedException: process "
_SPAWNED = re.compile(
    rf"\b(?:torch\.multiprocessing\.spawn\.)?{_SPAWN}(?P<rank>\d{{1,9}}) terminated with "
    r"(?:exit code (?P<code>[1-9]\d{0,4})|signal (?P<signal>SIG[A-Z0-9]+))"
)
_LONGEST = 600  # lines of a part of the table, which may hold a traceback
_MOST = 200  # parts of tables


class FirstFailure(Value, frozen=True):
    """The failure that a launcher saw first; `code` is negative for a signal."""

    at: int
    code: int
    rank: int | None = None
    line: str = ""
    spawned: bool = False  # by torch.multiprocessing, whose exception says no more than this

    @property
    def signal(self) -> int:
        """The signal that ended it, which a shell around it passes on as an exit code; 0 where none did."""
        return signal_of_code(self.code)

    @property
    def was_told(self) -> bool:
        """Whether it was told to end, as those are that did not fail."""
        return self.signal in TOLD


class LauncherScan:
    """Keeps the first table, of several nodes that of one which was not merely told to end."""

    def __init__(self) -> None:
        self._tables: list[FirstFailure] = []
        self._short: FirstFailure | None = None
        self._spawned: FirstFailure | None = None  # by torch.multiprocessing
        self._left = 0  # lines of an open table
        self._rank: int | None = None
        self.task: FirstFailure | None = None  # what Slurm saw exit first: of several tasks at once none is the rank
        self._tasks = ""  # that Slurm or Open MPI saw exit first
        self._entries: list[tuple[int, int | None]] = []  # place → the rank that the table tells of from there on
        self._open = 0  # lines of an open entry

    def raised(self, rank: int | None) -> bool:
        """Say whether a launcher saw a rank fail first, by an exit code: of no rank whether it saw any do so."""
        if (first := self.first) is not None:
            return first.code > 0 and not first.signal and (rank is None or first.rank in (None, rank))
        return bool(self._tasks) and (rank is None or _holds(self._tasks, rank))

    @property
    def first(self) -> FirstFailure | None:
        """What the launcher says failed first; None where no launcher says so."""
        told = [*self._tables, *(one for one in (self._short, self._spawned) if one)]
        return next((one for one in told if not one.was_told), told[0] if told else None)

    def rank_at(self, place: int) -> int | None:
        """Return the rank that a table of torchrun tells of at a place of the log; None outside of one."""
        return next((rank for at, rank in reversed(self._entries) if at <= place), None)

    def feed(self, block: Block, begin: int = 0) -> None:
        """Take lines in, which begin at a place of the log."""
        if self._open or _ENTRY in block.text:
            for at, line in lines_with(block.text):
                self._note_entry(begin + at, without_label(line))
        if self._left or _ROOT in block.text or _SHORT in block.text:
            for at, line in lines_with(block.text):
                self._take(begin + at, line)
        if self._spawned is None and _SPAWN in block.text:
            found = ((at, line, _SPAWNED.search(line)) for at, line in lines_with(block.text, _SPAWN))
            self._spawned = next((_of_spawned(begin + at, line, one) for at, line, one in found if one), None)
        if not self._tasks:
            self._note_tasks(block, begin)

    def _note_tasks(self, block: Block, begin: int) -> None:
        """Note which tasks Slurm or Open MPI saw exit first."""
        lines = [one for needed in _EXITED if needed in block.text for one in lines_with(block.text, needed)]
        found = (_TASKS.search(line) or _PROCESS.match(without_label(line)) for _, line in lines)
        self._tasks = next((one["tasks"] for one in found if one), "")
        told = [(at, one) for at, line in lines if (one := _TASKS.search(line))]
        if told and told[0][1]["tasks"] == self._tasks:
            at, one = told[0]
            rank = int(one["tasks"]) if one["tasks"].isdecimal() else None
            self.task = FirstFailure(at=begin + at, code=int(one["code"]), rank=rank, line=one[0])

    def _note_entry(self, at: int, text: str) -> None:
        """Note whose part of a table begins here, or that it ends."""
        if _ENTRY in text and (found := _RANK.match(text)) and len(self._entries) < _MOST:
            self._entries.append((at, int(found["rank"])))
            self._open = _LONGEST
        elif self._open:
            self._open = 0 if _END.match(text) else self._open - 1
            if not self._open:
                self._entries.append((at, None))

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


def _of_spawned(at: int, line: str, found: re.Match[str]) -> FirstFailure:
    """Return how a process of torch.multiprocessing ended; its number is the rank where the line has none."""
    code, rank = int(found["code"] or -signal_of(found["signal"])), rank_in(line)
    return FirstFailure(
        at=at, code=code, rank=int(found["rank"]) if rank is None else rank, line=found[0], spawned=True
    )
