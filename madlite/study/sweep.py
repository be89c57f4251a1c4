"""`--sweep KEY=A,B`: the runs of a command once for each combination of values, each an ordinary run with its row.

The runs of one point, card, variant and image are a series; `varied` of their study has the point's values.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import product
from typing import TypeVar

from msgspec.structs import replace

from madlite.errors import MadliteError, UsageProblem
from madlite.model import Study
from madlite.plan.fields import canonical_key
from madlite.plan.plan_file import plan_digest
from madlite.plan.planned import PlannedRun
from madlite.secrets import masked_value
from madlite.study.summary import SWEEP, point_text

V = TypeVar("V", bound=Hashable)
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


def plan_sweep(points: Sequence[Mapping[str, str]], plan: PlanPoint) -> list[PlannedRun]:
    """Return the runs of each point in their order, as those of a study that has no id yet.

    A point that cannot be planned where others can has runs that are blocked: it is a failure of the sweep.

    Raises:
        UsageProblem: two points are the same run: `--sweep steps=10,010`.
        MadliteError: no point can be planned, or none by a defect of a plugin; the message names the first.
    """
    tried = [_plan_point(values, plan) for values in points]
    problems = [problem for problem in tried if isinstance(problem, UsageProblem)]
    if len(problems) == len(points):
        raise problems[0]
    _refuse_twice(points, tried)
    found: list[PlannedRun] = []
    for values, made in zip(points, tried, strict=True):
        for run in plan(values, _named(values)) if isinstance(made, UsageProblem) else made:
            study = Study(id="", kind=SWEEP, varied=dict(values), series=len(found) + 1, index=1, count=1)
            found.append(replace(run, plan=replace(run.plan, study=study)))
    return found


def _refuse_twice(points: Sequence[Mapping[str, str]], tried: Sequence[Sequence[PlannedRun] | UsageProblem]) -> None:
    seen: dict[tuple[str, ...], Mapping[str, str]] = {}
    for values, made in zip(points, tried, strict=True):
        if isinstance(made, UsageProblem) or len(points) == 1 or any(run.plan.blocked is not None for run in made):
            continue  # of a run that would not start the plan has none of these values
        same = seen.setdefault(tuple(plan_digest(run.plan) for run in made), values)
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
