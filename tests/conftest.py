"""Fixtures of all tests."""

from __future__ import annotations

import signal

import pytest

from tests.engine_fixture import base_image, docker_environ, engine

__all__ = ["base_image", "docker_environ", "engine"]

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
