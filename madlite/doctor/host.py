"""Checks of the host: kernel, CPUs, memory, limits of processes, disk, clock, network between nodes.

Formats: proc(5); Linux, admin-guide/kernel-parameters, admin-guide/pm/cpufreq and cpuidle; systemctl(1).
"""

from __future__ import annotations

import os
import re
import resource
from pathlib import Path

from madlite.doctor.check import UNREADABLE, Answer, Target, equals
from madlite.machine.host import is_balancing, list_folder, read_file, run_tool
from madlite.machine.host_facts import DEVICES, HCA, INTERFACES, NET, find_fabric
from madlite.machine.sources.base import GIB
from madlite.text import counted, size_text

_CPUS = "sys/devices/system/cpu"
_ENGINE_FOLDERS = ("var/lib/docker", "var/lib/containers")
_LOG_S = 15 * 60  # how far back the kernel's log counts
_STAMP = re.compile(r"^\[\s*(\d+)\.\d+\]")
_BAD_LINE = re.compile(
    r"\bxid\b|hardware error|gpu reset|blocked for more than|soft lockup|page allocation failure"
    r"|amdgpu.*(?:error|fail|timeout)|\*error\*|mce:.*error",
    re.IGNORECASE,
)


def numa_balancing(target: Target, right: str) -> Answer:
    """Check that the kernel moves no pages between NUMA nodes."""
    text = read_file(target.root / "proc/sys/kernel/numa_balancing")
    return Answer(text, not is_balancing(text)) if text else Answer(UNREADABLE)


def _boot_options(target: Target, name: str) -> list[str]:
    """Return the values that the kernel was started with: of `pci=bfsort,realloc=off` two."""
    words = (word.partition("=") for word in read_file(target.root / "proc/cmdline").split())
    return [option for key, _, value in words if key == name for option in value.split(",")]


def _has_boot_option(target: Target, name: str, option: str) -> Answer:
    if not read_file(target.root / "proc/cmdline"):
        return Answer(UNREADABLE)
    options = _boot_options(target, name)
    return Answer(f"{name}={','.join(options)}" if options else f"no {name}=", option in options)


def pci_realloc(target: Target, right: str) -> Answer:
    """Check that the kernel leaves the addresses of PCI devices as the BIOS gave them."""
    return _has_boot_option(target, "pci", "realloc=off")


def pci_bfsort(target: Target, right: str) -> Answer:
    """Check that the kernel numbers PCI devices breadth first."""
    return _has_boot_option(target, "pci", "bfsort")


def iommu(target: Target, right: str) -> Answer:
    """Check that the IOMMU passes through; Intel's has to be on, too."""
    answer = _has_boot_option(target, "iommu", "pt")
    if not answer.ok or "GenuineIntel" not in read_file(target.root / "proc/cpuinfo"):
        return answer
    intel = _has_boot_option(target, "intel_iommu", "on")
    return Answer(f"{answer.value}, {intel.value}", intel.ok, "iommu=pt and intel_iommu=on")


def cpu_governor(target: Target, right: str) -> Answer:
    """Check the governor of every core."""
    return equals(target.facts.get("cpu_governor", ""), right)


def cpu_deep_sleep(target: Target, right: str) -> Answer:
    """Check that no core sleeps deeper than C1."""
    limit = _boot_options(target, "processor.max_cstate")
    if limit and limit[0] in ("0", "1"):
        return Answer(f"processor.max_cstate={limit[0]}", True)
    states = [read_file(cpu / "cpuidle/state2/disable") for cpu in list_folder(target.root / _CPUS)]
    known = [text for text in states if text]
    on = known.count("0")
    return Answer(f"C2 on {on} of {len(known)} CPUs", not on) if known else Answer(UNREADABLE)


def cpu_idle_states(target: Target, right: str) -> Answer:
    """Check that cores can sleep at all."""
    driver = read_file(target.root / _CPUS / "cpuidle/current_driver")
    return Answer(driver, driver != "none") if driver else Answer(UNREADABLE)


def transparent_hugepages(target: Target, right: str) -> Answer:
    """Check that memory comes in huge pages."""
    return equals(target.facts.get("transparent_hugepages", ""), right)


def memory(target: Target, right: str) -> Answer:
    """Check the memory of the host; the right value is in TB."""
    total = re.search(r"^MemTotal:\s*(\d+) kB", read_file(target.root / "proc/meminfo"), re.MULTILINE)
    if total is None:
        return Answer(UNREADABLE)
    size = int(total[1]) * 1024
    least = re.match(r"[\d.]+", right)
    return Answer(f"{size / 1e12:.2f} TB", size >= float(least[0]) * 1e12 if least else None)


