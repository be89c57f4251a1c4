"""HTML of results: no markup of a cell, no formula for who copies the table into a spreadsheet."""

from __future__ import annotations

from madlite.perfcsv.append import append_rows
from madlite.reports.html import render_mail, render_page
from madlite.reports.results_files import Table
from tests.reports.test_html import Reader
from tests.rows import each_row

FORMULAS = [
    "=1+1",
    "+cmd|' /C calc'!A0",
    "-2+3",
    "@SUM(A1)",
    "\t=1",
    "\r=1",
    " =1",
    "\u200b=1",
    "\uff1d1+1",
    "\uff20x",
    '=HYPERLINK("http://x")',
]
NUMBERS = ["-1.5", " -1.5", "+3", "-1e-05", "1.5e+03", "0012"]


@each_row("text", FORMULAS)
def test_a_formula_is_text_on_the_page_and_in_the_mail(text: str) -> None:
    table = Table(columns=("model", text), rows=((text, "1"),))
    for page in (render_page("x", table), render_mail([("x", table)])):
        head, row = Reader(page).tables[0]
        assert head[1].startswith("'") and row[0].startswith("'")


@each_row("text", NUMBERS)
def test_a_number_stays_as_it_is(text: str) -> None:
    table = Table(columns=("model", "n"), rows=(("m", text),))
    assert Reader(render_page("x", table)).tables[0][1][1] == text


def test_scripts_and_text_that_is_turned_around_are_shown(tmp_path) -> None:
    evil = "<script>alert(1)</script><img src=x onerror=alert(1)>\u202e"
    table = Table(columns=("model", evil), rows=((evil, "javascript:alert(1)"),))
    for page in (render_page(evil, table), render_mail([(evil, table)])):
        found = Reader(page)
        assert not {"script", "img"} & {name for name, _ in found.elements}
        assert "\u202e" not in page and "\\u202e" in page


@each_row("text", FORMULAS)
def test_perf_csv_keeps_a_formula_as_it_is(tmp_path, text: str) -> None:
    append_rows(tmp_path / "perf.csv", [{"model": text, "status": "SUCCESS"}])
    assert text.strip("\t\r") in (tmp_path / "perf.csv").read_bytes().decode().replace('""', '"')
    assert "'=" not in (tmp_path / "perf.csv").read_text()
