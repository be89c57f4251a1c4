"""Pending rows: whether a killed run's rows are in perf.csv is reported correctly, also among identical rows."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from errno import EIO
from pathlib import Path
from resource import RLIMIT_FSIZE, RLIMIT_NOFILE, getrlimit, setrlimit
from signal import SIG_IGN, SIGXFSZ, signal

from msgspec.structs import replace

from madlite.files import Folder
from madlite.perfcsv.append import RunAppend, append_rows, append_runs, cut_torn
from madlite.perfcsv.recorded import are_in_file, count_written
from madlite.store import folder
from madlite.store.folder import RUN_JOURNAL, RunEntry, RunJournal, RunRows, add_entry, read_run, rows_path
from tests.factories import write_journal
from tests.rows import each_row

CELLS = {"model": "m", "performance": "", "metric": "", "status": "FAILURE"}


def appended(folder: Path, *cells: dict[str, str], really: bool = True) -> RunRows:
    """Return the rows as they are noted, appended or killed right before."""
    noted: list[RunRows] = []

    class Killed(BaseException):
        pass

    def note(tried: RunRows) -> RunRows:
        noted.append(tried)
        if not really:
            raise Killed
        return tried

    with suppress(Killed):
        append_runs(folder / "perf.csv", [RunAppend(RunRows(path="perf.csv", cells=tuple(cells)), note)])
    return replace(noted[0], at="", appended=really)


def test_a_row_is_found_or_not(tmp_path):
    assert are_in_file(appended(tmp_path, CELLS), tmp_path, [])
    gone = appended(tmp_path, {**CELLS, "model": "gone"}, really=False)
    assert are_in_file(gone, tmp_path, []) is False
    several = appended(tmp_path, {**CELLS, "heat": "1"}, {**CELLS, "heat": "2"})
    assert are_in_file(several, tmp_path, [])
    assert are_in_file(replace(several, cells=several.cells[::-1]), tmp_path, []) is False


def test_an_earlier_row_that_looks_alike_is_not_taken_for_it(tmp_path):
    first = appended(tmp_path, CELLS)
    killed = appended(tmp_path, CELLS, really=False)
    assert are_in_file(killed, tmp_path, [first]) is False
    later = appended(tmp_path, CELLS)
    assert are_in_file(killed, tmp_path, [first, later]) is False
    assert are_in_file(later, tmp_path, [first])


def test_rows_alike_are_counted_where_a_column_joined_since(tmp_path):
    first = appended(tmp_path, CELLS)
    killed = appended(tmp_path, CELLS, really=False)
    appended(tmp_path, {**CELLS, "model": "wide", "heat": "7"})
    assert are_in_file(killed, tmp_path, [first]) is False
    assert are_in_file(first, tmp_path, [])
    second = appended(tmp_path, CELLS)
    assert are_in_file(second, tmp_path, [first])


def test_a_row_behind_a_torn_one_is_found(tmp_path):
    append_rows(tmp_path / "perf.csv", [{**CELLS, "args": 'a "b'}])
    with (tmp_path / "perf.csv").open("r+b") as file:
        file.truncate(file.seek(0, 2) - 20)
    assert are_in_file(appended(tmp_path, {**CELLS, "model": "after"}), tmp_path, [])


def test_the_first_rows_of_a_write_that_was_cut_off_are_counted(tmp_path):
    several = appended(tmp_path, CELLS, {**CELLS, "model": "second"})
    assert count_written(several, tmp_path, []) == 0  # all are there, of this run or another with the same ones
    with (tmp_path / "perf.csv").open("r+b") as file:
        file.truncate(file.seek(0, 2) - 40)
    assert are_in_file(several, tmp_path, []) is False and count_written(several, tmp_path, []) == 1
    appended(tmp_path, {**CELLS, "model": "another"})
    assert count_written(several, tmp_path, []) == 1
    killed = appended(tmp_path, CELLS, {**CELLS, "model": "b"}, really=False)
    assert count_written(killed, tmp_path, []) == 0
    another = replace(appended(tmp_path, CELLS, {**CELLS, "model": "c"}), at=killed.at)
    assert count_written(killed, tmp_path, [another]) == 0, "the first row is another run's, which began there"
    assert are_in_file(another, tmp_path, [])


def test_a_file_that_is_gone_has_no_row_and_of_one_that_cannot_be_read_nobody_knows(tmp_path):
    rows = appended(tmp_path, CELLS)
    perf = tmp_path / "perf.csv"
    perf.write_text("no header at all\n")
    assert are_in_file(rows, tmp_path, []) is None
    perf.write_text("")
    assert are_in_file(rows, tmp_path, []) is False
    perf.unlink()
    assert are_in_file(rows, tmp_path, []) is False
    os.mkfifo(perf)
    assert are_in_file(rows, tmp_path, []) is None


def test_the_rows_noted_last_are_those_of_the_run(tmp_path):
    assert read_run(tmp_path) == RunJournal(), "nobody knows"
    write_journal(tmp_path)
    assert read_run(tmp_path) == RunJournal(at="t", complete=True), "it came to none"
    rows = appended(tmp_path, CELLS)
    write_journal(tmp_path, rows)
    assert (read_run(tmp_path).rows, read_run(tmp_path).complete) == (rows, True)
    with (tmp_path / RUN_JOURNAL).open("ab") as file:
        file.write(b'{"at":"t","rows":{"pa')  # torn by a kill
    assert (read_run(tmp_path).rows, read_run(tmp_path).complete) == (rows, True), "what it was to tell was not done"
    again = replace(rows, appended=False, offset=7)
    write_journal(tmp_path, again, cleaned="no row")
    assert read_run(tmp_path).rows == again and read_run(tmp_path).cleaned == "no row"


@contextmanager
def journal_limited_to(size: int) -> Iterator[None]:
    """Let no file grow beyond a size, as a full disk would."""
    before, limits = signal(SIGXFSZ, SIG_IGN), getrlimit(RLIMIT_FSIZE)
    try:
        setrlimit(RLIMIT_FSIZE, (size, limits[1]))
        yield
    finally:
        setrlimit(RLIMIT_FSIZE, limits)
        signal(SIGXFSZ, before)


def test_a_journal_that_cannot_take_the_rows_does_not_say_that_there_are_none(tmp_path):
    write_journal(tmp_path)
    rows = RunRows(path="perf.csv", cells=({"args": "x" * 4096},))
    with journal_limited_to(1024), Folder.open(tmp_path) as home:
        assert "journal.jsonl could not be written" in add_entry(home, RunEntry(at="t", rows=rows))
    assert read_run(tmp_path) == RunJournal() and (tmp_path / RUN_JOURNAL).read_bytes() == b""


@each_row("entry", [{"cleaned": "x" * 4096}, {"rows": RunRows(path="y" * 4096, cells=())}])
def test_a_later_line_without_space_leaves_the_rows_as_they_are(tmp_path, entry):
    rows = RunRows(path="perf.csv", cells=(CELLS,), at="t")
    write_journal(tmp_path, rows)
    with journal_limited_to((tmp_path / RUN_JOURNAL).stat().st_size + 100), Folder.open(tmp_path) as home:
        assert "could not be written" in add_entry(home, RunEntry(at="t", **entry))
    assert read_run(tmp_path).rows == rows and read_run(tmp_path).cleaned is None


@each_row("entry", [{"next": "other"}, {"rows": RunRows(path="other.csv", cells=())}])
def test_a_journal_that_cannot_be_read_keeps_what_it_has(tmp_path, monkeypatch, entry):
    rows = RunRows(path="perf.csv", cells=(CELLS,), at="t")
    write_journal(tmp_path, rows)

    def unreadable(*args: object) -> bytes:
        raise OSError(EIO, "Input/output error")

    with monkeypatch.context() as patch, Folder.open(tmp_path) as home:
        patch.setattr(folder, "read_limited", unreadable)
        assert "could not be written: Input/output error" in add_entry(home, RunEntry(at="t", **entry))
    assert read_run(tmp_path).rows == rows


def test_a_line_that_the_disk_did_not_take_leaves_the_journal_complete(tmp_path):
    write_journal(tmp_path)
    size = (tmp_path / RUN_JOURNAL).stat().st_size
    with journal_limited_to(size + 20), Folder.open(tmp_path) as home:
        assert "could not be written" in add_entry(home, RunEntry(at="t", cleaned="no row"))
    assert (tmp_path / RUN_JOURNAL).stat().st_size == size
    assert read_run(tmp_path) == RunJournal(at="t", complete=True), "it certainly has no row, as before"


def test_an_emptied_journal_that_clean_has_marked_is_not_complete(tmp_path):
    with Folder.open(tmp_path) as home:
        assert add_entry(home, RunEntry(at="t", cleaned="whether its row is in perf.csv cannot be seen")) == ""
    assert not read_run(tmp_path).complete


ROWS = RunRows(path="perf.csv", cells=(CELLS,), at="t")


def test_a_journal_that_cannot_be_opened_for_the_first_rows_is_not_complete(tmp_path):
    write_journal(tmp_path)
    os.link(tmp_path / RUN_JOURNAL, tmp_path / "backup")
    before = (tmp_path / "backup").read_bytes()
    with Folder.open(tmp_path) as home, no_more_descriptors():
        assert "could not be written" in add_entry(home, RunEntry(at="t", rows=ROWS))
    assert read_run(tmp_path) == RunJournal() and (tmp_path / "backup").read_bytes() == before


@each_row("replace_it", [False, True], ids=["removed", "replaced"])
def test_the_rows_go_to_the_journal_that_readers_find(tmp_path, replace_it):
    path = write_journal(tmp_path) / RUN_JOURNAL
    with Folder.open(tmp_path) as home:
        data = path.read_bytes()
        path.unlink()
        if replace_it:
            path.write_bytes(data)
        assert add_entry(home, RunEntry(at="t", rows=ROWS)) == ""
    assert read_run(tmp_path).rows == ROWS


@contextmanager
def no_more_descriptors() -> Iterator[None]:
    """Let nothing more be opened, as where a process has as many files open as it may."""
    limits = getrlimit(RLIMIT_NOFILE)
    try:
        setrlimit(RLIMIT_NOFILE, (0, limits[1]))
        yield
    finally:
        setrlimit(RLIMIT_NOFILE, limits)


@each_row(("file", "said"), [("perf.csv", "perf.csv"), ("deep/p.csv", "deep/p.csv"), ("../p.csv", None)])
def test_a_file_below_the_working_folder_is_named_from_there(tmp_path, file, said):
    assert rows_path(tmp_path / "w" / file, tmp_path / "w") == (said or str(tmp_path.resolve() / "p.csv"))


@each_row("kept", [0, 1])
def test_the_row_that_a_kill_cut_in_the_middle_is_taken_away_before_it_is_written_again(tmp_path: Path, kept: int):
    """It would be a row of its own, with half of its number."""
    file = tmp_path / "perf.csv"
    row = {"model": "m", "performance": "71234.5", "metric": "tokens/s", "status": "SUCCESS"}
    append_rows(file, [(row | {"model": "earlier"})])
    before = file.read_bytes()
    append_rows(file, [row, (row | {"metric": "TFLOPS"})])
    first, second = file.read_bytes()[len(before) :].splitlines(keepends=True)
    whole = b"".join([first, second][:kept])
    torn = [first, second][kept]
    rows = [row, (row | {"metric": "TFLOPS"})]
    for count in range(1, len(torn)):
        file.write_bytes(before + whole + torn[:count])
        cut_torn(file, rows, len(before))
        assert file.read_bytes() == before + whole
    for follows in (b"\nother,0\n", b"x"):  # another's by now, or never ours
        file.write_bytes(before + whole + torn[:9] + follows)
        there = file.read_bytes()
        cut_torn(file, rows, len(before))
        assert file.read_bytes() == there
