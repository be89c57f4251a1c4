"""Processes of dead runs on this machine: listed one by one, and ended as listed."""

from __future__ import annotations

import os
import signal
import stat
import time
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from madlite.machine.processes import (
    FOLDER_MARK,
    KEPT_MARK,
    POLL_S,
    RUN_MARK,
    Process,
    RunProcess,
    all_run_processes,
    ancestors,
    belongs_to,
    describe_process,
    environment_of,
    lives,
    own_pids,
    process_table,
    send,
    short_command,
    user_name,
    with_users,
)
from madlite.model import Value
from madlite.store.folder import LOCK
from madlite.store.locks import is_locked

LOCKED = "a madlite process has locked the run by now"
SHOWN = 5  # processes that are named
_VANISH_LIMIT_S = 5.0


class Member(Value, frozen=True):
    """One listed process: whether it has the run's marks itself, or was started by one that has."""

    process: Process
    marked: bool = True
    supervisor: bool = False


class DeadRun(Value, frozen=True):
    """The processes of a run that no madlite holds, all of the user whose folder it has."""

    run_id: str
    folder: str
    uid: int  # of who owns the folder
    inode: tuple[int, int] | None = None  # of the folder with its device; None where it is gone
    members: tuple[Member, ...] = ()
    kept: bool = False

    @property
    def counted(self) -> tuple[Member, ...]:
        """Those that a user knows of: supervisors go with the others."""
        return tuple(process for process in self.members if not process.supervisor) or self.members

    @property
    def still_running(self) -> str:
        """A sentence: how many there are, and the command that ends them."""
        count, kept = len(self.counted), " --kept" if self.kept else ""
        are, them = ("are", "them") if count > 1 else ("is", "it")
        return f"{count} of its processes {are} still running; madlite clean{kept} --yes ends {them}"


class Found(Value, frozen=True):
    """Dead runs with processes, and notes on processes that look like theirs and are another user's."""

    runs: tuple[DeadRun, ...] = ()
    notes: tuple[str, ...] = ()


def may_be_alive(folder: str) -> bool:
    """Return whether a madlite may hold the run's lock: True too where another user's folder cannot be read."""
    return Path(folder).is_absolute() and is_locked(Path(folder, LOCK), unknown=True)


def owner_of(folder: str) -> tuple[int, tuple[int, int] | None] | None:
    """Return the user and the inode of the folder that marks name, our own user where it is gone; None of no folder."""
    try:
        facts = os.lstat(folder)
    except (FileNotFoundError, NotADirectoryError):
        return os.geteuid(), None
    except (OSError, ValueError):
        return None
    return (facts.st_uid, (facts.st_dev, facts.st_ino)) if stat.S_ISDIR(facts.st_mode) else None


def find_dead_runs() -> Found:
    """Return what dead runs have running: processes with their variables, and what those started.

    A run is identified by id and folder, for a process can name the id of another run.  Processes of other users than
    the folder's, or that we may not end, are never listed but named in a note.
    """
    found = [process for process in all_run_processes() if Path(process.environment.get(FOLDER_MARK, "")).is_absolute()]
    # without the folder nobody can say whether its madlite lives
    dead = {key: those for key, those in _by_run(found).items() if not may_be_alive(key[1])}
    if not dead:
        return Found()
    # a madlite that ended meanwhile had ended its processes before it gave its lock back
    again = all_run_processes()
    there = {process.process.identity for process in again}
    members = _members(again)
    runs, notes = [], []
    for (run_id, folder), those in dead.items():
        still = [process for process in those if process.process.identity in there]
        every = (*(Member(process=item.process) for item in still), *members.get((run_id, folder), ()))
        listed = {member.process.identity: member for member in every}
        run, note = _listed(run_id, folder, tuple(listed.values()))
        if run.members:
            runs.append(replace(run, kept=any(process.environment.get(KEPT_MARK) for process in still)))
        notes.extend([note] if note else [])
    return Found(runs=tuple(runs), notes=tuple(notes))


