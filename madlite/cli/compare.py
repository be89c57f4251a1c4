"""`madlite compare`: two sides of results, series by series, with a verdict for each; `madlite baseline`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_args

import click

from madlite.cli import setup
from madlite.cli.arguments import EFFECT, PERCENT, FiniteRange, file_option
from madlite.cli.main import Group
from madlite.cli.options import Command, complete_runs, folder_options, read_where, where_option
from madlite.cli.terminal import echo, echo_status, without_secrets
from madlite.errors import ExitCode, UsageProblem, did_you_mean, one_hint
from madlite.files import write_named
from madlite.model import to_json
from madlite.reports.baselines import baseline_names, drop_baseline, load_baseline, save_baseline
from madlite.reports.compare import (
    MOST_DIFFERENCES,
    Comparison,
    Report,
    Settings,
    Trip,
    as_junit,
    as_markdown,
    closing_notes,
    difference_text,
    interval_text,
    p_text,
    read_gates,
    runs_needed,
    summary,
    trips,
)
from madlite.reports.compare import as_json as json_of
from madlite.reports.comparison import compare_published, compare_runs, compare_sides, relative_change
from madlite.reports.index import RunIndex, open_index
from madlite.reports.references import load_references
from madlite.reports.runs import LAST, runs_folder
from madlite.reports.selectors import (
    PUBLISHED,
    Side,
    is_baseline,
    newest_side,
    read_columns,
    read_side,
    run_history,
    without_shared,
)
from madlite.reports.series import Direction
from madlite.reports.series_key import DIMENSIONS, series_name, series_names
from madlite.text import align, change, counted, figure, printable

if TYPE_CHECKING:
    from madlite.run.result_writer import RelativeChange


_MOST_TRIPS = 10


@click.command("compare", cls=Command)
@click.argument("base", shell_complete=complete_runs)
@click.argument("new", required=False, shell_complete=complete_runs)
@where_option
@click.option("--by", default="", metavar="COLUMN", help="Compare two values of a column of one file.")
@click.option("--across", default="", metavar="KEY[,KEY]", help="Compare series that differ in these, as micro_batch.")
@EFFECT
@click.option(
    "--noise",
    type=PERCENT,
    metavar="PERCENT",
    help="Variation between sittings, or of runs in turns, std ÷ mean.  [default: from earlier runs, else these]",
)
@click.option(
    "--alpha",
    type=FiniteRange(0, 0.5, min_open=True),
    default=0.05,
    show_default=True,
    metavar="P",
    help="A change is significant below this p.",
)
@click.option(
    "--better",
    multiple=True,
    metavar="METRIC=higher|lower",
    help="Which values of a metric are better, where its name does not tell.",
)
@click.option(
    "--fail-on",
    multiple=True,
    metavar="GATE",
    help="Exit with 5 on 'regression>3%', 'improvement>5%', suspicious, missing or failure.",
)
@click.option("--require-data", is_flag=True, help="Exit with 5 where a series has too few runs, or is missing.")
@click.option(
    "--allow-undecided", is_flag=True, help="Too few runs to decide are no reason for --fail-on to exit with 5."
)
@click.option("--top", type=click.IntRange(min=0), default=40, show_default=True, metavar="N", help="Rows; 0 all.")
@click.option("--json", "as_json", is_flag=True, help="Print an object.")
@click.option("--markdown", is_flag=True, help="Print Markdown for a pull request.")
@file_option("--junit", what="Also write JUnit's XML.")
@folder_options
def command(
    base: str,
    new: str | None,
    where: tuple[str, ...],
    by: str,
    across: str,
    fail_on: tuple[str, ...],
    require_data: bool,
    allow_undecided: bool,
    top: int,
    as_json: bool,
    markdown: bool,
    junit: Path | None,
    directory: Path,
    **changes: Any,
) -> int:
    """Compare results: ratio, interval, significance and verdict of each series.

    BASE and NEW are results files, folders, runs (an id, last, last~1), studies (an id, study=last), baselines, or
    KEY=VALUE of the runs of this folder. NEW is the last run where it is not named, or against a baseline each series'
    newest batch or study. With --by they are two values of a column of BASE. As BASE, published is every published
    figure that applies to NEW.

    \b
    madlite compare old/perf.csv perf.csv --fail-on 'regression>3%'
    madlite compare last~1 last
    madlite compare perf.csv --by docker_image --markdown
    madlite compare published last
    """
    gates = read_gates(fail_on)
    settings = _settings(**changes)
    filters = read_where(where)
    with open_index(runs_folder(directory)) as index:
        if base == PUBLISHED and not by:
            if across:
                what = f"--across {across!r} has no published figures"
                raise UsageProblem(what, "docs/compare.md: which figures apply")
            report = compare_with_published(read_side(new or LAST, index, filters), index, settings, directory)
        else:
            side, other = _sides(base, new, by, index, filters)
            report = compare_sides(side, without_shared(side, other), index, settings, across=_dimensions(across))
    found = trips(report, gates, require_data=require_data, allow_undecided=allow_undecided)
    if junit is not None:
        write_named(junit, without_secrets(as_junit(report, found)))
    if as_json:
        click.echo(without_secrets(json_of(report, found)), nl=False)
    elif markdown:
        click.echo(without_secrets(as_markdown(report, found, top)), nl=False)
    else:
        show(report, found, top)
    return int(ExitCode.RESULT_CHECK_FAILED if found else ExitCode.OK)


def _settings(*, effect: float, noise: float | None, alpha: float, better: Sequence[str]) -> Settings:
    """Return what the options say.

    Raises:
        UsageProblem: a direction is none.
    """
    directions: dict[str, Direction] = {}
    for text in better:
        metric, _, word = text.rpartition("=")
        if not metric or word not in get_args(Direction):
            raise UsageProblem(f"--better {text!r} names no direction", "--better 'score=higher', lower or neutral")
        directions[metric] = cast(Direction, word)
    return Settings(effect=effect, noise=noise, alpha=alpha, better=directions)


def _dimensions(text: str) -> list[str]:

    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in DIMENSIONS:
            known = f"one of {', '.join(DIMENSIONS)}"
            raise UsageProblem(
                f"--across {name!r} is no dimension", one_hint(did_you_mean(name, DIMENSIONS, most=1), known)
            )
    return names


def _sides(base: str, new: str | None, by: str, index: RunIndex, where: dict[str, str]) -> tuple[Side, Side]:
    if by:
        return _columns(base, new, by, where)
    side = read_side(base, index, where)
    if new is None and is_baseline(base, index.folder):
        return side, newest_side(side, index, where)
    return side, read_side(new or LAST, index, where)


def compare_with_published(side: Side, index: RunIndex, settings: Settings, directory: Path) -> Report:
    """Return the comparison of published figures, of plugins and of the user's own files, with one side."""
    plugins = setup.load()
    setup.print_problems(plugins.problems)
    references = load_references(plugins, directory, os.environ)
    return compare_published(references, side, settings=settings, history=run_history(index, side.runs))


