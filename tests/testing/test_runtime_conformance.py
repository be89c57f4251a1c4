"""The tests that an author of a runtime has: a good one passes, and of each broken one they say what is wrong."""

from __future__ import annotations

import os
import re
import subprocess
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from madlite.machine.processes import FOLDER_MARK
from madlite.testing import RuntimeConformance
from tests import commands
from tests.testing.flawed_runtimes import ALL

pytestmark = pytest.mark.host


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Have the plugin of flawed runtimes installed for commands, and end what a broken one leaves running."""
    info = tmp_path / "site/flawed_runtimes-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: flawed-runtimes\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[madlite]\nflawed_runtimes = tests.testing.flawed_runtimes\n")
    monkeypatch.setenv("PYTHONPATH", f"{info.parent}{os.pathsep}{Path(__file__).parents[2]}")
    yield info.parent
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(FOLDER_MARK, "").startswith(f"{tmp_path}/"):
                process.kill()


@pytest.mark.usefixtures("installed")
class TestGood(RuntimeConformance):
    runtime = ALL["good"]()


@pytest.fixture
def forked(installed, monkeypatch):
    """Fork the kit's commands, which costs half of what their start does; the tests above start them."""
    monkeypatch.delenv("PYTHONPATH")

    def start(argv, cwd, **streams):
        assert argv[1:3] == ["-m", "madlite"] and streams.pop("text") and streams == {"stdout": -1, "stderr": -2}
        first = ("tests.testing.flawed_runtimes.install", str(installed))
        return commands.start(argv[3:], cwd, os.environ, first=first)

    others = {name: getattr(subprocess, name) for name in ("DEVNULL", "STDOUT", "TimeoutExpired", "run")}
    monkeypatch.setattr("madlite.testing.runtimes.subprocess", SimpleNamespace(Popen=start, **others))


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize(
    ("name", "test", "what"),
    [
        ("unusable", "start", "it cannot be used here: .*its engine is not there"),
        ("bare", "start", "a script lacks a file or a variable"),
        ("late", "stream", "a line did not come while the action ran"),
        ("killing", "stream", "a stop is INT to the action's process group"),
        ("forgiving", "exit", "a script's exit code is 3"),
        ("losing", "exit", "a part of the output is lost"),
        ("deaf", "stop", "the run has not ended after [0-9]+ s"),
        ("leaving", "leftovers", "a process of the run goes on"),
    ],
)
def test_a_flaw_is_told(tmp_path, name, test, what):
    # of these two the limit is what finds the flaw, and a busy machine may need a longer one until the run has begun
    for limit_s in {"late": (8.0, 60.0), "deaf": (20.0, 100.0)}.get(name, (240.0,)):
        kind = type("Broken", (RuntimeConformance,), {"runtime": ALL[name](), "limit_s": limit_s})
        folder = tmp_path / f"workspace{limit_s:g}"
        folder.mkdir()
        with pytest.raises(AssertionError) as told:
            getattr(kind(), f"test_{test}")(folder)
        if re.search(what, str(told.value)):
            return
    raise AssertionError(f"{what!r} was not told: {told.value}")


def test_a_missing_member_is_told(tmp_path):
    kind = type("Broken", (RuntimeConformance,), {"runtime": type("Bad", (ALL["good"],), {"cancel": None})()})
    with pytest.raises(AssertionError, match=r"it has no method cancel: def cancel\(self, handle\)"):
        kind().test_start(tmp_path)
