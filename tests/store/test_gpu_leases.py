"""Leases of GPUs between processes and users: who holds one is known, and what lies in their place is not used."""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from madlite.batch.gpu_allocator import UNSEEN, clear_leases, lease_states, remains_of
from madlite.errors import UsageProblem
from madlite.machine.processes import RUN_MARK
from madlite.model import Gpu
from madlite.store.gpu_leases import LeaseFolder, LeaseHolder, lease_folder, lease_names, own_lease_folder
from tests.forked import end_of, kill_this_process, run_killed, start_forked
from tests.other_users import open_folder
from tests.rows import each_row

NOBODY = 65534
GPU = Gpu(index=0, bus="0000:c1:00.0")
NAME = "gpu-0000:c1:00.0"
ME = LeaseHolder(user="me", uid=1, pid=os.getpid(), run="r1", folder="/w/madlite_runs/r1")


def as_user(uid: int, act: Callable[[], object]) -> None:
    """Do something in a process of another user; an exception of it fails the test."""

    def act_as_user() -> None:
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
        act()

    assert end_of(start_forked(act_as_user)) == 0


@pytest.fixture
def folder():
    """Yield a folder that is not there, in one that all users reach."""
    with open_folder(0o1777) as place:
        yield place / "leases"


def test_a_lease_is_one_process_s_and_says_whose(folder):
    with closing(LeaseFolder(folder)) as one, closing(LeaseFolder(folder)) as other:
        lease, dead = one.take(NAME)
        lease.note(ME)
        assert dead is None and other.take(NAME) is None
        (state,) = other.states([NAME])
        assert state.locked and state.holder == ME
        lease.release()
        (state,) = other.states([NAME])
        assert not state.locked and state.holder is None
        assert other.take(NAME)[1] is None


def test_a_lease_of_a_killed_process_is_free_and_names_it(folder):
    def be_killed() -> None:
        leases = LeaseFolder(folder)
        lease, _ = leases.take(NAME)
        lease.note(ME)
        kill_this_process()

    run_killed(be_killed)
    with closing(LeaseFolder(folder)) as leases:
        lease, dead = leases.take(NAME)
        assert dead == ME
        lease.leave()
        leases.clear(NAME)
        assert [one.holder for one in leases.states([NAME])] == [None]


@each_row("moment", ["pwrite", "ftruncate"])
@each_row("handle", ["", "0123456789ab" * 5])
def test_a_kill_while_an_owner_is_written_leaves_its_run_in_the_lease(tmp_path, monkeypatch, moment, handle):
    folder = tmp_path / "leases"

    def killed() -> None:
        lease, _ = LeaseFolder(folder).take(NAME)
        lease.note(replace(ME, handle="0123456789ab" * 2))
        monkeypatch.setattr(os, moment, kill_this_process)
        lease.note(replace(ME, handle=handle))

    run_killed(killed)
    with closing(LeaseFolder(folder)) as leases:
        (state,) = leases.states([NAME])
        assert not state.locked and state.holder is not None and state.holder.run == ME.run


def test_a_file_that_is_there_is_opened_without_making_one(folder, monkeypatch):
    LeaseFolder(folder).take(NAME)
    real, flags = os.open, []
    monkeypatch.setattr(
        os, "open", lambda path, how, *more, **named: flags.append(how) or real(path, how, *more, **named)
    )
    with closing(LeaseFolder(folder)) as leases:
        leases.take(NAME), leases.take_turn(), list(leases.states([NAME]))
    made = [how for how in flags if how & os.O_CREAT]
    assert len(flags) >= 4 and len(made) == 1 and made[0] & os.O_EXCL, (
        "as fs.protected_regular=2 has it: the turn alone"
    )
    assert all(how & os.O_NOFOLLOW for how in flags)


def test_folder_and_files_are_for_all_whatever_the_umask(folder):
    before = os.umask(0o077)
    try:
        with closing(LeaseFolder(folder)) as leases:
            leases.take(NAME)
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o1777 and stat.S_IMODE((folder / NAME).stat().st_mode) == 0o666


