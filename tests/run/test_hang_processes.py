"""Which processes a hanging run has, and what the script that lists them shows."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys

import pytest

from madlite.run.hang import ProcessInfo, _command, find_pids, notes_of, read_processes
from tests.waiting import wait_until


def test_what_a_line_shows_of_a_process():
    text = (
        "pid 77 parent 1 rank 3 local_rank 1 state D threads 2 cpu_s 3 python yes wchan nfs_wait command python x.py \n"
        "[<0>] nfs_wait\nthread /proc/77/task/78\n[<0>] amdgpu_wait\n"
        "pid 78 parent 77 rank - local_rank - state S threads 1 cpu_s 0 python no wchan 0 command [cat]\n"
        "pid 79 parent 77 rank - local_rank - state R threads 1 cpu_s 0 python no wchan  command cat\n"
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
        python=True,
        text="[<0>] nfs_wait\nthread /proc/77/task/78\n[<0>] amdgpu_wait",
    )
    assert (second.rank, second.wchan, second.command, second.python) == ("", "", "[cat]", False)
    assert (third.pid, third.wchan, third.command) == (79, "", "cat")


def test_stopped_processes_and_deaf_ones_are_named():
    found = [ProcessInfo(pid=n, parent=1, state=state) for n, state in enumerate("TTSSSTTTR", 1)]
    assert notes_of(found) == ("5 of 9 processes stopped by a signal or a debugger (pid 1, 2, 6, 7, …)",)
    stuck = [ProcessInfo(pid=8, parent=1, state="D", wchan="nfs_wait"), ProcessInfo(pid=9, parent=1, state="S")]
    assert notes_of(stuck) == ("1 of 2 processes waiting in the kernel in nfs_wait, deaf to signals (pid 8)",)
    assert notes_of(found[2:5]) == ()


@pytest.mark.host
def test_a_runs_processes_are_found_by_their_mark_and_their_children_by_their_parents():
    code = "import subprocess, sys\nsubprocess.run(['env', '-i', 'sleep', '60'])"
    env = {**os.environ, "MADLITE_RUN_ID": "test-hang-processes", "RANK": "5"}
    started = subprocess.Popen([sys.executable, "-c", code], env=env, start_new_session=True)

    def listed() -> tuple[ProcessInfo, ...]:
        command = _command("processes", pids=find_pids("test-hang-processes"))
        return read_processes(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    try:
        wait_until(lambda: [process.command for process in listed()][1:] == ["sleep 60"])
        first, second = listed()
        assert (first.pid, first.rank, first.python) == (started.pid, "5", True)
        assert "\n" not in first.command and first.command.endswith("['env', '-i', 'sleep', '60'])")
        assert (second.python, second.parent) == (False, started.pid)
        assert find_pids("another") == ()
    finally:
        os.killpg(started.pid, signal.SIGKILL)
        started.communicate()


@pytest.mark.host
def test_a_command_is_shown_as_it_is_and_only_a_program_named_python_is_one(tmp_path):
    shell = tmp_path / "python3.12" / "shell"
    shell.parent.mkdir()
    shutil.copy("/bin/sh", shell)
    words = [str(shell), "-c", r"read -r line  # \c a\tb \0101 C:\new"]
    started = subprocess.Popen(words, stdin=subprocess.PIPE)
    try:
        command = _command("processes", pids=[started.pid])

        def listed() -> ProcessInfo:
            return read_processes(subprocess.run(command, capture_output=True, text=True, check=True).stdout)[0]

        wait_until(lambda: listed().command == " ".join(words))
        assert not listed().python
    finally:
        started.communicate()
