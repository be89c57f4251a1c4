"""`madlite tune`: whole commands on the host, with a trainer whose optimum and memory limit are known."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
import tomli

from tests import commands
from tests.engine.checkout import Checkout, end
from tests.study import fake_trainer
from tests.waiting import wait_until

pytestmark = pytest.mark.host
CARD = {"name": "fake_model", "backend": "fake", "tags": ["fake"], "n_gpus": "-1", "runtimes": ["host"]}


class Tuned(Checkout):
    """A folder with the card of the fake trainer."""

    def __init__(self, folder: Path, plugin: Path) -> None:
        super().__init__(folder, "host", "unix:///nonexistent/docker.sock")
        fake_trainer.install(plugin, {})
        self.plugin, self.first = plugin, (commands.LOOK_IN, str(plugin))
        (folder / "models.json").write_text(json.dumps([CARD]))

    def tune(self, *args: str) -> subprocess.CompletedProcess[str]:
        return self.madlite("tune", "fake_model", "--runtime", "host", *args)

    def start_at(self, point: str) -> commands.Started:
        """Start a tune, and return it while it trains at this point, which waits."""
        (self.plugin / "wait").write_text(point)
        words = ("tune", "fake_model", "--runtime", "host")
        started = commands.start(words, self.folder, self.env, first=self.first)
        wait_until(lambda: started.poll() is not None or (self.ran and f" {point}" in self.ran[-1]), point)
        assert started.poll() is None, self.ran
        return started

    @property
    def ran(self) -> list[str]:
        """What the trainer was started with, run by run."""
        file = self.plugin / "ran"
        return file.read_text().splitlines() if file.exists() else []

    @property
    def study(self) -> Path:
        (folder,) = self.folder.glob("madlite_runs/study-*")
        return folder

    def report(self) -> dict:
        return json.loads((self.study / "study.json").read_text())


@pytest.fixture
def tuned(tmp_path) -> Tuned:
    return Tuned(tmp_path / "mad", tmp_path / "site")


def test_the_known_optimum_is_found_confirmed_and_written_as_a_recipe(tuned: Tuned):
    done = tuned.tune("--set", "lr=0.5")
    assert done.returncode == 0, done.stdout + done.stderr
    report = tuned.report()
    assert report["best"]["varied"] == {"micro_batch": 5} and report["confirmed"], done.stdout
    assert report["best"]["ratio"] == pytest.approx((5 / 6) / (2 / 3), rel=0.002)
    # 30 steps are the card's: results with a row each, two of the best with the global batch kept;
    # all others are short and have none
    full = [line for line in tuned.ran if line.startswith("30 ")]
    assert len(tuned.rows) == len(full) < len(tuned.ran) <= 14
    assert "out of memory" in done.stdout and "no such kernel" in done.stdout
    assert "fastest with the default's global batch of 2: checkpointing=none: +5.00 % (97 % interval" in done.stdout
    assert "fastest with another one, of 5: micro_batch=5: +25.0" in done.stdout
    page = (tuned.study / "tune.html").read_text()
    assert "<svg" in page and "micro_batch=5" in page and "http" not in page.partition("<body>")[2]
    recipe = tomli.loads((tuned.study / "recipe.toml").read_text())["recipe"]
    assert (recipe["tag"], recipe["backend"]) == ("fake_model", "fake")
    assert recipe["set"]["micro_batch"] == 5 and recipe["set"]["lr"] == 0.5
    again = tuned.madlite("run", "--recipe-file", str(tuned.study / "recipe.toml"), "--runtime", "host")
    assert again.returncode == 0, again.stdout + again.stderr
    assert tuned.ran[-1] == "30 5 full plain"
    listed = tuned.madlite("runs", "--of", report["id"])
    assert listed.returncode == 0 and "SUCCESS, short" in listed.stdout, listed.stdout + listed.stderr
    for words in ("of 5: micro_batch=5: +25.0", "stopped, the gain is confirmed", "madlite run --recipe-file "):
        assert words in listed.stdout, listed.stdout
    tuned.assert_nothing_left()


def assert_profiled_once(tuned: Tuned, said: str) -> None:
    """The default's first run alone is profiled; the best is found all the same, and its recipe profiles nothing."""
    first, *others = tuned.ran
    assert first == "35 2 full plain" and not [line for line in others if line.startswith("35 ")]
    assert said.count("note: no profile: ") == 1, "it trains without torch"
    assert tuned.report()["best"]["varied"] == {"micro_batch": 5} and tuned.report()["confirmed"], said
    assert "profile" not in tomli.loads((tuned.study / "recipe.toml").read_text())["recipe"]["set"]


