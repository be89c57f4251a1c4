"""A run's number: of the steady window of its steps, of its line, or of its results file."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from madlite.measure.checks.base import Expected, Number
from madlite.measure.monitor import LogMonitor
from madlite.measure.performance import (
    TOO_LONG,
    TRAINER_MARK,
    TRAINER_METRIC,
    FileResults,
    UnreadNumber,
    is_too_long,
    make_metric,
    names_metric,
    several,
    shortened,
)
from madlite.measure.rules import plain
from madlite.measure.steps import Steps, usable
from madlite.model import Cause, MadMetric, Metric, ResultRule, Status, Window
from madlite.text import percent, without_groups

# What is to be said of a steady window: too few samples, drift, outliers, scatter (docs/measurement.md).

FEWEST_STEPS = 5  # fewer steady steps than this say little
MOST_DRIFT = 0.05  # of the median, over the whole window
SURE_Z = 3.0  # of a drift: without one a window says so in 3 of 1000
MOST_CV = 0.10  # steps of a GPU that has nothing else to do stay below 0.04, even short ones


def window_findings(window: Window) -> Iterator[str]:
    """Yield what a reader of the number should know of its window, a sentence each."""
    unit = window.quantity.label
    if window.n < FEWEST_STEPS:
        yield f"low samples: only {window.n} steady {'step' if window.n == 1 else 'steps'}"
    drift = window.drift or 0.0
    if drifts := abs(drift) > MOST_DRIFT and abs(window.drift_z) >= SURE_Z:
        way = "rises" if drift > 0 else "falls"
        steps = f"steps {window.first_step} to {window.last_step}"
        yield f"drift: {unit} {way} by {percent(abs(drift))} over the steady window ({steps})"
    if window.outliers:
        yield f"outliers: {_outliers(window)}"
    if abs(window.cv) > MOST_CV and not (drifts and window.outliers):  # which say why
        yield f"scatter: the steady steps' {unit} has a CV of {percent(abs(window.cv))}, above {percent(MOST_CV)}"


def _outliers(window: Window) -> str:
    below, above = window.median - window.min, window.max - window.median
    side, far = ("below", below) if below > above else ("above", above)
    are = "is" if window.outliers == 1 else "are"
    furthest = "" if window.outliers == 1 else "the furthest "
    return (
        f"{window.outliers} of {window.n} steady steps {are} far from the median, "
        f"{furthest}{percent(abs(far / window.median))} {side} it"
    )


# MAD's own figure beside ours, under its own name, so that published numbers stay comparable.


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
    values: Sequence[float] = steps.curve(rule.quantity).values
    values = values[len(values) // 2 :] if rule.second_half else values[rule.start : rule.stop]
    if not values or not all(map(usable, values)):
        return ""
    return f"{statistics.fmean(values):.6g}" if rule.rule == "mean" else f"{max(values):.10g}"


def _why(rule: MadMetric, text: str) -> str:
    if text:
        return f"'{shortened(text, 60)}' is no result"
    if rule.rule == "summary":
        return f"the log has no {rule.key}"
    if rule.rule == "last":
        return "no step has it"
    if rule.second_half:
        return "MAD's rule reads the second half of the printed steps"
    return f"MAD's rule reads printed steps {rule.start + 1} to {rule.stop}"


def number_from_steps(expected: Expected, log: LogMonitor, window: Window | None) -> Number:
    """Return the window's median under its own name, and beside it what MAD's own parser would have taken."""
    if window is None and (odd := _unread(expected, log) or _no_number(expected, log)):
        return Number(cause=Cause.BAD_NUMBER, reason=odd, evidence=plain(log.failures.step_line))
    if window is None:
        return Number(cause=Cause.NO_METRIC, reason=_no_window(expected, log))
    rule, columns = expected.rule, expected.columns
    headline = make_metric(f"{window.median:.6g}", rule.headline_metric, columns=columns, quantity=rule.headline)
    mad, findings = mad_metrics(rule.mad, log.steps, {**log.summary, **log.training.computed}, columns)
    torn = [f"the last line was cut off: its {', '.join(log.torn)} is left out"] if log.torn else []
    of_log = (*torn, *_computed(log), *_trainings(log), *_begins_late(log), *_beyond(expected, log))
    findings = (*findings, *of_log, *window_findings(window), *log.unread)
    if headline.status is Status.FAILURE:
        reason = f"'{window.median:g} {headline.metric}' is no result: {_why_unfit(headline)}"
        return Number(cause=Cause.BAD_NUMBER, reason=reason, evidence=plain(log.failures.step_line), findings=findings)
    return Number(metrics=(*mad, headline), findings=findings)


def _begins_late(log: LogMonitor) -> Iterator[str]:
    """Yield that the log is of a training that went on, from a checkpoint say: what it did before is not in it."""
    if (begin := log.steps.begin) > max(1, log.steps.interval()):
        yield f"measured in parts: the log begins with step {begin}, and has none of steps 1 to {begin - 1}"


def _beyond(expected: Expected, log: LogMonitor) -> Iterator[str]:
    """Yield that a training went on beyond the steps asked for, of which one more may be a step 0, or its end mark."""
    reach = log.steps.reach()
    last = 0 if reach is None else reach[1]
    if expected.steps is not None and last > expected.steps + 1:
        yield f"the log continues to step {last}, but {expected.steps} were asked for: those after it do not count"
    if log.ended_at is not None and reach is not None and last > log.ended_at:
        yield f"the log continues to step {last} after the end mark, at step {log.ended_at}: those steps do not count"


def number_from_line(log: LogMonitor) -> Number:
    """Return the number of the line `performance: <number> <metric>`."""
    found, line = log.scan.result, log.scan.evidence
    if found is None and (odd := log.scan.unread):
        metric = make_metric(odd.text if names_metric(odd.metric) else "", odd.metric)
        return Number((replace(metric, cause=Cause.BAD_NUMBER),), Cause.BAD_NUMBER, _unreadable(odd), odd.line)
    if found is None:
        reason = "the log has no line 'performance: <number> <metric>'"
        return Number(cause=Cause.NO_METRIC, reason=reason, evidence=log.best_error_line)
    of_trainer = log.scan.first is None
    if of_trainer and (computed := log.training.computed.get(TRAINER_MARK)):
        found = (computed, TRAINER_METRIC)
    findings = (*log.scan.findings, *(_computed(log) if of_trainer else ()), *_of_trainings(log, of_trainer))
    metric = make_metric(*found)
    if metric.status is Status.FAILURE:
        why = TOO_LONG if is_too_long(found[0]) else _why_unfit(metric)
        reason = f"'{shortened(found[0], 60)} {shortened(found[1], 60)}' is no result: {why}"
        return Number((metric,), Cause.BAD_NUMBER, reason, line, findings)
    return Number(metrics=(metric,), evidence=line, findings=findings)


def _unreadable(odd: UnreadNumber) -> str:
    rule = "a comma separates groups of three digits, and nothing else separates digits"
    if not names_metric(odd.metric):
        what = f"'{odd.metric}' names" if odd.metric else "nothing behind it names"
        rule = f"{what} what it counts, as 'performance: 25600 tokens/s' does"
    if without_groups(odd.text) != odd.text:
        rule = "a Trainer separates no groups of digits, so that the comma may begin the decimals"
    return f"the number '{shown(odd.text)}' in the line '{shown(odd.line)}' cannot be read: {rule}"


def has_no_end(expected: Expected, log: LogMonitor) -> bool:
    """Return whether the last of several trainings stopped before its end, which the ones before it have a mark of."""
    if log.trainings < 2 or log.ended or not log.training.ended_before:
        return False
    return expected.steps is None or (last_step(expected, log) or 0) < expected.steps


def _trainings(log: LogMonitor) -> tuple[str, ...]:
    """Return that the log has several trainings, of which the last one counts."""
    if log.trainings > 1:
        return (f"{_several(log)}: this is the last one's result",)
    if log.restarted_at is None or not log.steps.is_overtaken:
        return ()
    return (f"the training was started again from step {log.restarted_at}: all steps are those since then",)


def parts_of(log: LogMonitor) -> str:
    """Return that a training was started again before its end, and that its last part is measured."""
    steps, before = log.steps, log.restarted_from
    how = f"the steps went back to {log.restarted_at}"
    if (log.restarted_at or 0) > before:
        how = f"the training was started again before step {log.restarted_at}"
    parts = f"steps {steps.begin} to {before}, then {steps.part_begin} to {log.last_step}"
    return f"{how}; measured in parts: {parts}, and the number is of the last part alone"


def _of_trainings(log: LogMonitor, of_trainer: bool) -> tuple[str, ...]:
    """Return the same of a number that a line reports, the Trainer's own or a script's."""
    if of_trainer and log.summary:
        return _trainings(log)
    if of_trainer and log.trainings > 1:
        return (f"{_several(log)}: this is the result of the last one that came to its end",)
    if log.trainings > 1:
        return (f"{_several(log)}: only the script knows to which of them the result belongs",)
    if log.restarted_at is None:
        return ()
    return (f"the steps went back to {log.restarted_at}: the script trains more than once, or went on again",)


def _several(log: LogMonitor) -> str:
    return f"the log has {log.trainings} trainings one after another"


def _computed(log: LogMonitor) -> Iterator[str]:
    """Yield that a figure is computed from the steps that were done, in place of the framework's own."""
    for name, text in log.training.computed.items():
        yield (
            f"{name} is computed from the steps that were done: {text}; the framework's own summary, of other steps, "
            f"reports {log.summary.get(name, '')}"
        )


