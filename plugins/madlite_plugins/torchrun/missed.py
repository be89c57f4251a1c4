"""What a log has in place of the steps that its user's words were to read: it shows what to mend in them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

_WORDS = re.compile(r"(?i)(step|iter)|(loss)|(epoch|tokens|samples|images|tps|/s\b)")
_DIGIT = re.compile(r"[0-9]")
_SHOWN = 200  # characters of a line


class Missed:
    """Keeps the line that looks most like a step, of equal ones the first, and what groups held that was no number."""

    def __init__(self) -> None:
        self._likeness = 0
        self._nearest = ""
        self._raised = False
        self._texts: dict[str, str] = {}  # a group's first text that is no number
        self._read: set[str] = set()  # groups that gave a number somewhere

    def see(self, text: str) -> None:
        """Take a line that has no step."""
        self._raised = self._raised or "Error" in text or "Traceback" in text
        if _DIGIT.search(text):
            kinds = {found.lastindex or 0 for found in _WORDS.finditer(text)}
            similarity = sum({1: 4, 2: 4, 3: 1}.get(kind, 0) for kind in kinds)
            if similarity > max(self._likeness, 1):  # a word that is neither step nor loss says little
                self._likeness, self._nearest = similarity, text.strip()[:_SHOWN]

    def take(self, texts: Mapping[str, str], numbers: Mapping[str, float]) -> None:
        """Take what the groups of a line that matched held, and which of it were numbers."""
        self._read.update(numbers)
        for name, text in texts.items():
            if name not in numbers:
                self._texts.setdefault(name, text[:_SHOWN])

    def words(self, steps: bool, way: str) -> Iterator[str]:
        """Yield what is wrong with how the log was read: without a `step`, or with a group that was never a number.

        `way` is how a step was to be read, in words.
        """
        never = {name: text for name, text in self._texts.items() if name not in self._read}
        for name, text in never.items():
            yield f"group {name} of {way} held {text!r}, which is no number, and never one that is"
        if not steps and not never:
            near = f"; the line nearest to a step: {self._nearest}" if self._nearest else ", nor looks like a step"
            if self._nearest or not self._raised:  # a script that failed before its first step says so itself
                yield f"no line of the log matched {way}{near}"
