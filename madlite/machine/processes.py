"""Processes of this machine: which are there, who started them, and a signal that reaches the one that was meant.

Format: proc(5).  A process is named by its number and the moment it began, in the kernel's own ticks: a later one that
was given the number is another.
"""

from __future__ import annotations

import os
import pwd
import signal
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path, PurePath
from threading import Event

from msgspec.structs import replace

from madlite.machine.host import read_file
from madlite.machine.sources.base import GpuProcess
from madlite.model import Value
from madlite.secrets import Redactor, assigned
from madlite.text import printable, size_text

# variables in the environment of every process of a run; the folder, on the host, only outside of containers
RUN_MARK = "MADLITE_RUN_ID"
FOLDER_MARK = "MADLITE_RUN_FOLDER"
KEPT_MARK = "MADLITE_KEPT"  # on the host too, for a run with --keep-alive
SUPERVISOR_MARK = "MADLITE_SUPERVISOR"  # on the host, of the process that supervises a command's processes

_PROC = Path("/proc")
_MOST_READS = 3  # of reading the table; where others' processes are hidden it never has all parents


class Process(Value, frozen=True):
    """A process as it was when it was listed.

    `started` is in clock ticks since the machine did; `uids` are the real, effective and saved user, empty where they
    were not requested.
    """

    pid: int
    started: int
    parent: int = 0
    name: str = ""
    lives: bool = True
    size: int = 0  # of its memory in bytes, 0 from its end on
    uids: tuple[int, ...] = ()

    @property
    def identity(self) -> tuple[int, int]:
        """What no other process has, nor will have."""
        return self.pid, self.started


def facts_of(pid: int) -> Process | None:
    """Return what a process is, with its users; None where there is none of that number."""
    try:
        status = (_PROC / str(pid) / "status").read_bytes()
    except OSError:
        return None
    line = next((line for line in status.splitlines() if line.startswith(b"Uid:")), b"")
    found = _listed(_PROC, pid)
    return replace(found, uids=tuple(map(int, line.split()[1:4]))) if found is not None else None


def environment_of(pid: int) -> Mapping[str, str]:
    """Return the environment that a process has in its memory; empty where it has none left or may not be queried."""
    try:
        words = (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return {}
    pairs = (word.partition(b"=") for word in words if b"=" in word)
    # the first of a name is what getenv(3) finds
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in reversed(list(pairs))}


def _in_other_pid_namespace(pid: int) -> bool:
    """Return whether a process has another process table than ours, as in a container."""
    try:
        return (_PROC / str(pid) / "ns/pid").readlink() != (_PROC / "self/ns/pid").readlink()
    except OSError:
        return False


def _now(process: Process) -> Process | None:
    """Return what a process that was listed is now; None where it has ended, whoever has its number."""
    found = facts_of(process.pid)
    return found if found is not None and found.started == process.started else None


def process_table() -> dict[int, Process]:
    """Return all processes that can be seen, by number, without their users.

    Who was read before its parent ended, and the parent after, would be nobody's child: then all are read again.
    """
    table: dict[int, Process] = {}
    for _ in range(_MOST_READS):
        table = {pid: process for pid in _pids() if (process := _listed(_PROC, pid)) is not None}
        if all(item.parent in table or not item.parent for item in table.values()):
            break
    return table


def ancestors(pid: int, find: Callable[[int], Process | None]) -> list[int]:
    """Return the numbers of a process and of those that started it, itself first, as far as they are found."""
    line: list[int] = []
    while pid > 0 and pid not in line and (process := find(pid)) is not None:
        line.append(pid)
        pid = process.parent
    return line


def lives(process: Process) -> bool:
    """Return whether a process goes on that was listed."""
    now = _now(process)
    return now is not None and now.lives


def send(process: Process, number: int, may: Callable[[Process], bool] | None = None) -> bool:
    """Send a signal to a process that was listed, and to none that has its number now; return whether it got it.

    `may` is called last, with what the process is now.
    """
    now = _now(process)
    if now is None or not now.lives or not (may is None or may(now)):
        return False
    try:
        os.kill(process.pid, number)
    except OSError:  # it has ended, or belongs to somebody else
        return False
    return True


def with_users(process: Process) -> Process:
    """Return a listed process with its users; without them where it has ended."""
    return _now(process) or process


def belongs_to(process: Process, uid: int) -> bool:
    """Return whether a process is a user's alone: not where it took on another's rights, or gave its own away."""
    return set(process.uids) == {uid}


