"""`--sweep KEY=A,B`: the runs of a command once for each combination of values, each an ordinary run with its row.

The runs of one point, card, variant and image are a series; `varied` of their study has the point's values.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import TypeVar

from msgspec.structs import replace

from madlite.errors import MadliteError, UsageProblem
from madlite.measure.statistics import ratio_of_means
from madlite.model import Study
from madlite.plan.fields import canonical_key
from madlite.plan.plan_file import plan_digest
from madlite.run.screen import PlannedRun
from madlite.secrets import masked_value
from madlite.study.summary import MetricSummary, SeriesSummary, StudySummary
from madlite.text import align

V = TypeVar("V", bound=Hashable)
KIND = "sweep"
MOST_POINTS = 1000  # more are a slip
_HOW = "--sweep micro_batch=1,2,4"
_REPEAT = "--repeat N runs each point N times"

PlanPoint = Callable[[Mapping[str, str], str], Sequence[PlannedRun]]
"""Plans the runs of a command with more values of `--set`; with a name of them, refused ones are blocked."""


def sweep_points(texts: Iterable[str], *, zipped: bool = False) -> tuple[dict[str, str], ...]:
    """Return the values of each point by key: every combination, the last key's values changing first.

    With `zipped` the first value of each key, then the second of each, and so on.

    Raises:
        UsageProblem: a text is no `KEY=A,B`, a key, a value or (zipped) a point is there twice, or zipped keys have
            different counts.
    """
    values: dict[str, list[str]] = {}
    for text in texts:
        key, found = _values_of(text)
        if not zipped and (twice := _first_twice(found)):
            raise UsageProblem(f"--sweep {_shown(text)} has the value {masked_value(key, twice)} twice", _REPEAT)
        if key in values:
            raise UsageProblem(f"--sweep names {key} twice", f"one option with all of its values: {_HOW}")
        values[key] = found
    counts = {key: len(found) for key, found in values.items()}
    if zipped and len(set(counts.values())) > 1:
        said = ", ".join(f"{key} has {count}" for key, count in counts.items())
        raise UsageProblem(f"--zip needs as many values of each key: {said}", "leave --zip out for every combination")
    combined = list(zip(*values.values(), strict=True)) if zipped else list(product(*values.values()))
    if len(combined) > MOST_POINTS:
        raise UsageProblem(f"--sweep makes {len(combined)} points, more than {MOST_POINTS}", "--zip pairs the values")
    points = tuple(dict(zip(values, point, strict=True)) for point in combined)
    if (same := _first_twice(combined)) is not None:
        point = point_text(dict(zip(values, same, strict=True)))
        raise UsageProblem(f"--sweep with --zip makes the point {point} twice", _REPEAT)
    return points


def _first_twice(values: Sequence[V]) -> V | None:
    return next((value for value, count in Counter(values).items() if count > 1), None)


def _values_of(text: str) -> tuple[str, list[str]]:
    name, equals, rest = text.partition("=")
    key = canonical_key(name.strip())
    if not equals or not key:
        raise UsageProblem(f"--sweep {_shown(text)} is not KEY=A,B", _HOW)
    try:  # a value with a comma is in double quotes
        found = [value.strip() for value in next(csv.reader([rest], skipinitialspace=True, strict=True), [])]
    except csv.Error as error:
        raise UsageProblem(
            f"--sweep {_shown(text)}: a quote is not closed, or not at the ends of a value ({error})", _HOW
        ) from None
    if not all(found or [""]):
        raise UsageProblem(f"--sweep {_shown(text)} has an empty value", _HOW)
    return key, found


def _shown(text: str) -> str:
    """Return an option's text in quotes, without a secret."""
    key, equals, rest = text.partition("=")
    return repr(f"{key}{equals}{masked_value(key, rest)}")


def point_text(values: Mapping[str, object]) -> str:
    """Return a point as text, without secrets: `micro_batch=2, steps=50`."""
    return ", ".join(f"{key}={masked_value(key, value)}" for key, value in values.items())


def series_text(one: SeriesSummary) -> str:
    """Return the point that a series is of, and its micro batch where that is not the planned one."""
    fallback = f"(ran with micro batch {one.micro_batch})" if one.micro_batch is not None else ""
    return f"{point_text(one.varied)} {fallback}".strip()


def plan_sweep(points: Sequence[Mapping[str, str]], plan: PlanPoint) -> list[PlannedRun]:
    """Return the runs of each point in their order, as those of a study that has no id yet.

    A point that cannot be planned where others can has runs that are blocked: it is a failure of the sweep.

    Raises:
        UsageProblem: two points are the same run: `--sweep steps=10,010`.
        MadliteError: no point can be planned, or none by a defect of a plugin; the message names the first.
    """
    tried = [_plan_point(values, plan) for values in points]
    problems = [one for one in tried if isinstance(one, UsageProblem)]
    if len(problems) == len(points):
        raise problems[0]
    _refuse_twice(points, tried)
    found: list[PlannedRun] = []
    for values, made in zip(points, tried, strict=True):
        for one in plan(values, _named(values)) if isinstance(made, UsageProblem) else made:
            study = Study(id="", kind=KIND, varied=dict(values), series=len(found) + 1, index=1, count=1)
            found.append(replace(one, plan=replace(one.plan, study=study)))
    return found


