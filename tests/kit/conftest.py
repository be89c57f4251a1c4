"""Files of a good backend, as the tests of the kit have them."""

import sys

import pytest

from tests.kit import world
from tests.testing.conftest import place

__all__ = ["place"]


@pytest.fixture(autouse=True)
def traced_hook(monkeypatch):
    """Let debuggers and coverage see the audit hook, which Python hides from them unless it says this."""
    if sys.gettrace() is not None:
        monkeypatch.setattr(world._note, "__cantrace__", True, raising=False)