def describe_process(process: Process) -> str:
    """Return a process as people tell it from others: number, name, and the user where it is not ours."""
    uids = process.uids
    owner = f", of user {user_name(uids[0])}" if uids and set(uids) != {os.geteuid()} else ""
    return f"pid {process.pid} ({process.name}{owner})"


def user_name(uid: int) -> str:
    """Return a user's name, its number where it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _pids() -> list[int]:
    try:
        return sorted(int(entry.name) for entry in _PROC.iterdir() if entry.name.isdecimal())
    except OSError:  # no /proc
        return []


def _listed(proc: Path, pid: int) -> Process | None:
    """Return a process of a process table; None where it cannot be seen."""
    try:
        return _parsed(pid, (proc / str(pid) / "stat").read_bytes())
    except (OSError, ValueError, IndexError):
        return None


def _parsed(pid: int, stat: bytes) -> Process:
    """Return what /proc/PID/stat says; its words are counted from behind the name, which can hold any character."""
    head, _, rest = stat.rpartition(b")")
    words = rest.split()
    state, threads = words[0], int(words[17])
    name = head.partition(b"(")[2].decode("utf-8", "replace")
    return Process(
        pid=pid,
        size=int(words[20]),
        started=int(words[19]),
        parent=int(words[1]),
        name=printable(name),
        lives=state not in (b"X", b"x") and (state != b"Z" or threads > 1),  # its first thread can be the only dead one
    )


# Processes of a run on this machine: find them by their mark, and end them.

POLL_S = 0.05
_VANISH_LIMIT_S = 5.0


class RunProcess(Value, frozen=True):
    """A process that carries a run's mark, with the environment that says so."""

    process: Process
    environment: Mapping[str, str]

    @property
    def is_supervisor(self) -> bool:
        """Whether it says to be none of the run's own: it ends by itself with the last of those below it."""
        return SUPERVISOR_MARK in self.environment


def run_processes(run_id: str, folder: Path) -> list[Process]:
    """Return our own living processes that carry the marks of this run, and what they started; none for "".

    Whoever else gives a process such marks has it left alone.  Supervisors are left out: they end by themselves.
    """
    marked = [
        item
        for item in all_run_processes()
        if run_id
        and item.environment[RUN_MARK] == run_id
        and item.environment.get(FOLDER_MARK) == str(folder)
        and belongs_to(item.process, os.geteuid())
    ]
    if not marked:
        return []
    apart = {item.process.pid for item in marked if item.is_supervisor} | own_pids()
    found = (with_users(process) for process in with_descendants({item.process.pid for item in marked}))
    return [process for process in found if process.pid not in apart and belongs_to(process, os.geteuid())]


def all_run_processes() -> list[RunProcess]:
    """Return the living processes of any run with their environment, never ourselves.

    The environment is read once: a process that ends between two questions would answer the second with nothing, and
    seem to belong to no run.  Processes inside containers carry the mark too and are left out: their container is what
    ends them.
    """
    ours, found = own_pids(), []
    for pid in _pids():
        process = _listed(_PROC, pid)
        environment = environment_of(pid) if process is not None and process.lives and pid not in ours else {}
        if process is not None and environment.get(RUN_MARK) and not _in_other_pid_namespace(pid):
            found.append(RunProcess(process=with_users(process), environment=environment))
    return found


def own_pids() -> frozenset[int]:
    """Return the numbers of this process and of those that started it."""
    return frozenset(ancestors(os.getpid(), process_table().get))


def with_descendants(pids: Collection[int]) -> list[Process]:
    """Return living processes and all that descend from them, the ones that rewrote their environment included."""
    table = process_table()
    return [item for item in table.values() if item.lives and not set(pids).isdisjoint(ancestors(item.pid, table.get))]


def descendants(pid: int) -> list[Process]:
    """Return the living processes that a process started, those that they started, and so on; never itself."""
    return [process for process in with_descendants({pid}) if process.pid != pid]


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


# Processes on a run's GPUs that are not the run's: with one of them the number means little.
#
# The driver names processes by their ids in the machine's own table, so only who sees that table can distinguish them:
# inside a container nobody can, and nothing is said then.

LEAST_BYTES = 256 << 20  # a display server, a monitor or a dying process holds less, and does nothing
SHOWN = 8
_FIRST_TABLE = "pid:[4026531836]"  # PROC_PID_INIT_INO of the kernel's include/linux/proc_ns.h
_LONGEST = 60  # characters of a command


