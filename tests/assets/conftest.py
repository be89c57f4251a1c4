from __future__ import annotations

import pytest

from tests.assets.hub_server import Hub, hub_server


@pytest.fixture
def hub() -> Hub:
    with hub_server() as hub:
        yield hub