def test_a_folder_that_a_user_names_keeps_its_mode(folder):
    folder.mkdir(mode=0o700)
    with closing(LeaseFolder(folder)) as leases:
        assert leases.take(NAME) is not None
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.host
@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_two_users_take_turns_in_both_directions(folder):
    def held() -> None:
        with closing(LeaseFolder(folder)) as leases:
            assert leases.take(NAME) is None
            (state,) = leases.states([NAME])
            assert state.holder == ME

    def free() -> None:
        with closing(LeaseFolder(folder)) as leases:
            lease, dead = leases.take(NAME)
            lease.note(LeaseHolder(user="nobody", uid=NOBODY, run="r2"))
            assert dead is None
            lease.leave()

    with closing(LeaseFolder(folder)) as mine:
        lease, _ = mine.take(NAME)
        lease.note(ME)
        as_user(NOBODY, held)
        lease.release()
        as_user(NOBODY, free)
        lease, dead = mine.take(NAME)
        assert dead is not None and dead.run == "r2"
        lease.release()


@pytest.mark.host
@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_root_uses_a_folder_and_files_that_another_user_made(folder):
    def make() -> None:
        with closing(LeaseFolder(folder)) as leases:
            leases.take(NAME)[0].release()

    as_user(NOBODY, make)
    with closing(LeaseFolder(folder)) as leases:
        lease, _ = leases.take(NAME)
        lease.note(ME)
        assert folder.stat().st_uid == NOBODY and (folder / NAME).stat().st_uid == NOBODY
        lease.release()


@pytest.mark.host
@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_another_user_s_own_folder_is_a_sentence(folder):
    folder.mkdir(mode=0o755)

    def refused() -> None:
        with pytest.raises(UsageProblem, match="is not for all users") as problem:
            LeaseFolder(folder)
        assert "MADLITE_GPU_LEASES=DIR" in problem.value.hint

    as_user(NOBODY, refused)


@pytest.mark.host
@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
@each_row("mode", [0o755, 0o700, 0o777])
def test_a_folder_that_another_user_keeps_for_himself_is_replaced_by_one_s_own(folder, monkeypatch, mode):
    monkeypatch.setattr("madlite.store.gpu_leases._places", lambda: (folder, folder))
    folder.mkdir(exist_ok=True)
    folder.chmod(mode)
    own = folder.with_name(f"own-{mode:o}")

    def have_own() -> None:
        with closing(LeaseFolder(folder, own)) as leases, closing(LeaseFolder(folder, own)) as other:
            lease, _ = leases.take(NAME)
            assert (own / NAME).is_file() and f"cannot be used: {folder}: " in leases.problem
            lease.note(ME)
            (state,) = other.states([NAME])
            assert state.locked and state.holder == ME and not state.problem and other.take(NAME) is None
            assert leases.take_turn() is not None and (own / "turn").is_file()

    as_user(NOBODY, have_own)
    assert list(folder.iterdir()) == []


def plant_link(place: Path) -> None:
    (place.parent / "victim").write_text("mine")
    place.symlink_to(place.parent / "victim")


PLANTED = {"link": plant_link, "pipe": os.mkfifo, "folder": Path.mkdir}


@each_row("name", [NAME, "turn"])
@each_row("kind", PLANTED)
def test_what_lies_in_the_place_of_a_file_is_told_and_not_touched(tmp_path, kind, name):
    folder = tmp_path / "leases"
    LeaseFolder(folder).close()
    PLANTED[kind](folder / name)
    with closing(LeaseFolder(folder)) as leases:
        with pytest.raises(UsageProblem, match=f"the leases of GPUs cannot be used: {folder / name}: "):
            leases.take(name) if name == NAME else leases.take_turn()
        if name == NAME:
            (state,) = leases.states([NAME])
            assert not state.locked and state.holder is None and str(folder / NAME) in state.problem
    victim = folder / "victim"
    assert not victim.exists() or victim.read_text() == "mine"


def test_the_turn_is_one_s_also_where_its_file_was_removed(folder, monkeypatch):
    with closing(LeaseFolder(folder)) as one, closing(LeaseFolder(folder)) as other:
        first = one.take_turn()
        real, done = fcntl.flock, []

        def locked(fd, how):
            real(fd, how)
            if not done:  # between the lock and what follows
                done.append((folder / "turn").unlink())

        first.leave()
        with monkeypatch.context() as patch:
            patch.setattr(fcntl, "flock", locked)
            second = other.take_turn()
        assert second is not None and (folder / "turn").exists() and one.take_turn() is None


def test_a_file_that_is_removed_again_and_again_hangs_nobody(folder, monkeypatch):
    real = fcntl.flock
    with closing(LeaseFolder(folder)) as leases, monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", lambda fd, how: (real(fd, how), (folder / NAME).unlink()))
        with pytest.raises(UsageProblem, match="it comes and goes"):
            leases.take(NAME)


