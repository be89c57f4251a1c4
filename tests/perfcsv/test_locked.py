from __future__ import annotations

import errno
import fcntl
import os
from multiprocessing import get_context
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest

from madlite.errors import RecordError
from madlite.perfcsv.append import append_rows, check_appendable, make_folder
from madlite.perfcsv.rows import plain
from tests.rows import each_row
from tests.tiers import examples

from .reading import SMALL, models, records, row, table

pytestmark = pytest.mark.host

FORK = get_context("fork")  # a fresh interpreter for each of 64 writers would take longer than all their rows
NOBODY = 65534


@pytest.fixture
def perf(tmp_path: Path) -> Path:
    return tmp_path / "perf.csv"


def test_64_writers_at_once_some_widening_lose_nothing(perf: Path) -> None:
    start = FORK.Barrier(64)

    def write(n: int) -> None:
        start.wait()
        for turn in range(2):
            extra = {f"column{n}": str(turn)} if n % 8 == 0 and turn == 1 else {}
            append_rows(perf, [row(model=f"{n}.{turn}", args='"a",\nb', **extra)])

    writers = [FORK.Process(target=write, args=(n,)) for n in range(64)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0] * 64
    got = table(perf)
    assert sorted(cells["model"] for cells in got) == sorted(f"{n}.{turn}" for n in range(64) for turn in range(2))
    assert all(cells[f"column{cells['model'][:-2]}"] == "1" for cells in got if cells["model"] in _widening())
    assert {cells["args"] for cells in got} == {plain('"a",\nb')}
    assert os.listdir(perf.parent) == ["perf.csv"]


def _widening() -> set[str]:
    return {f"{n}.1" for n in range(0, 64, 8)}


def test_kill_at_any_moment_leaves_a_file_that_parses_with_all_earlier_rows(perf: Path) -> None:
    moments = Random(7)
    done: set[str] = set()
    for turn in range(examples(30)):
        done |= _killed_at_work(perf, turn, moments)
        assert {cells[0] for cells in records(perf)} >= done
        append_rows(perf, [row(model=f"after{turn}", args=LONG)])
        done.add(f"after{turn}")
        assert {cells["model"] for cells in table(perf) if cells["args"] == plain(LONG)} >= done


LONG = 'x, "y"\n' * 2000  # several pages: a kill lands between two of them


def _killed_at_work(perf: Path, turn: int, moments: Random) -> set[str]:
    """Kill two writers at a random moment; return the rows that one of them knew to be in the file."""
    reading, writing = os.pipe()
    writers = [FORK.Process(target=_append_until_killed, args=(perf, f"{turn}.{n}", writing)) for n in range(2)]
    for writer in writers:
        writer.start()
    os.close(writing)
    with os.fdopen(reading) as said:
        done = [said.readline() for _ in range(moments.randrange(1, 12))]
        for _ in range(moments.randrange(30_000)):  # somewhere in the next append
            pass
        for writer in writers:
            writer.kill()
            writer.join()
        return {line.strip() for line in [*done, *said]}


def _append_until_killed(perf: Path, name: str, writing: int) -> None:
    for count in range(1_000_000):
        extra = {f"column{name}": "x"} if count == 3 else {}
        append_rows(perf, [row(model=f"{name}.{count}", args=LONG, **extra)])
        os.write(writing, f"{name}.{count}\n".encode())


