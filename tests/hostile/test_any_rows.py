"""Any sequence of appends, by several processes and with new columns, reads back equal with the csv module alone."""

from __future__ import annotations

import csv
import io
import multiprocessing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from madlite.perfcsv.append import append_rows
from madlite.perfcsv.rows import plain
from tests.tiers import examples

CELL = st.text(max_size=12) | st.sampled_from(
    [
        'a"b',
        "two\nlines",
        "\r",
        "\r\n",
        ",",
        '"',
        "=1+1",
        "0012",
        "1234567e8",
        "\0",
        "\udc80",
        " ",
        "\ufeff",
        "\x1b[2J",
        "é\u2028",
    ]
)
NAMES = st.sampled_from(["mode", "temperature, C", 'in "quotes"', "two\nlines", "ü", "batch size"])
ROW = st.builds(
    lambda model, more: {"model": model, "status": "SUCCESS", **more}, CELL, st.dictionaries(NAMES, CELL, max_size=3)
)


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        table = list(csv.reader(file, strict=True))
    assert all(len(line) == len(table[0]) for line in table[1:]) and table[0].count("model") == 1
    assert len(path.read_text(encoding="utf-8-sig").splitlines()) == len(table), "a row is one line to everybody"
    return [dict(zip(table[0], line, strict=True)) for line in table[1:]]


def wanted(cells: dict[str, str]) -> dict[str, str]:
    return {plain(name): plain(text) for name, text in cells.items() if text}


@given(
    st.lists(st.lists(ROW, max_size=3), max_size=5), st.sampled_from(["", "\n", "model,status,performance,metric\r\n"])
)
@settings(max_examples=examples(25))
def test_any_appends_read_back_equal(tmp_path_factory, batches: list[list[dict[str, str]]], before: str) -> None:
    path = tmp_path_factory.mktemp("any") / "perf.csv"
    if before:
        path.write_bytes(before.encode())
    for batch in batches:
        append_rows(path, batch)
    rows = [cells for batch in batches for cells in batch]
    if rows:
        found = [{name: text for name, text in row.items() if text} for row in read(path)]
        assert found == [wanted(cells) for cells in rows]


NEEDED = ["model", "performance", "metric", "status"]
# without a lone "\\r", which csv of Python before 3.13 leaves without quotes
FIELD = st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), max_size=8) | st.sampled_from(
    ['a"b', "two\nlines", "\r\n", ",", "0012", "1.50e+03", " x", "=1", "N/A"]
)


@st.composite
def written_elsewhere(draw: st.DrawFn) -> tuple[bytes, list[list[str]]]:
    """Return a results file as another program writes it, and its records: its own columns, ends, quotes and mark."""
    more = draw(st.lists(st.sampled_from(["note, mine", 'q"', "n_gpus", "two\nlines", "ü"]), unique=True, max_size=3))
    header = draw(st.permutations([*NEEDED, *more]))
    width = len(header)
    rows = draw(st.lists(st.lists(FIELD, min_size=width, max_size=width), max_size=4))
    text = io.StringIO(newline="")
    how = draw(st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]))
    ending = draw(st.sampled_from(["\n", "\r\n"]))
    csv.writer(text, lineterminator=ending, quoting=how).writerows([header, *rows])
    whole = text.getvalue() if draw(st.booleans()) else text.getvalue().removesuffix(ending)
    return (draw(st.sampled_from(["", "\ufeff"])) + whole).encode(), [header, *rows]


@given(written_elsewhere(), st.lists(st.lists(ROW, min_size=1, max_size=2), min_size=1, max_size=3))
@settings(max_examples=examples(40))
def test_what_another_program_wrote_stays_field_by_field_and_rows_follow(
    tmp_path_factory, elsewhere: tuple[bytes, list[list[str]]], batches: list[list[dict[str, str]]]
) -> None:
    data, (header, *earlier) = elsewhere
    path = tmp_path_factory.mktemp("other") / "perf.csv"
    path.write_bytes(data)
    for batch in batches:
        append_rows(path, batch)
    with path.open(newline="", encoding="utf-8-sig") as file:
        columns, *found = csv.reader(file, strict=True)
    assert columns[: len(header)] == header and all(len(line) == len(columns) for line in found)
    assert [line[: len(header)] for line in found[: len(earlier)]] == earlier
    assert not any(text for line in found[: len(earlier)] for text in line[len(header) :])
    ours = [dict(zip(columns, line, strict=True)) for line in found[len(earlier) :]]
    rows = [cells for batch in batches for cells in batch]
    found_cells = [{plain(name): text for name, text in row.items() if text} for row in ours]
    assert found_cells == [wanted(cells) for cells in rows]


def append_all(path: str, mine: list[dict[str, str]]) -> None:
    for cells in mine:
        append_rows(Path(path), [cells])


@pytest.mark.host
@given(st.lists(st.lists(ROW, min_size=1, max_size=4), min_size=2, max_size=4))
@settings(max_examples=examples(8))
def test_appends_of_several_processes_read_back_equal(tmp_path_factory, batches: list[list[dict[str, str]]]) -> None:
    path = tmp_path_factory.mktemp("many") / "perf.csv"
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=append_all, args=(str(path), batch)) for batch in batches]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(240)
        assert worker.exitcode == 0
    found = sorted(repr(sorted((name, text) for name, text in row.items() if text)) for row in read(path))
    assert found == sorted(repr(sorted(wanted(cells).items())) for batch in batches for cells in batch)
