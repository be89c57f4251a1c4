from __future__ import annotations

import pytest

from madlite.assets import web
from tests.assets.hub_server import Hub, hub_server


@pytest.fixture
def hub() -> Hub:
    with hub_server() as hub:
        yield hub


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(web, "FIRST_S", 0.0)
