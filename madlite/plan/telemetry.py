"""How often a run's GPUs are sampled."""

from __future__ import annotations

from madlite.plan.values import Resolved

_DEFAULT_S = 1.0  # that of RunPlan


def telemetry_interval_s(resolved: Resolved) -> float:
    """Return the seconds between two samples that are asked for, 0 where `telemetry` is switched off."""
    return float(resolved.plan.get("telemetry_s", _DEFAULT_S)) if resolved.plan.get("telemetry", True) else 0.0
