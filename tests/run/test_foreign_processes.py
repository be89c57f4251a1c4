"""What does not surely belong to a run is never touched."""

from __future__ import annotations

import os
import subprocess
from contextlib import nullcontext
from uuid import uuid4

import pytest

from madlite.batch import dead_processes, leftovers
from madlite.batch.leftovers import find_leftovers
from madlite.machine import processes
from madlite.machine.processes import FOLDER_MARK, RUN_MARK, environment_of, run_processes
from madlite.platforms.docker import runtime as docker_runtime
from madlite.platforms.docker import session as docker_session
from madlite.platforms.docker.container import Container
from madlite.platforms.docker.session import DockerSession, Exec
from madlite.store.folder import FOLDER_LABEL, RUN_LABEL
from tests.rows import each_row
from tests.run.marked import start_marked

NO_ENGINE = {"DOCKER_HOST": "unix:///nonexistent/docker.sock"}


@pytest.fixture
def marked(tmp_path):
    """Start a process with a run's marks."""
    started = []

    def start(**marks: str) -> subprocess.Popen[bytes]:
        started.append(start_marked(["sleep", "300"], {**os.environ, **marks}))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


@pytest.fixture
def run_id() -> str:
    """Return the id of a run that no other suite on this machine has."""
    return f"r-{uuid4().hex}"


def listed(tmp_path) -> list[str]:
    return [item.run_id for item in find_leftovers(tmp_path, NO_ENGINE).leftovers if item.kind == "process"]


def test_no_run_has_no_name(marked, tmp_path):
    marked(**{RUN_MARK: "some-run", FOLDER_MARK: str(tmp_path / "gone")})
    assert run_processes("", tmp_path / "gone") == []


def test_a_process_that_does_not_say_its_folder_is_left_alone(marked, tmp_path, run_id):
    marked(**{RUN_MARK: f"{run_id}-without-folder"})
    marked(**{RUN_MARK: run_id, FOLDER_MARK: str(tmp_path / "gone")})
    assert run_id in listed(tmp_path) and f"{run_id}-without-folder" not in listed(tmp_path)


def test_a_process_that_ends_while_it_is_asked_belongs_to_no_other_run(marked, tmp_path, monkeypatch, run_id):
    """Its environment reads as empty the second time, as that of a zombie does."""
    process = marked(**{RUN_MARK: run_id, FOLDER_MARK: str(tmp_path / "gone")})
    asked = []

    def once(pid):
        asked.append(pid)
        return environment_of(pid) if asked.count(pid) == 1 else {}

    monkeypatch.setattr(processes, "environment_of", once)
    assert "" not in listed(tmp_path) and process.poll() is None


def test_of_a_run_that_ends_while_it_is_looked_at_nothing_is_left(marked, tmp_path, monkeypatch, run_id):
    """Its madlite ends what it has running, then gives its lock back: what was seen before is gone by then."""
    process = marked(**{RUN_MARK: run_id, FOLDER_MARK: str(tmp_path / "ends-now")})
    containers = [
        {"Id": name, "Names": [f"/{name}"], "Image": "i", "Status": "Up", "Labels": {RUN_LABEL: name, FOLDER_LABEL: ""}}
        for name in ("ends-too", "stays")
    ]

    class Client:
        def containers(self, **options):
            return list(containers)

    def ends(folder):
        if folder == str(tmp_path / "ends-now"):
            process.kill()
            process.wait()
        containers[:] = containers[-1:]
        return False

    monkeypatch.setattr(docker_runtime, "connected", lambda environ: nullcontext(Client()))
    monkeypatch.setattr(leftovers, "may_be_alive", ends)
    monkeypatch.setattr(dead_processes, "may_be_alive", ends)
    found = [one.run_id for one in find_leftovers(tmp_path, NO_ENGINE).leftovers]
    assert run_id not in found and "ends-too" not in found and "stays" in found


@each_row(("pids", "only"), [([0, 0], None), ([], None), ([4321, 0], "4321")])
def test_in_the_hosts_process_table_only_a_known_session_is_signalled(monkeypatch, tmp_path, pids, only):
    """The engine says 0 for a process that ended; session 0 is the kernel's and other strangers'."""

    class Client:
        def exec_create(self, *args, **options):
            return {"Id": "x"}

        def exec_inspect(self, exec_id):
            return {"Pid": pids.pop(0) if pids else 0, "Running": False}

    signalled = []
    monkeypatch.setattr(
        docker_session, "end_workload", lambda client, container, session, *rest: signalled.append(session)
    )
    container = Container(id="c", image="i", workspace=tmp_path, inside="/w", shares_processes=True)
    session = DockerSession(Client(), {}, container, 1.0)  # type: ignore[arg-type]
    session._exec = Exec(Client(), "c", ["true"], "/", {})  # type: ignore[arg-type]
    session._exec.is_running()
    session._end(0.0)
    assert signalled == ([only] if only else [])
