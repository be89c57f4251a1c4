"""Read GPUs from nvidia-smi: the CSV query, else the list; the CUDA version stands only in the default table."""

from __future__ import annotations

import re

import msgspec

from madlite.machine.facts import Seen, Source, bus_id, clean, size_bytes, whole
from madlite.machine.host import Host, Said, ask, ask_together, silence

NAME = "nvidia-smi"
FIELDS = ("index", "name", "uuid", "memory.total", "pci.bus_id", "driver_version")
QUERY = (NAME, f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits")
CUDA = re.compile(r"CUDA (?:UMD )?Version\s*:\s*(\d+\.\d+)")
DRIVER = re.compile(r"Driver Version\s*:\s*(\d+(?:\.\d+)+)")
LISTED = re.compile(r"^GPU (\d{1,4}): +([A-Za-z].*?)\s*(?:\(UUID: ([\w-]+)\))?\s*$", re.MULTILINE)


def read_nvidia_smi(host: Host) -> Source:
    """Return the physical GPUs; MIG devices are parts of them and are not counted."""
    queried, table = ask_together(host, [QUERY, (NAME,)])
    answer = _queried(queried)
    if not (answer.gpus or queried.absent or queried.hung):
        answer = _listed(ask(host, NAME, "-L"), answer)
    driver = answer.driver_version or _first(DRIVER, table.text)
    return msgspec.structs.replace(answer, driver_version=driver, runtime_version=_first(CUDA, table.text))


def _queried(said: Said) -> Source:
    counted = [row for line in said.text.splitlines() if _is_gpu(row := [cell.strip() for cell in line.split(",")])]
    rows = [row for row in counted if clean(row[1])]  # a lost GPU has an error in brackets for a name
    lost = f"{len(counted) - len(rows)} GPUs without a name" if len(rows) < len(counted) else ""
    return Source(
        name=NAME,
        gpus=tuple(_gpu(row) for row in rows),
        driver_version=clean(rows[0][5]) if rows else "",
        problem=said.problem or lost or ("" if rows else silence(said.text)),
        absent=said.absent,
    )


def _listed(said: Said, queried: Source) -> Source:
    gpus = tuple(
        Seen(position=int(number), arch=name, product=name, unique_id=uuid)
        for number, name, uuid in LISTED.findall(said.text)
    )
    return Source(name=NAME, gpus=gpus, problem="" if gpus else said.problem or queried.problem)


def _is_gpu(row: list[str]) -> bool:
    return len(row) == len(FIELDS) and whole(row[0]) is not None


def _gpu(row: list[str]) -> Seen:
    return Seen(
        position=whole(row[0]) or 0,
        arch=clean(row[1]),
        product=clean(row[1]),
        memory_bytes=size_bytes(row[3]),
        unique_id=clean(row[2]),
        bus=bus_id(row[4]),
    )


def _first(pattern: re.Pattern[str], text: str) -> str:
    found = pattern.search(text)
    return found[1] if found else ""
