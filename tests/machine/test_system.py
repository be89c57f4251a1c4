"""What of the operating system is told: the distribution, NUMA balancing."""

from __future__ import annotations

from tests.rows import each_row

from .stand_in import Bench
from .test_nvidia import TABLE, rows


@each_row(
    ("tools", "host_os"),
    [
        ("tdnf", "HOST_AZURE"),
        ("zypper", "HOST_SLES"),
        ("yum tdnf", "HOST_CENTOS"),
        ("apt yum", "HOST_UBUNTU"),
        ("", ""),
    ],
)
def test_host_os_follows_the_package_tools(bench: Bench, tools: str, host_os: str) -> None:
    for tool in tools.split():
        bench.script(tool, "exit 0")
    assert bench.detect().host_os == host_os


@each_row(
    ("kernel", "context", "warns"),
    [
        ("1\n", {}, True),
        ("3\n", {}, True),  # with memory tiers
        ("0\n", {}, False),
        ("2\n", {}, False),  # memory tiers alone
        (None, {}, False),
        ("1\n", {"numa_balancing": "0"}, False),
        ("0\n", {"numa_balancing": "1"}, True),
        (None, {"numa_balancing": 1}, True),
    ],
)
def test_numa_balancing_is_warned_of_once(
    bench: Bench, kernel: str | None, context: dict[str, object], warns: bool
) -> None:
    bench.mi300x(8)
    if kernel is not None:
        bench.file("proc/sys/kernel/numa_balancing", kernel)
    told = [problem for problem in bench.detect(**context).problems if problem.where == "numa_balancing"]
    assert len(told) == (1 if warns else 0)
    assert all("sysctl kernel.numa_balancing=0" in problem.what for problem in told)


@each_row("overrides", [{"gpu_vendor": "CPU"}, {"device": "MI355X", "n_gpus": 8}])
def test_numa_balancing_matters_to_amd_gpus_that_are_here(bench: Bench, overrides: dict[str, object]) -> None:
    bench.file("proc/sys/kernel/numa_balancing", "1\n")
    bench.mi300x(1)
    assert bench.detect(**overrides).problems == ()


def test_numa_balancing_of_a_machine_that_is_not_here_is_what_the_context_says(bench: Bench) -> None:
    pretended = {"device": "MI355X", "n_gpus": 8}
    bench.file("proc/sys/kernel/numa_balancing", "0\n")
    (told,) = bench.detect(**pretended, numa_balancing="1").problems
    assert told.where == "numa_balancing" and "sysctl kernel.numa_balancing=0" in told.what
    assert bench.detect(**pretended, numa_balancing="0").problems == ()


def test_numa_balancing_is_no_matter_of_nvidia(bench: Bench) -> None:
    bench.file("proc/sys/kernel/numa_balancing", "1\n")
    bench.tool("nvidia-smi", ("*--query-gpu*", rows(1)), ("", TABLE))
    assert bench.detect().problems == ()
