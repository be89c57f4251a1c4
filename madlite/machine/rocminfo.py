"""Read GPUs from rocminfo's text: blocks of `Key: value` under `Agent n`, CPUs among them."""

from __future__ import annotations

import re

from madlite.machine.facts import Seen, Source, gfx_name, product_name, short_version, unique_hex, whole
from madlite.machine.host import Host, ask, silence

NAME = "rocminfo"
AGENT = re.compile(r"^\s*Agent \d+.*$", re.MULTILINE)
PAIR = re.compile(r"^\s*([A-Z][\w .()]*?):\s+(.*?)\s*$", re.MULTILINE)
MODULE = re.compile(r"ROCk module version (\S+) is loaded")


def read_rocminfo(host: Host) -> Source:
    """Return the GPU agents, in HIP's order."""
    said = ask(host, NAME)
    head, *blocks = AGENT.split(said.text)
    agents = [agent for block in blocks if (agent := _pairs(block)).get("Device Type") == "GPU"]
    module = MODULE.search(head)
    return Source(
        name=NAME,
        gpus=tuple(_gpu(position, agent) for position, agent in enumerate(agents)),
        driver_version=short_version(module[1]) if module else "",
        problem="" if agents else said.problem or silence(said.text),
        absent=said.absent,
    )


def _pairs(block: str) -> dict[str, str]:
    """Return the first value of each key: the agent's name before its ISA's, the first pool's size."""
    pairs: dict[str, str] = {}
    for key, value in PAIR.findall(block):
        pairs.setdefault(key, value)
    return pairs


def _gpu(position: int, agent: dict[str, str]) -> Seen:
    kib = _plain(agent.get("Size", ""))
    return Seen(
        position=position,
        arch=gfx_name(agent.get("Name", "")),
        product=product_name(agent.get("Marketing Name", "")),
        memory_bytes=kib * 1024 if kib else None,
        device_id=_plain(agent.get("Chip ID", "")),
        compute_units=_plain(agent.get("Compute Unit", "")),
        node_id=_plain(agent.get("Node", "")),
        unique_id=unique_hex(agent.get("Uuid", "")),
    )


def _plain(text: str) -> int | None:
    """Return 29857 from `29857(0x74a1)` and 201310208 from `201310208(0xbffc000) KB`."""
    return whole(text.split("(", maxsplit=1)[0].split(" ", maxsplit=1)[0])
