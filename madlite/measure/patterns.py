"""Looks for error patterns in a script's output, a line at a time: MAD's net for scripts that hide their failure.

Rule: madengine 2's, a line with a pattern and without harmless text; harmless too is a line of rocprofv3, whose `E` and
`W` with the date are levels of its log and no errors of the workload.
"""

from __future__ import annotations

import re

from madlite.measure.lines import Block
from madlite.model import ErrorScan

_ROCPROF = re.compile(r"^(?:\[\S+?\]:?\s*)?[EW]\d{8}\b.*(?:generateRocpd|simple_timer|tool)\.cpp|\[rocprofv3\]")


class PatternScan:
    """Keeps the first line of each pattern; lines that came together are asked about only where one of them has one."""

    def __init__(self, scan: ErrorScan) -> None:
        self.found: dict[str, str] = {}  # pattern → line, in the order of the log
        self._scan = scan

    def feed(self, block: Block) -> None:
        """Take lines in; of several patterns in a line the first of the list counts."""
        there = [pattern for pattern in self._scan.patterns if pattern in block.text]
        if all(pattern in self.found for pattern in there):
            return
        for line in block.lines:
            pattern = next((pattern for pattern in there if pattern in line), None)
            if pattern is not None and pattern not in self.found and not self._is_harmless(line):
                self.found[pattern] = line.strip()

    def _is_harmless(self, text: str) -> bool:
        return any(benign in text for benign in self._scan.benign) or _ROCPROF.search(text) is not None
