"""`madlite runs --watch`: how far runs are, from another process; nothing in their folders breaks or delays it."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import Mock

import pytest

from madlite.cli.main import call
from madlite.model import Card, Quantity, Result, Status, Step, Study
from madlite.run.screen import RunEvents
from madlite.store.batches import BatchLog
from madlite.store.events import RequestedRun
from madlite.store.folder import LOCK, PROGRESS, Progress, RunFolder, read_points, read_progress
from tests import commands
from tests.cli.stored_runs import good, store
from tests.cli.test_runs import said
from tests.factories import make_plan
from tests.rows import each_row
from tests.waiting import wait_until

LIMIT_S = 240.0
STEPS = """
for n in $(seq 1 4000); do
  figures="step: $n  loss: $((30000 - n)).5  memory:  1.0GiB(1%)  tps: 1,234  mfu: 1%"
  echo "[titan] 2026-11-21 12:00:00,000 - root - INFO - $figures"
  sleep 0.05
done
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.sh").write_text(f"while [ ! -e {tmp_path}/go ]; do sleep 0.05; done\necho 'performance: 5 x'\n")
    card = {"name": "m", "scripts": "run.sh", "n_gpus": "-1", "tags": ["t"], "args": ""}
    (tmp_path / "models.json").write_text(json.dumps([card]))
    return tmp_path


@pytest.fixture
def start():
    """Start commands here, which end with the test at the latest."""
    started: list[commands.Started] = []

    def start(*args: str, stdout: commands.Stream = subprocess.DEVNULL, **env: str) -> commands.Started:
        started.append(commands.start(args, Path.cwd(), {**os.environ, **env}, stdout=stdout))
        return started[-1]

    yield start
    for one in started:
        one.kill()
        one.wait(LIMIT_S)


def only_run(place: Path) -> Path:
    wait_until(lambda: list(place.glob("madlite_runs/*/" + PROGRESS)))
    return next(place.glob("madlite_runs/*/" + PROGRESS)).parent


@pytest.mark.host
def test_a_run_is_watched_from_another_process_to_its_end(place, start):
    run = start("run", "--tags", "t", "--runtime", "host")
    folder = only_run(place)
    watch = start("runs", "--watch", "--json", "--interval", "0.1", stdout=subprocess.PIPE)
    first = json.loads(watch.stdout.readline())
    assert (first["id"], first["card"], first["state"]) == (folder.name, "m", "RUNNING")
    (place / "go").touch()
    assert run.wait(LIMIT_S) == 0
    rest = [json.loads(line) for line in watch.stdout]
    assert watch.wait(LIMIT_S) == 0, "it ends when nothing goes on any more"
    assert (rest[-1]["state"], rest[-1]["number"]) == ("SUCCESS", "5 x")
    now = read_progress(folder)
    assert (now.state, now.status, now.doing) == ("ended", "SUCCESS", "") and now.ended >= now.started
    assert first["batch"] and json.loads((folder / "record.json").read_text())["batch"] == first["batch"]


@pytest.mark.host
def test_a_run_that_is_killed_is_cut_off_to_who_watches(place, start):
    run = start("run", "--tags", "t", "--runtime", "host")
    only_run(place)
    watch = start("runs", "--watch", "--interval", "0.1", stdout=subprocess.PIPE)
    assert "m  " in watch.stdout.readline()
    os.kill(run.pid, signal.SIGKILL)
    run.wait(LIMIT_S)
    assert "CUT OFF" in watch.stdout.read().splitlines()[-1] and watch.wait(LIMIT_S) == 0
    assert call(["clean", "--yes", "--no-plugins"]) in (0, 3)


@pytest.mark.host
def test_steps_speed_and_time_left_are_told(place, start):
    (place / "run.sh").write_text(STEPS)
    run = start("run", "--tags", "t", "--runtime", "host")
    folder = only_run(place)
    wait_until(lambda: (read_progress(folder) or Progress()).step)
    now = read_progress(folder)
    assert (now.state, now.speed, now.unit) == (
        "running",
        1234.0,
        "tokens/s/GPU",
    ) and now.loss == 30000 - now.step + 0.5
    run.send_signal(signal.SIGINT)
    assert run.wait(LIMIT_S) == 130
    assert read_progress(folder).cause == "interrupted"


@pytest.mark.host
def test_a_terminal_shows_a_table_and_ctrl_c_ends_it(place, start):
    run = start("run", "--tags", "t", "--runtime", "host")
    only_run(place)
    ours, theirs = pty.openpty()
    watch = start("runs", "--watch", stdout=theirs, COLUMNS="100")
    os.close(theirs)
    shown = b""
    while b"running" not in shown:
        shown += os.read(ours, 4096)
    assert re.search(rb"RUN .*CARD .*STATE .*STEP", re.sub(rb"\x1b\[[\d;?]*\w", b"", shown))
    watch.send_signal(signal.SIGINT)
    assert watch.wait(LIMIT_S) == 130
    os.close(ours)
    run.send_signal(signal.SIGINT)
    run.wait(LIMIT_S)


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold a run's lock, as its madlite would."""
    with (folder / LOCK).open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@each_row("text", [b"", b"{", b"[]", b'{"step": "x"}', b"\xff", b"[" * 30000, b'{"state": "odd"}', None])
