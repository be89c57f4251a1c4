"""What a killed madlite leaves: found, told from what is in use, and removed."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import types
from pathlib import Path

import psutil
import pytest

from madlite.batch import leftovers
from madlite.batch.leftovers import Leftover, find_leftovers, remove
from madlite.model import JobOutcome, to_json
from madlite.store.folder import LOCK, PLAN, read_run
from tests.factories import id_of, make_plan, note_made, write_journal

NO_ENGINE = {"DOCKER_HOST": "unix:///nonexistent/docker.sock", "PATH": os.environ["PATH"]}

MADLITE = """
import os, sys
from pathlib import Path
from madlite.batch import leftovers
from madlite.store.folder import RunFolder
from madlite.platforms.registry import builtin_runtimes
from madlite.model import Action, Place
from tests.factories import make_plan

workspace, runtime, keep = Path(sys.argv[1]), sys.argv[2], sys.argv[3] == "keep"
inside = str(workspace) if runtime == "host" else "/myworkspace"
plan = make_plan(workspace, inside=inside, keep_alive=keep)
plan.folder.rmdir()
RunFolder.create(plan, [])
action = Action(kind="run", argv=("bash", "-c", "trap '' INT TERM; (exec setsid sleep 300) & echo ready; wait"))
with builtin_runtimes(dict(os.environ))[runtime].open(plan) as session:
    session.run(action, lambda chunk: os.write(1, chunk.data))
