"""How the lines of a log are built: what launchers and loggers put before them, and Python's tracebacks.

One place for what several rooms look for.  Sources: docs.python.org, library/traceback; torchrun's `[rank0]:` and
`[default0]:`, Primus's `[rank-0/8]`, Open MPI's `--tag-output` (`[1,5]<stderr>:`) and Slurm's `srun --label` (`5: `).
"""

from __future__ import annotations

import re
import signal
from functools import cache

from madlite.rank_labels import CLOCK, LABEL, rank_of

MARK = "Traceback (most recent call last)"
EXIT_BARRIER = "Error waiting on exit barrier"
"""torchrun's agent logs it where another node was gone first: its own ranks had come to their end."""
ASIDE = ("Exception ignored", "Exception in thread", "--- Logging error ---", "Error in atexit", EXIT_BARRIER)
"""What comes before a traceback that ends nothing."""
HANDLING = "During handling of the above exception, another exception occurred"
"""Comes between the tracebacks of an exception that was handled and of the one that came out of it."""
CAUSED = "The above exception was the direct cause of the following exception"
"""Comes between the tracebacks of an exception and of the one that was made of it."""
_HEAD = 200  # characters in which what a launcher puts before a line is looked for

_LOGGED = re.compile(r"^.*?\[rank-\d+/\d+\]\s*\[\w+\s*\]\s+\[[^\]]*:\d+\]\s?: ?")  # Primus's logger
_TIME = re.compile(CLOCK)
_EXIT_REPORT = re.compile(
    r"\bsrun: error: \S+: task (\d{1,9}): |\bprocess rank (\d{1,9}) with PID\b"
)  # Slurm's, Open MPI's
_TASK = re.compile(rf"^(?:{CLOCK}\s+)?(\d{{1,5}}): ")

_WARNING = re.compile(
    r"(?<!CCL )\bWARN(?:ING)?\b|\b\w*[Ww]arning: |\[W\d{3,4} |\[W\] |(?:^|[\]>:] ?)W\d{4} \d\d:"
    r"|\bwas not called before\b"
)

_NAME = r"(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*"
EXCEPTION = re.compile(
    rf"^(?:{_NAME}(?:Error|Exception|Interrupt|Exit|Iteration|Warning|Timeout|Failure)|Exception"
    r"|(?:[A-Za-z_]\w*\.)+(?:[A-Z]\w*|error))"
    r"(?:: |:?\s*$)"
)
"""The line that ends a traceback, without what is put before it."""


def is_warning(line: str) -> bool:
    """Return whether a line is a warning by its own words, as loggers and Python's `warnings` mark them."""
    return _WARNING.search(line) is not None


def without_label(line: str) -> str:
    """Return a line as its process wrote it, without what a launcher put before it."""
    return LABEL.sub("", line)


def without_logger(line: str) -> str:
    """Return a line without what Primus's logger put before it."""
    return _LOGGED.sub("", line)


def rank_in(line: str) -> int | None:
    """Return the rank that the beginning of a line names, or of which Slurm or Open MPI reports how it ended."""
    rank = rank_of(line)
    if rank is None and (found := _EXIT_REPORT.search(line, 0, _HEAD)):
        return int(found[1] or found[2])
    return rank


def rank_of_task(label: str) -> int | None:
    """Return the rank of `srun --label`, which is a number and nothing else: sure where every line has it."""
    found = _TASK.match(label)
    return int(found[1]) if found else None


def shape_of(label: str) -> str:
    """Return what stays the same of a label from one line to the next: all but the time."""
    return _TIME.sub("@", label)


def pattern_of(label: str) -> re.Pattern[str]:
    """Return what matches a label before another line, at another time."""
    return re.compile(CLOCK.join(map(re.escape, _TIME.split(label))))


# What a signal that ended a process means, however it is named: by number, by name, or as the C library spells it.

CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT, signal.SIGTRAP, signal.SIGSYS)
"""What a process does to itself, in native code."""
TERMINATIONS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""How a launcher, a scheduler or a user ends those that did not fail."""
_SHELL = 128  # a shell's exit code for a signal is this and its number
_MOST = 64  # Linux has no signal beyond
_CRASHED = "native code crashed: the lines above may name the library; PYTHONFAULTHANDLER=1 shows where"
_ASKED: dict[int, str] = {
    signal.SIGTERM: "by the scheduler (its time limit, a preemption, scancel), a user, or its launcher where another "
    "rank or node failed before",
    signal.SIGINT: "Ctrl-C, or whatever runs the job",
    signal.SIGHUP: "the terminal or ssh connection that it was started from was closed; nohup, tmux or sbatch keep it "
    "going",
}
_SIGNAL_TEXTS: dict[int, str] = {
    signal.SIGBUS: f"{_CRASHED}; a file mapped into memory ends so too where its disk, as /dev/shm, is full: "
    "df -h /dev/shm; in a container --shm-size or --ipc=host gives more",
    signal.SIGXCPU: "its limit of processor time was over (ulimit -t)",
    signal.SIGXFSZ: "a file became larger than its limit (ulimit -f)",
    signal.SIGPIPE: "the reader of its output was gone",
}


def signal_name(number: int) -> str:
    """Return a signal's name, SIGKILL for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def signal_text(number: int) -> str:
    """Return how a process ended by a signal: SIGSEGV and its like are what it did itself."""
    return f"crashed by signal {number}" if number in CRASHES else f"killed by signal {number}"


def signal_meaning(number: int) -> str:
    """Return what a signal means, and what to do; SIGKILL is handled elsewhere."""
    if number in TERMINATIONS:
        return f"it was asked to end by a signal: {_ASKED[number]}"
    return _SIGNAL_TEXTS.get(
        number, _CRASHED if number in CRASHES else "it was sent from outside, or the process ended itself"
    )


def signal_of_code(code: int | None) -> int:
    """Return the signal that an exit code stands for, 0 where it stands for none."""
    if code is None:
        return 0
    number = -code if code < 0 else code - _SHELL
    return number if 0 < number <= _MOST else 0


def signal_of(text: str) -> int:
    """Return the signal that a text names, as `SIGSEGV`, `11`, `139` or `Segmentation fault`; 0 where it names none."""
    if text.isdecimal():
        number = int(text[:9])
        return number if number <= _MOST else signal_of_code(number)
    return _signal_numbers().get(text, 0)


@cache
def _signal_numbers() -> dict[str, int]:
    """Return numbers by name and by the words of strsignal(3), which shells and Slurm print."""
    named = {one.name: one.value for one in signal.Signals}
    return {**named, **{words: int(one) for one in signal.valid_signals() if (words := signal.strsignal(one))}}
