"""Correct what was found by what a context or an option says."""

from __future__ import annotations

import msgspec

from madlite.errors import UsageProblem
from madlite.machine.facts import Seen, Source
from madlite.machine.found import Found
from madlite.machine.overrides import Asked

CORRECTED = ("rocm_version", "cuda_version")


def overlay(found: Found, asked: Asked) -> Found:
    """Return the GPUs as the overrides have them; versions and render nodes apply to a described machine too.

    Raises:
        UsageProblem: fewer render nodes are named than there are GPUs.
    """
    if not found.gpus:
        return found
    gpus = _with_renders(_counted(found.gpus, asked.n_gpus), asked.renders)
    versions = {field: getattr(asked, field) for field in CORRECTED if getattr(asked, field)}
    given = {**versions, **_kind(found, asked)}
    origins = {field: asked.origin(field if field in asked.keys else "product") for field in given}
    if asked.n_gpus:
        origins["gpus"] = asked.origin("n_gpus" if "n_gpus" in asked.keys else "renders")
    if asked.renders:
        origins["render_minor"] = asked.origin("renders")
    return msgspec.structs.replace(
        found,
        gpus=tuple(msgspec.structs.replace(gpu, **_kind(found, asked)) for gpu in gpus),
        origins={**found.origins, **origins},
        asked=(*found.asked, *_doubts(found, asked)),
        **versions,
    )


def _kind(found: Found, asked: Asked) -> dict[str, str]:
    """Return architecture and product as asked for; NVIDIA's architecture follows the product."""
    arch = asked.arch or (asked.product if found.vendor == "NVIDIA" else "")
    return {field: text for field, text in (("arch", arch), ("product", asked.product)) if text}


def _counted(gpus: tuple[Seen, ...], wanted: int | None) -> tuple[Seen, ...]:
    """Return as many GPUs as wanted; those that are not here are like the first, without its address."""
    like = msgspec.structs.replace(gpus[0], node_id=None, render_minor=None, unique_id="", bus="")
    count = wanted or len(gpus)
    return (*gpus[:count], *(msgspec.structs.replace(like, position=n) for n in range(len(gpus), count)))


def _with_renders(gpus: tuple[Seen, ...], renders: tuple[int, ...]) -> tuple[Seen, ...]:
    if not renders:
        return gpus
    if len(renders) < len(gpus):
        raise UsageProblem(f"gpu_renderDs names {len(renders)} render nodes for {len(gpus)} GPUs", "name one per GPU")
    return tuple(msgspec.structs.replace(gpu, render_minor=minor) for gpu, minor in zip(gpus, renders, strict=False))


def _doubts(found: Found, asked: Asked) -> list[Source]:
    here = len(found.gpus)
    if asked.n_gpus and asked.n_gpus > here:
        return [Source(name=asked.keys.get("n_gpus", "n_gpus"), problem=f"{asked.n_gpus} asked for, {here} are here")]
    return []
