"""Which processes use AMD GPUs: /sys/class/kfd/kfd/proc, which needs neither a tool nor rights.

Format: Linux, drivers/gpu/drm/amd/amdkfd/kfd_process.c: a folder per process, named by its id in the machine's own
table, with `vram_<gpu_id>` in bytes and `stats_<gpu_id>/cu_occupancy` in compute units.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from madlite.machine.facts import whole
from madlite.machine.host import list_folder, read_file
from madlite.machine.kfd import TOPOLOGIES, read_topology
from madlite.machine.telemetry.reading import User
from madlite.model import Gpu

PROCESSES = ("sys/class/kfd/kfd/proc", "sys/devices/virtual/kfd/kfd/proc")


def driver_ids(root: Path, gpus: Sequence[Gpu]) -> dict[int, int]:
    """Return the driver's id of GPUs, id → index; a GPU is found by its render node, else by its address."""
    named: dict[int, int] = {}
    for seen in read_topology(root).gpus:
        same = [gpu for gpu in gpus if gpu.render_minor is not None and gpu.render_minor == seen.render_minor]
        same = same or [gpu for gpu in gpus if gpu.render_minor is None and gpu.bus and gpu.bus == seen.bus]
        texts = (read_file(root / place / str(seen.node_id) / "gpu_id") for place in TOPOLOGIES)
        found = next((n for text in texts if (n := whole(text))), None)
        if len(same) == 1 and found:
            named[found] = same[0].index
    return named


def kfd_users(root: Path, ids: Mapping[int, int]) -> tuple[User, ...] | None:
    """Return the processes on these GPUs, driver's id → index; None where the driver lists no processes."""
    place = next((root / path for path in PROCESSES if (root / path).is_dir()), None)
    if place is None or not ids:
        return None
    return tuple(
        User(pid=int(folder.name), gpu=index, memory_bytes=memory, busy=_busy(folder, gpu))
        for folder in list_folder(place)
        if folder.name.isdecimal()
        for gpu, index in ids.items()
        if (memory := whole(read_file(folder / f"vram_{gpu}"))) is not None
    )


def _busy(folder: Path, gpu: int) -> bool | None:
    units = whole(read_file(folder / f"stats_{gpu}/cu_occupancy"))
    return None if units is None else units > 0
