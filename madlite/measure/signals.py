"""What a signal that ended a process tells, however it is named: by number, by name, or in the C library's words."""

from __future__ import annotations

import signal
from functools import cache

CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT, signal.SIGTRAP, signal.SIGSYS)
"""What a process does to itself, in native code."""
TOLD = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""How a launcher, a scheduler or a user ends those that did not fail."""
_SHELL = 128  # a shell's exit code for a signal is this and its number
_MOST = 64  # Linux has no signal beyond
_CRASHED = "native code crashed: the lines above may name the library; PYTHONFAULTHANDLER=1 shows where"
_WORDS: dict[int, str] = {
    signal.SIGBUS: f"{_CRASHED}; a file mapped into memory ends so too where its disk, as /dev/shm, is full",
    signal.SIGXCPU: "its limit of processor time was over (ulimit -t)",
    signal.SIGXFSZ: "a file became larger than its limit (ulimit -f)",
    signal.SIGPIPE: "who read its output was gone",
}


def signal_name(number: int) -> str:
    """Return a signal's name, SIGKILL for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def signal_words(number: int) -> str:
    """Return how a process ended by a signal: SIGSEGV and its like are what it did itself."""
    return f"crashed by signal {number}" if number in CRASHES else f"killed by signal {number}"


def signal_meaning(number: int) -> str:
    """Return what a signal tells of why, and what to do; of SIGKILL others know more."""
    if number in TOLD:
        return "somebody told it to end"
    return _WORDS.get(number, _CRASHED if number in CRASHES else "somebody sent it, or it ended itself")


def signal_of_code(code: int | None) -> int:
    """Return the signal that an exit code stands for, 0 where it stands for none."""
    if code is None:
        return 0
    number = -code if code < 0 else code - _SHELL
    return number if 0 < number <= _MOST else 0


def signal_of(text: str) -> int:
    """Return the signal that a text names, as `SIGSEGV`, `11`, `139` or `Segmentation fault`; 0 where it names none."""
    if text.isdecimal():
        number = int(text[:9])
        return number if number <= _MOST else signal_of_code(number)
    return _known_words().get(text, 0)


@cache
def _known_words() -> dict[str, int]:
    """Return numbers by name and by the words of strsignal(3), which shells and Slurm print."""
    named = {one.name: one.value for one in signal.Signals}
    return {**named, **{words: int(one) for one in signal.valid_signals() if (words := signal.strsignal(one))}}