"""


@pytest.fixture
def start(tmp_path):
    """Start a process that holds a session open, wait until its action runs, and end it with the test."""
    started: list[subprocess.Popen[bytes]] = []

    def start(runtime: str, environ: dict[str, str], keep: str = "") -> subprocess.Popen[bytes]:
        path = os.pathsep.join(filter(None, (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH"))))
        process = subprocess.Popen(
            [sys.executable, "-c", MADLITE, str(tmp_path), runtime, keep],
            env={**environ, "PYTHONPATH": path},
            stdout=subprocess.PIPE,
        )
        started.append(process)
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
    for process in of_run(tmp_path):
        process.kill()


def of_run(workspace: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("MADLITE_RUN_ID") == id_of(workspace):
                found.append(process)
        except psutil.Error:
            continue
    return [process for process in found if process.status() != psutil.STATUS_ZOMBIE]


def ours(workspace: Path, environ: dict[str, str]) -> list[Leftover]:
    return [one for one in find_leftovers(workspace, environ).leftovers if one.run_id == id_of(workspace)]


@pytest.mark.engine
def test_a_container_is_left_alone_while_its_madlite_lives_and_removed_after_it_was_killed(
    start, docker_environ, base_image, tmp_path
):
    process = start("docker", docker_environ)
    assert ours(tmp_path, docker_environ) == []
    process.send_signal(signal.SIGKILL)
    process.wait()
    found = ours(tmp_path, docker_environ)
    assert [one.kind for one in found] == ["container", "run"] and not any(one.kept for one in found)
    assert f"container_{id_of(tmp_path)}" in found[0].text
    assert [remove(one, docker_environ) for one in found] == [None, None]
    assert ours(tmp_path, docker_environ) == [] and not of_run(tmp_path)
    assert read_run(tmp_path / f"madlite_runs/{id_of(tmp_path)}").cleaned is not None, "the folder stays"


@pytest.mark.engine
def test_containers_of_other_workspaces_are_found_and_a_kept_one_is_marked(start, docker_environ, base_image, tmp_path):
    process = start("docker", docker_environ, "keep")
    process.send_signal(signal.SIGKILL)
    process.wait()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    mine = [one for one in find_leftovers(elsewhere, docker_environ).leftovers if one.run_id == id_of(tmp_path)]
    assert [(one.kind, one.kept) for one in mine] == [("container", True)]
    assert remove(mine[0], docker_environ) is None
    assert remove(mine[0], docker_environ) is None, "what is gone needs no removal"


@pytest.mark.engine
def test_a_strangers_container_is_never_listed_nor_removed(engine, docker_environ, base_image, tmp_path):
    import docker

    with docker.APIClient(engine) as client:
        stranger = client.create_container(base_image, ["true"], labels={"team": "other"})["Id"]
        try:
            assert stranger not in [one.handle for one in find_leftovers(tmp_path, docker_environ).leftovers]
            forged = Leftover(kind="container", run_id="x", text="", handle=stranger)
            assert "not started by madlite" in (remove(forged, docker_environ) or "")
            assert client.inspect_container(stranger)["Id"] == stranger
        finally:
            client.remove_container(stranger)


@pytest.mark.host
def test_processes_are_left_alone_while_their_madlite_lives_and_ended_after_it_was_killed(start, tmp_path, monkeypatch):
    monkeypatch.setattr(leftovers, "GRACE_S", 0.2)
    process = start("host", dict(os.environ) | NO_ENGINE)
    assert ours(tmp_path, NO_ENGINE) == []
    process.send_signal(signal.SIGKILL)
    process.wait()
    found = ours(tmp_path, NO_ENGINE)
    assert [one.kind for one in found] == ["process", "run"] and "2 processes" in found[0].text
    assert not any(one.kept for one in found)
    assert [remove(one, NO_ENGINE) for one in found] == [None, None]
    assert not of_run(tmp_path) and ours(tmp_path, NO_ENGINE) == []


@pytest.mark.host
def test_processes_that_were_asked_to_stay_are_marked_as_kept(start, tmp_path):
    process = start("host", dict(os.environ) | NO_ENGINE, "keep")
    process.send_signal(signal.SIGKILL)
    process.wait()
    found = {one.kind: one.kept for one in ours(tmp_path, NO_ENGINE)}
    assert found == {"process": True, "run": False}


def test_an_engine_that_is_down_is_a_note_and_the_rest_is_found(tmp_path):
    folder = cut_off(tmp_path, "cut")
    found = find_leftovers(tmp_path, NO_ENGINE)
    assert [one.handle for one in found.leftovers if one.kind == "run"] == [str(folder)]
    assert any("/nonexistent/docker.sock" in note for note in found.notes)


def test_a_run_that_ended_or_is_held_is_not_unfinished(tmp_path):
    (cut_off(tmp_path, "ended") / "record.json").touch()
    write_journal(cut_off(tmp_path, "cleaned"), cleaned="no row")
    with (cut_off(tmp_path, "held") / LOCK).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert [one for one in find_leftovers(tmp_path, NO_ENGINE).leftovers if one.kind == "run"] == []


@pytest.mark.parametrize(
    ("outcome", "sessions", "notes"),
    [
        (lambda handle: JobOutcome(state=f"PENDING {handle}", ended=False), ["a session of runtime odd, PENDING h"], 0),
        (lambda handle: JobOutcome(state="done"), [], 0),
        (lambda handle: None, [], 0),
        (lambda handle: "running", [], 0),
        (lambda handle: 1 / 0, [], 1),
    ],
)
def test_sessions_of_a_plugin_s_runtime_are_asked_for_whatever_it_answers(tmp_path, outcome, sessions, notes):
    folder = cut_off(tmp_path, "cut")
    (folder / "plan.json").write_text(to_json(make_plan(tmp_path, id="cut", runtime="odd")))
    (folder / "handle").write_text("h")
    odd = types.SimpleNamespace(name="odd", outcome=outcome)
    found = find_leftovers(tmp_path, NO_ENGINE, {"odd": odd})
    assert [one.text for one in found.leftovers if one.kind == "session"] == sessions
    assert (
        sum("the session of run cut was not inspected: runtime 'odd' failed" in note for note in found.notes) == notes
    )


def test_processes_whose_run_folder_may_not_be_looked_into_are_taken_for_alive(tmp_path, monkeypatch):
    hidden = tmp_path / "private"
    env = {**os.environ, "MADLITE_RUN_ID": id_of(tmp_path), "MADLITE_RUN_FOLDER": str(hidden)}
    process = subprocess.Popen(["sleep", "300"], env=env)
    opened = os.open

    def refuse(path: str | Path, *args: int, **kwargs: int) -> int:
        if Path(path).is_relative_to(hidden):
            raise PermissionError(13, "Permission denied")
        return opened(path, *args, **kwargs)

    try:
        assert [one.kind for one in ours(tmp_path, NO_ENGINE)] == ["process"], "a folder that is gone is dead"
        monkeypatch.setattr(os, "open", refuse)
        assert ours(tmp_path, NO_ENGINE) == []
    finally:
        process.kill()
        process.wait()


def cut_off(workspace: Path, name: str) -> Path:
    folder = workspace / "madlite_runs" / name
    folder.mkdir(parents=True)
    (note_made(folder) / PLAN).write_text("{}")
    (folder / LOCK).touch()
    return write_journal(folder)
