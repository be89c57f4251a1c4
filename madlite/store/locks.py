"""Locks on files: one call of flock(2), which ends with the process that holds it, however that ends."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from madlite.files import Folder

QUERY_S = 2.0
"""A process that only looks whether a lock is held has it for a moment."""
_RETRY_S = 0.005
_TRIES = 10_000  # to lock a file that others remove meanwhile


def acquire(lock: int, limit_s: float | None = QUERY_S, *, shared: bool = False) -> None:
    """Lock an open file, within a time or, with None, whenever it is free.

    Raises:
        BlockingIOError: another process holds it.
        OSError: the file system has no locks.
    """
    how = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    if limit_s is None:
        return fcntl.flock(lock, how)
    until_s = time.monotonic() + limit_s
    while True:
        try:
            return fcntl.flock(lock, how | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until_s:
                raise
            time.sleep(_RETRY_S)


def release(lock: int) -> None:
    """Unlock and close a file: a process forked meanwhile, which has its descriptor too, does not keep the lock."""
    with suppress(OSError):
        fcntl.flock(lock, fcntl.LOCK_UN)
    os.close(lock)


def open_locked(
    folder: Folder, name: str, limit_s: float | None = QUERY_S, *, open_file: Callable[[Folder, str], int] | None = None
) -> int:
    """Return the descriptor of a lock file, made where there is none; who had it may have taken the file away.

    `open_file` opens it, where that is not `Folder.open_file`.

    Raises:
        OSError: as `acquire`, or it cannot be opened, or is taken away again and again.
    """
    for _ in range(_TRIES):
        try:
            lock = (open_file or Folder.open_file)(folder, name)
        except FileExistsError:  # made between two attempts of ours
            continue
        try:
            acquire(lock, limit_s)
            if os.path.samestat(os.fstat(lock), folder.status(name)):
                return lock
        except FileNotFoundError:
            pass
        except OSError:
            os.close(lock)
            raise
        os.close(lock)
    raise OSError(errno.ESTALE, "it comes and goes", name)


def lock_of(home: Folder, name: str) -> int:
    """Return the descriptor of an open folder's lock; where that cannot be had the folder is closed.

    Raises:
        OSError: as `open_locked`.
    """
    try:
        return open_locked(home, name)
    except OSError:
        home.close()
        raise


def remove_locked(folder: Folder, name: str, lock: int) -> None:
    """Take a lock file away, and release it."""
    folder.remove(name)  # while it is locked: nobody removes the file of the next one
    os.close(lock)


@contextmanager
def locked_file(folder: Folder, name: str, limit_s: float | None = None) -> Iterator[int]:
    """Hold the lock of a file of a folder, which is there only meanwhile; yield its descriptor.

    Raises:
        OSError: as `open_locked`.
    """
    lock = open_locked(folder, name, limit_s)
    try:
        yield lock
    finally:
        remove_locked(folder, name, lock)


def is_held(lock: int) -> bool:
    """Return whether another process holds the lock of an open file."""
    try:  # shared: two tests do not see each other as the holder, and an exclusive lock on NFS needs a writable file
        acquire(lock, 0, shared=True)
    except OSError:
        return True
    fcntl.flock(lock, fcntl.LOCK_UN)
    return False


def is_locked(path: Path, *, unknown: bool = False) -> bool:
    """Return whether a process holds a lock, False where the file is gone, `unknown` where it cannot be opened."""
    try:
        lock = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return unknown
    try:
        return is_held(lock)
    finally:
        os.close(lock)
