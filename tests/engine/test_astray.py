"""Whole commands on the host: what leaves its session there, and decoys of other users."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from madlite.machine.processes import process_table
from tests.engine.checkout import Checkout

pytestmark = pytest.mark.host
NOBODY = 65534
GOOD = 'echo "performance: 12.5 tokens_per_second"\n'
DAEMON = """
mkfifo ready
(env -i setsid sh -c 'echo $$ > ready; exec sleep 300' > /dev/null 2>&1 &)
echo "daemon $(cat ready)"
"""


@pytest.fixture
def checkout(tmp_path) -> Checkout:
    checkout = Checkout(tmp_path / "mad", "host", "unix:///nonexistent/docker.sock")
    checkout.card("good", DAEMON + GOOD)
    checkout.card("waits", DAEMON + "echo begun; sleep 300\n")
    return checkout


def daemon(log: Path) -> int:
    (line,) = [line for line in log.read_text().splitlines() if line.startswith("daemon ")]
    return int(line.split()[1])


def goes_on(pid: int) -> bool:
    table = process_table()
    return pid in table and table[pid].lives


def test_a_daemon_with_an_empty_environment_ends_with_its_run(checkout):
    ended = checkout.run("--tags", "good")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    (log,) = checkout.folder.glob("madlite_runs/*/run.log")
    assert not goes_on(daemon(log))
    assert checkout.rows[0]["status"] == "SUCCESS" and checkout.records()[0]["findings"] == []
    checkout.assert_nothing_left()


@pytest.mark.parametrize("args", [("--timeout", "6"), ()])
def test_a_run_that_is_ended_from_outside_ends_its_daemons(checkout, args):
    started = checkout.start("--tags", "waits", *args)
    log = checkout.wait_for("begun")
    pid = daemon(log)
    if not args:
        started.send_signal(signal.SIGINT)
    out, _ = started.communicate(timeout=240)
    assert started.returncode == (3 if args else 130), out
    assert not goes_on(pid)
    checkout.assert_nothing_left()


@pytest.mark.parametrize("who", ["clean", "the next run"])
def test_after_a_kill_of_madlite_its_daemons_are_found(checkout, who):
    started = checkout.start("--tags", "waits")
    pid = daemon(checkout.wait_for("begun"))
    os.killpg(started.pid, signal.SIGKILL)
    started.communicate()
    assert goes_on(pid)
    if who == "clean":
        assert str(pid) in checkout.madlite("clean").stdout
        done = checkout.madlite("clean", "--yes")
    else:
        (checkout.folder / "scripts/good/run.sh").write_text(GOOD)
        done = checkout.run("--tags", "good")
    assert done.returncode == 0, done.stdout + done.stderr
    assert not goes_on(pid)
    checkout.assert_nothing_left()


def test_where_a_workload_kills_what_keeps_it_together_the_record_and_the_screen_say_so(checkout):
    checkout.card("kills", "kill -KILL $PPID\nsleep 300\n")
    ended = checkout.run("--tags", "kills")
    assert ended.returncode == 3 and "was killed: what had left its session" in ended.stdout + ended.stderr
    assert checkout.rows[0]["status"] == "FAILURE"
    assert any("was killed: what had left its session" in finding for finding in checkout.records()[0]["findings"])
    checkout.assert_nothing_left()


def test_decoys_of_another_user_leave_a_living_run_alone_when_root_cleans(checkout):
    started = checkout.start("--tags", "waits")
    log = checkout.wait_for("begun")
    his, gone = (checkout.folder / f"madlite_runs/{name}" for name in ("planted", "gone"))
    his.mkdir()
    (his / "plan.json").write_text("{}")
    (his / "lock").touch()
    os.chown(his, NOBODY, NOBODY)
    of_run = {"MADLITE_RUN_ID": log.parent.name}
    marks = [of_run, *({**of_run, "MADLITE_RUN_FOLDER": str(folder)} for folder in (log.parent, gone))]
    other = {"MADLITE_RUN_ID": "other", "MADLITE_RUN_FOLDER": str(gone)}
    left_alone = [subprocess.Popen(["sleep", "300"], env=env, user=NOBODY) for env in (*marks, other)]
    own = subprocess.Popen(["sleep", "300"], env={**of_run, "MADLITE_RUN_FOLDER": str(his)}, user=NOBODY)
    try:
        cleaned = checkout.madlite("clean", "--yes")
        assert started.poll() is None and goes_on(daemon(log)), cleaned.stdout + cleaned.stderr
        assert [one.poll() for one in left_alone] == [None] * 4, cleaned.stdout + cleaned.stderr
        assert own.poll() is not None, "the one that names a folder of his own ends"
        started.send_signal(signal.SIGINT)
        started.communicate(timeout=240)
        assert started.returncode == 130
        assert json.loads((log.parent / "record.json").read_text())["cause"] == "interrupted"
        assert [one.poll() for one in left_alone] == [None] * 4
    finally:
        for process in (own, *left_alone, started):
            process.kill()
            process.wait()
