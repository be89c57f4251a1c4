"""How many micro-steps a run of AMD's benchmark scripts has: whole windows of accumulation, half of them warm-up."""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec.structs import replace

from madlite import FEW, Finding, Request, RunPlan, RunSpec, Variant, few_steps

_INTEGER = re.compile(r"\s*\+?[0-9]{1,18}\s*")


def with_half_warmup(spec: RunSpec, request: Request) -> RunSpec:
    """Return the RunSpec with half of its steps as warm-up, as the script does, unless another number was requested."""
    requested = request.settings.get("steps", "")
    steps = int(requested) if _INTEGER.fullmatch(requested) else spec.variant.steps if spec.variant else None
    if spec.variant is None or steps is None or "warmup_steps" in request.settings:
        return spec
    return replace(spec, variant=replace(spec.variant, warmup_steps=steps // 2))


def windows_left(plan: RunPlan, variant: Variant) -> Iterator[Finding]:
    """Yield that the micro-steps are no whole windows of accumulation, or leave too few of them after the warm-up."""
    if plan.profile:
        what = "the script counts micro-steps, and the profiler the optimizer's steps: it cannot be profiled"
        yield Finding(message=what, hint="leave profile out", fatal=True, keys=("profile",))
        return
    size, steps, warmup = int(plan.settings["accumulation"]), variant.steps or 0, variant.warmup_steps
    if size < 1:
        yield Finding(
            message=f"accumulation is {size}", hint="--set accumulation=8", fatal=True, keys=("accumulation",)
        )
        return
    before = -(-warmup // size)
    enough = max(before + FEW, 2 * FEW) * size  # also where half of them will be warm-up
    if steps % size:
        yield Finding(
            message=f"{steps} micro-steps are no whole number of steps of {size}",
            hint=f"--set steps={max(steps // size * size, enough)}",
            fatal=True,
            keys=("steps", "accumulation"),
        )
        return
    yield from few_steps(f"{steps} micro-steps", steps // size - before, warmup, f"--set steps={enough}")
