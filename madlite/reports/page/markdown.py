"""The values of a page → Markdown for mails, wikis and comments: tables, and no markup of the data."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from madlite.reports.page.render import masked
from madlite.reports.page.values import MARKS, Page, SeriesView
from madlite.text import change, counted, figure, percent, printable, shortened

_MARKUP = re.compile(r"[\\`*\[\]|<>~&$]|(?<![^\W_])_|_(?![^\W_])|^[-+=#]")
_LINK = re.compile(r"(?<=:)(?=//)|(?<=ww)(?=w)|(?<=[@#])(?=\w)", re.IGNORECASE)
"""Where a zero-width space keeps an address, a mention or the number of an issue from becoming a link."""
_MOST_ROWS = 500
_LONGEST = 120


def render_markdown(page: Page) -> str:
    """Return a page as Markdown: what needs a look, a table of the series, a comparison, failures by cause, notes."""
    parts = [
        f"# {escaped(page.title)}",
        _summary(page),
        _attention(page),
        _comparison(page),
        _results(page),
        _failures(page),
        _notes(page),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def escaped(text: str, most: int = _LONGEST) -> str:
    """Return a text in which nothing is markup, a link, a mention or a secret, on one line."""
    plain = _LINK.sub("\u200b", shortened(printable(masked(text)), most))
    return _MARKUP.sub(lambda found: f"\\{found[0]}", plain)


def _table(head: Sequence[str], numbers: int, rows: Iterable[Sequence[str]]) -> str:
    """Return a table; cells are Markdown, the columns behind the first but for the last `numbers` right-aligned."""
    rule = [":--", *("--:" for _ in range(numbers)), *(":--" for _ in range(len(head) - numbers - 1))]
    lines = [head, rule, *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _summary(page: Page) -> str:
    totals = page.totals
    parts = [
        f"{counted(totals.results, 'result')} in {counted(totals.series, 'series', 'series')}",
        counted(totals.failed, "failure"),
        f"{totals.suspects:,} suspect",
        *([f"{totals.skipped:,} skipped"] if totals.skipped else []),
        *(f"{count:,} {state.lower()}" for state, count in totals.states),
    ]
    sources = f"{escaped(', '.join(page.sources), 400)}; " if page.sources else ""
    return f"{', '.join(parts)}. ({sources}{page.made[:16].replace('T', ' ')} UTC)"


def _attention(page: Page) -> str:
    lines = [f"- **{MARKS[one.kind]}** {escaped(one.name, 200)}: {escaped(one.text, 300)}" for one in page.attention]
    if page.attention_left_out:
        lines.append(f"- … and {page.attention_left_out:,} more")
    return "\n".join(["## What needs a look", "", *lines]) if lines else ""


def _comparison(page: Page) -> str:
    report = page.comparison
    if report is None:
        return ""
    rows = [
        (
            escaped(row.name, 200),
            figure(row.comparison.base),
            figure(row.comparison.new),
            change(row.comparison.change),
            f"{row.comparison.p:.2g}" if row.comparison.p is not None else "–",
            f"{row.comparison.verdict.value}{f': {escaped(row.comparison.reason)}' if row.comparison.reason else ''}",
        )
        for row in page.compared[:_MOST_ROWS]
    ]
    text = f"## Comparison\n\nBase: {escaped(report.base, 300)}, new: {escaped(report.new, 300)}."
    only = [
        f"{counted(len(one), 'series', 'series')} of the {side} side only"
        for side, one in (("base", report.only_base), ("new", report.only_new))
        if one
    ]
    table = (
        _table(("series", "base", "new", "change", "p", "verdict"), 4, rows) if rows else "No series is on both sides."
    )
    return "\n\n".join([text, table, *([f"{'; '.join(only)}."] if only else [])])


def _results(page: Page) -> str:
    rows = [_row(one) for one in page.series[:_MOST_ROWS]]
    left = page.series_left_out + len(page.series) - len(rows)
    table = _table(("series", "n", "median", "CV", "best", "last", "published", "notes"), 6, rows)
    return f"## Results\n\n{table}" + (f"\n\n… and {counted(left, 'series', 'series')} more." if left else "")


def _row(one: SeriesView) -> tuple[str, ...]:
    return (
        escaped(one.name, 200),
        f"{one.n:,}",
        figure(one.median),
        percent(one.cv),
        figure(one.best),
        figure(one.last),
        percent(one.of_reference) if one.references else "–",
        "; ".join(_notes_of(one)) or "–",
    )


def _notes_of(one: SeriesView) -> Iterator[str]:
    if one.comparison is not None:
        yield one.comparison.verdict.value
    if one.suspects:
        yield f"{one.suspects:,} suspect"
    if one.changes:
        yield f"level {change(one.changes[-1].change)} from result {one.changes[-1].at + 1:,} on"
    if one.failed:
        yield f"{one.failed:,} failed"
    if one.skipped:
        yield f"{one.skipped:,} skipped"


def _failures(page: Page) -> str:
    rows = [
        (
            escaped(group.cause or "no cause recorded"),
            f"{group.count:,}",
            escaped(", ".join(dict.fromkeys(one.failure.model for one in group.failures)), 300),
        )
        for group in page.causes
    ]
    return f"## Failures by cause\n\n{_table(('cause', 'failures', 'models'), 1, rows)}" if rows else ""


def _notes(page: Page) -> str:
    lines = [f"- {escaped(note, 400)}" for note in page.notes[:50]]
    return "\n".join(["## Notes", "", *lines]) if lines else ""
