"""How long a run may be silent before it counts as hung, and who says so."""

from __future__ import annotations

from madlite.model import Value
from madlite.plan.values import Resolved

START, STEP = "start_silence_s", "silence_s"
_DEFAULT_S = {START: 1800.0, STEP: 300.0}  # those of RunPlan
NO_READER = "default: nobody reads steps in its log"


class SilenceLimits(Value, frozen=True):
    """Seconds without output before the first step, and without a step after it; 0 without limit."""

    start_s: float
    step_s: float
    origins: dict[str, str]


def silence_limits(resolved: Resolved, *, reads_steps: bool) -> SilenceLimits:
    """Return the limits that are asked for, else the defaults.

    Where nobody reads steps there is none by default, and what is asked for either is one of any output: of two the
    smaller one counts, for output that does not come is no step either.
    """
    asked = {name: float(resolved.plan[name]) for name in (START, STEP) if name in resolved.plan}
    origins = {name: resolved.origins[name] for name in asked}
    if reads_steps:
        limits = {**_DEFAULT_S, **asked}
        return SilenceLimits(
            start_s=limits[START], step_s=limits[STEP], origins={**dict.fromkeys(_DEFAULT_S, "default"), **origins}
        )
    on = {name: limit_s for name, limit_s in asked.items() if limit_s}
    least = min(on or asked, key=lambda name: asked[name], default=START)
    return SilenceLimits(
        start_s=asked.get(least, 0.0),
        step_s=asked.get(STEP, 0.0),
        origins={**dict.fromkeys(_DEFAULT_S, NO_READER), **origins, START: origins.get(least, NO_READER)},
    )
