"""Read rocm-smi's text, where its JSON is missing, into the same cards: number → key in lower case → value.

Two forms: sections of `GPU[0] : Key: value`, and the table that a call without options prints. The table's layout is
`Device [Model : Revision]` with the name on a second line, and since ROCm 6.1 `Device Node IDs (DID, GUID)` without.
"""

from __future__ import annotations

import re

from madlite.model import Json

Cards = dict[int, dict[str, Json]]

LINE = re.compile(r"^GPU\[(\d{1,4})\]\s*: ([^:\n]+):[ \t]*(.*?)\s*$", re.MULTILINE)
DRIVER = re.compile(r"^Driver version:\s*(\S+)", re.MULTILINE)
WITH_NAME = re.compile(r"^(\d{1,4}) +\[(0x[0-9a-f]+) : [^\]\n]*\].*\n {2,}(\S.*?) *$", re.MULTILINE | re.IGNORECASE)
WITH_NODE = re.compile(r"^(\d{1,4}) +(\d{1,5}) +(0x[0-9a-f]+|N/A), +\d+ ", re.MULTILINE | re.IGNORECASE)


def read_sections(text: str) -> Cards:
    """Return the cards of all sections together."""
    cards: Cards = {}
    for number, key, value in LINE.findall(text):
        cards.setdefault(int(number), {})[key.strip().lower()] = value
    return cards


def read_table(text: str) -> Cards:
    """Return the cards of the table, in either layout."""
    named: Cards = {int(n): {"device id": model, "card series": name} for n, model, name in WITH_NAME.findall(text)}
    return named or {int(n): {"node id": node, "device id": model} for n, node, model in WITH_NODE.findall(text)}


def read_driver(text: str) -> str:
    """Return the driver's version of the section that belongs to no card."""
    found = DRIVER.search(text)
    return found[1] if found else ""
