"""Tables → HTML: a page for a browser, a mail for programs that know neither style sheets nor scripts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from madlite.errors import UsageProblem
from madlite.files import write_named
from madlite.model import Status
from madlite.reports.page.render import rendered
from madlite.reports.results_files import RecordedRows, Table, read_table
from madlite.reports.runs import appended_to
from madlite.text import counted

# Which rows of a results file are a suspect success: MAD's columns do not have it, the records of the runs do.

COLUMN = "suspect"  # as `--add-column suspect` calls it


def with_suspects(source: Path, table: Table) -> Table:
    """Return the table of a results file with a column of why rows are suspect, where any is and it has none yet.

    The runs are those of the folder in which the file lies.
    """
    if COLUMN in table.columns or "status" not in table.columns:
        return table
    reasons = RecordedRows(table.columns, _suspect_rows(source))
    doubts = [reasons.next(row) or "" for row in table.rows] if reasons else []
    if not any(doubts):
        return table
    rows = tuple((*row, doubt) for row, doubt in zip(table.rows, doubts, strict=True))
    return replace(table, columns=(*table.columns, COLUMN), rows=rows)


def is_doubtful(table: Table, row: Sequence[str]) -> bool:
    """Return whether a row is a suspect success."""
    if COLUMN not in table.columns or "status" not in table.columns:
        return False
    reason = row[table.columns.index(COLUMN)].strip()
    return bool(reason) and row[table.columns.index("status")] == Status.SUCCESS.value


def _suspect_rows(source: Path) -> Iterator[tuple[Mapping[str, str], str]]:
    """Yield the rows of suspect successes, and why they are suspect."""
    for _, record, rows in appended_to(source):
        for cells in rows:
            if record.suspect and cells.get("status") == Status.SUCCESS.value:
                yield cells, "; ".join(record.suspect)


# Shared by the page and the mail.

_NUMBER = re.compile(r"[-+]?[\d,]*\.?\d+([eE][-+]?\d+)?")


def count(table: Table) -> str:
    """Return how many rows there are, and of each status: `3 rows: 1 SUCCESS, 1 SUCCESS (suspect), 1 FAILURE`."""
    text = counted(len(table.rows), "row")
    if "status" not in table.columns:
        return text
    column = table.columns.index("status")
    counts = Counter(row[column] + " (suspect)" * is_doubtful(table, row) for row in table.rows if row[column])
    return text + (": " + ", ".join(f"{n} {status}" for status, n in counts.most_common()) if counts else "")


def kinds(table: Table) -> tuple[str, ...]:
    """Return for each column how it is shown: `status`, `number` where it holds nothing else, or `text`."""
    columns = zip(*table.rows, strict=True) if table.rows else [()] * len(table.columns)
    return tuple(_kind(name, cells) for name, cells in zip(table.columns, columns, strict=True))


def _kind(name: str, cells: tuple[str, ...]) -> str:
    if name == "status":
        return "status"
    written = [cell for cell in cells if cell.strip()]
    return "number" if written and all(_NUMBER.fullmatch(cell.strip()) for cell in written) else "text"


def write_page(source: Path) -> tuple[Path, tuple[str, ...]]:
    """Write a CSV file's table as `<name>.html` beside it, whole or not at all; return where, and what was left out.

    Raises:
        UsageProblem: the table cannot be read, or the page not be written.
    """
    table = with_suspects(source, read_table(source))
    page = source.with_suffix(".html")
    write_named(page, render_page(source.name, table))
    return page, table.notes


def write_mail(folder: Path, output: Path) -> tuple[str, ...]:
    """Write the tables of a folder's CSV files, sorted by name, as one mail; return what was left out.

    Raises:
        UsageProblem: there is no such folder, no table in it, or the mail cannot be written.
    """
    tables: list[tuple[str, Table]] = []
    unread: list[str] = []
    for file in _csv_files(folder):
        try:
            tables.append((file.stem, with_suspects(file, read_table(file))))
        except UsageProblem as problem:
            unread.append(problem.message)
    if not tables:
        raise UsageProblem(f"no CSV file of {folder} can be read: {'; '.join(unread)}", f"ls -l {folder}")
    write_named(output, render_mail(tables))
    notes = (note for _, table in tables for note in table.notes)
    return (*(f"left out: {text}" for text in unread), *notes)


def render_page(title: str, table: Table) -> str:
    """Return a table as a page of its own: no script, and no file beside it."""
    return rendered("page.html.j2", title=title, **_values(table))


def render_mail(tables: Iterable[tuple[str, Table]]) -> str:
    """Return tables under their names, each element with a style of its own."""
    return rendered("mail.html.j2", parts=[{"name": name, **_values(table)} for name, table in tables])


def _values(table: Table) -> dict[str, object]:
    """Return what a template needs: columns with how they are shown, rows with whether they are doubtful."""
    rows = [(row, is_doubtful(table, row)) for row in table.rows]
    return {"columns": list(zip(table.columns, kinds(table), strict=True)), "rows": rows, "count": count(table)}


def _csv_files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        what = "is a file, not a folder" if folder.exists() else "is not there"
        raise UsageProblem(f"{folder} {what}", "name a folder with CSV files: --directory DIR")
    try:
        files = sorted(file for file in folder.iterdir() if file.suffix.lower() == ".csv")
    except OSError as error:
        raise UsageProblem(f"{folder} cannot be read: {error.strerror}", f"ls -ld {folder}") from error
    if not files:
        raise UsageProblem(f"no CSV file is in {folder.resolve()}", "name the folder that has them: --directory DIR")
    return files
