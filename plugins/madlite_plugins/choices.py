"""Settings that are one of some words, and those that several backends have alike."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from madlite import Finding, RunPlan, did_you_mean, one_hint

_NUMBER = re.compile("[1-9][0-9]{0,3}")


def unknown_choice(name: str, value: object, known: Iterable[str]) -> Iterator[Finding]:
    """Yield that a setting is none of the words it can be."""
    words = tuple(known)
    if value not in words:
        close = did_you_mean(str(value), filter(None, words), most=1)
        hint = one_hint(close, f"one of {', '.join(filter(None, words))}")
        yield Finding(message=f"{name} '{value}' is unknown", hint=hint, fatal=True, keys=(name,))


def unknown_checkpointing(mode: str) -> Iterator[Finding]:
    """Yield that torchtitan knows no such activation checkpointing; a number recomputes one of so many layers."""
    if not _NUMBER.fullmatch(mode):
        yield from unknown_choice("activation_checkpoint", mode, ("none", "selective", "full", "memory_budget"))


def part_findings(plan: RunPlan, *, is_possible: bool, where: str) -> Iterator[Finding]:
    """Yield that not every Nth layer alone can be recomputed: `where` says with what it can."""
    settings = plan.settings
    checkpointing = settings.get("gradient_checkpointing", settings.get("activation_checkpointing"))
    if int(settings["checkpoint_every"]) < 1:
        yield Finding(
            message=f"checkpoint_every is {settings['checkpoint_every']}", fatal=True, keys=("checkpoint_every",)
        )
    elif int(settings["checkpoint_every"]) > 1 and not (is_possible and checkpointing):
        message = f"checkpoint_every above 1 takes activations to be recomputed, and works {where} alone"
        yield Finding(message=message, hint="--set checkpoint_every=1", fatal=True, keys=("checkpoint_every",))


def checkpoint_findings(plan: RunPlan, *, is_possible: bool = True, where: str = "") -> Iterator[Finding]:
    """Yield why no further attempt can go on from a checkpoint that is asked for: `where` says with what one can."""
    settings, steps = plan.settings, plan.variant.steps if plan.variant is not None else None
    interval = int(settings["checkpoint_interval"])
    if not settings["checkpoint"]:
        return
    if not is_possible:
        hint = "--set checkpoint=false"
        yield Finding(message=f"checkpoint works {where} alone", hint=hint, fatal=True, keys=("checkpoint",))
    if interval < 1:
        message = f"checkpoint_interval is {interval}"
        yield Finding(message=message, hint="--set checkpoint_interval=10", fatal=True, keys=("checkpoint_interval",))
    elif steps is not None and interval >= steps:
        message = (
            f"checkpoint_interval {interval} is not below the {steps} steps: no further attempt goes on from there"
        )
        yield Finding(message=message, hint=f"--set checkpoint_interval={max(1, steps // 5)}")
    if not plan.traits.shares_files:
        yield Finding(message="the checkpoint goes with the pod that wrote it: each attempt begins with step 1")
