"""Checks of the network between nodes: RDMA ports and their addresses, links, the interface of sockets.

Formats: Linux, Documentation/ABI/stable/sysfs-class-infiniband, Documentation/ABI/testing/sysfs-class-net.  A machine
without RDMA devices has none to check.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from madlite.doctor.check import UNREADABLE, Answer, Target
from madlite.machine.fabric import HCA, INTERFACES, find_fabric
from madlite.machine.host import list_folder, read_file

_DEVICES, _NET = "sys/class/infiniband", "sys/class/net"


def _devices(target: Target) -> list[Path]:
    """Return the RDMA devices that NCCL_IB_HCA names, all where it is not set.

    Its names are prefixes, those after `=` whole names; `^` names what is left out.
    """
    devices = list_folder(target.root / _DEVICES)
    text = target.host.env.get(HCA, "")
    names = [name.partition(":")[0] for name in text.lstrip("^=").split(",") if name]
    whole, out = "=" in text[:2], text.startswith("^")
    if not names:
        return devices
    return [
        device
        for device in devices
        if any(device.name == name if whole else device.name.startswith(name) for name in names) is not out
    ]


def _ports(target: Target) -> Iterator[Path]:
    yield from (port for device in _devices(target) for port in list_folder(device / "ports"))


def rdma_ports(target: Target, right: str) -> Answer | None:
    """Check that the ports of the RDMA devices are up."""
    states = {
        f"{port.parent.parent.name}:{port.name}": (read_file(port / "state"), read_file(port / "phys_state"))
        for port in _ports(target)
    }
    down = [name for name, (state, link) in states.items() if "ACTIVE" not in state or "LinkUp" not in link]
    if not states:
        return None
    return Answer(
        f"{len(states) - len(down)} of {len(states)} up" + (f"; down: {', '.join(down)}" if down else ""), not down
    )


def rdma_addresses(target: Target, right: str) -> Answer | None:
    """Check that each active RoCE port has an address of RoCE v2."""
    names = {device.name for device in _devices(target)}
    fabric = find_fabric(target.root)
    ports = [port for port in fabric.ports if port.is_roce and port.device in names]
    without = [port.name for port in ports if port.gid_index is None]
    if not ports:
        return None
    text = (
        f"none of {', '.join(without)}"
        if without
        else f"index {fabric.gid_index if fabric.gid_index is not None else 'differs'}"
    )
    return Answer(text, not without)


def link_speed(target: Target, right: str) -> Answer | None:
    """Check the speed of the interfaces of RDMA devices, in Mb/s."""
    interfaces = [path.name for device in _devices(target) for path in list_folder(device / "device/net")]
    speeds = {name: read_file(target.root / _NET / name / "speed") for name in interfaces}
    known = {name: speed for name, speed in speeds.items() if speed.isdecimal()}
    if not interfaces:
        return None
    least = int(right or 0)
    slow = [f"{name} {speed}" for name, speed in known.items() if int(speed) < least]
    return (
        Answer(", ".join(slow) or ", ".join(dict.fromkeys(known.values())), not slow) if known else Answer(UNREADABLE)
    )


def socket_interface(target: Target, right: str) -> Answer | None:
    """Check that the interfaces that variables name are there and up; without one, which one the route takes."""
    named = {variable: target.host.env.get(variable, "") for variable in INTERFACES}
    down = [
        f"{variable}={text}"
        for variable, text in named.items()
        if text and not text.startswith("^") and not any(_is_up(target, name) for name in text.lstrip("=").split(","))
    ]
    if not any(named.values()):
        route = find_fabric(target.root).interface
        return Answer(f"{route} by its route, no variable names one") if route else None
    return Answer(
        f"not up: {', '.join(down)}" if down else ", ".join(dict.fromkeys(filter(None, named.values()))), not down
    )


def _is_up(target: Target, name: str) -> bool:
    """Return whether an interface that begins with a name is up."""
    interfaces = [path for path in list_folder(target.root / _NET) if path.name.startswith(name)]
    return any(read_file(path / "operstate") in ("up", "unknown") for path in interfaces)


def network_firmware(target: Target, right: str) -> Answer | None:
    """Check that RDMA devices of one kind have the same firmware."""
    versions: dict[str, set[str]] = {}
    for device in _devices(target):
        versions.setdefault(read_file(device / "board_id") or "?", set()).add(read_file(device / "fw_ver"))
    if not versions:
        return None
    mixed = [", ".join(sorted(texts)) for texts in versions.values() if len(texts) > 1]
    return Answer("; ".join(mixed) or ", ".join(sorted(set().union(*versions.values()))), not mixed)


def gpu_direct(target: Target, right: str) -> Answer | None:
    """Check that RDMA devices reach NVIDIA's memory without the host."""
    if not _devices(target):
        return None
    modules = [name for name in ("nvidia_peermem", "gdrdrv") if (target.root / "sys/module" / name).is_dir()]
    params = read_file(target.root / "proc/driver/nvidia/params")
    modules += ["PeerMappingOverride"] if re.search(r"PeerMappingOverride\W+1", params) else []
    return Answer(", ".join(modules) or "no nvidia_peermem, gdrdrv or PeerMappingOverride", bool(modules))
