"""Which processes a hanging run has, and what the script that lists them shows."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from uuid import uuid4

import pytest

from madlite.machine.processes import SUPERVISOR_MARK
from madlite.run.hang import ProcessInfo, notes_of, read_processes, script_command
from tests.waiting import wait_until


def test_what_a_line_shows_of_a_process():
    text = (
        "pid 77 parent 1 rank 3 local_rank 1 state D threads 2 cpu_s 3 wchan nfs_wait command python x.py \n"
        "[<0>] nfs_wait\nthread /proc/77/task/78\n[<0>] amdgpu_wait\n"
        "pid 78 parent 77 rank - local_rank - state S threads 1 cpu_s 0 wchan 0 command [cat]\n"
        "pid 79 parent 77 rank - local_rank - state R threads 1 cpu_s 0 wchan  command cat\n"
    )
    first, second, third = read_processes(text)
    assert first == ProcessInfo(
        pid=77,
        parent=1,
        state="D",
        wchan="nfs_wait",
        rank="3",
        local_rank="1",
        command="python x.py",
        text="[<0>] nfs_wait\nthread /proc/77/task/78\n[<0>] amdgpu_wait",
    )
    assert (second.rank, second.wchan, second.command) == ("", "", "[cat]")
    assert (third.pid, third.wchan, third.command) == (79, "", "cat")


def test_stopped_processes_and_deaf_ones_are_named():
    found = [ProcessInfo(pid=n, parent=1, state=state) for n, state in enumerate("TTSSSTTTR", 1)]
    assert notes_of(found) == ("5 of 9 processes stopped by a signal or a debugger (pid 1, 2, 6, 7, …)",)
    stuck = [ProcessInfo(pid=8, parent=1, state="D", wchan="nfs_wait"), ProcessInfo(pid=9, parent=1, state="S")]
    assert notes_of(stuck) == ("1 of 2 processes waiting in the kernel in nfs_wait, deaf to signals (pid 8)",)
    assert notes_of(found[2:5]) == ()


RUN = f"test-hang-processes-{uuid4().hex}"


def listed(mark: str, what: str = "processes") -> tuple[ProcessInfo, ...]:
    command = script_command(what, f"MADLITE_RUN_ID={mark}")
    return read_processes(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.host
def test_a_runs_processes_are_found_by_their_mark():
    code = "import subprocess, sys\nsubprocess.run(['sleep', '600'])"
    env = {**os.environ, "MADLITE_RUN_ID": RUN, "RANK": "5"}
    started = subprocess.Popen([sys.executable, "-c", code], env=env, start_new_session=True)
    try:
        wait_until(lambda: [process.command for process in listed(RUN)][1:] == ["sleep 600"])
        first, second = listed(RUN)
        assert (first.pid, first.rank, second.parent) == (started.pid, "5", started.pid)
        assert "\n" not in first.command and first.command.endswith("['sleep', '600'])")
        assert listed("another") == ()
    finally:
        os.killpg(started.pid, signal.SIGKILL)
        started.communicate()


@pytest.mark.host
def test_a_command_is_shown_as_it_is_and_what_supervises_it_is_left_out(tmp_path):
    shell = tmp_path / "python3.12" / "shell"
    shell.parent.mkdir()
    shutil.copy("/bin/sh", shell)
    words = [str(shell), "-c", r"read -r line  # \c a\tb \0101 C:\new"]
    env = {**os.environ, "MADLITE_RUN_ID": RUN}
    started = [
        subprocess.Popen(words, stdin=subprocess.PIPE, env={**env, **more}, start_new_session=True)
        for more in ({}, {SUPERVISOR_MARK: "1"})
    ]
    try:
        wait_until(lambda: [process.command for process in listed(RUN)] == [" ".join(words)])
        assert listed(RUN, "stacks") == (), "no program named python"
    finally:
        for process in started:
            process.communicate()
