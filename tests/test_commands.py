"""What tests start as `madlite` is a process like one that Python was started for."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests import commands
from tests.killing import KILL_AT
from tests.waiting import wait_until

pytestmark = pytest.mark.host


def card(folder: Path, script: str) -> None:
    (folder / "run.sh").write_text(f"{script}\n")
    (folder / "models.json").write_text('[{"name": "a", "scripts": "run.sh", "tags": [], "runtimes": ["host"]}]')


def test_it_prints_and_ends_as_a_python_that_was_started(tmp_path: Path) -> None:
    for words in (("--version",), ("discover", "--tags", "demo"), ("no-command",)):
        forked = commands.run(words, tmp_path, os.environ)
        started = commands.run(words, tmp_path, os.environ, before=("env",))
        assert (forked.returncode, forked.stdout) == (started.returncode, started.stdout)
        assert forked.stderr == started.stderr


def test_it_has_a_folder_and_an_environment_of_its_own(tmp_path: Path) -> None:
    card(tmp_path, "echo performance: $NUMBER tok")
    environ = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME")}
    for number in ("7", "8"):
        done = commands.run(("run", "--tags", "a"), tmp_path, {**environ, "NUMBER": number})
        assert done.returncode == 0 and f"{number} tok" in done.stdout, done.stdout + done.stderr


def test_a_signal_reaches_it_and_its_end_is_known(tmp_path: Path) -> None:
    card(tmp_path, "touch begun; sleep 300")
    started = commands.start(("run", "--tags", "a"), tmp_path, os.environ)
    wait_until(lambda: [*tmp_path.rglob("begun")], "the run")
    assert started.poll() is None and os.getsid(started.pid) == started.pid
    started.send_signal(signal.SIGINT)
    out, _ = started.communicate()
    assert started.returncode == 130 and "FAILURE" in out


def test_what_only_the_start_of_python_reads_starts_one(tmp_path: Path) -> None:
    started = commands.start(("--version",), tmp_path, {**os.environ, "PYTHONPATH": str(tmp_path)})
    started.communicate()
    assert isinstance(started, subprocess.Popen) and started.returncode == 0


@pytest.mark.parametrize("target", ["madlite.store.folder.RunFolder.create", "madlite.run.planning.plan_runs"])
def test_it_is_killed_at_a_call(tmp_path: Path, target: str) -> None:
    card(tmp_path, "true")
    done = commands.run(("run", "--tags", "a"), tmp_path, os.environ, first=(KILL_AT, target, "before"))
    assert done.returncode == -signal.SIGKILL, done.stdout + done.stderr
