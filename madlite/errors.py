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
        between = _GAP if text.endswith("?") else " " if text.endswith(".") else "; " if text else ""
        text += between + part
    return text


def hint_within(hint: str) -> str:
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
    REGRESSION = 5
    DOCTOR = 6
    OK = 0


class MadliteError(Exception):
    """A problem a user can act on: `message` says what, which value and where; `hint` what to type."""

    exit_code = ExitCode.USAGE
    more: tuple[tuple[str, str], ...] = ()  # further messages and their hints, where several things are wrong

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    @classmethod
    def of_all(cls, told: Iterable[tuple[str, str]]) -> Self:
        """Return one error of several messages and their hints, each told once."""
        first, *others = dict.fromkeys(told)
        error = cls(*first)
        error.more = tuple(others)
        return error


class UsageProblem(MadliteError):
    """An option, a context or a value of them cannot be used: nothing ran."""


class CatalogError(MadliteError):
    """Model cards cannot be read, or no card matches what was asked."""


class PluginError(MadliteError):
    """A plugin broke where the run depends on it."""


class CheckFailed(MadliteError):
    """Checks before the start refused the runs."""


class RecordError(MadliteError):
    """perf.csv cannot be appended to without losing what is there; found out before a run, nothing ran."""


class RuntimeProblem(MadliteError):
    """A container engine, an image or a process could not do what the plan needs."""

    exit_code = ExitCode.RUN_FAILED

    def __init__(self, message: str, hint: str = "", *, cause: str = "runtime") -> None:
        super().__init__(message, hint)
        self.cause = cause
