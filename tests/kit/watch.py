"""What code under test does to disk, network, processes and the environment, as an audit hook sees it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CHANGES: dict[str, tuple[str, ...]] = {
    "os": (
        *("mkdir", "remove", "rename", "rmdir", "link", "symlink", "truncate", "chmod", "chown", "utime", "chdir"),
        *("putenv", "unsetenv", "system", "exec", "fork", "forkpty", "posix_spawn", "spawn", "kill", "killpg"),
    ),
    "subprocess": ("Popen",),
    "pty": ("spawn",),
    "socket": ("connect", "bind", "sendto", "sendmsg", "getaddrinfo", "gethostbyname", "gethostbyaddr"),
    "tempfile": ("mkstemp", "mkdtemp"),
    "shutil": ("rmtree", "move", "copyfile"),
    "urllib": ("Request",),
}
_EVENTS = frozenset(f"{module}.{name}" for module, names in _CHANGES.items() for name in names)
_lists: list[list[str]] = []  # those that are filled now
_installed: list[bool] = []


@contextmanager
def watch() -> Iterator[list[str]]:
    """Give a list that fills with what any thread does to disk, network, processes and the environment.

    What Python itself does to keep compiled modules is left out.  An audit hook stays for the life of the process;
    outside of `watch` it notes nothing.
    """
    if not _installed:
        _installed.append(True)
        sys.addaudithook(_note)
    notes: list[str] = []
    _lists.append(notes)
    try:
        yield notes
    finally:
        _lists.remove(notes)


def _note(event: str, args: tuple[object, ...]) -> None:
    if not _lists or not (event == "open" or event in _EVENTS):
        return
    if event == "open" and not _writes(args):
        return
    told = " ".join(str(one) for one in args[:1])
    if "__pycache__" not in told:
        for notes in _lists:
            notes.append(f"{'writes ' if event == 'open' else event + ' '}{told[:120]}")


def _writes(args: tuple[object, ...]) -> bool:
    flags = args[2] if len(args) > 2 else 0
    return isinstance(flags, int) and bool(flags & _WRITES)
