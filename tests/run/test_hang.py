"""What is kept of a run that hangs, and what of it is told; nothing that fails keeps the rest from being kept."""

from __future__ import annotations

import re
import subprocess
import threading

import pytest
from msgspec.structs import replace

from madlite.model import Traits
from madlite.platforms.docker.container import Container
from madlite.platforms.docker.session import DockerSession
from madlite.platforms.host.runtime import HostSession
from madlite.process import Finished
from madlite.run import hang
from madlite.run.hang import INSIDE_LIMIT_S, NO_PY_SPY, HangProbe, NodeFacts, ProcessInfo, _command, probe_nodes
from madlite.secrets import Redactor
from madlite.store.folder import RunFolder
from tests.factories import HOST, id_of, make_plan
from tests.rows import each_row

NOWHERE = {"DOCKER_HOST": "unix:///nonexistent/docker.sock", "PATH": "/nonexistent"}
LINE = "pid {} parent 1 rank {} local_rank - state {} threads 1 cpu_s 0 python yes wchan 0 command python train.py\n"
RANK = LINE.format(4_000_001, 0, "T")
STACK = 'Process 4: python\n\nThread 4 (idle): "MainThread"\n    waits (train.py:4)\n'


@pytest.fixture
def seen(monkeypatch):
    """What the run's processes and its container show; the test changes it."""
    found = {"processes": RANK, "inside": NodeFacts(), "stacks": RANK + STACK, "code": 0}
    wanted: list[list[str]] = []

    def inside(session, plan, what, left_s, cancelled):
        wanted.append(list(what))
        return found["inside"]

    def here(probe, what, cancelled, pids=()):
        return Finished(code=found["code"], stdout=found.get(what, ""), stderr="")

    monkeypatch.setattr(hang, "find_pids", lambda run_id: (4_000_001,))
    monkeypatch.setattr(HangProbe, "_here", here)
    monkeypatch.setattr(hang, "probe_nodes", inside)
    found["wanted"] = wanted
    return found


def look(workspace, traits=HOST, lines=("loading", "step 9 token s3cret", "")):
    plan = make_plan(workspace, traits=traits)
    for path in plan.folder.iterdir():
        path.unlink()
    plan.folder.rmdir()
    folder = RunFolder.create(plan, [])
    try:
        session = HostSession(plan.id, plan.workspace, plan.folder, NOWHERE, 10.0)
        probe = HangProbe(folder, plan, session, NOWHERE, Redactor(["s3cret"]).text)
        found = probe.run(lines, threading.Event())
    finally:
        folder.close()
    location = {path.name: path.read_text() for path in (plan.folder / "hang").glob("*")}
    return found, location


def test_everything_that_is_seen_is_kept_without_its_secrets(seen, tmp_path):
    seen["stacks"] = RANK + STACK.replace("python\n", "python --hf_token hf_12345678 s3cret\n", 1)
    found, location = look(tmp_path)
    assert sorted(location) == ["last_lines.txt", "processes.txt", "stacks.txt"]
    assert location["last_lines.txt"] == "loading\nstep 9 token ***\n"
    assert "waits (train.py:4)" in location["stacks.txt"] and "--hf_token *** ***" in location["stacks.txt"]
    assert found.location == f"stacks in madlite_runs/{id_of(tmp_path)}/hang/"
    assert (found.evidence, found.outliers) == ("rank 0 in waits (train.py:4)", "rank 0")
    assert found.notes == ("1 of 1 processes stopped by a signal or a debugger (pid 4000001)",)


def test_without_stacks_the_logs_last_line_is_the_evidence_and_why_there_are_none_is_kept(seen, tmp_path):
    seen["stacks"], seen["code"] = "", 3
    found, location = look(tmp_path)
    assert location["stacks.txt"] == NO_PY_SPY and found.evidence == "step 9 token ***"
    assert found.location.startswith("what was found in ")
    seen["stacks"], seen["code"] = f"{RANK}py-spy: Permission Denied\n", 0
    found, location = look(tmp_path / "b")
    assert "py-spy: Permission Denied" in location["stacks.txt"] and found.location.startswith("what was found in ")


def test_of_a_run_without_a_python_process_no_stacks_are_taken_and_so_none_of_the_machine(seen, tmp_path):
    seen["processes"] = RANK.replace("python yes", "python no")
    found, location = look(tmp_path)
    assert "stacks.txt" not in location and found.outliers == "" and found.evidence == "step 9 token ***"


