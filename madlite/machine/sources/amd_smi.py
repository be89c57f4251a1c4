"""AMD GPUs by amd-smi: facts for detection, samples for telemetry.

`list` prints a list, `static` and `metric` a list or, in newer versions, {"gpu_data": [...]}; warnings can come before
the JSON and, before ROCm 7, text after it. Every value may be "N/A", also with exit status 0.
`metric` has `throttle` (ROCm 6.3 and later), which counts for each reason the ticks in which it held, `…_accumulated`,
of `accumulation_counter` in all; what held since the last question is `…_violation_activity` in percent, and what holds
now `…_violation_status`. On a partitioned GPU these are lists, one entry per compute die.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from madlite.machine.host import Host, no_gpu_problem, run_tools
from madlite.machine.sources.base import (
    GpuFacts,
    GpuProcess,
    Reading,
    SourceReport,
    ToolSource,
    bus_id,
    clean,
    find_json,
    first_number,
    gfx_name,
    gib,
    make_reading,
    parse_float,
    parse_int,
    pci_id,
    product_name,
    short_version,
    size_bytes,
    unique_hex,
)
from madlite.model import Json

Entry: TypeAlias = dict[str, Json]

NAME = "amd-smi"
# everything takes seconds, for the bus is measured too; older versions do not know `-v`
_OPTIONS = ("-p", "-c", "-t", "-u", "-m", "-E")
# a clock below its limit for any reason counts idle time too, and low utilisation is no throttling
REASONS = {
    "prochot": "PROCHOT",
    "ppt": "power cap",
    "socket_thermal": "thermal",
    "vr_thermal": "voltage regulator thermal",
    "hbm_thermal": "memory thermal",
    "gfx_clk_below_host_limit_power": "power cap",
    "gfx_clk_below_host_limit_thermal": "thermal",
}
POWERS = ("socket_power", "current_socket_power", "average_socket_power", "average_power", "current_power")
TEMPERATURES = ("hotspot", "junction", "edge")


def read_amd_smi(host: Host) -> SourceReport:
    """Return what `amd-smi static` and `amd-smi list` say, joined by GPU id."""
    static, listed = run_tools(host, [(NAME, "static", "--json"), (NAME, "list", "--json")])
    facts, places = _entries(static.text), _entries(listed.text)
    gpus = tuple(_gpu(index, facts.get(index, {}), places.get(index, {})) for index in sorted({*facts, *places}))
    drivers = (_section(entry, "driver") for entry in facts.values())
    versions = (short_version(driver.get("version") or driver.get("driver_version")) for driver in drivers)
    return SourceReport(
        name=NAME,
        gpus=gpus,
        driver_version=next(filter(None, versions), ""),
        problem="" if gpus else static.problem or listed.problem or no_gpu_problem(static.text),
        absent=static.absent,
    )


def _entries(text: str) -> dict[int, Entry]:
    """Return what the tool printed of each GPU, by number."""
    listed = [entry for document in find_json(text) for entry in _listed(document) if isinstance(entry, dict)]
    return {index: entry for entry in listed if (index := parse_int(entry.get("gpu"))) is not None}


def _listed(document: Json) -> list[Json]:
    if isinstance(document, dict):
        document = document.get("gpu_data", [document])
    return document if isinstance(document, list) else []


def _section(entry: Entry, name: str) -> Entry:
    """Return a part of an entry, empty where it is missing or `N/A`."""
    found = entry.get(name)
    return found if isinstance(found, dict) else {}


def _gpu(index: int, facts: Entry, place: Entry) -> GpuFacts:
    asic, bus, vram, board = (_section(facts, name) for name in ("asic", "bus", "vram", "board"))
    name = clean(board.get("product_name"))  # it can be the vendor's
    return GpuFacts(
        index=index,
        arch=gfx_name(asic.get("target_graphics_version")),
        product=product_name(asic.get("market_name")) or (name if "instinct" in name.lower() else ""),
        memory_bytes=size_bytes(vram.get("size")),
        device_id=pci_id(asic.get("device_id")),
        compute_units=parse_int(asic.get("num_compute_units")),
        node_id=parse_int(place.get("node_id")),
        unique_id=unique_hex(asic.get("asic_serial")),
        bus=bus_id(place.get("bdf")) or bus_id(bus.get("bdf")),
    )


class AmdSmi(ToolSource):
    """Samples by the tool, each time a process of Python's."""

    name = NAME
    forms = (("metric", *_OPTIONS, "-v", "--json"), ("metric", *_OPTIONS, "--json"), ("metric", "--json"))

    def parse(self, text: str) -> list[Reading]:
        """Return the readings."""
        return [read_gpu(index, entry) for index, entry in _entries(text).items()]

    def processes(self) -> tuple[GpuProcess, ...] | None:
        """Return the processes on these GPUs."""
        listed = _entries(self._run("process", "--json").text)
        if not listed:
            return None
        ours = ((index, listed[index]) for index in self._indexes if index in listed)
        return tuple(process for index, entry in ours for process in _processes(index, entry))


