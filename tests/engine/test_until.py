"""`--until`: a training of the host runtime that ends once its number is known."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from madlite.cli.main import call
from tests.csv_rows import csv_rows
from tests.rows import each_row

pytestmark = pytest.mark.host

STEP = r"step=step (?P<n>\d+) loss (?P<loss>\S+) tps (?P<tokens_per_s_per_gpu>[\d,.]+)"
# in place of torch, whose launcher takes most of a minute on a slow machine: it runs the script
LAUNCHER = "import runpy, sys\ndef main(words):\n    runpy.run_path(words[-1], run_name='__main__')\n"
TRAIN = """
import os, sys, time
count, spread, leave_s = int(os.environ["COUNT"]), float(os.environ["SPREAD"]), float(os.environ.get("LEAVE_S", 0))
for n in range(1, count + 1):
    print(f"step {n} loss {3 - n / count:.4f} tps {1000 + spread * (n * 7 % 5)}", flush=True)
    try:
        # after twice as many steps as it needs it has all the time: one that is told late has not run to its end
        time.sleep(float(os.environ["STEP_S"]) * (1 if n < 120 else 25))
    except KeyboardInterrupt:
        time.sleep(leave_s)
        raise
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    launcher = tmp_path / "launcher/torch/distributed"
    launcher.mkdir(parents=True)
    for folder in (launcher.parent, launcher):
        (folder / "__init__.py").write_text("")
    (launcher / "run.py").write_text(LAUNCHER)
    work = tmp_path / "work"
    work.mkdir()
    (work / "train.py").write_text(TRAIN)
    monkeypatch.delenv("MODEL_DIR", raising=False)
    monkeypatch.setenv("DOCKER_HOST", f"unix://{work}/none.sock")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(launcher.parents[1]), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.chdir(work)
    return work


def run(count: int, spread: float, step_s: float, *words: str) -> int:
    sets = [f"env.COUNT={count}", f"env.SPREAD={spread}", f"env.STEP_S={step_s}", "script=train.py", STEP]
    tag = f"torchrun_script:steps={count}"
    return call(["run", "--tags", tag, "--runtime", "host", *[part for one in sets for part in ("--set", one)], *words])


def record(place: Path) -> dict:
    (file,) = place.glob("madlite_runs/*/record.json")
    return json.loads(file.read_text())


def test_a_run_ends_once_its_number_is_known_and_is_a_success(place, capfd) -> None:
    assert run(300, 1, 0.02, "--until", "0.5%") == 0
    kept = record(place)
    length = kept["adaptive"]
    assert kept["status"] == "SUCCESS" and not kept["suspect"] and kept["exit_code"] != 0
    assert length["reached"] and length["steps_planned"] == 300 and 60 <= length["steady_steps"] < 160
    assert 998 <= length["low"] <= length["median"] <= length["high"] <= 1005
    (row,) = csv_rows(place / "perf.csv")
    assert row["status"] == "SUCCESS" and 1000 <= float(row["performance"]) <= 1004
    assert length["median"] == pytest.approx(float(row["performance"]), rel=1e-4), "one median, of the steps of the row"
    out = capfd.readouterr().out
    assert "--until 0.5 % ended the run after" in out and "of 300 steps" in out and "±" in out
    assert call(["show", "last"]) == 0
    assert "--until 0.5 % ended the run after" in capfd.readouterr().out
    assert call(["verify", "last"]) == 0, capfd.readouterr().out
    (log,) = place.glob("madlite_runs/*/run.log")
    for name in ("last", str(log)):  # what it printed while it was ended, a traceback here, is no failure
        step = () if name == "last" else ("--step", STEP.removeprefix("step="))
        assert call(["parse", name, *step]) == 0
        out = capfd.readouterr().out
        assert "SUCCESS" in out and "note: --until 0.5 % ended the run" in out and "cut off" not in out


def test_the_time_that_a_training_takes_to_leave_is_no_stall(place, capfd, monkeypatch) -> None:
    monkeypatch.setattr("madlite.run.watchdog.SLOW_S", 0.3)
    assert run(300, 1, 0.02, "--until", "0.5%", "--set", "env.LEAVE_S=1") == 0
    out, last = capfd.readouterr().out, record(place)["adaptive"]["steps_run"]
    assert f"--until 0.5 % ended the run after {last} of 300 steps" in out
    assert not re.search(rf"no step for .* after step {last}\b", out)  # a busy machine may stall before


def test_a_run_whose_noise_is_too_much_goes_to_its_end_and_says_so(place, capfd) -> None:
    assert run(40, 60, 0, "--until", "0.5%") == 0
    length = record(place)["adaptive"]
    assert not length["reached"] and length["steps_run"] == 40
    assert "--until 0.5 % did not end the run: the 95 % interval of the median is ±" in capfd.readouterr().out


@each_row("text", ["0.5", "50%", "0%", "-1%", "soon", "nan%"])
def test_what_is_no_precision_is_refused_with_its_value(place, capfd, text) -> None:
    assert run(40, 1, 0, "--until", text) == 4
    error = capfd.readouterr().err
    assert "--until" in error and "a percentage from 0.001% to 20%" in error
    assert not (place / "perf.csv").exists()


def test_a_card_whose_own_script_makes_the_number_cannot_end_early(place, capfd) -> None:
    (place / "scripts/a").mkdir(parents=True)
    (place / "scripts/a/run.sh").write_text("echo performance: 12.5 tok\n")
    card = {"name": "a", "scripts": "scripts/a/run.sh", "args": "", "tags": ["t"], "runtimes": ["host"]}
    (place / "models.json").write_text(json.dumps([card]))
    assert call(["run", "--tags", "a", "--until", "0.5%"]) == 4
    assert "card 'a' cannot end early: its own script makes the number" in capfd.readouterr().err
    assert not (place / "perf.csv").exists()
    assert call(["run", "--tags", "a", "--until", "0"]) == 0
