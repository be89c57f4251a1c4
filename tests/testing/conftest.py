"""Files of a good backend."""

from __future__ import annotations

import sys

import pytest

from madlite.testing import flaws
from tests.testing.good import write_files


@pytest.fixture
def place(tmp_path):
    """Return a folder with templates, log and page."""
    return write_files(tmp_path)


@pytest.fixture(autouse=True)
def traced_hook(monkeypatch):
    """Let debuggers and coverage see the audit hook, which Python hides from them unless it says this."""
    if sys.gettrace() is not None:
        monkeypatch.setattr(flaws._note, "__cantrace__", True, raising=False)
