"""Read GPUs from rocm-smi --json: {"card0": {...}, "system": {"Driver version": ...}}, every value text.

`Card series` became `Card Series` in ROCm 6.1, so keys are compared in lower case. Warnings can precede the JSON.
"""

from __future__ import annotations

from madlite.machine.facts import (
    Seen,
    Source,
    bus_id,
    clean,
    find_json,
    gfx_name,
    short_version,
    unique_hex,
    whole,
)
from madlite.machine.host import Host, ask
from madlite.machine.products import INSTINCT_IDS
from madlite.types import Json

NAME = "rocm-smi"
OPTIONS = ("--showproductname", "--showmeminfo", "vram", "--showuniqueid", "--showbus", "--showdriverversion", "--json")


def read_rocm_smi(host: Host) -> Source:
    """Return what one call of rocm-smi says of every card."""
    said = ask(host, NAME, *OPTIONS)
    parsed = find_json(said.text)
    cards = {number: _lower(card) for key, card in _items(parsed) if (number := _card_number(key)) is not None}
    gpus = tuple(_gpu(position, cards[number]) for position, number in enumerate(sorted(cards)))
    system = _lower(parsed.get("system")) if isinstance(parsed, dict) else {}
    problem = "" if gpus else said.problem or "answered without a GPU"
    return Source(
        name=NAME,
        gpus=gpus,
        driver_version=short_version(system.get("driver version")),
        problem=problem,
        absent=said.absent,
    )


def _items(parsed: Json) -> list[tuple[str, Json]]:
    return list(parsed.items()) if isinstance(parsed, dict) else []


def _card_number(key: str) -> int | None:
    return whole(key[4:]) if key.startswith("card") else None


def _lower(card: Json) -> dict[str, Json]:
    return {key.lower(): value for key, value in _items(card)}


def _gpu(position: int, card: dict[str, Json]) -> Seen:
    model = whole(card.get("card model"))
    return Seen(
        position=position,
        arch=gfx_name(card.get("gfx version")),
        product=clean(card.get("card series")),
        memory_bytes=whole(card.get("vram total memory (b)")),
        device_id=model if model in INSTINCT_IDS else None,  # the subsystem's id in older versions
        node_id=whole(card.get("node id")),
        unique_id=unique_hex(card.get("unique id")),
        bus=bus_id(card.get("pci bus")),
    )
