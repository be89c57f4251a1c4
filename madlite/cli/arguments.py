"""The words of a command line as click wants them: long options in full, `--tags` before each of its words."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import click

# What came beside an option that scripts for madengine 1 abbreviate: `--clean` and `--c` are --clean-docker-cache.
_YIELDING = ("--cleanup-perf", "--cards-from", "--check", "--contract", "--fail-on-suspect", "--plan")

_Names: TypeAlias = Mapping[str, click.Parameter]


def complete(
    args: Sequence[str], params: Iterable[click.Parameter], ctx: click.Context, *, many: str = "", stop: bool = False
) -> list[str]:
    """Return the arguments with abbreviated long options in full, and the option `many` before each of its words.

    With `stop` the first word that is no option ends the work: what follows belongs to a sub-command.

    Raises:
        click.UsageError: an abbreviation stands for several options, or `many` is given no word.
    """
    names = {name: param for param in params for name in (*param.opts, *param.secondary_opts)}
    done: list[str] = []
    left = deque(args)
    while left:
        word = left.popleft()
        if word == "--" or (stop and not _is_option(word)):
            return [*done, word, *left]
        word = _in_full(word, names, ctx)
        done.append(word)
        option, has_value = _asked(word, names)
        if option is None:
            continue
        if many in option.opts:
            done += _each(many, left, ctx, has_first=has_value)
        elif left and not has_value and not (_may_lack_value(option) and _is_option(left[0])):
            done.append(left.popleft())
    return done


def _is_option(word: str) -> bool:
    return len(word) > 1 and word.startswith("-")


def _in_full(word: str, names: _Names, ctx: click.Context) -> str:
    """Return the word with its option's whole name; a name that nobody knows is left for click to refuse."""
    if not word.startswith("--"):
        return word
    written, equals, value = word.partition("=")
    if written in names:
        return word
    wanted = written.replace("_", "-")  # as the first MAD scripts and `report update-perf` spell them
    found = [wanted] if wanted in names else _meant(wanted, names)
    if len(found) > 1:
        raise click.UsageError(f"option '{written}' could be {' or '.join(sorted(found))}", ctx)
    return f"{found[0]}{equals}{value}" if found else word


def _meant(start: str, names: _Names) -> list[str]:
    """Return the names that begin so, one for each thing an option can be told."""
    found = [name for name in names if name.startswith(start)]
    found = [name for name in found if name not in _YIELDING] or found
    return list({(names[name].name, name in names[name].secondary_opts): name for name in reversed(found)}.values())


def _asked(word: str, names: _Names) -> tuple[click.Parameter | None, bool]:
    """Return the option of this word that takes a value, None without one, and whether the value is in the word."""
    if word.startswith("--"):
        written, equals, _ = word.partition("=")
        option = names.get(written)
        return (option, bool(equals)) if option is not None and _takes_value(option) else (None, False)
    letters = word[1:] if _is_option(word) else ""
    for position, letter in enumerate(letters, 1):  # -lo FILE
        option = names.get(f"-{letter}")
        if option is None or _takes_value(option):
            return option, position < len(letters)
    return None, False


def _takes_value(param: click.Parameter) -> bool:
    return isinstance(param, click.Option) and not param.is_flag and not param.count


def _may_lack_value(param: click.Parameter) -> bool:
    return isinstance(param, click.Option) and isinstance(param.flag_value, str)


def _each(name: str, left: deque[str], ctx: click.Context, *, has_first: bool) -> list[str]:
    """Take the words up to the next option, and return them with the option before each that lacks it."""
    words: list[str] = []
    while left and not _is_option(left[0]):
        words += [name, left.popleft()]
    if not words and not has_first:
        raise click.UsageError(f"no model is named after '{name}'", ctx)
    return words if has_first else words[1:]
