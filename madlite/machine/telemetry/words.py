"""A run's telemetry in words."""

from __future__ import annotations

from madlite.model import Telemetry

LEAST_SAMPLES = 3  # of a span: fewer say little of it
THROTTLED_FROM = 0.05  # of the window: from there on it is a finding
_SHOWN_FROM = 0.005  # what would be shown as 0 %


def telemetry_findings(telemetry: Telemetry | None) -> tuple[str, ...]:
    """Return what of a run's telemetry explains a slow or unsteady number."""
    if telemetry is None or telemetry.samples < LEAST_SAMPLES or (telemetry.throttled or 0.0) < THROTTLED_FROM:
        return ()
    return (f"the GPUs were {throttled_words(telemetry)}",)


def throttled_words(telemetry: Telemetry) -> str:
    """Return how much of the time GPUs were slowed down, and why: `throttled 18 % of the window (thermal)`; or ""."""
    if (telemetry.throttled or 0.0) < _SHOWN_FROM:
        return ""
    reasons = sorted(telemetry.throttled_by, key=lambda reason: -telemetry.throttled_by[reason])
    why = f" ({', '.join(reasons)})" if reasons else ""
    return f"throttled {(telemetry.throttled or 0.0) * 100:.0f} % of the {telemetry.over}{why}"
