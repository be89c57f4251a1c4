"""Each selected run, or each point of a sweep or a scaling, N times: a round of all after the other.

So a drift of the machine meets them all.  The runs of a card, variant, image and point are a series.  With `--repeat`
its caches of compiled and tuned kernels are its own: filled by one warm-up that is no result, or with `cold` empty at
the start of each run.  All others have the user's caches, which nothing of the study fills: a single run of a point,
those of a scaling, and runs that go on at the same time on several machines.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from itertools import count, product

from msgspec.structs import replace

from madlite.errors import MadliteError, UsageProblem
from madlite.model import Status, Study
from madlite.plan.caches import with_caches
from madlite.plan.fields import canonical_key
from madlite.plan.plan_file import plan_digest
from madlite.plan.submission import PlannedRun
from madlite.run.from_plan import copied
from madlite.secrets import masked_value
from madlite.store.batches import caches_path
from madlite.store.folder import new_run_id
from madlite.study.each_node import EACH_NODE, nodes_lines, summarise_nodes
from madlite.study.engine import Answer, Ask, Strategy, caches_name
from madlite.study.scaling import PAGE, SCALING, ScalingSummary, render_page, scaling_lines, scalings_of
from madlite.study.summary import SWEEP, Sample, point_text, samples_of, study_lines, summarise

KIND = "repeat"
KINDS = (KIND, SWEEP, SCALING, EACH_NODE)


class Grid(Strategy):
    """The strategy of a repeat, a sweep and a scaling: all runs are known before the first one."""

    def __init__(self, study_id: str, planned: Sequence[PlannedRun], warm_ups: Sequence[PlannedRun]) -> None:
        super().__init__(study_id, [run for run in planned if _place(run.plan.study)[1] == 1], planned, warm_ups)
        study = planned[0].plan.study if planned else None
        self.kind = study.kind if study is not None else KIND

    def ask(self, samples: Sequence[Sample]) -> Ask | None:
        """Return the warm-ups, then the runs; a warm-up that failed ends all, but only its own point of a sweep."""
        ended = {_place(sample.study) for sample in samples}
        left = [run for run in self.planned if _place(run.plan.study) not in ended]
        wanted = {_place(run.plan.study)[0] for run in left}
        warm_ups = ((run, _place(run.plan.study)) for run in self.warm_ups)
        if cold := [run for run, place in warm_ups if place not in ended and place[0] in wanted]:
            return Ask(runs=cold, later=left)
        warm_up_ends = {sample.study.series: sample.result for sample in samples if sample.study.warm_up}
        failed = {series for series, end in warm_up_ends.items() if end is None or end.status is Status.FAILURE}
        if failed:
            points = ((run, run.plan.study) for run in left)
            left = [run for run, study in points if study and study.varied and study.series not in failed]
        return Ask(runs=left) if left else None

    def summary(self, samples: Sequence[Sample]) -> Answer:
        """Return the statistics of all series, also of runs that were not asked for."""
        warm_ups = [sample for sample in samples if sample.study.warm_up]
        made = {_place(sample.study): sample for sample in samples}
        planned = (made.get(_place(sample.study), sample) for sample in samples_of(self.planned, ()))
        return grid_answer(self.id, self.kind, [*warm_ups, *planned])


def grid_answer(study_id: str, kind: str, samples: Sequence[Sample]) -> Answer:
    """Return what the runs of a repeat, a sweep, a scaling or of each node came to."""
    if kind == SCALING:
        scaling = ScalingSummary(id=study_id, kind=kind, scalings=scalings_of(samples))
        lines = (f"  {text}" for table in scaling.scalings for text in scaling_lines(table))
        page = {PAGE: render_page(study_id, scaling.scalings)}
        return Answer(content=scaling, lines=(f"{kind} {study_id}", *lines), files=page)
    if kind == EACH_NODE:
        nodes = summarise_nodes(study_id, samples)
        return Answer(content=nodes, lines=tuple(nodes_lines(nodes)))
    summary = summarise(study_id, kind, samples)
    return Answer(content=summary, lines=tuple(study_lines(summary)))


def _place(study: Study | None) -> tuple[int | None, int | None]:
    """Return a run's series, and which run of it it is; None of a warm-up."""
    return (study.series, study.index) if study is not None else (None, None)


