from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from madlite.errors import RecordError
from madlite.perfcsv.append import append_rows
from madlite.perfcsv.rows import STANDARD_COLUMNS, new_columns, plain
from tests.rows import each_row

from .limits import with_files_of_at_most
from .reading import DATA, SMALL, V1, V2, models, records, row, table

FULL = {
    "model": "llama_ft",
    "n_gpus": "8",
    "nnodes": "1",
    "gpus_per_node": "8",
    "args": "--steps 20",
    "tags": "pyt,train",
    "performance": "1843.25",
    "metric": "tokens_per_second",
    "status": "SUCCESS",
    "launcher": "docker",
    "deployment_type": "local",
}


@pytest.fixture
def perf(tmp_path: Path) -> Path:
    return tmp_path / "perf.csv"


def test_the_standard_columns_are_those_madengine_2_writes() -> None:
    assert ",".join(STANDARD_COLUMNS) == V2
    assert (DATA / "madengine-2.csv").read_text().startswith(V2 + ",")


def test_new_file_has_the_29_columns_and_one_line_per_row(perf: Path) -> None:
    append_rows(perf, [FULL, row(model="old_arch", status="SKIPPED")])
    assert perf.read_bytes().decode() == (
        V2 + "\n"
        'llama_ft,8,1,8,,,--steps 20,"pyt,train",,,,,,,local,docker,,1843.25,tokens_per_second,,SUCCESS,,,,,,,,\n'
        "old_arch,,,,,,,,,,,,,,,,,,,,SKIPPED,,,,,,,,\n"
    )


@each_row("content", [b"", b"\n", b"\xef\xbb\xbf", b" \r\n\r\n"])
def test_file_without_text_is_a_new_file(perf: Path, content: bytes) -> None:
    perf.write_bytes(content)
    append_rows(perf, [FULL])
    assert perf.read_text().splitlines()[0] == V2
    assert models(perf) == ["llama_ft"]


@each_row("size", [14, 60, 200])
@each_row("contract", [1, 2])
def test_a_part_of_a_header_is_a_new_file(perf: Path, size: int, contract: int) -> None:
    """A machine went down during the first append to the file."""
    perf.write_bytes(",".join(new_columns(contract)).encode()[:size])
    append_rows(perf, [FULL])
    assert records(perf)[0] == list(STANDARD_COLUMNS) and models(perf) == ["llama_ft"]


def test_other_text_that_begins_as_a_header_does_is_kept(perf: Path) -> None:
    for text in ("model,n_gpu", "model,n_gpus,nnodes,notes", "model,n_gpus,nnodes\n"):
        perf.write_text(text)
        with pytest.raises(RecordError, match="no perf.csv header"):
            append_rows(perf, [FULL])
        assert perf.read_text() == text


def test_no_rows_make_no_file(perf: Path) -> None:
    append_rows(perf, [])
    assert not perf.exists()


IN_25_COLUMNS = 'llama_ft,8,,,--steps 20,"pyt,train",,,,,,,,1843.25,tokens_per_second,,SUCCESS,,,,,,,,\n'


@each_row(
    ("before", "cells", "line"),
    [
        (V1 + "\n", FULL, IN_25_COLUMNS),
        (V1.replace(",", ", ") + "\n", FULL, IN_25_COLUMNS),
        ('model, "memory, GiB", status, performance, metric\n', {"model": "a", "memory, GiB": "61"}, "a,61,,,\n"),
        ("model,status,performance,metric,model\n", FULL, "llama_ft,SUCCESS,1843.25,tokens_per_second,\n"),
        (f",{SMALL}\n", {"model": "a", "": "lost", " ": "lost"}, ",a,,,\n"),
        (f'{SMALL},"a\n(b, c)",tail\n', {"model": "a", "a\n(b, c)": "x,\ny", "tail": "t"}, 'a,,,,"x,\\ny",t\n'),
        (f"\ufeff{SMALL}\r\na,SUCCESS,1,u\r\n", {"model": "b", "metric": "x\ny"}, "b,,,x\\ny\r\n"),
    ],
    ids=["madengine 1", "blanks", "a quoted name", "a name twice", "no name", "a name of two lines", "crlf"],
)
def test_header_is_followed_and_left_as_it_is(perf: Path, before: str, cells: dict[str, str], line: str) -> None:
    perf.write_bytes(before.encode())
    append_rows(perf, [cells])
    assert perf.read_bytes().decode() == before + line


@each_row("name", ["madengine-1.csv", "madengine-2.csv"])
def test_rows_follow_what_madengine_wrote(perf: Path, name: str) -> None:
    before = (DATA / name).read_bytes()
    perf.write_bytes(before)
    append_rows(perf, [FULL, row(model="m", temperature="61", status="SUCCESS")])
    assert perf.read_bytes().startswith(before)
    assert models(perf)[-2:] == ["llama_ft", "m"]
    assert table(perf)[-1]["temperature"] == "61"


