from __future__ import annotations

import csv
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from madlite.errors import RecordError
from madlite.files import Folder
from madlite.perfcsv.append import append_rows, check_appendable
from madlite.store.locks import is_locked
from tests.rows import each_row

from .reading import DATA, SMALL, V1, V2, records, row, table


@pytest.fixture
def perf(tmp_path: Path) -> Path:
    return tmp_path / "perf.csv"


def test_result_columns_join_at_the_end_in_the_order_they_appear(perf: Path) -> None:
    append_rows(perf, [row(model="a")])
    append_rows(perf, [row(model="b", temperature="61", mode="pretrain"), row(model="c", size="3", mode="lora")])
    assert perf.read_text().splitlines()[0] == f"{V2},temperature,mode,size"
    assert [(cells["model"], cells["temperature"], cells["mode"], cells["size"]) for cells in table(perf)] == [
        ("a", "", "", ""),
        ("b", "61", "pretrain", ""),
        ("c", "", "lora", "3"),
    ]


def test_standard_columns_never_join(perf: Path) -> None:
    perf.write_text(V1.replace(",", ", ") + "\n")
    append_rows(perf, [row(model="a", nnodes="1", launcher="docker", temperature="61")])
    assert records(perf)[0] == [*V1.split(","), "temperature"]


@each_row("name", ["madengine-1.csv", "madengine-2.csv"])
def test_rows_of_madengine_keep_their_text(perf: Path, name: str) -> None:
    perf.write_bytes((DATA / name).read_bytes())
    before = records(perf)
    append_rows(perf, [row(model="a", mode="lora")])
    assert records(perf)[0] == [*before[0], "mode"]
    assert records(perf)[1:-1] == [[*cells, ""] for cells in before[1:]]


@each_row(
    ("before", "after"),
    [
        (
            f"{SMALL}\nshort,SUCCESS\nlong,SUCCESS,1,u,beyond\n\nlast,,,\n".encode(),
            f"{SMALL},mode\nshort,SUCCESS,,,\nlong,SUCCESS,1,u,,beyond\n\nlast,,,,\nb,,,,lora\n".encode(),
        ),
        (f'\ufeff{SMALL}\r\na,,,"x\ny"\r\n'.encode(), f'\ufeff{SMALL},mode\r\na,,,"x\ny",\r\nb,,,,lora\r\n'.encode()),
        (SMALL.encode() + b"\ncaf\xe9,\xff\xfe,,\n", SMALL.encode() + b",mode\ncaf\xe9,\xff\xfe,,,\nb,,,,lora\n"),
    ],
    ids=["shorter and longer rows", "a byte order mark and crlf", "bytes that are no text"],
)
def test_earlier_rows_are_kept_as_they_are(perf: Path, before: bytes, after: bytes) -> None:
    perf.write_bytes(before)
    append_rows(perf, [row(model="b", mode="lora")])
    assert perf.read_bytes() == after


def test_field_longer_than_csv_allows_is_kept(perf: Path) -> None:
    note = "x" * 300_000
    append_rows(perf, [row(model="a", args=note)])
    limit = csv.field_size_limit()
    append_rows(perf, [row(model="b", mode="lora")])
    assert csv.field_size_limit() == limit
    assert note in perf.read_text()


fields = st.lists(st.text(st.characters(exclude_characters="\0", codec="utf-8")), min_size=1, max_size=7)


@given(
    earlier=st.lists(fields.filter(lambda cells: cells != [""]), max_size=6), newline=st.sampled_from(["\n", "\r\n"])
)
def test_every_earlier_field_keeps_its_text(tmp_path_factory: pytest.TempPathFactory, earlier, newline) -> None:
    perf = tmp_path_factory.mktemp("wide") / "perf.csv"
    with perf.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL, lineterminator=newline).writerows([SMALL.split(","), *earlier])
    append_rows(perf, [row(model="new", mode="lora")])
    wide = [[*cells[:4], *[""] * (5 - len(cells[:4])), *cells[4:]] for cells in earlier]
    assert records(perf) == [[*SMALL.split(","), "mode"], *wide, ["new", "", "", "", "lora"]]


def test_mode_and_owner_are_kept(perf: Path) -> None:
    perf.write_text(SMALL + "\n")
    perf.chmod(0o664)
    if os.getuid() == 0:
        os.chown(perf, 12345, 23456)
    before = perf.stat()
    append_rows(perf, [row(model="a", mode="lora")])
    after = perf.stat()
    assert before.st_ino != after.st_ino
    assert (before.st_mode, before.st_uid, before.st_gid) == (after.st_mode, after.st_uid, after.st_gid)


