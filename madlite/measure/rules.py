"""Looks for lines that a failure rule matches, of the common rules and those that plugins bring."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from functools import lru_cache

from madlite.failure_rules import COMMON, read_failure_rules
from madlite.measure.grammar import is_warning, rank_in, without_label
from madlite.measure.lines import Block, lines_with
from madlite.model import FailureRule, Value

# What a text must hold for a regular expression to match in it: a plain search for that is quicker by far.

# The parts of Python's regular expressions (docs.python.org/3/library/re.html) as far as they matter here.
_PART = re.compile(
    r"(?P<anything>\\[dDsSwWbBAZ]|\[\^?\]?(?:\\.|[^\]\\])*\]|[.^$])"
    r"|(?P<many>[*?]|\{\d*,?\d*\})"
    r"|(?P<more>\+)"
    r"|(?P<bracket>[()])"
    r"|(?P<bar>\|)"
    r"|\\(?P<escaped>[^\w])"
    r"|(?P<plain>[^\\])",
    re.DOTALL | re.ASCII,
)
# characters beyond ASCII that a pattern without case takes for i, s or k
_TWINS = ("\u0130", "\u0131", "\u017f", "\u212a")


@lru_cache(maxsize=4096)
def needed_texts(pattern: re.Pattern[str]) -> tuple[str, ...]:
    """Return texts of which every match holds at least one; none where the pattern does not show them.

    Looked at is what stands outside of groups, for each alternative its longest run of plain characters.  The texts of
    a pattern without case are ASCII: what they are to be looked for in is the business of `without_case`.
    """
    if pattern.flags & (re.VERBOSE | re.LOCALE) or "(?#" in pattern.pattern:
        return ()
    found: list[list[str]] = [[""]]
    depth = end = 0
    for part in _PART.finditer(pattern.pattern):
        if part.start() != end:  # an escape that stands for something else, \n or \x41
            return ()
        end, kind, runs = part.end(), part.lastgroup, found[-1]
        if kind == "bracket":
            depth += 1 if part[0] == "(" else -1
            runs.append("")
        elif depth == 0:
            _note(found, str(kind), part[str(kind)])
    longest = tuple(max(runs, key=len) for runs in found)
    if end < len(pattern.pattern) or not all(longest):
        return ()
    return longest if not ignores_case(pattern) or all(map(str.isascii, longest)) else ()


def ignores_case(pattern: re.Pattern[str]) -> bool:
    """Say whether a pattern takes capitals for small letters."""
    return bool(pattern.flags & re.IGNORECASE)


def without_case(text: str) -> bytes | None:
    """Return a text with ASCII's capitals as small letters; None where it has others that pass for those of ASCII."""
    if not text.isascii() and any(twin in text for twin in _TWINS):
        return None
    return text.encode("utf-8", "surrogatepass").lower()  # much quicker than lower() of a text that is not all ASCII


def _note(found: list[list[str]], kind: str, text: str) -> None:
    """Add a part to the last alternative's runs; the last of them is the one that goes on."""
    runs = found[-1]
    if kind in ("plain", "escaped"):
        runs[-1] += text
    elif kind == "bar":
        found.append([""])
    else:
        if kind == "many":  # the character before may be missing
            runs[-1] = runs[-1][:-1]
        runs.append("")


_TIERS = ("root", "error", "follower", "sign")
_MOST = 16  # ranks that a rule's lines are kept of


class RuleMatch(Value, frozen=True):
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
        self._found: list[dict[int | None, RuleMatch]] = [{} for _ in self._rules]
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

    def hits(self) -> list[RuleMatch]:
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

    def match(self, line: str, at: int, rank: int | None) -> RuleMatch | None:
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


def _hit(at: int, rule: FailureRule, line: str, match: re.Match[str], rank: int | None = None) -> RuleMatch:
    groups = {name: text.strip() for name, text in match.groupdict(default="").items()}
    rank = rank_in(line) if rank is None else rank
    if rank is None and groups.get("rank", "").isdecimal():
        rank = int(groups["rank"][:9])
    return RuleMatch(at=at, rule=rule, line=plain(line), rank=rank, groups=groups)


def _matching(pattern: re.Pattern[str], lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    return ((at, line) for at, line in lines if line and not line.isspace() and pattern.search(line))


def without_rank(line: str) -> str:
    """Return a line as its process wrote it, without the rank that a launcher put before it."""
    return without_label(line.strip())


def plain(line: str) -> str:
    """Return a line without the rank before it and the frame of a box around it, as click, tyro and rich draw them."""
    return without_rank(line).strip("│┃║╭╮╰╯─━ ") or without_rank(line)


# The last lines of a log, and which of them tells best why it ended where no failure rule does.

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
