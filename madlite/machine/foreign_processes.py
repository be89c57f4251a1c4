"""Processes on a run's GPUs that are not the run's: with one of them the number means little.

The driver names processes by their ids in the machine's own table, so only who sees that table can distinguish them:
inside a container nobody can, and nothing is said then.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path, PurePath

from madlite.machine.host import read_file
from madlite.machine.sources.base import GIB, GpuProcess
from madlite.model import Value
from madlite.secrets import Redactor, assigned

LEAST_BYTES = 256 << 20  # a display server, a monitor or a dying process holds less, and does nothing
SHOWN = 8
_FIRST_TABLE = "pid:[4026531836]"  # PROC_PID_INIT_INO of the kernel's include/linux/proc_ns.h
_LONGEST = 60  # characters of a command
_VSIZE = 20  # of the words of proc(5)'s stat behind the name: the size of a process, 0 from its end on


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
        size = f", {used_bytes / GIB:.1f} GiB" if used_bytes else ","
        return f"pid {self.pid} {self.command}{size} on GPU {gpus}"


def sees_all_processes(proc: Path = Path("/proc")) -> bool:
    """Return whether a driver's process ids are those of this table, and others' processes are shown (hidepid)."""
    try:
        return str((proc / "self/ns/pid").readlink()) == _FIRST_TABLE and bool(_stat(proc, 1))
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
    for one in listed:
        used_bytes = one.memory_bytes or 0
        at_work = one.busy or (one.gpu in busy_gpus and one.busy is None)
        if (used_bytes >= LEAST_BYTES or at_work) and not is_own(proc, one.pid, own) and _lives(proc, one.pid):
            found.setdefault(one.pid, {})[one.gpu] = used_bytes
    names = {one.pid: one.name for one in listed}
    return tuple(
        ForeignProcess(pid=pid, command=short_command(proc, pid) or names.get(pid, "") or "?", memory=memory)
        for pid, memory in sorted(found.items())
    )


def merge_processes(before: Iterable[ForeignProcess], now: Iterable[ForeignProcess]) -> dict[int, ForeignProcess]:
    """Return foreign processes by their ids, each with the most memory that it was seen with."""
    merged: dict[int, ForeignProcess] = {}
    for one in (*before, *now):
        previous = merged[one.pid].memory if one.pid in merged else {}
        memory = {gpu: max(previous.get(gpu, 0), one.memory.get(gpu, 0)) for gpu in {*previous, *one.memory}}
        merged[one.pid] = ForeignProcess(pid=one.pid, command=one.command, memory=memory)
    return merged


def describe_processes(processes: Iterable[ForeignProcess]) -> tuple[str, ...]:
    """Return each process as text, the ones with most memory first, and how many more there were."""
    ordered = sorted(processes, key=lambda one: (-sum(one.memory.values()), one.pid))
    more = (f"{len(ordered) - SHOWN} more processes",) if len(ordered) > SHOWN else ()
    return (*map(str, ordered[:SHOWN]), *more)


def is_own(proc: Path, pid: int, own: OwnProcesses) -> bool:
    """Return whether a process belongs to the run.

    One that gives itself a title writes it over its environment: then that of who started it has the mark.
    """
    if own.container and own.container in read_file(proc / str(pid) / "cgroup"):
        return True
    family = _ancestors(proc, pid)
    if own.ancestor and own.ancestor in family:
        return True
    return bool(own.mark) and any(own.mark in read_file(proc / str(one) / "environ").split("\0") for one in family)


def _ancestors(proc: Path, pid: int) -> list[int]:
    """Return a process and those that started it; format: proc(5), the parent is the second word after the name."""
    line: list[int] = []
    while pid > 0 and pid not in line:
        line.append(pid)
        after = _stat(proc, pid)
        pid = int(after[1]) if len(after) > 1 and after[1].isdecimal() else 0
    return line


def _lives(proc: Path, pid: int) -> bool:
    """Return whether a process goes on; one that is ending has given its memory back before its driver is done."""
    after = _stat(proc, pid)
    return bool(after) and after[0] not in ("Z", "X") and after[_VSIZE : _VSIZE + 1] != ["0"]


def _stat(proc: Path, pid: int) -> list[str]:
    """Return the words of a process's state, from that behind its name on; none where it cannot be seen."""
    return read_file(proc / str(pid) / "stat").rpartition(")")[2].split()


def short_command(proc: Path, pid: int) -> str:
    """Return the program and its first word that is no option: the rest of a command can hold anything."""
    argv = read_file(proc / str(pid) / "cmdline").split("\0")
    program = PurePath(argv[0]).name or read_file(proc / str(pid) / "comm")
    first = argv[2] if argv[1:2] == ["-m"] and len(argv) > 2 else (argv[1:2] or [""])[0]
    text = program if first.startswith("-") or not first else f"{program} {PurePath(first).name}"
    plain = "".join(filter(str.isprintable, text))[:_LONGEST]
    return Redactor(assigned((plain,))).text(plain)
