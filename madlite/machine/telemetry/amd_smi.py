"""Sample AMD GPUs by `amd-smi metric --json`.

Forms: a list, or {"gpu_data": [...]} in newer versions, with text around it; a value is {"value": n, "unit": "u"}, a
number or N/A.  `throttle` (ROCm 6.3 and later) counts for each reason the ticks in which it held, `…_accumulated`, of
`accumulation_counter` in all; what held since the last question is `…_violation_activity` in percent, and what holds
now `…_violation_status`.  On a partitioned GPU these are lists, one entry per compute die.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from threading import Event

from madlite.machine.amd_smi import entries, section
from madlite.machine.facts import clean, whole
from madlite.machine.host import Host, Said, ask, silence
from madlite.machine.telemetry.reading import (
    MEMORY_THERMAL,
    POWER_CAP,
    PROCHOT,
    REGULATOR,
    THERMAL,
    UNSPECIFIED,
    Answer,
    Reading,
    User,
    gib,
    mean,
    number,
    plausible,
    scalars,
    whole_bytes,
)
from madlite.model import Json

NAME = "amd-smi"
# everything takes seconds, for the bus is measured too; older versions do not know the last option
OPTIONS = (("-p", "-c", "-t", "-u", "-m", "-E", "-v"), ("-p", "-c", "-t", "-u", "-m", "-E"), ())
# a clock below its limit for any reason counts idle time too, and low utilisation is no throttling
REASONS = {
    "prochot": PROCHOT,
    "ppt": POWER_CAP,
    "socket_thermal": THERMAL,
    "vr_thermal": REGULATOR,
    "hbm_thermal": MEMORY_THERMAL,
    "gfx_clk_below_host_limit_power": POWER_CAP,
    "gfx_clk_below_host_limit_thermal": THERMAL,
}
POWERS = ("socket_power", "current_socket_power", "average_socket_power", "average_power", "current_power")
TEMPERATURES = ("hotspot", "junction", "edge")
_ACTIVE = ("ACTIVE", "TRUE")


class AmdSmi:
    """Asks the tool, each time a process of Python's."""

    name = NAME
    least_interval_s = 2.0

    def __init__(self, host: Host, indexes: Sequence[int], over: Event) -> None:
        self._host, self._over = host, over
        self._indexes = tuple(indexes)
        self._options = list(OPTIONS)
        self._answered = False

    def read(self) -> Answer:
        """Return one reading of each GPU that it tells of."""
        said = self._metric()
        while not (entries(said.text) or self._answered or said.hung or said.absent) and len(self._options) > 1:
            del self._options[0]
            said = self._metric()
        self._answered = self._answered or bool(entries(said.text))  # what fails from now on is not the options' fault
        told = {index: entry for index, entry in entries(said.text).items() if index in self._indexes}
        missing = ", ".join(str(index) for index in self._indexes if index not in told)
        problem = said.problem or (silence(said.text) if not told else f"it says nothing of GPU {missing}")
        return Answer(
            readings=tuple(read_gpu(index, entry) for index, entry in told.items()),
            problem=problem if missing else "",
        )

    def users(self) -> tuple[User, ...] | None:
        """Return the processes on these GPUs."""
        said = self._ask("process", "--json")
        listed = entries(said.text)
        if not listed:
            return None
        return tuple(user for index, entry in listed.items() if index in self._indexes for user in _users(index, entry))

    def facts(self) -> dict[str, str]:
        """Return VBIOS, power limit in watts and partitions."""
        told = [entry for index, entry in entries(self._ask("static", "--json").text).items() if index in self._indexes]
        found = [_facts(entry) for entry in told]
        names = dict.fromkeys(name for facts in found for name in facts)
        return {name: ", ".join(dict.fromkeys(facts[name] for facts in found if name in facts)) for name in names}

    def close(self) -> None:
        """Have nothing to give back."""

    def _ask(self, *arguments: str) -> Said:
        return ask(self._host, NAME, *arguments, cancelled=self._over)

    def _metric(self) -> Said:
        return self._ask("metric", *self._options[0], "--json")


class AmdSmiUsers(AmdSmi):
    """Asks the tool for processes alone, beside a source that tells everything else."""

    def read(self) -> Answer:
        """Read nothing: counters of two sources are not mixed."""
        return Answer()

    def facts(self) -> dict[str, str]:
        """Tell nothing that others tell as well."""
        return {}