class OwnProcesses(Value, frozen=True):
    """How a run's processes are known: by a text in their environment, by their container, or by their ancestor."""

    mark: str = ""  # NAME=value, in the environment of each
    container: str = ""
    ancestor: int = 0


class ForeignProcess(Value, frozen=True):
    """A process that is not the run's, and the most memory it had on each GPU; 0 where it is not reported."""

    pid: int
    command: str
    memory: dict[int, int]

    def __str__(self) -> str:
        gpus = ", ".join(map(str, sorted(self.memory)))
        used_bytes = sum(self.memory.values())
        size = f", {size_text(used_bytes)}" if used_bytes else ","
        return f"pid {self.pid} {self.command}{size} on GPU {gpus}"


def sees_all_processes(proc: Path = Path("/proc")) -> bool:
    """Return whether a driver's process ids are those of this table, and others' processes are shown (hidepid)."""
    try:
        return str((proc / "self/ns/pid").readlink()) == _FIRST_TABLE and _listed(proc, 1) is not None
    except OSError:
        return False


def find_foreign(
    listed: Iterable[GpuProcess], own: OwnProcesses, proc: Path = Path("/proc"), busy_gpus: Sequence[int] = ()
) -> tuple[ForeignProcess, ...]:
    """Return the processes on GPUs that are not the run's, the tiny and idle ones left out.

    `busy_gpus` are GPUs that were at work before the run's began: whoever is on them counts, however small, unless it
    is known to do nothing there.  A process that ended meanwhile is left out; that is checked last, for one that is
    ending has lost what shows that it was the run's.
    """
    found: dict[int, dict[int, int]] = {}
    for process in listed:
        used_bytes = process.memory_bytes or 0
        at_work = process.busy or (process.gpu in busy_gpus and process.busy is None)
        if (used_bytes >= LEAST_BYTES or at_work) and not is_own(proc, process.pid, own) and _works(proc, process.pid):
            found.setdefault(process.pid, {})[process.gpu] = used_bytes
    names = {process.pid: process.name for process in listed}
    return tuple(
        ForeignProcess(pid=pid, command=short_command(proc, pid) or names.get(pid, "") or "?", memory=memory)
        for pid, memory in sorted(found.items())
    )


def merge_processes(before: Iterable[ForeignProcess], now: Iterable[ForeignProcess]) -> dict[int, ForeignProcess]:
    """Return foreign processes by their ids, each with the most memory that it was seen with."""
    merged: dict[int, ForeignProcess] = {}
    for process in (*before, *now):
        previous = merged[process.pid].memory if process.pid in merged else {}
        memory = {gpu: max(previous.get(gpu, 0), process.memory.get(gpu, 0)) for gpu in {*previous, *process.memory}}
        merged[process.pid] = ForeignProcess(pid=process.pid, command=process.command, memory=memory)
    return merged


def describe_processes(processes: Iterable[ForeignProcess]) -> tuple[str, ...]:
    """Return each process as text, the ones with most memory first, and how many more there were."""
    ordered = sorted(processes, key=lambda process: (-sum(process.memory.values()), process.pid))
    more = (f"{len(ordered) - SHOWN} more processes",) if len(ordered) > SHOWN else ()
    return (*map(str, ordered[:SHOWN]), *more)


def is_own(proc: Path, pid: int, own: OwnProcesses) -> bool:
    """Return whether a process belongs to the run.

    One that gives itself a title writes it over its environment: then that of who started it has the mark.
    """
    if own.container and own.container in read_file(proc / str(pid) / "cgroup"):
        return True
    family = ancestors(pid, partial(_listed, proc))
    if own.ancestor and own.ancestor in family:
        return True
    return bool(own.mark) and any(own.mark in read_file(proc / str(item) / "environ").split("\0") for item in family)


def _works(proc: Path, pid: int) -> bool:
    """Return whether a process goes on; one that is ending has given its memory back before its driver is done."""
    process = _listed(proc, pid)
    return process is not None and process.lives and process.size > 0


def short_command(proc: Path, pid: int) -> str:
    """Return the program and its first word that is no option: the rest of a command can hold anything."""
    argv = read_file(proc / str(pid) / "cmdline").split("\0")
    program = PurePath(argv[0]).name or read_file(proc / str(pid) / "comm")
    first = argv[2] if argv[1:2] == ["-m"] and len(argv) > 2 else (argv[1:2] or [""])[0]
    text = program if first.startswith("-") or not first else f"{program} {PurePath(first).name}"
    plain = "".join(filter(str.isprintable, text))[:_LONGEST]
    return Redactor(assigned((plain,))).text(plain)
