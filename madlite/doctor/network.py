"""Checks of the network between nodes: RDMA ports and their addresses, links, the interface of sockets.

Formats: Linux, Documentation/ABI/stable/sysfs-class-infiniband, Documentation/ABI/testing/sysfs-class-net.  A machine
without RDMA devices has none to check.
"""

from __future__ import annotations

import re
from pathlib import Path

from madlite.doctor.check import UNREADABLE, Answer, Target
from madlite.machine.fabric import DEVICES, HCA, INTERFACES, NET, find_fabric
from madlite.machine.host import list_folder, read_file


def _devices(target: Target) -> list[Path]:
    """Return the RDMA devices that NCCL_IB_HCA names, all where it is not set.

    Its names are prefixes, those after `=` whole names; `^` names what is left out.
    """
    devices = list_folder(target.root / DEVICES)
    text = target.host.env.get(HCA, "")
    names = tuple(name.partition(":")[0] for name in text.lstrip("^=").split(",") if name)
    whole, out = "=" in text[:2], text.startswith("^")
    if not names:
        return devices
    return [item for item in devices if (item.name in names if whole else item.name.startswith(names)) is not out]


def rdma_ports(target: Target, right: str) -> Answer | None:
    """Check that the ports of the RDMA devices are up."""
    states = {
        f"{port.parent.parent.name}:{port.name}": (read_file(port / "state"), read_file(port / "phys_state"))
        for device in _devices(target)
        for port in list_folder(device / "ports")
    }
    if not states:
        return None
    down = [name for name, (state, link) in states.items() if "ACTIVE" not in state or "LinkUp" not in link]
    listed = f"; down: {', '.join(down)}" if down else ""
    return Answer(f"{len(states) - len(down)} of {len(states)} up{listed}", not down)


def rdma_addresses(target: Target, right: str) -> Answer | None:
    """Check that each active RoCE port has an address of RoCE v2."""
    names = {device.name for device in _devices(target)}
    fabric = find_fabric(target.root)
    ports = [port for port in fabric.ports if port.is_roce and port.device in names]
    if not ports:
        return None
    if without := [port.name for port in ports if port.gid_index is None]:
        return Answer(f"none of {', '.join(without)}", False)
    return Answer(f"index {'differs' if fabric.gid_index is None else fabric.gid_index}", True)


def link_speed(target: Target, right: str) -> Answer | None:
    """Check the speed of the interfaces of RDMA devices, in Mb/s."""
    interfaces = [path.name for device in _devices(target) for path in list_folder(device / "device/net")]
    if not interfaces:
        return None
    speeds = {name: read_file(target.root / NET / name / "speed") for name in interfaces}
    known = {name: speed for name, speed in speeds.items() if speed.isdecimal()}
    slow = [f"{name} {speed}" for name, speed in known.items() if int(speed) < int(right or 0)]
    text = ", ".join(slow or dict.fromkeys(known.values()))
    return Answer(text, not slow) if known else Answer(UNREADABLE)


def socket_interface(target: Target, right: str) -> Answer | None:
    """Check that the interfaces that variables name are there and up; without one, which one the route takes."""
    named = {name: text for name in INTERFACES if (text := target.host.env.get(name, ""))}
    if not named:
        route = find_fabric(target.root).interface
        return Answer(f"{route} by its route, no variable names one") if route else None
    interfaces = list_folder(target.root / NET)
    up = [path.name for path in interfaces if read_file(path / "operstate") in ("up", "unknown")]
    down = []
    for variable, text in named.items():
        prefixes = tuple(text.lstrip("=").split(","))
        if not text.startswith("^") and not any(name.startswith(prefixes) for name in up):
            down.append(f"{variable}={text}")
    return Answer(f"not up: {', '.join(down)}" if down else ", ".join(dict.fromkeys(named.values())), not down)


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