def test_link_stays_a_link_and_its_target_gets_the_rows(perf: Path, tmp_path: Path) -> None:
    target = tmp_path / "shared" / "results.csv"
    target.parent.mkdir()
    perf.symlink_to(target)
    check_appendable(perf)
    append_rows(perf, [row(model="a")])
    append_rows(perf, [row(model="b", mode="lora")])
    assert perf.is_symlink()
    assert [cells["model"] for cells in table(target)] == ["a", "b"]
    assert os.listdir(target.parent) == ["results.csv"]


def test_leftovers_of_killed_writers_go_and_other_files_stay(perf: Path) -> None:
    append_rows(perf, [row(model="a")])
    others = [".perf.csv.x.widening", ".perf.csv.notes", "perf.csv.widening"]
    for name in [".perf.csv.widening", *others]:
        perf.with_name(name).write_text("half")
    append_rows(perf, [row(model="b", mode="lora")])
    assert sorted(os.listdir(perf.parent)) == sorted(["perf.csv", *others])


def test_the_next_writer_waits_until_the_one_before_has_cleared_away(
    perf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append_rows(perf, [row(model="a")])
    removed, remove = [], Folder.remove

    def watched(folder: Folder, name: str) -> None:
        if (folder.path / name).exists() or "lora" in perf.read_text():  # the new file has its place
            removed.append(is_locked(perf))
        remove(folder, name)

    monkeypatch.setattr(Folder, "remove", watched)
    append_rows(perf, [row(model="b", mode="lora")])
    assert removed and all(removed) and not is_locked(perf)


@each_row("failing", ["rename", "fsync"])
def test_failed_widening_leaves_the_file_as_it_was(perf: Path, monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    append_rows(perf, [row(model="a")])
    before = perf.read_bytes()

    def fail(*args: object) -> None:
        raise OSError(16, "Device or resource busy")

    monkeypatch.setattr(Folder if failing == "rename" else os, failing, fail)
    with pytest.raises(RecordError, match=r"new columns \(mode\): Device or resource busy") as caught:
        append_rows(perf, [row(model="b", mode="lora")])
    assert caught.value.hint.endswith("--strict-header")
    assert perf.read_bytes() == before
    assert os.listdir(perf.parent) == ["perf.csv"]


def test_file_replaced_by_a_program_without_locks_is_not_overwritten(
    perf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append_rows(perf, [row(model="a")])
    saved = perf.with_name("editor.csv")
    saved.write_text("edited")
    monkeypatch.setattr(os, "fsync", lambda fd: saved.exists() and os.replace(saved, perf))
    with pytest.raises(RecordError, match="replaced by another program"):
        append_rows(perf, [row(model="b", mode="lora")])
    assert perf.read_text() == "edited"


@each_row(
    "names",
    [[f"k{n}" for n in range(100_000)], ["k" * 200_000], ["k" * 2_000_000], [f"{n:0500}" for n in range(200)]],
    ids=["many", "longer than a csv field", "longer than a header", "long"],
)
@each_row("before", [b"", b"model,performance,metric,status\r\nold,0012,x,SUCCESS\r\n"])
def test_columns_that_would_shut_the_file_to_its_next_writer_do_not_join_and_cost_no_row(
    tmp_path, names, before, caplog
):
    caplog.clear()
    path = tmp_path / "perf.csv"
    if before:
        path.write_bytes(before)
    cells = {"model": "m", "status": "SUCCESS"}
    append_rows(path, [{**cells, **dict.fromkeys(names, "v")}])
    (told,) = caplog.messages
    assert told.startswith(f"{path}: left out of a row") and len(told) < 500 + len(str(path))
    assert path.read_bytes().startswith(before) and table(path)[-1]["model"] == "m" and path.stat().st_size < 1000
    append_rows(path, [{**cells, "heat": "7"}])
    assert path.read_bytes().startswith(before[:20]) and table(path)[-1]["heat"] == "7"


@each_row("mine", [f"k{n}" for n in (0, 99)])
def test_no_single_results_file_takes_the_room_of_later_ones(tmp_path, mine):
    path = tmp_path / "perf.csv"
    told = append_rows(path, [row(model="all", **{f"k{n}": "1" for n in range(971)})])
    assert told == tuple(f"k{n}" for n in range(971)) and table(path)[0]["model"] == "all"
    assert append_rows(path, [row(model="most", **{f"k{n}": "1" for n in range(100)})]) == ()
    assert table(path)[1][mine] == "1"


def test_a_full_header_of_another_program_takes_every_row_and_what_it_has_room_for(tmp_path):
    path = tmp_path / "perf.csv"
    head = "model,performance,metric,status," + ",".join(f"c{n}" for n in range(1200))
    path.write_text(head + "\n")
    assert append_rows(path, [row(model="a", c7="seven", heat="1")]) == ("heat",)
    assert path.read_text().startswith(head + "\n")
    assert (table(path)[0]["model"], table(path)[0]["c7"]) == ("a", "seven")