def read_gpu(index: int, entry: Entry) -> Reading:
    """Return the reading of one GPU's entry of `metric`."""
    power, clock, throttle = (_section(entry, name) for name in ("power", "clock", "throttle"))
    values = {
        "power_w": first_number(power, POWERS, "power_w"),  # where another name has it, it can be 0 or 65535
        "energy_j": parse_float(_section(entry, "energy").get("total_energy_consumption")) or None,
        "clock_mhz": _clock(clock, "gfx"),
        "memory_clock_mhz": _clock(clock, "mem"),
        "temperature_c": first_number(_section(entry, "temperature"), TEMPERATURES),
        "memory_used_gib": gib(_section(entry, "mem_usage").get("used_vram")),
        "utilization_percent": parse_float(_section(entry, "usage").get("gfx_activity")),
    }
    counters = dict(_counters(throttle)) or None
    return make_reading(
        index, values, _slowed(throttle, power), counters, parse_float(throttle.get("accumulation_counter"))
    )


def _clock(clock: Entry, kind: str) -> float | None:
    """Return the mean over the dies that tell it; `gfx_0`, `gfx_1`, … and once `gfx`."""
    dies = [_section(clock, name) for name in clock if name.split("_")[0] == kind]
    clocks = [value for die in dies if (value := first_number(die, ("clk", "cur_clk"))) is not None]
    return sum(clocks) / len(clocks) if clocks else None


def _slowed(throttle: Entry, power: Entry) -> dict[str, float] | None:
    """Return why the clocks are held down: the parts since the last question, else what holds now."""
    parts = _most(throttle, "activity") or _most(throttle, "status")
    if not parts and (state := clean(power.get("throttle_status")).upper()):
        parts = {"unspecified": float(state == "THROTTLED")}
    return {reason: part for reason, part in parts.items() if part > 0} if parts else None


def _most(throttle: Entry, kind: str) -> dict[str, float]:
    """Return for each reason the highest of its parts, over dies and over the names that it has."""
    found: dict[str, float] = {}
    for name, reason in REASONS.items():
        for value in _scalars(throttle.get(f"{name}_violation_{kind}")):
            part = _active(value) if kind == "status" else parse_float(value)
            if part is not None and part >= 0:
                found[reason] = max(min(1.0, part if kind == "status" else part / 100), found.get(reason, 0.0))
    return found


def _active(value: Json) -> float | None:
    state = clean(value).upper()
    return float(state in ("ACTIVE", "TRUE")) if state else None


def _counters(throttle: Entry) -> Iterator[tuple[str, float]]:
    """Yield what is counted of each die under `reason/name.die`."""
    for name, reason in REASONS.items():
        listed = throttle.get(f"{name}_accumulated", throttle.get(f"{name}_violation_accumulated"))
        for die, value in enumerate(_scalars(listed)):
            if (count := parse_float(value)) is not None:
                yield f"{reason}/{name}.{die}", count


def _scalars(value: Json) -> Iterator[Json]:
    """Yield the values below a value: of `{"xcp_0": [{"value": 0, "unit": "%"}, "N/A"]}` the 0 and the N/A.

    Newer tools have the unit outside: `{"value": {"xcp_0": [0, "N/A"]}, "unit": "%"}`.
    """
    if isinstance(value, dict) and "value" in value:
        yield from _scalars(value["value"])
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _scalars(item)
    else:
        yield value


def _processes(index: int, entry: Entry) -> Iterator[GpuProcess]:
    listed = entry.get("process_list", entry.get("process_info"))
    for item in listed if isinstance(listed, list) else []:
        info = item.get("process_info", item) if isinstance(item, dict) else None
        if isinstance(info, dict) and (pid := parse_int(info.get("pid"))):
            memory = _section(info, "memory_usage").get("vram_mem", info.get("mem_usage"))
            yield GpuProcess(pid=pid, gpu=index, memory_bytes=size_bytes(memory), name=clean(info.get("name")))
