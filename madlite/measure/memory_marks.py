"""Looks for lines by which memory ran short: an allocation failed, or succeeded only after the cache was freed.

Sources of the formats: torch (`CUDA out of memory`, the table of `memory_summary`), torchtitan (`N CUDA memory
allocation retries.`, `N CUDA OOM errors thrown.`), DeepSpeed (`N pytorch allocator cache flushes since last step`).
"""

from __future__ import annotations

import re
from functools import cache

from madlite.failure_rules import COMMON, read_failure_rules
from madlite.measure.lines import Block, lines_with
from madlite.measure.needed import needed_texts
from madlite.measure.rules import without_rank
from madlite.model import Cause

_Marks = tuple[tuple[str, re.Pattern[str]], ...]

# each with a text that its lines have; most blocks of lines hold none of them, which is quick to see
_SURVIVED: _Marks = (
    (
        "out of memory",
        re.compile(r"\b(?:CUDA|HIP|ROCm|XPU) out of memory\b.{0,80}\b(?:retry|retried|skipp|trying again)"),
    ),
    ("OOM", re.compile(r"\b[1-9]\d* [A-Z]+ OOM errors thrown|\bCUDA OOMs: [1-9]")),
)
_RETRIED: _Marks = (
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
        self.out = _last(block, _ran_out()) or self.out
        self.retried = _last(block, _RETRIED) or self.retried


@cache
def _ran_out() -> _Marks:
    """Return what tells of memory that ran out: the failure rules that a process ends by, and what it survives."""
    rules = [rule for rule in read_failure_rules(COMMON) if rule.ends and rule.cause == Cause.GPU_MEMORY.value]
    patterns = [re.compile(rule.pattern) for rule in rules]
    return (*((text, pattern) for pattern in patterns for text in needed_texts(pattern)), *_SURVIVED)


def _last(block: Block, marks: _Marks) -> str:
    found = ""
    for text, pattern in marks:
        if text in block.text:
            for _, line in lines_with(block.text, text):
                found = line if pattern.search(line) else found
    return without_rank(found)[:_LONGEST]
