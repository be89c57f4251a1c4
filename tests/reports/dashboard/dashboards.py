"""A dashboard as a process of its own, as a user starts it."""

from __future__ import annotations

import os
import re
import signal
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests import commands

LIMIT_S = 240.0  # for an answer: its low priority leaves a dashboard little of a busy machine
PLAIN = {
    "timeout": LIMIT_S,
    "verify": ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
}  # else each request reads all authorities


class Dashboard:
    """A running one: its address with and without the token, and its process."""

    def __init__(self, place: Path, *args: str) -> None:
        words = ("dashboard", "--port", "0", "--dir", str(place), *args)
        self.process = commands.start(words, Path.cwd(), {**os.environ, "PYTHONUNBUFFERED": "1"})
        self.said = ""
        found = None
        while found is None and (line := self.process.stdout.readline()):
            self.said += line
            found = re.search(r"(http://\S+:(\d+))/(?:\?token=(\w+))?", line)
        assert found, self.said
        self.printed, self.url, self.port = found[0], found[1], int(found[2])
        self.headers = {"authorization": f"Bearer {found[3]}"} if found[3] else {}

    def get(self, path: str, **options: object) -> httpx.Response:
        """Return what a script that has the token gets."""
        return httpx.get(self.url + path, headers=self.headers, **PLAIN, **options)

    def end(self, number: int = signal.SIGINT) -> int:
        """Send a signal and return how it ended, what it printed in `said`."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        rest, _ = self.process.communicate(timeout=LIMIT_S)
        self.said += rest
        return self.process.returncode


@contextmanager
def dashboard(place: Path, *args: str) -> Iterator[Dashboard]:
    """Yield a dashboard of a working folder."""
    started = Dashboard(place, *args)
    try:
        yield started
    finally:
        started.end()
    assert "Traceback" not in started.said, started.said
