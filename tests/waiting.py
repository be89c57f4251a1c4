"""Tests start commands and wait until something is so, and fail where it does not come about."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

WAIT_S = 120.0


def wait_until(true: Callable[[], object], what: str = "what was waited for") -> None:
    """Wait until a function returns something true; between two calls as long as one takes, for some start a command.

    Raises:
        AssertionError: it did not in two minutes; says what was waited for.
    """
    deadline = (begun := time.monotonic()) + WAIT_S
    while not true():
        now = time.monotonic()
        assert now < deadline, f"{what} did not come about"
        time.sleep(min(max(0.01, now - begun), 1.0))
        begun = time.monotonic()


def start_session(argv: Sequence[str], folder: Path, environ: Mapping[str, str]) -> subprocess.Popen[str]:
    """Start a command in a session of its own, both of its outputs in one pipe, nothing to read."""
    return subprocess.Popen(
        argv,
        cwd=folder,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
