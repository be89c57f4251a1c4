"""Room on a disk for what is to be fetched."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from madlite.types import Value

MARGIN, LEAST_BYTES = 0.05, 256 << 20  # of what is fetched, kept free beside it


class Demand(Value, frozen=True):
    """Bytes that are to be written below a folder; `way` says how to use another one."""

    folder: Path
    bytes: int
    way: str = ""


def find_tight(demands: Iterable[Demand]) -> list[tuple[str, str]]:
    """Return for each file system that has too little room for all that goes there what is wrong and what helps."""
    wanted: dict[int, list[Demand]] = {}
    for demand in demands:
        if demand.bytes > 0:
            wanted.setdefault(existing(demand.folder).stat().st_dev, []).append(demand)
    return [told for group in wanted.values() if (told := _tight(group))]


def existing(folder: Path) -> Path:
    """Return the folder, or the nearest above it that is there."""
    return next((place for place in (folder, *folder.parents) if place.is_dir()), Path("/"))


def size_text(size: int) -> str:
    """Return bytes as people say them, with the same units as `du -h`, three figures and no more."""
    value, unit = float(size), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{size} B" if unit == "B" else f"{value:.1f} {unit}" if value < 100 else f"{value:.0f} {unit}"


def _tight(group: list[Demand]) -> tuple[str, str] | None:
    needed = sum(demand.bytes for demand in group)
    needed += max(int(needed * MARGIN), LEAST_BYTES)
    disk = os.statvfs(existing(group[0].folder))
    free = disk.f_bavail * disk.f_frsize
    if needed <= free:
        return None
    folders = " and ".join(dict.fromkeys(str(demand.folder) for demand in group))
    both: Mapping[str, None] = dict.fromkeys(demand.way for demand in group if demand.way)
    return (
        f"too little room in {folders}: {size_text(needed)} ({needed} bytes) are needed, {size_text(free)} "
        f"({free} bytes) are free",
        "   ".join(both),
    )
