"""The runtime of docs/runtimes.md, typed off the page, installed elsewhere, tested by its own test and run."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.install.packages import install, type_off

pytestmark = [pytest.mark.install, pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")]
PAGE = Path(__file__).parents[2] / "docs" / "runtimes.md"


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """The package of the page, as its author has it."""
    root = tmp_path_factory.mktemp("rootfs-runtime")
    assert type_off(PAGE, root) == ["pyproject.toml", "rootfs_runtime/__init__.py", "tests/test_rootfs.py"]
    return root


@pytest.fixture(scope="module")
def environ(source, tmp_path_factory):
    """An environment in which the package is installed."""
    return {**os.environ, "PYTHONPATH": str(install(source, tmp_path_factory.mktemp("site")))}


@pytest.mark.full
def test_its_own_test_passes(source, environ):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"]
    done = subprocess.run(command, cwd=source, env=environ, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0 and "5 passed" in done.stdout, done.stdout + done.stderr


def test_a_card_runs_on_it_and_leaves_the_image_as_it_was(environ, tmp_path):
    (tmp_path / "run.sh").write_text("touch /left-in-the-image && ls / > seen.txt\necho performance: 12.5 tokens/s\n")
    card = {"name": "small", "scripts": "run.sh", "n_gpus": "0", "tags": ["t"], "args": "", "image": "/"}
    (tmp_path / "models.json").write_text(json.dumps([card]))
    command = [sys.executable, "-m", "madlite", "run", "--tags", "t", "--runtime", "rootfs"]
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = csv.DictReader((tmp_path / "perf.csv").open(newline=""))
    assert (row["status"], row["performance"], row["deployment_type"]) == ("SUCCESS", "12.5", "local")
    (seen,) = tmp_path.glob("madlite_runs/*/rootfs/changes/left-in-the-image")
    assert seen.exists() and not Path("/left-in-the-image").exists()
    assert (
        "rootfs"
        in subprocess.run([*command[:3], "doctor", "--plugins"], env=environ, capture_output=True, text=True).stdout
    )