def read_gpu(index: int, entry: dict[str, Json]) -> Reading:
    """Return the reading of one GPU's entry of `metric`."""
    power, clock, heat = (section(entry, name) for name in ("power", "clock", "temperature"))
    throttle = section(entry, "throttle")
    values = {
        "power_w": _power(power),
        "energy_j": number(section(entry, "energy").get("total_energy_consumption")) or None,
        "clock_mhz": _clock(clock, "gfx"),
        "memory_clock_mhz": _clock(clock, "mem"),
        "temperature_c": _first(heat, TEMPERATURES),
        "memory_used_gib": gib(section(entry, "mem_usage").get("used_vram")),
        "utilization_percent": number(section(entry, "usage").get("gfx_activity")),
    }
    return Reading(
        index=index,
        **plausible(**values),
        slowed=_slowed(throttle, power),
        counters=dict(_counters(throttle)) or None,
        ticks=number(throttle.get("accumulation_counter")),
    )


def _slowed(throttle: dict[str, Json], power: dict[str, Json]) -> dict[str, float] | None:
    """Return why the clocks are held down: the parts since the last question, else what holds now."""
    parts = {reason: min(1.0, part / 100) for reason, part in _most(throttle, "_violation_activity").items()}
    if not parts:
        states = {
            reason: [str(value).strip().upper() for key in _keys(reason) for value in _values(throttle, key, "_status")]
            for reason in dict.fromkeys(REASONS.values())
        }
        parts = {
            reason: float(any(state in _ACTIVE for state in said))
            for reason, said in states.items()
            if any(clean(state) for state in said)
        }
    if not parts and (state := clean(power.get("throttle_status")).upper()):
        parts = {UNSPECIFIED: float(state == "THROTTLED")}
    return {reason: part for reason, part in parts.items() if part > 0} if parts else None


def _counters(throttle: dict[str, Json]) -> Iterable[tuple[str, float]]:
    """Yield what is counted of each die under `reason/name.die`."""
    for name, reason in REASONS.items():
        listed = throttle.get(f"{name}_accumulated", throttle.get(f"{name}_violation_accumulated"))
        for die, value in enumerate(scalars(listed)):
            if (count := number(value)) is not None:
                yield f"{reason}/{name}.{die}", count


def _most(throttle: dict[str, Json], end: str) -> dict[str, float]:
    """Return for each reason the highest of its numbers, over dies and over the names that it has."""
    found: dict[str, float] = {}
    for name, reason in REASONS.items():
        for value in scalars(throttle.get(name + end)):
            part = number(value)
            if part is not None and part >= 0:
                found[reason] = max(part, found.get(reason, 0.0))
    return found


def _keys(reason: str) -> Iterable[str]:
    return (f"{name}_violation" for name, word in REASONS.items() if word == reason)


def _values(throttle: dict[str, Json], name: str, end: str) -> Iterable[Json]:
    return (value for value in scalars(throttle.get(name + end)) if value is not None)


def _power(power: dict[str, Json]) -> float | None:
    """Return the power under the first name that has one: where another holds it, a name can have 0 or 65535."""
    told = (plausible(power_w=number(power.get(name)))["power_w"] for name in POWERS)
    return next((watts for watts in told if watts is not None), None)


def _first(section: dict[str, Json], names: Iterable[str]) -> float | None:
    return next((found for name in names if (found := number(section.get(name))) is not None), None)


def _clock(clock: dict[str, Json], kind: str) -> float | None:
    """Return the mean over the dies that tell it; `gfx_0`, `gfx_1`, … and once `gfx`."""
    dies = [section(clock, name) for name in clock if name.split("_")[0] == kind]
    told = [number(die.get(name)) for die in dies for name in ("clk", "cur_clk")]
    return mean([value for value in told if value is not None])


def _users(index: int, entry: dict[str, Json]) -> list[User]:
    listed = entry.get("process_list", entry.get("process_info"))
    infos = (
        [one.get("process_info", one) for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
    )
    return [_user(index, info, pid) for info in infos if isinstance(info, dict) and (pid := whole(info.get("pid")))]


def _user(index: int, info: dict[str, Json], pid: int) -> User:
    memory = section(info, "memory_usage").get("vram_mem", info.get("mem_usage"))
    return User(pid=pid, gpu=index, memory_bytes=whole_bytes(gib(memory)), name=clean(info.get("name")))


def _facts(entry: dict[str, Json]) -> dict[str, str]:
    bios, limit, partition = (section(entry, name) for name in ("vbios", "limit", "partition"))
    bios = bios or section(entry, "ifwi")
    limits = {**limit, **section(limit, "ppt0")}
    watts = _first(limits, ("socket_power_limit", "socket_power", "max_power_limit", "max_power"))
    told = {
        "vbios": clean(bios.get("version")) or clean(bios.get("part_number")) or clean(bios.get("name")),
        "power_limit_w": "" if watts is None else f"{watts:g}",
        "compute_partition": clean(partition.get("compute_partition", partition.get("accelerator_partition"))),
        "memory_partition": clean(partition.get("memory_partition")),
    }
    return {name: text for name, text in told.items() if text}
