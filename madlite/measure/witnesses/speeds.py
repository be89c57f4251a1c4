"""Witnesses of speeds: a framework's own summary against the steps that were read, and its clock against another."""

from __future__ import annotations

import math

from madlite.measure.clock import Clocked, Work, read_clock, work_of_step
from madlite.measure.witnesses import table
from madlite.measure.witnesses.known import Known
from madlite.measure.witnesses.table import Testimony, say
from madlite.model import Window

_LARGE, _HUGE = 999.95, 1e12  # between these a figure is written out, in groups of three digits


def summary(known: Known) -> Testimony:
    """Compare the steps that a framework's own summary is of with those that were read, as its reader knows them."""
    log = known.log
    if log.marks.computed:
        return say(table.SUMMARY_COMPUTED)
    if log.marks.summary_doubt:
        return say(table.SUMMARY_ODD, log.marks.summary_doubt)
    if log.marks.summary_doubt is None:
        return say(table.SUMMARY_UNKNOWN, "nobody knows of how many steps it is" if log.summary else "there is none")
    return say(table.SUMMARY_AS_READ)


def clock(known: Known) -> Testimony:
    """Compare a speed with the time between the lines of its steps: madlite's clock, or the log's own time stamps."""
    log, window = known.log, known.window
    if window is None:
        why = "there is no steady window" if known.by_steps else "a card's own script says its number itself"
        return say(table.CLOCK_UNKNOWN, why)
    work = work_of_step(window.quantity, known.plan, log.config)
    if work is None:
        return say(table.CLOCK_UNKNOWN, "it is not known how much work a step has on each GPU")
    if known.seen is not None and not math.isnan(log.marks.first_stamp_s):
        return say(table.CLOCK_UNKNOWN, "when its lines came is not known")
    found = read_clock(log.steps, window, work.amount, log.marks.interrupted)
    if isinstance(found, str):
        return say(table.CLOCK_UNKNOWN, found)
    text = _compared(window, work, found, "the log's own time stamps" if known.seen is None else "madlite's clock")
    return say(table.TOO_FAST if found.is_too_fast else table.CLOCK_AGREES, text)


def _compared(window: Window, work: Work, found: Clocked, whose: str) -> str:
    unit = window.quantity.label
    most = "at most " if work.at_most else ""
    return (
        f"reported {_figure(window.median)} {unit}, {'but' if found.is_too_fast else 'and'} {found.steps} steps × "
        f"{most}{_figure(work.amount)} {unit.partition('/')[0]} took {_figure(found.seconds)} s by {whose}: "
        f"{most}{_figure(found.done / found.seconds)} {unit}"
    )


def _figure(value: float) -> str:
    """Return a figure with as many digits as say something, without an exponent where it is an ordinary one."""
    return f"{value:,.0f}" if _LARGE <= abs(value) < _HUGE else f"{value:.4g}"
