"""What a killed run still has on its GPUs, found by anybody on the machine: also where it was another user's."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from madlite.files import exists
from madlite.machine.host import list_folder, read_file
from madlite.model import Gpu
from madlite.runtimes.host import supervisor
from madlite.workspace.folder import RUN_MARK
from madlite.workspace.gpu_leases import LeaseFolder, LeaseHolder, LeaseState, lease_names

_SUPERVISOR = "/".join(Path(supervisor.__file__).parts[-2:])  # of whatever installation
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


def remains_of(holder: LeaseHolder, proc: Path = Path("/proc")) -> str:
    """Return what a lease's dead owner still has running, as text; "" where nothing is left, and the GPU is free.

    A run's processes are below a supervisor, whose command line everybody sees, and carry the run's mark in their
    environment, which their own user sees.  A container's are in a control group of its id, which everybody sees.
    """
    if not holder.run:
        return ""
    container = holder.handle if _CONTAINER.fullmatch(holder.handle) else ""
    mark = f"{RUN_MARK}={holder.run}"
    found = []
    for folder in list_folder(proc):
        if not folder.name.isdecimal():
            continue
        if container and container in read_file(folder / "cgroup"):
            return f"container {container[:12]}"
        words = read_file(folder / "cmdline").split("\0")
        supervises = holder.run in words and any(word.endswith(_SUPERVISOR) for word in words)
        if supervises or mark in read_file(folder / "environ").split("\0"):
            found.append(folder.name)
    if not found:
        return ""
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    return f"pid {found[0]}{more}"