def memlock(target: Target, right: str) -> Answer:
    """Check how much memory a process may lock, as RDMA does."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return Answer("unlimited" if soft == resource.RLIM_INFINITY else size_text(soft), soft < 0 or soft >= 32 * GIB)


def open_files(target: Target, right: str) -> Answer:
    """Report how many files and processes a user may have open; nobody names a least number."""
    limits = [resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC)]
    files, processes = ("unlimited" if limit < 0 else f"{limit:,}" for limit in limits)
    return Answer(f"{files} files, {processes} processes")


def shared_memory(target: Target, right: str) -> Answer:
    """Check the size of /dev/shm."""
    try:
        disk = os.statvfs(target.root / "dev/shm")
    except OSError:
        return Answer(UNREADABLE)
    size = disk.f_blocks * disk.f_frsize
    return Answer(size_text(size), size >= 8 * GIB)


def disk(target: Target, right: str) -> Answer:
    """Check the room where runs, weights and images go."""
    from madlite.assets.paths import existing, hub_cache
    from madlite.images.image import FREE_BYTES, FREE_INODES

    engine = next((folder for folder in _ENGINE_FOLDERS if (target.root / folder).is_dir()), "")
    folders = {"runs": target.workspace, "weights": existing(hub_cache(target.host.env))}
    folders |= {"images": target.root / engine} if engine else {}
    texts, ok = [], True
    for word, folder in folders.items():
        try:
            room = os.statvfs(folder)
        except OSError:
            continue
        free = room.f_bavail * room.f_frsize
        texts.append(f"{word} {size_text(free)}")
        ok = ok and free >= FREE_BYTES and (not room.f_files or room.f_favail >= FREE_INODES)
    return Answer(f"free: {', '.join(texts)}", ok) if texts else Answer(UNREADABLE)


def virtualised(target: Target, right: str) -> Answer:
    """Check that the machine is no virtual one."""
    flags = re.search(r"^flags\s*:(.*)$", read_file(target.root / "proc/cpuinfo"), re.MULTILINE)
    if flags is None:
        return Answer(UNREADABLE)
    is_guest = "hypervisor" in flags[1].split()
    return Answer("a virtual machine" if is_guest else "none", not is_guest)


def system(target: Target, right: str) -> Answer:
    """Report system, kernel and BIOS; what is right is in a matrix of each release of ROCm."""
    bios = read_file(target.root / "sys/class/dmi/id/bios_version")
    kernel = read_file(target.root / "proc/sys/kernel/osrelease")
    parts = (target.facts.get("os", ""), kernel and f"Linux {kernel}", bios and f"BIOS {bios}")
    return Answer(", ".join(filter(None, parts)) or UNREADABLE)


def clock_sync(target: Target, right: str) -> Answer:
    """Check that a service keeps the clock."""
    services = ("chronyd", "chrony", "ntpd", "ntp", "systemd-timesyncd")
    output = run_tool(target.host, "systemctl", "is-active", *services)
    states = output.text.split()
    if len(states) != len(services):  # no systemd here, as in a container
        return Answer(output.problem or UNREADABLE)
    active = [name for name, state in zip(services, states, strict=True) if state == "active"]
    return Answer(active[0] if active else "no service is active", bool(active))


def kernel_log(target: Target, right: str) -> Answer:
    """Check the kernel's log of the last quarter of an hour for errors of the hardware."""
    output = run_tool(target.host, "dmesg")
    if output.problem:
        return Answer(output.problem)
    up = read_file(target.root / "proc/uptime").split()
    since_s = float(up[0]) - _LOG_S if up else 0.0
    stamped = [(_STAMP.match(line), line) for line in output.text.splitlines() if _BAD_LINE.search(line)]
    lines = [line for stamp, line in stamped if stamp is None or float(stamp[1]) >= since_s]
    more = f" and {counted(len(lines) - 1, 'more line')}" if len(lines) > 1 else ""
    return Answer(f"{lines[-1][:200]}{more}" if lines else "none", not lines)


# Checks of the network between nodes: RDMA ports and their addresses, links, the interface of sockets.
#
# Formats: Linux, Documentation/ABI/stable/sysfs-class-infiniband, Documentation/ABI/testing/sysfs-class-net.  A machine
# without RDMA devices has none to check.


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
