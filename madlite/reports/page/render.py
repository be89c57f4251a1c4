"""The values of a page → one HTML file without a network: sections as Jinja macros, charts from data beside them.

Nothing of the data becomes markup or code: templates escape, data for scripts is JSON without `<`, and a
Content-Security-Policy lets only the scripts and style sheets run that are ours, by their hashes.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from base64 import b64encode
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import asdict

from madlite.reports.compare import Verdict, difference_text, interval_text
from madlite.reports.page.build import DRIFT, SCATTER, change_text
from madlite.reports.page.values import MARKS, STATUSES, Curve, CurvePanel, Item, Page, SeriesView, Trend, thinned
from madlite.secrets import Redactor
from madlite.text import change, counted, escape_formula, figure, percent, printable, shortened

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

HOME = Path(__file__).parent
STYLES = ("vendor/uPlot.min.css", "page.css")
SCRIPTS = ("vendor/uPlot.iife.min.js", "page.js")
_FIRST_SCRIPT = "theme.js"  # in the head, before anything is drawn
_REDACTOR = Redactor()
_BIDI = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
_SPARKS = 32  # points of the small curve in a table
_MARKUP = re.compile(r"[\\`*\[\]|<>~&$]|(?<![^\W_])_|_(?![^\W_])|^[-+=#]")
_LINK = re.compile(r"(?<=:)(?=//)|(?<=ww)(?=w)|(?<=[@#])(?=\w)", re.IGNORECASE)
"""Where a zero-width space keeps an address, a mention or the number of an issue from becoming a link."""
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def render_page(page: Page) -> str:
    """Return a page as one HTML file that needs no other."""
    return rendered("report.html.j2", page=page, data=payload(page))


def render_markdown(page: Page) -> str:
    """Return a page as Markdown: what needs a look, a comparison, a table of the series, failures by cause, notes."""
    return rendered("report.md.j2", page=page)


def rendered(template: str, **values: object) -> str:
    """Return what a template of the reports makes of values."""
    return environment().get_template(template).render(values)


@lru_cache(maxsize=1)
def environment() -> Environment:
    """Return the Jinja environment of all reports: `sections.html.j2` has a macro for each section, fed with a Page.

    Markdown is not escaped by itself: its templates pass texts of the data through `md`.
    `asset(name)` is a style sheet or script beside the templates as text, `policy(styles, scripts)` the value of a
    Content-Security-Policy that lets these run and nothing else.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

    made = Environment(
        loader=FileSystemLoader([HOME, HOME.parent, HOME.parent / "dashboard"]),
        autoescape=select_autoescape(("html.j2", "xml.j2"), default_for_string=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters |= {
        "visible": shown,
        "cell": lambda text: visible(escape_formula(text)),
        "md": escaped,
        "interval": interval_text,
        "difference": difference_text,
        "xml": lambda text: _NOT_XML.sub("\ufffd", text),
        "masked": masked,
        "figure": figure,
        "percent": percent,
        "change": change,
        "counted": counted,
        "place": place,
        "spark": spark,
        "change_text": change_text,
        "rows_of": lambda page: [(view, f"#s-{view.item}" if view.is_detailed else "", view.n) for view in page.series],
    }
    made.globals |= {
        "asset": asset,
        "policy": policy,
        "styles": STYLES,
        "scripts": SCRIPTS,
        "first_script": _FIRST_SCRIPT,
        "mark_words": MARKS,
        "statuses": STATUSES,
        "verdicts": Verdict,
        "is_drift": lambda part: part is not None and abs(part) >= DRIFT,
        "is_scatter": lambda part: part is not None and part >= SCATTER,
        "notice": lambda: (HOME / "vendor/NOTICE").read_text(encoding="utf-8"),
    }
    return made


@lru_cache(maxsize=8)
def asset(name: str) -> Markup:
    """Return a style sheet or script of ours as it stands, for an element of its own."""
    from markupsafe import Markup

    return Markup((HOME / name).read_text(encoding="utf-8"))  # noqa: S704 - our own file


def policy(sheets: Iterable[str], scripts: Iterable[str]) -> str:
    """Return a Content-Security-Policy by which these files' texts run, and nothing else."""
    return (
        f"default-src 'none'; script-src {_hashes(scripts)}; style-src {_hashes(sheets)}; img-src data:; "
        f"connect-src 'none'; base-uri 'none'; form-action 'none'"
    )


def _hashes(names: Iterable[str]) -> str:
    digests = (hashlib.sha256(asset(name).encode()).digest() for name in names)
    return " ".join(f"'sha256-{b64encode(digest).decode()}'" for digest in digests)


# Data for the scripts.


def payload(page: Page) -> Markup:
    """Return what the scripts of a page need as JSON that cannot end its element: filters, trends and step curves."""
    trends = {
        view.item: _trend(view, view.trend) for view in page.series if view.trend is not None and view.is_detailed
    }
    return as_json(
        {
            "filters": _filters(page.items),
            "trends": trends,
            "panels": [_panel(curve_panel) for curve_panel in page.panels],
        }
    )


def as_json(value: object) -> Markup:
    """Return a value as JSON for a script element: without `<`, `>`, `&` and line separators."""
    from markupsafe import Markup

    text = msgspec.json.encode(value).decode()
    for char in "<>&\u2028\u2029\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\x7f":
        if char in text:
            text = text.replace(char, f"\\u{ord(char):04x}")
    return Markup(text)  # noqa: S704 - no character of markup is left


def _filters(items: Iterable[Item]) -> dict[str, object]:
    names: dict[str, dict[str, int]] = {"model": {}, "device": {}, "precision": {}}
    rows = []
    for item in items:
        places = [known.setdefault(masked(getattr(item, name)), len(known)) for name, known in names.items()]
        rows.append([*places, sum(1 << STATUSES.index(word) for word in item.status), masked(item.text)])
    return {**{name: list(known) for name, known in names.items()}, "items": rows}


def _trend(series: SeriesView, trend: Trend) -> dict[str, object]:
    return {
        **asdict(trend),
        "metric": shown(series.metric),
        "at": () if len(trend.at) == trend.total else trend.at,
        "labels": list(map(shown, trend.labels)),
        "when": [shown(series.series.samples[place].when) for place in trend.at],
        "changes": [f"{change(each.change)} {shown(', '.join(each.names))}".strip() for each in series.changes],
        "references": [[match.reference.value, shown(match.label)] for match in series.references[:1]],
        "base": series.comparison.base if series.comparison is not None else None,
    }


def _panel(panel: CurvePanel) -> dict[str, object]:
    window = panel.runs[-1][0].record.window
    return {
        "runs": [shown(run.folder.name) for run, _ in panel.runs],
        "window": (window.first_step, window.last_step) if window is not None else None,
        "quantities": [
            {"name": shown(name), "curves": [[curve.run, curve.steps, curve.values] for curve in curves]}
            for name, curves in panel.quantities
        ],
    }


# Filters of the templates.


@lru_cache(maxsize=8192)
def shown(text: str) -> str:
    """Return a text of the data as a page has it: secrets masked by their shape, control characters escaped."""
    return visible(masked(text))


def visible(text: str) -> str:
    """Return the text with control characters, but for tabs and the ends of lines, and bidirectional ones escaped."""
    if text.isprintable():
        return text
    return "".join(char.encode("unicode_escape").decode() if _is_control(char) else char for char in text)


def _is_control(char: str) -> bool:
    return char in _BIDI or (unicodedata.category(char) == "Cc" and char not in "\t\n\r")


def masked(text: str) -> str:
    """Return a text without what is a secret by its shape: a results file may come from anywhere."""
    return _REDACTOR.text(text)


def escaped(text: str, most: int = 120) -> str:
    """Return a text as Markdown in which nothing is markup, a link, a mention or a secret, on one line."""
    plain = _LINK.sub("\u200b", shortened(printable(masked(text)), most))
    return _MARKUP.sub(lambda found: f"\\{found[0]}", plain)


def place(value: float, whole: float = 1.0) -> str:
    """Return a part of a whole as a place in an SVG: `43.20%`."""
    return f"{min(100.0, max(0.0, 100 * value / whole)) if whole > 0 else 0:.2f}%"


def spark(line: Trend | Curve, most: int = _SPARKS) -> str:
    """Return the points of a small curve, 100 wide and 20 high; those of a run's steps by their numbers."""
    at = thinned(line.values, most)
    places = line.steps if isinstance(line, Curve) else range(len(line.values))
    low, high = min(line.values), max(line.values)
    wide, tall = max(1, places[-1] - places[0]), high - low
    heights = (18 - 16 * (line.values[each] - low) / tall if tall else 10.0 for each in at)
    across = (100 * (places[each] - places[0]) / wide for each in at)
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(across, heights, strict=True))