def _refuse_twice(points: Sequence[Mapping[str, str]], tried: Sequence[Sequence[PlannedRun] | UsageProblem]) -> None:
    seen: dict[tuple[str, ...], Mapping[str, str]] = {}
    for values, made in zip(points, tried, strict=True):
        if isinstance(made, UsageProblem) or len(points) == 1 or any(one.plan.blocked is not None for one in made):
            continue  # of a run that would not start the plan has none of these values
        same = seen.setdefault(tuple(plan_digest(one.plan) for one in made), values)
        if same is not values and not _differ_in_secrets(values, same):
            what = f"{_named(values)} is the same run as {point_text(same)}"
            raise UsageProblem(what, f"leave one of them out; {_REPEAT}")


def _differ_in_secrets(values: Mapping[str, str], others: Mapping[str, str]) -> bool:
    """Return whether two points differ in what no digest of a plan has."""
    return any(masked_value(key, value) != value != others[key] for key, value in values.items())


def _plan_point(values: Mapping[str, str], plan: PlanPoint) -> Sequence[PlannedRun] | UsageProblem:
    try:
        return plan(values, "")
    except MadliteError as problem:
        named = type(problem)(f"{_named(values)}: {problem.message}", problem.hint)
        if isinstance(named, UsageProblem):
            return named
        raise named from None


def _named(values: Mapping[str, str]) -> str:
    return f"--sweep {point_text(values)}"


def with_study_id(planned: Sequence[PlannedRun], study_id: str) -> list[PlannedRun]:
    """Return runs as those of the study of this id, where they are of one."""
    return [
        replace(one, plan=replace(one.plan, study=replace(one.plan.study, id=study_id))) if one.plan.study else one
        for one in planned
    ]


# What a sweep came to, as lines.


def sweep_lines(summary: StudySummary) -> Iterator[str]:
    """Yield a table of each card, variant and image: a line per point, the best one marked."""
    names = [_group_name(one) for one in summary.series]
    groups: dict[tuple[str, ...], list[SeriesSummary]] = {}
    for name, one in zip(names, summary.series, strict=True):
        # a point that could not be planned has neither variant nor image: it stands with the others of its card
        whole = next((other for other in names if other[0] == name[0] and any(other[1:])), name)
        groups.setdefault(name if any(name[1:]) else whole, []).append(one)
    for name, series in groups.items():
        yield " · ".join(filter(None, name))
        yield from (f"  {line}" for line in _table(series))


def _group_name(one: SeriesSummary) -> tuple[str, ...]:
    return one.card, one.mode, "" if "precision" in one.varied else one.precision, one.image


def _table(series: Sequence[SeriesSummary]) -> Iterator[str]:
    metrics = {at: one.metrics[0] for at, one in enumerate(series) if one.metrics}
    best, how = _best({at: metric for at, metric in metrics.items() if not series[at].suspect})
    rows = [(series_text(one), *_cells(one, metrics.get(at))) for at, one in enumerate(series)]
    for at, line in enumerate(align(rows, (1,))):
        yield f"{line}  <- best{how}" if at == best else line


def _cells(one: SeriesSummary, metric: MetricSummary | None) -> tuple[str, str]:
    """Return the number of a point and its unit with its spread, or how its runs ended."""
    if metric is None:
        causes = ", ".join(one.failed) or ("skipped" if one.skipped else "not started")
        return "-", f"{'FAILURE ' if one.failed else ''}{causes}"
    spread = f", CV {100 * metric.cv:.2f} %, n {metric.n}" if metric.cv is not None else ""
    failed = f", {sum(one.failed.values())} failed" if one.failed else ""
    suspect = f", {one.suspect} suspect" if one.suspect else ""
    return f"{metric.mean:,.6g}", f"{metric.label or metric.metric}{spread}{failed}{suspect}"


def _best(metrics: Mapping[int, MetricSummary]) -> tuple[int | None, str]:
    """Return the place of the best mean, and how sure that is; None of fewer than two, or of different metrics."""
    if len(metrics) < 2 or len({(one.metric, one.label) for one in metrics.values()}) > 1:
        return None, ""
    sign = -1 if next(iter(metrics.values())).lower_is_better else 1
    best, second, *_ = sorted(metrics, key=lambda at: -sign * metrics[at].mean)
    if min(metrics[best].n, metrics[second].n) < 2:
        return best, " (by one run; --repeat tells it from noise)"
    ratio = ratio_of_means(metrics[second].values, metrics[best].values)
    is_sure = ratio is not None and (ratio.low > 1 or ratio.high < 1)
    return best, "" if is_sure else " (not told from noise)"