def _columns(file: str, values: str | None, by: str, where: dict[str, str]) -> tuple[Side, Side]:
    """Return the two values of a column: those named as OLD,NEW, else the last two of the file."""
    every = {side.label.partition("=")[2]: side for side in read_columns(Path(file), by, where) if side.series}
    wanted = [text.strip() for text in values.split(",")] if values else list(every)[-2:]
    missing = [text for text in wanted if text not in every]
    if missing or len(wanted) != 2:
        what = f"{file} has no {by} {missing[0]!r}" if missing else f"{file} has {len(every)} values of {by}, not two"
        raise UsageProblem(what, f"madlite compare {file} OLD,NEW --by {by}; it has {', '.join(list(every)[-6:])}")
    return every[wanted[0]], every[wanted[1]]


# The table.


def show(report: Report, found: Sequence[Trip], most: int) -> None:
    """Print a comparison: the table, what differs, notes, and which gates tripped."""
    shown = report.comparisons[:most] if most else report.comparisons
    shared = _shared(shown) if len(shown) > 1 else {}  # the dimensions that all rows share
    echo(f"{report.base} → {report.new}   {series_name(shared) if shared else ''}".rstrip())
    if shown:
        _table(shown, shared)
    left = len(report.comparisons) - len(shown)
    echo(summary(report) + (f"; --top 0 shows the other {left}" if left else ""))
    echo(*_differences(shown), *(f"note: {note}" for note in closing_notes(report)))
    for trip in found[:_MOST_TRIPS]:
        echo_status(f"failed {trip.gate}: {trip.series}: {trip.reason}")
    if len(found) > _MOST_TRIPS:
        echo(f"failed for {len(found) - _MOST_TRIPS} series more: --json")


