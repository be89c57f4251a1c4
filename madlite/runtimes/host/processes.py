"""Processes of a run on this machine: find them by their mark, and end them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from threading import Event

from madlite.model import Value
from madlite.runtimes.process_table import (
    Process,
    ancestors,
    is_of,
    lives,
    look_at_all,
    process_table,
    send,
    with_users,
)
from madlite.workspace.folder import FOLDER_MARK, RUN_MARK, SUPERVISOR_MARK

POLL_S = 0.05
_VANISH_LIMIT_S = 5.0


class Marked(Value, frozen=True):
    """A process that carries a run's mark, with the environment that says so."""

    process: Process
    environment: Mapping[str, str]

    @property
    def is_supervisor(self) -> bool:
        """Whether it says to be none of the run's own: it ends by itself with the last of those below it."""
        return SUPERVISOR_MARK in self.environment


def marked_processes(run_id: str, folder: Path) -> list[Process]:
    """Return our own living processes that carry the marks of this run, and what they started; none for "".

    Whoever else gives a process such marks has it left alone.  Supervisors are left out: they end by themselves.
    """
    marked = [
        one
        for one in all_marked()
        if run_id
        and one.environment[RUN_MARK] == run_id
        and one.environment.get(FOLDER_MARK) == str(folder)
        and is_of(one.process, os.geteuid())
    ]
    if not marked:
        return []
    apart = {one.process.pid for one in marked if one.is_supervisor} | ourselves()
    found = (with_users(process) for process in with_children({one.process.pid for one in marked}))
    return [process for process in found if process.pid not in apart and is_of(process, os.geteuid())]


def all_marked(*, in_containers: bool = False) -> list[Marked]:
    """Return the living processes of any run with their environment, never ourselves.

    The environment is read once: a process that ends between two questions would answer the second with nothing, and
    seem to belong to no run.  Processes inside containers carry the mark too and are left out where they are to be
    ended: their container is what ends them.
    """
    ours = ourselves()
    return [
        Marked(process=facts, environment=environment)
        for process, facts in look_at_all()
        if facts.pid not in ours
        and (environment := process.environment()).get(RUN_MARK)
        and (in_containers or not process.is_elsewhere())
    ]


def ourselves() -> frozenset[int]:
    """Return the numbers of this process and of those that started it."""
    return frozenset(ancestors(os.getpid(), process_table()))


def with_children(pids: Collection[int]) -> list[Process]:
    """Return living processes and all that descend from them, the ones that rewrote their environment included."""
    table = process_table()
    return [one for one in table.values() if one.lives and not set(pids).isdisjoint(ancestors(one.pid, table))]


def end_processes(
    processes: Callable[[], list[Process]], grace_s: float, signals: Iterable[int], hurried: Event
) -> None:
    """Send each signal to what `processes` finds then, with `grace_s` to end after each, none once `hurried` is set.

    KILL is sent until nothing is found any more: what is being ended may be starting others.
    """
    for number in signals:
        deadline = time.monotonic() + (_VANISH_LIMIT_S if number == signal.SIGKILL else grace_s)
        found = [process for process in processes() if send(process, number)]
        while found and time.monotonic() < deadline:
            if hurried.is_set() and number != signal.SIGKILL:
                break
            time.sleep(POLL_S)
            if number == signal.SIGKILL:
                found = [process for process in processes() if send(process, number)]
            else:
                found = [process for process in found if lives(process)]
