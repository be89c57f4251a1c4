"""Drafts and plans of MAD's tags for the backend torchtune."""

from __future__ import annotations

from pathlib import Path

import msgspec

from madlite.model import Card, Gpu, Machine, Place, Request, RunPlan, RunSpec, Scalar
from madlite_plugins.torchtune.backend import Torchtune
from tests.plugins.logs import gpu_machine


def machine_of(device: str, count: int = 8) -> Machine:
    if device == "cpu":
        return Machine()
    if not device.startswith("MI"):
        return gpu_machine(count, device)
    arch = "gfx942" if device in ("MI300X", "MI325X") else "gfx950"
    gpus = tuple(Gpu(index=n, arch=arch, product=f"AMD Instinct {device}") for n in range(count))
    return Machine(vendor="AMD", gpus=gpus, architecture=arch, product=f"AMD Instinct {device}", device=device)


def drafts_of(name: str, device: str, **settings: str) -> list[RunSpec]:
    card = Card(name=name, root=Path(), source="a test", scripts="scripts/run.sh", args=f"--model_repo {name}")
    return list(Torchtune().expand(Request(card=card, tag=name, settings=settings), machine_of(device)))


def plan_of(name: str, device: str, **settings: str) -> RunPlan:
    """Return the plan of a tag's first run that fits."""
    return planned(drafts_of(name, device, **settings)[0], name, machine_of(device))


def planned(draft: RunSpec, name: str, machine: Machine) -> RunPlan:
    return RunPlan(
        id="r1",
        card=Card(name=name, root=Path(), source="a test"),
        backend="torchtune",
        place=Place(gpus_per_node=len(machine.gpus), gpu_ids=tuple(gpu.index for gpu in machine.gpus)),
        machine=machine,
        workspace=Path("/space"),
        inside="/myworkspace",
        folder=Path("/space/madlite_runs/r1"),
        variant=draft.variant,
        settings=draft.settings,
        templates=draft.templates,
        env=dict(draft.env),
        result_rule=draft.result_rule,
    )


def changed(plan: RunPlan, **changes: Scalar) -> RunPlan:
    known = set(plan.variant.__struct_fields__)
    variant = msgspec.structs.replace(plan.variant, **{k: v for k, v in changes.items() if k in known})
    settings = {**plan.settings, **{k: v for k, v in changes.items() if k not in known}}
    return msgspec.structs.replace(plan, variant=variant, settings=settings)


def fatal(plan: RunPlan) -> list[str]:
    return [finding.message for finding in Torchtune().check(plan) if finding.fatal]
