"""Real logs as the engine hands them to a reader, and plans of the built-in backends."""

from __future__ import annotations

from pathlib import Path

import msgspec

from madlite.measure.lines import LineSplitter
from madlite.model import Backend, Card, Event, Gpu, Line, Machine, Place, Reader, Request, RunPlan, Scalar, Step

LOGS = Path(__file__).parents[1] / "data/logs"
TEMPLATES = Path(__file__).parents[2] / "templates"


def lines(data: bytes) -> list[Line]:
    splitter = LineSplitter()
    return [*splitter.feed(data), *splitter.flush()]


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


def plan(backend: Backend, machine: Machine, recipe: str, args: str = "", **changes: Scalar) -> RunPlan:
    """Return the plan of a recipe on all GPUs of a machine, with values of variant and settings changed."""
    card = Card(name="a card", root=Path(), source="a test", backend=backend.name, recipe=recipe)
    (draft,) = backend.expand(Request(card=card, tag=card.name), machine)
    known = set(draft.variant.__struct_fields__)
    variant = msgspec.structs.replace(draft.variant, **{k: v for k, v in changes.items() if k in known})
    return RunPlan(
        id="r1",
        card=card,
        backend=backend.name,
        place=Place(gpus_per_node=len(machine.gpus), gpu_ids=tuple(gpu.index for gpu in machine.gpus)),
        machine=machine,
        workspace=Path("/space"),
        inside="/space",
        folder=Path("/space/madlite_runs/r1"),
        variant=variant,
        settings={**draft.settings, **{k: v for k, v in changes.items() if k not in known}},
        templates=draft.templates,
        env=dict(draft.env),
        args=args,
    )
