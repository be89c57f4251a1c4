"""What a dead owner of a lease still has on its GPUs, found by anybody on the machine: also where it is another user.

Who does not see its processes cannot know: in another container than the owner's, or where /proc shows others' to
nobody (hidepid).  Then the lease is the owner's until somebody says that nothing is left.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

from madlite.files import exists
from madlite.machine.host import read_file
from madlite.machine.processes import RUN_MARK, sees_all_processes
from madlite.model import Gpu
from madlite.platforms.host import supervisor
from madlite.store.gpu_leases import LeaseFolder, LeaseHolder, LeaseState, lease_names

_SUPERVISOR = "/".join(Path(supervisor.__file__).parts[-2:]).encode()  # of whatever installation
_BLOCK_BYTES = 1 << 16
_BOOT = "sys/kernel/random/boot_id"
UNSEEN = "perhaps processes that cannot be seen from here"
_CONTAINER = re.compile(r"[0-9a-f]{12,64}")  # an id of docker's or podman's


def lease_states(folder: Path, gpus: Sequence[Gpu]) -> dict[int, tuple[LeaseState, str]]:
    """Return the state of each GPU's lease by its id, and what a dead owner still has running on it.

    Nothing is made: where there is no folder yet no GPU is held.

    Raises:
        UsageProblem: the folder cannot be used.
    """
    names = lease_names(gpus)
    if not folder.is_symlink() and not exists(folder):
        return {index: (LeaseState(name=name), "") for index, name in names.items()}
    with closing(LeaseFolder(folder)) as leases:
        states = zip(names, leases.states(names.values()), strict=True)
        return {index: (state, _left_by(state)) for index, state in states}


def _left_by(state: LeaseState) -> str:
    return remains_of(state.holder) if state.holder is not None and not state.locked else ""


def clear_leases(folder: Path, run_id: str) -> None:
    """Take the name of a run that is known to have nothing running any more out of leases that nobody holds.

    Raises:
        UsageProblem: the folder, or a file of it, cannot be used.
    """
    if not folder.is_symlink() and not exists(folder):
        return
    with closing(LeaseFolder(folder)) as leases:
        for state in leases.states(leases.names()):
            if not state.locked and state.holder is not None and state.holder.run == run_id:
                leases.clear(state.name)


def process_table(proc: Path = Path("/proc")) -> str:
    """Return which table of processes is seen here: of this start of the machine and this namespace; "" if unknown."""
    try:
        namespace = str((proc / "self/ns/pid").readlink())
    except OSError:
        return ""
    return f"{read_file(proc / _BOOT)} {namespace}"


def remains_of(holder: LeaseHolder, proc: Path = Path("/proc")) -> str:
    """Return what a lease's dead owner still has running, as text; "" where nothing is left, and the GPU is free.

    Where its processes would not be seen from here that is `UNSEEN`.
    """
    if not holder.run or _is_of_an_earlier_start(holder, proc):
        return ""
    return _found(holder, proc) or ("" if _would_be_seen(holder, proc) else UNSEEN)


def _is_of_an_earlier_start(holder: LeaseHolder, proc: Path) -> bool:
    boot = holder.table.partition(" ")[0]
    return bool(boot) and boot != read_file(proc / _BOOT)


def _would_be_seen(holder: LeaseHolder, proc: Path) -> bool:
    is_same_table = bool(holder.table) and holder.table == process_table(proc)
    if sees_all_processes(proc) or (is_same_table and holder.pid == os.getpid()):  # whose runtime has ended them
        return True
    is_container = bool(_CONTAINER.fullmatch(holder.handle))  # its engine may be outside of the one that we are in
    shows_others = bool(read_file(proc / "1/stat"))
    return is_same_table and not is_container and (shows_others or holder.uid == os.geteuid())


def _found(holder: LeaseHolder, proc: Path) -> str:
    """Return what is seen of a run, as text.

    A run's processes are below a supervisor, whose command line everybody sees, and carry the run's mark in their
    environment, which their own user sees.  A container's are in a control group of its id, which everybody sees.
    """
    container = holder.handle.encode() if _CONTAINER.fullmatch(holder.handle) else b""
    run = holder.run.encode("utf-8", "replace")
    mark = f"{RUN_MARK}=".encode() + run
    found = []
    for pid in _processes(proc):
        if container and container in _read(f"{proc}/{pid}/cgroup"):
            return f"container {holder.handle[:12]}"
        words = _read(f"{proc}/{pid}/cmdline").split(b"\0")
        supervises = run in words and any(word.endswith(_SUPERVISOR) for word in words)
        if supervises or mark in _read(f"{proc}/{pid}/environ").split(b"\0"):
            found.append(pid)
    if not found:
        return ""
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    return f"pid {found[0]}{more}"


def _processes(proc: Path) -> list[str]:
    try:
        return sorted(name for name in os.listdir(proc) if name.isdecimal())  # noqa: PTH208 - thousands of paths
    except OSError:
        return []


def _read(path: str) -> bytes:
    """Return a file of a process, empty where it is gone or must not be read.

    By the plainest means: this is asked whenever a run ends, of every process of the machine.
    """
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError:
        return b""
    try:
        parts = iter(partial(os.read, fd, _BLOCK_BYTES), b"")
        return b"".join(parts)
    except OSError:
        return b""
    finally:
        os.close(fd)
