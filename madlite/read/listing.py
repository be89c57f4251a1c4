"""Runs as a table for people, as JSON and as CSV for other programs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from madlite.errors import UsageProblem
from madlite.read.cells import harmless
from madlite.read.runs import CUT_OFF, RUNNING, UNREADABLE, Run
from madlite.record.lines import csv_line
from madlite.types import Cause, Json, Status

COLUMNS = ("id", "when", "card", "status", "cause", "performance", "metric", "suspect", "duration_s")
_HEAD = ("ID", "WHEN (UTC)", "CARD", "STATUS", "NUMBER", "TOOK")


def select_runs(runs: Iterable[Run], *, status: str = "", tags: Sequence[str] = (), limit: int = 0) -> list[Run]:
    """Return the runs of a status, and of cards whose name or one of whose tags holds one of the words; the newest.

    Raises:
        UsageProblem: there is no such status, and neither a cause.
    """
    runs = list(runs)
    wanted = _spelled(status)
    if wanted and wanted not in (known := _statuses(runs)):
        raise _no_status(status, known)
    words = [word.lower() for word in tags if word]
    chosen = [run for run in runs if not wanted or wanted in (run.state.lower(), _spelled(run.record.cause))]
    if words:
        chosen = [run for run in chosen if any(word in name for word in words for name in _names(run))]
    return chosen[-limit:] if limit else chosen


def as_json(run: Run) -> dict[str, Json]:
    """Return a run as the list shows it, for programs."""
    record, headline = run.record, run.headline
    return {
        "id": run.folder.name,
        "when": run.when,
        "card": record.card,
        "status": run.state,
        "cause": record.cause,
        "performance": headline.text if headline else "",
        "metric": headline.metric if headline else "",
        "suspect": list(record.suspect),
        "duration_s": record.durations_s.get("total"),
        "reason": run.problem or record.reason,
        "folder": str(run.folder),
    }


def as_csv(runs: Iterable[Run]) -> Iterator[str]:
    """Yield a table as CSV, in which nothing is a formula to a spreadsheet or steers a terminal."""
    yield csv_line(COLUMNS, "\n")
    for run in runs:
        values = as_json(run)
        values["suspect"] = "; ".join(values["suspect"])
        texts = ("" if values[name] is None else str(values[name]) for name in COLUMNS)
        yield csv_line((_on_one_line(harmless(text)) for text in texts), "\n")


def as_table(runs: Sequence[Run], words: Iterable[tuple[str, ...]]) -> Iterator[str]:
    """Yield the lines of a table: of each run what the words say after its id and time."""
    rows = [_HEAD, *((run.folder.name, run.when, *more) for run, more in zip(runs, words, strict=True))]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD) - 1)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        yield "  ".join([*cells, row[-1]]).rstrip()


def problems(runs: Iterable[Run]) -> str:
    """Return one note on the runs whose records nobody can read; nothing where there is none."""
    broken = [f"{run.folder.name}: {run.problem}" for run in runs if run.state == UNREADABLE]
    if not broken:
        return ""
    more = f", and {len(broken) - 3} more" if len(broken) > 3 else ""
    what = "1 record" if len(broken) == 1 else f"{len(broken)} records"
    return f"{what} cannot be read: {'; '.join(broken[:3])}{more}"


def _spelled(status: str) -> str:
    return status.strip().lower().replace("-", " ").replace("_", " ")


def _statuses(runs: Iterable[Run]) -> set[str]:
    """Return the words that a run can be chosen by, those of plugins where a run has them."""
    words = (*Status, *Cause, RUNNING, CUT_OFF, UNREADABLE, *(run.record.cause for run in runs))
    return {_spelled(word) for word in words} - {""}


def _no_status(status: str, known: Iterable[str]) -> UsageProblem:
    from difflib import get_close_matches

    close = get_close_matches(_spelled(status), sorted(known), n=1, cutoff=0.5)
    near = f"did you mean {close[0].replace(' ', '-')}?   " if close else ""
    hint = f"{near}success, failure, skipped, running, cut-off, unreadable, or a cause: docs/failures.md"
    return UsageProblem(f"--status {status!r}: no run can be that", hint)


def _on_one_line(text: str) -> str:
    """Return the text with a blank for each character that is not shown."""
    return text if text.isprintable() else "".join(char if char.isprintable() else " " for char in text)


def _names(run: Run) -> Iterator[str]:
    return (name.lower() for name in (run.record.card, *run.record.tags, run.folder.name))
