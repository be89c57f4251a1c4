"""Arguments of a command line as click parses them, and the types of sizes, ages and times."""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from madlite.errors import UsageProblem
from madlite.model import Json, Status
from madlite.plan.fields import OPTIONS, PlanField, PlanOption, as_size

if TYPE_CHECKING:
    from madlite.run.screen import RunOutcome


# What came beside an option that scripts for madengine 1 abbreviate: `--clean` and `--c` are --clean-docker-cache.
_LOW_PRIORITY = (
    *("--cleanup-perf", "--cards-from", "--check", "--contract", "--fail-on-suspect", "--plan"),
    *("--allow-undecided", "--help-all"),
    *("--cold", "--repeat", "--settle", "--settle-timeout"),
    *("--cluster", "--nodes", "--exclude", "--detach", "--on-interrupt", "--each-node", "--exclude-list"),
)

F = TypeVar("F", bound=Callable[..., Any])


def in_full(command: click.Command, args: Sequence[str], ctx: click.Context) -> list[str]:
    """Return the arguments with abbreviated long options in full; click says which words are options.

    Raises:
        click.UsageError: an abbreviation stands for several options.
    """
    words = list(args)
    own = click.Context(command, parent=ctx.parent)  # which raises also where a shell completes the line
    names = {name: param for param in command.get_params(own) for name in (*param.opts, *param.secondary_opts)}
    while True:
        try:
            command.make_parser(own).parse_args(left := [*words])
        except click.NoSuchOption as error:
            if (found := _full_name(error.option_name, names, ctx)) is None:
                return words  # which click refuses
            at = len(words) - len(left) - 1  # where the parser stopped: it takes words from its list
            words[at] = found + words[at].removeprefix(error.option_name)
        except click.UsageError:
            return words
        else:
            return words


def _full_name(written: str, names: Mapping[str, click.Parameter], ctx: click.Context) -> str | None:
    """Return the option that a word abbreviates, as the first MAD scripts and `report update-perf` spell it, too."""
    wanted = written.replace("_", "-")
    found = [name for name in names if name.startswith(wanted)] if wanted.startswith("--") else []
    found = [name for name in found if name == wanted or name not in _LOW_PRIORITY] or found
    values = {(names[name].name, name in names[name].secondary_opts): name for name in reversed(found)}
    if wanted in names or len(values) < 2:
        return wanted if wanted in names else next(iter(values.values()), None)
    if ctx.resilient_parsing:  # a shell completes the line
        return None
    raise click.UsageError(f"option '{written}' could be {' or '.join(sorted(values.values()))}", ctx)


def without(phrases: Sequence[str], words: Sequence[str]) -> list[str] | None:
    """Return the words without the phrases, `--name value` also as `--name=value`; None where they lack one."""
    left = list(words)
    for phrase in phrases:
        forms = (phrase.split(), [phrase.replace(" ", "=")])
        places = ((at, len(form)) for at in range(len(left)) for form in forms if left[at : at + len(form)] == form)
        if (found := next(places, None)) is None:
            return None
        at, length = found
        del left[at : at + length]
    return left


# Options of their own for keys of a plan: what they set is what --set KEY=VALUE would.


def whole_number(least: int) -> click.IntRange:
    """Return the type of a whole number, as messages call it."""
    kind = click.IntRange(least)
    kind.name = "whole number"
    return kind


def number_option(
    name: str, kind: click.FloatRange | click.types.IntParamType, default: float, metavar: str, what: str
) -> Callable[[F], F]:
    """Return the option of a number, whose help shows the default."""
    return click.option(name, type=kind, default=default, metavar=metavar, help=f"{what}  [default: {default:g}]")


def count_option(name: str, least: int, what: str, **more: Any) -> Callable[[F], F]:
    """Return the option of a whole number."""
    return click.option(name, type=whole_number(least), metavar="N", help=what, **more)


class FiniteRange(click.FloatRange):
    """A number in a range, which NaN is in none of; infinity is no number that anything can be counted against."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number that a text is."""
        found = float(super().convert(value, param, ctx))
        if not math.isfinite(found):
            self.fail(f"{value!r} is no finite number.", param, ctx)
        return found


_WHOLE = whole_number(1)
_TYPES: dict[type, click.types.IntParamType | click.FloatRange] = {int: _WHOLE, float: FiniteRange(0)}


def _own_option(field: PlanField, option: PlanOption) -> Callable[[F], F]:
    if field.type is bool:
        return click.option(f"{option.name}/--no-{option.name[2:]}", default=None, help=option.help)
    return click.option(option.name, type=_TYPES.get(field.type), metavar=option.metavar, help=option.help)


