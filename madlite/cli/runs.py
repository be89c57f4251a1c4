"""`madlite runs`: the runs of this folder, one line each."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from madlite.cli import setup
from madlite.cli.completion import complete_status
from madlite.cli.format import duration, status_text
from madlite.cli.options import TagsCommand, dir_option, tags_option, verbose_option
from madlite.cli.terminal import echo, echo_status, without_secrets
from madlite.errors import ExitCode
from madlite.model import Status
from madlite.text import printable, shortened

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
    help="Only success, suspect, failure, skipped, not-collected, running, cut-off, or a cause.",
)
@click.option("--of", default="", metavar="ID", help="Only those of a batch or of a study: the beginning of its id.")
@click.option("--limit", type=click.IntRange(min=0), default=0, metavar="N", help="Only the newest N; 0 all.")
@click.option("--json", "as_json", is_flag=True, help="Print a list of objects.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV, without formulas and control characters.")
@dir_option
@verbose_option
def command(
    tags: tuple[str, ...], status: str, of: str, limit: int, as_json: bool, as_csv: bool, directory: Path
) -> int:
    """List the runs of this folder, the newest last.

    \b
    madlite runs --status failure --limit 20
    madlite runs --tags llama --csv > runs.csv
    """
    from madlite.reports import listing
    from madlite.reports.ledger import Ledger, RunFilter
    from madlite.reports.runs import runs_folder
    from madlite.results.integrity import changed_files
    from madlite.run.recovery.unfinished import recovery_report

    folder = runs_folder(directory)
    words = tuple(word for text in tags for word in text.split(","))
    with Ledger.open(folder) as ledger:
        ledger.refresh()
        chosen = ledger.newest(RunFilter(status=status, words=words, of=of), limit)
        every, in_doubt = ledger.count(), ledger.problems()
    if as_json:
        click.echo(without_secrets(json.dumps([listing.as_json(run) for run in chosen], indent=2)))
    elif as_csv:
        click.echo(without_secrets("".join(listing.as_csv(chosen))), nl=False)
    elif chosen:
        for line, place in listing.as_table(chosen, map(_words, chosen)):
            echo_status(line, place)
        for line in _statistics(chosen) if of else ():
            echo(line)
    else:
        echo(f"no runs in {folder}" if not every else f"none of {every} runs is one of those")
    changed = (f"{words}; madlite clean" for _, words in changed_files(folder.parent))
    for text in (*listing.problems(in_doubt), *recovery_report(folder.parent), *changed):
        setup.warn(text)
    return int(ExitCode.OK)


def _statistics(runs: Sequence[StoredRun]) -> list[str]:
    """Return the statistics of a repeat whose runs these are; none of other runs."""
    records = [run.record for run in runs if run.state in (*Status,)]
    if not any(record.study is not None for record in records):
        return []
    from madlite.cli.repeat import statistics_of

    return statistics_of(records)


def _words(run: StoredRun) -> tuple[str, ...]:
    return tuple(shortened(printable(text), _LONGEST) for text in _cells(run))


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
        "not collected": not run.collected,
        "imported": bool(run.origin),
        "pruned": bool(run.pruned),
        "warm-up": record.is_warm_up,
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
