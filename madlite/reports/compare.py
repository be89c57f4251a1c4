"""Two sides of results → for each series a ratio, how sure it is, and one of five verdicts; gates on them; texts.

The verdicts, and which change is one: docs/compare.md.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from itertools import count, pairwise
from statistics import median

from msgspec.structs import replace

from madlite.errors import UsageProblem, did_you_mean, one_hint
from madlite.measure.statistics import Interval, coefficient_of_variation, mann_whitney, ratio_interval, smallest_p
from madlite.model import Value, to_json
from madlite.reports.series import Direction, Pair, Series, pair
from madlite.reports.series_key import Input, as_dimensions, compare_inputs, series_name, series_names, unlike
from madlite.text import change, printable, shortened_middle

FEWEST_HISTORY = 4  # samples from which a noise is estimated
_FLOOR = 2.0  # standard errors that a change has to be above


class Verdict(str, Enum):
    """What a comparison of one series comes to."""

    REGRESSION = "regression"
    IMPROVEMENT = "improvement"
    NO_CHANGE = "no change"
    SUSPICIOUS = "suspicious"
    INSUFFICIENT_DATA = "insufficient data"


class Settings(Value, frozen=True):
    """How sure and how large a change has to be.

    `effect` is the least change that matters, as a part of the base; `noise` how much runs that differ in nothing vary:
    standard deviation ÷ mean, None where each series' own history decides.  `better` overrides metrics' directions.
    """

    alpha: float = 0.05
    effect: float = 0.01
    noise: float | None = None
    better: dict[str, Direction] = {}


DEFAULTS = Settings()


class Comparison(Value, frozen=True):
    """One series on two sides.

    `ratio` is median(new) ÷ median(base), None where one is not above 0; `change` is by how much of the base the new
    side is better: below 0 it is worse.  `p` is that of the Mann-Whitney test.  `noise` is the variation between runs
    that is assumed, `noise_from` where it comes from, and `floor` the change that it explains by itself.  `source` is
    the document of a base that is a published figure.
    """

    pair: Pair
    verdict: Verdict
    reason: str = ""
    base: float | None = None
    new: float | None = None
    ratio: float | None = None
    interval: Interval | None = None
    p: float | None = None
    noise: float | None = None
    noise_from: str = ""
    floor: float = 0.0
    direction: Direction = "neutral"
    differences: tuple[Input, ...] = ()  # of the two sides
    source: str = ""
    label: str = ""  # its name in a report that has others which are called like it

    @property
    def name(self) -> str:
        """The series in one line, with what it is compared to where that has a name of its own."""
        name = self.label or series_name(self.pair.known)
        return f"{name} to {self.source}" if self.source else name

    @property
    def change(self) -> float | None:
        """How much better the new side is, as a part of the base; of a metric without direction how much more."""
        if not self.base or self.new is None:
            return None
        more = (self.new - self.base) / abs(self.base)
        return -more if self.direction == "lower" else more

    @property
    def is_tested(self) -> bool:
        """Whether both sides have enough samples for the test to find anything."""
        return self.p is not None


class Report(Value, frozen=True):
    """All series of two sides: the worst change first, then what only one side has."""

    base: str
    new: str
    comparisons: tuple[Comparison, ...]
    only_base: tuple[Series, ...] = ()
    only_new: tuple[Series, ...] = ()
    notes: tuple[str, ...] = ()
    alpha: float = 0.05

    @property
    def expected_false_alarms(self) -> float:
        """How many of the tested series would look changed by chance if none had, at most."""
        return self.alpha * sum(comparison.is_tested for comparison in self.comparisons)

    def count(self, verdict: Verdict) -> int:
        """Return how many series have a verdict."""
        return sum(comparison.verdict is verdict for comparison in self.comparisons)


History = Callable[[Series], Sequence[float]]
"""Numbers of a series in the order of time, from other runs than those compared; none where there are none."""


def compare(
    base: Sequence[Series],
    new: Sequence[Series],
    *,
    labels: tuple[str, str] = ("base", "new"),
    settings: Settings = DEFAULTS,
    history: History = lambda series: (),
    across: Iterable[str] = (),
    notes: Iterable[str] = (),
) -> Report:
    """Return the comparison of two sides; series that differ in the dimensions `across` alone are compared, too."""
    pairs, only_base, only_new = pair(base, new, across=tuple(across))
    found = [compare_pair(pair, settings, history) for pair in pairs]
    return report_of(found, labels, only_base, only_new, notes, settings)


def report_of(
    found: Iterable[Comparison],
    labels: tuple[str, str],
    only_base: Sequence[Series],
    only_new: Sequence[Series],
    notes: Iterable[str],
    settings: Settings,
) -> Report:
    """Return comparisons as a report, the worst change first."""
    ordered = sorted(
        found, key=lambda comparison: (comparison.change is None, -(comparison.change or 0.0)), reverse=True
    )
    names = series_names([comparison.pair.known for comparison in ordered])
    return Report(
        base=labels[0],
        new=labels[1],
        comparisons=tuple(replace(comparison, label=name) for comparison, name in zip(ordered, names, strict=True)),
        only_base=tuple(only_base),
        only_new=tuple(only_new),
        notes=tuple(notes),
        alpha=settings.alpha,
    )


def compare_pair(found: Pair, settings: Settings, history: History, untested: str = "") -> Comparison:
    """Return the comparison of one series; with `untested`, the reason, the ratio alone, which decides nothing."""
    base, new = found.base.values, found.new.values
    direction = settings.better.get(found.new["metric"], found.new.direction)
    blank = Comparison(
        pair=found,
        verdict=Verdict.INSUFFICIENT_DATA,
        direction=direction,
        differences=_differences(found.base, found.new),
        base=median(base) if base else None,
        new=median(new) if new else None,
    )
    if blank.base is None or blank.new is None:
        return replace(blank, reason=_no_number(found))
    if not blank.base:
        return replace(blank, reason="the median of the base is 0")
    ratio = blank.new / blank.base if min(blank.base, blank.new) > 0 else None
    measured = _with_noise(replace(blank, ratio=ratio), settings, history)
    if untested:
        return replace(measured, reason=untested)
    return _judged(replace(measured, interval=ratio_interval(base, new)), settings)


def _differences(*sides: Series) -> tuple[Input, ...]:
    found = compare_inputs([side.key for side in sides], [side.facts for side in sides])
    return tuple(input_ for input_ in found if input_.differs)


def _no_number(found: Pair) -> str:
    sides = [(name, series) for name, series in (("base", found.base), ("new", found.new)) if not series.values]
    return "; ".join(f"no number in {name}: {_outcomes(series)}" for name, series in sides)


def _outcomes(series: Series) -> str:
    counts = ((len(series.values), "of 0"), (series.failed, "failed"), (series.skipped, "skipped"))
    return ", ".join(f"{count} {word}" for count, word in counts if count) or "no run"


def _with_noise(comparison: Comparison, settings: Settings, history: History) -> Comparison:
    """Return a comparison with the noise between runs: the one given, else of its history, else of its own samples."""
    base, new = comparison.pair.base.values, comparison.pair.new.values
    noise, source = settings.noise, "--noise"
    if noise is None and len(earlier := history(comparison.pair.new)) >= FEWEST_HISTORY:
        noise, source = noise_of(earlier), f"{len(earlier)} earlier runs"
    if noise is None and (own := _pooled(base, new)) is not None:
        noise, source = own, "these runs"
    if noise is None:
        return comparison
    # a median varies about 1.25 times as much as a mean, and no more than its one value
    counts = [len(base), len(new)]
    if settings.noise is not None and not _shares_level(
        comparison.pair
    ):  # what the user states is how much sittings vary
        counts = [
            max(1, len(side.sittings)) for side in (comparison.pair.base, comparison.pair.new)
        ]  # unknown ones may be one
    spread = sum((1.57 if count > 2 else 1.0) / count for count in counts)
    return replace(comparison, noise=noise, noise_from=source, floor=_FLOOR * noise * math.sqrt(spread))


def p_text(p: float) -> str:
    """Return a p-value as people write it."""
    return f"p {p:.2g}" if p >= 1e-4 else "p < 0.0001"


def noise_of(values: Sequence[float]) -> float | None:
    """Return how much a series varies from run to run, as a part of its median, whatever steps its level made.

    The median distance of neighbours, which of normal values is 0.954 standard deviations.
    """
    if len(values) < FEWEST_HISTORY:
        return None
    apart = median(abs(after - before) for before, after in pairwise(values))
    return apart / 0.954 / abs(middle) if (middle := median(values)) else None


def _pooled(base: Sequence[float], new: Sequence[float]) -> float | None:
    """Return the variation within both sides, each with the weight of its degrees of freedom."""
    parts = [(len(values) - 1, coefficient_of_variation(values)) for values in (base, new)]
    known = [(weight, cv) for weight, cv in parts if cv is not None]
    return math.sqrt(sum(w * cv * cv for w, cv in known) / sum(w for w, _ in known)) if known else None


def _judged(comparison: Comparison, settings: Settings) -> Comparison:
    """Return a comparison with its verdict: whether the change is surer than chance, and large enough to matter."""
    base, new = comparison.pair.base, comparison.pair.new
    if (least := smallest_p(len(base.values), len(new.values))) >= settings.alpha:
        n = f"{len(base.values)} against {len(new.values)} {'run' if len(new.values) == 1 else 'runs'}"
        enough = next(number for number in count(2) if smallest_p(number, number) < settings.alpha)
        reason = f"{n} cannot be significant: p is {least:.2g} at best; --repeat {enough} on each side can"
        return replace(comparison, reason=reason)
    p = mann_whitney(base.values, new.values)
    tested = replace(comparison, p=p)
    change = comparison.change or 0.0
    matters = abs(change) >= settings.effect
    if suspects := base.suspects + new.suspects:
        total = len(base.values) + len(new.values)
        return replace(tested, verdict=Verdict.SUSPICIOUS, reason=f"{suspects} of {total} runs are suspect")
    if not matters:
        return replace(tested, verdict=Verdict.NO_CHANGE)
    if p >= settings.alpha:
        large = abs(change) > max(comparison.floor, settings.effect)
        return replace(tested, verdict=Verdict.SUSPICIOUS if large else Verdict.NO_CHANGE, reason="not significant")
    if settings.noise is not None and abs(change) <= comparison.floor:
        return replace(
            tested, verdict=Verdict.NO_CHANGE, reason=f"within the stated noise: below {comparison.floor:.1%}"
        )
    if comparison.direction == "neutral":
        reason = f"whether more {new['metric']} is better is unknown: --better '{new['metric']}=higher'"
        return replace(tested, verdict=Verdict.SUSPICIOUS, reason=reason)
    verdict = Verdict.IMPROVEMENT if change > 0 else Verdict.REGRESSION
    return replace(tested, verdict=verdict, reason="" if settings.noise is not None else _one_sitting(comparison.pair))


def _shares_level(found: Pair) -> bool:
    """Return whether the sides are known to share their sittings' levels, as runs in turns do."""
    base, new = found.base.sittings, found.new.sittings
    return bool(base) and base == new and _in_turns(found)


