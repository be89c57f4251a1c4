"""When the row of a job without a result is written: a moment after its end, for its files may come late."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from madlite.cli.main import call
from madlite.jobs import job
from madlite.jobs.job import JobTracker
from tests.csv_rows import csv_rows

pytestmark = pytest.mark.host


@pytest.fixture
def folder(tmp_path: Path, monkeypatch) -> Path:
    """A working folder with two submitted jobs, of a Slurm that is stand-ins of its commands."""
    (tmp_path / "bin").mkdir()
    for name in ("scontrol", "squeue", "scancel", "sinfo"):
        command(tmp_path, name, "exit 0")
    command(tmp_path, "sbatch", "echo 77")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(job, "GRACE_S", 0.5)
    (tmp_path / "run.sh").write_text("echo performance: 1 tok\n")
    card = {"name": "a", "scripts": "run.sh", "tags": [], "runtimes": ["host"], "n_gpus": "0"}
    (tmp_path / "models.json").write_text(json.dumps([card]))
    (tmp_path / "cluster.toml").write_text("[clusters.lab.slurm]\nexclusive = false\n")
    assert call(["run", "--cluster", "lab", "--tags", "a", "--repeat", "2", "--detach"]) == 0
    return tmp_path


def command(folder: Path, name: str, script: str) -> None:
    file = folder / "bin" / name
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)


def test_a_job_that_has_just_ended_is_given_a_moment(folder: Path, monkeypatch):
    lines = "".join(f"77_{n}|FAILED|1:0|n1|1:0\\n" for n in (1, 2))
    command(folder, "sacct", f"echo asked >>{folder}/asked; printf '{lines}'")
    real, seen = JobTracker._end, []
    monkeypatch.setattr(JobTracker, "_end", lambda *args: (seen.append(real(*args)), seen[-1])[1])
    assert call(["runs", "collect"]) == 3
    assert seen[0] is None and len(csv_rows(folder / "perf.csv")) == 2
    assert (folder / "asked").read_text() == "asked\n" * 2, "both by one question, and once more after the moment"
    assert json.loads((folder / "perf_entry.json").read_text())["status"] == "FAILURE"
    assert call(["runs", "collect"]) == 0 and len(csv_rows(folder / "perf.csv")) == 2


def test_a_job_that_nobody_knows_is_asked_about_twice(folder: Path, capfd):
    lines = "".join(f"77_{n}|NODE_FAIL|1:0|n1|1:0\\n" for n in (1, 2))
    command(folder, "sacct", f"[ ! -e {folder}/asked ] || printf '{lines}'; : >{folder}/asked")
    assert call(["runs", "collect"]) == 3
    assert capfd.readouterr().out.count("[node_failed]") == 2
