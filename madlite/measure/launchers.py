"""What launchers report at the end: which rank failed first, how its process ended, and what it printed before.

Format: torch/distributed/elastic/multiprocessing/errors and api.py, PyTorch 1.9 to 2.13, as logs show them.  Slurm's
and Open MPI's messages are read for exit codes alone: a task may be a whole node, whose ranks torchrun reports.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from madlite.measure.grammar import (
    EXCEPTION,
    MARK,
    TERMINATIONS,
    is_warning,
    rank_in,
    shape_of,
    signal_of,
    signal_of_code,
    without_label,
)
from madlite.measure.lines import Block, lines_with
from madlite.measure.rules import looks_like_error
from madlite.model import Value

TASKS_EXITED = re.compile(
    r"\bsrun: error: \S{1,400}: (?P<who>tasks? (?P<tasks>[\d,-]{1,400})): Exited with exit code (?P<code>[1-9]\d{0,4})"
)
"""Slurm's word of tasks that ended by themselves."""
_ROOT = "Root Cause (first observed failure)"
_SHORT = "failed (exitcode"
_ENTRY = "(local_rank: "
_SPAWN = "ProcessExitedException: process "
_MARKS = (_ROOT, _SHORT, _ENTRY, _SPAWN, ": Exited with exit code ", "Process name: [[")
_FAILED = re.compile(r"failed \(exitcode: (?P<code>-?\d{1,9})\) local_rank: (?P<rank>\d{1,9})")
_RANK = re.compile(r"^\s*rank\s+: (?P<rank>\d{1,9})\b")
_CODE = re.compile(r"^\s*exitcode\s+: (?P<code>-?\d{1,9})\b")
_END = re.compile(r"^\s*={5,}\s*$")
_PROCESS = re.compile(r"^\s*Process name: \[\[\d{1,9},\d{1,9}\],(?P<tasks>\d{1,9})\]")
_SPAWNED = re.compile(
    rf"\b(?:torch\.multiprocessing\.spawn\.)?{_SPAWN}(?P<rank>\d{{1,9}}) terminated with "
    r"(?:exit code (?P<code>[1-9]\d{0,4})|signal (?P<signal>SIG[A-Z0-9]+))"
)
_LONGEST = 600  # lines of a part of the table, which may hold a traceback
_MOST, _MOST_FAILURES = 200, 16  # parts of tables, and the failures that they report
_BEFORE = 400  # lines before a launcher's word, in which a rank's own last words are looked for
_NUMBERS = re.compile(r"[-+]?\d[\d.,]*(?:e[-+]?\d+)?")
# torchrun's report begins with these: what follows is not output of its ranks
_TORCHRUN = re.compile(r"ChildFailedError|failed \(exitcode|Sending process \d+ closing signal")
_LOGGED = re.compile(r"\b(?:INFO|DEBUG)\b|^\s*[-=*_#~+]{5,}\s*$|^\s*\S*%\|")  # a logger's usual words, rulers, bars
_LAST = 5  # of its lines one that looks like an error is its message


class FirstFailure(Value, frozen=True):
    """The failure that a launcher saw first; `code` is negative for a signal."""

    at: int
    code: int
    rank: int | None = None
    line: str = ""
    spawned: bool = False  # by torch.multiprocessing, whose exception has no more than this

    @property
    def signal(self) -> int:
        """The signal that ended it, which a shell around it passes on as an exit code; 0 where none did."""
        return signal_of_code(self.code)

    @property
    def was_terminated(self) -> bool:
        """Whether it was terminated, as processes are that did not fail."""
        return self.signal in TERMINATIONS