def test_a_run_of_which_nothing_is_left_is_said_to_be(seen, tmp_path):
    seen["processes"] = ""
    found, location = look(tmp_path, lines=())
    assert found.notes == ("none of its processes is left",)
    assert (found.location, found.evidence, location) == ("", "", {})


def test_what_a_container_shows_from_inside_comes_before_what_is_seen_from_here(seen, tmp_path):
    inside = ProcessInfo(pid=7, rank="1", text=STACK.replace("waits", "in_the_container"))
    seen["inside"] = NodeFacts(notes=("a note",), dumps=(inside,), gpus="GPU 0 idle\n")
    found, location = look(tmp_path, Traits())
    assert found.evidence == "rank 1 in in_the_container (train.py:4)" and found.notes[0] == "a note"
    assert location["gpus.txt"] == "GPU 0 idle\n" and "4000001" in location["processes.txt"]
    assert seen["wanted"] == [["stacks"], ["gpus"]]


def test_an_engine_elsewhere_is_asked_for_the_processes_too_and_what_is_not_local_before_this_machine(seen, tmp_path):
    seen["inside"] = NodeFacts(processes="pid 7 rank 0\n", gpus="GPU 0 idle\n")
    for name, traits, processes in (("remote", Traits(local=False), RANK), ("engine", Traits(), "")):
        seen["processes"] = processes
        seen["wanted"].clear()
        _, location = look(tmp_path / name, traits)
        assert seen["wanted"] == [["stacks", "processes"], ["gpus"]], name
        assert location["processes.txt"] == "pid 7 rank 0\n" and location["gpus.txt"] == "GPU 0 idle\n", name


def test_what_is_left_out_for_want_of_time_is_said(seen, tmp_path):
    seen["processes"] = RANK + LINE.format(4_000_002, 1, "S")
    assert "\n1 Python processes were left out: there was no time\n" in look(tmp_path)[1]["stacks.txt"]


def test_a_file_that_cannot_be_written_costs_only_itself(seen, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(RunFolder, "write_text", lambda self, name, text: f"{name} could not be written: no space left")
    found, _ = look(tmp_path)
    assert found.location == "" and found.evidence and "no space left" in caplog.text


def test_nothing_is_looked_into_that_cannot_be_seen(seen, tmp_path):
    found, _ = look(tmp_path, Traits(sees_processes=False))
    assert seen["wanted"] == [] and found.evidence == "rank 0 in waits (train.py:4)", "this machine tells all the same"
    elsewhere = look(tmp_path / "b", Traits(sees_processes=False, local=False))[0]
    assert elsewhere.notes == () and elsewhere.evidence == "step 9 token ***", "of another one nothing here does"


def test_dumps_of_several_nodes_are_told_apart_where_process_numbers_are_the_same(seen, tmp_path):
    seen["processes"] = ""
    rank = ProcessInfo(pid=7, parent=1, rank="0", local_rank="0", text=STACK.replace("waits", "on_0"))
    other = replace(rank, rank="1", node=1, text=STACK.replace("waits", "on_1"))
    seen["inside"] = NodeFacts(dumps=(rank, other))
    found, location = look(tmp_path, Traits(local=False))
    assert found.evidence == "rank 0 in on_0 (train.py:4); rank 1 in on_1 (train.py:4)"
    assert "=== node 1 pid 7 rank 1\n" in location["stacks.txt"]


def test_an_engine_that_does_not_answer_is_a_note(tmp_path):
    container = Container(id="c", image="x", workspace=tmp_path, inside="/w")
    session = DockerSession(None, NOWHERE, container, 0.0)
    (note,) = probe_nodes(session, make_plan(tmp_path), ["stacks"], lambda: 1.0, threading.Event()).notes
    assert note.startswith("no Docker Engine answers at unix:///nonexistent")


def gpus_text(environ: dict[str, str], limit: str = "limit_s=3") -> str:
    """Return what the script shows of the GPUs."""
    words = [word.replace("limit_s=3", limit) for word in _command("gpus")]
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
    shown = gpus_text(tools(**every), "limit_s=1").splitlines()
    others = ["nvidia_smi", "rocm_smi"] if hanging == "amd_smi" else ["amd_smi"]
    assert sorted(set(shown)) == sorted({"begun", *others})


def test_all_gpu_tools_may_hang_within_the_limit_of_the_script():
    limit_s = int(re.search(r"gpus \] \|\| limit_s=(\d+)", hang._SCRIPT)[1])
    assert 3 * limit_s < INSIDE_LIMIT_S
