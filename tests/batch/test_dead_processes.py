"""What dead runs left running is ended as it was listed, and nobody else's process ever is."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest
from msgspec.structs import replace

from madlite.batch import leftovers
from madlite.batch.dead_processes import DeadRun, end_listed, find_dead_runs
from madlite.batch.leftovers import Leftover, end_orphans, find_leftovers, remove
from madlite.machine.processes import FOLDER_MARK, RUN_MARK, SUPERVISOR_MARK, lives, process_table, send
from madlite.platforms.docker import runtime as docker_runtime
from madlite.store.folder import FOLDER_LABEL, LOCK, PLAN, RUN_LABEL
from tests.factories import id_of, note_made
from tests.rows import each_row
from tests.run.marked import start_marked
from tests.waiting import wait_until

pytestmark = pytest.mark.host
NO_ENGINE = {"DOCKER_HOST": "unix:///nonexistent/docker.sock"}
NOBODY = 65534
GRACE_S = 60.0
END_S = 60.0  # a process that a signal ends needs no time but for its turn
Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def folder(tmp_path) -> Path:
    """The folder of a run that was cut off."""
    return cut_off(tmp_path, id_of(tmp_path))


@pytest.fixture
def start(folder):
    """Start a process with the marks of that run, or with other ones; it goes with the test, and its group too."""
    started = []

    def start(*argv: str, **options: object) -> subprocess.Popen[bytes]:
        marks = {RUN_MARK: folder.name, FOLDER_MARK: str(folder), **options.pop("marks", {})}
        command = argv or ("sleep", "300")
        env = {"PATH": os.environ["PATH"], **marks}
        started.append(start_marked(command, env, start_new_session=True, stdout=subprocess.PIPE, **options))
        return started[-1]

    yield start
    for process in started:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def cut_off(workspace: Path, name: str) -> Path:
    folder = workspace / "madlite_runs" / name
    folder.mkdir(parents=True)
    note_made(folder)
    (folder / PLAN).write_text("{}")
    (folder / LOCK).touch()
    return folder


def runs_of(folder: Path) -> list[DeadRun]:
    return [run for run in find_dead_runs().runs if run.folder == str(folder)]


def pids(run: DeadRun) -> set[int]:
    return {one.process.pid for one in run.members}


def names(run: DeadRun) -> list[str]:
    return sorted(one.process.name for one in run.members)


def line(process: subprocess.Popen[bytes]) -> bytes:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_what_came_after_the_listing_stays_and_is_listed_the_next_time(start, folder):
    listed = start()
    (run,) = runs_of(folder)
    later = start()
    assert end_listed(run, GRACE_S) is None
    assert listed.wait(END_S) == -signal.SIGTERM and later.poll() is None
    (run,) = runs_of(folder)
    assert pids(run) == {later.pid}


def test_what_a_listed_process_starts_after_the_listing_stays_too(start, folder):
    parent = start("bash", "-c", "trap 'sleep 300 > /dev/null & echo $!; exit' TERM; echo ready; sleep 300 & wait")
    assert line(parent) == b"ready"
    wait_until(lambda: names(runs_of(folder)[0]) == ["bash", "sleep"])
    (run,) = runs_of(folder)
    end_listed(run, GRACE_S)
    new = int(line(parent))
    assert new not in pids(run) and lives(process_table()[new])
    wait_until(lambda: [pids(run) for run in runs_of(folder)] == [{new}], "its environment")


def test_a_process_that_was_given_the_number_of_a_listed_one_is_not_signalled(start, folder):
    other = start()
    (run,) = runs_of(folder)
    (member,) = run.members
    gone = replace(member, process=replace(member.process, started=member.process.started - 1))
    assert end_listed(replace(run, members=(gone,)), GRACE_S) is None
    assert other.poll() is None
    assert end_listed(run, GRACE_S) is None and other.wait(END_S) == -signal.SIGTERM


def test_the_lock_is_asked_for_again_before_a_signal(start, folder):
    process = start()
    (run,) = runs_of(folder)
    with (folder / LOCK).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert end_listed(run, GRACE_S) == "a madlite process has locked the run by now"
        assert process.poll() is None and runs_of(folder) == []


@pytest.mark.parametrize("how", ["another folder", "a link to it", "nothing"])
def test_a_folder_that_is_not_the_one_of_the_listing_keeps_its_processes(start, folder, how):
    process = start()
    (run,) = runs_of(folder)
    moved = folder.rename(folder.with_name("moved"))
    if how == "another folder":
        cut_off(folder.parent.parent, folder.name)
    elif how == "a link to it":
        folder.symlink_to(moved)
    assert end_listed(run, GRACE_S) is not None
    assert process.poll() is None


def test_a_process_that_gave_up_its_marks_is_not_signalled_for_them(start, folder):
    process = start("bash", "-c", "echo ready; read -r; exec env -i sleep 300", stdin=subprocess.PIPE)
    assert line(process) == b"ready"
    (run,) = runs_of(folder)
    process.stdin.write(b"\n")
    process.stdin.flush()
    wait_until(lambda: process_table()[process.pid].name == "sleep")
    assert f"pid {process.pid} " in (end_listed(run, GRACE_S) or "") and process.poll() is None


def test_what_emptied_its_environment_below_a_marked_process_is_listed_and_ended(start, folder):
    parent = start("bash", "-c", "env -i setsid bash -c 'echo $$; exec sleep 300' & wait")
    child = int(line(parent))
    (run,) = runs_of(folder)
    assert pids(run) == {parent.pid, child}
    assert end_listed(run, GRACE_S) is None
    assert parent.wait(END_S) and not any(lives(one.process) for one in run.members)


def test_what_carries_the_marks_of_another_run_is_that_ones_wherever_it_was_started(start, folder, tmp_path):
    """A madlite inside of a workload: its run is alive."""
    inner = cut_off(tmp_path / "inner", "inner-run")
    marks = f"{RUN_MARK}=inner-run {FOLDER_MARK}={inner}"
    outer = start("bash", "-c", f"env {marks} bash -c 'echo $$; env -i sleep 300 & wait' & wait")
    own = int(line(outer))
    with (inner / LOCK).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (run,) = runs_of(folder)
        assert pids(run) == {outer.pid} and end_listed(run, GRACE_S) is None
        assert lives(process_table()[own])
    os.killpg(outer.pid, signal.SIGKILL)


def test_what_calls_itself_a_supervisor_below_another_process_is_ended_like_that(start, folder):
    parent = start("bash", "-c", f"{SUPERVISOR_MARK}=1 bash -c 'echo $$; sleep 300 & wait' & wait")
    forged = int(line(parent))
    wait_until(lambda: names(runs_of(folder)[0]) == ["bash", "bash", "sleep"])
    (run,) = runs_of(folder)
    assert end_listed(run, GRACE_S) is None
    assert forged not in process_table() or not lives(process_table()[forged])


def test_another_users_process_with_the_marks_of_a_run_is_told_and_never_listed(start, folder):
    decoy = start(user=NOBODY)
    own = start()
    found = find_dead_runs()
    (run,) = [run for run in found.runs if run.run_id == folder.name]
    assert pids(run) == {own.pid}
    (note,) = [note for note in found.notes if folder.name in note]
    assert f"pid {decoy.pid} (sleep 300, of user nobody)" in note and "left alone" in note
    assert end_listed(run, GRACE_S) is None and decoy.poll() is None


@each_row("uids", [(0, NOBODY, 0), (NOBODY, 0, 0)])
def test_a_process_with_the_rights_of_two_users_is_nobodys(start, folder, uids):
    process = start(preexec_fn=lambda: os.setresuid(*uids))
    found = find_dead_runs()
    assert [run for run in found.runs if run.run_id == folder.name] == []
    assert any(f"pid {process.pid} " in note for note in found.notes)


def test_a_decoy_with_the_id_of_a_living_run_brings_it_no_harm(start, folder, tmp_path):
    """Another user names a dead folder of his own beside the id: what is his may be ended, and nothing else."""
    with (folder / LOCK).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        living = start()
        his = cut_off(tmp_path / "his", "planted")
        os.chown(his, NOBODY, NOBODY)
        decoy = start(user=NOBODY, marks={FOLDER_MARK: str(his)})
        (run,) = [run for run in find_dead_runs().runs if run.run_id == folder.name]
        assert (pids(run), run.uid) == ({decoy.pid}, NOBODY)
        assert end_listed(run, GRACE_S) is None
        assert decoy.wait(END_S) == -signal.SIGTERM and living.poll() is None


def test_in_a_folder_of_another_user_our_own_processes_are_not_listed(start, tmp_path):
    his = cut_off(tmp_path / "his", "planted")
    os.chown(his, NOBODY, NOBODY)
    victim = start(marks={RUN_MARK: "planted", FOLDER_MARK: str(his)})
    found = find_dead_runs()
    assert [run for run in found.runs if run.run_id == "planted"] == []
    assert any(f"pid {victim.pid} " in note and "is of user nobody" in note for note in found.notes)


def test_of_a_folder_that_is_gone_only_our_own_processes_are_listed(start, tmp_path):
    gone = {FOLDER_MARK: str(tmp_path / "gone/madlite_runs/x")}
    own, decoy = start(marks=gone), start(user=NOBODY, marks=gone)
    (run,) = runs_of(tmp_path / "gone/madlite_runs/x")
    assert pids(run) == {own.pid}
    assert end_listed(run, GRACE_S) is None and decoy.poll() is None


@each_row("what", ["link", "file", "pipe"])
def test_what_is_no_folder_is_no_runs(start, tmp_path, what):
    place = tmp_path / "madlite_runs" / "odd"
    place.parent.mkdir()
    if what == "link":
        place.symlink_to(cut_off(tmp_path / "other", "odd"))
    elif what == "file":
        place.touch()
    else:
        os.mkfifo(place)
    process = start(marks={FOLDER_MARK: str(place)})
    found = find_dead_runs()
    assert [run for run in found.runs if run.folder == str(place)] == []
    assert any(f"pid {process.pid} " in note and f"{place} is no folder" in note for note in found.notes)


@each_row("mark", ["", "relative/madlite_runs/x", "."])
def test_a_mark_that_is_no_place_is_none(start, mark):
    process = start(marks={FOLDER_MARK: mark})
    found = find_dead_runs()
    assert process.pid not in set().union(*map(pids, found.runs))
    assert not any(f"pid {process.pid} " in note for note in found.notes)


def test_without_a_listing_nothing_is_ended(start, folder):
    process = start()
    forged = Leftover(kind="process", run_id=folder.name, text="", handle=folder.name)
    assert remove(forged, NO_ENGINE) == "no process was listed" and process.poll() is None


def test_a_process_that_began_at_another_time_is_another(start):
    process = start()
    now = process_table()[process.pid]
    assert not send(replace(now, started=now.started + 1), signal.SIGKILL) and process.poll() is None
    assert send(now, signal.SIGKILL) and process.wait(END_S) == -signal.SIGKILL


def test_a_name_made_to_look_like_another_state_is_read_as_a_name(start, tmp_path):
    program = tmp_path / "a) Z 1 1 ("
    program.symlink_to("/bin/sleep")
    process = start(str(program), "300")
    wait_until(lambda: process_table()[process.pid].name == program.name)
    now = process_table()[process.pid]
    assert (now.parent, now.lives) == (os.getpid(), True)


def test_a_plain_run_ends_what_is_left_of_the_callers_own_runs_here_alone(start, folder, tmp_path):
    his = cut_off(tmp_path, "his-run")
    other = cut_off(tmp_path / "elsewhere", folder.name)
    own = start()
    processes = [
        start(marks={RUN_MARK: "his-run", FOLDER_MARK: str(his)}, user=NOBODY),
        start(marks={FOLDER_MARK: str(other)}),
        start(marks={RUN_MARK: "his-run"}),
        start(user=NOBODY),
    ]
    os.chown(his, NOBODY, NOBODY)
    (told,) = end_orphans(tmp_path, NO_ENGINE)
    assert str(own.pid) in told and own.wait(END_S) == -signal.SIGTERM
    assert [process.poll() for process in processes] == [None] * 4


def test_a_plain_run_follows_no_link_in_the_place_of_the_folder_of_runs(start, folder, tmp_path):
    process = start()
    planted = tmp_path / "planted"
    planted.mkdir()
    (planted / "madlite_runs").symlink_to(folder.parent)
    assert end_orphans(planted, NO_ENGINE) == () and process.poll() is None


def test_a_plain_run_removes_containers_of_the_callers_own_dead_runs_here_alone(monkeypatch, folder, tmp_path):
    his, held = cut_off(tmp_path, "his-run"), cut_off(tmp_path, "held")
    os.chown(his, NOBODY, NOBODY)
    places = {
        "own": (folder.name, folder),
        "his": ("his-run", his),
        "elsewhere": (folder.name, tmp_path / "elsewhere/madlite_runs" / folder.name),
        "forged": (folder.name, his),
        "gone": (folder.name, tmp_path / "madlite_runs/gone"),
        "nameless": (folder.name, ""),
        "held": ("held", held),
    }
    labels = {name: {RUN_LABEL: run, FOLDER_LABEL: str(place)} for name, (run, place) in places.items()}
    containers = [
        {"Id": name, "Names": [name], "Image": "i", "Status": "Up", "Labels": those} for name, those in labels.items()
    ]

    class Client:
        def containers(self, **options):
            return containers

    removed = []
    monkeypatch.setattr(docker_runtime, "connected", lambda environ: nullcontext(Client()))
    monkeypatch.setattr(leftovers, "remove", lambda one, environ, runtimes: removed.append(one.handle))
    with (held / LOCK).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        end_orphans(tmp_path, NO_ENGINE)
        assert removed == ["own"]
        listed = {one.handle: one.elsewhere for one in find_leftovers(tmp_path, NO_ENGINE).leftovers}
    assert "held" not in listed and listed["nameless"] == "no folder" and listed["elsewhere"]


def test_a_container_whose_run_came_back_is_not_removed(folder):
    listed = Leftover(kind="container", run_id="x", text="", handle="c", folder=str(folder))
    with (folder / LOCK).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert remove(listed, NO_ENGINE) == "a madlite process has locked the run by now"


def test_a_user_lists_what_belongs_to_another_only_as_a_note(start, folder, monkeypatch):
    """Where its environment can be read at all, as by a group that /proc trusts."""
    process = start(user=NOBODY)
    os.chown(folder, NOBODY, NOBODY)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    found = find_dead_runs()
    assert [run for run in found.runs if run.run_id == folder.name] == []
    assert any(f"pid {process.pid} " in note for note in found.notes)
