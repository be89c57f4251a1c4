"""How the lines of a log are built: what launchers and loggers put before them, and Python's tracebacks.

One place for what several rooms look for.  Sources: docs.python.org, library/traceback; torchrun's `[rank0]:` and
`[default0]:`, Primus's `[rank-0/8]`, Open MPI's `--tag-output` (`[1,5]<stderr>:`) and Slurm's `srun --label` (`5: `).
"""

from __future__ import annotations

import re

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
_SAID = re.compile(r"\bsrun: error: \S+: task (\d{1,9}): |\bprocess rank (\d{1,9}) with PID\b")  # Slurm's, Open MPI's
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
    """Say whether a line is a warning by its own words, as loggers and Python's `warnings` mark them."""
    return _WARNING.search(line) is not None


def without_label(line: str) -> str:
    """Return a line as its process wrote it, without what a launcher put before it."""
    return LABEL.sub("", line)


def without_logger(line: str) -> str:
    """Return a line without what Primus's logger put before it."""
    return _LOGGED.sub("", line)


def rank_in(line: str) -> int | None:
    """Return the rank that the beginning of a line names, or of which Slurm or Open MPI says how it ended."""
    rank = rank_of(line)
    if rank is None and (found := _SAID.search(line, 0, _HEAD)):
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
