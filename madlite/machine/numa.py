"""Which CPUs and which memory are near GPUs: the NUMA nodes of their PCI devices.

Format: Linux, Documentation/ABI/testing/sysfs-bus-pci (`numa_node`, -1 where the firmware does not say) and
sysfs-devices-node (`cpulist`: `0-3,8`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from madlite.machine.host import read_file
from madlite.model import Gpu, Value

_RANGE = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?")


class NumaPlace(Value, frozen=True):
    """NUMA nodes and their CPUs, both as lists such as `0-3,8`."""

    nodes: str
    cpus: str


def numa_place(gpus: Iterable[Gpu], root: Path = Path("/")) -> NumaPlace | None:
    """Return the nodes of GPUs and those of their CPUs that this process may use; None where a node is not known."""
    texts = [read_file(root / "sys/bus/pci/devices" / gpu.bus / "numa_node") if gpu.bus else "" for gpu in gpus]
    if not texts or not all(text.isdecimal() for text in texts):
        return None
    nodes = sorted(set(map(int, texts)))
    near = {cpu for node in nodes for cpu in _numbers(read_file(root / f"sys/devices/system/node/node{node}/cpulist"))}
    usable = sorted(near & os.sched_getaffinity(0))
    return NumaPlace(nodes=_text(nodes), cpus=_text(usable)) if usable else None


def cpu_numbers(text: str) -> set[int]:
    """Return the CPUs of a list such as `0-3,8`."""
    return set(_numbers(text))


def _numbers(text: str) -> Iterable[int]:
    for part in text.split(","):
        if found := _RANGE.fullmatch(part.strip()):
            yield from range(int(found[1]), int(found[2] or found[1]) + 1)


def _text(numbers: list[int]) -> str:
    """Return sorted numbers as a list with ranges."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)
