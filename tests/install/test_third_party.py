"""The backend of docs/plugins.md, typed off the page, built, installed elsewhere and run."""

from __future__ import annotations

import csv
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.install.packages import install, type_off

pytestmark = pytest.mark.install
PAGE = Path(__file__).parents[2] / "docs" / "plugins.md"


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """The package of the page, as its author has it."""
    root = tmp_path_factory.mktemp("tiny-backend")
    assert type_off(PAGE, root) == [
        "pyproject.toml",
        "tiny_backend/__init__.py",
        "tiny_backend/train.py",
        "tiny_backend/templates/tiny/run.sh.j2",
        "tests/test_tiny.py",
        "tests/tiny.log",
        "tiny.md",
    ]
    return root


@pytest.fixture(scope="module")
def site(source, tmp_path_factory):
    """The package, installed into a folder of its own."""
    return install(source, tmp_path_factory.mktemp("site"))


def madlite(site, cwd, *args):
    env = {**os.environ, "PYTHONPATH": str(site)}
    return subprocess.run(
        [sys.executable, "-m", "madlite", *args], cwd=cwd, env=env, capture_output=True, text=True, timeout=240
    )


def test_its_card_is_found_and_run(site, tmp_path):
    done = madlite(site, tmp_path, "run", "--tags", "tiny_model:lr=0.01")
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = csv.DictReader((tmp_path / "perf.csv").open())
    assert (row["model"], row["status"], row["metric"]) == ("tiny_model", "SUCCESS", "tokens_per_s_per_gpu")
    assert row["performance"] == "2013"  # the median of steps 6 to 20
    assert (row["precision"], row["batch_size"]) == ("BF16", "2")
    (log,) = tmp_path.glob("madlite_runs/*/run.log")
    assert "learning rate 0.01" in log.read_text()


def test_what_its_template_does_not_use_is_refused(site, tmp_path):
    for option, value in (("--precision", "FP8"), ("--batch-size", "4")):  # others: engine/test_effects.py
        done = madlite(site, tmp_path, "run", "--tags", "tiny_model", option, value)
        assert done.returncode == 4 and f"error: {option} {value}" in done.stderr, done.stderr
    assert not (tmp_path / "perf.csv").exists()


def kit(source, site):
    """Run the package's own tests."""
    env = {**os.environ, "PYTHONPATH": str(site)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"]
    return subprocess.run(command, cwd=source, env=env, capture_output=True, text=True, timeout=240)


def test_it_conforms_and_its_tests_say_so(source, site):
    done = kit(source, site)
    assert done.returncode == 0 and "15 passed" in done.stdout, done.stdout + done.stderr


def test_what_it_breaks_its_tests_say_with_what_to_do(source, site, tmp_path):
    broken = tmp_path / "tiny"
    shutil.copytree(source, broken)
    (broken / "tiny.md").write_text("Backend tiny.")
    (broken / "tests/tiny.log").write_text("step=1 tps=2,001 loss=5.000\n")
    done = kit(broken, site)
    assert done.returncode == 1 and "2 failed, 13 passed" in done.stdout, done.stdout + done.stderr
    assert "log tiny.log: 1 training steps were read, 3 are stated (compare the pattern" in done.stdout
    assert "setting lr: tiny.md does not name it (write `lr` and what it means into tiny.md)" in done.stdout


def test_it_is_listed_with_its_version_and_can_be_switched_off(site, tmp_path):
    listed = madlite(site, tmp_path, "doctor", "--plugins").stdout
    assert "tiny  (tiny-backend 1.0)" in listed
    done = madlite(site, tmp_path, "run", "--no-plugins", "--tags", "tiny_model")
    assert done.returncode == 4 and "tiny_model" in done.stderr


def test_broken_it_is_named_once_and_the_rest_works(site, tmp_path):
    broken = tmp_path / "broken"
    info = broken / "broken_backend-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-backend\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[madlite]\nbroken = broken_backend\n")
    (broken / "broken_backend.py").write_text("import nothing_of_that_name\n")
    env = {**os.environ, "PYTHONPATH": f"{site}:{broken}"}
    command = [sys.executable, "-m", "madlite", "run", "--tags", "tiny_model"]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0
    assert done.stderr.count("broken-backend") == 1 and "nothing_of_that_name" in done.stderr
    assert "Traceback" not in done.stderr + done.stdout