def test_columns_in_another_order_are_followed(perf: Path) -> None:
    turned = ",".join(reversed(V2.split(",")))
    perf.write_text(turned + "\n")
    append_rows(perf, [FULL])
    assert table(perf) == [dict.fromkeys(V2.split(","), "") | FULL]
    assert perf.read_text().startswith(turned + "\n")


def test_header_longer_than_64_kib_is_followed(perf: Path) -> None:
    header = ",".join([*(f"column_with_a_long_name_{n:05}" for n in range(5000)), SMALL])
    perf.write_text(header + "\n")
    append_rows(perf, [FULL])
    assert len(header) > 100_000
    assert table(perf)[0]["column_with_a_long_name_04999"] == ""
    assert models(perf) == ["llama_ft"]


def test_text_stays_text(perf: Path) -> None:
    values = ["0012", "1234567e8", "1.5e+03", "None", "N/A", "nan", "8", "8.0", " 7 ", "'", '"', "-0", "1_000"]
    for value in values:
        append_rows(perf, [row(model="m", performance=value, git_commit=value, extra=value)])
    append_rows(perf, [row(model="wide", another="x")])
    for column in ("performance", "git_commit", "extra"):
        assert [cells[column] for cells in table(perf)][:-1] == values


def test_text_that_is_none_leaves_a_file_that_every_reader_reads(perf: Path) -> None:
    append_rows(perf, [row(model="a", metric="caf\udce9\0", **{"c\udce9": "é"})])
    assert table(perf)[0]["metric"] == "caf\\udce9\\x00"
    perf.read_bytes().decode("utf-8", "strict")


text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
names = st.one_of(st.sampled_from(STANDARD_COLUMNS), text).filter(lambda name: name == name.strip() and name)


@given(batches=st.lists(st.lists(st.dictionaries(names, text, max_size=6), min_size=1, max_size=3), max_size=4))
def test_any_text_comes_back_as_it_was_given_each_row_on_one_line(
    tmp_path_factory: pytest.TempPathFactory, batches
) -> None:
    perf = tmp_path_factory.mktemp("any") / "perf.csv"
    given_rows = [cells for batch in batches for cells in batch]
    for batch in batches:
        append_rows(perf, batch)
    got = table(perf) if batches else []
    assert [{name: text for name, text in cells.items() if text} for cells in got] == [
        {plain(name): plain(text) for name, text in cells.items() if text} for cells in given_rows
    ]
    assert len(perf.read_text(encoding="utf-8").splitlines() if batches else []) == bool(batches) + len(given_rows)


def test_only_header_and_tail_are_read_however_long_the_file(perf: Path) -> None:
    line = b"m,SUCCESS,1,u\n" * 1000
    with perf.open("wb") as file:
        file.write(SMALL.encode() + b"\n")
        for _ in range(1500):
            file.write(line)
    before = _bytes_read()
    append_rows(perf, [row(model="last")])
    assert _bytes_read() - before < 1 << 18 < perf.stat().st_size / 50


def test_strict_header_keeps_new_columns_out(perf: Path) -> None:
    perf.write_text(f"{SMALL},temperature\n")
    append_rows(perf, [row(model="a", temperature="61", precision="bf16")], strict_header=True)
    assert perf.read_text() == f"{SMALL},temperature\na,,,,61\n"
    new = perf.with_name("new.csv")
    append_rows(new, [row(model="a", precision="bf16")], strict_header=True)
    assert records(new)[0] == list(STANDARD_COLUMNS)


@pytest.mark.host
@each_row("room", [0, 1, 40])
def test_full_disk_leaves_the_file_as_it_was(perf: Path, room: int) -> None:
    perf.unlink(missing_ok=True)
    append_rows(perf, [FULL])
    before = perf.read_bytes()
    assert with_files_of_at_most(len(before) + room, lambda: append_rows(perf, [FULL])).startswith("no space")
    assert perf.read_bytes() == before
    assert with_files_of_at_most(1 << 20, lambda: append_rows(perf, [FULL])) == ""
    assert models(perf) == ["llama_ft", "llama_ft"]


def test_failed_sync_leaves_the_file_as_it_was(perf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append_rows(perf, [FULL])
    before = perf.read_bytes()

    def fail(fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(RecordError, match="Input/output error"):
        append_rows(perf, [FULL])
    assert perf.read_bytes() == before


def _bytes_read() -> int:
    return int(Path("/proc/self/io").read_text().split("rchar:")[1].split()[0])


def test_every_standard_column_is_documented_in_its_order() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "perf-csv.md").read_text(encoding="utf-8")
    rows = [line.split("|")[2] for line in guide.splitlines() if line.startswith("| ") and line[2].isdigit()]
    assert ",".join(rows).replace("★", "").replace(" ", "") == V2
