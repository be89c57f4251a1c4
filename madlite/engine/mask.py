"""A result without secrets: whatever a workload, an engine or a results file said."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from madlite.record.rows import masked_metric
from madlite.record.tame import tame
from madlite.types import Result

_SAID = (
    *("reason", "evidence", "findings", "suspect", "witnesses", "diagnosis", "config", "provenance"),
    "telemetry",
)


def masked(result: Result, mask: Callable[[str], str]) -> Result:
    """Return the result with every text of foreign origin masked."""
    said = {name: tame(getattr(result, name), mask) for name in _SAID}
    return replace(result, metrics=tuple(masked_metric(metric, mask) for metric in result.metrics), **said)
