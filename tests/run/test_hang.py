"""What is kept of a run that hangs, and what of it is told; nothing that fails keeps the rest from being kept."""

from __future__ import annotations

import os
import re
import subprocess
import threading
from pathlib import Path

import pytest

from madlite.model import Completed, Traits
from madlite.platforms.docker.container import Container
from madlite.platforms.docker.session import DockerSession
from madlite.run import hang
from madlite.run.hang import SHOWN_S, probe_hang, probe_nodes, script_command
from madlite.secrets import Redactor
from madlite.store.folder import RunFolder
from tests.factories import HOST, id_of, make_plan
from tests.rows import each_row

NOWHERE = {"DOCKER_HOST": "unix:///nonexistent/docker.sock", "PATH": "/nonexistent"}
LINE = "pid {} parent 1 rank {} local_rank - state {} threads 1 cpu_s 0 wchan 0 command python train.py\n"
RANK = LINE.format(4_000_001, 0, "T")
STACK = 'Process 4: python\n\nThread 4 (idle): "MainThread"\n    waits (train.py:4)\n'


class Nodes:
    """A session whose nodes show what the test says."""

    handle, shell, notes = "", "", ()

    def __init__(self, *shown: dict[str, str]) -> None:
        self.nodes = tuple(f"n{node}" for node in range(len(shown)))
        self._shown, self.asked = shown, set[tuple[str, ...]]()

    def probe(self, argv: tuple[str, ...], node: int, limit_s: float) -> Completed:
        self.asked.add(argv[4:])
        return Completed(code=0, stdout=self._shown[node].get(argv[4], "").encode(), stderr=b"")


def look(workspace, session, traits=HOST, lines=("loading", "step 9 token s3cret", "")):
    plan = make_plan(workspace, traits=traits)
    for path in plan.folder.iterdir():
        path.unlink()
    plan.folder.rmdir()
    folder = RunFolder.create(plan, [])
    try:
        found = probe_hang(folder, plan, session, Redactor(["s3cret"]).text, lines, threading.Event())
    finally:
        folder.close()
    location = {path.name: path.read_text() for path in (plan.folder / "hang").glob("*")}
    return found, location


def test_everything_that_is_seen_is_kept_without_its_secrets(tmp_path):
    stacks = RANK + STACK.replace("python\n", "python --hf_token hf_12345678 s3cret\n", 1)
    found, location = look(tmp_path, Nodes({"processes": RANK, "stacks": stacks}))
    assert sorted(location) == ["last_lines.txt", "processes.txt", "stacks.txt"]
    assert location["last_lines.txt"] == "loading\nstep 9 token ***\n"
    assert "waits (train.py:4)" in location["stacks.txt"] and "--hf_token *** ***" in location["stacks.txt"]
    assert found.location == f"stacks in madlite_runs/{id_of(tmp_path)}/hang/"
    assert (found.evidence, found.outliers) == ("rank 0 in waits (train.py:4)", "rank 0")
    assert found.notes == ("1 of 1 processes stopped by a signal or a debugger (pid 4000001)",)


def test_without_stacks_the_logs_last_line_is_the_evidence_and_why_there_are_none_is_kept(tmp_path):
    found, location = look(tmp_path, Nodes({"stacks": f"{RANK}py-spy: Permission Denied\n"}))
    assert "py-spy: Permission Denied" in location["stacks.txt"] and found.location.startswith("what was found in ")
    assert found.evidence == "step 9 token ***"
    found, location = look(tmp_path / "b", Nodes({}), lines=())
    assert (found.location, found.evidence, location) == ("", "", {})


