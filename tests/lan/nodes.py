"""Starts the machines of the test's network, and ends them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

SERVER = Path(__file__).with_name("node.py")


@contextmanager
def nodes(home: Path, count: int, *options: str) -> Iterator[list[str]]:
    """Yield the addresses of so many nodes, of servers with these options."""
    with ExitStack() as ended:
        started = [_start(home / f"node{number}", options, ended) for number in range(count)]
        yield [f"127.0.0.1:{server.stdout.readline().decode().strip()}" for server in started]


def _start(home: Path, options: Sequence[str], ended: ExitStack) -> subprocess.Popen[bytes]:
    command = [sys.executable, str(SERVER), str(home), *options]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    ended.callback(server.wait, 60)
    ended.callback(server.stdin.close)  # it ends once nobody holds its input
    return server
