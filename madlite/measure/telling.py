"""The last lines of a log, and which of them tells best why it ended where no failure rule does."""

from __future__ import annotations

import re
from collections import deque

from madlite.measure.grammar import is_warning
from madlite.measure.lines import Block
from madlite.measure.rules import plain

_TELLING = re.compile(
    r"\b\w*(?:Error|Exception)\b:|\berror:|\bfatal:|out of memory|(?<!-smi: )not found|No such file", re.IGNORECASE
)
# torchrun's own footer says that a rank failed, not why
_FOOTER = re.compile(r"ChildFailedError|elastic\.multiprocessing|exitcode\s*:|error_file:|traceback : ")
_RULED = re.compile(r"[-=*_#~+]{5,}\s*$")  # a line of them says nothing
_KEPT = 400


def looks_like_error(line: str) -> bool:
    """Say whether a line says that something failed, and no launcher's table that a rank did."""
    return _TELLING.search(line) is not None and not _FOOTER.search(line)


class LastLines:
    """Keeps the last lines, and that of the last training step, which stays when it is long ago."""

    def __init__(self) -> None:
        self.step_line = ""
        self._kept: deque[str] = deque(maxlen=_KEPT)
        self._since = 0  # lines since the last training step

    def add(self, block: Block) -> None:
        """Take lines in."""
        self._kept.extend(block.lines[-_KEPT:])
        self._since += len(block.lines)

    def step(self, block: Block, place: int) -> None:
        """Note that a line of the block that came last is that of the last training step."""
        self.step_line, self._since = block.lines[place], len(block.lines) - place - 1

    @property
    def all(self) -> list[str]:
        """All lines that are kept; another thread may ask."""
        return list(self._kept)

    @property
    def telling(self) -> str:
        """The last line since the step that looks like an error; a warning is none."""
        looks = (text for text in self._late() if looks_like_error(text))
        return plain(next((text for text in looks if not is_warning(text)), ""))

    @property
    def last(self) -> str:
        """The last line since the step that says something, else the step's own."""
        words = (text for text in self._late() if not _RULED.search(text) and not is_warning(text))
        return plain(next(words, "") or self.step_line or next(iter(self.all[-1:]), ""))

    def _late(self) -> list[str]:
        """Return the lines since the step, the last one first."""
        return self.all[-self._since :][::-1] if self._since else []