def test_one_s_own_folder_is_of_the_session_or_the_home(tmp_path):
    assert own_lease_folder({"XDG_RUNTIME_DIR": str(tmp_path)}) == tmp_path / "madlite/leases"
    assert own_lease_folder({"XDG_RUNTIME_DIR": "/none", "HOME": "/h"}) == Path("/h/.cache/madlite/leases")


def test_a_folder_in_use_is_locked_against_who_cleans_by_age(folder):
    with closing(LeaseFolder(folder)), closing(LeaseFolder(folder)):
        fd = os.open(folder, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert LeaseFolder(folder).take(NAME) is not None, "and who cleans keeps nobody from it"
    os.close(fd)


def test_a_folder_whose_maker_was_killed_is_opened_to_others_by_the_next_command(folder, monkeypatch):
    monkeypatch.setattr("madlite.store.gpu_leases._OTHERWISE", folder)
    monkeypatch.setattr("madlite.store.gpu_leases._SHARED", folder / "none")
    place = lease_folder({})
    place.mkdir(parents=True, mode=0o755)
    LeaseFolder(place).close()
    assert stat.S_IMODE(place.stat().st_mode) == 0o1777


def test_texts_of_a_holder_are_lines_of_their_own_and_move_no_cursor(folder):
    forged = replace(ME, user="me\nGPU 1   0000:c2:00.0  free\x1b[2K", run="r1\r")
    with closing(LeaseFolder(folder)) as leases:
        leases.take(NAME)[0].note(forged)
        (state,) = leases.states([NAME])
    assert state.holder.user == "me GPU 1   0000:c2:00.0  free [2K" and state.holder.run == "r1 "


def test_a_link_or_a_file_in_the_place_of_the_folder_is_told_and_not_followed(folder):
    (folder.parent / "elsewhere").mkdir()
    folder.symlink_to(folder.parent / "elsewhere")
    with pytest.raises(UsageProblem, match=f"cannot be used: {folder}: "):
        LeaseFolder(folder)
    assert list((folder.parent / "elsewhere").iterdir()) == []
    folder.unlink()
    folder.write_text("")
    with pytest.raises(UsageProblem, match=f"cannot be used: {folder}: "):
        LeaseFolder(folder)


@each_row("text", ["{", "[]", '{"pid": "x"}', '{"user": 5}', "\0" * 50, "[" * 9999, "\xff"])
def test_a_text_that_is_no_lease_s_is_of_nobody(tmp_path, text):
    folder = tmp_path / "leases"
    with closing(LeaseFolder(folder)) as leases:
        leases.take(NAME)[0].leave()
        (folder / NAME).write_bytes(text.encode("latin-1"))
        assert leases.take(NAME)[1] is None


def test_a_file_that_was_removed_is_not_locked_beside_a_new_one(folder):
    with closing(LeaseFolder(folder)) as one, closing(LeaseFolder(folder)) as other:
        lease, _ = one.take(NAME)
        (folder / NAME).unlink()
        assert other.take(NAME) is not None, "by hand: then nobody can know"
        lease.release()
        assert one.take(NAME) is None


def test_each_gpu_has_its_own_name_partitions_too():
    gpus = [Gpu(index=0, bus="0000:01:00.0"), Gpu(index=1, bus="0000:01:00.0"), Gpu(index=2, unique_id="GPU-a/../b")]
    names = lease_names([*gpus, Gpu(index=3)])
    assert names == {0: "gpu-0000:01:00.0-0", 1: "gpu-0000:01:00.0-1", 2: "gpu-GPU-a_.._b", 3: "gpu-3"}


def test_a_lease_has_the_same_name_whatever_else_is_seen_and_by_which_tool():
    parts = [Gpu(index=n, bus="0000:01:00.0", unique_id="8", render_minor=128 + n) for n in range(2)]
    assert lease_names(parts) == {0: "gpu-0000:01:00.0-128", 1: "gpu-0000:01:00.0-129"}
    assert lease_names([replace(parts[1], index=0)]) == {0: "gpu-0000:01:00.0-129"}, "a container sees one of them"
    by_library, by_tool = Gpu(index=0, bus="0000:07:00.0", unique_id="GPU-5f"), Gpu(index=0, unique_id="GPU-5f")
    assert lease_names([by_library]) == lease_names([by_tool])


def test_the_folder_is_named_by_the_environment_or_where_all_users_come(tmp_path):
    assert lease_folder({"MADLITE_GPU_LEASES": str(tmp_path)}) == tmp_path
    assert lease_folder({}) in (Path("/run/lock/madlite"), Path("/tmp/madlite-leases"))


def process(proc: Path, pid: int, *, cmdline: str = "", environ: str = "", cgroup: str = "") -> None:
    (proc / str(pid)).mkdir(parents=True)
    for name, text in (("cmdline", cmdline), ("environ", environ), ("cgroup", cgroup)):
        (proc / str(pid) / name).write_text(text)


def see(proc: Path, table: str, boot: str = "b1", first: bool = True) -> str:
    """Make what shows a process its own table; return how a lease names that."""
    (proc / "self/ns").mkdir(parents=True)
    (proc / "self/ns/pid").symlink_to(table)
    (proc / "sys/kernel/random").mkdir(parents=True)
    (proc / "sys/kernel/random/boot_id").write_text(f"{boot}\n")
    if first:  # which hidepid hides
        (proc / "1").mkdir()
        (proc / "1/stat").write_text(f"1 (init) S 0 1{' 0' * 17} 4096 0")
    return f"{boot} {table}"


FIRST_TABLE = "pid:[4026531836]"


def test_what_a_dead_owner_left_is_found_by_everybody(tmp_path):
    see(tmp_path, FIRST_TABLE)
    container = "0123456789ab" * 5
    process(tmp_path, 7, cmdline="/usr/bin/python3\0-I\0/opt/lib/host/supervisor.py\0" + "5\0r1")
    process(tmp_path, 8, environ=f"A=b\0{RUN_MARK}=r2\0")
    process(tmp_path, 9, cgroup=f"0::/system.slice/docker-{container}.scope")
    process(tmp_path, 10, cmdline="vi\0r1")
    assert remains_of(LeaseHolder(run="r1"), tmp_path) == "pid 7"
    assert remains_of(LeaseHolder(run="r2"), tmp_path) == "pid 8"
    assert remains_of(LeaseHolder(run="r3", handle=container), tmp_path) == "container 0123456789ab"
    assert remains_of(LeaseHolder(run="r3", handle="docker"), tmp_path) == ""
    assert remains_of(LeaseHolder(), tmp_path) == ""


def test_who_does_not_see_a_dead_owner_s_processes_does_not_take_its_gpus(tmp_path):
    table = see(tmp_path, "pid:[4026532000]")
    me = LeaseHolder(run="r1", uid=os.geteuid(), pid=1, table=table)
    assert remains_of(me, tmp_path) == remains_of(replace(me, uid=NOBODY), tmp_path) == "", "of the same container"
    elsewhere = replace(me, table="b1 pid:[4026532111]")
    assert remains_of(elsewhere, tmp_path) == remains_of(replace(me, table=""), tmp_path) == UNSEEN
    beside = replace(me, handle="0123456789ab" * 5)
    assert remains_of(beside, tmp_path) == UNSEEN, "its engine may be that of the machine"
    assert remains_of(replace(beside, pid=os.getpid()), tmp_path) == "", "whose own runtime has ended it"
    assert remains_of(replace(elsewhere, table="b0 pid:[4026532111]"), tmp_path) == "", "the machine has started anew"
    process(tmp_path, 8, environ=f"{RUN_MARK}=r1\0")
    assert remains_of(elsewhere, tmp_path) == "pid 8"


def test_where_processes_of_others_are_hidden_only_one_s_own_are_known_to_be_gone(tmp_path):
    table = see(tmp_path, FIRST_TABLE, first=False)
    mine = LeaseHolder(run="r1", uid=os.geteuid(), pid=1, table=table)
    assert remains_of(mine, tmp_path) == "" and remains_of(replace(mine, uid=NOBODY), tmp_path) == UNSEEN
    assert remains_of(replace(mine, handle="0123456789ab" * 5), tmp_path) == UNSEEN, "root has a container's"


def test_a_run_whose_remains_were_ended_has_no_lease_any_more(folder):
    with closing(LeaseFolder(folder)) as leases:
        for name, run in ((NAME, "r1"), ("gpu-1", "r2"), ("gpu-2", "r1")):
            lease, _ = leases.take(name)
            lease.note(replace(ME, run=run))
            if name != "gpu-2":
                lease.leave()
        clear_leases(folder, "r1")
        assert [one.holder and one.holder.run for one in leases.states([NAME, "gpu-1", "gpu-2"])] == [None, "r2", "r1"]
    clear_leases(folder / "none", "r1")
    assert not (folder / "none").exists()


def test_states_of_a_machine_make_nothing(folder):
    assert lease_states(folder, [GPU])[0][0].holder is None and not folder.exists()
