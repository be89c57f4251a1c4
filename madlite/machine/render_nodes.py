"""Which /dev/dri/renderD<minor> is a GPU's, where KFD does not say it, and whether that file is there."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import msgspec

from madlite.machine.facts import Seen, Source
from madlite.machine.host import list_folder

RENDER = re.compile(r"renderD(\d{1,6})")


def fill_render_minors(root: Path, gpus: Iterable[Seen]) -> tuple[Seen, ...]:
    """Return the GPUs with the render nodes that sysfs lists below their PCI addresses."""
    return tuple(
        gpu if gpu.render_minor is not None else msgspec.structs.replace(gpu, render_minor=_minor_of(root, gpu.bus))
        for gpu in gpus
    )


def doubt_render_nodes(root: Path, gpus: Iterable[Seen]) -> list[Source]:
    """Return a warning of render nodes without a file, which no container can be given."""
    there = {path.name for path in list_folder(root / "dev/dri")}
    nodes = [f"renderD{gpu.render_minor}" for gpu in gpus if gpu.render_minor is not None]
    missing = [node for node in nodes if node not in there]
    return [Source(name="/dev/dri", problem=f"has no {', '.join(missing)}")] if missing else []


def _minor_of(root: Path, bus: str) -> int | None:
    entries = list_folder(root / "sys/bus/pci/devices" / bus / "drm") if bus else []
    return next((int(found[1]) for path in entries if (found := RENDER.fullmatch(path.name))), None)
