"""A file that the user named for what madlite writes.

A plain one is replaced as a whole, links followed: a reader sees the old text or the new one, and of two writers the
last one wins.  Into a pipe, a terminal or `/dev/null` the text goes as it is; none of them becomes a file.

A workload can lay links and devices in the working folder: a link that leads out of it, or elsewhere out of its own
folder, is not followed, and a device in it is not written to.
"""

from __future__ import annotations

import errno
import os
import shlex
import stat
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from madlite.errors import UsageProblem
from madlite.results.locked import outside, write_whole

_SCREEN = (1, 2)
_OF_SYSTEM = (Path("/dev"), Path("/dev/fd"), Path("/proc/self/fd"))  # whose links the system lays


def check_writable(path: Path, is_such: Callable[[Path], bool] = lambda path: False) -> None:
    """Find out before hours of work that a file cannot be written; a link out is followed to a file that `is_such`.

    Raises:
        UsageProblem: it is neither a plain file nor a pipe or the like, a link leads out to it, or its folder is not
            ours to write in.
    """
    target = _target(path, is_such)
    if target is not None and (not target.parent.is_dir() or not os.access(target.parent, os.W_OK | os.X_OK)):
        raise _cannot(path, f"{target.parent} is no folder that this user may write in")


def write_named(path: Path, text: str, is_such: Callable[[Path], bool] = lambda path: False) -> None:
    """Write a file; bytes of the command line that are no UTF-8 are spelled out.

    Raises:
        UsageProblem: as `check_writable`, or it cannot be written; a plain file is as it was.
    """
    data, target = text.encode("utf-8", "backslashreplace"), _target(path, is_such)
    try:
        if target is None:
            _pour(path, data)
        else:
            write_whole(target, data, mark=str(threading.get_native_id()))
    except OSError as error:
        nobody = target is None and error.errno == errno.ENXIO
        raise _cannot(path, "nobody reads it" if nobody else error.strerror or str(error)) from error


def _target(path: Path, is_such: Callable[[Path], bool]) -> Path | None:
    """Return the plain file to replace, there or not yet; None for what is written into."""
    target = Path(os.path.realpath(path))
    try:
        here = path.stat()
    except FileNotFoundError:
        _check_inside(path, is_such)
        return target
    except OSError as error:
        raise _cannot(path, error.strerror or str(error)) from error
    if _of_screen(here) is not None:
        return None
    if stat.S_ISDIR(here.st_mode):
        raise _cannot(path, "it is a folder")
    _check_inside(path, is_such)
    if stat.S_ISFIFO(here.st_mode) or (stat.S_ISCHR(here.st_mode) and not target.is_relative_to(Path.cwd())):
        return None
    of_kernel = target.parts[1:2] in (("proc",), ("sys",))
    if of_kernel or not stat.S_ISREG(here.st_mode) or not target.exists():  # a file can have lost its name
        raise _cannot(path, "it is no plain file")
    return target


def _check_inside(path: Path, is_such: Callable[[Path], bool]) -> None:
    target = outside(Path.cwd() / path, Path.cwd())
    if target is not None and path.parent not in _OF_SYSTEM and not is_such(path):
        what = f"{path} leads to {target} by a link, which is not followed"
        raise UsageProblem(what, f"name {shlex.quote(str(target))} itself, or rm {shlex.quote(str(path))}")


def _of_screen(here: os.stat_result) -> int | None:
    """Return which of our own outputs a file is: replacing it would leave what we say in a file without a name."""
    for fd in _SCREEN:
        with suppress(OSError):  # closed
            if os.path.samestat(here, os.fstat(fd)):
                return fd
    return None


def _pour(path: Path, data: bytes) -> None:
    fd = _of_screen(path.stat())
    if fd is None:  # without waiting for a reader, who may never come; a slow one is waited for
        fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        os.set_blocking(fd, True)
    else:
        fd = os.dup(fd)
    with os.fdopen(fd, "wb") as stream:
        stream.write(data)


def _cannot(path: Path, why: str) -> UsageProblem:
    return UsageProblem(f"{path} cannot be written: {why}", f"ls -ld {path.parent} {path}   or name another file")
