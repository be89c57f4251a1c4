"""Sample AMD GPUs by rocm-smi, where amd-smi is not installed or says nothing.

Form: {"card0": {"Temperature (Sensor junction) (C)": "35.0", …}}, every value text.  It tells no reason of throttling.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from threading import Event

from madlite.machine.host import Host, Said, ask, silence
from madlite.machine.rocm_smi import read_cards
from madlite.machine.telemetry.reading import GIB, Answer, Reading, User, number, plausible
from madlite.model import Json

NAME = "rocm-smi"
OPTIONS = ("--showpower", "--showclocks", "--showtemp", "--showuse", "--showmeminfo", "vram", "--json")
POWERS = ("current socket graphics package power (w)", "average graphics package power (w)")
TEMPERATURES = ("temperature (sensor junction) (c)", "temperature (sensor edge) (c)")
_CLOCK = re.compile(r"\((\d+)\s*mhz\)")


class RocmSmi:
    """Asks the tool, each time a process of Python's."""

    name = NAME
    least_interval_s = 2.0

    def __init__(self, host: Host, indexes: Sequence[int], over: Event) -> None:
        self._host, self._over = host, over
        self._indexes = tuple(indexes)

    def read(self) -> Answer:
        """Return one reading of each GPU that it tells of; card numbers can have gaps, so they are counted."""
        said = self._ask(*OPTIONS)
        _, cards = read_cards(said.text)
        told = [(place, cards[n]) for place, n in enumerate(sorted(cards)) if place in self._indexes]
        missing = len(told) < len(self._indexes)
        problem = said.problem or (silence(said.text) if not told else "it does not tell of every GPU")
        return Answer(readings=tuple(_reading(index, card) for index, card in told), problem=problem if missing else "")

    def users(self) -> tuple[User, ...] | None:
        """Not know: its list of processes does not say on which GPU they are."""
        return None

    def facts(self) -> dict[str, str]:
        """Tell nothing that others tell better."""
        return {}

    def close(self) -> None:
        """Have nothing to give back."""

    def _ask(self, *arguments: str) -> Said:
        return ask(self._host, NAME, *arguments, cancelled=self._over)


def _reading(index: int, card: dict[str, Json]) -> Reading:
    used = number(card.get("vram total used memory (b)"))
    values = {
        "power_w": _first(card, POWERS),
        "clock_mhz": _clock(card, "sclk"),
        "memory_clock_mhz": _clock(card, "mclk"),
        "temperature_c": _first(card, TEMPERATURES),
        "memory_used_gib": None if used is None else used / GIB,
        "utilization_percent": number(card.get("gpu use (%)")),
    }
    return Reading(index=index, **plausible(**values))  # type: ignore[arg-type]


def _first(card: dict[str, Json], names: Iterable[str]) -> float | None:
    """Return the first number that is not 0, which stands where another name has the value."""
    return next((found for name in names if (found := number(card.get(name)))), None)


def _clock(card: dict[str, Json], kind: str) -> float | None:
    """Return MHz from `sclk clock speed:` = "(1700Mhz)", also where it stands under `sclk clock level:`."""
    for name, value in card.items():
        found = _CLOCK.search(str(value).lower()) if name.startswith(kind) else None
        if found:
            return float(found[1])
    return None
