"""Machines that are not here: tools on the search path, and trees that a process sees as its /sys and /dev."""

from __future__ import annotations

from pathlib import Path

from tests.golden.elsewhere import SCRIPT
from tests.machine.stand_in import Bench, amd_list, amd_static

H100 = "NVIDIA H100 80GB HBM3"
CUDA = "| NVIDIA-SMI 580.10.01     Driver Version: 580.10.01     CUDA Version: 13.0 |\n"
ROCM = "AMDSMI Tool: 25.5.1 | AMDSMI Library version: 25.5.1 | ROCm version: 6.4.1\n"
ALONE = ("unshare", "--mount", "--propagation", "private")


class StandIn:
    """A machine's tools in `bin`, its /sys and its /dev."""

    def __init__(self, bench: Bench) -> None:
        self.folder, self.bin = bench.folder, bench.bin
        for name in ("sys", "dev"):
            (bench.root / name).mkdir(exist_ok=True)

    def command(self, *argv: str) -> list[str]:
        """Return a command that sees this machine and no GPU of the real one: it alone, in a mount namespace."""
        return [*ALONE, "sh", str(SCRIPT), str(self.folder), *argv]


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
