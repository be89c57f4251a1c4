"""What of the host can change a training's speed, read from /proc and /sys: CPUs, memory, limits, network.

Formats: proc(5), cgroups(7); numa_balancing: Linux, admin-guide/sysctl/kernel, bits of which 1 is the balancing.
"""

from __future__ import annotations

import os
import platform
import re
import resource
import socket
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
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
    memory_gib, cpus = [], []
    for folder in _groups(root):
        memory = parse_int(read_file(folder / "memory.max")) or parse_int(read_file(folder / "memory.limit_in_bytes"))
        memory_gib += [memory / GIB] if memory and memory < _NO_LIMIT else []
        quota = read_file(folder / "cpu.max").split()[:2]
        if len(quota) == 2 and all(part.isdecimal() and int(part) for part in quota):
            cpus.append(int(quota[0]) / int(quota[1]))
    limits = {"cgroup_memory_gib": f"{min(memory_gib):.1f}"} if memory_gib else {}
    return {**limits, **({"cgroup_cpus": f"{min(cpus):g}"} if cpus else {})}


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
    near = ",".join(read_file(root / f"sys/devices/system/node/node{node}/cpulist") for node in nodes)
    usable = sorted(cpu_numbers(near) & os.sched_getaffinity(0))
    return NumaPlace(nodes=_text(nodes), cpus=_text(usable)) if usable else None


def cpu_numbers(text: str) -> set[int]:
    """Return the CPUs of a list such as `0-3,8`."""
    found = filter(None, (_RANGE.fullmatch(part.strip()) for part in text.split(",")))
    return {number for item in found for number in range(int(item[1]), int(item[2] or item[1]) + 1)}


def _text(numbers: list[int]) -> str:
    """Return sorted numbers as a list with ranges."""
    neighbours = groupby(enumerate(numbers), lambda placed: placed[1] - placed[0])
    ranges = ([number for _, number in group] for _, group in neighbours)
    return ",".join(f"{found[0]}-{found[-1]}" if len(found) > 1 else str(found[0]) for found in ranges)


# What connects this machine with others: RDMA devices, the index of their RoCE v2 address, and a network interface.
#
# Formats: Linux, Documentation/ABI/stable/sysfs-class-infiniband (`state` is `4: ACTIVE`, `rate` `400 Gb/sec (4X NDR)`,
# `gid_attrs/types/N` `RoCE v2` or `IB/RoCE v1`, which cannot be read where the address N is empty), proc(5)
# (`net/route`: interface, destination, gateway, flags, …, metric, mask, in hexadecimal; `net/ipv6_route`: destination,
# its length, source, its length, next hop, metric, …, interface).  NCCL_IB_HCA, NCCL_IB_GID_INDEX and
# NCCL_SOCKET_IFNAME are as NCCL's documentation has them, and RCCL's: `=` names devices and interfaces in full.


IB_DISABLE = "NCCL_IB_DISABLE"
HCA, GID_INDEX = "NCCL_IB_HCA", "NCCL_IB_GID_INDEX"
INTERFACES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
DEVICES, NET = "sys/class/infiniband", "sys/class/net"
_ROUTES, _IPV6_ROUTES = "proc/net/route", "proc/net/ipv6_route"
_RATE = re.compile(r"(\d+(?:\.\d+)?) Gb/sec")
_MAPPED = "0000:0000:0000:0000:0000:ffff:"  # an IPv4 address, which networks route
_LINK_LOCAL = "fe80:"
_VIRTUAL = re.compile(r"lo|docker\d*|br-.*|veth.*|virbr.*|podman\d*|cni.*|flannel.*|cali.*|tun.*|tap.*|dummy.*")


class RdmaPort(Value, frozen=True):
    """An active port of an RDMA device; `gid_index` is None of InfiniBand, which needs none, and where none fits."""

    device: str
    port: int
    gbit_per_s: float
    is_roce: bool
    gid_index: int | None = None
    numa_node: int | None = None

    @property
    def name(self) -> str:
        """The port as NCCL_IB_HCA has it."""
        return f"{self.device}:{self.port}"


