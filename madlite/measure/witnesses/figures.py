"""Witnesses of a run's figures: the number itself, the file it is in, the work that it comes to."""

from __future__ import annotations

import statistics

from madlite.measure.compute import MOST_APART
from madlite.measure.number import shown
from madlite.measure.window import median_in, usable
from madlite.measure.witnesses import table
from madlite.measure.witnesses.known import Known
from madlite.measure.witnesses.table import Testimony, say
from madlite.model import Cause, Quantity, Status


def metric(known: Known) -> Testimony:
    """Ask whether there is a number that can be one."""
    number = known.number
    if known.elsewhere is not None:
        return say(table.NUMBER_ELSEWHERE, f"the result is printed on node {known.elsewhere}")
    if number.cause is not Cause.NONE:
        row = table.NO_NUMBER if number.cause is Cause.NO_METRIC else table.NO_RESULT
        return say(row, number.reason, number.evidence)
    if odd := _unread(known):
        return say(table.NUMBER_UNREAD, odd)
    good = [metric for metric in number.metrics if metric.status is Status.SUCCESS]
    return say(table.NUMBER, ", ".join(f"{metric.text} {metric.metric}" for metric in good[-3:]))


def _unread(known: Known) -> str:
    """Return that a number beside those of the result cannot be read, so that they may be none either; else ""."""
    rule, scan = known.asked.rule, known.log.scan
    if known.by_steps and (odd := known.log.marks.unread.get(rule.headline)):
        unit = rule.headline.label
        return f"'{shown(odd)}' of a step is no number: what other steps report as {unit} may be none either"
    if rule.kind == "performance_line" and scan.unread:
        return (
            f"'{shown(scan.unread.text)}' in '{shown(scan.unread.line)}' is no number: other lines' may be none either"
        )
    return ""


def error_pattern(known: Known) -> Testimony:
    """Ask whether a script that says its number printed an error, by madengine 2's rule."""
    if known.by_steps or not known.log.scanned or known.number.cause is not Cause.NONE:
        return say(table.NOT_SCANNED, _why_not_scanned(known))
    found = ", ".join(map(repr, known.log.suspects))
    return say(table.PATTERN, f"the script printed {found} beside its number") if found else say(table.NO_PATTERN)


def artifact(known: Known) -> Testimony:
    """Ask whether the results file is this run's: one that lay there before is not read at all."""
    rule, seen = known.asked.rule, known.seen
    if rule.kind != "multiple_results" or seen is None:
        return say(table.NO_ARTIFACT)
    if seen.results is None:
        return say(table.STALE, f"the run wrote no {rule.file}", known.log.telling_line)
    return say(table.FRESH, rule.file)


def compute(known: Known) -> Testimony:
    """Ask whether a GPU can do the work that the number comes to, and what the framework says of it."""
    work = known.compute
    if (mfu := _mfu(known)) > 100:
        return say(table.MFU_ABOVE, f"the trainer reports an MFU of {mfu:.4g} %, which is above 100 %")
    if work is None:
        return say(table.NOT_COUNTED, _why_not_counted(known))
    if work.mfu is None and work.peak_tflops is not None:
        return say(table.IMPOSSIBLE, work.no_mfu)
    if work.apart is not None and abs(work.apart) > MOST_APART:
        return say(table.COUNTED_OTHERWISE, f"the framework's TFLOP/s is {100 * work.apart:+.1f} % from ours")
    return say(table.COUNTED, f"{work.tflops_per_gpu:.4g} TFLOP/s/GPU")


def _mfu(known: Known) -> float:
    """Return the MFU that the trainer itself reports, the median of its steady steps; 0 where it reports none."""
    values = [value for value in known.log.steps.curve(Quantity.MFU_PERCENT).values if usable(value)]
    of_window = median_in(known.log.steps, Quantity.MFU_PERCENT, known.window) if known.window else None
    return of_window if of_window is not None else statistics.median(values or [0.0])


def _why_not_scanned(known: Known) -> str:
    if known.by_steps:
        return "not looked for: the run is judged by its steps"
    return "not looked for: there is no number" if known.log.scanned else "not looked for: the scan is switched off"


def _why_not_counted(known: Known) -> str:
    plan, variant = known.plan, known.plan.variant if known.plan else None
    if plan is None or not known.by_steps:
        return "a card's own script says its number itself" if plan else "no plan says which model this is"
    if known.window is None:
        return "there is no steady window"
    if plan.architecture is None:
        return "the model's shape is not known"
    sized = variant is not None and bool(variant.seq_len)
    return "its tokens per second are not known" if sized else "its sequence length is not known"
