"""A run's number: of the steady window of its steps, of its line, or of its results file."""

from __future__ import annotations

from madlite.measure.follow import Follower
from madlite.measure.mad import mad_metrics
from madlite.measure.multiple import Read
from madlite.measure.performance import make_metric
from madlite.measure.quality import window_findings
from madlite.measure.rules import plain
from madlite.measure.window import usable
from madlite.measure.witnesses.known import Asked, Number
from madlite.types import Cause, Metric, ResultRule, Status, Window


def number_of_steps(asked: Asked, log: Follower, window: Window | None) -> Number:
    """Return the window's median under its own name, and beside it what MAD's own parser would have taken."""
    if window is None:
        cause = Cause.BAD_NUMBER if (odd := _no_number(asked, log)) else Cause.NO_METRIC
        return Number(cause=cause, reason=odd or _no_window(asked, log), evidence=plain(log.step_line) if odd else "")
    headline = make_metric(f"{window.median:.6g}", asked.rule.headline_metric, columns=asked.columns)
    mad, findings = mad_metrics(asked.rule.mad, log.steps, log.summary, asked.columns)
    if log.torn:
        findings = (*findings, f"the last line was cut off: its {', '.join(log.torn)} is left out")
    if log.trainings > 1:
        findings = (
            *findings,
            f"the log has {log.trainings} trainings one after another: this is the last one's result",
        )
    findings = (*findings, *window_findings(window))
    if headline.status is Status.FAILURE:
        reason = f"'{window.median:g} {headline.metric}' is no result: {_why(headline)}"
        return Number(cause=Cause.BAD_NUMBER, reason=reason, evidence=plain(log.step_line), findings=findings)
    return Number(metrics=(*mad, headline), findings=findings)


def number_of_line(log: Follower) -> Number:
    """Return the number of the line `performance: <number> <metric>`."""
    found, line = log.scan.result, log.scan.evidence
    if found is None:
        reason = "the log has no line 'performance: <number> <metric>'"
        return Number(cause=Cause.NO_METRIC, reason=reason, evidence=log.telling_line)
    metric = make_metric(*found)
    if metric.status is Status.FAILURE:
        reason = f"'{found[0]} {found[1]}' is no result: {_why(metric)}"
        return Number((metric,), Cause.BAD_NUMBER, reason, line, log.scan.findings)
    return Number(metrics=(metric,), evidence=line, findings=log.scan.findings)


def _why(metric: Metric) -> str:
    return "it is not a finite number" if metric.value is None else "a throughput is above 0"


def number_of_file(rule: ResultRule, read: Read | None, log: Follower) -> Number:
    """Return the numbers of the results file; where some are none, the others are results all the same."""
    read = read or Read(problem=f"the run wrote no {rule.file}")
    if read.problem:
        return Number(cause=Cause.NO_METRIC, reason=read.problem, evidence=log.telling_line)
    text = _without(read.metrics, rule.file)
    if all(metric.status is not Status.SUCCESS for metric in read.metrics):
        return Number(metrics=read.metrics, cause=Cause.BAD_NUMBER, reason=text)
    return Number(metrics=read.metrics, findings=(text,) if text else ())


def last_step(asked: Asked, log: Follower) -> int | None:
    """Return the last step of the training that the log ends with; numbers above those asked for are none of its."""
    if (reach := log.steps.reach()) is None:
        return None
    last = reach[1] if log.restarted_at is None else log.last_step
    if asked.steps is None or last <= asked.steps:
        return last
    return max((n for n in log.steps.numbers() if n <= asked.steps), default=None)


def no_step(asked: Asked, log: Follower) -> str:
    """Return that a log has no step of those asked for, in words."""
    reach = log.steps.reach()
    if reach is None:
        return "the log has no training step"
    return f"the log has no training step up to the {asked.steps} asked for: its steps begin with {reach[0]}"


def _no_window(asked: Asked, log: Follower) -> str:
    if (last := last_step(asked, log)) is None:
        return no_step(asked, log)
    if asked.rule.headline not in log.steps.quantities():
        return f"no step reports {asked.rule.headline.value}"
    return f"no step is left after {asked.warmup_steps} steps of warm-up (the last was step {last})"


def _no_number(asked: Asked, log: Follower) -> str:
    """Return that steps after the warm-up report what is no number, "" where there are none."""
    curve, last = log.steps.curve(asked.rule.headline), last_step(asked, log)
    begin = log.steps.begin + asked.warmup_steps
    steady = [value for n, value in zip(curve.ns, curve.values, strict=True) if begin <= n <= (last or 0)]
    if not any(not usable(value) for value in steady):
        return ""
    return f"no {asked.rule.headline.value} of the steps after the warm-up is a finite number"


def _without(metrics: tuple[Metric, ...], file: str) -> str:
    bad = [metric.label for metric in metrics if metric.status is not Status.SUCCESS]
    return f"{file} has no number for {', '.join(bad)} ({len(bad)} of {len(metrics)}): FAILURE" if bad else ""
