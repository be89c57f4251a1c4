"""`madlite tune`: the fastest configuration of a tag on this machine, found by short runs and confirmed by full ones.

What comes next is decided by `tune_search.next_run` from the runs so far, and those are read from their records: a
study that was cut off goes on where it was.  Short runs are no results: they have a record and no row.  Full runs are
ordinary ones, with a row each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path

from msgspec.structs import replace

from madlite.backends.loader import Plugins
from madlite.errors import ExitCode, MadliteError, UsageProblem
from madlite.measure.adaptive import FIRST_LOOK
from madlite.measure.profile import most_lost, most_saved
from madlite.model import PROFILER_STEPS, Cause, Knob, Result, RunPlan, Scalar, Status, Study, Window
from madlite.plan.inputs import RUNS
from madlite.plan.submission import PlannedRun
from madlite.reports.page.run_details import read_steps
from madlite.reports.runs import CUT_OFF, began
from madlite.run.planning import check_plans
from madlite.store.folder import LOG
from madlite.study.engine import Answer, Ask, PlanWith, Strategy, only_run, stored_runs
from madlite.study.summary import Sample
from madlite.study.tune_models import KIND, Choice, Point, RunSteps, Space, Trial, TrialStatus, Tuning, point_text
from madlite.study.tune_search import Budget, NextRun, Stop, next_run
from madlite.text import duration

UNTIL = "0.5%"  # a full run ends once its number is as sure as this
_BATCH = "micro_batch"
_WARMUP, _STEADY = 5, 8  # steps of a short run
_LEAST_WARMUP, _LEAST_STEADY = 3, 4  # where they are long
_LEAST_FULL = 10  # steady steps of a full run where the budget is not enough for all
_PEAKS = ("GiB reserved", "GiB used on the device", "GiB allocated")  # labels of quantities, the best first


# What may be changed of a run.


def make_tuning(planned: Sequence[PlannedRun]) -> Tuning:
    """Return what may be tuned of the command's only run.

    Raises:
        UsageProblem: the command has several runs, or its run has nothing to tune.
    """
    planned_run = only_run(planned, KIND)
    plan, name = planned_run.plan, planned_run.plan.card.name
    if not planned_run.knobs and plan.blocked is not None:
        raise UsageProblem(f"{name} would not start: {plan.blocked.reason}", plan.blocked.hint)
    if not planned_run.knobs or plan.variant is None:
        what = f"backend '{plan.backend}' declares nothing of {name} that could be tuned"
        raise UsageProblem(what, "docs/tune.md says how a backend does; --backend NAME renders a card from a recipe")
    left = {knob.key: why for knob in planned_run.knobs if (why := _why_not(knob, plan))}
    knobs = [knob for knob in planned_run.knobs if knob.key not in left]
    if not knobs:
        why = "; ".join(f"{key}: {why}" for key, why in left.items())
        raise UsageProblem(f"nothing of {name} is left to tune: {why}", "leave the options out that fix these values")
    return Tuning(default=planned_run, space=_space(plan, knobs), left=left)


def _why_not(knob: Knob, plan: RunPlan) -> str:
    """Return why a knob is left alone; "" where it is tuned."""
    origin = plan.origins.get(f"variant.{_BATCH}" if knob.key == _BATCH else f"settings.{knob.key}", "")
    if origin.startswith(("-", "context", "recipe file")) or origin == "tag":
        return f"{origin} fixes it"
    return knob.why_not(plan) or (_why_no_batch(plan) if knob.key == _BATCH else "")


def _why_no_batch(plan: RunPlan) -> str:
    if not (plan.variant and plan.variant.micro_batch):
        return "the run has none"
    headline = plan.result_rule.headline
    return "" if headline.is_speed else f"{headline.label} of different batches cannot be compared"


def _space(plan: RunPlan, knobs: Sequence[Knob]) -> Space:
    choices = tuple(_choice(knob, plan) for knob in knobs if knob.key != _BATCH)
    batch = next((knob for knob in knobs if knob.key == _BATCH), None)
    micro = (plan.variant.micro_batch if plan.variant else 0) if batch is not None else 0
    memory = [gpu.memory_bytes for gpu in plan.machine.gpus if gpu.memory_bytes]
    return Space(
        default=Point(batch=micro or 0, group=tuple(plan.settings[choice.key] for choice in choices)),
        choices=choices,
        most=batch.most if batch is not None else 0,
        global_batch=(plan.variant.global_batch or 0) if plan.variant else 0,
        memory_gib=min(memory) / 2**30 if memory else None,
        steps=_steps(plan),
    )


def _steps(plan: RunPlan) -> RunSteps | None:
    """Return how many steps the runs make, more where a line of the log covers several; None where that is fixed."""
    variant = plan.variant
    every = plan.settings.get("log_freq", 1)
    every = max(1, every) if isinstance(every, int) else 1
    if variant is None or not variant.steps:
        return None
    steps = RunSteps(
        warmup=variant.warmup_steps,
        full=variant.steps,
        least_full=min(variant.steps, variant.warmup_steps + _LEAST_FULL * every),
        short=min(variant.warmup_steps, _WARMUP) + _STEADY * every,
        least_short=min(variant.warmup_steps, _LEAST_WARMUP) + _LEAST_STEADY * every,
        every=every,
    )
    return steps if steps.short < steps.full else None


def _choice(knob: Knob, plan: RunPlan) -> Choice:
    """Return a knob as the search has it; a default that is none of its values is one more."""
    layers = plan.architecture.layers if plan.architecture else 0
    offered = knob.values or tuple(round(part * layers) for part in knob.parts)
    default = plan.settings[knob.key]
    known = default in offered
    values = offered if known else (default, *offered)
    memory, speed = ((1.0,) * (not known) + table if table else () for table in (knob.memory, knob.speed))
    start_s = (0.0,) * (not known) + knob.start_s if knob.start_s else ()
    return Choice(
        key=knob.key, values=values, memory=memory, speed=speed, later=knob.later, start_s=start_s, acts_on=knob.acts_on
    )


# A point → its plan.


class PointPlanner:
    """Plans the run of each point, and refuses what would train something else."""

    def __init__(self, tuning: Tuning, plan: PlanWith, plugins: Plugins, *, lint: bool = True) -> None:
        self._tuning, self._plan, self._plugins, self._lint = tuning, plan, plugins, lint

    def make(self, point: Point, *, full: bool, steps: int = 0, first: bool = False) -> PlannedRun | str:
        """Return the plan of a point that can start, or why it cannot; `steps` 0: as many as such a run has.

        Of a run that should be profiled the `first` one alone is.
        """
        space, is_profiled = self._tuning.space, self._tuning.default.plan.profile
        values = {**space.varied(point), **(self._full(steps) if full else self._short(steps))}
        if is_profiled:
            values |= {"until": 0} if first else {"profile": False}
        try:
            planned, _ = check_plans(self._plan(values), self._plugins, self._lint)
        except MadliteError as problem:
            if point == space.default:
                raise
            return problem.message
        if len(planned) != 1:
            return "it stands for several runs"
        plan = planned[0].plan
        if plan.blocked is not None and point != space.default:
            return plan.blocked.reason
        return planned[0] if self._is_same(plan) else "it would train something else"

    def _full(self, steps: int) -> dict[str, Scalar]:
        """Return what ends a full run once its number is known, unless the user decided about that, or it is short."""
        plan = self._tuning.default.plan
        usual = self._tuning.space.steps
        too_few = usual is not None and 0 < steps - usual.warmup < FIRST_LOOK
        decided = too_few or plan.until or plan.origins.get("until", "default") != "default"
        until: dict[str, Scalar] = {} if decided or plan.result_rule.kind != "steps" else {"until": UNTIL}
        return {**until, "steps": steps} if steps else until

    def _short(self, steps: int) -> dict[str, Scalar]:
        """Return what makes a run short: as few steps as a steady window needs."""
        variant, usual = self._tuning.default.plan.variant, self._tuning.space.steps
        if variant is None or usual is None:
            return {}
        steps = steps or usual.short
        warmup_steps = _WARMUP if steps >= usual.short else _LEAST_WARMUP
        return {"steps": steps, "warmup_steps": min(variant.warmup_steps, warmup_steps)}

    def _is_same(self, plan: RunPlan) -> bool:
        """Return whether a plan trains the same model in the same precision on the same sequences."""
        before, after = self._tuning.default.plan.variant, plan.variant
        if before is None or after is None:
            return before is after
        free = {"micro_batch": before.micro_batch, "steps": before.steps, "warmup_steps": before.warmup_steps}
        return replace(after, **free) == before


# A run that has ended → a trial.


def trial_of(sample: Sample, space: Space, workspace: Path) -> Trial | None:
    """Return what a run tells of its point; None of one that never started."""
    result = sample.result
    if result is None:
        return None
    profile = result.profile
    speed, curves = _speed(result), read_steps(workspace / RUNS / sample.run)
    status: TrialStatus = "ok" if result.status is Status.SUCCESS and speed else "failed"
    if result.status is Status.FAILURE and result.code == Cause.GPU_MEMORY.value:
        status = "out_of_memory"
    return Trial(
        point=space.point(sample.study.varied),
        status=status,
        full=not sample.study.short,
        speed=speed if status == "ok" else 0.0,
        memory_gib=_peak_gib(result, curves),
        short_of_memory=any(check.name == "memory" and check.status == "warn" for check in result.checks),
        duration_s=result.durations_s.get("total", 0.0),
        steps=max((max(curve, default=0) for curve in curves.values()), default=0)
        + PROFILER_STEPS * (profile is not None),
        step_s=_step_s(result.window),
        reason="; ".join(result.suspect) if status == "ok" else result.reason or result.code,
        run=sample.run,
        parts=most_saved(profile) if profile else {},
        most_lost=most_lost(profile).name if profile else "",
    )


def _step_s(window: Window | None) -> float:
    """Return how long a steady step took; 0 where nobody knows."""
    if window is None or window.began_s is None or window.ended_s is None:
        return 0.0
    every = (window.last_step - window.first_step) / (window.n - 1) if window.n > 1 else 1.0  # steps of a line
    return (window.ended_s - window.began_s) / (window.n * every)


def _speed(result: Result) -> float:
    """Return the number of a run, more being better; 0 without one."""
    found = result.headline
    if found is None or not found.value:
        return 0.0
    return 1 / found.value if found.lower_is_better else found.value


def _peak_gib(result: Result, curves: Mapping[str, Mapping[int, float]]) -> float | None:
    """Return the peak of a GPU's memory: the trainer's own, else what the GPUs reported."""
    for label in _PEAKS:
        if label in curves:
            return max(curves[label].values())
    used = [gpu.memory_used_gib for gpu in result.telemetry.gpus if gpu.memory_used_gib] if result.telemetry else []
    return max(used, default=None)


def _lost_s(workspace: Path, study_id: str, trials: Iterable[Trial]) -> float:
    """Return the seconds that went into runs of a study which tell nothing: interrupted, killed, ended by the machine.

    Of one that was killed it is known until when it wrote its log.
    """
    spent_s, known = 0.0, {trial.run for trial in trials}
    for run in stored_runs(workspace, study_id):
        if run.state == CUT_OFF:
            with suppress(OSError):
                spent_s += max(0.0, (run.folder / LOG).lstat().st_mtime - began(run.folder) / 1e9)
        elif run.folder.name not in known:
            spent_s += run.record.durations_s.get("total", 0.0)
    return spent_s


# The study.


class TuneStudy(Strategy):
    """The strategy of a tuning: one point after another until the search stops.

    `fixed` is what the user set of the run, which a recipe of the best point needs, too.
    """

    kind = KIND
    # what can end any run, whatever its configuration
    machine_causes = frozenset((Cause.DISK, Cause.INODES, Cause.PREPARE, Cause.ENGINE, Cause.NETWORK, Cause.PREEMPTED))

    def __init__(
        self, study_id: str, tuning: Tuning, planner: PointPlanner, budget: Budget, fixed: Mapping[str, Scalar]
    ) -> None:
        super().__init__(study_id, [tuning.default])
        self._tuning, self._planner, self._budget, self._fixed = tuning, planner, budget, fixed
        self._workspace = tuning.default.plan.workspace
        self._trials: list[Trial] = []
        self._seen = 0  # samples, of which the trials are
        self._stop: Stop | None = None  # None while runs go on, and where they were interrupted

    @cached_property
    def _left(self) -> Budget:
        """What there is to spend, by what an earlier command lost."""
        return self._budget.less(_lost_s(self._workspace, self.id, self._trials))

    def ask(self, samples: Sequence[Sample]) -> Ask | None:
        """Return a run of the next point, None where the search stops."""
        new = (trial_of(sample, self._tuning.space, self._workspace) for sample in samples[self._seen :])
        self._trials += filter(None, new)
        self._seen = len(samples)
        while isinstance(what := next_run(self._tuning.space, self._trials, self._left), NextRun):
            made = self._planner.make(what.point, full=what.full, steps=what.steps, first=not self._trials)
            if not isinstance(made, str):
                self.planned.append(self._member(made, what))
                return Ask(runs=self.planned[-1:], text=self._announce(what))
            self._trials.append(Trial(point=what.point, status="refused", full=what.full, reason=made))
        self._stop = what
        return None

    def summary(self, samples: Sequence[Sample]) -> Answer:
        """Return the report of all trials, with its page and the recipe of the best point.

        The exit code is 0 where the search has stopped, also with the default as the best; 3 where that failed.
        """
        from madlite.study.tune_report import PAGE, RECIPE, make_recipe, make_report, render_page, report_lines

        last = samples[-1].result if samples else None
        is_of_machine = last is not None and self.is_of_machine(last)
        why = self._stop.why if self._stop is not None else "machine" if is_of_machine else "interrupted"
        lost_s = _lost_s(self._workspace, self.id, self._trials)
        report = make_report(self.id, self._tuning, self._trials, why, lost_s)
        recipe = make_recipe(report, self._fixed, self._tuning.default.plan)
        files = {**({RECIPE: recipe} if recipe else {}), PAGE: render_page(report, recipe)}
        lost = [f"  {duration(lost_s)} of the budget went into runs that were cut off"] if lost_s else []
        code = ExitCode.RUN_FAILED if why in ("default_failed", "machine", "interrupted") else ExitCode.OK
        return Answer(content=report, lines=(*report_lines(report), *lost), files=files, exit_code=code)

    def _member(self, planned_run: PlannedRun, what: NextRun) -> PlannedRun:
        points = list(dict.fromkeys(trial.point for trial in self._trials if trial.status != "refused"))
        points += [what.point] * (what.point not in points)
        runs = sum(1 for trial in self._trials if trial.point == what.point and trial.full)
        study = Study(
            id=self.id,
            kind=KIND,
            varied=self._tuning.space.varied(what.point),
            series=points.index(what.point) + 1,
            index=runs + 1 if what.full else None,
            short=not what.full,
        )
        plan = planned_run.plan
        return replace(planned_run, plan=replace(plan, study=study, writes_row=plan.writes_row and what.full))

    def _announce(self, what: NextRun) -> str:
        number = sum(1 for trial in self._trials if trial.status != "refused") + 1
        kind = "full run" if what.full else "short run, no result"
        return f"tune {number}: {point_text(self._tuning.space, what.point)} ({kind})"
