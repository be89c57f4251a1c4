"""`madlite runs`: the runs of this folder, one line each; `runs collect`: the rows that perf.csv lacks of them."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from datetime import datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from madlite.batch.attempts import exit_code
from madlite.batch.collect import Collected, collect_all, cut_off_runs, of_other_hosts
from madlite.batch.leftovers import left_running, recovery_report
from madlite.cli import setup
from madlite.cli.arguments import OUTPUT, SINCE, UNTIL, contract, contract_option
from madlite.cli.options import (
    Command,
    TagsCommand,
    complete_runs,
    folder_options,
    is_given,
    read_filters,
    selecting_option,
    tags_option,
    verbose_option,
)
from madlite.cli.terminal import echo, echo_json, echo_status
from madlite.errors import ExitCode, UsageProblem
from madlite.jobs.submission import folders_of_jobs, stored_submissions
from madlite.perfcsv.append import check_appendable, make_folder
from madlite.perfcsv.rows import new_columns
from madlite.perfcsv.side_files import write_waiting
from madlite.plan.inputs import RUNS
from madlite.reports import listing
from madlite.reports.index import RunFilter, RunIndex, open_index
from madlite.reports.listing import Fields, RunGroup, group_runs, heading, narrowed, ordered
from madlite.reports.runs import StoredRun, match_runs, runs_folder
from madlite.store.folder import uncollected
from madlite.text import align, duration, printable, shortened, status_text

if TYPE_CHECKING:
    from madlite.jobs.follow import Follower

_LONGEST = 60  # characters of a cell


@click.command("runs", cls=TagsCommand)
@tags_option
@click.option(
    "--status", default="", metavar="WORD", help="Only success, suspect, failure, running, cut-off, … or a cause."
)
@click.option("--of", default="", metavar="ID", help="Only those of a batch or study: a part of its id, or last.")
@click.option("--limit", type=click.IntRange(min=0), default=0, metavar="N", help="Only the newest N; 0 all.")
@click.option("--where", multiple=True, metavar="KEY=VALUE", help="Only with this column, dimension or fact.")
@click.option("--since", type=SINCE, metavar="TIME", help="Only those that started since: 2d, 12h ago, 2026-11-01.")
@click.option("--until", type=UNTIL, metavar="TIME", help="Only those that started until then, that day included.")
@click.option("--columns", default="", metavar="NAME[,NAME]", help="Show these columns, dimensions or facts.")
@click.option("--sort", default="", metavar="[-]NAME[,...]", help="By these values; -NAME: the largest first.")
@click.option(
    "--group", "group_by", type=click.Choice(["study", "batch", "series", "card"]), help="A heading for each."
)
@click.option("--json", "as_json", is_flag=True, help="Print a list of objects.")
@selecting_option("--watch", "Show how far they are, as long as they go on")
@folder_options
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
    directory: Path,
) -> None:
    """List the runs of this folder, the newest last.

    \b
    madlite runs --status failure --limit 20
    madlite runs --tags llama --json > runs.json
    madlite runs --where device=MI300X --since 2d --sort -performance
    madlite runs --columns id,performance,'image digest' --group series
    madlite runs collect

    With --watch it shows how far they are as they go on. `madlite runs collect` appends what perf.csv lacks of them.
    """
    if tags and not is_given("tags"):
        raise UsageProblem(f"madlite runs has no command '{tags[0]}'", f"madlite runs --tags {tags[0]}")
    folder = runs_folder(directory)
    with open_index(folder) as index:
        of = index.named_by(of)
        filters = RunFilter(
            status=status,
            q=",".join(tags),
            of=of,
            since=_utc(since),
            until=_utc(until and until - timedelta(seconds=1)),  # the end is none of it
        )
        if any((where, columns, sort, group_by, of)):  # they may need any field of a record
            found = _of_records(index, filters, limit, where, _parts(columns), _parts(sort))
        else:
            found = _Found(index.newest(filters, limit))
        total, unreadable = index.count(), index.problems()
        if of and not found.chosen:
            from madlite.cli.studies import unknown_id

            found = found._replace(notes=(unknown_id(index, of), *found.notes))
    if found.chosen or as_json:
        _show(found.chosen, found.columns, group_by or "", as_json=as_json)
        if any(run.record.study for run in found.chosen) and of and not (as_json or group_by):
            from madlite.cli.studies import outcome_lines

            echo(*outcome_lines(found.chosen, folder.parent))
    else:
        echo(f"no runs in {folder}" if not total else f"none of {total} runs is one of those")
    setup.warn(
        *filter(None, found.notes), *listing.problems((*unreadable, *found.chosen)), *recovery_report(folder.parent)
    )


class _Found(NamedTuple):
    """The runs that are shown, columns by their names, and notes."""

    chosen: Sequence[StoredRun]
    columns: list[str] = []
    notes: Sequence[str] = ()


def _of_records(
    index: RunIndex, filters: RunFilter, limit: int, where: tuple[str, ...], columns: Sequence[str], sort: Sequence[str]
) -> _Found:
    """Return runs whose records were read, by values of any of their fields."""
    every = index.opened(index.ids(filters))
    fields = Fields(every)
    wanted = [(fields.name(name, "--where"), text) for name, text in read_filters(where)]
    shown = [fields.name(name, "--columns") for name in columns]
    order = [(fields.name(name.removeprefix("-"), "--sort"), name.startswith("-")) for name in sort]
    chosen = narrowed(every, wanted)
    unknown = fields.missing(name for name, _ in (*wanted, *((name, "") for name in shown), *order))
    return _Found(ordered(chosen[-limit:] if limit else chosen, order), shown, tuple(unknown))


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _utc(when: datetime | None) -> str:
    """Return a time as runs have it."""
    return f"{when:%Y-%m-%d %H:%M:%S}" if when is not None else ""


def _show(chosen: Sequence[StoredRun], columns: list[str], group_by: str, *, as_json: bool) -> None:

    groups = group_runs(chosen, group_by) if group_by else [RunGroup(by="", name="", runs=tuple(chosen))]
    if as_json and group_by:
        echo_json([listing.group_json(group, columns) for group in groups])
    elif as_json:
        echo_json([listing.as_json(run, columns) for run in chosen])
    else:
        _table(groups, columns)


def _table(groups: Sequence[RunGroup], columns: Sequence[str]) -> None:

    runs = [run for group in groups for run in group.runs]
    head, *lines = listing.as_table(runs, columns) if columns else _default_table(runs)
    echo(head)
    rest = iter(lines)
    for group in groups:
        echo(*(map(printable, heading(group)) if group.by else ()))
        echo_status(*islice(rest, len(group.runs)))


def _default_table(runs: Sequence[StoredRun]) -> list[str]:
    texts = ((run.folder.name, *(shortened(printable(text), _LONGEST) for text in _cells(run))) for run in runs)
    return align([listing.HEAD, *texts])


def _cells(run: StoredRun) -> Iterator[str]:
    record, headline = run.record, run.headline
    took_s = record.durations_s.get("total")
    yield run.when
    yield record.card or "-"
    yield record.backend or "-"
    yield (record.variant.mode if record.variant else "") or "-"
    yield (record.variant.precision if record.variant else "") or "-"
    yield _gpus(run)
    marks = {
        "not collected": not run.collected and not record.is_replaced,
        "imported": bool(run.origin),
        "pruned": bool(run.pruned),
        "warm-up": record.is_warm_up,
        "short": record.is_short,
        "tried again": record.is_replaced,
        f"attempt {record.attempt.number if record.attempt else 1}": bool(record.attempt and record.attempt.earlier),
    }
    more = "".join(f", {word}" for word, is_so in marks.items() if is_so)
    yield status_text(run.state, record.suspect, record.cause) + more
    yield f"{headline.text} {headline.metric}" if headline else "-"
    yield "-" if took_s is None else duration(took_s)


def _gpus(run: StoredRun) -> str:
    """Return how many GPUs of which kind a run had, as its title has it."""
    if run.n_gpus is None:
        return run.record.device or "-"
    return f"{run.n_gpus}x{run.record.device or 'GPU'}" if run.n_gpus else "cpu"


@click.command("runs collect", cls=Command)
@click.argument("run", nargs=-1, shell_complete=complete_runs)
@OUTPUT
@contract_option
@verbose_option
def collect(run: tuple[str, ...], output: Path) -> int:
    """Append what runs with --no-rows came to to perf.csv, each once.

    RUN is the id of a run, a part or a pattern of it, or its folder; without one all that wait here are taken, and the
    jobs of a cluster are asked about: a run whose job is over and that left no result gets a row that says why. So does
    a run whose madlite was killed, in the results file that it was for unless -o names one.

    \b
    madlite runs collect
    madlite runs collect '20261121*' -o nightly.csv

    Ends with the exit code that the runs would have had; 3 also where one of them cannot be collected.
    """
    here = Path.cwd()
    file = here / output
    jobs = None if run else _collect_jobs(output if is_given("output") else None)
    going_on, begin = folders_of_jobs(here), new_columns(contract())
    folders, cut_off = _folders(run, here, going_on)
    if folders or cut_off:
        check_appendable(file, here)
        make_folder(Path(os.path.realpath(file)))
    if not run:
        setup.warn(
            *(f"{name}: {text}" for name, text in of_other_hosts(here).items() if here / RUNS / name not in going_on)
        )
    running = left_running(here, dict(os.environ), setup.load().runtimes()) if cut_off else {}
    done = collect_all(cut_off, here, file, begin, running, named=not is_given("output"))
    done += collect_all(folders, here, file, begin)
    for collected in done:
        _print_collected(collected)
    setup.warn(*write_waiting(here))
    if not done and (jobs is None or not jobs.results):
        echo("nothing to collect")
    of_jobs = jobs.results if jobs is not None else []
    code = exit_code([*of_jobs, *(collected.result for collected in done if collected.result is not None)])
    failed = any(collected.failed for collected in done) or (jobs is not None and jobs.failed)
    return int(ExitCode.RUN_FAILED if failed else code)


def _collect_jobs(output: Path | None) -> Follower | None:
    """Write the rows of the runs whose jobs are over, and name those that go on; None where there are no jobs.

    They go to `output`, or to the results file of each command that submitted them.
    """
    here = Path.cwd()
    stored = tuple(submission for submission in stored_submissions(here) if submission.open_runs)
    if not stored:
        return None
    from madlite.cli.job_screen import open_jobs

    for file in dict.fromkeys(here / (output or submission.submission.output) for submission in stored):
        check_appendable(file, here)
    screen, follower = open_jobs(stored, output=output)
    screen.close(follower, follower.collect())
    return follower


def _print_collected(collected: Collected) -> None:
    from madlite.cli.format import outcome_text

    if collected.failed:
        setup.warn(f"{collected.run_id}: {collected.message}")
    else:
        echo(f"{collected.run_id}: {outcome_text(collected.result)}{collected.message}")
    setup.warn(*collected.warnings)


def _folders(names: Sequence[str], here: Path, going_on: Collection[Path]) -> tuple[list[Path], list[Path]]:
    """Return the folders of the runs to collect, each once, and of those the runs that were cut off apart.

    Raises:
        UsageProblem: a name stands for no run of this folder, or for several.
    """
    found = cut_off_runs(here, every=True, of_other_hosts=bool(names))
    known = [folder for folder in found if folder not in going_on]
    if not names:
        return [folder for folder in uncollected(here) if folder not in going_on], known
    named = dict.fromkeys(folder for name in names for folder in _named(name, here))
    return [folder for folder in named if folder not in known], [folder for folder in named if folder in known]


def _named(name: str, here: Path) -> Iterator[Path]:

    runs = here / RUNS
    path = Path(os.path.normpath(here / name))
    if path.parent == runs:
        name = path.name
    elif "/" in name:
        raise UsageProblem(f"{name} is no run of {here}", f"cd to the folder that has its {RUNS}, and collect there")
    yield from match_runs(runs, name)
