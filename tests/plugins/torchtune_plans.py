"""Drafts and plans of MAD's tags for the backend torchtune."""

from __future__ import annotations

from pathlib import Path

import msgspec

from madlite.model import Card, Machine, Request, RunPlan, RunSpec, Scalar
from madlite_plugins.torchtune.backend import Torchtune
from tests.plugins import logs
from tests.plugins.logs import machine_of


def drafts_of(name: str, device: str, **settings: str) -> list[RunSpec]:
    card = Card(name=name, root=Path(), source="a test", scripts="scripts/run.sh", args=f"--model_repo {name}")
    return list(Torchtune().expand(Request(card=card, tag=name, settings=settings), machine_of(device)))


def plan_of(name: str, device: str, **settings: str) -> RunPlan:
    """Return the plan of a tag's first run that fits."""
    return planned(drafts_of(name, device, **settings)[0], name, machine_of(device))


def planned(draft: RunSpec, name: str, machine: Machine) -> RunPlan:
    card = Card(name=name, root=Path(), source="a test")
    return logs.planned(draft, card, machine, backend="torchtune", inside="/myworkspace")


def changed(plan: RunPlan, **changes: Scalar) -> RunPlan:
    known = set(plan.variant.__struct_fields__)
    variant = msgspec.structs.replace(plan.variant, **{k: v for k, v in changes.items() if k in known})
    settings = {**plan.settings, **{k: v for k, v in changes.items() if k not in known}}
    return msgspec.structs.replace(plan, variant=variant, settings=settings)


def fatal(plan: RunPlan) -> list[str]:
    return [finding.message for finding in Torchtune().check(plan) if finding.fatal]
