"""One of several commands at a time fetches a thing; the others wait and find it."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_TURN_S = 0.2


class Stopped(Exception):
    """The command is being ended."""


@contextmanager
def held(path: Path, stop: threading.Event, waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold a lock file while the block runs; `waiting` is called once where another holds it.

    It is the lock that huggingface_hub takes as well (flock of filelock).

    Raises:
        Stopped: `stop` was set before it was free.
        OSError: the file cannot be made.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    fd = _take(path, stop, waiting)
    try:
        yield
    finally:
        os.close(fd)


def _take(path: Path, stop: threading.Event, waiting: Callable[[], None]) -> int:
    told = False
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_named(path, fd):
                return fd
        except BlockingIOError:
            if not told:
                waiting()
                told = True
        os.close(fd)
        if stop.wait(_TURN_S):
            raise Stopped


def _is_named(path: Path, fd: int) -> bool:
    """Say whether the path still names the locked file: filelock may have removed it meanwhile."""
    try:
        return os.path.samestat(path.stat(), os.fstat(fd))
    except FileNotFoundError:
        return False
