"""One of several commands at a time fetches a thing; the others wait and find it."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from madlite.safe_files import Folder

_TURN_S = 0.2


class Stopped(Exception):
    """The command is being ended."""


@contextmanager
def held(root: Path, name: str, stop: threading.Event, waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold a lock file below a folder, which is made, while the block runs.

    `waiting` is called once where another holds it.  It is the lock that huggingface_hub takes as well (flock of
    filelock).

    Raises:
        Stopped: `stop` was set before it was free.
        OSError: the file cannot be made, or a link is in its place or on the way.
    """
    root.mkdir(parents=True, exist_ok=True)
    *folders, last = name.split("/")
    with Folder.open(root) as top, top.below("/".join(folders), make=True) if folders else nullcontext(top) as folder:
        fd = _take(folder, last, stop, waiting)
        try:
            yield
        finally:
            os.close(fd)


def _take(folder: Folder, name: str, stop: threading.Event, waiting: Callable[[], None]) -> int:
    told = False
    while True:
        fd = folder.open_lock(name)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_named(folder, name, fd):
                return fd
        except BlockingIOError:
            if not told:
                waiting()
                told = True
        os.close(fd)
        if stop.wait(_TURN_S):
            raise Stopped


def _is_named(folder: Folder, name: str, fd: int) -> bool:
    """Say whether the name is still the locked file's: filelock may have removed it meanwhile."""
    try:
        return os.path.samestat(folder.status(name), os.fstat(fd))
    except FileNotFoundError:
        return False
