"""Correct what was found by what a context or an option says."""

from __future__ import annotations

from itertools import count, islice

import msgspec

from madlite.errors import UsageProblem
from madlite.machine.facts import Seen, Source
from madlite.machine.found import Found
from madlite.machine.overrides import Asked
from madlite.machine.pretend import describe
from madlite.machine.products import short_name

CORRECTED = ("rocm_version", "cuda_version")


def overlay(found: Found, asked: Asked) -> Found:
    """Return the GPUs as the overrides have them; versions and render nodes apply to a described machine too.

    Raises:
        UsageProblem: fewer render nodes are named than there are GPUs.
    """
    if not found.gpus:
        return found
    gpus = _with_renders(_counted(found.gpus, _count(found, asked)), asked.renders)
    versions = {field: getattr(asked, field) for field in CORRECTED if getattr(asked, field)}
    given = {**versions, **_kind(found, asked)}
    origins = {field: asked.origin(field if field in asked.keys else "product") for field in given}
    if asked.n_gpus:
        origins["gpus"] = asked.origin("n_gpus")
    if asked.renders:
        origins["render_minor"] = asked.origin("renders")
    return msgspec.structs.replace(
        found,
        gpus=tuple(msgspec.structs.replace(gpu, **_kind(found, asked)) for gpu in gpus),
        origins={**found.origins, **origins},
        asked=(*found.asked, *_doubts(found, asked)),
        pretended=found.pretended or len(gpus) > len(found.gpus) or _are_others(found, asked),
        **versions,
    )


def _kind(found: Found, asked: Asked) -> dict[str, str]:
    """Return architecture and product as asked for; NVIDIA's architecture follows the product."""
    arch = asked.arch or (asked.product if found.vendor == "NVIDIA" else "")
    return {field: text for field, text in (("arch", arch), ("product", asked.product)) if text}


def _are_others(found: Found, asked: Asked) -> bool:
    """Say whether the overrides name another GPU than the one found: what nothing told may be filled in."""
    here, wanted = found.gpus[0], describe(msgspec.structs.replace(asked, vendor=found.vendor))
    if found.vendor == "AMD" and wanted.arch and here.arch and wanted.arch != here.arch:
        return True
    name = short_name(wanted, found.vendor) if wanted.product else asked.device
    unnamed = found.vendor == "AMD" and name == wanted.arch  # a text that holds no product's name
    return bool(name and here.product and not unnamed) and name.lower() != short_name(here, found.vendor).lower()


def _count(found: Found, asked: Asked) -> int | None:
    """Return how many GPUs to go on with; render nodes can choose among those that are here, not add to them."""
    return asked.n_gpus or min(len(asked.renders), len(found.gpus)) or None


def _counted(gpus: tuple[Seen, ...], wanted: int | None) -> tuple[Seen, ...]:
    """Return as many GPUs as wanted; those that are not here are like the first, without its address."""
    like = msgspec.structs.replace(gpus[0], node_id=None, render_minor=None, unique_id="", bus="")
    missing = max(0, (wanted or len(gpus)) - len(gpus))
    free = (number for number in count() if number not in {gpu.position for gpu in gpus})
    return (*gpus[:wanted], *(msgspec.structs.replace(like, position=n) for n in islice(free, missing)))


def _with_renders(gpus: tuple[Seen, ...], renders: tuple[int, ...]) -> tuple[Seen, ...]:
    if not renders:
        return gpus
    if len(renders) < len(gpus):
        raise UsageProblem(f"gpu_renderDs names {len(renders)} render nodes for {len(gpus)} GPUs", "name one per GPU")
    return tuple(msgspec.structs.replace(gpu, render_minor=minor) for gpu, minor in zip(gpus, renders, strict=False))


def _doubts(found: Found, asked: Asked) -> list[Source]:
    here = len(found.gpus)
    counts = {"n_gpus": asked.n_gpus or 0, "renders": len(asked.renders)}
    return [
        Source(name=asked.keys[field], problem=f"{count} asked for, {here} are here")
        for field, count in counts.items()
        if count > here
    ]
