"""Find lines that a failure rule matches, of the common rules and those that plugins bring."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from madlite.backends.log_formats import read_failure_rules
from madlite.measure.lines import Block, lines_with, rank_in, without_label
from madlite.model import FailureRule, Value

COMMON = Path(__file__).parent / "failures.toml"


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


@lru_cache(maxsize=4096)
def needed_texts(pattern: re.Pattern[str]) -> tuple[str, ...]:
    """Return texts of which every match holds at least one; none where the pattern does not show them.

    Looked at is what stands outside of groups, for each alternative its longest run of plain characters.  The texts of
    a pattern without case are ASCII.
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
    """Return whether a pattern takes capitals for small letters."""
    return bool(pattern.flags & re.IGNORECASE)


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


SIGN = "sign"  # the tier of a rule that shows an end, and not why
_TIERS = ("root", "error", "follower")
# what NCCL and RCCL tell of each call with NCCL_DEBUG=INFO, a plugin that is not there among it, and ends nothing
_TRACED = re.compile(r"\b[NR]CCL (?:INFO|TRACE)\b")
_MOST = 16  # ranks that a rule's lines are kept of


class RuleMatch(Value, frozen=True):
    """A line that a rule matches; `at` is its place in the log's characters, `groups` what the pattern names."""

    at: int
    rule: FailureRule
    line: str
    rank: int | None = None
    groups: dict[str, str] = {}


ROOT, ERROR, FOLLOWER, LAST, LAUNCHER = range(5)  # tiers; LAST: counts where nothing else was found


class FailureCandidate(Value, frozen=True):
    """A line that can explain a failure; `at` is its place in the log, `uncaught` whether an exception ended there.

    `of_import` where a package is missing, which many programs do without; `handled` where another exception came
    while it was handled.
    """

    cause: str
    line: str
    tier: int
    at: int
    rank: int | None = None
    rule: FailureRule | None = None
    groups: dict[str, str] = {}
    where: str = ""
    uncaught: bool = False
    of_import: bool = False
    again: int = 0  # its last place, of an exception that came more than once
    handled: bool = False
    next_line: str = ""  # of an exception's message, whose first line ends with a colon
    more: RuleMatch | None = None  # what a rule makes of the next line of its message
    signal: int = 0  # that ended the process, where only a launcher reports it
    exit_code: int = 0  # with which the process ended by itself, where only a launcher reports it
    advice: str = ""  # where its cause would be told, which is not in the log


def with_common(rules: Iterable[FailureRule], backends: Collection[str] | None = None) -> tuple[FailureRule, ...]:
    """Return plugins' rules and after them the common ones: of two that match a line the first explains it.

    Of rules that are for some backends' trainings alone those of the given `backends` are kept; None, where nobody
    knows whose training it is, keeps all.
    """
    kept = [rule for rule in rules if backends is None or not rule.backends or set(rule.backends) & set(backends)]
    return (*kept, *read_failure_rules(COMMON))


class RulePatterns(NamedTuple):
    """Rules with their patterns, and by the texts they need.

    `needed` has a text in small letters → the rules that need it, each with what its lines hold as it stands.  In
    bytes, for a single character beyond Latin-1 makes a search in text slow.
    """

    compiled: list[tuple[re.Pattern[str], FailureRule]]
    needed: dict[bytes, list[tuple[int, str]]]


def compile_rules(rules: Iterable[FailureRule]) -> RulePatterns:
    """Return rules with their patterns, which were checked where plugins gave them."""
    compiled = [(re.compile(rule.pattern), rule) for rule in rules]
    needed: dict[bytes, list[tuple[int, str]]] = {}
    for index, (pattern, _) in enumerate(compiled):
        for text in needed_texts(pattern) or ("",):
            needed.setdefault(_small(text), []).append((index, "" if ignores_case(pattern) else text))
    return RulePatterns(compiled, needed)


class RuleScan:
    """Store of each rule the first line that it matches, of every rank.

    A rule is matched against the lines that contain a text it needs: most hold none.  Where only the rules that show
    an end were matched, a line shows the end alone, and is no cause.
    """

    def __init__(self, rules: RulePatterns) -> None:
        self._rules, self._needed = rules
        self._found: dict[tuple[int, bool], dict[int | None, RuleMatch]] = {}  # by the rule's index, and `every_rule`

    def feed(self, block: Block, begin: int = 0, *, every_rule: bool = True) -> None:
        """Take lines in, which begin at a place of the log; without `every_rule` for the rules that show an end."""
        small = _small(block.text)
        for index, text in (rule for needed, rules in self._needed.items() if needed in small for rule in rules):
            if every_rule or self._rules[index][1].ends:
                self._query((index, every_rule), lines_with(block.text, text), begin)

    def hits(self, *, explaining: bool = False) -> list[RuleMatch]:
        """Return what was found in the order of the log, or what may be a cause, and of a line in the rules' order."""
        in_order = (self._found[key] for key in sorted(self._found) if key[1] or not explaining)
        return sorted((hit for found in in_order for hit in found.values()), key=lambda hit: hit.at)

    def match(self, line: str, at: int, rank: int | None) -> RuleMatch | None:
        """Return what the rule that explains a line best makes of it, of a rank that is known."""
        matches = ((rule, pattern.search(line)) for pattern, rule in self._rules if rule.tier != SIGN)
        hits = (_hit(at, rule, line, match, rank) for rule, match in matches if match)
        return min(hits, key=lambda hit: _TIERS.index(hit.rule.tier), default=None)

    def _query(self, key: tuple[int, bool], lines: Iterable[tuple[int, str]], begin: int) -> None:
        pattern, rule = self._rules[key[0]]
        found = self._found.setdefault(key, {})
        for at, line in lines:
            if not line or _TRACED.search(line) or (match := pattern.search(line)) is None:
                continue
            if len(found) >= _MOST:
                return
            hit = _hit(begin + at, rule, line, match)
            if hit.rank not in found or hit.at < found[hit.rank].at:
                found[hit.rank] = hit


def _small(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass").lower()  # ASCII's letters alone


def _hit(at: int, rule: FailureRule, line: str, match: re.Match[str], rank: int | None = None) -> RuleMatch:
    groups = {name: text.strip() for name, text in match.groupdict(default="").items()}
    rank = rank_in(line) if rank is None else rank
    named = (text for name, text in groups.items() if name.startswith("rank") and text.isdecimal())
    if rank is None and (text := next(named, "")):
        rank = int(text[:9])
    return RuleMatch(at=at, rule=rule, line=plain(line), rank=rank, groups=groups)


def without_rank(line: str) -> str:
    """Return a line as its process wrote it, without the rank that a launcher put before it."""
    return without_label(line.strip())


def plain(line: str) -> str:
    """Return a line without the rank before it and the frame of a box around it, as click, tyro and rich draw them."""
    return without_rank(line).strip("│┃║╭╮╰╯─━ ") or without_rank(line)


# Which of the last lines is the best error line where no failure rule says why a log ended.

_ERROR = re.compile(
    r"\b\w*(?:Error|Exception)\b:|\berror:|\bfatal:|out of memory|(?<!-smi: )not found|No such file", re.IGNORECASE
)
# torchrun's own summary says that a rank failed, not why
_SUMMARY = re.compile(r"ChildFailedError|elastic\.multiprocessing|exitcode\s*:|error_file:|traceback : ")


def looks_like_error(line: str) -> bool:
    """Return whether a line reports that something failed, and no launcher's table that a rank did."""
    return _ERROR.search(line) is not None and not _SUMMARY.search(line)
