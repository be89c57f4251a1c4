"""Sample NVIDIA GPUs by nvidia-smi, where the library cannot be loaded.

Fields: `nvidia-smi --help-query-gpu`; one without a value is `[N/A]`.  The reasons were called clocks_throttle_reasons
before driver 535.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import Event

from madlite.machine.facts import clean, whole
from madlite.machine.host import Host, Said, ask
from madlite.machine.telemetry.nvml import reasons
from madlite.machine.telemetry.reading import GIB, Answer, Reading, User, number, plausible, whole_bytes

NAME = "nvidia-smi"
FIELDS = {
    "power.draw": "power_w",
    "clocks.current.sm": "clock_mhz",
    "clocks.current.memory": "memory_clock_mhz",
    "temperature.gpu": "temperature_c",
    "memory.used": "memory_used_gib",
    "utilization.gpu": "utilization_percent",
}
REASONS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")
FORMAT = "--format=csv,noheader,nounits"
FACTS = {"vbios_version": "vbios", "enforced.power.limit": "power_limit_w", "mig.mode.current": "mig"}
_MIB = 1 << 20


class NvidiaSmi:
    """Asks the tool, each time a process."""

    name = NAME
    least_interval_s = 2.0

    def __init__(self, host: Host, indexes: Sequence[int], over: Event) -> None:
        self._host, self._over = host, over
        self._indexes = tuple(indexes)
        self._reasons = REASONS[0]

    def read(self) -> Answer:
        """Return one reading of each GPU that it lists."""
        said = self._query(self._reasons)
        if not _rows(said.text, len(FIELDS) + 2) and not (said.hung or said.absent):
            self._reasons = REASONS[self._reasons == REASONS[0]]
            said = self._query(self._reasons)
        rows = {index: row for index, row in _rows(said.text, len(FIELDS) + 2) if index in self._indexes}
        missing = ", ".join(str(index) for index in self._indexes if index not in rows)
        problem = said.problem or (f"it says nothing of GPU {missing}" if missing else "")
        return Answer(readings=tuple(_reading(index, row) for index, row in rows.items()), problem=problem)

    def users(self) -> tuple[User, ...] | None:
        """Return the compute processes."""
        buses = self._ask("--query-gpu=index,pci.bus_id", FORMAT)
        said = self._ask("--query-compute-apps=gpu_bus_id,pid,used_memory,process_name", FORMAT)
        by_bus = {clean(row[0]): index for index, row in _rows(buses.text, 2)}
        if said.problem or not by_bus:
            return None
        rows = [[cell.strip() for cell in line.split(",", 3)] for line in said.text.splitlines()]
        return tuple(
            User(pid=pid, gpu=by_bus[row[0]], memory_bytes=_bytes(row[2]), name=row[3])
            for row in rows
            if len(row) == 4 and by_bus.get(row[0]) in self._indexes and (pid := whole(row[1])) is not None
        )

    def facts(self) -> dict[str, str]:
        """Return VBIOS, power limit in watts and MIG mode."""
        said = self._ask(f"--query-gpu=index,{','.join(FACTS)}", FORMAT)
        rows = [row for index, row in _rows(said.text, len(FACTS) + 1) if index in self._indexes]
        columns = zip(FACTS.values(), zip(*rows, strict=True), strict=True) if rows else ()
        told = {name: ", ".join(dict.fromkeys(filter(None, map(clean, cells)))) for name, cells in columns}
        return {name: text for name, text in told.items() if text}

    def close(self) -> None:
        """Have nothing to give back."""

    def _ask(self, *arguments: str) -> Said:
        return ask(self._host, NAME, *arguments, cancelled=self._over)

    def _query(self, reasons_field: str) -> Said:
        return self._ask(f"--query-gpu=index,{','.join(FIELDS)},{reasons_field}", FORMAT)


def _rows(text: str, cells: int) -> list[tuple[int, list[str]]]:
    """Return GPU numbers and what follows them, of the rows with as many cells."""
    split = [[cell.strip() for cell in line.split(",")] for line in text.splitlines()]
    return [(index, row[1:]) for row in split if len(row) == cells and (index := whole(row[0])) is not None]


def _reading(index: int, row: Sequence[str]) -> Reading:
    values = dict(zip(FIELDS.values(), map(number, row), strict=False))
    used, bits = values["memory_used_gib"], whole(row[-1])
    values["memory_used_gib"] = None if used is None else used * _MIB / GIB
    slowed = None if bits is None else dict.fromkeys(reasons(bits), 1.0)
    return Reading(index=index, **plausible(**values), slowed=slowed)  # type: ignore[arg-type]


def _bytes(cell: str) -> int | None:
    found = number(cell)
    return whole_bytes(None if found is None else found * _MIB / GIB)
