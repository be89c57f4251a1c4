"""What AMD's driver counts in its table `gpu_metrics`: energy, and the ticks in which clocks were held down.

Format: Linux, drivers/gpu/drm/amd/include/kgd_pp_interface.h: a header of size (16 bit), format and content revision
(8 bit each).  From 1.6 on there is the energy in 2**-16 J (64 bit), a time, and then 32-bit counters: of all ticks, and
of those of five reasons.  1.9 is a list of fields, each after 64 bit that say what it is.  Older tables do not count.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

from madlite.machine.telemetry.reading import MEMORY_THERMAL, POWER_CAP, PROCHOT, REGULATOR, THERMAL
from madlite.model import Value

# of the counters after that of the ticks
REASONS = (
    f"{PROCHOT}/prochot",
    f"{POWER_CAP}/ppt",
    f"{THERMAL}/socket_thermal",
    f"{REGULATOR}/vr_thermal",
    f"{MEMORY_THERMAL}/hbm_thermal",
)
_ENERGY_AT = {(1, 6): 16, (1, 7): 24, (1, 8): 24}
_COUNTERS = struct.Struct(f"<QQ{len(REASONS) + 1}I")
_LISTED = (1, 9)
_ENERGY_ID = 7  # of the list; the others follow it
_MOST_FIELDS = 1000
_TYPES = 8  # unsigned and signed of 1, 2, 4, 8 bytes in turn
_NONE = 0xFFFFFFFF


class Counted(Value, frozen=True):
    """What a table counts, since the driver was loaded."""

    energy_j: float
    ticks: float
    counters: dict[str, float]


def read_counters(path: Path) -> Counted | None:
    """Return what a GPU's table counts; None where it does not."""
    try:
        table = path.read_bytes()
        _, *revision = struct.unpack_from("<HBB", table)
        energy, _, ticks, *counts = _numbers(table, (revision[0], revision[1]))
    except (OSError, struct.error, KeyError):
        return None
    if not 0 < ticks < _NONE:
        return None
    told = {name: float(count) for name, count in zip(REASONS, counts, strict=True) if count != _NONE}
    return Counted(energy_j=energy / (1 << 16), ticks=float(ticks), counters=told)


def _numbers(table: bytes, revision: tuple[int, int]) -> tuple[int, ...]:
    """Return energy, time, ticks and those of each reason.

    Raises:
        KeyError: the revision is another one, or lacks a field.
        struct.error: the table is cut off.
    """
    if revision != _LISTED:
        return _COUNTERS.unpack_from(table, _ENERGY_AT[revision])
    fields = dict(_fields(table))
    return tuple(fields[_ENERGY_ID + place] for place in range(len(REASONS) + 3))


def _fields(table: bytes) -> Iterator[tuple[int, int]]:
    """Yield the number and first value of each field; of its 64 bit 10 say how many, 10 the number, 4 the type."""
    (count,) = struct.unpack_from("<i", table, 4)
    at = 8
    for _ in range(min(count, _MOST_FIELDS)):
        (code,) = struct.unpack_from("<Q", table, at)
        type_ = code >> 20 & 0xF
        size = 1 << type_ // 2
        value = table[at + 8 : at + 8 + size]
        if type_ >= _TYPES or len(value) < size:
            return
        yield code >> 10 & 0x3FF, int.from_bytes(value, "little")
        at += 8 + size * max(1, code & 0x3FF)
