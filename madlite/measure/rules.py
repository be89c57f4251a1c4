"""Looks for the first line that a failure rule matches, of the rules that plugins bring."""

from __future__ import annotations

import re
from collections.abc import Iterable

from madlite.measure.lines import Block
from madlite.measure.needed import ignores_case, needed_texts, without_case
from madlite.types import FailureRule

_PREFIX = re.compile(r"^(?:\[(?:rank|default)\d+\]:\s?)+")


class RuleScan:
    """Keeps the first line that matches, and the first rule it matches.

    A rule is asked about a line only where the line's block holds a text that the rule needs: most hold none.
    """

    def __init__(self, rules: Iterable[FailureRule]) -> None:
        self.rule: FailureRule | None = None
        self.line = ""
        self._rules = [(re.compile(rule.pattern), rule) for rule in rules]  # checked where plugins gave them
        needed = [(needed_texts(pattern), index) for index, (pattern, _) in enumerate(self._rules)]
        self._always = frozenset(index for texts, index in needed if not texts)
        pairs = [(text, index, ignores_case(self._rules[index][0])) for texts, index in needed for text in texts]
        self._needed = [(text, index) for text, index, any_case in pairs if not any_case]
        self._needed_small = [(text.lower().encode(), index) for text, index, any_case in pairs if any_case]

    def feed(self, block: Block) -> None:
        """Take lines in."""
        possible = self._possible(block.text) if self.rule is None else ()
        if not possible:
            return
        rules = [self._rules[index] for index in sorted(possible)]
        for line in block.lines:
            for pattern, rule in rules:
                if pattern.search(line):
                    self.rule, self.line = rule, without_rank(line)
                    return

    def _possible(self, text: str) -> frozenset[int]:
        """Return the places of the rules that may match in a line of the text."""
        found = [index for needed, index in self._needed if needed in text]
        if self._needed_small:
            small = without_case(text)
            found += [index for needed, index in self._needed_small if small is None or needed in small]
        return self._always.union(found)


def without_rank(line: str) -> str:
    """Return a line as its process wrote it, without the rank that a launcher put before it."""
    return _PREFIX.sub("", line.strip())
