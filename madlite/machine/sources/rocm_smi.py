"""AMD GPUs by rocm-smi, where amd-smi is not installed or reports nothing: facts and samples.

`--json`: {"card0": {...}, "system": {"Driver version": ...}}, every value text. `Card series` became `Card Series` in
ROCm 6.1, so keys are compared in lower case. Warnings can precede the JSON. It tells no reason of throttling, and its
list of processes does not report on which GPU they are.
"""

from __future__ import annotations

import re
from typing import TypeAlias

from madlite.machine.host import Host, no_gpu_problem, run_tool
from madlite.machine.products import INSTINCT_IDS
from madlite.machine.sources.base import (
    GIB,
    GpuFacts,
    Reading,
    SourceReport,
    ToolSource,
    bus_id,
    find_json,
    first_number,
    gfx_name,
    make_reading,
    parse_float,
    parse_int,
    pci_id,
    product_name,
    short_version,
    unique_hex,
)
from madlite.model import Json

Card: TypeAlias = dict[str, Json]  # key in lower case → value

NAME = "rocm-smi"
FACTS = ("--showproductname", "--showmeminfo", "vram", "--showuniqueid", "--showbus", "--showdriverversion", "--json")
SAMPLED = ("--showpower", "--showclocks", "--showtemp", "--showuse", "--showmeminfo", "vram", "--json")
POWERS = ("current socket graphics package power (w)", "average graphics package power (w)")
TEMPERATURES = ("temperature (sensor junction) (c)", "temperature (sensor edge) (c)")

_CLOCK = re.compile(r"\((\d+)\s*mhz\)")


def read_rocm_smi(host: Host) -> SourceReport:
    """Return what one call of rocm-smi reports about every card."""
    output = run_tool(host, NAME, *FACTS)
    driver, cards = _read_cards(output.text)
    return SourceReport(
        name=NAME,
        gpus=tuple(_gpu(index, cards[card]) for index, card in enumerate(sorted(cards))),
        driver_version=short_version(driver),
        problem="" if cards else output.problem or no_gpu_problem(output.text),
        absent=output.absent,
    )


def _read_cards(text: str) -> tuple[Json, dict[int, Card]]:
    """Return the driver's version, and what is reported about each card, by its number."""
    documents = [document for document in find_json(text) if isinstance(document, dict)]
    tables = {key: _lower(value) for document in documents for key, value in document.items()}
    cards = {parse_int(key[4:]): card for key, card in tables.items() if key.startswith("card")}
    return tables.get("system", {}).get("driver version"), {n: card for n, card in cards.items() if n is not None}


def _lower(card: Json) -> Card:
    return {key.lower(): value for key, value in card.items()} if isinstance(card, dict) else {}


def _gpu(index: int, card: Card) -> GpuFacts:
    ids = (pci_id(card.get(key)) for key in ("device id", "card model"))  # the model was the subsystem's id once
    return GpuFacts(
        index=index,
        arch=gfx_name(card.get("gfx version")),
        product=product_name(card.get("card series")) or product_name(card.get("device name")),
        memory_bytes=parse_int(card.get("vram total memory (b)")) or None,
        device_id=next((device for device in ids if device in INSTINCT_IDS), None),
        node_id=parse_int(card.get("node id")),
        unique_id=unique_hex(card.get("unique id")),
        bus=bus_id(card.get("pci bus")),
    )


class RocmSmi(ToolSource):
    """Samples by the tool, each time a process of Python's."""

    name = NAME

    forms = (SAMPLED,)

    def parse(self, text: str) -> list[Reading]:
        """Return the readings; card numbers can have gaps, so they are counted."""
        _, cards = _read_cards(text)
        return [_reading(index, cards[card]) for index, card in enumerate(sorted(cards))]


def _reading(index: int, card: Card) -> Reading:
    used = parse_float(card.get("vram total used memory (b)"))
    values = {
        "power_w": first_number(card, POWERS, "power_w"),
        "clock_mhz": _clock(card, "sclk"),
        "memory_clock_mhz": _clock(card, "mclk"),
        "temperature_c": first_number(card, TEMPERATURES),
        "memory_used_gib": None if used is None else used / GIB,
        "utilization_percent": parse_float(card.get("gpu use (%)")),
    }
    return make_reading(index, values)


def _clock(card: Card, kind: str) -> float | None:
    """Return MHz from `sclk clock speed:` = "(1700Mhz)", also where it stands under `sclk clock level:`."""
    texts = (str(value).lower() for name, value in card.items() if name.startswith(kind))
    return next((float(found[1]) for text in texts if (found := _CLOCK.search(text))), None)
