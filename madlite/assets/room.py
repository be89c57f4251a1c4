"""Room on a disk for what is to be fetched."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

from madlite.errors import one_hint
from madlite.model import Value
from madlite.text import size_text

MARGIN, LEAST_BYTES = 0.05, 256 << 20  # of what is fetched, kept free beside it


class Demand(Value, frozen=True):
    """Bytes that are to be written below a folder; `way` states how to use another one.

    `within` is where in it they go, `writes` that something of unknown size is written.
    """

    folder: Path
    bytes: int
    way: str = ""
    within: Path | None = None
    writes: bool = False


def find_full_disks(demands: Iterable[Demand]) -> list[tuple[str, str]]:
    """Return for each file system that has too little room for all that goes there what is wrong and what helps."""
    wanted: dict[int, list[Demand]] = {}
    for demand in demands:
        if demand.bytes > 0:
            wanted.setdefault(existing(demand.folder).stat().st_dev, []).append(demand)
    return [told for group in wanted.values() if (told := _shortage(group))]


def find_unwritable(demands: Iterable[Demand]) -> list[tuple[str, str]]:
    """Return for each folder that cannot be written to what is wrong and what helps; it is tried, nothing stays."""
    found: dict[str, tuple[str, str]] = {}
    for demand in demands:
        if (demand.bytes > 0 or demand.writes) and demand.folder.as_posix() not in found:
            for place in dict.fromkeys((demand.folder, demand.within or demand.folder)):
                if why := _unwritable_reason(place):
                    found[demand.folder.as_posix()] = f"{demand.folder} cannot be written to: {why}", demand.way
                    break
    return list(found.values())


def _unwritable_reason(folder: Path) -> str:
    """Return why nothing can be written below a folder, "" where it can."""
    place = next((place for place in (folder, *folder.parents) if os.path.lexists(place)), Path("/"))
    if not place.is_dir():
        return f"{place} is no folder"
    try:
        with tempfile.TemporaryDirectory(prefix=".madlite-", dir=place):
            return ""
    except OSError as error:
        return f"{place}: {error.strerror}"


def existing(folder: Path) -> Path:
    """Return the folder, or the nearest above it that is there."""
    return next((place for place in (folder, *folder.parents) if place.is_dir()), Path("/"))


def _shortage(group: list[Demand]) -> tuple[str, str] | None:
    needed = sum(demand.bytes for demand in group)
    needed += max(int(needed * MARGIN), LEAST_BYTES)
    free = shutil.disk_usage(existing(group[0].folder)).free
    if needed <= free:
        return None
    folders = " and ".join(dict.fromkeys(str(demand.folder) for demand in group))
    return (
        f"too little room in {folders}: {size_text(needed)} ({needed} bytes) are needed, {size_text(free)} "
        f"({free} bytes) are free",
        one_hint(*dict.fromkeys(demand.way for demand in group if demand.way)),
    )