class LauncherScan:
    """Store the first summary, of several nodes that of one whose rank was not merely terminated."""

    def __init__(self) -> None:
        self._failures: list[FirstFailure] = []  # of torchrun's tables
        self._short: FirstFailure | None = None  # torchrun's log line before its table
        self._spawned: FirstFailure | None = None  # by torch.multiprocessing
        self.task: FirstFailure | None = None  # what Slurm saw exit first: of several tasks at once none is the rank
        self._tasks = ""  # that Slurm or Open MPI saw exit first
        self._left = 0  # lines of an open table
        self._is_root = False  # whether its part of the first failure is open
        self._rank: int | None = None  # the rank whose part of a table is open
        self._entries: list[tuple[int, int | None]] = []  # place → the rank that the table reports from there on
        self._before: list[str] = []  # the last lines of the blocks before, until a launcher reports an end
        self._last_output: str | None = None

    @property
    def first(self) -> FirstFailure | None:
        """What the launcher reports as failed first; None without one."""
        reported = [*self._failures, *(one for one in (self._short, self._spawned) if one)]
        return next((one for one in reported if not one.was_terminated), reported[0] if reported else None)

    @property
    def last_output(self) -> str:
        """What the rank reported that the launcher saw exit first."""
        return self._last_output or ""

    def raised(self, rank: int | None) -> bool:
        """Return whether a launcher saw a rank fail first, by an exit code: of no rank whether it saw any do so."""
        if (first := self.first) is not None:
            return first.code > 0 and not first.signal and (rank is None or first.rank in (None, rank))
        return bool(self._tasks) and (rank is None or _contains_task(self._tasks, rank))

    def rank_at(self, place: int) -> int | None:
        """Return the rank that a table of torchrun reports at a place of the log; None outside of one."""
        return next((rank for at, rank in reversed(self._entries) if at <= place), None)

    def feed(self, block: Block, begin: int = 0) -> None:
        """Take lines in, which begin at a place of the log."""
        if self._left or any(mark in block.text for mark in _MARKS):
            for at, line in lines_with(block.text):
                self._take(begin + at, line)
        first = self.first or self.task
        if first is None:
            self._before = [*self._before, *block.lines[-_BEFORE:]][-_BEFORE:]
        elif self._last_output is None:
            lines = [*self._before, *block.text[: max(0, first.at - begin)].split("\n")]
            self._last_output = last_message(lines[-_BEFORE:], first.rank)

    def _take(self, at: int, line: str) -> None:
        text = without_label(line)
        if _ROOT in text:
            self._left, self._is_root, self._rank = _LONGEST, True, None
        elif self._left or _ENTRY in text:
            self._read_table(at, text)
        if self._short is None and not self._is_root and (found := _FAILED.search(text)):
            self._short = FirstFailure(at=at, code=int(found["code"]), rank=int(found["rank"]), line=text.strip())
        if self._spawned is None and (found := _SPAWNED.search(line)):
            self._spawned = _of_spawned(at, line, found)
        if not self._tasks and (found := TASKS_EXITED.search(line) or _PROCESS.match(text)):
            self._tasks = found["tasks"]
            if found.re is TASKS_EXITED:
                rank = int(self._tasks) if self._tasks.isdecimal() else None
                self.task = FirstFailure(at=at, code=int(found["code"]), rank=rank, line=found[0])

    def _read_table(self, at: int, text: str) -> None:
        """Note the rank whose part of a table begins, how the first rank ended, and where the table does."""
        if found := _RANK.match(text):
            self._rank = int(found["rank"])
            if _ENTRY in text and len(self._entries) < _MOST:
                self._entries.append((at, self._rank))
                self._left = _LONGEST
        elif self._is_root and (found := _CODE.match(text)) and len(self._failures) < _MOST_FAILURES:
            self._failures.append(FirstFailure(at=at, code=int(found["code"]), rank=self._rank, line=text.strip()))
        elif self._left:
            self._left = 0 if _END.match(text) else self._left - 1
            if not self._left:
                self._is_root = False
                if self._entries and self._entries[-1][1] is not None:
                    self._entries.append((at, None))


def last_message(lines: Sequence[str], rank: int | None) -> str:
    """Return the message of a rank that ended by itself, as with `sys.exit("why")`; "" where no last line can be one.

    Lines that name no rank can be of any.  What is repeated, numbers apart, is no message.
    """
    end = next((n for n, line in enumerate(lines) if _TORCHRUN.search(line)), len(lines))
    lines_of_ranks = [(rank_in(line), without_label(line)) for line in _without_tracebacks(lines[:end])]
    usual = Counter(_shape(text) for _, text in lines_of_ranks)
    own = [text for owner, text in lines_of_ranks if owner is not None and owner == rank]
    last_output = [
        text.strip()
        for text in own or [text for owner, text in lines_of_ranks if owner is None]
        if text.strip() and not is_warning(text) and not _LOGGED.search(text)
    ]
    errors = [text for text in last_output[-_LAST:] if looks_like_error(text)]
    return next((text for text in errors[-1:] or last_output[-1:] if usual[_shape(text)] == 1 or errors), "")


def _without_tracebacks(lines: Iterable[str]) -> Iterable[str]:
    """Yield the lines that are of no traceback."""
    begun: set[str] = set()  # labels of tracebacks whose exception has not come
    for line in lines:
        text = without_label(line)
        label = shape_of(line[: len(line) - len(text)]).rstrip()  # of a frame the label takes a blank with it
        if MARK in text:
            begun.add(label)
        elif label not in begun:
            yield line
        elif EXCEPTION.match(text):
            begun.discard(label)


def _shape(text: str) -> str:
    return _NUMBERS.sub("0", text.strip())


def _contains_task(tasks: str, rank: int) -> bool:
    """Return whether Slurm's list of tasks (`0,2-5`) holds a rank."""
    ends = (part.partition("-") for part in tasks.split(",") if part[:1].isdecimal())
    return any(int(low) <= rank <= int(high if high.isdecimal() else low) for low, _, high in ends)


def _of_spawned(at: int, line: str, found: re.Match[str]) -> FirstFailure:
    """Return how a process of torch.multiprocessing ended; its number is the rank where the line has none."""
    code, rank = int(found["code"] or -signal_of(found["signal"])), rank_in(line)
    rank = int(found["rank"]) if rank is None else rank
    return FirstFailure(at=at, code=code, rank=rank, line=found[0], spawned=True)
