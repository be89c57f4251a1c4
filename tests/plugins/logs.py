"""Real logs as the engine hands them to a reader, and plans of the built-in backends."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from madlite.measure.lines import LineSplitter
from madlite.model import (
    Backend,
    Card,
    Event,
    Gpu,
    Line,
    Machine,
    Place,
    Reader,
    Request,
    RunPlan,
    RunSpec,
    Scalar,
    Step,
)

LOGS = Path(__file__).parents[1] / "data/logs"
TEMPLATES = Path(__file__).parents[2] / "templates"


def lines(data: bytes) -> list[Line]:
    splitter = LineSplitter()
    return [*splitter.number(splitter.take(data)), *splitter.number(splitter.take_rest())]


def events(reader: Reader, name: str) -> list[Event]:
    return [event for line in lines((LOGS / name).read_bytes()) for event in reader.feed(line)]


def read(reader: Reader, *texts: str) -> list[Event]:
    return [event for text in texts for event in reader.feed(Line(text=text))]


def steps(found: list[Event], phase: str = "train") -> list[Step]:
    return [event for event in found if isinstance(event, Step) and event.phase == phase]


def gpu_machine(count: int, device: str = "H200") -> Machine:
    name = f"NVIDIA {device}"
    gpus = tuple(Gpu(index=n, arch=name, product=name) for n in range(count))
    return Machine(vendor="NVIDIA", gpus=gpus, architecture=name, product=name, device=device)


def machine_of(device: str = "MI300X", count: int = 8) -> Machine:
    """Return a machine of AMD's or NVIDIA's GPUs, or one without."""
    if device == "cpu":
        return Machine()
    if not device.startswith("MI"):
        return gpu_machine(count, device)
    arch, product = "gfx942" if device in ("MI300X", "MI325X") else "gfx950", f"AMD Instinct {device}"
    gpus = tuple(Gpu(index=n, arch=arch, product=product) for n in range(count))
    return Machine(vendor="AMD", gpus=gpus, architecture=arch, product=product, device=device)


def plan(backend: Backend, machine: Machine, recipe: str, args: str = "", **changes: Scalar) -> RunPlan:
    """Return the plan of a recipe on all GPUs of a machine, with values of variant and settings changed."""
    card = Card(name="a card", root=Path(), source="a test", backend=backend.name, recipe=recipe)
    (draft,) = backend.expand(Request(card=card, tag=card.name), machine)
    return planned(draft, card, machine, changes, args=args)


def planned(
    draft: RunSpec,
    card: Card,
    machine: Machine,
    changes: Mapping[str, Scalar] | None = None,
    *,
    backend: str = "",
    nodes: int = 1,
    workspace: Path = Path("/space"),
    **fields: Any,
) -> RunPlan:
    """Return the plan of a draft on all GPUs of a machine, with values of variant and settings changed."""
    known = set(draft.variant.__struct_fields__)
    variant = {key: value for key, value in (changes or {}).items() if key in known}
    settings = {key: value for key, value in (changes or {}).items() if key not in known}
    values = {
        "inside": str(workspace),
        "variant": msgspec.structs.replace(draft.variant, **variant),
        "settings": {**draft.settings, **settings},
        "templates": draft.templates,
        "env": dict(draft.env),
        "result_rule": draft.result_rule,
    }
    return RunPlan(
        id="r1",
        card=card,
        backend=backend or card.backend,
        place=Place(nodes=nodes, gpus_per_node=len(machine.gpus), gpu_ids=tuple(gpu.index for gpu in machine.gpus)),
        machine=machine,
        workspace=workspace,
        folder=workspace / "madlite_runs/r1",
        **{**values, **fields},
    )