def _why_unfit(metric: Metric) -> str:
    return "it is not a finite number" if metric.value is None else "a throughput is above 0"


def number_from_file(rule: ResultRule, read: FileResults | None, log: LogMonitor) -> Number:
    """Return the numbers of the results file; where some are none, the others are results all the same."""
    read = read or FileResults(problem=f"the run wrote no {rule.file}")
    if read.problem:
        return Number(cause=Cause.NO_METRIC, reason=read.problem, evidence=log.best_error_line)
    text = _without(read.metrics, rule.file)
    if all(metric.status is not Status.SUCCESS for metric in read.metrics):
        return Number(metrics=read.metrics, cause=Cause.BAD_NUMBER, reason=text, findings=read.notes)
    return Number(metrics=read.metrics, findings=(*([text] if text else []), *read.notes))


def last_step(expected: Expected, log: LogMonitor) -> int | None:
    """Return the last step of the training that the log ends with; numbers above those asked for are none of its."""
    if (reach := log.steps.reach()) is None:
        return None
    last = reach[1] if log.restarted_at is None else log.last_step
    if log.ended_at is not None:  # what comes after the framework's end mark is none of the training's
        last = min(last, log.ended_at)
    if expected.steps is None or last <= expected.steps:
        return last
    return max((n for n in log.steps.numbers() if n <= expected.steps), default=None)


