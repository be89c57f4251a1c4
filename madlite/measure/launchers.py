"""What launchers report at the end: which rank failed first, how its process ended, and what it printed before.

Format: torch/distributed/elastic/multiprocessing/errors and api.py, PyTorch 1.9 to 2.13, as logs show them.  Slurm's
and MPI's messages are read for exit codes alone: a task may be a whole node, whose ranks torchrun reports.  Those of
DeepSpeed, accelerate and Ray name no rank: the command that they print is that of the process begun last.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from madlite.measure.lines import (
    EXCEPTION,
    MARK,
    TERMINATIONS,
    Block,
    is_warning,
    lines_with,
    rank_in,
    shape_of,
    signal_of,
    signal_of_code,
    without_label,
)
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
_MARKS = (
    *(_ROOT, _SHORT, _ENTRY, _SPAWN, ": Exited with exit code ", "Process name: [", ") received by PID "),
    *(
        "crashed with exit code ",
        "exits with return code = ",
        " terminated with code ",
        "MPI_ABORT was invoked on rank ",
    ),
    *("OF YOUR APPLICATION PROCESSES", "returned non-zero exit status ", "entrypoint command failed with exit code "),
)
_FAILED = re.compile(r"failed \(exitcode: (?P<code>-?\d{1,9})\) local_rank: (?P<rank>\d{1,9})")
_RANK = re.compile(r"^\s*rank\s+: (?P<rank>\d{1,9})\b")
_CODE = re.compile(r"^\s*exitcode\s+: (?P<code>-?\d{1,9})\b")
_END = re.compile(r"^\s*={5,}\s*$")
_PROCESS = re.compile(r"^\s*Process name: \[(?:\[\d{1,9},\d{1,9}\]|[\w.-]{1,200}@\d{1,9}),(?P<tasks>\d{1,9})\]")
_MPI = re.compile(
    r"^\s*Process name: \[\S{1,300},(?P<rank>\d{1,9})\]\s*$"
    r"|\bMPI_ABORT was invoked on rank (?P<rank_of_abort>\d{1,9})\b"
    r"|^=\s+RANK (?P<rank_of_hydra>\d{1,9}) PID \d"
)
_MPI_CODE = re.compile(r"^\s*Exit code:\s+(\d{1,9})\b|\bwith errorcode (\d{1,9})\b|^=\s+EXIT CODE: (\d{1,9})\b")
_MPI_BEGIN = ("Process name: [", "MPI_ABORT was invoked", "OF YOUR APPLICATION PROCESSES")
_SIGNALLED = re.compile(r"\b[Ss]ignal (?P<signal>\d{1,2}) \(SIG\w{2,9}\) received by PID \d")
_SPAWNED = re.compile(
    rf"\b(?:torch\.multiprocessing\.spawn\.)?{_SPAWN}(?P<rank>\d{{1,9}}) terminated with "
    r"(?:exit code (?P<code>[1-9]\d{0,4})|signal (?P<signal>SIG[A-Z0-9]+))"
)
# each launcher's word of one process, and where its reason is told; the first two name the rank for sure
_OF_RANK = (
    (
        re.compile(r"\bRank (?P<rank>\d{1,9}) crashed with exit code (?P<code>-?[1-9]\d{0,8})\b"),
        "composer's --stdout and --stderr keep what the ranks print",
    ),
    (
        re.compile(
            r"\[rank: (?P<rank>\d{1,9})\] Child process with PID \d{1,9} terminated with code (?P<code>-?[1-9]\d{0,8})"
        ),
        "",
    ),
)
_OF_PROCESS = (
    (
        re.compile(r"\blaunch\.py:\d{1,9}:\w{1,80}\] .{0,9000}exits with return code = (?P<code>[1-9]\d{0,8})\b"),
        "the command is that of the process begun last, whichever failed; deepspeed's --enable_each_rank_log keeps a "
        "file of each",
    ),
    (re.compile(r"entrypoint command failed with exit code (?P<code>[1-9]\d{0,8})\b"), "`ray job logs` has it all"),
    (re.compile(r"\bCalledProcessError: Command .{0,9000}returned non-zero exit status (?P<code>[1-9]\d{0,8})\b"), ""),
)
_OF_TORCHRUN = (
    "torchrun's --log-dir with --tee 3 keeps a file of each rank, and @record puts its traceback into this table"
)
_OF_SRUN = "srun's --label and --output=%t.log tell the tasks apart"
_OF_MPI = "mpirun's --tag-output tells the ranks apart"
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
    advice: str = ""  # how the launcher would keep what its processes print

    @property
    def signal(self) -> int:
        """The signal that ended it, which a shell around it passes on as an exit code; 0 where none did."""
        return signal_of_code(self.code)

    @property
    def was_terminated(self) -> bool:
        """Whether it was terminated, as processes are that did not fail."""
        return self.signal in TERMINATIONS


# What begins another job in a file that several were appended to, and by what a launcher ends one.

_JOB_ID = re.compile(r"(?:\bSLURM_JOB_?ID|\b[Jj]ob ?[Ii][Dd]|\bJOB ?ID|\bSLURM_JOBID)\s{0,4}[=:]\s{0,4}(\d{1,12})\b")
_JOB_IDS = ("JOB_ID", "JOBID", "JOB ID", "ob ID", "ob Id", "ob id", "obID", "obId", "obid")
_JOB_ENDS = (
    *("srun: error: ", "slurmstepd: error: *** ", "exits with return code = ", "composer.cli.launcher:Rank "),
    *("ChildFailedError", "noticed that process rank ", "detected that one or more processes exited", "MPI_ABORT was"),
)
_NOT_STARTED = re.compile(r"\b0/\d{1,12} \[00:00<")  # a progress bar
_ALIKE = 8  # characters by which lines of one shape differ in their length
_CALENDAR = re.compile(r"\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun|Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]{0,6}\b")


class JobScan:
    """Finds where another job begins in a log: its number is another one, or after a launcher's end its head comes.

    Its head is the log's first line again, numbers and dates apart, which came once before, or a progress bar's begin.
    """

    def __init__(self) -> None:
        self._first: str | None = None  # shape of the log's first line; "" where that is no head of a job
        self._size = 0  # of that line
        self._id = ""
        self._has_ended = False

    def find(self, block: Block) -> int | None:
        """Return the place in a block of the last line that begins another job; None where none does."""
        lines = block.lines
        if self._first is None and lines:
            head, self._size = _shape_of_head(lines[0]), len(lines[0])
            self._first, lines = head if any(map(str.isalpha, head)) else "", lines[1:]
        if not self._has_ended and not any(mark in block.text for mark in (*_JOB_ENDS, *_JOB_IDS)):
            self._look_for_head(lines)
            return None
        begins = [at for at, line in enumerate(lines, len(block.lines) - len(lines)) if self._begins(line)]
        return begins[-1] if begins else None

    def _look_for_head(self, lines: Iterable[str]) -> None:
        """Take back that the first line is a head where it comes more than once in a job."""
        if self._first and any(map(self._is_head, lines)):
            self._first = ""

    def _is_head(self, line: str) -> bool:
        """Return whether a line is the first one again; one of another length is none, as is quick to see."""
        return abs(len(line) - self._size) <= _ALIKE and _shape_of_head(line) == self._first

    def _begins(self, line: str) -> bool:
        found = _JOB_ID.search(line) if any(mark in line for mark in _JOB_IDS) else None
        another = found is not None and self._id not in ("", found[1])
        self._id = found[1] if found else self._id
        if self._has_ended:
            another = another or self._is_head(line) or _NOT_STARTED.search(line) is not None
        else:
            self._look_for_head([line])
        self._has_ended = not another and (self._has_ended or any(mark in line for mark in _JOB_ENDS))
        return another


def _shape_of_head(line: str) -> str:
    return _CALENDAR.sub("D", _shape(line))


class LauncherScan:
    """Store the first summary, of several nodes that of one whose rank was not merely terminated."""

    def __init__(self) -> None:
        self._failures: list[FirstFailure] = []  # of torchrun's tables
        self._short: FirstFailure | None = None  # torchrun's log line before its table
        self._spawned: FirstFailure | None = None  # by torch.multiprocessing
        self._of_rank: FirstFailure | None = None  # what another launcher saw of a rank that it names
        self._signalled: FirstFailure | None = None  # torchrun's word of a signal, where its table is not in the log
        self.process: FirstFailure | None = None  # what was seen of a process whose rank may be unknown
        self._mpi_rank: int | None = None  # that MPI reports in one line, and how it ended in a later one
        self._mpi_left = 0  # lines in which that is to come
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
        others = (self._short, self._spawned, self._of_rank, self._signalled)
        reported = [*self._failures, *(item for item in others if item)]
        return next((item for item in reported if not item.was_terminated), reported[0] if reported else None)

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
        if self._left or self._mpi_left or any(mark in block.text for mark in _MARKS):
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
        if self._short is None and not self._is_root:
            self._short = _seen(at, text, ((_FAILED, _OF_TORCHRUN),))
        self._take_other(at, text)
        if self._spawned is None and (found := _SPAWNED.search(line)):
            self._spawned = _of_spawned(at, line, found)
        if not self._tasks and (found := TASKS_EXITED.search(line) or _PROCESS.match(text)):
            self._tasks = found["tasks"]
            if found.re is TASKS_EXITED:
                rank = int(self._tasks) if self._tasks.isdecimal() else None
                self.task = FirstFailure(at=at, code=int(found["code"]), rank=rank, line=found[0], advice=_OF_SRUN)

    def _take_other(self, at: int, text: str) -> None:
        """Take what launchers say that print one line of it, or a few."""
        if self._of_rank is None:
            self._of_rank = _seen(at, text, _OF_RANK)
        if self._signalled is None and (found := _SIGNALLED.search(text)):
            self._signalled = FirstFailure(at=at, code=-int(found["signal"]), rank=self._rank, line=text.strip())
        if self.process is None:
            self.process = _seen(at, text, _OF_PROCESS)
        if any(mark in text for mark in _MPI_BEGIN):
            self._mpi_left, self._mpi_rank = _LONGEST, None
        if self._mpi_left:
            self._take_mpi(at, text)

    def _take_mpi(self, at: int, text: str) -> None:
        self._mpi_left -= 1
        if found := _MPI.search(text):
            self._mpi_rank = int(next(filter(None, found.groups())))
        elif (found := _MPI_CODE.search(text)) and (code := int(next(filter(None, found.groups())))):
            self._mpi_left = 0
            line = f"rank {self._mpi_rank}: {text.strip('= ')}" if self._mpi_rank is not None else text.strip("= ")
            seen = FirstFailure(at=at, code=code, rank=self._mpi_rank, line=line, advice=_OF_MPI)
            self.process = self.process or seen

    def _read_table(self, at: int, text: str) -> None:
        """Note the rank whose part of a table begins, how the first rank ended, and where the table does."""
        if found := _RANK.match(text):
            self._rank = int(found["rank"])
            if _ENTRY in text and len(self._entries) < _MOST:
                self._entries.append((at, self._rank))
                self._left = _LONGEST
        elif self._is_root and (found := _CODE.match(text)) and len(self._failures) < _MOST_FAILURES:
            code, line = int(found["code"]), text.strip()
            self._failures.append(FirstFailure(at=at, code=code, rank=self._rank, line=line, advice=_OF_TORCHRUN))
        elif self._left:
            self._left = 0 if _END.match(text) else self._left - 1
            if not self._left:
                self._is_root = False
                if self._entries and self._entries[-1][1] is not None:
                    self._entries.append((at, None))


def _seen(at: int, text: str, reports: Iterable[tuple[re.Pattern[str], str]]) -> FirstFailure | None:
    """Return what a line reports of one process that ended; None where it reports none."""
    for pattern, advice in reports:
        if found := pattern.search(text):
            groups = found.groupdict()
            rank = int(groups["rank"]) if "rank" in groups else None
            return FirstFailure(at=at, code=int(groups["code"]), rank=rank, line=text.strip(), advice=advice)
    return None


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
