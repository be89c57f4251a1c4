"""A comparison in words, as JSON, Markdown for a pull request, and JUnit's XML; its table: cli/compare.py."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from madlite.model import to_json
from madlite.reports.compare import Comparison, Report, Trip, Verdict, difference_text, interval_text
from madlite.reports.series import Series
from madlite.reports.series_key import as_dimensions, unlike
from madlite.text import change

MOST_DIFFERENCES = 8  # of one series in a text for people


def summary(report: Report) -> str:
    """Return how many series have which verdict, in a sentence."""
    counts = (f"{n} {verdict.value}" for verdict in Verdict if (n := report.count(verdict)))
    total = len(report.comparisons)
    return f"{total} series compared: {', '.join(counts)}" if total else "no series is on both sides"


def closing_notes(report: Report) -> Iterator[str]:
    """Yield what a reader has to know to judge the table."""
    tested = sum(comparison.is_tested for comparison in report.comparisons)
    if tested > 1:
        n = report.expected_false_alarms
        yield f"by chance alone up to {n:.1f} of {tested} tested series differ at p < {report.alpha:g}"
    if unknown := dict.fromkeys(name for comparison in report.comparisons for name in comparison.pair.unknown):
        yield f"not recorded on both sides, so that a difference cannot be seen: {', '.join(unknown)}"
    for side, left in ((report.base, report.only_base), (report.new, report.only_new)):
        if left:
            yield f"only in {side}: {_names(left)}"
    if others := _unlike(report):
        yield f"not compared, for series of other work are not: {others}"
    yield from report.notes


def _unlike(report: Report) -> str:
    """Return in what series that only the new side has differ from those of the base; "" where nothing is like them."""
    found = (unlike(series.key, [base.key for base in report.only_base]) for series in report.only_new)
    different = dict.fromkeys(name for names in found for name in names)
    return f"they differ in {', '.join(different)}; --across {','.join(different)} compares them" if different else ""


def _names(series: Sequence[Series]) -> str:
    more = f", and {len(series) - 3} more" if len(series) > 3 else ""
    return "; ".join(each.name for each in series[:3]) + more


def as_json(report: Report, trips: Sequence[Trip]) -> str:
    """Return a comparison for programs: docs/compare.md has its fields."""
    return to_json(
        {
            "base": report.base,
            "new": report.new,
            "series": [_line(comparison) for comparison in report.comparisons],
            "only_base": [as_dimensions(series.key) for series in report.only_base],
            "only_new": [as_dimensions(series.key) for series in report.only_new],
            "expected_false_alarms": report.expected_false_alarms,
            "alpha": report.alpha,
            "notes": report.notes,
            "failed_gates": trips,
        }
    )


def _line(comparison: Comparison) -> dict[str, object]:
    """Return one series for programs: change, interval, noise and floor are parts of the base; above 0 is better."""
    base, new = comparison.pair.base, comparison.pair.new
    return {
        "series": as_dimensions(new.key),
        "verdict": comparison.verdict,
        "reason": comparison.reason,
        "base": comparison.base,
        "new": comparison.new,
        "base_runs": len(base.values),
        "new_runs": len(new.values),
        "base_failed": base.failed,
        "new_failed": new.failed,
        "ratio": comparison.ratio,
        "ratio_low": comparison.interval.low if comparison.interval else None,
        "ratio_high": comparison.interval.high if comparison.interval else None,
        "change": comparison.change,
        "p": comparison.p,
        "noise": comparison.noise,
        "noise_from": comparison.noise_from,
        "floor": comparison.floor,
        "direction": comparison.direction,
        "unknown": comparison.pair.unknown,
        "differences": [
            {"name": each.name, "base": each.values[0], "new": each.values[1]} for each in comparison.differences
        ],
        "source": comparison.source,
    }


def as_markdown(report: Report, trips: Sequence[Trip], most: int) -> str:
    """Return a comparison as a comment of a pull request."""
    from madlite.reports.page.render import rendered

    shown = report.comparisons[:most] if most else report.comparisons
    return rendered(
        "comparison.md.j2",
        report=report,
        shown=shown,
        trips=trips,
        summary=summary(report),
        notes=list(closing_notes(report)),
        most=MOST_DIFFERENCES,
    )


def as_junit(report: Report, trips: Sequence[Trip]) -> str:
    """Return a comparison as JUnit's XML: a test per series, failed by a gate, skipped without enough runs."""
    from madlite.reports.page.render import rendered

    failed: dict[str, list[Trip]] = {}
    for trip in trips:
        failed.setdefault(trip.series, []).append(trip)
    cases = [_case(comparison, failed.pop(comparison.name, [])) for comparison in report.comparisons]
    cases += [{"name": name, "trips": found, "skipped": "", "lines": ()} for name, found in failed.items()]
    return rendered("junit.xml.j2", report=report, cases=cases)


def _case(comparison: Comparison, trips: Sequence[Trip]) -> dict[str, object]:
    is_skipped = comparison.verdict is Verdict.INSUFFICIENT_DATA and not trips
    outcome = f"{comparison.verdict.value} {change(comparison.change)} {interval_text(comparison)}"
    lines = (outcome, *map(difference_text, comparison.differences))
    return {"name": comparison.name, "trips": trips, "skipped": comparison.reason if is_skipped else "", "lines": lines}
