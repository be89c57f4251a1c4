"""What code under test does to the world beside answering: an audit hook notes it."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CHANGES = re.compile(  # audit events of what touches more than this process's memory
    r"(os|subprocess|pty|socket|tempfile|shutil|urllib)"
    r"\.(?!(listdir|scandir|f?walk|getxattr|listxattr|__new__|gethostname)$)"
)
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
    if not _lists:
        return
    if event == "open":
        flags = args[2] if len(args) > 2 else 0
        is_change = isinstance(flags, int) and bool(flags & _WRITES)
    else:
        is_change = _CHANGES.match(event) is not None
    what = " ".join(map(str, args[:1])) if is_change else "__pycache__"
    if "__pycache__" not in what:
        for notes in _lists:
            notes.append(f"{'writes ' if event == 'open' else event + ' '}{what[:120]}")
