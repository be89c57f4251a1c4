"""A result without secrets: whatever a workload, an engine or a results file said."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from madlite.types import Metric, Result


def masked(result: Result, mask: Callable[[str], str]) -> Result:
    """Return the result with every text of foreign origin masked."""
    return replace(
        result,
        reason=mask(result.reason),
        evidence=mask(result.evidence),
        findings=tuple(map(mask, result.findings)),
        metrics=tuple(_masked(metric, mask) for metric in result.metrics),
    )


def _masked(metric: Metric, mask: Callable[[str], str]) -> Metric:
    columns = {name: mask(value) for name, value in metric.columns.items()}
    return replace(metric, label=mask(metric.label), metric=mask(metric.metric), columns=columns)
