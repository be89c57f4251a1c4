from __future__ import annotations

from madlite.machine.host_facts import host_facts, host_warnings
from madlite.model import Machine
from tests.rows import each_row

from .stand_in import Bench

CPUINFO = "".join(
    f"processor\t: {n}\nmodel name\t: Some  CPU 9000\nphysical id\t: {n // 4}\ncpu cores\t: 2\n\n" for n in range(8)
)


def test_a_host_in_full(bench: Bench) -> None:
    bench.file("etc/os-release", 'NAME="X"\nPRETTY_NAME="Some Linux 12"\n')
    bench.file("proc/cpuinfo", CPUINFO)
    bench.file("proc/meminfo", "MemTotal:       1585446912 kB\nMemFree: 1 kB\n")
    bench.file("proc/sys/kernel/numa_balancing", "1\n")
    for name in ("node0", "node1", "possible"):
        bench.file(f"sys/devices/system/node/{name}/cpulist", "0\n")
    for cpu, governor in (("cpu0", "performance"), ("cpu1", "performance"), ("cpu2", "powersave")):
        bench.file(f"sys/devices/system/cpu/{cpu}/cpufreq/scaling_governor", governor)
    bench.file("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n")
    told = host_facts(bench.root)
    expected = {
        "os": "Some Linux 12",
        "cpu": "2 x Some CPU 9000, 4 cores, 8 threads",
        "memory_gib": "1512",
        "numa_nodes": "2",
        "numa_balancing": "1",
        "cpu_governor": "performance, powersave",
        "transparent_hugepages": "madvise",
    }
    assert {name: told.get(name) for name in expected} == expected
    assert told["hostname"] and told["kernel"].startswith("Linux ")
    assert told["memlock"] == "unlimited" or told["memlock"].endswith(" KiB")


def test_a_host_that_tells_nothing(bench: Bench) -> None:
    told = host_facts(bench.root)
    assert set(told) == {"hostname", "kernel", "cpu", "memlock"}
    assert told["cpu"].startswith("1 x ")


@each_row(
    ("groups", "files", "expected"),
    [
        ("0::/a/b\n", {"a/b/memory.max": "max", "a/memory.max": str(64 << 30)}, {"cgroup_memory_gib": "64.0"}),
        ("0::/\n", {"cpu.max": "1600000 100000"}, {"cgroup_cpus": "16"}),
        ("0::/a\n", {"a/cpu.max": "max 100000", "cpu.max": "250000 100000"}, {"cgroup_cpus": "2.5"}),
        ("4:memory:/job\n", {"memory/job/memory.limit_in_bytes": str(8 << 30)}, {"cgroup_memory_gib": "8.0"}),
        ("4:memory:/job\n", {"memory/job/memory.limit_in_bytes": "9223372036854771712"}, {}),
        ("0::/../x\n", {"memory.max": "max", "cpu.max": "0 0"}, {}),
        ("nonsense", {}, {}),
    ],
)
def test_limits_of_control_groups(bench: Bench, groups: str, files: dict[str, str], expected: dict[str, str]) -> None:
    bench.file("proc/self/cgroup", groups)
    for name, text in files.items():
        bench.file(f"sys/fs/cgroup/{name}", text)
    assert {name: text for name, text in host_facts(bench.root).items() if name.startswith("cgroup")} == expected


@each_row(
    ("vendor", "value", "doubted"),
    [("AMD", "1", True), ("AMD", "3", True), ("AMD", "2", False), ("AMD", "0", False), ("NVIDIA", "1", False)],
)
def test_numa_balancing_is_a_finding_on_amd_machines(vendor, value: str, doubted: bool) -> None:
    said = host_warnings(Machine(vendor=vendor), {"numa_balancing": value})
    assert any("sysctl kernel.numa_balancing=0" in text for text in said) is doubted
    assert host_warnings(Machine(vendor=vendor), {}) == ()
