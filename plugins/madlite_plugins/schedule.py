"""What speaks against a learning rate's schedule."""

from __future__ import annotations

from collections.abc import Iterator

from madlite import Finding, RunPlan, Variant


def schedule_findings(plan: RunPlan, variant: Variant) -> Iterator[Finding]:
    """Yield that the learning rate still rises when the run ends; `lr_warmup_steps` is a setting of the plan."""
    rising = int(plan.settings["lr_warmup_steps"])
    if variant.steps is not None and rising > variant.steps:
        yield Finding(
            message=f"the learning rate rises for {rising} steps, longer than this run: its loss means little, "
            "its speed is valid"
        )
