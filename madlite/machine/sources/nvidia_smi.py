"""NVIDIA GPUs by nvidia-smi, where the library cannot be loaded: facts for detection, samples for telemetry.

The CUDA version stands only in the default table. Fields: `nvidia-smi --help-query-gpu`; one without a value is
`[N/A]`. The reasons of held clocks were called clocks_throttle_reasons before driver 535.
"""

from __future__ import annotations

import re

import msgspec

from madlite.machine.host import Host, ToolOutput, no_gpu_problem, run_tools
from madlite.machine.sources.base import (
    GpuFacts,
    Reading,
    SourceReport,
    ToolSource,
    bus_id,
    clean,
    gib,
    make_reading,
    parse_float,
    parse_int,
    size_bytes,
)
from madlite.machine.sources.nvml import throttle_reasons

NAME = "nvidia-smi"
FORMAT = "--format=csv,noheader,nounits"
FACTS = ("name", "uuid", "memory.total", "pci.bus_id", "driver_version")
CUDA = re.compile(r"CUDA (?:UMD )?Version\s*:\s*(\d+\.\d+)")
DRIVER = re.compile(r"Driver Version\s*:\s*(\d+(?:\.\d+)+)")
SAMPLED = {
    "power.draw": "power_w",
    "clocks.current.sm": "clock_mhz",
    "clocks.current.memory": "memory_clock_mhz",
    "temperature.gpu": "temperature_c",
    "memory.used": "memory_used_gib",
    "utilization.gpu": "utilization_percent",
}
_QUERY = f"--query-gpu=index,{','.join(SAMPLED)}"


def read_nvidia_smi(host: Host) -> SourceReport:
    """Return the physical GPUs; MIG devices are parts of them and are not counted."""
    queried, table = run_tools(host, [(NAME, f"--query-gpu=index,{','.join(FACTS)}", FORMAT), (NAME,)])
    report = _queried(queried)
    driver = report.driver_version or _first(DRIVER, table.text)
    return msgspec.structs.replace(report, driver_version=driver, runtime_version=_first(CUDA, table.text))


def _queried(output: ToolOutput) -> SourceReport:
    counted = _rows(output.text, len(FACTS) + 1)
    rows = [(index, row) for index, row in counted if clean(row[0])]  # a lost GPU has an error in brackets for a name
    lost = f"{len(counted) - len(rows)} GPUs without a name" if len(rows) < len(counted) else ""
    return SourceReport(
        name=NAME,
        gpus=tuple(_gpu(index, *row) for index, row in rows),
        driver_version=clean(rows[0][1][-1]) if rows else "",
        problem=output.problem or lost or ("" if rows else no_gpu_problem(output.text)),
        absent=output.absent,
    )


def _gpu(index: int, name: str, uuid: str, memory: str, bus: str, _: str) -> GpuFacts:
    return GpuFacts(
        index=index,
        arch=clean(name),
        product=clean(name),
        memory_bytes=size_bytes(memory),
        unique_id=clean(uuid),
        bus=bus_id(bus),
    )


def _first(pattern: re.Pattern[str], text: str) -> str:
    found = pattern.search(text)
    return found[1] if found else ""


class NvidiaSmi(ToolSource):
    """Samples by the tool."""

    name = NAME
    forms = ((f"{_QUERY},clocks_event_reasons.active", FORMAT), (f"{_QUERY},clocks_throttle_reasons.active", FORMAT))

    def parse(self, text: str) -> list[Reading]:
        """Return the readings."""
        return [_reading(index, row) for index, row in _rows(text, len(SAMPLED) + 2)]


def _rows(text: str, cells: int) -> list[tuple[int, list[str]]]:
    """Return GPU numbers and what follows them, of the rows with as many cells."""
    split = [[cell.strip() for cell in line.split(",")] for line in text.splitlines()]
    return [(index, row[1:]) for row in split if len(row) == cells and (index := parse_int(row[0])) is not None]


def _reading(index: int, row: list[str]) -> Reading:
    *cells, reasons = row
    named = zip(SAMPLED.values(), cells, strict=True)
    values = {name: gib(cell) if name == "memory_used_gib" else parse_float(cell) for name, cell in named}
    bits = parse_int(reasons)
    return make_reading(index, values, None if bits is None else dict.fromkeys(throttle_reasons(bits), 1.0))