def test_a_kill_in_the_middle_loses_nothing_and_its_time_counts_and_resume_repeats_no_run(tuned: Tuned):
    started = tuned.start_at("5 full plain")
    end(started, signal.SIGKILL)
    before = tuned.ran
    (tuned.plugin / "wait").unlink()
    other = tuned.tune("--resume", "--set", "lr=0.5")
    assert other.returncode == 4 and "another plan of fake_model" in other.stderr, other.stderr

    (log,) = (log for log in tuned.folder.glob("madlite_runs/*/run.log") if not (log.parent / "record.json").exists())
    an_hour_later = log.stat().st_mtime + 3600
    os.utime(log, (an_hour_later, an_hour_later))  # it was killed after an hour
    done = tuned.tune("--resume", "--minutes", "30")
    assert done.returncode == 0 and tuned.ran == before, done.stdout + done.stderr
    assert " of the budget went into runs that were cut off" in done.stdout, done.stdout

    done = tuned.tune("--resume", "--minutes", "70")
    assert done.returncode == 0, done.stdout + done.stderr
    assert tuned.report()["spent_s"] > 3600
    assert tuned.report()["best"]["varied"] == {"micro_batch": 5}
    after = tuned.ran[len(before) :]
    assert after[0] == before[-1], "the run that was cut off comes first"
    short = [line for line in (*before[:-1], *after) if not line.startswith("30 ")]
    assert len(set(short)) == len(short), "no short run was made twice"
    assert f"goes on after {len(before) - 1} runs" in done.stdout
    tuned.assert_nothing_left()


def test_a_run_that_the_machine_ended_tells_nothing_of_its_configuration_and_the_first_alone_is_profiled(tuned: Tuned):
    (tuned.plugin / "hub").write_text("5 full plain")
    first = tuned.tune("--profile")
    assert first.returncode == 3, first.stdout + first.stderr
    assert "stopped, the last run was ended by what is not its configuration's" in first.stdout
    assert (
        " goes on, and --minutes" in first.stdout
        and "micro_batch=5" not in first.stdout.partition("configuration  ")[2]
    )
    (tuned.plugin / "hub").unlink()
    done = tuned.madlite("tune", "--resume")
    assert done.returncode == 0, done.stdout + done.stderr
    assert_profiled_once(tuned, first.stdout + done.stdout)


def test_ctrl_c_prints_the_best_so_far(tuned: Tuned):
    started = tuned.start_at("5 full plain")
    code, out = end(started, signal.SIGINT)
    assert code == 130, out
    assert "configuration" in out and "tune.html" in out and (tuned.study / "recipe.toml").exists(), out
    took_s = [one["durations_s"]["total"] for one in tuned.records()]
    assert tuned.report()["spent_s"] == pytest.approx(sum(took_s)), "that of the run that was interrupted, too"
    tuned.assert_nothing_left()


def test_what_the_user_fixes_is_left_alone_and_a_default_that_fails_ends_it(tuned: Tuned):
    dry = tuned.tune("--dry-run", "--set", "checkpointing=full")
    assert dry.returncode == 0 and "checkpointing  left alone: --set fixes it" in dry.stdout, dry.stdout + dry.stderr
    assert not (tuned.folder / "madlite_runs").exists() and tuned.ran == []
    done = tuned.tune("--set", "micro_batch=50")
    assert done.returncode == 3 and "the default itself failed (out of memory" in done.stdout, done.stdout
    assert [row["status"] for row in tuned.rows] == ["FAILURE"] and len(tuned.ran) == 1


def test_what_cannot_be_tuned_is_refused_in_a_sentence(tuned: Tuned):
    for words, said in {
        ("--resume",): "there is no tune to resume in this folder",
        ("--minutes", "0"): "invalid value for '--minutes'",
        ("--runs", "none"): "invalid value for '--runs'",
        ("--keep-alive",): "no such option '--keep-alive'",
        ("--machine", "8xMI300X"): "--machine without --dry-run",
        ("--keep-global-batch",): "global_batch",
        tuple(f"--set={one}" for one in ("micro_batch=1", "checkpointing=full", "kernel=plain")): "left to tune",
    }.items():
        done = tuned.tune(*words)
        assert (done.returncode, said in done.stderr) == (4, True), (words, done.stdout, done.stderr)
    assert tuned.ran == [] and not (tuned.folder / "perf.csv").exists()
