"""Read GPUs from amd-smi.

`list` prints a list and `static` a list or, in newer versions, {"gpu_data": [...]}; warnings can come before the JSON
and, before ROCm 7, text after it. Every value may be "N/A", also with exit status 0.
"""

from __future__ import annotations

from madlite.machine.facts import (
    Seen,
    Source,
    bus_id,
    clean,
    find_json,
    gfx_name,
    pci_id,
    product_name,
    short_version,
    size_bytes,
    unique_hex,
    whole,
)
from madlite.machine.host import Host, ask_together, silence
from madlite.model import Json

NAME = "amd-smi"


def read_amd_smi(host: Host) -> Source:
    """Return what `amd-smi static` and `amd-smi list` say, joined by GPU id."""
    static, listed = ask_together(host, [(NAME, "static", "--json"), (NAME, "list", "--json")])
    facts, places = entries(static.text), entries(listed.text)
    gpus = tuple(_gpu(number, facts.get(number, {}), places.get(number, {})) for number in sorted({*facts, *places}))
    drivers = [short_version(_driver(entry)) for entry in facts.values()]
    problem = "" if gpus else static.problem or listed.problem or silence(static.text)
    return Source(
        name=NAME, gpus=gpus, driver_version=next(filter(None, drivers), ""), problem=problem, absent=static.absent
    )


def entries(text: str) -> dict[int, dict[str, Json]]:
    """Return what the tool printed of each GPU, by number."""
    listed = [entry for document in find_json(text) for entry in _listed(document) if isinstance(entry, dict)]
    return {number: entry for entry in listed if (number := whole(entry.get("gpu"))) is not None}


def _listed(document: Json) -> list[Json]:
    if isinstance(document, dict):
        document = document.get("gpu_data", [document])
    return document if isinstance(document, list) else []


def section(entry: dict[str, Json], name: str) -> dict[str, Json]:
    """Return a part of an entry, empty where it is missing or `N/A`."""
    found = entry.get(name)
    return found if isinstance(found, dict) else {}


def _gpu(number: int, facts: dict[str, Json], place: dict[str, Json]) -> Seen:
    asic, bus, vram = (section(facts, name) for name in ("asic", "bus", "vram"))
    return Seen(
        position=number,
        arch=gfx_name(asic.get("target_graphics_version")),
        product=product_name(asic.get("market_name")) or _board_name(facts),
        memory_bytes=size_bytes(vram.get("size")),
        device_id=pci_id(asic.get("device_id")),
        compute_units=whole(asic.get("num_compute_units")),
        node_id=whole(place.get("node_id")),
        unique_id=unique_hex(asic.get("asic_serial")),
        bus=bus_id(place.get("bdf")) or bus_id(bus.get("bdf")),
    )


def _board_name(facts: dict[str, Json]) -> str:
    """Return the board's name where it is a product's; it can be the vendor's."""
    name = clean(section(facts, "board").get("product_name"))
    return name if "instinct" in name.lower() else ""


def _driver(facts: dict[str, Json]) -> Json:
    driver = section(facts, "driver")
    return driver.get("version") or driver.get("driver_version")
