"""Fail points: each change of a working folder is an event, and a command can be made to end at one of them.

An event's name is the call and the file, ids and times left out: `write madlite_runs/ID/record.json`.  So the same
command has the same events, and each kind of them can be tried.  Nothing of this is in madlite itself.
"""

from __future__ import annotations

import errno
import os
import re
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

Fault = Literal["kill", "torn", "full"]
_ID = re.compile(r"\d{8}T\d{6}\d*-(?:[\w.]+-)*?[0-9a-f]{6,12}")
_VARIES = re.compile(r"[0-9a-f]{8,}|\d+")
_WRITES = frozenset(("write", "pwrite", "writev", "sendfile", "ftruncate", "posix_fallocate"))
_OF_FD = ("write", "pwrite", "writev", "fsync", "ftruncate", "posix_fallocate")
_OF_PATHS = ("rename", "replace", "link", "symlink", "unlink", "remove", "mkdir", "rmdir")


ROOM_AFTER = 200  # refused calls: far more than what does not wait for room asks for


class Point(NamedTuple):
    """The `at`-th event of a name, and what is done there: a kill after or amid it, or no space from it on.

    A command that waits for space, as one that follows jobs does, gets it at last.
    """

    fault: Fault
    name: str
    at: int

    def __str__(self) -> str:
        return f"{self.fault} at {self.name} ({self.at})"


class Events:
    """The events of this process below a folder, in order; at a `point` the process ends or its disk is full."""

    def __init__(self, folder: Path, point: Point | None, seen: Callable[[str], None]) -> None:
        self._folder, self._point, self._seen = str(folder), point, seen
        self._counts: Counter[str] = Counter()
        self._full, self._refused = False, 0
        self._pid = os.getpid()

    def install(self) -> None:
        """Put this between the program and the calls of the system that change files."""
        for name in (*_OF_FD, *_OF_PATHS):
            setattr(os, name, self._between(name, getattr(os, name)))
        os.open = self._opened(os.open)

    def _opened(self, real: Callable[..., int]) -> Callable[..., int]:
        def open_file(path: Any, flags: int, *args: Any, **named: Any) -> int:
            inside = self._path_of(path, named) if flags & os.O_CREAT and os.getpid() == self._pid else None
            if inside is None or os.path.lexists(self._real_path(path, named)):
                return real(path, flags, *args, **named)
            fault = self._fault(f"create {inside}")
            self._full = self._full or fault == "full"
            self._take_room()
            fd = real(path, flags, *args, **named)
            if fault == "kill":
                os.kill(self._pid, signal.SIGKILL)
            return fd

        return open_file

    def _between(self, call: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def change(first: Any, *args: Any, **named: Any) -> Any:
            path = self._path_of(args[0] if call in ("rename", "replace", "link", "symlink") else first, named)
            if path is None or os.getpid() != self._pid:
                return real(first, *args, **named)
            if call in _WRITES:
                self._take_room()
            fault = self._fault(f"{call} {path}")
            if fault == "full":
                self._full = True
                if call in _WRITES:
                    self._take_room()
            if fault == "torn":
                real(first, bytes(args[0])[: len(args[0]) // 2], *args[1:], **named)
            else:
                done = real(first, *args, **named)
            if fault in ("kill", "torn"):
                os.kill(self._pid, signal.SIGKILL)
            return done

        return change

    def _take_room(self) -> None:
        """Raise the error of a disk that is full where it is."""
        if self._full:
            self._refused += 1
            self._full = self._refused < ROOM_AFTER
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _fault(self, name: str) -> Fault | None:
        self._counts[name] += 1
        self._seen(name)
        point = self._point
        return point.fault if point is not None and (name, self._counts[name]) == (point.name, point.at) else None

    def _path_of(self, what: Any, named: dict[str, Any]) -> str | None:
        """Return a path below the folder by its events' name, None of another."""
        try:
            path = self._real_path(what, named)
        except OSError:
            return None
        if not path.startswith(f"{self._folder}/"):
            return None
        return _VARIES.sub("N", _ID.sub("ID", path[len(self._folder) + 1 :]))

    @staticmethod
    def _real_path(what: Any, named: dict[str, Any]) -> str:
        if isinstance(what, int):
            return os.readlink(f"/proc/self/fd/{what}")
        fd = next((named[key] for key in ("dst_dir_fd", "dir_fd") if named.get(key) is not None), None)
        base = os.readlink(f"/proc/self/fd/{fd}") if fd is not None else os.getcwd()
        return os.path.join(base, os.fsdecode(what))


def install(folder: str, report: str, fault: Fault | Literal[""] = "", name: str = "", at: str = "0") -> None:
    """Have this process note its events in a file, and end or find no space at a point, where there is one."""
    events, write = os.open(report, os.O_WRONLY | os.O_CREAT | os.O_APPEND), os.write

    def seen(event: str) -> None:
        write(events, f"{event}\n".encode())

    Events(Path(folder), Point(fault, name, int(at)) if fault else None, seen).install()


def points(names: list[str]) -> list[Point]:
    """Return the points to try of a command's events: of each name the first and the last one."""
    found = []
    for name, count in Counter(names).items():
        call = name.partition(" ")[0]
        faults: tuple[Fault, ...] = {
            "write": ("kill", "torn", "full"),
            "pwrite": ("kill", "torn", "full"),
            "create": ("kill", "full"),
        }.get(call, ("kill",))
        found += [Point(fault, name, at) for fault in faults for at in sorted({1, count})]
    return found