def _in_turns(found: Pair) -> bool:
    """Return whether the runs change sides as often as the smaller side has runs; those of a study do."""
    sides = [(sample, at) for at, side in enumerate((found.base, found.new)) for sample in side.samples]
    if all(sample.study for sample, _ in sides):
        return True
    order = [at for _, at in sorted(sides, key=lambda side: side[0].when)]
    turns = sum(before != after for before, after in pairwise(order))
    return turns >= min(len(found.base.samples), len(found.new.samples))


def _one_sitting(found: Pair) -> str:
    """Return that a side is one sitting, whose level all of its runs share; "" where that is not so."""
    both = (("base", found.base.sittings), ("new", found.new.sittings))
    sides = [name for name, sittings in both if len(sittings) == 1]
    if not sides or not all(sittings for _, sittings in both) or _shares_level(found):
        return ""
    which = "each side is" if len(sides) == 2 else f"{sides[0]} is"
    return (
        f"{which} one sitting (a study or a day) and shares its level: --repeat in turns or on several days, or --noise"
    )


# Gates: which outcomes of a comparison make the command fail.
#
# A gate is a verdict, for those of a change with the least change that counts: `regression>3%`, `improvement>5%`,
# `suspicious`, `missing` (a series of the base that the new side does not have), `failure` (one without any number).

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


