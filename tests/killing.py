"""A command that kills itself at a call of one of madlite's functions."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Literal

KILL_AT = "tests.killing.kill_at"
KILL_AT_NAME = "tests.killing.kill_at_name"


def run_killed(folder: Path, at: Sequence[str], *words: str) -> None:
    """Run a command that kills itself; at: one of the functions below and its arguments."""
    from tests import commands

    done = commands.run(words, folder, os.environ, first=at)
    assert done.returncode == -signal.SIGKILL, done.stdout + done.stderr


def kill_at(target: str, moment: Literal["before", "after"], count: str = "1") -> None:
    """Have this process kill itself before or after so many calls of a function, a method or a class method."""
    holder, _, name = target.rpartition(".")
    owner, left = resolve_name(holder), int(count)
    real = getattr(owner, name)
    is_class_method = hasattr(real, "__func__")
    function = real.__func__ if is_class_method else real

    def killed(*args: Any, **named: Any) -> Any:
        nonlocal left
        left -= 1
        if left == 0 and moment == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = function(*args, **named)
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    replacement = classmethod(killed) if is_class_method else killed
    setattr(owner, name, replacement)
    if getattr(real, "__module__", "") == holder:  # where it is defined: others have imported it by now
        for module in [one for one in sys.modules.values() if one.__name__.startswith("madlite")]:
            if getattr(module, name, None) is real:
                setattr(module, name, replacement)


def kill_at_name(wanted: str, moment: Literal["before", "after"]) -> None:
    """Have this process kill itself before or after it gives a file this name."""
    from madlite.files import Folder

    real = Folder.rename

    def rename(self: Folder, name: str, to: str) -> None:
        if to == wanted and moment == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        real(self, name, to)
        if to == wanted:
            os.kill(os.getpid(), signal.SIGKILL)

    Folder.rename = rename  # type: ignore[method-assign]
