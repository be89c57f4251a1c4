from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from madlite.perfcsv.append import append_rows
from tests.rows import each_row

from .reading import SMALL, models, records, row, table

HEADER = f"{SMALL},note,tags\n"
GOOD = 'a,SUCCESS,1,u,,"x,y"\n'
TORN = 'b,FAILURE,2,ü,"say ""no"",\nor é\n\nyes, ""€"" 😀",z\n'
MANY_LINES = 'c,SUCCESS,"11\n22","samples\nsamples",,t\n'


@pytest.mark.host
@each_row(
    "before",
    [GOOD * 2, GOOD * 4000, MANY_LINES * 4000, "short\n" * 3, 'x,"5"" disk",1\n' + GOOD],
    ids=["small", "larger than the window", "no row on one line", "short rows", "quotes"],
)
@each_row("newline", ["\n", "\r\n"])
def test_row_cut_at_any_byte_swallows_no_other(tmp_path: Path, before: str, newline: str) -> None:
    earlier = (HEADER + before).replace("\n", newline).encode()
    torn = TORN.replace("\n", newline).encode()
    perf = tmp_path / "perf.csv"
    perf.write_bytes(earlier)
    earlier_records = records(perf)
    step = 1 if len(earlier) < 1000 else 7
    for cut in [*range(0, len(torn), step), len(torn)]:
        perf.write_bytes(earlier + torn[:cut])
        append_rows(perf, [row(model="new", note="n\nn", tags="t")])
        got = records(perf)
        assert perf.read_bytes().startswith(earlier)
        assert got[: len(earlier_records)] == earlier_records
        assert got[-1] == ["new", "", "", "", "n\\nn", "t"], torn[:cut]
        middle = [cells for cells in got[len(earlier_records) : -1] if cells]
        assert len(middle) == (cut > 0)
        assert all(len(cells) == 6 for cells in middle)
        perf.read_bytes().decode("utf-8", "strict")


def test_cut_row_keeps_the_text_it_has(tmp_path: Path) -> None:
    perf = tmp_path / "perf.csv"
    perf.write_bytes((HEADER + GOOD).encode() + 'b,FAILURE,2,u,"say ""no"", é'.encode()[:-1])
    append_rows(perf, [row(model="new")])
    assert table(perf)[1] == {
        **{"model": "b", "status": "FAILURE", "performance": "2", "metric": "u", "note": 'say "no", ', "tags": ""}
    }
    assert pd.read_csv(perf)["model"].tolist() == ["a", "b", "new"]


@each_row(
    ("before", "added"),
    [
        ((HEADER + GOOD).encode() + b"b,SUCCESS,1,u,,caf\xe9", "\nnew,,,,,\n"),  # Latin-1, not half of a character
        ((HEADER + GOOD).encode() + b"b,FAILURE,2,caf\xe9s", ",,\nnew,,,,,\n"),
        ((HEADER + GOOD).encode() + b"typed by hand\n", "new,,,,,\n"),
        (SMALL.encode(), "\nnew,,,\n"),
    ],
    ids=["a whole row without a line end", "a cut row in another encoding", "a short row", "a header alone"],
)
def test_what_is_there_stays_and_a_last_line_is_ended(tmp_path: Path, before: bytes, added: str) -> None:
    perf = tmp_path / "perf.csv"
    perf.write_bytes(before)
    append_rows(perf, [row(model="new")])
    assert perf.read_bytes() == before + added.encode()


def test_cut_row_is_made_whole_also_where_columns_join(tmp_path: Path) -> None:
    perf = tmp_path / "perf.csv"
    perf.write_bytes((HEADER + GOOD).encode() + b'b,FAILURE,2,"\xf0\x9f')
    append_rows(perf, [row(model="new", temperature="61")])
    assert models(perf) == ["a", "b", "new"]
    perf.read_bytes().decode("utf-8", "strict")


def test_row_longer_than_the_window_is_found(tmp_path: Path) -> None:
    perf = tmp_path / "perf.csv"
    perf.write_text(HEADER + GOOD + 'b,FAILURE,2,"' + "x, " * 100_000)
    append_rows(perf, [row(model="new")])
    import csv

    limit = csv.field_size_limit(1 << 20)
    try:
        assert models(perf) == ["a", "b", "new"]
    finally:
        csv.field_size_limit(limit)
