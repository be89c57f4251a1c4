"""What py-spy shows of a process: which frames count, and what is told where it shows nothing."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from madlite.run.hang_processes import Dump, Frame, ProcessInfo, dump, find_py_spy, locate_ranks, main_frames

TEXT = """Process {pid}: /opt/venv/bin/python3 -u train.py
Python v3.12.3 (/usr/bin/python3.12)

Thread 0x7F12 (active): "watchdog (nccl)"
    wait (threading.py:359)
    heartbeat (torch/distributed/elastic.py:10)
Thread {pid} (active+gil): "MainThread"
{frames}
Thread 99 (idle): "QueueFeeder"
    wait (threading.py:355)
"""
REDUCE = "all_reduce (torch/distributed/distributed_c10d.py:{line})"
STEP = ["train_step (train.py:40)", "main (train.py:90)", "<module> (train.py:99)"]


def dumped(pid: int, rank: str, *frames: str) -> Dump:
    return Dump(pid=pid, rank=rank, text=TEXT.format(pid=pid, frames="\n".join(f"    {frame}" for frame in frames)))


def process(pid: int, rank: str = "") -> ProcessInfo:
    return ProcessInfo(pid=pid, parent=1, state="S", rank=rank, python=True)


def test_the_main_threads_frames_are_read_wherever_it_stands():
    found = main_frames(dumped(7, "0", REDUCE.format(line=2806), "<lambda> (x (y).py)", *STEP).text)
    assert found[0] == Frame(name="all_reduce", path="torch/distributed/distributed_c10d.py", line="2806")
    assert [one.text for one in found[-3:]] == STEP
    assert [
        one.text for one in main_frames("Thread 5 (idle)\n    waits (a.py:3)\nThread 6 (idle)\n    x (b.py:1)\n")
    ] == ["waits (a.py:3)"]
    assert main_frames("Error: Permission denied") == []


@pytest.fixture
def tool(tmp_path):
    """Make a stand-in for py-spy of a shell script."""

    def make(script: str) -> str:
        path = tmp_path / "py-spy"
        path.write_text("#!/bin/sh\n" + script)
        path.chmod(0o755)
        return str(path)

    return make


def test_py_spy_is_looked_for_on_the_path_and_beside_the_interpreter(tool, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin/python"))
    assert find_py_spy(str(tmp_path)) is None
    assert find_py_spy((path := tool("")).rpartition("/")[0]) == path
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert find_py_spy("") == path


@pytest.mark.host
def test_a_process_that_cannot_be_paused_in_time_is_dumped_without(tool):
    path = tool('[ "$2" = --nonblocking ] && echo "$@" && exit\nsleep 60\n')
    assert dump(path, process(7, rank="1"), 3, threading.Event()) == Dump(
        pid=7, rank="1", text="dump --nonblocking --pid 7\n", parent=1
    )


def test_why_there_is_no_dump_is_told(tool):
    path = tool("echo 'Error: Permission Denied: try running with sudo' >&2; exit 1\n")
    assert dump(path, process(7), 5, threading.Event()).problem == (
        "py-spy: Error: Permission Denied: try running with sudo"
    )
    assert dump(tool("sleep 60"), process(7), 0.2, threading.Event()).problem == "py-spy took more than 0.2 s"


def test_a_dump_that_is_called_off_ends_at_once(tool):
    called_off = threading.Event()
    called_off.set()
    assert dump(tool("sleep 60\n"), process(7), 9, called_off).text == ""


@pytest.mark.host
def test_a_real_process_is_dumped():
    code = "import time\ndef waits_here():\n    print('begun', flush=True)\n    time.sleep(60)\nwaits_here()"
    started = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        started.stdout.readline()
        found = dump(find_py_spy(""), process(started.pid), 10, threading.Event())
        assert locate_ranks([found]).text == "in waits_here (<string>:4) < <module> (<string>:5)", found
    finally:
        started.kill()
        started.communicate()