NAMED = (
    *(_own_option(field, option) for field, option in OPTIONS.values()),
    click.option("--no-lint", "lint", flag_value=False, type=bool, default=True, help="Start what checks find wrong."),
)


def named_values(params: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield option, key and value of each that was given.

    Raises:
        UsageProblem: one was given without a value, or with a list of them.
    """
    for name, (field, own) in OPTIONS.items():
        value, option = params[name], own.name
        if value == "":
            raise UsageProblem(f"{option} is empty", "leave it out, or name a value: an unset variable may stand there")
        if "," in str(value):
            raise UsageProblem(f"{option} '{value}': one value, no list", f"leave {option} out for all of a tag's runs")
        if isinstance(value, bool):
            yield option if value else f"--no-{option[2:]}", field.key, str(value).lower()
        elif value is not None:
            yield option, field.key, str(value)


# Options of results files, and madlite's own columns.

FILE = click.Path(path_type=Path)
MANIFEST = Path("build_manifest.json")  # the default
COLUMNS = ("cause", "reason", "suspect", "run", "notes", "configs")  # perfcsv.rows: a test holds them together


def file_option(*names: str, what: str, **more: Any) -> Callable[[F], F]:
    """Return the option of a file, whose help shows the default; one that is required has none, not even None."""
    return click.option(*names, type=FILE, show_default=True, metavar="FILE", help=what, **more)


def directory_option(*names: str, what: str, **more: Any) -> Callable[[F], F]:
    """Return the option of a folder."""
    return click.option(*names, type=FILE, metavar="DIR", help=what, **more)


output_option = partial(file_option, "-o", "--output", what="What is written.")
OUTPUT = output_option(default="perf.csv", what="Results file.")
RESULTS = (
    OUTPUT,
    click.option("--strict-header", is_flag=True, help="Never add a column to perf.csv."),
    click.option("--add-column", multiple=True, type=click.Choice(COLUMNS), help="Add a column of madlite's own."),
)
SUMMARY = file_option("-s", "--summary-output", what="Also write the outcome as JSON.")
FAIL_ON_SUSPECT = click.option("--fail-on-suspect", is_flag=True, help="Exit with 3 where a success is suspect.")
CLEANUP = click.option("--cleanup-perf", is_flag=True, help="Remove perf_entry.* and perf_entry_super.* at the end.")


# Contract mode: what scripts around version 1 or 2 of madengine expect to see, and which is off by default.
#
# Chosen by `--contract`, else by $MADLITE_CONTRACT, else by the name that the program was called by: `madengine`
# stands for version 2.  Formats: madengine 1.0.0 and 2.1.0, observed; docs/differences.md has what is other all the
# same.

VARIABLE = "MADLITE_CONTRACT"
MADENGINE = "madengine"  # of a link to the program
_VERSIONS = {1: "1.0.0", 2: "2.1.0"}
_ALWAYS = ("name", "url", "dockerfile", "scripts", "data", "n_gpus", "owner", "training_precision", "tags", "args")
_MADLITE_FIELDS = frozenset(("backend", "recipe", "image", "runtimes"))  # fields of a card that madengine does not have
_KEY = "madlite.contract"  # in what the contexts of one command line share


def _note(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    if value is not None:
        ctx.meta[_KEY] = int(value)


contract_option = click.option(
    "--contract",
    type=click.Choice([str(version) for version in _VERSIONS]),
    expose_value=False,
    callback=_note,
    help=f"Add the screen output of madengine 1 or 2 that scripts read.  [${VARIABLE}; 2 under the name {MADENGINE}]",
)
"""Add --contract; `contract` returns the effective version."""


def contract() -> int:
    """Return the version of madengine that this command line is to be like, 0 for none.

    Raises:
        UsageProblem: the environment names another one.
    """
    context = click.get_current_context(silent=True)
    if context is None:
        return 0
    if _KEY in context.meta:
        return int(context.meta[_KEY])
    named = os.environ.get(VARIABLE, "").strip()
    if named and named not in map(str, _VERSIONS):
        raise UsageProblem(f"{VARIABLE}={named} is no contract", f"{VARIABLE}=1 or 2, or unset {VARIABLE}")
    return int(named) if named else 2 if Path(sys.argv[0]).name == MADENGINE else 0


def version_line() -> str:
    """Return what `--version` prints: madlite's own version, or that of the contract in madengine's words."""
    from madlite import __version__  # the public names have options among them

    version = contract()
    lines = {0: f"madlite {__version__}", 1: _VERSIONS[1], 2: f"🚀 {MADENGINE} version {_VERSIONS[2]}"}
    return lines[version]


def cards_text(version: int, cards: Sequence[Mapping[str, Json]], as_json: bool) -> str:
    """Return what `discover` prints of cards in MAD's schema: names one a line, or of those that tags selected JSON."""
    listed = json.dumps([_with_blanks(card) for card in cards], indent=4) if as_json else ""
    names = [str(card["name"]) for card in cards]
    if version == 1:
        lines = [listed] if as_json else [f"Number of models in total: {len(names)}", *names]
        return "\n".join(["Discovering all models in the project", *lines])
    head = f"📊 Available Models ({len(names)} total):"
    lines = [head, *(f"  {name}" for name in names)]
    lines = [f"📋 Selected Models ({len(names)} models):", listed] if as_json else lines
    return "\n".join([*lines, "✅ Model discovery completed successfully"])


def _with_blanks(card: Mapping[str, Json]) -> dict[str, Json]:
    """Return a card as a models.json of MAD has it: what every card has, blank or not; nothing of madlite alone."""
    rest = {
        name: value for name, value in card.items() if name not in _MADLITE_FIELDS and (name, value) != ("timeout", -1)
    }
    return {**{name: card.get(name, "") for name in _ALWAYS}, **rest}


def closing_lines(version: int, outcome: RunOutcome, *, from_manifest: bool) -> Iterator[str]:
    """Yield the last lines of a batch; a run that never started is one that failed."""
    failed = sum(result.status is Status.FAILURE for result in outcome.results) + len(outcome.not_started)
    if version == 1:
        yield from ["===== EXCEPTION ====="] if failed else []
        yield "Some models failed to run." if failed else "All models ran successfully."
    elif version == 2 and from_manifest:
        well = "🎉 All model executions completed successfully!"
        yield f"💥 Execution failed for {failed} models" if failed else well
    elif version == 2:
        well = "🎉 Complete workflow finished successfully!"
        yield f"💥 Workflow completed but {failed} model executions failed" if failed else well


_AGE = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,3})?)\s*([mhdw])")
_DAY = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2})(?:[T ]([0-9]{2}:[0-9]{2}(?::[0-9]{2})?)Z?)?")
_PERCENT = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*%")
_SECONDS = {"m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


class TextType(click.ParamType):  # type: ignore[type-arg]
    """A value that a function reads from a text, or refuses with ValueError."""

    def __init__(self, name: str, read: Callable[[str], object], examples: str) -> None:
        self.name, self._read, self._examples = name, read, examples

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the value; a default has it already."""
        if not isinstance(value, str):
            return value
        try:
            return self._read(value.strip())
        except (ValueError, OverflowError):  # a 31st of February, more days than years have
            self.fail(f"{value!r} is no {self.name}: write {self._examples}", param, ctx)


def matching(pattern: str) -> Callable[[str], str]:
    """Return what reads a text that is as a pattern has it."""

    def read(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(text)
        return text

    return read


def _seconds(text: str) -> float:
    if (found := _AGE.fullmatch(text)) is None:
        raise ValueError(text)
    return float(found[1]) * _SECONDS[found[2]]


def _time(text: str, end: bool = False) -> datetime:
    """Return a time in UTC: an age before now, a day, or a day with a time; a day alone begins, or with `end` ends."""
    found = _DAY.fullmatch(text)
    if found is None:
        return datetime.now(timezone.utc) - timedelta(seconds=_seconds(text))
    day = datetime.fromisoformat(f"{found[1]}T{found[2] or '00:00'}+00:00")
    return day + timedelta(days=1 if end and not found[2] else 0)


def _part(text: str) -> float:
    """Return the part that a percentage is; a number without its sign could be meant as either."""
    if (found := _PERCENT.fullmatch(text)) is None:
        raise ValueError(text)
    return float(found[1]) / 100


_TIMES = "2d, 12h, 2026-11-01 or 2026-11-01T14:30"
SIZE = TextType("size", as_size, "500M or 2G, at least 16K")
PERCENT = TextType("percentage", _part, "1%, 0.5%")
AGE = TextType("age", _seconds, "90m, 12h, 30d or 4w")
SINCE, UNTIL = TextType("time", _time, _TIMES), TextType("time", partial(_time, end=True), _TIMES)
EFFECT = click.option(
    "--effect",
    type=PERCENT,
    default="1%",
    show_default=True,
    metavar="PERCENT",
    help="The least change that matters, as 1%.",
)
