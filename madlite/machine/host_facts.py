"""What of the host can change a training's speed, read from /proc and /sys.

Formats: proc(5), cgroups(7); numa_balancing: Linux, admin-guide/sysctl/kernel, bits of which 1 is the balancing.
"""

from __future__ import annotations

import os
import platform
import re
import resource
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path

from madlite.machine.host import is_balancing, list_folder, read_file
from madlite.machine.sources.base import GIB, parse_int
from madlite.model import Gpu, Machine, Value

_PHYSICAL = re.compile(r"^(processor|physical id|cpu cores|model name|Model)\s*:\s*(.*)$", re.MULTILINE)
_NO_LIMIT = 1 << 60  # cgroup 1 says a number near 2**63 where there is none


def host_facts(root: Path = Path("/")) -> dict[str, str]:
    """Return the facts that this host tells, by name (docs/provenance.md); never raises for what it does not."""
    memory = _find(r"^MemTotal:\s*(\d+) kB", root / "proc/meminfo")
    nodes = sum(bool(re.fullmatch(r"node\d+", path.name)) for path in list_folder(root / "sys/devices/system/node"))
    facts = {
        "hostname": socket.gethostname(),
        "kernel": f"{platform.system()} {platform.release()}",
        "os": _find(r'^PRETTY_NAME="?([^"\n]*)', root / "etc/os-release"),
        "cpu": _cpu(read_file(root / "proc/cpuinfo")),
        "memory_gib": f"{int(memory) * 1024 / GIB:.0f}" if memory else "",
        "numa_nodes": f"{nodes}" if nodes else "",
        "numa_balancing": read_file(root / "proc/sys/kernel/numa_balancing"),
        "cpu_governor": _governors(root),
        "transparent_hugepages": _find(r"\[(\w+)\]", root / "sys/kernel/mm/transparent_hugepage/enabled"),
        "memlock": _memlock(),
        **_cgroup(root),
    }
    return {name: text for name, text in facts.items() if text}


def host_warnings(machine: Machine, facts: dict[str, str]) -> tuple[str, ...]:
    """Return what of the host makes AMD GPUs slower."""
    if machine.vendor != "AMD" or not is_balancing(facts.get("numa_balancing", "")):
        return ()
    return ("NUMA balancing is on, which can slow AMD GPUs: sysctl kernel.numa_balancing=0",)


def _find(pattern: str, file: Path) -> str:
    found = re.search(pattern, read_file(file), re.MULTILINE)
    return found[1] if found else ""


def _cpu(text: str) -> str:
    """Return sockets, model and cores: `2 x AMD EPYC 9654 96-Core Processor, 192 cores, 384 threads`."""
    threads, sockets, model = 0, dict[str, int](), ""
    socket_id = "0"
    for name, value in _PHYSICAL.findall(text):
        if name == "processor" and value.isdecimal():
            threads, socket_id = threads + 1, "0"
        elif name == "physical id":
            socket_id = value
        elif name == "cpu cores":
            sockets[socket_id] = parse_int(value) or 0
        else:
            model = model or " ".join(value.split())
    cores = f", {sum(sockets.values())} cores" if sockets else ""
    return f"{max(1, len(sockets))} x {model or platform.machine()}{cores}, {threads or os.cpu_count()} threads"


def _governors(root: Path) -> str:
    files = (path / "cpufreq/scaling_governor" for path in list_folder(root / "sys/devices/system/cpu"))
    return ", ".join(dict.fromkeys(filter(None, map(read_file, files))))


def _memlock() -> str:
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return "unlimited" if soft == resource.RLIM_INFINITY else f"{soft // 1024} KiB"


def _cgroup(root: Path) -> dict[str, str]:
    """Return this process's limits, the tightest of its group and those around it; a container has its own."""
    limits: dict[str, str] = {}
    for folder in _groups(root):
        memory = parse_int(read_file(folder / "memory.max")) or parse_int(read_file(folder / "memory.limit_in_bytes"))
        if memory and memory < _NO_LIMIT:
            lowest = float(limits.get("cgroup_memory_gib", "inf"))
            limits["cgroup_memory_gib"] = f"{min(lowest, memory / GIB):.1f}"
        quota = (read_file(folder / "cpu.max").split() or ["max"])[:2]
        if len(quota) == 2 and all(part.isdecimal() and int(part) for part in quota):
            cores = int(quota[0]) / int(quota[1])
            limits["cgroup_cpus"] = f"{min(float(limits.get('cgroup_cpus', 'inf')), cores):g}"
    return limits


def _groups(root: Path) -> Iterator[Path]:
    """Yield the folders of this process's control groups, inside out; format: cgroups(7)."""
    base = root / "sys/fs/cgroup"
    for line in read_file(root / "proc/self/cgroup").splitlines():
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        top = base / controllers if controllers else base
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for length in range(len(parts), -1, -1):
            yield top.joinpath(*parts[:length])


def count_oom_kills(vmstat: Path = Path("/proc/vmstat")) -> int | None:
    """Return how many processes the kernel has ended for want of memory, those of containers too; None: not told.

    Format: `oom_kill` of proc(5), Linux 4.13 and later.
    """
    count = _find(r"^oom_kill (\d+)$", vmstat)
    return int(count) if count else None


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
