"""The log: byte for byte, secrets masked, never the reason a run ends."""

from __future__ import annotations

import os

from hypothesis import given
from hypothesis import strategies as st

from madlite.files import Folder
from madlite.model import Chunk
from madlite.run.log import RunLog
from madlite.secrets.patterns import LONGEST_KEY

SECRET = "hf_0123456789"


def test_bytes_arrive_as_they_are_and_sinks_see_the_same(tmp_path):
    seen: list[tuple[bytes, int]] = []
    log = RunLog(tmp_path / "run.log", [SECRET], [lambda data, stream: seen.append((data, stream))])
    log.feed(Chunk(data=b"\x00\xff\r\nx " + SECRET[:5].encode()))
    log.feed(Chunk(data=b"err ", stream=2))
    log.feed(Chunk(data=SECRET[5:].encode() + b" y"))
    log.close()
    assert (tmp_path / "run.log").read_bytes() == b"\x00\xff\r\nx *** yerr "
    assert b"".join(data for data, stream in seen if stream == 1) == b"\x00\xff\r\nx *** y"


@given(st.lists(st.binary(max_size=30), max_size=8))
def test_what_is_no_secret_is_kept_byte_for_byte(tmp_path_factory, chunks):
    path = tmp_path_factory.mktemp("log") / "run.log"
    log = RunLog(path, [SECRET], [])
    for chunk in chunks:
        log.feed(Chunk(data=chunk))
    log.close()
    assert path.read_bytes() == b"".join(chunks)


def test_the_legacy_name_is_the_last_starters(tmp_path):
    legacy = tmp_path / "x.live.log"
    for n in (1, 2):
        log = RunLog(tmp_path / f"run{n}.log", [], [])
        log.begin_live(legacy)
        log.link_live(tmp_path / "x.run.live.log")
        log.feed(Chunk(data=b"run %d" % n))
        log.close()
    assert legacy.read_bytes() == b"run 2" and legacy.samefile(tmp_path / "x.run.live.log")
    assert (tmp_path / "run1.log").read_bytes() == b"run 1"


def test_what_is_told_is_in_the_live_logs_alone_masked_and_on_lines_of_its_own(tmp_path):
    log = RunLog(tmp_path / "run.log", [SECRET], [])
    log.begin_live(tmp_path / "x.live.log")
    log.say("built")
    log.write_live("MAD_CONTAINER_IMAGE is ci-x")
    log.copy_live(tmp_path / "x.build.live.log")
    log.begin_live(tmp_path / "x.run.live.log")
    log.feed(Chunk(data=b"no end"))
    log.flush()
    log.write_live(f"MODEL REPO COMMIT: {SECRET}")
    log.say("madlite: said")
    log.close()
    assert (tmp_path / "run.log").read_text() == "built\nno end\nmadlite: said\n"
    run = "no end\nMODEL REPO COMMIT: ***\nmadlite: said\n"
    assert (tmp_path / "x.run.live.log").read_text() == run
    assert (tmp_path / "x.build.live.log").read_text() == "built\nMAD_CONTAINER_IMAGE is ci-x\n"
    assert (tmp_path / "x.live.log").read_text() == "built\nMAD_CONTAINER_IMAGE is ci-x\n" + run


def test_where_there_are_no_hard_links_a_live_log_has_its_first_name_alone(tmp_path, monkeypatch, caplog):
    def link(*_args, **_keys):
        raise OSError("no hard links here")

    monkeypatch.setattr(os, "link", link)
    log = RunLog(tmp_path / "run.log", [], [])
    log.link_live(tmp_path / "none.log")  # of no live log there is no other name
    log.begin_live(tmp_path / "x.live.log")
    log.link_live(tmp_path / "x.run.live.log")
    log.feed(Chunk(data=b"on"))
    log.close()
    assert (tmp_path / "x.live.log").read_bytes() == b"on" and "no x.run.live.log" in caplog.text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.log", "x.live.log"]


def test_of_two_runs_of_a_card_at_a_time_the_later_one_has_both_names(tmp_path, caplog):
    names = [tmp_path / "x.live.log", tmp_path / "x.run.live.log"]
    first, later = (RunLog(tmp_path / f"run{n}.log", [], []) for n in (1, 2))
    for log in (first, later):
        log.begin_live(names[0])
    first.link_live(names[1])  # while the image of the later one is prepared
    later.link_live(names[1])
    for log, text in ((first, b"first"), (later, b"later")):
        log.feed(Chunk(data=text))
        log.close()
    assert [path.read_bytes() for path in names] == [b"later"] * 2 and not names[1].is_symlink()
    assert not caplog.text
    assert {path.name for path in tmp_path.iterdir()} == {"run1.log", "run2.log", "x.live.log", "x.run.live.log"}


