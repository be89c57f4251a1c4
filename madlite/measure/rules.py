"""Looks for lines that a failure rule matches, of the common rules and those that plugins bring."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator

from madlite.failure_rules import COMMON, read_failure_rules
from madlite.measure.grammar import rank_in, without_label
from madlite.measure.lines import Block, lines_with
from madlite.measure.needed import ignores_case, needed_texts, without_case
from madlite.model import FailureRule, Value

_TIERS = ("root", "error", "follower", "sign")
_MOST = 16  # ranks that a rule's lines are kept of


class Hit(Value, frozen=True):
    """A line that a rule matches; `at` is its place in the log's characters, `groups` what the pattern names."""

    at: int
    rule: FailureRule
    line: str
    rank: int | None = None
    groups: dict[str, str] = {}


def with_common(rules: Iterable[FailureRule], backends: Collection[str] | None = None) -> tuple[FailureRule, ...]:
    """Return plugins' rules and after them the common ones: of two that match a line the first explains it.

    Of rules that are for some backends' trainings alone those of the given `backends` are kept; None, where nobody
    knows whose training it is, keeps all.
    """
    kept = [rule for rule in rules if backends is None or not rule.backends or set(rule.backends) & set(backends)]
    return (*kept, *read_failure_rules(COMMON))


class RuleScan:
    """Keeps of each rule the first line that it matches, of every rank.

    A rule is asked about the lines that hold a text it needs: most hold none.
    """

    def __init__(self, rules: Iterable[FailureRule]) -> None:
        self._rules = [(re.compile(rule.pattern), rule) for rule in rules]  # checked where plugins gave them
        self._found: list[dict[int | None, Hit]] = [{} for _ in self._rules]
        needed = [(needed_texts(pattern), index) for index, (pattern, _) in enumerate(self._rules)]
        self._always = frozenset(index for texts, index in needed if not texts)
        pairs = [(text, index, ignores_case(self._rules[index][0])) for texts, index in needed for text in texts]
        self._needed: dict[str, list[int]] = {}  # a text → the rules that need it
        for text, index, any_case in pairs:
            if not any_case:
                self._needed.setdefault(text, []).append(index)
        # a single character beyond Latin-1 makes a search in text slow, in bytes none does
        self._needed_bytes = [(text.encode("utf-8", "surrogatepass"), text) for text in self._needed]
        self._needed_small = [(text.lower().encode(), index) for text, index, any_case in pairs if any_case]

    def feed(self, block: Block, begin: int = 0) -> None:
        """Take lines in, which begin at a place of the log."""
        data = block.text.encode("utf-8", "surrogatepass")
        for text in [text for needed, text in self._needed_bytes if needed in data]:
            for index in self._needed[text]:
                self._ask(index, lines_with(block.text, text), begin)
        for index in self._everywhere(block.text):
            self._ask(index, lines_with(block.text), begin)

    def clear(self) -> None:
        """Forget what was found."""
        self._found = [{} for _ in self._rules]

    def hits(self) -> list[Hit]:
        """Return what was found in the order of the log, and of a line in the order of the rules."""
        return sorted((hit for found in self._found for hit in found.values()), key=lambda hit: hit.at)

    def _ask(self, index: int, lines: Iterable[tuple[int, str]], begin: int) -> None:
        pattern, rule = self._rules[index]
        found = self._found[index]
        for at, line in _matching(pattern, lines):
            match = pattern.search(line)
            if match is None or len(found) >= _MOST:
                return
            hit = _hit(begin + at, rule, line, match)
            if hit.rank not in found or hit.at < found[hit.rank].at:
                found[hit.rank] = hit

    def match(self, line: str, at: int, rank: int | None) -> Hit | None:
        """Return what the rule that explains a line best makes of it, of a rank that is known."""
        matches = ((rule, pattern.search(line)) for pattern, rule in self._rules)
        hits = (_hit(at, rule, line, match, rank) for rule, match in matches if match)
        return min(hits, key=lambda hit: _TIERS.index(hit.rule.tier), default=None)

    def _everywhere(self, text: str) -> list[int]:
        """Return the places of the rules that every line of the text has to be asked about."""
        found = set(self._always)
        if self._needed_small:
            small = without_case(text)
            found |= {index for needed, index in self._needed_small if small is None or needed in small}
        return sorted(found)


def _hit(at: int, rule: FailureRule, line: str, match: re.Match[str], rank: int | None = None) -> Hit:
    groups = {name: text.strip() for name, text in match.groupdict(default="").items()}
    rank = rank_in(line) if rank is None else rank
    if rank is None and groups.get("rank", "").isdecimal():
        rank = int(groups["rank"][:9])
    return Hit(at=at, rule=rule, line=plain(line), rank=rank, groups=groups)


def _matching(pattern: re.Pattern[str], lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    return ((at, line) for at, line in lines if line and not line.isspace() and pattern.search(line))


def without_rank(line: str) -> str:
    """Return a line as its process wrote it, without the rank that a launcher put before it."""
    return without_label(line.strip())


def plain(line: str) -> str:
    """Return a line without the rank before it and the frame of a box around it, as click, tyro and rich draw them."""
    return without_rank(line).strip("│┃║╭╮╰╯─━ ") or without_rank(line)
