"""Looks for the first line that a failure rule matches, of the rules that plugins bring."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import islice

from madlite.measure.lines import Block, lines_with
from madlite.measure.needed import ignores_case, needed_texts, without_case
from madlite.types import FailureRule

_PREFIX = re.compile(r"^(?:\[(?:rank|default)\d+\]:\s?)+")


class RuleScan:
    """Keeps the first line that matches, and the first rule it matches.

    A rule is asked about the lines that hold a text it needs: most hold none.
    """

    def __init__(self, rules: Iterable[FailureRule]) -> None:
        self.rule: FailureRule | None = None
        self.line = ""
        self._rules = [(re.compile(rule.pattern), rule) for rule in rules]  # checked where plugins gave them
        needed = [(needed_texts(pattern), index) for index, (pattern, _) in enumerate(self._rules)]
        self._always = frozenset(index for texts, index in needed if not texts)
        pairs = [(text, index, ignores_case(self._rules[index][0])) for texts, index in needed for text in texts]
        self._needed: dict[str, list[int]] = {}  # a text → the rules that need it
        for text, index, any_case in pairs:
            if not any_case:
                self._needed.setdefault(text, []).append(index)
        self._needed_small = [(text.lower().encode(), index) for text, index, any_case in pairs if any_case]

    def feed(self, block: Block) -> None:
        """Take lines in."""
        if self.rule is not None:
            return
        found = min(self._matches(block), default=None)
        if found is not None:
            _, index, line = found
            self.rule, self.line = self._rules[index][1], without_rank(line)

    def _matches(self, block: Block) -> Iterator[tuple[int, int, str]]:
        """Yield where each rule first matches: the line's place, the rule's, and the line."""
        there = ((text, indexes) for text, indexes in self._needed.items() if text in block.text)
        for text, indexes in there:
            for index in indexes:
                yield from islice(self._asked(index, lines_with(block.text, text)), 1)
        for index in self._everywhere(block.text):
            yield from islice(self._asked(index, lines_with(block.text)), 1)

    def _asked(self, index: int, lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, int, str]]:
        pattern = self._rules[index][0]
        kept = ((place, line) for place, line in lines if line and not line.isspace())
        return ((place, index, line) for place, line in kept if pattern.search(line))

    def _everywhere(self, text: str) -> list[int]:
        """Return the places of the rules that every line of the text has to be asked about."""
        found = set(self._always)
        if self._needed_small:
            small = without_case(text)
            found |= {index for needed, index in self._needed_small if small is None or needed in small}
        return sorted(found)


def without_rank(line: str) -> str:
    """Return a line as its process wrote it, without the rank that a launcher put before it."""
    return _PREFIX.sub("", line.strip())
