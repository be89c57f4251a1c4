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


@pytest.mark.parametrize("args", [("--timeout", "1"), ()])
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


@pytest.mark.parametrize("mark", ["the folder of the run", "a folder of his own", "a folder that is gone", "none"])
def test_a_decoy_of_another_user_leaves_a_living_run_alone_when_root_cleans(checkout, mark):
    started = checkout.start("--tags", "waits")
    log = checkout.wait_for("begun")
    his = checkout.folder / "madlite_runs/planted"
    his.mkdir()
    (his / "plan.json").write_text("{}")
    (his / "lock").touch()
    os.chown(his, NOBODY, NOBODY)
    gone = checkout.folder / "madlite_runs/gone"
    places = {"the folder of the run": log.parent, "a folder of his own": his, "a folder that is gone": gone}
    folder = {"MADLITE_RUN_FOLDER": str(places[mark])} if mark in places else {}
    marks = {"MADLITE_RUN_ID": log.parent.name, **folder}
    other = {"MADLITE_RUN_ID": "other", "MADLITE_RUN_FOLDER": str(gone)}
    decoy = subprocess.Popen(["sleep", "300"], env=marks, user=NOBODY)
    bystander = subprocess.Popen(["sleep", "300"], env=other, user=NOBODY)
    try:
        cleaned = checkout.madlite("clean", "--yes")
        assert started.poll() is None and goes_on(daemon(log)) and bystander.poll() is None, cleaned.stdout
        assert (decoy.poll() is None) == (mark != "a folder of his own"), cleaned.stdout + cleaned.stderr
        started.send_signal(signal.SIGINT)
        out, _ = started.communicate(timeout=240)
        assert started.returncode == 130
        assert json.loads((log.parent / "record.json").read_text())["cause"] == "interrupted"
        assert (decoy.poll() is None) == (mark != "a folder of his own") and bystander.poll() is None
    finally:
        for process in (decoy, bystander, started):
            process.kill()
            process.wait()
