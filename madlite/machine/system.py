"""What of the operating system matters to a run: the distribution, and NUMA balancing."""

from __future__ import annotations

from madlite.machine.facts import Source, whole
from madlite.machine.host import Host, find_tool, read_file

PACKAGE_TOOLS = {"apt": "HOST_UBUNTU", "yum": "HOST_CENTOS", "zypper": "HOST_SLES", "tdnf": "HOST_AZURE"}


def find_host_os(host: Host) -> str:
    """Return MAD's word for the distribution, by the first package tool that is installed."""
    return next((name for tool, name in PACKAGE_TOOLS.items() if find_tool(host, tool)), "")


def doubt_numa_balancing(host: Host, said: str) -> list[Source]:
    """Return a warning where the kernel moves pages between NUMA nodes, which AMD's guides want off.

    `said` is what a context has instead of /proc/sys/kernel/numa_balancing: bits, 1 the balancing, 2 memory tiers.
    """
    value = whole(said or read_file(host.root / "proc/sys/kernel/numa_balancing"))
    what = "it is on, which can slow AMD GPUs: sudo sysctl kernel.numa_balancing=0"
    return [Source(name="numa_balancing", problem=what)] if (value or 0) & 1 else []