def test_file_replaced_while_waiting_for_the_lock_is_opened_again(perf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append_rows(perf, [row(model="old")])
    wider = perf.with_name("wider.csv")
    wider.write_text(f"{SMALL},mode\nold,,,,\n")
    lock = fcntl.flock

    def replaced_first(fd: int, how: int) -> None:
        if wider.exists():
            wider.replace(perf)
        lock(fd, how)

    monkeypatch.setattr(fcntl, "flock", replaced_first)
    append_rows(perf, [row(model="new", mode="lora")])
    assert perf.read_text() == f"{SMALL},mode\nold,,,,\nnew,,,,lora\n"


def test_file_removed_while_waiting_for_the_lock_is_made_again(perf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append_rows(perf, [row(model="old")])
    lock, left = fcntl.flock, [perf]

    def removed_first(fd: int, how: int) -> None:
        if left:
            left.pop().unlink()
        lock(fd, how)

    monkeypatch.setattr(fcntl, "flock", removed_first)
    append_rows(perf, [row(model="new")])
    assert models(perf) == ["new"]


def test_a_missing_folder_is_made_when_the_runs_begin_and_not_for_a_row(tmp_path: Path) -> None:
    perf = tmp_path / "a" / "b" / "perf.csv"
    check_appendable(perf, tmp_path)
    with pytest.raises(RecordError, match="no folder") as caught:  # it is gone since the run began
        append_rows(perf, [row(model="a")])
    assert caught.value.hint == f"mkdir -p {tmp_path}/a/b" and os.listdir(tmp_path) == []
    make_folder(perf)
    make_folder(perf)
    append_rows(perf, [row(model="a")])
    assert models(perf) == ["a"]
    with pytest.raises(RecordError, match=f"cannot be made: {perf} is no folder"):
        make_folder(perf / "more" / "perf.csv")


# what keeps rows out is said the same before a run and after it, and nothing is changed
of_a_run = each_row("act", [append_rows, lambda path, rows: check_appendable(path)], ids=["append", "check"])


@of_a_run
@each_row(
    "content",
    [
        b"date,value\n1,2\n",
        b"model,performance,metric\na,1,u\n",
        b"model;status;performance;metric\n",
        b'"never closed\n' * 50_000,
        b"\x7fELF\x00\x01\x02" * 100_000,
        "model,status,performance,metric\n".encode("utf-16"),
        b"model,status,performance,metric," + b"x," * (1 << 20),
    ],
    ids=["other", "results of a script", "semicolons", "open quote", "binary", "utf-16", "endless line"],
)
def test_a_foreign_file_takes_no_row(perf: Path, act, content: bytes) -> None:
    perf.write_bytes(content)
    with pytest.raises(RecordError, match=r"its first line is no perf\.csv header") as caught:
        act(perf, [row(model="a")])
    assert len(caught.value.message) < len(str(perf)) + 350
    assert "-o " in caught.value.hint
    assert perf.read_bytes() == content


@of_a_run
@each_row("name", ["/dev/null", "/dev/full", "/proc/perf.csv", "/proc/version", "/proc/self/environ", "/sys/perf.csv"])
def test_devices_and_files_of_the_kernel_take_no_row(act, name: str) -> None:
    with pytest.raises(RecordError, match=f"{name} is no plain file"):
        act(Path(name), [row(model="a")])


@of_a_run
@each_row("kind", ["pipe", "deleted"])
def test_a_descriptor_without_a_file_of_its_own_takes_no_row(tmp_path: Path, act, kind: str) -> None:
    """As -o /dev/stdout names it, with the output piped or its file removed."""
    if kind == "pipe":
        other, fd = os.pipe()
    else:
        other, fd = os.open("/dev/null", os.O_RDONLY), os.open(tmp_path / "perf.csv", os.O_RDWR | os.O_CREAT)
        (tmp_path / "perf.csv").unlink()
    try:
        with pytest.raises(RecordError, match="is no plain file"):
            act(Path(f"/dev/fd/{fd}"), [row(model="a")])
    finally:
        os.close(other)
        os.close(fd)
    assert not list(tmp_path.iterdir())


@of_a_run
def test_what_is_no_file_takes_no_row(tmp_path: Path, act) -> None:
    folder, file, pipe, loop = (tmp_path / name for name in ("folder", "file", "pipe", "loop"))
    folder.mkdir()
    file.write_text("")
    os.mkfifo(pipe)
    loop.symlink_to(loop)
    places = ((folder, "is a folder"), (file / "perf.csv", "no folder"), (pipe, "no plain file"), (loop, "cannot be"))
    for path, said in places:
        with pytest.raises(RecordError, match=said) as caught:
            act(path, [row(model="a")])
        assert path != folder or caught.value.hint.endswith(f"-o {folder}/perf.csv")


@of_a_run
@each_row("number", [errno.EACCES, errno.EPERM, errno.EROFS])
def test_a_file_that_may_only_be_read_takes_no_row(perf: Path, act, number: int, monkeypatch) -> None:
    append_rows(perf, [row(model="a")])

    def refuse(*args: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(RecordError, match=f"cannot be written: {os.strerror(number)}") as caught:
        act(perf, [row(model="a")])
    assert caught.value.hint.startswith("ls -ld ")


@of_a_run
def test_a_file_system_without_locks_takes_no_row(perf: Path, act, monkeypatch: pytest.MonkeyPatch) -> None:
    append_rows(perf, [row(model="a")])
    before = perf.read_bytes()

    def refuse(*args: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(RecordError, match="cannot be locked on its file system"):
        act(perf, [row(model="b")])
    assert perf.read_bytes() == before


def test_check_finds_a_folder_that_takes_no_new_file() -> None:
    """Root may write anywhere: another user looks, in a process and a folder that has no private one above it."""
    said = FORK.SimpleQueue()

    def look(folder: Path) -> None:
        if os.getuid() == 0:
            os.chown(folder, NOBODY, NOBODY)
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
        for mode in (0o755, 0o555):
            folder.chmod(mode)
            try:
                check_appendable(folder / "perf.csv")
                said.put("")
            except RecordError as error:
                said.put(error.message)

    with TemporaryDirectory(dir="/tmp") as name:
        process = FORK.Process(target=look, args=(Path(name),))
        process.start()
        process.join()
    assert process.exitcode == 0
    before, after = said.get(), said.get()
    assert before == "" and "Permission denied" in after


def test_check_makes_and_changes_nothing(perf: Path) -> None:
    check_appendable(perf)
    assert not perf.exists()
    perf.write_text(f"{SMALL}\na,,")
    check_appendable(perf)
    assert perf.read_text() == f"{SMALL}\na,,"


def test_check_does_not_wait_for_a_writer(perf: Path) -> None:
    perf.write_text(SMALL)
    with perf.open("rb") as writer:
        fcntl.flock(writer, fcntl.LOCK_EX)
        check_appendable(perf)


def test_a_full_disk_is_told_with_where_to_look(perf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append_rows(perf, [row(model="first")])
    before = perf.read_bytes()

    def full(*args: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched, pytest.raises(RecordError) as told:
        patched.setattr("madlite.perfcsv.append.os.open", full)
        append_rows(perf, [row(model="second")])
    assert told.value.message == f"no space left for {perf} (No space left on device); it is as it was"
    assert told.value.hint == f"df -h {perf.parent}" and perf.read_bytes() == before


def test_a_pipe_that_takes_the_files_place_meanwhile_is_not_written_to(
    perf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def replaced(path: Path, flags: int, mode: int = 0o777, **named: int) -> int:
        if Path(path).name == perf.name and not perf.exists():
            os.mkfifo(perf)
        return real(path, flags | os.O_NONBLOCK, mode, **named)

    with monkeypatch.context() as patched, pytest.raises(RecordError, match="no plain file"):
        patched.setattr(os, "open", replaced)
        append_rows(perf, [row(model="x")])
