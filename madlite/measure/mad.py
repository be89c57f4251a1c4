"""MAD's own figure beside ours, under its own name, so that published numbers stay comparable."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence

from madlite.measure.limits import shortened
from madlite.measure.performance import make_metric
from madlite.measure.steps import Steps
from madlite.measure.window import usable
from madlite.model import MadMetric, Metric, Status
from madlite.text import without_groups


def mad_metrics(
    rules: Iterable[MadMetric], steps: Steps, summary: Mapping[str, str], columns: Mapping[str, str]
) -> tuple[tuple[Metric, ...], tuple[str, ...]]:
    """Return one metric per rule that the run can answer, and a finding for each that it cannot."""
    metrics, findings = [], []
    for rule in rules:
        text = _figure(rule, steps, summary)
        metric = make_metric(text, rule.metric, columns=dict(columns), quantity=rule.quantity)
        if metric.status is Status.SUCCESS:
            metrics.append(metric)
        else:
            findings.append(f"no {rule.metric}: {_why(rule, text)}")
    return tuple(metrics), tuple(findings)


def _figure(rule: MadMetric, steps: Steps, summary: Mapping[str, str]) -> str:
    if rule.rule == "summary":
        return without_groups(summary.get(rule.key, ""))
    if rule.quantity is None:
        return ""
    if rule.rule == "last":  # as MAD's parsers take the last match of a log, whichever rank's it is
        last = steps.latest(rule.quantity)
        return "" if last is None else f"{last:.10g}"
    values = _printed(rule, steps.curve(rule.quantity).values)
    if not values or not all(map(usable, values)):
        return ""
    return f"{statistics.fmean(values):.6g}" if rule.rule == "mean" else f"{max(values):.10g}"


def _printed(rule: MadMetric, values: Sequence[float]) -> Sequence[float]:
    """Return those of the printed values that a rule is about."""
    return values[len(values) // 2 :] if rule.second_half else values[rule.start : rule.stop]


def _why(rule: MadMetric, text: str) -> str:
    if text:
        return f"'{shortened(text, 60)}' is no result"
    if rule.rule == "summary":
        return f"the log has no {rule.key}"
    if rule.rule == "last":
        return "no step has it"
    which = (
        "the second half of the printed steps" if rule.second_half else f"printed steps {rule.start + 1} to {rule.stop}"
    )
    return f"MAD's rule reads {which}"
