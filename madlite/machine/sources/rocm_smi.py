"""AMD GPUs by rocm-smi, where amd-smi is not installed or reports nothing: facts for detection.

`--json`: {"card0": {...}, "system": {"Driver version": ...}}, every value text. `Card series` became `Card Series` in
ROCm 6.1, so keys are compared in lower case. Warnings can precede the JSON.
"""

from __future__ import annotations

from typing import TypeAlias

from madlite.machine.host import Host, no_gpu_problem, run_tool
from madlite.machine.products import INSTINCT_IDS
from madlite.machine.sources.base import (
    GpuFacts,
    SourceReport,
    bus_id,
    find_json,
    gfx_name,
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
