"""The driver's table of counters, packed here by the kernel's own description of each revision."""

from __future__ import annotations

import struct
from pathlib import Path
from threading import Event

from madlite.machine.host import Host
from madlite.machine.sources.amdgpu import AmdGpu, DriverCounters, read_counters
from madlite.machine.sources.base import Reading
from madlite.machine.telemetry import Sample, open_sources, summarise
from madlite.model import Gpu
from tests.machine.stand_in import Bench
from tests.rows import each_row

NONE = 0xFFFFFFFF
COUNTS = (2, 300, 40, 0, NONE)  # PROCHOT, PPT, socket, regulator, HBM


def fixed(minor: int, ticks: int = 1000, joules: int = 7, counts: tuple[int, ...] = COUNTS) -> bytes:
    """Temperatures, power, activity, from 1.7 on the bandwidth, energy, time, counters, and what comes after."""
    head = struct.pack("<HBB6H", 344, 1, minor, 60, 55, 50, 700, 99, 80)
    head += struct.pack("<Q", 5300) if minor > 6 else b""
    return head + struct.pack("<QQ6I", joules << 16, 12345, ticks, *counts) + b"\xff" * 200


def listed(ticks: int = 1000, joules: int = 7, counts: tuple[int, ...] = COUNTS, clocks: int = 8) -> bytes:
    """Revision 1.9: number, type (2 is u16, 4 is u32, 6 is u64) and values of each field, packed."""
    fields = [*((n, 2, "H", (60,)) for n in range(6)), (6, 6, "Q", (5300,)), (7, 6, "Q", (joules << 16,))]
    fields += [(8, 6, "Q", (12345,)), (9, 4, "I", (ticks,)), *((10 + n, 4, "I", (c,)) for n, c in enumerate(counts))]
    fields.insert(6, (33, 2, "H", (1300,) * clocks))  # the order is nobody's promise
    body = b"".join(
        struct.pack(f"<Q{len(values)}{code}", 3 << 24 | kind << 20 | number << 10 | len(values), *values)
        for number, kind, code, values in fields
    )
    return struct.pack("<HBBi", 8 + len(body), 1, 9, len(fields)) + body


EXPECTED = DriverCounters(
    energy_j=7.0,
    ticks=1000.0,
    counters={
        "PROCHOT/prochot": 2.0,
        "power cap/ppt": 300.0,
        "thermal/socket_thermal": 40.0,
        "voltage regulator thermal/vr_thermal": 0.0,
    },
)


@each_row("table", [fixed(6), fixed(7), fixed(8), listed(), listed(clocks=1)])
def test_every_revision_that_counts(tmp_path: Path, table: bytes) -> None:
    (tmp_path / "gpu_metrics").write_bytes(table)
    assert read_counters(tmp_path / "gpu_metrics") == EXPECTED


@each_row(
    "table",
    [
        *(b"", b"\x14", fixed(8)[:60], listed()[:90], listed()[:8], struct.pack("<HBBi", 8, 1, 9, -5)),
        *(fixed(3), fixed(5), b"\x78\0\2\6" + fixed(6)[4:], fixed(8, ticks=0), fixed(8, ticks=NONE)),
        listed()[:8] + struct.pack("<Q", 15 << 20) + listed()[16:],
    ],
)
def test_tables_that_do_not_count_or_are_cut_off(tmp_path: Path, table: bytes) -> None:
    (tmp_path / "gpu_metrics").write_bytes(table)
    assert read_counters(tmp_path / "gpu_metrics") is None


def test_without_a_table(tmp_path: Path) -> None:
    assert read_counters(tmp_path / "gpu_metrics") is None
    assert read_counters(tmp_path) is None


@each_row(
    ("thermal", "part"),
    [
        ((1000, 1000, 1000), 0.0),  # held before the run and not during it
        ((1000, 2000, 3000), 0.0),  # not counted
        ((1000, 1100, 1200), 0.1),
        ((0, 0, 500), 0.25),
        ((NONE, 1000, 3000), 0.0),
    ],
)
def test_what_held_at_every_tick_to_the_end_was_not_counted(
    tmp_path: Path, thermal: tuple[int, int, int], part: float
) -> None:
    samples = []
    for n, count in enumerate(thermal):
        ticks = 1000 * (n + 1)
        (tmp_path / "gpu_metrics").write_bytes(fixed(6, ticks=ticks, counts=(0, ticks, count, 9, ticks)))
        counted = read_counters(tmp_path / "gpu_metrics")
        assert counted
        reading = Reading(index=0, ticks=counted.ticks, counters=counted.counters)
        samples.append(Sample(t_s=10.0 * n, gpus=(reading,)))
    told = summarise(samples, [0], None, None, "AMD")
    assert (told.throttled, told.throttled_by) == (part, {"thermal": part} if part else {})


def gpu(bench: Bench, bus: str, table: bytes = b"") -> None:
    bench.file(f"sys/bus/pci/devices/{bus}/hwmon/hwmon1/power1_input", "650000000\n")
    if table:
        (bench.root / f"sys/bus/pci/devices/{bus}/gpu_metrics").write_bytes(table)


GPUS = (Gpu(index=0, bus="0000:05:00.0"), Gpu(index=1, bus="0000:26:00.0"))


def test_files_that_count_need_no_tool_beside_them(bench: Bench) -> None:
    bench.script("amd-smi", "sleep 30")
    for one in GPUS:
        gpu(bench, one.bus, fixed(8))
    host = Host(root=bench.root, path=str(bench.bin), limit_s=10, env={"PATH": "/usr/bin:/bin"})
    ((source, first),), problem = open_sources("AMD", GPUS, host, Event())
    assert (source.name, problem) == ("amdgpu", "")
    for one in GPUS:
        gpu(bench, one.bus, fixed(8, ticks=21_000, joules=12_607, counts=(2, 15_300, 3_640, 0, NONE)))
    samples = [Sample(t_s=0.0, gpus=first.readings), Sample(t_s=20.0, gpus=source.read().readings)]
    summary = summarise(samples, [0, 1], None, None, "AMD")
    assert summary.power_w == 630.0  # 12600 J in 20 s, and not the sampled 650 W
    assert (summary.throttled, summary.power_cap, summary.throttled_by) == (0.18, 0.75, {"thermal": 0.18})


@each_row("second", [b"", fixed(3)])
def test_counters_of_some_gpus_are_left_to_the_tool(bench: Bench, second: bytes) -> None:
    gpu(bench, GPUS[0].bus, fixed(8))
    gpu(bench, GPUS[1].bus, second)
    files = AmdGpu(bench.root, GPUS)
    assert not files.counts
    assert [(one.ticks, one.energy_j) for one in files.read().readings] == [(None, None)] * 2
