"""What py-spy shows of a process: which frames count, and what is told where it shows nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from uuid import uuid4

import pytest

from madlite.run.hang import Frame, ProcessInfo, locate_ranks, main_frames, read_processes, script_command

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


def dumped(pid: int, rank: str, *frames: str) -> ProcessInfo:
    return ProcessInfo(
        pid=pid, rank=rank, text=TEXT.format(pid=pid, frames="\n".join(f"    {frame}" for frame in frames))
    )


def test_the_main_threads_frames_are_read_wherever_it_stands():
    found = main_frames(dumped(7, "0", REDUCE.format(line=2806), "<lambda> (x (y).py)", *STEP).text)
    assert found[0] == Frame(name="all_reduce", path="torch/distributed/distributed_c10d.py", line="2806")
    assert [one.text for one in found[-3:]] == STEP
    assert [
        one.text for one in main_frames("Thread 5 (idle)\n    waits (a.py:3)\nThread 6 (idle)\n    x (b.py:1)\n")
    ] == ["waits (a.py:3)"]
    assert main_frames("Error: Permission denied") == []


RUN = f"test-hang-stacks-{uuid4().hex}"
MARK = f"MADLITE_RUN_ID={RUN}"


def limited(words: Sequence[str], limit_s: int) -> list[str]:
    """Return the script's command with another limit of a dump: on a busy machine all takes longer."""
    assert any("limit_s=10" in word for word in words)
    return [word.replace("limit_s=10", f"limit_s={limit_s}") for word in words]


@pytest.fixture
def waiting():
    """A Python process of a run, which waits."""
    code = "import time\ndef waits_here():\n    print('begun', flush=True)\n    time.sleep(600)\nwaits_here()"
    env = {**os.environ, "MADLITE_RUN_ID": RUN}
    started = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=env, start_new_session=True)
    started.stdout.readline()
    yield started.pid
    started.kill()
    started.communicate()


@pytest.fixture
def stacks(tmp_path, waiting):
    """Return what the script shows of that process, with a stand-in for py-spy of a shell script."""

    def shown(script: str, beside: str = "", path: str = "/usr/bin:/bin", limit_s: int = 60) -> str:
        stand_in = tmp_path / "py-spy"
        stand_in.write_text("#!/bin/sh\n" + script)
        stand_in.chmod(0o755)
        words = limited(script_command("stacks", MARK, beside), limit_s)
        return subprocess.run(words, env={"PATH": path}, capture_output=True, text=True, check=False).stdout

    return shown


@pytest.mark.host
def test_py_spy_is_looked_for_on_the_path_and_beside_the_interpreter(stacks, tmp_path):
    assert (
        stacks("echo it")
        == stacks("echo it", str(tmp_path / "other"))
        == ("py-spy is not installed (pip install 'madlite[hang]'): no stacks of Python processes\n")
    )
    assert stacks("echo it", path=f"{tmp_path}:/usr/bin:/bin").endswith("\nit\n")
    assert stacks("echo it", str(tmp_path / "py-spy")).endswith("\nit\n")


@pytest.mark.host
def test_a_process_that_cannot_be_paused_in_time_is_dumped_without(stacks, tmp_path, waiting):
    said = stacks('[ "$2" = --nonblocking ] && echo "$@" && exit\nexec sleep 60\n', str(tmp_path / "py-spy"), limit_s=5)
    assert said.endswith(f"\ndump --nonblocking --pid {waiting}\n")


@pytest.mark.host
def test_why_there_is_no_dump_is_told(stacks, tmp_path):
    denied = "echo 'Error: Permission Denied: try running with sudo' >&2; exit 1\n"
    (found,) = read_processes(stacks(denied, str(tmp_path / "py-spy")))
    assert found.text == "Error: Permission Denied: try running with sudo"


@pytest.mark.host
def test_a_real_process_is_dumped(waiting):
    words = limited(script_command("stacks", MARK, str(Path(sys.executable).with_name("py-spy"))), 60)
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert locate_ranks(read_processes(done.stdout)).text == "in waits_here (<string>:4) < <module> (<string>:5)"
