"""The oldest and the newest client of Kubernetes that pyproject.toml allows run what runs with the installed one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.engine_fixture import give_up

pytestmark = [pytest.mark.install, pytest.mark.timeout(900)]  # for a download, and a busy machine
ROOT = Path(__file__).parents[2]
INSTALLED = int(version("kubernetes").partition(".")[0])  # with which all tests run
((OLDEST, ABOVE),) = {*re.findall(r'"kubernetes>=(\d+),<(\d+)"', (ROOT / "pyproject.toml").read_text())}
RUN = """
import sys, kubernetes, pytest
assert kubernetes.__version__.startswith(sys.argv[1]), kubernetes.__version__
sys.exit(pytest.main(sys.argv[2:]))
"""
USES = (  # create, get, list, delete, logs, patches; watches; a refusal; a busy server; a new login
    "test_actions_follow_each_other_and_each_has_its_own_output",
    "test_pods_are_watched_and_a_watch_that_breaks_or_is_too_old_loses_nothing",
    "test_a_quota_on_pods_is_told",
    "test_a_server_that_asks_to_wait_is_asked_again_then",
    "test_a_token_whose_time_is_over_is_fetched_anew",
    "test_a_handle_cancels_and_reports_from_another_process",
)


@pytest.mark.parametrize("release", [one for one in (int(OLDEST), int(ABOVE) - 1) if one != INSTALLED])
def test_a_client_of_the_first_and_of_the_last_release_is_used_alike(release, tmp_path):
    """By its public interface, then: a private one changes from one release to the next."""
    site = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", "--target", str(site)]
    made = subprocess.run([*pip, f"kubernetes=={release}.*"], capture_output=True, text=True)
    if made.returncode and "from versions: none" in made.stderr:
        give_up("no index of packages can be reached")
    assert made.returncode == 0, made.stderr
    tests = [f"{Path(__file__).with_name('test_session.py')}::{name}" for name in USES]
    command = [
        sys.executable,
        "-c",
        RUN,
        f"{release}.",
        "-q",
        "-n",
        "0",
        "-p",
        "no:cacheprovider",
        "-m",
        "host",
        *tests,
    ]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(site)}, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
