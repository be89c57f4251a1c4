"""What a log shows, on a page for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from madlite.cli.details import suspect_lines
from madlite.cli.parse_secrets import secrets_in
from madlite.cli.words import figures, mad_figures, status_words
from madlite.model import Quantity, Result, Status, Window
from madlite.run.foreign import Reading
from madlite.secrets import Redactor
from madlite.text import printable

_LONGEST = 300  # characters of a line of the log
_FIRST = ("steps", "seq_len", "micro_batch", "global_batch", "world_size")
_PAIRS = 10


def page(reading: Reading) -> str:
    """Return what people want to know first, secrets masked."""
    mask = Redactor(secrets_in(reading)).text
    return "".join(f"{printable(mask(line)).rstrip()}\n" for line in _lines(reading))


def _lines(reading: Reading) -> Iterator[str]:
    verdict = reading.verdict
    yield f"{reading.log}  ({f'backend {reading.backend}' if reading.backend else 'no framework recognised'})"
    yield from _outcome(reading)
    if reach := reading.steps.reach():
        yield f"  steps     {_steps(reading, *reach)}"
    if reading.config:
        yield f"  config    {_pairs(reading.config)}"
    if verdict.window is not None:
        yield from _table(verdict.window, reading.medians)
        if len(verdict.metrics) > 1:
            yield f"  by MAD's own rules: {mad_figures(_result(reading))}"
    if reading.line is not None and verdict.window is not None:
        yield f"  performance line: {reading.line.text or 'no number'} {reading.line.metric}"
    if reading.summary:
        yield f"  the framework's own summary: {_pairs(reading.summary)}"
    for finding in verdict.findings:
        yield f"  note: {finding[:_LONGEST]}"


def _outcome(reading: Reading) -> Iterator[str]:
    """Yield the verdict, and with a failure the line that decided it, whose it was and what may help."""
    verdict, found = reading.verdict, reading.diagnosis
    if verdict.status is Status.SUCCESS:
        result = _result(reading)
        yield f"  {status_words(verdict.status.value, verdict.suspect)}   {figures(result)}"
        yield from (f"            {line[:_LONGEST]}" for line in suspect_lines(result))
    else:
        yield f"  {verdict.status.value}   [{found.cause if found else verdict.cause.value}] {verdict.reason}"
    if verdict.evidence:
        yield f"            > {verdict.evidence[:_LONGEST]}"
    if found is None:
        return
    whose = f"rank {found.rank}" if found.rank is not None else ""
    if whose or found.where:
        yield "            " + ", ".join(filter(None, (whose, found.where and f"at {found.where[:_LONGEST]}")))
    if found.hint:
        yield f"            try: {found.hint}"


def _result(reading: Reading) -> Result:
    verdict = reading.verdict
    return Result(
        plan_id="", status=verdict.status, window=verdict.window, metrics=verdict.metrics, suspect=verdict.suspect
    )


def _steps(reading: Reading, first: int, last: int) -> str:
    count, left_out = reading.steps.count(), reading.steps.count("validate")
    parts = [f"{first} to {last}" + (f" of {reading.asked_steps}" if reading.asked_steps else "")]
    if count != last - first + 1:
        parts.append(f"{count} of them reported")
    if ranks := reading.steps.ranks():
        parts.append(f"rank {ranks[0]}" if len(ranks) == 1 else f"{len(ranks)} ranks, {ranks[0]} to {ranks[-1]}")
    if left_out:
        parts.append(f"{left_out} validation step{'s' if left_out > 1 else ''} left out")
    return ", ".join(parts)


def _table(window: Window, medians: Mapping[Quantity, float]) -> Iterator[str]:
    dropped = f", {window.dropped} dropped" if window.dropped else ""
    steps = (
        f"{window.n} steps, {window.first_step} to {window.last_step}"
        if window.n > 1
        else f"1 step, {window.first_step}"
    )
    yield f"  window    {steps}{dropped}"
    wide = max(len(quantity.label) for quantity in (window.quantity, *medians))
    titles = ("median", "mean", "std", "CV %", "min", "max")
    yield f"    {'':<{wide}}" + "".join(f"{title:>12}" for title in titles)
    figures = (window.median, window.mean, window.std, 100 * window.cv, window.min, window.max)
    yield f"    {window.quantity.label:<{wide}}" + "".join(f"{_number(figure):>12}" for figure in figures)
    for quantity, median in medians.items():
        yield f"    {quantity.label:<{wide}}{_number(median):>12}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e12 else f"{value:.4g}"


def _pairs(values: Mapping[str, str]) -> str:
    """Return the first few of a mapping in words, those that every training has before others."""
    names = [*(name for name in _FIRST if name in values), *(name for name in values if name not in _FIRST)]
    more = f" and {len(names) - _PAIRS} more (--json)" if len(names) > _PAIRS else ""
    return " · ".join(f"{name} {values[name][:_LONGEST]}" for name in names[:_PAIRS]) + more
