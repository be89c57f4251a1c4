"""A log of limited size: beginning and end stay, the disk never holds more, and a reader misses nothing silently."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from madlite.files import Folder
from madlite.model import Chunk
from madlite.reports.log import LogParts, read_log
from madlite.run.log import RunLog
from madlite.store.log_file import LEFT_OUT, LogFile
from tests.rows import each_row

LIMIT = 640
HEAD, SHARE = LIMIT // 2, LIMIT // 32
TEXT = st.text("ab\n", max_size=90).map(str.encode) | st.integers(0, 2000).map(lambda size: b"wide line " * size)


def open_log(path: Path, *, limit_bytes: int) -> LogFile:
    folder = Folder.open(path.parent)
    return LogFile(folder.open_file(path.name, os.O_RDWR | os.O_APPEND), path.name, folder, limit_bytes=limit_bytes)


def check(shown: bytes, whole: bytes) -> None:
    """Check that what was shown is what was printed, but for what the lines between count."""
    places, parts = {0}, re.split(rb"\[madlite: (\d+) bytes left out here\]\n", shown)
    for text, left_out in zip(parts[::2], [*parts[1::2], b"0"], strict=True):
        texts = {text, text.removesuffix(b"\n")}  # a line's end before such a line is the text's or its own
        places = {at + len(one) + int(left_out) for at in places for one in texts if whole[at:].startswith(one)}
    assert len(whole) in places


def on_disk(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


@pytest.mark.host
@given(st.lists(TEXT, max_size=40), st.booleans())
@settings(deadline=None)
def test_the_beginning_and_the_end_are_kept_and_the_disk_holds_no_more_than_the_limit(
    tmp_path_factory, chunks: list[bytes], follow: bool
) -> None:
    folder = tmp_path_factory.mktemp("log")
    path, whole, shown = folder / "run.log", b"", b""
    log = open_log(path, limit_bytes=LIMIT)
    fd = os.open(path, os.O_RDONLY)
    reader = LogParts(folder, fd)
    for chunk in chunks:
        log.write(chunk)
        whole += chunk
        assert on_disk(folder) <= LIMIT
        if follow:
            shown += b"".join(reader.new())
            check(shown, whole)
    said = b"".join(log.read())
    assert b"".join(read_log(folder)) == said or log.left_out, "of a gap the reader shows the rest of a line too"
    log.close()
    data = path.read_bytes()
    assert data == said and [one.name for one in folder.iterdir()] == ["run.log"]
    check(data, whole)
    assert data[: HEAD - 90] == whole[: HEAD - 90] or b"\n" in whole[:HEAD]
    assert len(LEFT_OUT.findall(data)) == bool(log.left_out) == bool(log.note)
    if log.left_out:
        assert len(whole) > LIMIT - 2 * SHARE and len(data) <= LIMIT + 64, "the line itself"
        assert len(data) > HEAD or b"\n" in data[HEAD - 90 :]
    else:
        assert data == whole
    shown += b"".join(reader.new())
    check(shown, whole)
    os.close(fd)


def numbered(count: int) -> list[bytes]:
    return [b"line %06d\n" % n for n in range(count)]


def test_head_and_tail_are_whole_lines_and_the_count_is_right(tmp_path: Path) -> None:
    log = open_log(tmp_path / "run.log", limit_bytes=64 << 10)
    for line in numbered(50_000):
        log.write(line)
    log.close()
    lines = (tmp_path / "run.log").read_bytes().splitlines(keepends=True)
    every = numbered(50_000)
    gap = next(place for place, line in enumerate(lines) if line.startswith(b"["))
    assert lines[:gap] == every[:gap] and lines[gap + 1 :] == every[-(len(lines) - gap - 1) :]
    assert lines[gap] == b"[madlite: %d bytes left out here]\n" % (12 * (50_000 - len(lines) + 1))
    assert f"{log.left_out:,} bytes" in log.note and "(--log-limit 64K)" in log.note
    assert 30 << 10 < 12 * gap <= 32 << 10 and 26 << 10 < 12 * (len(lines) - gap - 1) <= 30 << 10


def test_a_chunk_larger_than_the_limit_leaves_its_two_ends(tmp_path: Path) -> None:
    log = open_log(tmp_path / "run.log", limit_bytes=64 << 10)
    log.write(b"".join(numbered(100_000)))
    log.close()
    data = (tmp_path / "run.log").read_bytes()
    assert data.startswith(b"line 000000\nline 000001\n") and data.endswith(b"line 099999\n")
    assert LEFT_OUT.search(data) and len(data) <= 64 << 10


@pytest.mark.host
def test_a_tail_that_cannot_be_written_costs_neither_the_head_nor_the_run(tmp_path: Path, caplog) -> None:
    seen: list[bytes] = []
    log = RunLog(tmp_path / "run.log", [], [lambda data, stream: seen.append(data)], limit_bytes=64 << 10)
    for place in range(32 << 10, (32 << 10) - 12, -1):  # wherever the head ends, somebody was there before
        (tmp_path / f".run.log.tail-{place}-{place}").mkdir()
    for line in numbered(10_000):
        log.feed(Chunk(data=line))
    log.close()
    assert log.notes == ("the log is incomplete: Is a directory",) and caplog.text.count("incomplete") == 1
    assert b"".join(seen) == b"".join(numbered(10_000)), "whoever looks gets all of it"
    assert (tmp_path / "run.log").read_bytes() == b"".join(numbered(2730))


def test_a_link_in_the_place_of_a_part_is_not_written_through(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("mine")
    folder = tmp_path / "folder"
    folder.mkdir()
    for place in range(32 << 10, (32 << 10) - 12, -1):
        (folder / f".run.log.tail-{place}-{place}").symlink_to(outside)
    log = open_log(folder / "run.log", limit_bytes=64 << 10)
    for line in numbered(3000):
        log.write(line)
    log.close()
    assert outside.read_text() == "mine" and (folder / "run.log").read_bytes() == b"".join(numbered(3000))


@pytest.mark.host
def test_every_live_log_is_limited_and_the_hard_link_stays_one(tmp_path: Path) -> None:
    folder = tmp_path / "madlite_runs/one"
    folder.mkdir(parents=True)
    log = RunLog(folder / "run.log", [], [], limit_bytes=64 << 10)
    log.begin_live(tmp_path / "x.live.log")
    log.link_live(tmp_path / "y.live.log")
    log.feed(Chunk(data=b"built\n"))
    for line in numbered(20_000):
        log.feed(Chunk(data=line))
    log.copy_live(tmp_path / "x.build.live.log")
    log.begin_live(tmp_path / "x.run.live.log")
    for line in numbered(20_000):
        log.feed(Chunk(data=line, stream=2))
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("madlite_runs", "x.build.live.log", "x.live.log", "x.run.live.log", "y.live.log")
    ], "parts of a tail lie in the run's folder alone"
    log.close()
    assert [path.name for path in folder.iterdir()] == ["run.log"]
    assert (tmp_path / "x.live.log").samefile(tmp_path / "y.live.log")
    for name, begin in {"x.live.log": b"built\n", "x.build.live.log": b"built\n", "x.run.live.log": b"line"}.items():
        data = (tmp_path / name).read_bytes()
        assert data.startswith(begin) and data.endswith(b"line 019999\n") and len(data) <= 64 << 10
        assert len(LEFT_OUT.findall(data)) == 1


@each_row("tail", [0, 1, 100, 2500, 100_000])
def test_the_last_lines_are_found_in_the_parts_of_a_run_that_goes_on(tmp_path: Path, tail: int) -> None:
    log = open_log(tmp_path / "run.log", limit_bytes=64 << 10)
    for line in numbered(20_000):
        log.write(line)
    shown = b"".join(read_log(tmp_path, tail=tail)).splitlines(keepends=True)
    every = b"".join(read_log(tmp_path)).splitlines(keepends=True)
    kept = [line for line in shown if not line.startswith(b"[")]
    assert kept[-2000:] == numbered(20_000)[-tail:][-2000:] if tail else not shown
    assert len(kept) == min(tail, sum(not line.startswith(b"[") for line in every))
    log.close()


def test_what_a_kill_leaves_is_read_to_its_end_wherever_it_came(tmp_path: Path, monkeypatch) -> None:
    whole = b"".join(numbered(20_000))
    for writes in range(12):
        folder = tmp_path / str(writes)
        folder.mkdir()
        log = open_log(folder / "run.log", limit_bytes=64 << 10)
        log.write(whole)
        left, real = [writes], os.write

        def write(fd: int, data: bytes, left: list[int] = left, real=real) -> int:
            if not left[0]:
                raise KeyboardInterrupt
            left[0] -= 1
            return real(fd, data[: max(1, len(data) // 2)] if left[0] == 0 else data)

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr("madlite.store.log_file.os.write", write)
            log.close()
        shown = b"".join(read_log(folder))
        assert shown.startswith(whole[: 30 << 10]) and shown.endswith(whole[-(26 << 10) :]), writes