def _shared(shown: Sequence[Comparison]) -> dict[str, str]:
    every = [comparison.pair.known for comparison in shown]
    return {
        name: text for name, text in every[0].items() if name != "model" and all(known[name] == text for known in every)
    }


def _table(shown: Sequence[Comparison], shared: Mapping[str, str]) -> None:
    rows: list[tuple[str, ...]] = [("SERIES", "BASE", "NEW", "CHANGE", "INTERVAL", "RUNS", "VERDICT")]
    own = ({name: text for name, text in comparison.pair.known.items() if name not in shared} for comparison in shown)
    cells = zip(shown, series_names(list(own)), strict=True)
    rows += [tuple(map(printable, _cells(comparison, name))) for comparison, name in cells]
    echo_status(*align(rows))


def _cells(comparison: Comparison, name: str) -> Iterator[str]:

    base, new = comparison.pair.base, comparison.pair.new
    yield _to_source(name, comparison)
    yield figure(comparison.base, "-")
    yield figure(comparison.new, "-")
    yield change(comparison.change, "-")
    yield interval_text(comparison) or "-"
    yield f"{len(base.values)}/{len(new.values)}"
    p = f" ({p_text(comparison.p)})" if comparison.p is not None else ""
    yield comparison.verdict.value + p + (f": {comparison.reason}" if comparison.reason else "")


def _differences(shown: Sequence[Comparison]) -> Iterator[str]:
    """Yield what differs: once where it is the same for every row, else under each row's name."""
    told: dict[tuple[str, ...], list[Comparison]] = {}
    for comparison in shown:
        told.setdefault(tuple(map(difference_text, comparison.differences)), []).append(comparison)
    for texts, members in told.items():
        if texts:
            of = f" of {_to_source(members[0].pair.new['model'], members[0])}"
            more = f" and {len(members) - 1} more" if len(members) > 1 else ""
            yield f"differs{of}{more}:" if len(told) > 1 else "differs:"
            yield from (f"  {text}" for text in texts[:MOST_DIFFERENCES])
            if len(texts) > MOST_DIFFERENCES:
                yield f"  and {len(texts) - MOST_DIFFERENCES} more: --json"


def _to_source(name: str, comparison: Comparison) -> str:
    return f"{name} to {comparison.source}" if comparison.source else name


# `madlite run --baseline`.


_GOOD_REPEAT = 5  # finds 3 % in 95 of 100 comparisons where runs vary by 1 %
_MOST_REPEAT = 10
_FEW_OF_BASE = "a baseline of 5 runs and --repeat 5"