def no_step(expected: Expected, log: LogMonitor) -> str:
    """Return that a log has no step of those asked for, as text."""
    reach = log.steps.reach()
    if reach is None:
        return "the log has no training step"
    return f"the log has no training step up to the {expected.steps} asked for: its steps begin with {reach[0]}"


def shown(text: str) -> str:
    """Return text of a log as a sentence quotes it."""
    return shortened(text.strip(), 60)


def _unread(expected: Expected, log: LogMonitor) -> str:
    """Return that the steps say their number as text that is none, "" where they do not."""
    unread, headline = log.training.unread, expected.rule.headline
    if headline not in unread and headline not in log.steps.quantities():
        headline = next((quantity for quantity in unread if quantity.is_speed), headline)
    odd = unread.get(headline)
    return f"'{shown(odd)}' is no number, which the steps report as {headline.label}" if odd else ""


def _no_window(expected: Expected, log: LogMonitor) -> str:
    if (last := last_step(expected, log)) is None:
        return no_step(expected, log)
    if expected.rule.headline not in log.steps.quantities():
        return f"no step reports {expected.rule.headline.label}"
    return f"no step is left after {expected.warmup_steps} steps of warm-up (the last was step {last})"


def _no_number(expected: Expected, log: LogMonitor) -> str:
    """Return that steps after the warm-up report what is no number, "" where there are none."""
    curve, last = log.steps.curve(expected.rule.headline), last_step(expected, log)
    begin = log.steps.begin + expected.warmup_steps
    steady = [value for n, value in zip(curve.ns, curve.values, strict=True) if begin <= n <= (last or 0)]
    if not any(not usable(value) for value in steady):
        return ""
    return f"no {expected.rule.headline.label} of the steps after the warm-up is a finite number"


def _without(metrics: tuple[Metric, ...], file: str) -> str:
    bad = [metric.label for metric in metrics if metric.status is not Status.SUCCESS]
    return f"{file} has no number for {several(bad, 20)} ({len(bad)} of {len(metrics)}): FAILURE" if bad else ""
