"""Machines that are not here: tools on the search path, and a tree that a process sees as its /sys."""

from __future__ import annotations

from pathlib import Path

from tests.machine.stand_in import Bench, amd_list, amd_static

H100 = "NVIDIA H100 80GB HBM3"
CUDA = "| NVIDIA-SMI 580.10.01     Driver Version: 580.10.01     CUDA Version: 13.0 |\n"
ROCM = "AMDSMI Tool: 25.5.1 | AMDSMI Library version: 25.5.1 | ROCm version: 6.4.1\n"
REAL_GPUS = ("/proc/driver/nvidia/gpus", "/dev/nvidia0", "/dev/kfd")  # would be found beside the pretended ones


class StandIn:
    """A machine's tools in `bin`, and its /sys."""

    def __init__(self, bench: Bench) -> None:
        self.bin, self.sys = bench.bin, bench.root / "sys"
        self.sys.mkdir(exist_ok=True)

    def command(self, *argv: str) -> list[str]:
        """Return a command that sees this machine's /sys: it alone, in a mount namespace of its own."""
        inside = 'mount --bind "$0" /sys && exec "$@"'
        return ["unshare", "--mount", "--propagation", "private", "sh", "-c", inside, str(self.sys), *argv]


def two_mi300x(folder: Path) -> StandIn:
    """Two MI300X with render nodes 128 and 136, ROCm 6.4.1."""
    bench = Bench(folder)
    bench.mi300x(1, first=1)
    bench.mi300x(1, first=9)
    bench.tool("amd-smi", ("*static*", amd_static([0, 1])), ("*list*", amd_list([1, 9])), ("version", ROCM))
    bench.tool("rocm-smi", ("*", ""))
    return StandIn(bench)


def h100s(folder: Path, count: int) -> StandIn:
    """So many H100, CUDA 13.0."""
    bench = Bench(folder)
    rows = "".join(
        f"{n}, {H100}, GPU-7e{n}f0000-aaaa-bbbb-cccc-ddddeeeeffff, 81559, 00000000:{n + 0x21:02X}:00.0, 580.10.01\n"
        for n in range(count)
    )
    bench.tool("nvidia-smi", ("*--query-gpu*", rows), ("", CUDA))
    return StandIn(bench)
