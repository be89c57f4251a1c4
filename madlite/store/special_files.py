"""Files of a working folder that a container's root can leave there: setuid, setgid, device nodes.

Outside of the container they are a way to more rights, for whoever can start or read them.
"""

from __future__ import annotations

import os
import stat
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from madlite.model import Value
from madlite.store.folder import WORK

_MOST_ENTRIES, _LIMIT_S = 50_000, 1.0  # of one look, for a checkout may lie beside data sets
_MOST_NAMES = 3


class SpecialFile(Value, frozen=True):
    """A file with more rights than its content needs; `name` is relative to the folder that was looked through."""

    kind: str
    name: str
    uid: int


def special_files(folder: Path, since_ns: int = 0, run: Path | None = None) -> tuple[SpecialFile, ...]:
    """Return those whose inode has changed since a time, the nearest to the folder first.

    With `run` of all folders of runs only that one's files of the workload are looked at.  No link is followed and no
    other file system entered; after so many entries, or so long, it ends.
    """
    found = []
    ends_s = time.monotonic() + _LIMIT_S
    tops = [folder] if run is None else [folder, run / WORK]
    for count, (path, facts) in enumerate(_entries(tops, "" if run is None else str(run.parent))):
        if count >= _MOST_ENTRIES or time.monotonic() > ends_s:
            break
        if facts.st_ctime_ns >= since_ns and (kind := _kind(facts.st_mode)):
            found.append(SpecialFile(kind=kind, name=os.path.relpath(path, folder), uid=facts.st_uid))
    return tuple(found)


def left_text(found: Sequence[SpecialFile]) -> str:
    """Return a sentence about what a run has left; "" for nothing."""
    if not found:
        return ""
    named = ", ".join(f"{special.name} ({special.kind})" for special in found[:_MOST_NAMES])
    more = f" and {len(found) - _MOST_NAMES} more" if len(found) > _MOST_NAMES else ""
    return (
        f"the container left files with special rights in the working folder: {named}{more}; madlite clean lists them"
    )


def _entries(tops: Sequence[Path], leave_out: str) -> Iterator[tuple[str, os.stat_result]]:
    folders = deque(map(str, tops))
    with suppress(OSError):
        device = tops[0].lstat().st_dev
        while folders:
            for entry in _listed(folders.popleft()):
                with suppress(OSError):  # it is gone by now
                    facts = entry.stat(follow_symlinks=False)
                    if stat.S_ISDIR(facts.st_mode) and facts.st_dev == device and entry.path != leave_out:
                        folders.append(entry.path)
                    yield entry.path, facts


def _listed(folder: str) -> Iterator[os.DirEntry[str]]:
    with suppress(OSError), os.scandir(folder) as entries:
        yield from entries


def _kind(mode: int) -> str:
    if stat.S_ISBLK(mode) or stat.S_ISCHR(mode):
        return "device"
    if stat.S_ISREG(mode) and mode & (stat.S_ISUID | stat.S_ISGID):
        return "setuid" if mode & stat.S_ISUID else "setgid"
    return ""