def plan_grid(
    planned: Sequence[PlannedRun], study_id: str, times: int | None, *, cold: bool = False, own_caches: bool = True
) -> Grid:
    """Return each plan so many `times`, one round of all after the other; one that must not start comes once.

    Without `own_caches` the runs have the user's, and there is no warm-up.
    """
    runs = list(enumerate(planned, 1))
    # of the runs after the first ones: ids sort as their runs start
    moments = (datetime.now(timezone.utc) + timedelta(seconds=second) for second in count(1))
    startable = [(number, run) for number, run in runs if run.plan.blocked is None]
    point = planned[0].plan.study if planned else None
    own_caches = own_caches and times is not None and (point is None or point.kind != SCALING)
    has_warm_ups = own_caches and not cold

    def make(number: int, run: PlannedRun, index: int | None) -> PlannedRun:
        study = Study(
            id=study_id,
            kind=run.plan.study.kind if run.plan.study is not None else KIND,
            varied=run.plan.study.varied if run.plan.study is not None else {},
            series=number,
            index=index,
            count=None if index is None else times or 1,
            warm_up=index is None,
            caches="" if not own_caches else "cold" if cold or index is None else "warm",
        )
        return _member(run, study, moments, is_first=index == (None if has_warm_ups else 1))

    rounds = [make(number, run, 1) for number, run in runs]
    rounds += [make(number, run, index) for index in range(2, (times or 1) + 1) for number, run in startable]
    warm_ups = [make(number, run, None) for number, run in startable] if has_warm_ups else []
    return Grid(study_id, rounds, warm_ups)


def _member(run: PlannedRun, study: Study, moments: Iterator[datetime], *, is_first: bool) -> PlannedRun:
    """Return a run of the study; an image that is to be built without a cache is, by the first run of its series."""
    if study.index != 1:
        name = run.plan.card.name
        run = copied(run, new_run_id(f"warm-up {name}" if study.warm_up else name, next(moments)))
    plan = run.plan
    if plan.blocked is not None:
        return replace(run, plan=replace(plan, study=replace(study, count=1, caches="")))
    if plan.image is not None and not is_first:
        plan = replace(plan, image=replace(plan.image, no_cache=False))
    plan = replace(plan, study=study, writes_row=plan.writes_row and not study.warm_up)
    if not study.caches:
        return replace(run, plan=plan)
    return replace(run, plan=with_caches(plan, caches_path(plan.workspace, study.id, caches_name(study))))


# `--sweep KEY=A,B`: the runs of a command once for each combination of values, each an ordinary run with its row.
#
# The runs of one point, card, variant and image are a series; `varied` of their study has the point's values.

MOST_POINTS = 1000  # more are a slip
_HOW = "--sweep micro_batch=1,2,4"
_REPEAT = "--repeat N runs each point N times"

PlanPoint = Callable[[Mapping[str, str], str], Sequence[PlannedRun]]
"""Plans the runs of a command with more values of `--set`; with a name of them, refused ones are blocked."""


def sweep_points(texts: Iterable[str], *, zipped: bool = False) -> tuple[dict[str, str], ...]:
    """Return the values of each point by key: every combination, the last key's values changing first.

    With `zipped` the first value of each key, then the second of each, and so on.

    Raises:
        UsageProblem: a text is no `KEY=A,B`, a key or a point is there twice, or zipped keys have different counts.
    """
    values: dict[str, list[str]] = {}
    for text in texts:
        key, found = _values_of(text)
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
    if same := [point for at, point in enumerate(points) if point in points[:at]]:
        raise UsageProblem(f"--sweep makes the point {point_text(same[0])} twice", _REPEAT)
    return points


def _values_of(text: str) -> tuple[str, list[str]]:
    name, equals, rest = text.partition("=")
    key = canonical_key(name.strip())
    if not equals or not key:
        raise UsageProblem(f"--sweep {_shown(text)} is not KEY=A,B", _HOW)
    try:  # a value with a comma is in double quotes
        found = [value.strip() for value in next(csv.reader([rest], skipinitialspace=True, strict=True), [])]
    except csv.Error as error:
        what = f"--sweep {_shown(text)}: a quote is not closed, or not at the ends of a value ({error})"
        raise UsageProblem(what, _HOW) from None
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
        problem.message = f"{_named(values)}: {problem.message}"
        if isinstance(problem, UsageProblem):
            return problem
        raise


def _named(values: Mapping[str, str]) -> str:
    return f"--sweep {point_text(values)}"
