"""The stacks of a run's Python processes, as py-spy shows them.

Format of `py-spy dump` (0.3 and 0.4): a head per process, `Thread 12 (idle): "MainThread"` per thread, and its frames
from the innermost on, `name (path:line)`.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from threading import Event

from madlite.model import Value
from madlite.process import capture
from madlite.run.watchdog.processes import Facts

LIMIT_S = 10.0  # of one dump
_THREAD = re.compile(r"^Thread (?:0x)?[0-9A-Fa-f]+ \([^)]*\)(?::\s*\"(?P<name>.*)\")?", re.MULTILINE)
_FRAME = re.compile(r"^ {4}(?P<name>\S.*?) \((?P<path>[^()]*?)(?::(?P<line>\d+))?\)$", re.MULTILINE)
_COMMAND = re.compile(r"^Process \d+: (?P<command>.*)$", re.MULTILINE)


class Dump(Value, frozen=True):
    """One process's stacks; `rank` "" where it has none.  Of several nodes each has its own process ids."""

    pid: int
    rank: str
    text: str
    problem: str = ""
    parent: int = 0
    local_rank: str = ""
    node: int = 0

    @property
    def command(self) -> str:
        """The command as the head of the stacks has it."""
        head = _COMMAND.search(self.text)
        return head["command"] if head else ""


class Frame(Value, frozen=True):
    """One call of a stack."""

    name: str
    path: str
    line: str = ""

    @property
    def words(self) -> str:
        """The frame as people write it."""
        return f"{self.name} ({self.path}{':' + self.line if self.line else ''})"


def find_py_spy(path: str) -> str | None:
    """Return the program: on the search path, or beside the interpreter that runs madlite."""
    beside = Path(sys.executable).with_name("py-spy")
    return shutil.which("py-spy", path=path) or (str(beside) if beside.is_file() else None)


def dump(py_spy: str, facts: Facts, limit_s: float, cancelled: Event) -> Dump:
    """Return the stacks of one process; where it cannot be paused in time, without pausing it."""
    limit_s = min(LIMIT_S, limit_s)
    ended = capture([py_spy, "dump", "--pid", str(facts.pid)], limit_s=limit_s, cancelled=cancelled)
    if ended.timed_out and not cancelled.is_set():
        command = [py_spy, "dump", "--nonblocking", "--pid", str(facts.pid)]
        ended = capture(command, limit_s=limit_s, cancelled=cancelled)
    said = ended.stderr.strip().splitlines() or ["nothing"]
    problem = "" if ended.ok else f"py-spy took more than {limit_s:g} s" if ended.timed_out else f"py-spy: {said[0]}"
    return Dump(
        pid=facts.pid,
        rank=facts.rank,
        text=ended.stdout,
        problem=problem,
        parent=facts.parent,
        local_rank=facts.local_rank,
    )


def main_frames(text: str) -> list[Frame]:
    """Return the main thread's frames, the innermost first; the first thread's where none is called so."""
    threads = list(_THREAD.finditer(text))
    chosen = next((one for one in threads if one["name"] == "MainThread"), threads[0] if threads else None)
    if chosen is None:
        return []
    end = next((one.start() for one in threads if one.start() > chosen.start()), len(text))
    found = _FRAME.finditer(text, chosen.end(), end)
    return [Frame(name=one["name"], path=one["path"], line=one["line"] or "") for one in found]
