"""A result without secrets: whatever a workload, an engine or a results file said."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from madlite.record.rows import masked_metric
from madlite.types import Result


def masked(result: Result, mask: Callable[[str], str]) -> Result:
    """Return the result with every text of foreign origin masked."""
    return replace(
        result,
        reason=mask(result.reason),
        evidence=mask(result.evidence),
        findings=tuple(map(mask, result.findings)),
        metrics=tuple(masked_metric(metric, mask) for metric in result.metrics),
    )
