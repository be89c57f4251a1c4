"""CSV files as tables: text stays text, a damaged row costs itself alone, and what is no table is refused."""

from __future__ import annotations

import csv
import os

import pytest

from madlite.errors import ExitCode, UsageProblem
from madlite.reports.results_files import read_table
from tests.rows import each_row


@pytest.fixture
def table(tmp_path):
    def read(data: bytes | str):
        file = tmp_path / "t.csv"
        file.write_bytes(data if isinstance(data, bytes) else data.encode())
        return read_table(file)

    return read


def test_no_cell_is_typed_anew(table):
    cells = ["0012", "1.5e+03", "1234567e8", "None", "N/A", "nan", "", "true", "1,234", " padded ", "-1", "1.0"]
    found = table(",".join("abcdefghijkl") + "\n" + ",".join(f'"{cell}"' for cell in cells) + "\n")
    assert found.rows == (tuple(cells),)


@each_row(
    ("data", "rows"),
    [
        ('a,b\n"two\nlines","q""q"\n', (("two\nlines", 'q"q'),)),
        ("a,b\n1\n\n2,3\n", (("1", ""), ("2", "3"))),
        ("a,b\n1,2", (("1", "2"),)),
        ("\ufeffa,b\r\n1,2\r\n", (("1", "2"),)),
        ("\n\na,b\n1,2\n", (("1", "2"),)),
        (b"a,b\n\xff,2\n", (("\\xff", "2"),)),
        ("a,b\n" + "x" * 200_000 + ",2\n", (("x" * 200_000, "2"),)),
        ("a,b\n", ()),
    ],
)
def test_what_programs_write_is_read(table, data, rows):
    found = table(data)
    assert found.columns == ("a", "b") and found.rows == rows


def test_a_header_with_blanks_is_read_and_of_columns_of_one_name_the_first_that_has_a_text_counts(table):
    found = table("model, n_gpus, n_gpus\nx,1,2\ny,,3\n")
    assert found.columns == ("model", "n_gpus") and found.rows == (("x", "1"), ("y", "3"))


@each_row("data", ["", "\n\n", ",,\n"])
def test_what_has_no_columns_is_no_table(table, data):
    with pytest.raises(UsageProblem, match="t.csv is empty") as caught:
        table(data)
    assert caught.value.hint and caught.value.exit_code is ExitCode.USAGE


@each_row(
    ("data", "rows", "note"),
    [
        ("a,b\n1,2\n1,2,3\n4,5\n", (("1", "2"), ("4", "5")), "line 3 has 3 cells under 2 columns"),
        ('a,b\n1,2\n1,"never closed\n4,5\n', (("1", "2"), ("4", "5")), "line 3 has a quote that never closes"),
    ],
)
def test_a_damaged_row_is_left_out_and_named(table, data, rows, note):
    found = table(data)
    assert found.rows == rows and note in found.notes[0] and "t.csv" in found.notes[0]


def test_a_damaged_file_leaves_csv_as_it_was(table):
    limit = csv.field_size_limit()
    table('a\n"x')
    assert csv.field_size_limit() == limit


def test_what_is_no_csv_file_is_refused(tmp_path):
    (tmp_path / "text.txt").write_text("a\n1\n")
    (tmp_path / "folder.csv").mkdir()
    os.mkfifo(tmp_path / "pipe.csv")
    for name, said in [
        ("absent.csv", "cannot be read: No such file"),
        ("text.txt", "no .csv file"),
        ("folder.csv", "is a folder"),
        ("pipe.csv", "it is a pipe, no plain file"),
        ("text.txt/x.csv", "text.txt/x.csv"),
        ("n" * 300 + ".csv", "cannot be read"),
    ]:
        with pytest.raises(UsageProblem, match=said) as caught:
            read_table(tmp_path / name)
        assert caught.value.hint