def test_of_two_runs_that_both_began_the_second_name_leaves_no_third(tmp_path):
    names = [tmp_path / "x.live.log", tmp_path / "x.run.live.log"]
    first, later = (RunLog(tmp_path / f"run{n}.log", [], []) for n in (1, 2))
    for log in (first, later):
        log.begin_live(names[0])
    for log in (first, later):
        log.link_live(names[1])
        log.close()
    assert {path.name for path in tmp_path.iterdir()} == {"run1.log", "run2.log", "x.live.log", "x.run.live.log"}


def test_a_link_in_place_of_the_second_name_is_replaced_with_a_warning(tmp_path, caplog):
    (tmp_path / "x.run.live.log").symlink_to("/etc/passwd")
    log = RunLog(tmp_path / "run.log", [], [])
    log.begin_live(tmp_path / "x.live.log")
    log.link_live(tmp_path / "x.run.live.log")
    log.close()
    assert "a link is in the place of" in caplog.text


def test_a_legacy_name_that_cannot_be_had_does_not_end_the_run(tmp_path, caplog):
    (tmp_path / "x.live.log").mkdir()
    log = RunLog(tmp_path / "run.log", [], [])
    log.begin_live(tmp_path / "x.live.log")
    log.feed(Chunk(data=b"on"))
    log.close()
    assert "x.live.log" in caplog.text and (tmp_path / "run.log").read_bytes() == b"on"


def test_a_full_disk_is_told_once_and_the_rest_goes_on(tmp_path, monkeypatch, caplog):
    seen = []
    monkeypatch.setattr(Folder, "open_file", lambda *_: os.open("/dev/full", os.O_WRONLY))
    log = RunLog(tmp_path / "run.log", [], [lambda data, stream: seen.append(data)])
    for _ in range(3):
        log.feed(Chunk(data=b"x\n"))
    log.close()
    assert log.problem == "the log is incomplete: No space left on device"
    assert len(seen) == 3 and caplog.text.count("No space left") == 1


def test_a_live_log_that_finds_no_room_is_not_said_of_the_log(tmp_path, monkeypatch):
    create = Folder.create

    def full(folder: Folder, name: str, flags: int) -> int:
        os.close(create(folder, name, flags))
        return os.open("/dev/full", os.O_RDWR)

    monkeypatch.setattr(Folder, "create", full)
    log = RunLog(tmp_path / "run.log", [], [])
    log.begin_live(tmp_path / "x.live.log")
    log.feed(Chunk(data=b"on"))
    log.close()
    assert log.notes == ("a live log is incomplete: No space left on device",)
    assert (tmp_path / "run.log").read_bytes() == b"on"


def test_a_log_that_cannot_be_made_is_told_and_the_rest_goes_on(tmp_path, caplog):
    seen = []
    log = RunLog(tmp_path / "gone/run.log", [SECRET], [lambda data, on: seen.append(data)])
    log.begin_live(tmp_path / "x.live.log")
    log.say("begins")
    log.feed(Chunk(data=b"x " + SECRET.encode()))
    log.copy_live(tmp_path / "x.build.live.log")
    log.close()
    assert log.problem == "no run.log: No such file or directory" and b"".join(seen) == b"x ***"
    assert list(tmp_path.iterdir()) == [], "no name of it either"


def test_lines_of_nodes_stay_whole_and_a_long_one_is_cut_on_a_line_of_its_own(tmp_path):
    log = RunLog(tmp_path / "run.log", [SECRET], [], nodes=2)
    log.feed(Chunk(data=b"half a ", node=0))
    log.feed(Chunk(data=b"of node 1\r\nand its " + SECRET[:4].encode(), node=1))
    log.feed(Chunk(data=b"line\n" + b"x" * (4 * LONGEST_KEY + 1), node=0))
    log.feed(Chunk(data=SECRET[4:].encode() + b"\n", node=1))
    log.feed(Chunk(data=b"yy\n", node=0))
    log.close()
    lines = (tmp_path / "run.log").read_bytes().splitlines()
    assert [line[:30] for line in lines] == [
        b"[node1]: of node 1",
        b"[node0]: half a line",
        b"[node0]: " + b"x" * 21,
        b"[node1]: and its ***",
        b"[node0]: xxxxxxxxxxxxxxxxxxxxx",
    ]
