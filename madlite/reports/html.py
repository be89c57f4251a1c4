"""Tables → HTML: a page for a browser, a mail for programs that know neither style sheets nor scripts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from madlite.errors import UsageProblem
from madlite.reports.doubts import doubted, with_doubts
from madlite.reports.runs import Run, open_run
from madlite.reports.table import Table, read_table
from madlite.reports.words import cell, count, kinds, visible
from madlite.results.named_file import write_named


def write_page(source: Path) -> Path:
    """Write a CSV file's table as `<name>.html` beside it, whole or not at all, and return where it is.

    Raises:
        UsageProblem: the table cannot be read, or the page not be written.
    """
    text = render_page(source.name, with_doubts(source, read_table(source)))
    page = source.with_suffix(".html")
    write_named(page, text)
    return page


def write_run_page(folder: Path, place: Path) -> Path:
    """Write the rows of one run, as perf.csv has them, as a page `<id>.html` in a folder, and return where it is.

    Raises:
        UsageProblem: the run has no rows, or the page cannot be written.
    """
    run = open_run(folder)
    rows = run.record.rows
    if rows is None or not rows.cells:
        raise UsageProblem(f"run {folder.name} has no row: {run.state}", f"madlite show {folder.name}")
    page = place / f"{folder.name}.html"
    write_named(page, render_page(f"{run.record.card} {folder.name}", _table(run, rows.cells)))
    return page


def _table(run: Run, cells: Sequence[Mapping[str, str]]) -> Table:
    """Return the rows of a run, with why its number is doubtful or why it has none."""
    own = {"cause": run.record.cause, "reason": run.record.reason, "suspect": "; ".join(run.record.suspect)}
    told = [{**row, **{name: text for name, text in own.items() if text}} for row in cells]
    columns = tuple(dict.fromkeys(name for row in told for name in row))
    return Table(columns=columns, rows=tuple(tuple(row.get(name, "") for name in columns) for row in told))


def write_mail(folder: Path, output: Path) -> tuple[str, ...]:
    """Write the tables of a folder's CSV files, sorted by name, as one mail; return what is wrong with those left out.

    Raises:
        UsageProblem: there is no such folder, no table in it, or the mail cannot be written.
    """
    tables: list[tuple[str, Table]] = []
    skipped: list[str] = []
    for file in _csv_files(folder):
        try:
            tables.append((file.stem, with_doubts(file, read_table(file))))
        except UsageProblem as problem:
            skipped.append(problem.message)
    if not tables:
        raise UsageProblem(f"no CSV file of {folder} can be read: {'; '.join(skipped)}", f"ls -l {folder}")
    write_named(output, render_mail(tables))
    return tuple(skipped)


def render_page(title: str, table: Table) -> str:
    """Return a table as a page of its own: no script, and no file beside it."""
    return _render("page.html.j2", title=title, table=table, kinds=kinds(table), count=count(table))


def render_mail(tables: Iterable[tuple[str, Table]]) -> str:
    """Return tables under their names, each element with a style of its own."""
    parts = [(name, table, kinds(table), count(table)) for name, table in tables]
    return _render("mail.html.j2", parts=parts)


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


def _render(template: str, **values: object) -> str:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"visible": visible, "cell": cell}
    environment.tests |= {"doubted_in": lambda row, table: doubted(table, row)}
    return environment.get_template(template).render(values)
