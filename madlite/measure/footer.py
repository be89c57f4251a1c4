"""torchrun's table of failures: which rank failed first, and how its process ended.

Format: torch/distributed/elastic/multiprocessing/errors and api.py, PyTorch 1.9 to 2.13, as logs show them.
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


def signal_name(number: int) -> str:
    """Return a signal's name, SIGKILL for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