def test_a_file_that_cannot_be_written_costs_only_itself(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(RunFolder, "write_text", lambda self, name, text: f"{name} could not be written: no space left")
    found, _ = look(tmp_path, Nodes({"stacks": RANK + STACK}))
    assert found.location == "" and found.evidence and "no space left" in caplog.text


def test_nothing_is_looked_into_that_cannot_be_seen(tmp_path):
    session = Nodes({"stacks": RANK + STACK})
    found, location = look(tmp_path, session, Traits(sees_processes=False))
    assert session.asked == set() and found.evidence == "step 9 token ***" and [*location] == ["last_lines.txt"]


def test_what_several_nodes_show_is_told_apart_where_process_numbers_are_the_same(tmp_path):
    shown = [{"stacks": LINE.format(7, n, "S") + STACK.replace("waits", f"on_{n}")} for n in (0, 1)]
    found, location = look(tmp_path, Nodes({**shown[0], "processes": RANK}, shown[1]), Traits(local=False))
    assert found.evidence == "rank 0 in on_0 (train.py:4); rank 1 in on_1 (train.py:4)"
    assert "=== node 1\npid 7 parent 1 rank 1 " in location["stacks.txt"]
    assert found.notes == ("node 0: 1 of 1 processes stopped by a signal or a debugger (pid 4000001)",)


def test_a_container_gets_the_py_spy_that_is_installed_with_madlite(tmp_path, monkeypatch):
    (tmp_path / "py-spy").write_text("#!/bin/sh\n")
    (tmp_path / "py-spy").chmod(0o755)
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    session = Nodes({})
    look(tmp_path / "inside", session, Traits())
    inside = f"{make_plan(tmp_path / 'again').inside}/madlite_runs/{id_of(tmp_path / 'inside')}/.py-spy"
    assert {argv[1:] for argv in session.asked} == {("", inside)}
    (copy,) = Path(tmp_path / "inside").glob("madlite_runs/*/work/.py-spy")
    assert os.access(copy, os.X_OK)
    look(tmp_path / "here", session)
    assert ("stacks", f"MADLITE_RUN_ID={id_of(tmp_path / 'here')}", str(tmp_path / "py-spy")) in session.asked


def test_an_engine_that_does_not_answer_is_a_note(tmp_path):
    container = Container(id="c", image="x", workspace=tmp_path, inside="/w")
    session = DockerSession(None, NOWHERE, container, 0.0)
    (found,) = probe_nodes(session, make_plan(tmp_path), "", lambda: 1.0, threading.Event())
    assert found.notes[0].startswith("no Docker Engine answers at unix:///nonexistent")


def gpus_text(environ: dict[str, str], limit_s: int = 60) -> str:
    """Return what the script shows of the GPUs."""
    words = [word.replace("limit_s=3", f"limit_s={limit_s}") for word in script_command("gpus")]
    return subprocess.run(words, env=environ, capture_output=True, text=True, check=False).stdout


@pytest.fixture
def tools(tmp_path):
    def make(**scripts: str) -> dict[str, str]:
        for name, script in scripts.items():
            path = tmp_path / name.replace("_", "-")
            path.write_text("#!/bin/sh\n" + script)
            path.chmod(0o755)
        return {"PATH": f"{tmp_path}:/usr/bin:/bin"}

    return make


def test_the_gpus_tools_that_are_there_are_asked_and_rocm_smi_where_amd_smi_says_nothing(tools):
    assert gpus_text(tools()) == ""
    assert gpus_text(tools(amd_smi='echo "amd $1"\n', rocm_smi="echo rocm\n")) == "amd monitor\namd process\n"
    shown = gpus_text(tools(amd_smi="echo no driver >&2; exit 1\n"))
    assert shown.splitlines() == ["no driver", "rocm", "rocm"]


@pytest.mark.host
@each_row("hanging", ["nvidia_smi", "amd_smi"])
def test_a_gpu_tool_that_hangs_hides_no_other(tools, hanging):
    every = {name: f"echo {name}\n" for name in ("nvidia_smi", "amd_smi", "rocm_smi")}
    every[hanging] = "echo begun\nexec sleep 60\n"
    shown = gpus_text(tools(**every), limit_s=4).splitlines()
    others = ["nvidia_smi", "rocm_smi"] if hanging == "amd_smi" else ["amd_smi"]
    assert sorted(set(shown)) == sorted({"begun", *others})


def test_all_gpu_tools_may_hang_within_the_limit_of_the_script():
    limit_s = int(re.search(r"gpus \] \|\| limit_s=(\d+)", hang._SCRIPT)[1])
    assert 3 * limit_s < SHOWN_S["gpus"]
