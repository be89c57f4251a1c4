"""Processes of a run on this machine: find them by their mark, and end them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

from madlite.run.marks import RUN_MARK

if TYPE_CHECKING:
    import psutil

POLL_S = 0.05
_VANISH_LIMIT_S = 5.0


def marked_processes(run_id: str) -> list[psutil.Process]:
    """Return the living processes that carry the mark of this run; none for "", never ourselves."""
    return [process for process, environment in all_marked() if run_id and environment[RUN_MARK] == run_id]


def all_marked(*, in_containers: bool = False) -> list[tuple[psutil.Process, Mapping[str, str]]]:
    """Return the living processes of any run with their environment, never ourselves.

    The environment is read once: a process that ends between two questions would answer the second with nothing, and
    seem to belong to no run.  Processes inside containers carry the mark too and are left out where they are to be
    ended: their container is what ends them.
    """
    import psutil

    ours = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    return [
        (process, environment)
        for process in psutil.process_iter()
        if process.pid not in ours
        and (environment := _environment(process)).get(RUN_MARK)
        and _lives(process)
        and (in_containers or not _is_elsewhere(process.pid))
    ]


def _environment(process: psutil.Process) -> Mapping[str, str]:
    """Return a process's environment, empty where it has none or may not be asked."""
    import psutil

    try:
        return process.environ()
    except (psutil.Error, OSError):
        return {}


def with_children(pids: Iterable[int]) -> list[psutil.Process]:
    """Return processes and all that descend from them, the ones that rewrote their environment included."""
    import psutil

    found: dict[int, psutil.Process] = {}
    for pid in pids:
        try:
            process = psutil.Process(pid)
            found |= {one.pid: one for one in [process, *process.children(recursive=True)]}
        except psutil.Error:
            continue
    return list(found.values())


def end_processes(
    processes: Callable[[], list[psutil.Process]], grace_s: float, signals: Iterable[int], hurried: Event
) -> None:
    """Send each signal to what `processes` finds then, with `grace_s` to end after each, none once `hurried` is set."""
    for number in signals:
        found = processes()
        for process in found:
            _send(process, number)
        deadline = time.monotonic() + (_VANISH_LIMIT_S if number == signal.SIGKILL else grace_s)
        while any(map(_lives, found)) and time.monotonic() < deadline:
            if hurried.is_set() and number != signal.SIGKILL:
                break
            time.sleep(POLL_S)


def _lives(process: psutil.Process) -> bool:
    import psutil

    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _send(process: psutil.Process, number: int) -> None:
    import psutil

    try:
        process.send_signal(number)
    except (psutil.Error, OSError):
        return  # it ended meanwhile, or belongs to somebody else


def _is_elsewhere(pid: int) -> bool:
    """Say whether a process has another process table than ours, as in a container."""
    return _table(pid) not in (None, _table(os.getpid()))


def _table(pid: int) -> str | None:
    try:
        return str(Path(f"/proc/{pid}/ns/pid").readlink())
    except OSError:
        return None
