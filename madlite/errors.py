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


# The known words nearest to a misspelt one, for hints; upper and lower case and what separates parts count for nothing.

_LONGEST = 256  # characters of a word that are compared
_SEPARATORS = str.maketrans("-_./", "    ")


def likeness(word: str, other: str) -> float:
    """Return how alike two words are, from 0 to 1: by their letters, also where one has the other or its parts."""
    from difflib import SequenceMatcher  # slow to import, and for errors alone

    mine, theirs = (text.casefold()[:_LONGEST].translate(_SEPARATORS).split() for text in (word, other))
    joined, whole = "".join(mine), "".join(theirs)
    is_mixed_up = len(joined) > 2 and sorted(joined) == sorted(whole)
    has_parts = len(mine) > 1 and {*mine} <= {*theirs}
    least = 0.9 if is_mixed_up or has_parts else 0.8 if len(joined) > 2 and joined in whole else 0.0
    return max(least, SequenceMatcher(None, joined, whole, autojunk=False).ratio())


def nearest_words(word: str, known: Iterable[str], most: int = 3) -> list[str]:
    """Return the known words nearest to a misspelt one, nearest first; none where all are far."""
    alike = {name: likeness(word, name) for name in known}
    order = sorted(alike, key=lambda name: (-alike[name], not name.startswith(word)))
    least = 0.72 if len(word) > 3 else 0.66  # a slip in one of three letters
    return [name for name in order if alike[name] >= least][:most]


def did_you_mean(word: str, known: Iterable[str], before: str = "", most: int = 3, after: str = "") -> str:
    """Return `did you mean --mode pretrain?` of the nearest known words; nothing without one.

    `before` stands before each of them, `after` behind them all.
    """
    close = [f"{before}{name}" for name in nearest_words(word, known, most)]
    named = " or ".join(filter(None, [", ".join(close[:-1]), *close[-1:]]))
    return f"did you mean {named}{after}?" if named else ""
