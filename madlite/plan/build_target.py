"""For which GPUs and which system images are built, where the machine that builds need not have them."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from madlite.errors import UsageProblem
from madlite.model import Machine, Value
from madlite.plan.context import Context
from madlite.plan.images import ARCHITECTURE

VENDORS = ("AMD", "NVIDIA", "CPU")
_SYSTEMS = ("UBUNTU", "CENTOS")


class Target(Value, frozen=True):
    """What images are for: the context with vendor and system in it, and architectures, none for any."""

    context: Context
    gpu_vendor: str
    architectures: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def find_target(context: Context, machine: Machine, architectures: Iterable[str]) -> Target:
    """Return the target: the context's vendor, else this machine's, else AMD.

    Raises:
        UsageProblem: the context names a vendor or a system that nobody builds for.
    """
    notes = []
    vendor = context.known.gpu_vendor or (machine.vendor if machine.gpus else "")
    if not vendor:
        vendor = VENDORS[0]
        notes.append("no GPU here: builds for AMD; --gpu-vendor NVIDIA or CPU for others")
    vendor = _one_of(VENDORS, "gpu_vendor", vendor)
    system = _one_of(_SYSTEMS, "guest_os", context.known.guest_os or _SYSTEMS[0])
    wanted = tuple(dict.fromkeys(part.strip() for text in architectures for part in text.split(",") if part.strip()))
    given = context.known.docker_build_arg.get(ARCHITECTURE)
    if wanted and given:
        notes.append(f"--target-archs has no effect: the context's docker_build_arg says {ARCHITECTURE}={given}")
        wanted = ()
    named = {"gpu_vendor": vendor, "guest_os": system}
    values = {**context.values, **named}
    known = replace(context.known, **named)
    return Target(
        context=replace(context, known=known, values=values),
        gpu_vendor=vendor,
        architectures=wanted,
        notes=tuple(notes),
    )


def _one_of(allowed: tuple[str, ...], key: str, value: str) -> str:
    if value.upper() not in allowed:
        raise UsageProblem(f"{key} '{value}' is none of {', '.join(allowed)}", f"{key} is a key of the context")
    return value.upper()
