"""Tests wait until something is so, and fail where it does not come about."""

from __future__ import annotations

import time
from collections.abc import Callable

WAIT_S = 120.0


def wait_until(true: Callable[[], object], what: str = "what was waited for") -> None:
    """Wait until a function returns something true.

    Raises:
        AssertionError: it did not in two minutes; says what was waited for.
    """
    deadline = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < deadline, f"{what} did not come about"
        time.sleep(0.01)
