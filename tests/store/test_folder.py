"""The run folder: made before anything starts, locked while its engine lives."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import subprocess
import sys
import time
from contextlib import closing
from datetime import datetime, timedelta, timezone

import msgspec
import pytest
from msgspec.structs import replace

from madlite.errors import UsageProblem
from madlite.files import Folder
from madlite.model import Secret
from madlite.store import folder as folders
from madlite.store.folder import (
    LOCK,
    PLAN,
    RECORD,
    RUN_JOURNAL,
    RunFolder,
    has_result,
    is_alive,
    new_run_id,
    unfinished,
    was_disk_full,
)
from madlite.store.locks import open_locked
from tests.factories import write_journal
from tests.plan.conftest import given  # noqa: F401 - a fixture


@pytest.fixture
def plan(given):  # noqa: F811
    from madlite.plan.make import make_plan

    return make_plan(given())


def test_an_id_is_safe_everywhere_and_sorts_by_time():
    early = new_run_id("../team/Llama 3.1; rm -rf /", datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc))
    assert early.startswith("20260102T030405-team-Llama-3-1-rm-rf-")
    assert early < new_run_id("a", datetime(2026, 1, 2, 3, 4, 6, tzinfo=timezone.utc))
    when = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)
    runs = [new_run_id("a", when + timedelta(milliseconds=number)) for number in range(1000)]
    assert runs == sorted(runs), "runs of one second sort by time, too"
    assert new_run_id("") != new_run_id("") and len(new_run_id("x" * 500)) <= 63, "a label of Kubernetes"


def test_it_holds_plan_and_files_and_git_does_not_see_it(plan):
    folder = RunFolder.create(plan, [("run.sh", b"echo hi\n"), ("deep/er.toml", b"x = 1\n")])
    assert (plan.folder / "run.sh").read_bytes() == b"echo hi\n" and (plan.folder / "deep/er.toml").exists()
    assert msgspec.json.decode((plan.folder / "plan.json").read_bytes())["id"] == plan.id
    assert (plan.folder.parent / ".gitignore").read_text() == "*\n"
    folder.close()


@pytest.mark.parametrize("containerised", [False, True])
def test_a_checkpoint_is_taken_over_from_the_attempt_before(plan, containerised):
    plan = replace(plan, traits=replace(plan.traits, containerised=containerised), blocked=None)
    part = "work/checkpoint" if containerised else "checkpoint"
    before = plan.folder.parent / "before"
    with closing(RunFolder.create(plan, [])) as folder:
        assert folder.take_checkpoint(before) == ""  # it left none
        (before / part).mkdir(parents=True)
        (before / part / "step-10").write_text("weights")
        (plan.folder / part).mkdir()
        (plan.folder / part / "own").touch()
        assert "could not be taken over" in folder.take_checkpoint(before)
        shutil.rmtree(plan.folder / part)
        assert folder.take_checkpoint(before) == "the checkpoint of before is taken over"
        assert (plan.folder / part / "step-10").read_text() == "weights" and not (before / part).exists()
        # what a workload laid in its place is left
        shutil.rmtree(plan.folder / part)
        (before / part).symlink_to("/etc")
        assert folder.take_checkpoint(before) == "" and not (plan.folder / part).exists()
        (before / part).unlink()
        (before / part).symlink_to("checkpoint")  # a loop
        assert folder.take_checkpoint(before) == ""


def test_the_folder_of_runs_is_that_of_a_group_where_the_working_folder_is(plan):
    before = os.umask(0o002)
    try:
        plan.workspace.chmod(0o2775)
        RunFolder.create(plan, []).close()
        assert plan.folder.parent.stat().st_mode & 0o777 == 0o770
    finally:
        os.umask(before)


def test_the_folder_of_runs_is_its_owner_s_alone_and_one_that_is_there_keeps_its_mode(plan):
    before = os.umask(0o022)
    plan.workspace.chmod(0o755)
    try:
        RunFolder.create(plan, []).close()
        assert [plan.folder.parent.stat().st_mode & 0o777, plan.folder.stat().st_mode & 0o777] == [0o700, 0o755]
        shutil.rmtree(plan.folder)
        plan.folder.parent.chmod(0o755)
        RunFolder.create(plan, []).close()
        assert plan.folder.parent.stat().st_mode & 0o777 == 0o755
    finally:
        os.umask(before)


def test_nothing_is_written_outside_of_it(plan):
    for name in ("../evil", "/tmp/evil", "a/../../evil"):
        with pytest.raises(UsageProblem, match="outside"):
            RunFolder.create(
                msgspec.structs.replace(plan, folder=plan.folder.with_name(f"x{hash(name)}")), [(name, b"")]
            )
    assert not (plan.folder.parent / "evil").exists()


def test_alive_unfinished_finished(plan):
    folder = RunFolder.create(plan, [])
    assert is_alive(plan.folder) and unfinished(plan.workspace) == ()
    folder.close()
    assert not is_alive(plan.folder) and unfinished(plan.workspace) == (plan.folder,)
    (plan.folder / RECORD).touch()
    assert unfinished(plan.workspace) == ()
    (plan.folder / RECORD).unlink()
    write_journal(plan.folder, cleaned="no row")
    assert unfinished(plan.workspace) == ()


def test_the_lock_goes_with_the_process(plan):
    """The kernel gives it back, whatever ended the engine; a child of the engine does not hold it."""
    plan.folder.mkdir(parents=True)
    (plan.folder / "plan.json").touch()
    code = (
        "import fcntl, os, subprocess, sys\n"
        f"fd = os.open({str(plan.folder / 'lock')!r}, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)\n"
        "fcntl.flock(fd, fcntl.LOCK_EX)\n"
        "print(subprocess.Popen(['sleep', '300'], stdout=subprocess.DEVNULL).pid, flush=True)\n"
        "sys.stdin.read()\n"
    )
    holder = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    child = int(holder.stdout.readline())
    try:
        assert is_alive(plan.folder)
        holder.kill()
        holder.wait()
        assert not is_alive(plan.folder)
    finally:
        os.kill(child, 9)


def test_a_folder_that_cannot_be_made_is_one_sentence(plan):
    plan.folder.parent.parent.mkdir(exist_ok=True)
    plan.folder.parent.write_text("a file where the runs should be")
    with pytest.raises(UsageProblem, match="run folder"):
        RunFolder.create(plan, [])


def test_the_plan_is_written_without_secrets(plan):
    env = {"HF_TOKEN": Secret("hf_hush"), "OTHER": "x hf_hush", "B": "known_hush"}
    plan = msgspec.structs.replace(plan, env=env, args="--t hf_hush", timeout_s=7200.0)
    RunFolder.create(plan, [], ["known_hush", "7200"]).close()
    text = (plan.folder / "plan.json").read_text()
    assert "hush" not in text
    written = msgspec.json.decode(text)
    assert written["args"] == "--t ***" and written["timeout_s"] == 7200 and written["env"]["OTHER"] == "x ***"


def test_a_link_that_was_laid_in_the_way_is_replaced_and_a_folder_is_told(plan, tmp_path):
    outside = tmp_path / "outside"
    outside.write_text("as it was")
    with closing(RunFolder.create(plan, [])) as folder:
        for name in ("record.json", "journal.jsonl", "handle"):
            for target in (outside, tmp_path / "dangling", "loop", "/etc"):
                (plan.folder / name).unlink(missing_ok=True)
                (plan.folder / name).symlink_to(name if target == "loop" else target)
                assert folder.write_text(name, "{}") == ""
                assert not (plan.folder / name).is_symlink() and (plan.folder / name).read_text() == "{}"
            (plan.folder / name).unlink()
            (plan.folder / name).mkdir()
            assert folder.write_text(name, "{}") == f"{name} could not be written: Is a directory"
        (plan.folder / "hang").symlink_to(tmp_path)
        assert "hang/a.txt could not be written: a link is in the place of hang" in folder.write_text("hang/a.txt", "x")
    assert outside.read_text() == "as it was" and not (tmp_path / "dangling").exists()
    assert not (tmp_path / "a.txt").exists()


def test_a_record_that_is_a_link_or_a_folder_is_no_end(plan):
    RunFolder.create(plan, []).close()
    (plan.folder / RECORD).symlink_to("/etc/passwd")
    (plan.folder / RUN_JOURNAL).unlink()
    (plan.folder / RUN_JOURNAL).mkdir()
    assert unfinished(plan.workspace) == (plan.folder,)


def test_a_lock_is_held_before_anybody_can_see_it(plan, monkeypatch):
    seen = []

    def look(folder: Folder, name: str) -> int:
        seen.append(unfinished(plan.workspace))
        lock = open_locked(folder, name)
        seen.append((plan.folder / LOCK).exists())
        return lock

    monkeypatch.setattr(folders, "open_locked", look)
    with closing(RunFolder.create(plan, [])):
        assert seen == [(), False] and is_alive(plan.folder)
        assert sorted(path.name for path in plan.folder.iterdir()) == [RUN_JOURNAL, LOCK, PLAN]


@pytest.mark.host
def test_who_asks_whether_a_run_lives_is_not_taken_for_its_holder(plan, monkeypatch):
    RunFolder.create(plan, []).close()
    with (plan.folder / LOCK).open() as asking:
        fcntl.flock(asking, fcntl.LOCK_SH)
        assert not is_alive(plan.folder) and unfinished(plan.workspace) == (plan.folder,)
        monkeypatch.setattr(time, "sleep", lambda for_s: fcntl.flock(asking, fcntl.LOCK_UN))
        with closing(RunFolder.reopen(plan.folder)):
            assert is_alive(plan.folder)
            monkeypatch.setattr("madlite.store.locks.open_locked.__defaults__", (0.0,))
            with pytest.raises(BlockingIOError):
                RunFolder.reopen(plan.folder)


def test_on_nfs_a_run_that_was_cut_off_is_not_taken_for_one_that_goes_on(plan, monkeypatch):
    """Its client takes an exclusive lock of a file that is open for writing alone: flock(2)."""
    RunFolder.create(plan, []).close()
    real = fcntl.flock

    def nfs(fd: int, how: int) -> None:
        if how & fcntl.LOCK_EX and fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        real(fd, how)

    monkeypatch.setattr(fcntl, "flock", nfs)
    assert unfinished(plan.workspace) == (plan.folder,)


RESULT_TEXT = '{{"version":1,"record":{{"id":"{}"}}}}'


def on(disk, plan):
    """Return the plan of a run whose working folder is a small disk."""
    return msgspec.structs.replace(plan, workspace=disk.path, folder=disk.path / "madlite_runs" / plan.id)


def test_a_result_has_room_on_a_disk_that_became_full(small_disk, plan):
    one = on(small_disk, plan)
    with closing(RunFolder.create(one, [], reserve=True)) as folder:
        small_disk.fill()
        assert "No space left" in folder.write_text("other", "x" * 5000)
        assert not has_result(one.folder) and not was_disk_full(one.folder)
        assert folder.write_result(RESULT_TEXT.format(plan.id) + " " * 100_000) == ""
    assert has_result(one.folder) and not was_disk_full(one.folder)
    assert sorted(file.name for file in one.folder.iterdir() if "result" in file.name) == ["result.json"]


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_run_without_room_for_its_result_shows_that_the_disk_was_full(small_disk, plan, when):
    one = on(small_disk, plan)
    if when == "before":
        RunFolder.create(msgspec.structs.replace(one, folder=one.folder.with_name("other")), []).close()
        small_disk.fill()
        with pytest.raises(UsageProblem, match="No space left"):
            RunFolder.create(one, [], reserve=True)
    else:
        with closing(RunFolder.create(one, [], reserve=True)) as folder:
            small_disk.fill()
            assert "No space left" in folder.write_result("x" * (1 << 20))
    assert was_disk_full(one.folder) and not has_result(one.folder)
    small_disk.free()
    with closing(RunFolder.reopen(one.folder, begun=True)) as folder:
        assert folder.write_result(RESULT_TEXT.format(plan.id)) == ""
    assert has_result(one.folder) and not was_disk_full(one.folder)


def test_a_file_of_a_workload_is_no_result(plan):
    with closing(RunFolder.create(plan, [])):
        for text in ("[]", "{}", RESULT_TEXT.format("another"), "{", "\udc80"):
            (plan.folder / "result.json").write_text(text, errors="surrogateescape")
            assert not has_result(plan.folder)


def test_a_run_that_is_being_made_has_its_plan_and_is_no_run_that_was_cut_off(plan, monkeypatch):
    seen, rename = [], Folder.rename

    def look(folder: Folder, name: str, to: str) -> None:
        seen.append((to, (plan.folder / PLAN).exists(), is_alive(plan.folder), unfinished(plan.workspace)))
        rename(folder, name, to)

    monkeypatch.setattr(Folder, "rename", look)
    with closing(RunFolder.create(plan, [])):
        assert seen[-1] == (LOCK, True, True, ()) and is_alive(plan.folder)