# As text.

_LONGEST = 60  # characters of a value in such a text


def interval_text(comparison: Comparison) -> str:
    """Return the interval of the change, from its worse end to its better one; "" without one."""
    if comparison.interval is None:
        return ""
    ends = (comparison.interval.low, comparison.interval.high)
    low, high = (1 - ends[1], 1 - ends[0]) if comparison.direction == "lower" else (ends[0] - 1, ends[1] - 1)
    return f"[{change(low)}, {change(high)}]"


def difference_text(difference: Input) -> str:
    """Return what differs: `image digest: sha256:1 → sha256:2`."""
    sides = ([shortened_middle(printable(text), _LONGEST) for text in side] for side in difference.values)
    return f"{difference.name}: {' → '.join(', '.join(side) or '(not there)' for side in sides)}"


# A report in words, as JSON, Markdown for a pull request, and JUnit's XML; its table: cli/compare.py.

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
        if failed := [series for series in left if not series.values]:
            yield f"no number in {side}, whose runs failed or were skipped: {_names(failed)}"
        if measured := [series for series in left if series.values]:
            yield f"only in {side}: {_names(measured)}"
    if others := _unlike(report):
        yield f"not compared, for series of other work are not: {others}"
    yield from report.notes


def _unlike(report: Report) -> str:
    """Return in what series that only the new side has differ from those of the base; "" where nothing is like them."""
    base = [series.key for series in report.only_base if series.values]
    found = (unlike(series.key, base) for series in report.only_new if series.values)
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


_AS_THEY_ARE = (
    *("verdict", "reason", "base", "new", "ratio", "change", "p", "noise", "noise_from", "floor", "direction"),
    "source",
)


def _line(comparison: Comparison) -> dict[str, object]:
    """Return one series for programs: change, interval, noise and floor are parts of the base; above 0 is better."""
    base, new = comparison.pair.base, comparison.pair.new
    return {
        "series": as_dimensions(new.key),
        **{name: getattr(comparison, name) for name in _AS_THEY_ARE},
        "base_runs": len(base.values),
        "new_runs": len(new.values),
        "base_failed": base.failed,
        "new_failed": new.failed,
        "ratio_low": comparison.interval.low if comparison.interval else None,
        "ratio_high": comparison.interval.high if comparison.interval else None,
        "unknown": comparison.pair.unknown,
        "differences": [
            {"name": each.name, "base": each.values[0], "new": each.values[1]} for each in comparison.differences
        ],
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