def test_nonsense_in_the_file_of_a_run_is_nothing(tmp_path, capsys, monkeypatch, text):
    monkeypatch.chdir(tmp_path)
    store(tmp_path, "20260102T030405-a-00000a")
    folder = tmp_path / "madlite_runs" / "20260102T030405-a-00000a"
    if text is None:
        (folder / PROGRESS).symlink_to("/dev/zero")
    else:
        (folder / PROGRESS).write_bytes(text)
    with held(folder):
        assert read_progress(folder) is None
        assert "00000a" in said(capsys, "runs", "--watch", "--once")


def test_what_steers_a_terminal_and_what_is_secret_is_not_shown(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store(tmp_path, "20260102T030405-a-00000a", card=Card(name="a\x1b[2Jb", root=tmp_path, source="x"))
    folder = tmp_path / "madlite_runs" / "20260102T030405-a-00000a"
    (folder / PROGRESS).write_text(json.dumps({"doing": "with hf_" + "abcdefghijklmnopqrstuvwxyzabcdefgh"}))
    with held(folder):
        told = said(capsys, "runs", "--watch", "--once")
    assert "\x1b" not in told and "hf_abc" not in told and "a" in told


def test_a_change_that_came_too_soon_after_another_is_written_with_the_next(tmp_path):
    plan = make_plan(tmp_path)
    plan.folder.rmdir()
    folder = RunFolder.create(plan, [], ())
    now_s = [0.0]
    progress = RunEvents(Mock(), plan, "2026-01-02T03:04:05+00:00", str, lambda: now_s[0])
    progress.open(folder)
    for n in range(1, 6):  # at once: the first are too soon, and then it hangs
        progress.step(Step(n=n, values={Quantity.LOSS: 5.0 - n}))
    assert read_progress(plan.folder).step is None
    now_s[0] = 1.0
    progress.phase("looking at its processes")
    assert (read_progress(plan.folder).step, read_progress(plan.folder).loss) == (5, 0.0)
    assert read_progress(plan.folder).doing == "looking at its processes"
    assert read_points(plan.folder) == {"loss": {n: 5.0 - n for n in range(1, 6)}}, "no unit, so no speeds"
    for n in range(6, 2001):
        progress.step(Step(n=n, values={Quantity.LOSS: 1.0}))
    progress.stopping("")
    assert list(read_points(plan.folder)["loss"]) == list(range(4, 2001, 4)), "of too many every other one, again"
    folder.close()


@pytest.mark.host
def test_watching_goes_on_between_two_runs_of_a_command(tmp_path, monkeypatch, start):
    monkeypatch.chdir(tmp_path)
    store(tmp_path, "20260102T030405-a-00000a")
    with BatchLog(tmp_path, ("run",)) as journal:
        journal.request([RequestedRun(id="next", card="b")])
        watching = start("runs", "--watch", stdout=subprocess.PIPE)
        with pytest.raises(subprocess.TimeoutExpired):
            watching.wait(3)
        journal.close()
    assert watching.wait(LIMIT_S) == 0


def test_where_nothing_goes_on_the_last_batch_is_shown(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store(tmp_path, "20260102T030405-old-00000a", good("old"), batch="b1")
    store(tmp_path, "20260102T030406-one-00000b", good("one"), batch="b2")
    failed = Result(plan_id="two", status=Status.FAILURE, reason="x")
    store(tmp_path, "20260102T030407-two-00000c", failed, batch="b2")
    lines = said(capsys, "runs", "--watch").splitlines()
    assert [line.split()[0] for line in lines[:-1]] == ["RUN", "00000b", "00000c"]
    assert "12.5 tps" in lines[1] and "FAILURE" in lines[2] and lines[-1].startswith("no run is running in ")


def test_a_folder_without_runs_and_one_that_is_none(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "no run is running" in said(capsys, "runs", "--watch")
    assert "is no folder" in said(capsys, "runs", "--watch", "--dir", "nowhere", code=4)


def test_a_run_of_a_study_says_so_wherever_it_is_told(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    study = Study(id="20261122T093011-3fa91c", kind="sweep", varied={"batch_size": 4})
    store(tmp_path, "20260102T030405-a-00000a", good("a"), batch="20261122T093011-b", study=study)
    store(tmp_path, "20260102T030405-z-00000b", good("z"))
    listed = json.loads(said(capsys, "runs", "--json"))
    assert [(run["batch"], run["study"], run["study_kind"], run["varied"]) for run in listed] == [
        ("20261122T093011-b", study.id, "sweep", {"batch_size": 4}),
        ("", "", "", {}),
    ]
    assert "sweep 20261122T093011-3fa91c: batch_size=4" in said(capsys, "show", "00000a")
    for begin in ("20261122T093011-3", "20261122T093011-b"):
        runs, _, table = said(capsys, "runs", "--of", begin).partition("\nsweep ")
        assert [line.split()[0][-6:] for line in runs.splitlines()[1:]] == ["00000a"] and "batch_size=4  12.5" in table
    assert "none of 2 runs" in said(capsys, "runs", "--of", "nothing")


@pytest.mark.host
def test_thousands_of_old_runs_are_read_once_at_most(tmp_path, monkeypatch):
    from madlite.reports import watch as module

    for number in range(300):
        store(tmp_path, f"20260102T030405-a-{number:06d}", good("a"))
    opened = []
    monkeypatch.setattr(module, "open_run", lambda *args: opened.append(args))
    looking = module.Watch(tmp_path / "madlite_runs")
    assert looking.read() == () and looking.read() == () and opened == []
