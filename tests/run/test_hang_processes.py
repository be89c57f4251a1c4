"""What /proc tells of the processes of a run that hangs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from madlite.run.hang_processes import (
    ProcessInfo,
    cpu_times,
    find_processes,
    kernel_stacks,
    notes_of,
    read_facts,
    table,
)

STAT = "{pid} (pt_main (x) y) {state} 1 {pid} {pid} 0 -1 4194304 1 0 0 0 250 50 0 0 20 0 12 0 100 1 1\n"


def fake(proc, pid: int, state: str = "S", **files: str):
    """Write one process's files below a folder that stands for /proc."""
    folder = proc / str(pid)
    (folder / "task" / str(pid)).mkdir(parents=True)
    written = {"stat": STAT.format(pid=pid, state=state), "cmdline": "python\0train.py\0", "comm": "python3\n", **files}
    for name, text in written.items():
        (folder / name).write_text(text)
    return folder


def test_what_a_process_is_and_waits_for(tmp_path):
    folder = fake(tmp_path, 77, "D", wchan="nfs_wait_bit_killable", stack="[<0>] nfs_wait\n")
    (folder / "exe").symlink_to("/usr/bin/python3.12")
    (folder / "task/78").mkdir()
    (folder / "task/78/stat").write_text("78 (t) D 1")
    (folder / "task/78/stack").write_text("[<0>] amdgpu_wait\n")
    (folder / "task/79").mkdir()
    (folder / "task/79/stat").write_text("79 (t) S 1")
    found = read_facts(folder, {"RANK": "3", "LOCAL_RANK": "1"})
    assert found == ProcessInfo(
        pid=77,
        parent=1,
        state="D",
        cpu_s=300 / os.sysconf("SC_CLK_TCK"),
        threads=12,
        wchan="nfs_wait_bit_killable",
        rank="3",
        local_rank="1",
        command="python train.py",
        python=True,
        stack="[<0>] nfs_wait\nthread 78\n[<0>] amdgpu_wait\n",
    )
    assert kernel_stacks([found]) == "pid 77  python train.py\n[<0>] nfs_wait\nthread 78\n[<0>] amdgpu_wait\n"


def test_a_command_shows_none_of_the_secrets_that_it_spells_out(tmp_path):
    folder = fake(tmp_path, 5, cmdline="python\0train.py\0--hf_token\0hf_abcdefgh\0WANDB_API_KEY=0123456789\0")
    command = read_facts(folder, {}).command
    assert command.startswith("python train.py --hf_token ***") and "0123456789" not in command


def test_a_process_that_ended_or_may_not_be_read_is_left_out(tmp_path):
    assert read_facts(tmp_path / "1", {}) is None
    assert read_facts(fake(tmp_path, 2, stat="2 (x) S 1\n"), {}) is None
    quiet = read_facts(fake(tmp_path, 3, cmdline="", wchan="0"), {})
    assert (quiet.command, quiet.wchan, quiet.python, quiet.stack) == ("[pt_main (x) y]", "", True, "")


def test_the_table_has_what_each_process_used_of_a_cpu_meanwhile(tmp_path):
    one = read_facts(fake(tmp_path, 3, "R"), {"RANK": "0", "LOCAL_RANK": "0"})
    two = ProcessInfo(pid=44444, parent=3, state="S", command="cat")
    head, first, second = table([one, two], {3: one.cpu_s + 5}, 5.0).splitlines()
    assert head.split() == ["PID", "PPID", "RANK", "LOCAL", "STATE", "THR", "CPU_S", "CPU%", "WCHAN", "COMMAND"]
    assert first.split() == ["3", "1", "0", "0", "R", "12", f"{one.cpu_s:.1f}", "100", "-", "python", "train.py"]
    assert second.split() == ["44444", "3", "-", "-", "S", "0", "0.0", "-", "-", "cat"]
    assert cpu_times([one, two], tmp_path) == {3: one.cpu_s}


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
    try:
        found: tuple[ProcessInfo, ...] = ()
        while len(found) < 2 or found[1].command != "sleep 60":
            found = find_processes("test-hang-processes")
        assert (found[0].pid, found[0].rank, found[0].python) == (started.pid, "5", True)
        assert (found[1].python, found[1].parent) == (False, started.pid)
        assert find_processes("another") == ()
    finally:
        os.killpg(started.pid, signal.SIGKILL)
        started.communicate()
