"""Runs that are ended from outside: signals, a kill, a full pipe. The workload ends, the row is written."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engine.checkout import NO_ENGINE, Checkout, end
from tests.engine.slow_engine import SlowEngine
from tests.engine_fixture import spare_given
from tests.waiting import wait_until

GOOD = 'echo "performance: 12.5 tokens_per_second"\n'
WAITS = "trap 'echo got INT; exit 9' INT\necho begun $$\nwhile :; do sleep 0.05; done\n"


@pytest.fixture
def checkout(checkout: Checkout) -> Checkout:
    checkout.name_dockerfile(f"own{os.getpid()}")
    return checkout


@pytest.mark.parametrize(
    ("checkout", "number", "code"),
    [
        pytest.param("docker", signal.SIGINT, 130, marks=pytest.mark.engine),
        *(
            pytest.param("host", number, code, marks=pytest.mark.host)
            for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129))
        ),
    ],
    indirect=["checkout"],
)
def test_a_signal_ends_the_workload_gently_and_still_writes_the_row(checkout: Checkout, number, code):
    checkout.card("waits", WAITS)
    started = checkout.start("--tags", "waits")
    log = checkout.wait_for("begun")
    returned, out = end(started, number)
    assert returned == code, out
    assert "got INT" in log.read_text()
    (row,) = checkout.rows
    assert (row["status"], row["performance"]) == ("FAILURE", "")
    assert checkout.records()[0]["cause"] == "interrupted"
    checkout.assert_nothing_left()


def asking(tmp_path: Path, python: str) -> Checkout:
    """Return a checkout whose runs ask a stand-in for Python what is there."""
    checkout = Checkout(tmp_path / "mad", "host", NO_ENGINE)
    checkout.words = ()
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "python3").write_text(f"#!/bin/sh\n{python}\n")
    (tools / "python3").chmod(0o755)
    checkout.env["PATH"] = f"{tools}:{checkout.env['PATH']}"
    return checkout


def asked_for(limit_s: float) -> dict[str, float]:
    """Return the constant that is how long it may be asked."""
    return {"madlite.run.instrumentation.LIMIT_S": limit_s}


@pytest.mark.host
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_while_it_is_asked_what_is_there_ends_the_run_before_its_workload(tmp_path, number, code):
    checkout = asking(tmp_path, f"touch {tmp_path}/asked\nsleep 600")
    checkout.card("never", "touch ../started\n" + GOOD)
    started = checkout.start("--tags", "never", constants=asked_for(600.0))
    wait_until((tmp_path / "asked").exists, "the question")
    returned, out = end(started, number)  # which is not as long as what is asked would take
    assert returned == code, out
    assert not (checkout.folder / "started").exists()
    assert checkout.rows[0]["status"] == "FAILURE" and checkout.records()[0]["cause"] == "interrupted"
    checkout.assert_nothing_left()


@pytest.mark.host
def test_the_time_in_which_it_is_asked_what_is_there_is_none_of_the_time_limit(tmp_path):
    checkout = asking(tmp_path, f'sleep 7\nexec {sys.executable} "$@"')
    checkout.card("quick", GOOD)
    started = checkout.start("--tags", "quick", "--timeout", "6", constants=asked_for(120.0))
    out, _ = started.communicate()
    assert started.returncode == 0 and checkout.rows[0]["status"] == "SUCCESS", out
    assert checkout.records()[0]["provenance"]["notes"] == [], "it was asked"


@pytest.mark.host
def test_a_python_that_waits_for_ever_is_ended_and_the_run_goes_on(tmp_path):
    checkout = asking(tmp_path, "sleep 600")
    checkout.card("quick", GOOD)
    started = checkout.start("--tags", "quick", constants=asked_for(1.0))
    out, _ = started.communicate()  # which is not as long as what is asked would take
    assert started.returncode == 0, out
    (note,) = checkout.records()[0]["provenance"]["notes"]
    assert note == "the environment of the run is unknown: the probe did not end within 1 s"
    checkout.assert_nothing_left()


def test_ctrl_c_at_card_2_of_5_names_the_rest(on_host: Checkout):
    for n in (1, 2, 3, 4, 5):
        on_host.card(f"m{n}", WAITS if n == 2 else GOOD)
    started = on_host.start("--tags", "t")
    on_host.wait_for("begun")
    returned, out = end(started, signal.SIGINT)
    assert returned == 130
    assert "never started: m3, m4, m5" in out
    assert [(row["model"], row["status"]) for row in on_host.rows] == [("m1", "SUCCESS"), ("m2", "FAILURE")]
    assert not list(on_host.folder.glob("madlite_runs/batch-*"))
    assert "nothing is left" in on_host.madlite("clean").stdout
    on_host.assert_nothing_left()


def test_ctrl_c_of_a_terminal_reaches_the_whole_group(checkout: Checkout):
    checkout.card("waits", WAITS)
    started = checkout.start("--tags", "waits")
    checkout.wait_for("begun")
    os.killpg(started.pid, signal.SIGINT)
    out, _ = started.communicate(timeout=240)
    assert started.returncode == 130, out
    assert len(checkout.rows) == 1
    checkout.assert_nothing_left()


def test_a_second_ctrl_c_does_not_wait(checkout: Checkout):
    checkout.card("stubborn", "trap '' INT TERM\necho begun\nwhile :; do sleep 0.05; done\n")
    started = checkout.start("--tags", "stubborn", "--set", "stop_grace_s=1000")
    checkout.wait_for("begun")
    os.kill(started.pid, signal.SIGINT)
    returned, _ = end(started, signal.SIGTERM)  # another one: two of a kind can arrive as one
    assert returned == 130
    checkout.assert_nothing_left()


def test_nohup_stays_deaf_to_hup(on_host: Checkout):
    on_host.card("short", "echo begun\nwhile [ ! -e ../go ]; do sleep 0.05; done\n" + GOOD)
    on_host.before = ("nohup",)
    started = on_host.start("--tags", "short")
    on_host.wait_for("begun")
    os.kill(started.pid, signal.SIGHUP)
    (on_host.folder / "go").touch()
    started.communicate(timeout=240)
    assert started.returncode == 0 and on_host.rows[0]["status"] == "SUCCESS"


def test_after_kill_9_clean_finds_and_removes_what_is_left(checkout: Checkout):
    (checkout.folder / "pre.sh").write_text("echo before > ../pre\n")
    checkout.card("waits", "(exec setsid sleep 300) &\n" + WAITS)
    started = checkout.start("--tags", "waits", "-c", '{"pre_scripts": [{"path": "pre.sh"}]}')
    log = checkout.wait_for("begun")
    (checkout.folder / f".perf.csv.{started.pid}").touch()  # as a copy that was not whole yet
    os.kill(started.pid, signal.SIGKILL)
    started.communicate(timeout=240)
    run_id = log.parent.name
    listed = checkout.madlite("clean")
    assert run_id in listed.stdout and listed.returncode == 0
    assert checkout.left_containers() or checkout.left_processes(), "listing removes nothing"
    assert (checkout.folder / "run_directory").exists()
    removed = checkout.madlite("clean", "--yes")
    assert removed.returncode == 0 and "removed" in removed.stdout
    checkout.assert_nothing_left()
    assert "nothing is left" in checkout.madlite("clean").stdout
    assert log.exists(), "the log of the cut run stays"
    rows_and_logs = {path.name for kind in ("*.log", "perf*.csv", "perf*.json") for path in checkout.folder.glob(kind)}
    kept = {path.name for path in checkout.folder.iterdir()} - rows_and_logs
    assert kept == {"docker", "scripts", "models.json", "madlite_runs", "pre.sh", "pre"}
    assert [(row["model"], row["status"]) for row in checkout.rows] == [("waits", "FAILURE")]


def test_clean_leaves_a_running_one_alone(on_host: Checkout):
    on_host.card("waits", "echo begun\nwhile [ ! -e ../go ]; do sleep 0.05; done\n" + GOOD)
    started = on_host.start("--tags", "waits")
    on_host.wait_for("begun")
    assert "nothing is left" in on_host.madlite("clean", "--yes").stdout
    (on_host.folder / "go").touch()
    started.communicate(timeout=240)
    assert started.returncode == 0 and on_host.rows[0]["status"] == "SUCCESS"


def test_a_pipe_that_nobody_reads_stops_nothing(on_host: Checkout):
    on_host.card("loud", "seq 40000\n" + GOOD)  # more than a pipe takes
    read, write = os.pipe()
    started = on_host.start("--tags", "loud", "--live-output", stdout=write, stderr=write)
    os.close(write)
    code = started.wait(timeout=240)
    os.close(read)
    assert code == 0 and on_host.rows[0]["status"] == "SUCCESS"


def test_a_reader_that_went_away_stops_nothing(on_host: Checkout):
    on_host.card("loud", "seq 40000\n" + GOOD)
    command = f"{' '.join(on_host.command('run', '--runtime', on_host.runtime, '--tags', 'loud', '-l'))} | head -1"
    subprocess.run(["bash", "-c", command], cwd=on_host.folder, env=on_host.env, timeout=240, capture_output=True)
    assert on_host.rows[0]["status"] == "SUCCESS"


def test_two_runs_in_one_folder_at_once_do_not_disturb_each_other(on_host: Checkout):
    """Both cards run in `run_directory` under MAD; the one that comes second gets a folder of its own."""
    on_host.card("waits", "echo begun\nwhile [ ! -e ../go ]; do sleep 0.05; done\ncat mine\n")
    on_host.card("quick", GOOD + "touch ../go\n")
    (on_host.folder / "scripts/waits/mine").write_text("performance: 7 x\n")
    first = on_host.start("--tags", "waits")
    on_host.wait_for("begun")
    second = on_host.run("--tags", "quick")
    out, _ = first.communicate(timeout=240)
    assert (second.returncode, first.returncode) == (0, 0), second.stdout + out
    assert {row["model"]: row["performance"] for row in on_host.rows} == {"quick": "12.5", "waits": "7"}
    assert not list(on_host.folder.glob("run_directory*"))
    on_host.assert_nothing_left()


@pytest.mark.engine
def test_ctrl_c_does_not_wait_for_a_container_that_is_being_created(engine, base_image, tmp_path):
    """The engine creates it all the same, once nobody waits: that one is for clean."""
    slow = SlowEngine(engine, b"/containers/create")
    checkout = Checkout(tmp_path / "mad", "docker", slow.address)
    checkout.name_dockerfile(f"own{os.getpid()}")  # nobody is left to try another name where a container has this one
    checkout.card("good", GOOD)
    try:
        started = checkout.start("--tags", "good")
        assert slow.asked.wait(240)
        returned, out = end(started, signal.SIGINT)
        assert returned == 130 and "madlite clean" in out, out
        assert checkout.rows[0]["status"] == "FAILURE" and checkout.records()[0]["cause"] == "interrupted"
        slow.let_through.set()
        assert slow.check_type.wait(240) and checkout.left_containers()
        assert "removed" in checkout.madlite("clean", "--yes").stdout
        checkout.assert_nothing_left()
    finally:
        slow.close()
        spare_given(engine, tmp_path)