class AgainstBaseline:
    """What the runs of a command are compared with.

    Raises:
        UsageProblem: nothing is named so, or a gate is none.
    """

    def __init__(self, name: str, fail_on: Sequence[str], workspace: Path, *, allow_undecided: bool = False) -> None:

        self._gates, self._allow_undecided = read_gates(fail_on), allow_undecided
        self._runs = runs_folder(workspace)
        with open_index(self._runs) as index:
            self._side = read_side(name, index, {})
        self.cell: RelativeChange = partial(relative_change, self._side)  # fills the column `relative_change`

    def warning(self, runs: int) -> str:
        """Return that so many runs of each series cannot decide a gate, and how many can; "" where they can."""
        counts = [len(series.values) for series in self._side.series if series.values]
        if (
            self._allow_undecided
            or not counts
            or not any(gate.what in ("regression", "improvement") for gate in self._gates)
        ):
            return ""
        base = max(counts)
        needed = runs_needed(base, Settings().alpha)
        if needed and runs >= needed:
            return ""
        have = f"{counted(runs, 'run')} against {base} of {self._side.label}"
        more = f"--repeat {max(needed, _GOOD_REPEAT)}" if needed and needed <= _MOST_REPEAT else _FEW_OF_BASE
        return f"--fail-on: {have} cannot decide, and undecided is exit code 5: {more}, or --allow-undecided"

    def show(self, folders: Iterable[Path]) -> bool:
        """Print the comparison of the runs in these folders, and return whether a gate tripped."""
        report = compare_runs(self._side, self._runs, folders)
        found = trips(report, self._gates, allow_undecided=self._allow_undecided)
        show(report, found, most=0)
        return bool(found)


@click.group("baseline", cls=Group)
def baseline() -> None:
    """Name results that later ones are compared with.

    \b
    madlite baseline set v25.2 old/perf.csv
    madlite compare v25.2 perf.csv
    """


@baseline.command("set", short_help="Keep results under a name.")
@click.argument("name")
@click.argument("source", shell_complete=complete_runs)
@where_option
@click.option("--force", is_flag=True, help="Replace a baseline that is there.")
@folder_options
def set_(name: str, source: str, where: tuple[str, ...], force: bool, directory: Path) -> None:
    """Keep the results of SOURCE as baseline NAME: a results file, a folder, a run, a study or KEY=VALUE.

    The baseline has the numbers themselves: it stays when the runs are gone.

    \b
    madlite baseline set v25.2 old/perf.csv
    madlite baseline set tuesday last
    """
    runs = runs_folder(directory)
    if name in baseline_names(runs) and not force:
        raise UsageProblem(f"there is a baseline '{name}'", f"madlite baseline set {name} {source} --force replaces it")
    with open_index(runs) as index:
        side = read_side(source, index, read_where(where))
    saved = save_baseline(runs, name, side.label, side.series, side.runs)
    numbers = sum(len(series.values) for series in saved.series)
    echo(f"baseline {name}: {len(saved.series)} series, {numbers} results of {side.label}")


@baseline.command("list", short_help="List the baselines of this folder.")
@click.option("--json", "as_json", is_flag=True, help="Print the baselines, with their numbers.")
@folder_options
def list_(as_json: bool, directory: Path) -> None:
    """List the baselines of this folder: name, when, how many series and results, of what."""
    runs, found = runs_folder(directory), []
    for name in baseline_names(runs):
        try:
            found.append(load_baseline(runs, name))
        except UsageProblem as problem:
            setup.warn(problem.message)
    if as_json:
        click.echo(without_secrets(to_json(found)), nl=False)
        return
    rows = [("NAME", "WHEN (UTC)", "SERIES", "RESULTS", "OF")]
    for kept in found:
        numbers = sum(len(series.values) for series in kept.series)
        when = kept.at[:19].replace("T", " ")
        rows.append((kept.name, when, str(len(kept.series)), str(numbers), printable(kept.source)))
    echo(*(align(rows) if found else [f"no baselines in {runs}; madlite baseline set NAME perf.csv"]))


@baseline.command("drop", short_help="Remove a baseline.")
@click.argument("name")
@folder_options
def drop(name: str, directory: Path) -> None:
    """Remove a baseline; runs and results files stay as they are."""
    drop_baseline(runs_folder(directory), name)
    echo(f"baseline {name} is gone")
