"""Fixtures of all tests."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.engine_fixture import base_image, docker_environ, engine

__all__ = ["base_image", "docker_environ", "engine"]

settings.register_profile("any machine", deadline=None)  # speed is measured in benchmarks/
settings.load_profile("any machine")

FIRST_START_LIMIT_S = 900  # the first engine test of a machine makes a base image


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("engine"):
            item.add_marker(pytest.mark.timeout(FIRST_START_LIMIT_S))


def pytest_configure() -> None:
    """Undo what a background job or nohup leaves ignored: every process that a test starts would inherit it."""
    for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, usual)


@pytest.fixture(autouse=True, scope="session")
def no_waiting_for_the_disk() -> Iterator[None]:
    """Leave bytes to the system's own time: only a loss of power tells the difference, and it costs seconds in all."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "fsync", lambda fd: None)
        yield
