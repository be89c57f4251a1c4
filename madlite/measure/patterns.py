"""Looks for error patterns in a script's output, a line at a time: MAD's net for scripts that hide their failure.

Rule: madengine 2's, a line with a pattern and without harmless text; harmless too is a line of rocprofv3, whose `E` and
`W` with the date are levels of its log and no errors of the workload.
"""

from __future__ import annotations

import re

from madlite.types import ErrorScan, Line

_ROCPROF = re.compile(r"^(?:\[\S+?\]:?\s*)?[EW]\d{8}\b.*(?:generateRocpd|simple_timer|tool)\.cpp|\[rocprofv3\]")


class PatternScan:
    """Keeps the first line of each pattern; a log can have millions, and a clean one costs a search per pattern."""

    def __init__(self, scan: ErrorScan) -> None:
        self.found: dict[str, str] = {}  # pattern → line, in the order of the log
        self._scan = scan

    def feed(self, line: Line) -> None:
        """Take one line in; of several patterns in it the first of the list counts."""
        text = line.text
        for pattern in self._scan.patterns:
            if pattern in text:
                if pattern not in self.found and not self._is_harmless(text):
                    self.found[pattern] = text.strip()
                return

    def _is_harmless(self, text: str) -> bool:
        return any(benign in text for benign in self._scan.benign) or _ROCPROF.search(text) is not None
