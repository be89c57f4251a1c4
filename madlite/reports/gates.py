"""Gates: which outcomes of a comparison make the command fail.

A gate is a verdict, for the verdicts of a change with the least change that counts: `regression>3%`, `improvement>5%`,
`suspicious`, `missing` (a series of the base that the new side does not have), `failure` (one without any number).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from madlite.errors import UsageProblem, did_you_mean, one_hint
from madlite.measure.statistics import smallest_p
from madlite.model import Value
from madlite.reports.compare import Comparison, Report, Verdict, p_text

_CHANGES = {"regression": -1, "improvement": 1}
_OTHERS = ("suspicious", "missing", "failure")
_GATE = re.compile(r"(?P<what>[a-z]+)(?:\s*>\s*(?P<least>\d+(?:\.\d*)?)\s*%)?")


class Gate(Value, frozen=True):
    """One condition: `what` it looks for, and the least change, as a part of the base."""

    what: str
    least: float = 0.0
    text: str = ""


class Trip(Value, frozen=True):
    """A series for which a gate trips, and why, in a sentence."""

    gate: str
    series: str
    reason: str


def read_gates(texts: Iterable[str]) -> tuple[Gate, ...]:
    """Return the gates of `--fail-on`; several can stand in one text, divided by commas.

    Raises:
        UsageProblem: one is none.
    """
    return tuple(_gate(part.strip()) for text in texts for part in text.split(",") if part.strip())


def _gate(text: str) -> Gate:
    found = _GATE.fullmatch(text.lower())
    known = (*_CHANGES, *_OTHERS)
    hint = "--fail-on 'regression>3%', or suspicious, missing, failure"
    if found is None or found["what"] not in known:
        word = re.match(r"[a-z]*", text.lower())
        raise UsageProblem(
            f"--fail-on {text!r} is no gate", one_hint(did_you_mean(word[0] if word else "", known, most=1), hint)
        )
    if found["least"] and found["what"] not in _CHANGES:
        raise UsageProblem(f"--fail-on {text!r}: {found['what']} has no size", hint)
    return Gate(what=found["what"], least=float(found["least"] or 0) / 100, text=text)


def trips(
    report: Report, gates: Sequence[Gate], *, require_data: bool = False, allow_undecided: bool = False
) -> list[Trip]:
    """Return for which series a gate trips; with `require_data` also those that cannot be judged.

    A gate on a change trips where the data cannot decide, too, unless `allow_undecided`: that is no pass.
    """
    found = [trip for gate in gates for trip in _trips(report, gate)]
    if not allow_undecided:
        found += [trip for gate in gates if gate.what in _CHANGES for trip in _undecided(report, gate)]
    if require_data:
        blank = [(compared.name, compared.reason) for compared in report.comparisons if _has_no_data(compared)]
        blank += [(series.name, "not on the new side") for series in report.only_base]
        found += [Trip(gate="--require-data", series=name, reason=reason) for name, reason in blank]
    return found


def _has_no_data(comparison: Comparison) -> bool:
    return comparison.verdict is Verdict.INSUFFICIENT_DATA


def _undecided(report: Report, gate: Gate) -> Iterator[Trip]:
    """Yield the series of whose change the data say nothing, and that a gate on one compared nothing."""
    numbers = [compared for compared in report.comparisons if compared.base is not None and compared.new is not None]
    directed = [comparison for comparison in numbers if comparison.direction != "neutral"]
    for comparison in directed:
        if _has_no_data(comparison) and not comparison.source:
            reason = f"undecided: {_what_is_needed(comparison, report.alpha)}"
            yield Trip(gate=gate.text, series=comparison.name, reason=reason)
    if not directed:
        what = "the direction of no metric is known: --better" if numbers else "no series has a number on both sides"
        series = numbers[0].name if numbers else f"{report.base} → {report.new}"
        yield Trip(gate=gate.text, series=series, reason=f"undecided: nothing was compared, for {what}")


def _what_is_needed(comparison: Comparison, alpha: float) -> str:
    base, new = len(comparison.pair.base.values), len(comparison.pair.new.values)
    more = next((n for n in range(_MOST_MORE) if smallest_p(base + n, new + n) < alpha), 0)
    if not more:
        return comparison.reason
    return f"{more} more {'run of each is' if more == 1 else 'runs of each are'} needed; {comparison.reason}"


_MOST_MORE = 100


def runs_needed(base: int, alpha: float) -> int:
    """Return how many runs of a new side can decide against so many of a base: 0 where none can."""
    return next((n for n in range(1, _MOST_MORE) if smallest_p(base, n) < alpha), 0)


def _trips(report: Report, gate: Gate) -> Iterator[Trip]:
    if gate.what == "missing":
        for series in report.only_base:
            yield Trip(gate=gate.text, series=series.name, reason=f"{report.new} does not have it")
    for comparison in report.comparisons:
        if reason := _reason(comparison, gate, report.alpha):
            yield Trip(gate=gate.text, series=comparison.name, reason=reason)


def _reason(comparison: Comparison, gate: Gate, alpha: float) -> str:
    """Return why a gate trips for a series; "" where it does not."""
    if gate.what == "failure":
        return comparison.reason if comparison.pair.base.values and not comparison.pair.new.values else ""
    if gate.what == "suspicious":
        return comparison.reason or "suspicious" if comparison.verdict is Verdict.SUSPICIOUS else ""
    return _change_reason(comparison, gate, alpha) if gate.what in _CHANGES else ""


def _change_reason(comparison: Comparison, gate: Gate, alpha: float) -> str:
    """Return why a change trips a gate: it is significant, or against a published figure, and above limit and noise.

    That runs are suspect, or a side one sitting, makes a change no smaller: it trips with the doubt named.
    """
    change = (comparison.change or 0.0) * _CHANGES[gate.what]
    if comparison.direction == "neutral" or change <= gate.least or change <= comparison.floor:
        return ""
    if comparison.source:  # a published figure has no spread, and never will
        floor = f"above the noise floor of {comparison.floor:.1%}"
        noise = floor if comparison.noise is not None else "no noise floor is known"
        return f"{comparison.change:+.2%}; {comparison.reason}; {noise}"
    if comparison.p is None or comparison.p >= alpha:
        return ""
    doubt = f"; {comparison.reason}" if comparison.reason else ""
    return f"{comparison.change:+.2%}, {p_text(comparison.p)}{doubt}"
