"""Looks for lines by which memory ran short: an allocation failed, or succeeded only after the cache was freed.

Sources of the formats: torch (`CUDA out of memory`, the table of `memory_summary`), torchtitan (`N CUDA memory
allocation retries.`, `N CUDA OOM errors thrown.`), DeepSpeed (`N pytorch allocator cache flushes since last step`).
"""

from __future__ import annotations

import re

from madlite.measure.grammar import OUT_OF_MEMORY
from madlite.measure.lines import Block, lines_with
from madlite.measure.rules import without_rank

# each with a text that its lines have; most blocks of lines hold none of them, which is quick to see
_OUT = (
    *((text, OUT_OF_MEMORY) for text in ("OutOfMemoryError", "out of memory", "HSA_STATUS_ERROR_OUT_OF_RESOURCES")),
    (
        "out of memory",
        re.compile(r"\b(?:CUDA|HIP|ROCm|XPU) out of memory\b.{0,80}\b(?:retry|retried|skipp|trying again)"),
    ),
    ("OOM", re.compile(r"\b[1-9]\d* [A-Z]+ OOM errors thrown|\bCUDA OOMs: [1-9]")),
)
_RETRIED = (
    (" retries", re.compile(r"\b[1-9]\d* [A-Z]+ memory allocation retries|\bcudaMalloc retries: [1-9]")),
    ("allocator cache flushes", re.compile(r"\b[1-9]\d* pytorch allocator cache flushes since last step")),
)
_LONGEST = 300  # characters of such a line that are kept


class MemoryMarks:
    """Keeps the last line of each kind: counters in them only grow."""

    def __init__(self) -> None:
        self.out = ""  # by which memory ran out
        self.retried = ""  # by which an allocation was tried again

    def feed(self, block: Block) -> None:
        """Take lines in."""
        self.out = _last(block, _OUT) or self.out
        self.retried = _last(block, _RETRIED) or self.retried


def _last(block: Block, marks: tuple[tuple[str, re.Pattern[str]], ...]) -> str:
    found = ""
    for text, pattern in marks:
        if text in block.text:
            for _, line in lines_with(block.text, text):
                found = line if pattern.search(line) else found
    return without_rank(found)[:_LONGEST]