def end_listed(run: DeadRun, grace_s: float) -> str | None:
    """End the listed processes of a dead run and no other; return a message about those still running.

    Before each signal it is checked that the run is still dead and the process still belongs to it.  Supervisors end by
    themselves with the last process below them; one that does not is killed.
    """
    workers = [process for process in run.members if not process.supervisor]
    for number, limit_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, _VANISH_LIMIT_S)):
        _wait(_signalled(run, workers, number), limit_s)
    idle = [process for process in run.members if process.supervisor and not _has_children(process)]
    _wait(idle, _VANISH_LIMIT_S)
    _wait(_signalled(run, idle, signal.SIGKILL), _VANISH_LIMIT_S)
    left = [process for process in (*workers, *idle) if lives(process.process)]
    if left and not _is_dead(run):
        return LOCKED
    return f"not ended: {describe_members(left)}" if left else None


def _by_run(found: Iterable[RunProcess]) -> dict[tuple[str, str], list[RunProcess]]:
    runs: dict[tuple[str, str], list[RunProcess]] = {}
    for member in found:
        runs.setdefault(_key(member), []).append(member)
    return runs


def _key(member: RunProcess) -> tuple[str, str]:
    return member.environment[RUN_MARK], member.environment.get(FOLDER_MARK, "")


def _members(marked: Iterable[RunProcess]) -> dict[tuple[str, str], list[Member]]:
    """Return by run what has no marks itself: it is of the nearest of those that started it and have some.

    With them supervisors that nothing of their own run started: what calls itself one below another is none.
    """
    by_pid = {process.process.pid: process for process in marked}
    table, ours = process_table(), own_pids()
    members: dict[tuple[str, str], list[Member]] = {}
    for process in table.values():
        own = by_pid.get(process.pid)
        above = [by_pid[pid] for pid in ancestors(process.pid, table.get)[1:] if pid in by_pid]
        if own is not None and own.is_supervisor and _key(own) not in map(_key, above):
            members.setdefault(_key(own), []).append(Member(process=own.process, supervisor=True))
        elif own is None and above and process.lives and process.pid not in ours:
            members.setdefault(_key(above[0]), []).append(Member(process=with_users(process), marked=False))
    return members


def _listed(run_id: str, folder: str, members: tuple[Member, ...]) -> tuple[DeadRun, str]:
    """Return a run with those of its processes that are the folder's user's, and a note on the others."""
    owner = owner_of(folder)
    if owner is None:
        text = f"{describe_members(members)} with the marks of run {run_id}: left alone, {folder} is no folder"
        return DeadRun(run_id=run_id, folder=folder, uid=-1), text
    uid, inode = owner
    may = os.geteuid() in (0, uid)
    ours = tuple(process for process in members if may and belongs_to(process.process, uid))
    others = [process for process in members if process not in ours and process.process.uids]
    whose = f"is of user {user_name(uid)}" if inode is not None else "is gone"
    text = f"{describe_members(others)} with the marks of run {run_id}: left alone, {folder} {whose}" if others else ""
    return DeadRun(run_id=run_id, folder=folder, uid=uid, inode=inode, members=ours), text


def _is_dead(run: DeadRun) -> bool:
    return owner_of(run.folder) == (run.uid, run.inode) and not may_be_alive(run.folder)


def _is_its(run: DeadRun, member: Member, now: Process) -> bool:
    """Say whether a process is still what it was listed for."""
    environment = environment_of(now.pid)
    marks = (environment.get(RUN_MARK), environment.get(FOLDER_MARK))
    its = (run.run_id, run.folder)
    fits = marks == its if member.marked else marks in (its, (None, None))
    return fits and belongs_to(now, run.uid) and _is_dead(run)


def _signalled(run: DeadRun, members: Iterable[Member], number: int) -> list[Member]:
    return [process for process in members if send(process.process, number, partial(_is_its, run, process))]


def _wait(members: Iterable[Member], limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    while any(lives(process.process) for process in members) and time.monotonic() < deadline:
        time.sleep(POLL_S)


def _has_children(member: Member) -> bool:
    return any(process.parent == member.process.pid and process.lives for process in process_table().values())


def describe_members(members: Sequence[Member]) -> str:
    """Return how many processes there are, with number and command of the first."""
    them = ", ".join(describe_process(_with_command(process.process)) for process in members[:SHOWN])
    return f"{len(members)} process{'es' if len(members) != 1 else ''}: {them}{', …' if len(members) > SHOWN else ''}"


def _with_command(process: Process) -> Process:
    return replace(process, name=short_command(Path("/proc"), process.pid) or process.name)
