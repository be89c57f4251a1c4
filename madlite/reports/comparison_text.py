"""A comparison as JSON, Markdown for a pull request, and JUnit's XML; the table of the terminal is cli/compare.py."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from xml.sax.saxutils import escape, quoteattr

from madlite.model import Value, to_json
from madlite.reports.compare import Comparison, Difference, Report, Verdict
from madlite.reports.gates import Trip
from madlite.reports.series import Series
from madlite.reports.series_key import as_dimensions, unlike
from madlite.text import printable, shortened_middle

MOST_DIFFERENCES = 8  # of one series in a text for people
_LONGEST = 60  # characters of a value in such a text
_MARKUP = re.compile(r"([\\`*_\[\]<>|#~])")
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def number_text(value: float | None) -> str:
    """Return a number with as many digits as a comparison needs; `-` for none."""
    if value is None:
        return "-"
    return f"{value:,.1f}" if abs(value) >= 1000 else f"{value:.4g}"


def change_text(one: Comparison) -> str:
    """Return by how much the new side is better or worse: `-2.9 %`."""
    return "-" if one.change is None else f"{one.change:+.2%}"


def interval_text(one: Comparison) -> str:
    """Return the interval of the change, from its worse end to its better one; "" without one."""
    if one.interval is None:
        return ""
    ends = (one.interval.low, one.interval.high)
    low, high = (1 - ends[1], 1 - ends[0]) if one.direction == "lower" else (ends[0] - 1, ends[1] - 1)
    return f"[{low:+.2%}, {high:+.2%}]"


def difference_text(one: Difference) -> str:
    """Return what differs: `image digest: sha256:1 → sha256:2`."""
    sides = (", ".join(_short(text) for text in side) or "(not there)" for side in (one.base, one.new))
    return f"{one.name}: {' → '.join(sides)}"


def _short(text: str) -> str:
    return shortened_middle(printable(text), _LONGEST)


def summary(report: Report) -> str:
    """Return how many series have which verdict, in a sentence."""
    counts = (f"{n} {verdict.value}" for verdict in Verdict if (n := report.count(verdict)))
    total = len(report.comparisons)
    return f"{total} series compared: {', '.join(counts)}" if total else "no series is on both sides"


def closing_notes(report: Report) -> Iterator[str]:
    """Yield what a reader has to know to judge the table."""
    tested = sum(one.is_tested for one in report.comparisons)
    if tested > 1:
        n = report.expected_false_alarms
        yield f"by chance alone up to {n:.1f} of {tested} tested series differ at p < {report.alpha:g}"
    if unknown := dict.fromkeys(name for one in report.comparisons for name in one.pair.unknown):
        yield f"not recorded on both sides, so that a difference cannot be seen: {', '.join(unknown)}"
    for side, left in ((report.base, report.only_base), (report.new, report.only_new)):
        if left:
            yield f"only in {side}: {_names(left)}"
    if others := _unlike(report):
        yield f"not compared, for series of other work are not: {others}"
    yield from report.notes


def _unlike(report: Report) -> str:
    """Return in what series that only the new side has differ from those of the base; "" where nothing is like them."""
    found = (unlike(one.key, [base.key for base in report.only_base]) for one in report.only_new)
    different = dict.fromkeys(name for names in found for name in names)
    return f"they differ in {', '.join(different)}; --across {','.join(different)} compares them" if different else ""


def _names(series: Sequence[Series]) -> str:
    more = f", and {len(series) - 3} more" if len(series) > 3 else ""
    return "; ".join(one.name for one in series[:3]) + more


class _Line(Value, frozen=True):
    """One series for programs; change, interval, noise and floor are parts of the base; a change above 0 is better."""

    series: dict[str, str]
    verdict: str
    reason: str
    base: float | None
    new: float | None
    base_runs: int
    new_runs: int
    base_failed: int
    new_failed: int
    ratio: float | None
    ratio_low: float | None
    ratio_high: float | None
    change: float | None
    p: float | None
    noise: float | None
    noise_from: str
    floor: float
    direction: str
    unknown: tuple[str, ...]
    differences: tuple[Difference, ...]
    source: str


class _Document(Value, frozen=True):
    base: str
    new: str
    series: tuple[_Line, ...]
    only_base: tuple[dict[str, str], ...]
    only_new: tuple[dict[str, str], ...]
    expected_false_alarms: float
    alpha: float
    notes: tuple[str, ...]
    failed_gates: tuple[Trip, ...]


def as_json(report: Report, trips: Sequence[Trip]) -> str:
    """Return a comparison for programs: docs/compare.md has its fields."""
    return to_json(
        _Document(
            base=report.base,
            new=report.new,
            series=tuple(map(_line, report.comparisons)),
            only_base=tuple(map(_dimensions, report.only_base)),
            only_new=tuple(map(_dimensions, report.only_new)),
            expected_false_alarms=report.expected_false_alarms,
            alpha=report.alpha,
            notes=report.notes,
            failed_gates=tuple(trips),
        )
    )


def _dimensions(series: Series) -> dict[str, str]:
    return as_dimensions(series.key)


def _line(one: Comparison) -> _Line:
    base, new = one.pair.base, one.pair.new
    return _Line(
        series=_dimensions(new),
        verdict=one.verdict.value,
        base_runs=len(base.values),
        new_runs=len(new.values),
        base_failed=base.failed,
        new_failed=new.failed,
        ratio_low=one.interval.low if one.interval else None,
        ratio_high=one.interval.high if one.interval else None,
        unknown=one.pair.unknown,
        **{name: getattr(one, name) for name in _SAME},
    )


_SAME = (
    "reason",
    "base",
    "new",
    "ratio",
    "change",
    "p",
    "noise",
    "noise_from",
    "floor",
    "direction",
    "differences",
    "source",
)

_SIGNS = {
    Verdict.REGRESSION: "🔴",
    Verdict.IMPROVEMENT: "🟢",
    Verdict.NO_CHANGE: "⚪",
    Verdict.SUSPICIOUS: "🟡",
    Verdict.INSUFFICIENT_DATA: "❔",
}


def as_markdown(report: Report, trips: Sequence[Trip], most: int) -> str:
    """Return a comparison as a comment of a pull request."""
    lines = [f"### {_plain(report.base)} → {_plain(report.new)}", "", f"{summary(report)}.", ""]
    shown = report.comparisons[:most] if most else report.comparisons
    if shown:
        lines += ["| series | base | new | change | 95 % interval | runs | verdict |", "|---|--:|--:|--:|---|---|---|"]
        lines += [_markdown_row(one) for one in shown]
    if len(shown) < len(report.comparisons):
        lines.append(f"\n… and {len(report.comparisons) - len(shown)} series more.")
    if changed := [one for one in shown if one.differences]:
        lines += ["", "<details><summary>What differs</summary>", ""]
        lines += [line for one in changed for line in _markdown_differences(one)]
        lines += ["", "</details>"]
    lines += ["", *(f"* {_plain(note)}" for note in closing_notes(report))]
    lines += [f"* **{_plain(trip.gate)}**: {_plain(trip.series)}: {_plain(trip.reason)}" for trip in trips]
    return "\n".join(lines).rstrip() + "\n"


def _markdown_row(one: Comparison) -> str:
    base, new = one.pair.base, one.pair.new
    cells = (
        _plain(one.name),
        number_text(one.base),
        number_text(one.new),
        change_text(one),
        interval_text(one),
        f"{len(base.values)} / {len(new.values)}",
        f"{_SIGNS[one.verdict]} {one.verdict.value}",
    )
    return f"| {' | '.join(cells)} |"


def _markdown_differences(one: Comparison) -> Iterator[str]:
    yield f"* {_plain(one.name)}"
    for difference in one.differences[:MOST_DIFFERENCES]:
        yield f"  * {_plain(difference_text(difference))}"
    if len(one.differences) > MOST_DIFFERENCES:
        yield f"  * and {len(one.differences) - MOST_DIFFERENCES} more"


def _plain(text: str) -> str:
    """Return text in which nothing is markup, and nobody is mentioned, on one line."""
    return _MARKUP.sub(r"\\\1", printable(text).replace("\n", " ")).replace("@", "@\u200b")


def as_junit(report: Report, trips: Sequence[Trip]) -> str:
    """Return a comparison as JUnit's XML: a test per series, failed by a gate, skipped without enough runs."""
    failed: dict[str, list[Trip]] = {}
    for trip in trips:
        failed.setdefault(trip.series, []).append(trip)
    cases = [_case(one.name, failed.pop(one.name, []), one) for one in report.comparisons]
    cases += [_case(name, found, None) for name, found in failed.items()]
    failures = sum("<failure" in case for case in cases)
    skipped = sum("<skipped" in case for case in cases)
    name = _xml_value(f"{report.base} → {report.new}")
    head = f'<testsuite name={name} tests="{len(cases)}" failures="{failures}" errors="0" skipped="{skipped}">'
    return "\n".join(
        ('<?xml version="1.0" encoding="UTF-8"?>', "<testsuites>", head, *cases, "</testsuite>", "</testsuites>", "")
    )


def _case(name: str, found: Sequence[Trip], one: Comparison | None) -> str:
    inner = "".join(f"<failure message={_xml_value(f'{trip.gate}: {trip.reason}')}/>" for trip in found)
    if not inner and one is not None and one.verdict is Verdict.INSUFFICIENT_DATA:
        inner = f"<skipped message={_xml_value(one.reason)}/>"
    if one is not None:
        lines = (f"{one.verdict.value} {change_text(one)} {interval_text(one)}", *map(difference_text, one.differences))
        inner += f"<system-out>{escape(_xml_text(chr(10).join(lines)))}</system-out>"
    return f'<testcase classname="madlite.compare" name={_xml_value(name)}>{inner}</testcase>'


def _xml_text(text: str) -> str:
    return _NOT_XML.sub("\ufffd", text)


def _xml_value(text: str) -> str:
    return quoteattr(_xml_text(text))
