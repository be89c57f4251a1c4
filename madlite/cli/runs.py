"""`madlite runs`: the runs of this folder, one line each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from madlite.batch.recovery.leftovers import recovery_report
from madlite.cli import setup
from madlite.cli.arguments import SINCE, UNTIL
from madlite.cli.completion import complete_run_fields, complete_run_values, complete_status
from madlite.cli.options import TagsCommand, dir_option, read_filters, tags_option, verbose_option
from madlite.cli.terminal import echo, echo_json, echo_status, without_secrets
from madlite.model import Json
from madlite.reports import listing
from madlite.reports.index import RunFilter, RunIndex
from madlite.reports.listing import LISTED, Fields, RunGroup, group_runs, heading, narrowed, ordered
from madlite.reports.runs import runs_folder
from madlite.text import duration, printable, shortened, status_text

if TYPE_CHECKING:
    from madlite.reports.runs import StoredRun

_LONGEST = 60  # characters of a cell


@click.command("runs", cls=TagsCommand)
@tags_option
@click.option(
    "--status",
    default="",
    metavar="WORD",
    shell_complete=complete_status,
    help="Only success, suspect, failure, tried-again, skipped, not-collected, running, cut-off, or a cause.",
)
@click.option(
    "--of",
    default="",
    metavar="ID",
    help="Only those of a batch or of a study: the beginning of its id, or last: the newest study.",
)
@click.option("--limit", type=click.IntRange(min=0), default=0, metavar="N", help="Only the newest N; 0 all.")
@click.option(
    "--where",
    multiple=True,
    metavar="KEY=VALUE",
    shell_complete=complete_run_values,
    help="Only with this value of a column, dimension (device, gpus) or fact ('image digest'). Repeatable.",
)
@click.option("--since", type=SINCE, metavar="TIME", help="Only those that started since: 2d, 12h ago, 2026-11-01.")
@click.option("--until", type=UNTIL, metavar="TIME", help="Only those that started until then, that day included.")
@click.option(
    "--columns",
    default="",
    metavar="NAME[,NAME]",
    shell_complete=complete_run_fields,
    help="Show these: columns of --csv, dimensions, facts.",
)
@click.option(
    "--sort",
    default="",
    metavar="[-]NAME[,...]",
    shell_complete=complete_run_fields,
    help="By these values, numbers as numbers; -NAME: the largest first.",
)
@click.option(
    "--group",
    "group_by",
    type=click.Choice(["study", "batch", "series", "card"]),
    help="A heading for each, with n, median, CV, range and failures.",
)
@click.option("--json", "as_json", is_flag=True, help="Print a list of objects.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV, without formulas and control characters.")
@dir_option
@verbose_option
def command(
    tags: tuple[str, ...],
    status: str,
    of: str,
    limit: int,
    where: tuple[str, ...],
    since: datetime | None,
    until: datetime | None,
    columns: str,
    sort: str,
    group_by: str | None,
    as_json: bool,
    as_csv: bool,
    directory: Path,
) -> None:
    """List the runs of this folder, the newest last.

    \b
    madlite runs --status failure --limit 20
    madlite runs --tags llama --csv > runs.csv
    madlite runs --where device=MI300X --since 2d --sort -performance
    madlite runs --columns id,performance,'image digest' --group series
    """
    folder = runs_folder(directory)
    with RunIndex(folder) as index:
        index.refresh()
        of = index.named_by(of)
        filters = RunFilter(
            status=status,
            words=tuple(word for text in tags for word in text.split(",")),
            of=of,
            since=_utc(since),
            until=_utc(until and until - timedelta(seconds=1)),  # the end is none of it
        )
        if any((where, columns, sort, group_by)):  # they may need any field of a record
            found = _of_records(index, filters, limit, where, _parts(columns), _parts(sort))
        else:
            found = _of_index(index, filters, limit)
        unknown = _unknown_id(index, of) if of and not found.chosen else ""
    if found.chosen or as_json or as_csv:
        _show(found.chosen, found.columns, group_by or "", as_json=as_json, as_csv=as_csv)
        if of and not (as_json or as_csv or group_by):
            echo(*_outcome(found.chosen, folder.parent))
    else:
        echo(f"no runs in {folder}" if not found.total else f"none of {found.total} runs is one of those")
    for text in (
        *filter(None, [unknown]),
        *found.notes,
        *listing.problems(found.in_doubt),
        *recovery_report(folder.parent),
    ):
        setup.warn(text)


class _Found(NamedTuple):
    """The runs that are shown, how many there are in all, those in doubt, columns by their names, and notes."""

    chosen: Sequence[StoredRun]
    total: int
    in_doubt: Sequence[StoredRun]
    columns: list[str] = []
    notes: Sequence[str] = ()


def _of_index(index: RunIndex, filters: RunFilter, limit: int) -> _Found:
    """Return runs as the index has them, all that a line shows; of a batch or study their records, for statistics."""
    chosen = index.newest(filters, limit)
    if filters.of:
        chosen = index.opened([run.folder.name for run in chosen])
    return _Found(chosen, index.count(), index.problems())


def _of_records(
    index: RunIndex,
    filters: RunFilter,
    limit: int,
    where: tuple[str, ...],
    columns: Sequence[str],
    sort: Sequence[str],
) -> _Found:
    """Return runs whose records were read, by values of any of their fields."""
    every = index.opened(index.ids())
    fields = Fields(every)
    wanted = [(fields.name(name, "--where"), text) for name, text in read_filters(where)]
    shown = [fields.name(name, "--columns") for name in columns]
    order = [(fields.name(name.removeprefix("-"), "--sort"), name.startswith("-")) for name in sort]
    ids = {*index.ids(filters)}
    chosen = narrowed((run for run in every if run.folder.name in ids), wanted)
    unknown = fields.missing(name for name, _ in (*wanted, *((name, "") for name in shown), *order))
    return _Found(ordered(chosen[-limit:] if limit else chosen, order), len(every), every, shown, tuple(unknown))


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _utc(when: datetime | None) -> str:
    """Return a time as runs have it."""
    return f"{when:%Y-%m-%d %H:%M:%S}" if when is not None else ""


def _show(chosen: Sequence[StoredRun], columns: list[str], group_by: str, *, as_json: bool, as_csv: bool) -> None:

    groups = group_runs(chosen, group_by) if group_by else [RunGroup(by="", name="", runs=tuple(chosen))]
    if as_json:
        echo_json(_objects(groups, columns))
    elif as_csv:
        click.echo(without_secrets("".join(_csv(groups, columns))), nl=False)
    else:
        _table(groups, columns)


def _objects(groups: Sequence[RunGroup], columns: Sequence[str]) -> list[dict[str, Json]]:

    def objects(runs: Sequence[StoredRun]) -> list[dict[str, Json]]:
        return [listing.as_json(run, columns) for run in runs]

    if len(groups) == 1 and not groups[0].by:
        return objects(groups[0].runs)
    return [listing.group_json(group, objects(group.runs)) for group in groups]


def _csv(groups: Sequence[RunGroup], columns: Sequence[str]) -> Iterator[str]:
    """Yield the lines of the CSV; of groups with their names as the first column."""
    names = list(columns or LISTED)
    grouped = any(group.by for group in groups)
    rows = (
        [*([group.name] if grouped else []), *listing.csv_cells(run, names)] for group in groups for run in group.runs
    )
    return listing.as_csv([*(["group"] if grouped else []), *names], rows)


def _table(groups: Sequence[RunGroup], columns: Sequence[str]) -> None:

    runs = [run for group in groups for run in group.runs]
    (head, _), *lines = listing.as_table(runs, columns) if columns else _default_table(runs)
    echo(head)
    rest = iter(lines)
    for group in groups:
        for text in heading(group) if group.by else ():
            echo(printable(text))
        for _ in group.runs:
            line, place = next(rest)
            echo(line) if place is None else echo_status(line, place)


def _outcome(runs: Sequence[StoredRun], workspace: Path) -> list[str]:
    """Return what the study came to whose runs these are; nothing of other runs."""
    if not any(run.record.study is not None for run in runs):
        return []
    from madlite.cli.studies import outcome_lines

    return outcome_lines(runs, workspace)


def _unknown_id(index: RunIndex, of: str) -> str:
    from madlite.cli.studies import unknown_id

    return unknown_id(index, of)


def _default_table(runs: Sequence[StoredRun]) -> list[tuple[str, int | None]]:
    texts = ((run.folder.name, *(shortened(printable(text), _LONGEST) for text in _cells(run))) for run in runs)
    return listing.table([listing.HEAD, *texts], listing.HEAD.index("STATUS"))


def _cells(run: StoredRun) -> Iterator[str]:
    record, headline = run.record, run.headline
    took_s = record.durations_s.get("total")
    yield run.when
    yield record.card or "-"
    yield record.backend or "-"
    yield (record.variant.mode if record.variant else "") or "-"
    yield (record.variant.precision if record.variant else "") or "-"
    yield _gpus(run)
    doubt = " (not as madlite left it)" if run.doubt else ""
    marks = {
        "not collected": not run.collected and not record.is_replaced,
        "imported": bool(run.origin),
        "pruned": bool(run.pruned),
        "warm-up": record.is_warm_up,
        "short": record.is_short,
        "tried again": record.is_replaced,
    }
    more = "".join(f", {word}" for word, is_so in marks.items() if is_so)
    yield status_text(run.state, record.suspect) + (f" [{record.cause}]" if record.cause else "") + more + doubt
    yield f"{headline.text} {headline.metric}" if headline else "-"
    yield "-" if took_s is None else duration(took_s)


def _gpus(run: StoredRun) -> str:
    """Return how many GPUs of which kind a run had, as its title has it."""
    if run.n_gpus is None:
        return run.record.device or "-"
    return f"{run.n_gpus}x{run.record.device or 'GPU'}" if run.n_gpus else "cpu"
