"""The page and the mail: every cell as it was written, markup that parses, nothing fetched from elsewhere."""

from __future__ import annotations

import os
import stat
from html.parser import HTMLParser

import pytest

from madlite.errors import UsageProblem
from madlite.reports.html import render_mail, render_page, write_mail, write_page
from madlite.reports.results_files import Table
from tests.cli.stored_runs import good, store
from tests.rows import each_row

VOID = {"meta", "br", "link", "img", "hr", "input"}


class Reader(HTMLParser):
    """The cells of each table of a document, and its elements; fails on tags that do not match."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables: list[list[list[str]]] = []
        self.headings: list[str] = []
        self.elements: list[tuple[str, dict]] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == [] and text.startswith("<!DOCTYPE html>")

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
        elif tag == "br":
            self.tables[-1][-1][-1] += "\n"
        elif tag in ("h1", "h2"):
            self.headings.append("")
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        if self._open and self._open[-1] in ("td", "th"):
            self.tables[-1][-1][-1] += data
        elif self._open and self._open[-1] in ("h1", "h2"):
            self.headings[-1] += data


COLUMNS = ("model", "performance", "metric", "status", "note")
ROWS = (
    ("<script>alert(1)</script>", "1.5e+03", "tok & more", "SUCCESS", "two\nlines"),
    ("\"quoted\" 'both'", "0012", "{{ 7 * 7 }}", "FAILURE", "</td></table>"),
    ("&amp;", "1234567e8", "", "SKIPPED", "ü 漢 \U0001f600"),
)
TABLE = Table(columns=COLUMNS, rows=ROWS)


@each_row("render", [lambda table: render_page("t.csv", table), lambda table: render_mail([("t", table)])])
def test_every_cell_stands_as_it_was_written_nothing_is_fetched_and_nothing_runs(render):
    found = Reader(render(TABLE))
    assert found.tables == [[list(COLUMNS), *map(list, ROWS)]]
    elements = found.elements
    assert not {"script", "link", "img", "iframe"} & {tag for tag, _ in elements}
    assert not [attrs for _, attrs in elements if {"src", "href", "onclick"} & set(attrs)]
    assert "url(" not in render(TABLE) and "@import" not in render(TABLE)
    assert Reader(render(Table(columns=("a", "b"), rows=()))).tables == [[["a", "b"]]]
    control = Table(columns=("a",), rows=(("\x1b[31mred\x07\x9b",),))
    assert Reader(render(control)).tables[0][1] == ["\\x1b[31mred\\x07\\x9b"]


def test_a_page_tells_statuses_apart_and_counts_them():
    page = render_page("<perf>.csv", TABLE)
    classes = [attrs.get("class") for tag, attrs in Reader(page).elements if tag == "td" and attrs.get("class")]
    assert [name for name in classes if name != "number"] == ["SUCCESS", "FAILURE", "SKIPPED"]
    assert "3 rows: 1 SUCCESS, 1 FAILURE, 1 SKIPPED" in page
    assert Reader(page).headings == ["<perf>.csv"]


def test_a_status_of_a_strangers_file_is_no_class():
    table = Table(columns=("status",), rows=(('"><b>',),))
    assert "class" not in dict(next(attrs for tag, attrs in Reader(render_page("t", table)).elements if tag == "td"))


def test_a_column_of_numbers_is_aligned_and_one_with_a_word_is_not():
    table = Table(columns=("n", "m"), rows=(("1", "1"), ("", "two"), ("2.5e-3", "3")))
    found = Reader(render_page("t", table))
    assert [attrs.get("class") for tag, attrs in found.elements if tag == "th"] == ["number", None]


def test_a_mail_needs_no_style_sheet():
    mail = render_mail([("one", TABLE), ("two", TABLE)])
    found = Reader(mail)
    assert found.headings == ["one", "two"] and len(found.tables) == 2
    assert "<style" not in mail and "class=" not in mail
    failed = [attrs["style"] for tag, attrs in found.elements if tag == "td" and "bold" in attrs.get("style", "")]
    assert len(failed) == 2


def test_a_page_goes_beside_its_file_as_open_as_other_files_of_the_user(tmp_path):
    source = tmp_path / "my.perf.csv"
    source.write_text("a,status\n0012,SUCCESS\n")
    assert write_page(source) == (tmp_path / "my.perf.html", ())
    assert Reader((tmp_path / "my.perf.html").read_text()).tables == [[["a", "status"], ["0012", "SUCCESS"]]]
    assert source.read_text() == "a,status\n0012,SUCCESS\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["my.perf.csv", "my.perf.html"]
    assert stat.S_IMODE((tmp_path / "my.perf.html").stat().st_mode) == stat.S_IMODE(source.stat().st_mode)


def test_a_file_that_cannot_be_read_leaves_the_old_page_and_one_that_cannot_be_written_is_a_sentence(tmp_path):
    source = tmp_path / "t.csv"
    source.write_text("a\n1\n")
    write_page(source)
    before = (tmp_path / "t.html").read_bytes()
    source.write_text("")
    with pytest.raises(UsageProblem):
        write_page(source)
    assert (tmp_path / "t.html").read_bytes() == before
    source.write_text("a\n1\n")
    (tmp_path / "t.html").unlink()
    (tmp_path / "t.html").mkdir()
    with pytest.raises(UsageProblem, match=r"t\.html cannot be written"):
        write_page(source)


def test_a_mail_has_every_file_in_the_order_of_their_names(tmp_path):
    for name, cell in [("b", "2"), ("a", "1"), ("c.d", "3")]:
        (tmp_path / f"{name}.csv").write_text(f"x\n{cell}\n")
    (tmp_path / "notes.txt").write_text("x\n9\n")
    assert write_mail(tmp_path, tmp_path / "mail.html") == ()
    found = Reader((tmp_path / "mail.html").read_text())
    assert found.headings == ["a", "b", "c.d"]
    assert [table[1] for table in found.tables] == [["1"], ["2"], ["3"]]


def test_files_that_cannot_be_read_are_named_and_the_rest_is_sent(tmp_path):
    (tmp_path / "good.csv").write_text("x\n1\n")
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "folder.csv").mkdir()
    os.mkfifo(tmp_path / "pipe.csv")
    problems = write_mail(tmp_path, tmp_path / "mail.html")
    assert [name in text for name, text in zip(["empty", "folder", "pipe"], problems, strict=True)] == [True] * 3
    assert Reader((tmp_path / "mail.html").read_text()).headings == ["good"]


def test_a_folder_without_tables_writes_nothing(tmp_path):
    with pytest.raises(UsageProblem, match="no CSV file is in"):
        write_mail(tmp_path, tmp_path / "mail.html")
    (tmp_path / "empty.csv").write_text("")
    with pytest.raises(UsageProblem, match=r"can be read: .*empty\.csv is empty"):
        write_mail(tmp_path, tmp_path / "mail.html")
    assert not (tmp_path / "mail.html").exists()
    with pytest.raises(UsageProblem, match="is not there"):
        write_mail(tmp_path / "absent", tmp_path / "mail.html")
    with pytest.raises(UsageProblem, match="not a folder"):
        write_mail(tmp_path / "empty.csv", tmp_path / "mail.html")


def doubted_run(tmp_path, run_id: str, cells: dict[str, str], *suspect: str, path: str = "perf.csv") -> None:
    """Leave the record of a run that appended a row."""
    from msgspec.structs import replace

    from madlite.store.folder import RECORD, RunRows
    from madlite.store.record import record_json

    record = store(tmp_path, run_id, good(run_id, suspect=suspect))
    rows = RunRows(path=path, cells=(cells,), appended=True)
    (tmp_path / "madlite_runs" / run_id / RECORD).write_text(record_json(replace(record, rows=rows)))


CELLS = {"model": "tiny", "performance": "5", "metric": "tok", "status": "SUCCESS", "test_duration": "1.25"}


@pytest.fixture
def doubtful(tmp_path):
    """A perf.csv as MAD has it, with a row of a run that is suspect between two that are not."""
    doubted_run(tmp_path, "r1", CELLS)
    doubted_run(tmp_path, "r2", {**CELLS, "test_duration": "1.5", "mode": "pretrain"}, "ranks differ", "too fast")
    doubted_run(tmp_path, "r3", {**CELLS, "test_duration": "9"}, "of another file", path="other.csv")
    rows = ["tiny,5,tok,SUCCESS,1.25,", "tiny,5,tok,SUCCESS,1.5,pretrain", "tiny,5,tok,SUCCESS,9,"]
    text = "model, performance,metric,status,test_duration,mode\n" + "\n".join(rows) + "\n"
    (tmp_path / "perf.csv").write_text(text)
    return tmp_path


def test_a_suspect_success_is_shown_as_one_though_the_file_does_not_say_it(doubtful):
    before = (doubtful / "perf.csv").read_bytes()
    page, output = write_page(doubtful / "perf.csv")[0].read_text(), doubtful / "mail.html"
    assert write_mail(doubtful, output) == ()
    for text in (page, output.read_text()):
        ((head, *rows),) = Reader(text).tables
        assert head == ["model", "performance", "metric", "status", "test_duration", "mode", "suspect"]
        assert [row[3] for row in rows] == ["SUCCESS", "SUCCESS (suspect)", "SUCCESS"]
        assert [row[6] for row in rows] == ["", "ranks differ; too fast", ""]
        assert "3 rows: 2 SUCCESS, 1 SUCCESS (suspect)" in text
    assert ("td", {"class": "suspect"}) in Reader(page).elements
    assert (doubtful / "perf.csv").read_bytes() == before


def test_the_column_of_a_file_says_what_is_suspect_without_any_record(tmp_path):
    (tmp_path / "p.csv").write_text("model,status,suspect\na,SUCCESS,ranks differ\nb,SUCCESS,\nc,FAILURE,x\n")
    ((_, *rows),) = Reader(write_page(tmp_path / "p.csv")[0].read_text()).tables
    assert [row[1] for row in rows] == ["SUCCESS (suspect)", "SUCCESS", "FAILURE"]


def test_a_file_whose_runs_are_elsewhere_or_cannot_be_read_is_shown_as_it_is(doubtful):
    (doubtful / "madlite_runs/r2/record.json").write_text("{")
    ((head, *rows),) = Reader(write_page(doubtful / "perf.csv")[0].read_text()).tables
    assert "suspect" not in head and [row[3] for row in rows] == ["SUCCESS"] * 3
