"""What can go wrong, as one exception tree, and the exit code each kind ends with."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self

_GAP = "   "  # between a question and what answers it, on a line of its own


def one_hint(*parts: str) -> str:
    """Return the parts of a hint as one, without the empty ones: semicolons between those that end with no mark."""
    text = ""
    for part in filter(None, parts):
        is_sentence = text.endswith(".") and not text.endswith((" .", "..", "/."))  # `ls .` is none
        between = _GAP if text.endswith("?") else " " if is_sentence else "; " if text else ""
        text += between + part
    return text


def inline_hint(hint: str) -> str:
    """Return a hint as it stands within a sentence or brackets, without the gap after a question."""
    return hint.replace(f"?{_GAP}", "? ")


class ExitCode(IntEnum):
    """Exit codes of every madlite command; where several apply, the first of this list wins."""

    INTERRUPTED = 130
    HANGUP = 129
    TERMINATED = 143
    INTERNAL = 1
    USAGE = 4
    RUN_FAILED = 3
    BUILD_FAILED = 2
    RESULT_CHECK_FAILED = 5  # of `verify`, `compare --fail-on`: the results are there, and a check of them failed
    DOCTOR = 6
    OK = 0


class MadliteError(Exception):
    """A problem a user can act on: `message` says what, which value and where; `hint` what to type.

    `keys` are the keys of the plan whose values it is about, none where the command decides none of them: a card that
    cannot be planned for what the command set is refused, for anything else it gets a FAILURE row.  None where the
    raiser does not say: then it counts as the command's where that set anything.
    """

    exit_code = ExitCode.USAGE
    keys: tuple[str, ...] | None = None
    more: tuple[tuple[str, str], ...] = ()  # further messages and their hints, where several things are wrong

    def __init__(self, message: str, hint: str = "", *, keys: tuple[str, ...] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        if keys is not None:
            self.keys = keys

    @classmethod
    def of_all(cls, problems: Iterable[tuple[str, str]], keys: tuple[str, ...] | None = None) -> Self:
        """Return one error of several messages and their hints, without repeats."""
        first, *others = dict.fromkeys(problems)
        error = cls(*first, keys=keys)
        error.more = tuple(others)
        return error


class UsageProblem(MadliteError):
    """An option, a context or a value of them cannot be used: nothing ran."""


class CardProblem(UsageProblem):
    """A card, or what it meets on this machine, is wrong whatever the command asks: it gets a FAILURE row."""

    keys = ()


class CatalogError(MadliteError):
    """Model cards cannot be read, or no card matches a tag."""


class PluginError(MadliteError):
    """A plugin broke where the run depends on it."""


class CheckFailed(MadliteError):
    """Checks before the start refused the runs."""


class RecordError(MadliteError):
    """perf.csv cannot be appended to without losing what is there; found out before a run, nothing ran."""


class RuntimeProblem(MadliteError):
    """A container engine, an image or a process could not do what the plan needs."""

    exit_code = ExitCode.RUN_FAILED

    def __init__(
        self, message: str, hint: str = "", *, cause: str = "runtime", keys: tuple[str, ...] | None = None
    ) -> None:
        super().__init__(message, hint, keys=keys)
        self.cause = cause


# The known words nearest to a misspelt one, for hints.
#
# The distance is that of optimal string alignment: insertions, deletions, replacements and swaps of two neighbours each
# count one.  Upper and lower case, `-`, `_` and a blank are the same.

LONGEST = 256  # characters of a word that are compared
_BETWEEN = str.maketrans("- ", "__")
_BLANKS, _NOTHING = str.maketrans("_./", "   "), str.maketrans("", "", "_./")


def distance(word: str, other: str, most: int = LONGEST) -> int:
    """Return the edit distance of two words; of one that is more than `most`, any number above."""
    word, other = _plain(word), _plain(other)
    surplus = [word.count(letter) - other.count(letter) for letter in {*word, *other}]
    if max(sum(n for n in surplus if n > 0), -sum(n for n in surplus if n < 0)) > most:  # quick to see
        return most + 1
    before: list[int] = []
    row: list[int] = [*range(len(other) + 1)]
    for i, letter in enumerate(word, 1):
        two_before, before, row = before, row, [i]
        for j, (cost, other_letter) in enumerate(zip(before, other, strict=False), 1):
            least = min(cost + (letter != other_letter), before[j] + 1, row[-1] + 1)
            is_swap = i > 1 < j and letter == other[j - 2] and word[i - 2] == other_letter
            row.append(min(least, two_before[j - 2] + 1) if is_swap else least)
        if min(row) > most:
            return most + 1
    return row[-1]


def nearest_words(word: str, known: Iterable[str], most: int = 3) -> list[str]:
    """Return the known words nearest to a misspelt one, nearest first; none where all are far.

    Far is more than a slip in three letters; what separates the parts of a word counts for nothing.  What the word
    begins is about a slip away, what it ends or has parts of two, what begins as it does three.
    """
    plain = _plain(word)
    limit = min(max(1, len(plain) // 3), len(plain) - 1)
    found = []
    for order, name in enumerate(dict.fromkeys(known)):
        other = _plain(name)
        part = _partial_distance(plain, other)
        slips = distance(plain, other, LONGEST if part is not None else limit)
        whole = min(slips, distance(_joined(plain), _joined(other), limit))
        if part is not None or whole <= limit:
            found.append((whole if part is None else min(whole, part), slips, order, name))
    return [name for *_, name in sorted(found)[:most]]


def did_you_mean(word: str, known: Iterable[str], before: str = "", most: int = 3, after: str = "") -> str:
    """Return `did you mean --mode pretrain?` of the nearest known words; nothing without one.

    `before` stands before each of them, `after` behind them all.
    """
    close = [f"{before}{name}" for name in nearest_words(word, known, most)]
    named = " or ".join(filter(None, [", ".join(close[:-1]), *close[-1:]]))
    return f"did you mean {named}{after}?" if named else ""


def _partial_distance(plain: str, other: str) -> int | None:
    """Return the distance of a word from one that it partly matches, 1 or more; None without such a match.

    It is its beginning or its end, but for a slip in five letters; some of its parts in whatever order; or at least
    three letters and half of the word are the beginning of both.
    """
    short, long = _joined(plain), _joined(other)
    if 2 < len(short) < len(long):
        limit = len(short) // 5
        begin = distance(short, long[: len(short)], limit)
        end = distance(short, long[-len(short) :], limit)
        if min(begin, end) <= limit:
            return min(begin + 1, end + 2)
    parts = _parts(plain)
    if len(parts) > 1 and parts <= _parts(other):
        return 2
    return 3 if len(short) > 2 and long.startswith(short[: max(3, (len(short) + 1) // 2)]) else None


def _parts(plain: str) -> frozenset[str]:
    return frozenset(plain.translate(_BLANKS).split())


def _joined(plain: str) -> str:
    return plain.translate(_NOTHING)


def _plain(word: str) -> str:
    return word.strip().casefold().translate(_BETWEEN)[:LONGEST]