class Fabric(Value, frozen=True):
    """The network between nodes as this machine sees it: the fastest RDMA ports, and the interface of its routes."""

    ports: tuple[RdmaPort, ...] = ()
    interface: str = ""
    slower: tuple[str, ...] = ()  # active ports that are left out

    @property
    def gid_index(self) -> int | None:
        """The index that all ports have their RoCE v2 address at; None where they differ, or none has one."""
        indices = {port.gid_index for port in self.ports if port.is_roce}
        return indices.pop() if len(indices) == 1 else None

    @property
    def variables(self) -> dict[str, str]:
        """The variables by which RCCL, NCCL and Gloo use it."""
        values: dict[str, str] = {}
        if self.ports:
            values[HCA] = hca_list([port.name for port in self.ports])
        if self.gid_index is not None:
            values[GID_INDEX] = str(self.gid_index)
        if self.interface:
            values |= interface_variables(f"={self.interface}")
        return values

    @property
    def text(self) -> str:
        """What was found, as one phrase."""
        if not self.ports:
            return (
                f"sockets by {self.interface or 'an interface that RCCL or NCCL chooses'}, no active RDMA device here"
            )
        port = self.ports[0]
        kind = "RoCE" if port.is_roce else "InfiniBand"
        index = f", GID index {self.gid_index}" if self.gid_index is not None else ""
        numa = sorted({item.numa_node for item in self.ports if item.numa_node is not None})
        near = f", on NUMA nodes {', '.join(map(str, numa))}" if numa else ""
        names = ", ".join(item.name for item in self.ports)
        less = f", not by {', '.join(self.slower)}, which are slower" if self.slower else ""
        socket = f"; sockets by {self.interface}" if self.interface else ""
        return f"{kind} by {names} ({port.gbit_per_s:g} Gb/s{index}{near}){less}{socket}"


def hca_list(names: Sequence[str]) -> str:
    """Return NCCL_IB_HCA of devices or ports: in full, as mlx5_1 alone would be the beginning of mlx5_10 too.

    A first one that begins with `=` or `^` has the form of the list already.
    """
    text = ",".join(names)
    return text if text.startswith(("=", "^")) else f"={text}"


def interface_variables(text: str) -> dict[str, str]:
    """Return the variables of interfaces as NCCL has them; Gloo takes names alone, and has none of what is left out."""
    nccl, gloo = INTERFACES
    return {nccl: text} if text.startswith("^") else {nccl: text, gloo: text.removeprefix("=")}


def find_fabric(root: Path = Path("/")) -> Fabric:
    """Return the fabric; `root` other than `/` is a copy of a machine's files.  Never raises for what is not there."""
    found = [port for device in list_folder(root / DEVICES) for port in _ports(device)]
    fastest = max((port.gbit_per_s for port in found), default=0.0)
    ports = sorted((port for port in found if port.gbit_per_s == fastest), key=_natural)
    slower = sorted((port for port in found if port.gbit_per_s < fastest), key=_natural)
    return Fabric(ports=tuple(ports), interface=_interface(root), slower=tuple(port.name for port in slower))


def _ports(device: Path) -> Iterator[RdmaPort]:
    """Yield the ports of a device that are active."""
    numa = read_file(device / "device/numa_node")
    for port in list_folder(device / "ports"):
        if not port.name.isdecimal() or "ACTIVE" not in read_file(port / "state"):
            continue
        rate = _RATE.search(read_file(port / "rate"))
        is_roce = read_file(port / "link_layer") == "Ethernet"
        yield RdmaPort(
            device=device.name,
            port=int(port.name),
            gbit_per_s=float(rate[1]) if rate else 0.0,
            is_roce=is_roce,
            gid_index=_gid_index(port) if is_roce else None,
            numa_node=int(numa) if numa.isdecimal() else None,
        )


def _gid_index(port: Path) -> int | None:
    """Return the index of a port's RoCE v2 address: an IPv4 one, else one that is not of the link alone."""
    gids: dict[int, str] = {}
    for file in list_folder(port / "gid_attrs/types"):
        if file.name.isdecimal() and read_file(file) == "RoCE v2":
            gids[int(file.name)] = read_file(port / "gids" / file.name).lower()
    ranked = sorted(
        gids, key=lambda index: (not gids[index].startswith(_MAPPED), gids[index].startswith(_LINK_LOCAL), index)
    )
    return ranked[0] if ranked else None


def _interface(root: Path) -> str:
    """Return the interface of the default route; without one, the only interface that is up and a network's."""
    routes = [line.split() for line in read_file(root / _ROUTES).splitlines()[1:]]
    default = [
        (int(fields[6]), fields[0])
        for fields in routes
        if len(fields) > 7 and fields[1] == fields[7] == "00000000" and fields[6].isdecimal()
    ]
    default = default or [*_ipv6_defaults(root)]
    if default:
        return min(default)[1]
    up = [
        path.name
        for path in list_folder(root / NET)
        if not _VIRTUAL.fullmatch(path.name) and read_file(path / "operstate") == "up"
    ]
    return up[0] if len(up) == 1 else ""


def _ipv6_defaults(root: Path) -> Iterator[tuple[int, str]]:
    """Yield metric and interface of each default route of IPv6: of a site without IPv4 between its nodes."""
    for fields in map(str.split, read_file(root / _IPV6_ROUTES).splitlines()):
        if len(fields) == 10 and int(fields[0] + fields[1], 16) == 0 and not _VIRTUAL.fullmatch(fields[9]):
            yield int(fields[5], 16), fields[9]


def _natural(port: RdmaPort) -> tuple[str, int, int]:
    """Sort mlx5_10 after mlx5_9."""
    number = re.search(r"\d+$", port.device)
    return port.device[: number.start()] if number else port.device, int(number[0]) if number else 0, port.port
