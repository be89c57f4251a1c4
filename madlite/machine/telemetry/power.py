"""The mean power of a run's GPUs, of which several can be parts of one package and one can do nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from madlite.model import Gpu, GpuUse

NO_PACKAGES: Mapping[int, str] = MappingProxyType({})
_IDLE_PERCENT = 1.0  # of utilisation, at most
_AT_WORK_PERCENT = 20.0


def packages(gpus: Sequence[Gpu]) -> dict[int, str]:
    """Return what each of a machine's GPUs is a part of: partitions share a unique id, else a PCI device."""
    return {gpu.index: gpu.unique_id or gpu.bus.rpartition(".")[0] or f"GPU {gpu.index}" for gpu in gpus}


def mean_power(uses: Sequence[GpuUse], silent: str, packages: Mapping[int, str]) -> tuple[float | None, str]:
    """Return the mean power of one GPU, and what of it is to be known.

    `silent` names those that should tell their power and do not.  A package is counted once: some versions of the
    tools tell the power of all of it for each partition, others for the first one alone, whichever of them works.
    """
    working, idle = _without_idle(uses)
    names = {use.index: packages.get(use.index, f"GPU {use.index}") for use in uses}
    at_work = {names[use.index] for use in working}
    told: dict[str, float] = {}
    for use in uses:
        name = names[use.index]
        if use.power_w is not None and name in at_work:
            told[name] = max(use.power_w, told.get(name, 0.0))
    if silent and told:
        return None, f"GPU {silent} tells no power"
    if not told:
        return None, idle
    return sum(told.values()) / len(working), "; ".join(filter(None, (_shared(working, packages), idle)))


def _without_idle(uses: Sequence[GpuUse]) -> tuple[list[GpuUse], str]:
    """Return the GPUs that worked, and which did not: what is granted and not used takes no part in the tokens."""
    told = {use.index: use.utilization_percent for use in uses if use.utilization_percent is not None}
    at_work = any(percent >= _AT_WORK_PERCENT for percent in told.values())
    idle = [index for index, percent in told.items() if at_work and percent <= _IDLE_PERCENT]
    named = f"GPU {', '.join(map(str, idle))} did nothing: left out of the mean power" if idle else ""
    return [use for use in uses if use.index not in idle], named


def _shared(uses: Sequence[GpuUse], packages: Mapping[int, str]) -> str:
    without = [use.index for use in uses if use.power_w is None]
    if without:
        return f"GPU {', '.join(map(str, without))} has no power of its own: the sum is shared among all"
    names = [packages.get(use.index, f"GPU {use.index}") for use in uses]
    parts = [use.index for use, name in zip(uses, names, strict=True) if names.count(name) > 1]
    listed = ", ".join(map(str, parts))
    return f"GPU {listed} tell the power of their whole package: it is shared among its parts" if parts else ""
