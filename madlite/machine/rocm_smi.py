"""Read GPUs from rocm-smi --json: {"card0": {...}, "system": {"Driver version": ...}}, every value text.

`Card series` became `Card Series` in ROCm 6.1, so keys are compared in lower case. Warnings can precede the JSON; where
there is none, the text is read.
"""

from __future__ import annotations

from madlite.machine.facts import (
    Seen,
    Source,
    bus_id,
    find_json,
    gfx_name,
    pci_id,
    product_name,
    short_version,
    unique_hex,
    whole,
)
from madlite.machine.host import Host, ask, silence
from madlite.machine.products import INSTINCT_IDS
from madlite.machine.rocm_smi_text import Cards, read_driver, read_sections, read_table
from madlite.model import Json

NAME = "rocm-smi"
OPTIONS = ("--showproductname", "--showmeminfo", "vram", "--showuniqueid", "--showbus", "--showdriverversion", "--json")


def read_rocm_smi(host: Host) -> Source:
    """Return what one call of rocm-smi says of every card, and another one's table where it says nothing."""
    said = ask(host, NAME, *OPTIONS)
    system, cards = read_cards(said.text)
    if not (cards or said.absent or said.hung):
        cards = read_table(ask(host, NAME).text)
    return Source(
        name=NAME,
        gpus=tuple(_gpu(position, cards[number]) for position, number in enumerate(sorted(cards))),
        driver_version=short_version(system.get("driver version")),
        problem="" if cards else said.problem or silence(said.text),
        absent=said.absent,
    )


def read_cards(text: str) -> tuple[dict[str, Json], Cards]:
    """Return what is said of the system, and of each card."""
    tables = {key: _lower(value) for document in find_json(text) for key, value in _items(document)}
    cards = {number: card for key, card in tables.items() if (number := _card_number(key)) is not None}
    if cards:
        return tables.get("system", {}), cards
    return {"driver version": read_driver(text)}, read_sections(text)


def _items(parsed: Json) -> list[tuple[str, Json]]:
    return list(parsed.items()) if isinstance(parsed, dict) else []


def _card_number(key: str) -> int | None:
    return whole(key[4:]) if key.startswith("card") else None


def _lower(card: Json) -> dict[str, Json]:
    return {key.lower(): value for key, value in _items(card)}


def _gpu(position: int, card: dict[str, Json]) -> Seen:
    ids = (pci_id(card.get(key)) for key in ("device id", "card model"))  # the model was the subsystem's id once
    return Seen(
        position=position,
        arch=gfx_name(card.get("gfx version")),
        product=product_name(card.get("card series")) or product_name(card.get("device name")),
        memory_bytes=whole(card.get("vram total memory (b)")) or None,
        device_id=next((number for number in ids if number in INSTINCT_IDS), None),
        node_id=whole(card.get("node id")),
        unique_id=unique_hex(card.get("unique id")),
        bus=bus_id(card.get("pci bus")),
    )
