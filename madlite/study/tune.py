"""`madlite tune`: the fastest configuration of a tag on this machine, found by short runs and confirmed by full ones.

What comes next is decided by `tune_search.next_run` from the runs so far, and those are read from their records: a
study that was cut off goes on where it was.  Short runs are no results: they have a record and no row.  Full runs are
ordinary ones, with a row each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from madlite.batch.runner import Batch, BatchSettings
from madlite.errors import ExitCode, MadliteError, UsageProblem
from madlite.measure.adaptive import FIRST_LOOK
from madlite.measure.memory import sequences_per_step
from madlite.model import Cause, Knob, Result, RunPlan, Scalar, Status, Study, Value, Window
from madlite.plan.inputs import RUNS
from madlite.reports.page.run_details import read_steps
from madlite.reports.runs import CUT_OFF, began, list_runs
from madlite.run.checks import check_plans
from madlite.run.screen import PlannedRun, RunOutcome, Screen
from madlite.run.stop import Signals
from madlite.secrets import masked_json
from madlite.store.events import StudyStarted
from madlite.store.folder import LOG
from madlite.store.record import result_of
from madlite.store.study import StudyFolder, studies_of
from madlite.study.summary import making_folder
from madlite.study.tune_models import Choice, Point, RunSteps, Space, Trial, TrialStatus
from madlite.study.tune_search import Budget, Stop, next_run

if TYPE_CHECKING:
    from madlite.backends.loader import Plugins
    from madlite.plan.context import Options
    from madlite.store.batches import BatchLog

KIND = "tune"
UNTIL = "0.5%"  # a full run ends once its number is as sure as this
_BATCH = "micro_batch"
_WARMUP, _STEADY = 5, 8  # steps of a short run
_LEAST_WARMUP, _LEAST_STEADY = 3, 4  # where they are long
_LEAST_FULL = 10  # steady steps of a full run where the budget is not enough for all
# what can end any run, whatever its configuration
_OF_MACHINE = (Cause.DISK, Cause.INODES, Cause.PREPARE, Cause.ENGINE, Cause.NETWORK, Cause.PREEMPTED)
_PEAKS = ("GiB reserved", "GiB used on the device", "GiB allocated")  # labels of quantities, the best first

PlanWith = Callable[[Mapping[str, Scalar]], Sequence[PlannedRun]]
"""Plans the runs of a command with more values of `--set`."""


# What may be changed of a run.


class Tuning(Value, frozen=True):
    """One run that is tuned: its default plan, what may be changed, and which knobs are left alone, with the reason."""

    default: PlannedRun
    space: Space
    left: dict[str, str] = {}

    @property
    def sequences(self) -> int | None:
        """The global batch of the default."""
        return sequences_per_step(self.default.plan)


def make_tuning(planned: Sequence[PlannedRun]) -> Tuning:
    """Return what may be tuned of the command's only run.

    Raises:
        UsageProblem: the command has several runs, or its run has nothing to tune.
    """
    if len(planned) != 1:
        variants = ((one.plan.card.name, one.plan.variant) for one in planned)
        names = "; ".join(
            dict.fromkeys(f"{name} {v.mode} {v.precision}".strip() if v else name for name, v in variants)
        )
        what = f"tune takes one run, and the tags stand for {len(planned)}: {names}"
        raise UsageProblem(what, "--mode, --precision and --image-release select among the runs of a tag")
    (one,) = planned
    if not one.knobs and one.plan.blocked is not None:
        raise UsageProblem(f"{one.plan.card.name} would not start: {one.plan.blocked.reason}", one.plan.blocked.hint)
    if not one.knobs or one.plan.variant is None:
        what = f"backend '{one.plan.backend}' declares nothing of {one.plan.card.name} that could be tuned"
        raise UsageProblem(what, "docs/tune.md says how a backend does; --backend NAME renders a card from a recipe")
    left = {knob.key: why for knob in one.knobs if (why := _why_not(knob, one.plan))}
    knobs = [knob for knob in one.knobs if knob.key not in left]
    if not knobs:
        raise UsageProblem(
            f"nothing of {one.plan.card.name} is left to tune: "
            + "; ".join(f"{key}: {why}" for key, why in left.items()),
            "leave the options out that fix these values",
        )
    return Tuning(default=one, space=_space(one.plan, knobs), left=left)


def _why_not(knob: Knob, plan: RunPlan) -> str:
    """Return why a knob is left alone; "" where it is tuned."""
    if knob.key != _BATCH and knob.key not in plan.settings:
        return "this run has no such setting"
    origin = plan.origins.get(f"variant.{_BATCH}" if knob.key == _BATCH else f"settings.{knob.key}", "")
    if origin.startswith(("-", "context", "recipe file")) or origin == "tag":
        return f"{origin} fixes it"
    for key, values in knob.requires.items():
        if _value(plan, key) not in values:
            return f"only with {key} {' or '.join(str(one) or repr('') for one in values)}"
    if knob.vendors and plan.machine.vendor not in knob.vendors:
        return f"only on {', '.join(knob.vendors)}"
    if knob.parts and plan.architecture is None:
        return "how many layers the model has is not known"
    if plan.place.gpus_per_node < knob.least_gpus:
        return f"only with {knob.least_gpus} GPU{'s' if knob.least_gpus > 1 else ''} or more"
    return _why_no_batch(plan) if knob.key == _BATCH else ""


def _why_no_batch(plan: RunPlan) -> str:
    if not (plan.variant and plan.variant.micro_batch):
        return "the run has none"
    headline = plan.result_rule.headline
    return "" if headline.is_speed else f"{headline.label} of different batches cannot be compared"


def _value(plan: RunPlan, key: str) -> Scalar:
    """Return a setting or a field of the variant; "" of one that the run does not have."""
    found: Scalar | None = plan.settings[key] if key in plan.settings else getattr(plan.variant, key, None)
    return "" if found is None else found


def _space(plan: RunPlan, knobs: Sequence[Knob]) -> Space:
    choices = tuple(_choice(knob, plan) for knob in knobs if knob.key != _BATCH)
    batch = next((knob for knob in knobs if knob.key == _BATCH), None)
    micro = (plan.variant.micro_batch if plan.variant else 0) if batch is not None else 0
    memory = [gpu.memory_bytes for gpu in plan.machine.gpus if gpu.memory_bytes]
    return Space(
        default=Point(batch=micro or 0, group=tuple(plan.settings[one.key] for one in choices)),
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
    return Choice(key=knob.key, values=values, memory=memory, speed=speed, later=knob.later)


# A point → its plan.


class PointPlanner:
    """Plans the run of each point, and refuses what would train something else."""

    def __init__(self, tuning: Tuning, plan: PlanWith, plugins: Plugins, *, lint: bool = True) -> None:
        self._tuning, self._plan, self._plugins, self._lint = tuning, plan, plugins, lint

    def make(self, point: Point, *, full: bool, steps: int = 0) -> PlannedRun | str:
        """Return the plan of a point that can start, or why it cannot; `steps` 0: as many as such a run has."""
        space = self._tuning.space
        values = {**space.varied(point), **(self._full(steps) if full else self._short(steps))}
        try:
            planned, _ = check_plans(self._plan(values), self._plugins, self._lint)
        except MadliteError as problem:
            if point == space.default:
                raise
            return problem.message
        if len(planned) != 1:
            return "it stands for several runs"
        one = planned[0]
        if one.plan.blocked is not None and point != space.default:
            return one.plan.blocked.reason
        return one if self._is_same(one.plan) else "it would train something else"

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
        return {
            "steps": steps,
            "warmup_steps": min(variant.warmup_steps, _WARMUP if steps >= usual.short else _LEAST_WARMUP),
        }

    def _is_same(self, plan: RunPlan) -> bool:
        """Return whether a plan trains the same model in the same precision on the same sequences."""
        before, after = self._tuning.default.plan.variant, plan.variant
        if before is None or after is None:
            return before is after
        free = {"micro_batch": before.micro_batch, "steps": before.steps, "warmup_steps": before.warmup_steps}
        return replace(after, **free) == before


# A run that has ended → a trial.


def is_of_machine(result: Result) -> bool:
    """Return whether a run failed for what has nothing to do with its configuration: a full disk, say."""
    return result.status is Status.FAILURE and result.code in {one.value for one in _OF_MACHINE}


def trial_of(result: Result, folder: Path, point: Point, *, full: bool, is_first: bool = False) -> Trial | None:
    """Return what a run tells of its point; None of one that was interrupted, or ended by the machine.

    The first run of a study tells why there is none.
    """
    if result.cause is Cause.INTERRUPTED or result.status is Status.SKIPPED or (is_of_machine(result) and not is_first):
        return None
    speed, curves = _speed(result), read_steps(folder)
    status: TrialStatus = "ok" if result.status is Status.SUCCESS and speed else "failed"
    if result.status is Status.FAILURE and result.code == Cause.GPU_MEMORY.value:
        status = "out_of_memory"
    return Trial(
        point=point,
        status=status,
        full=full,
        speed=speed if status == "ok" else 0.0,
        memory_gib=_peak_gib(result, curves),
        duration_s=result.durations_s.get("total", 0.0),
        steps=max((max(curve, default=0) for curve in curves.values()), default=0),
        step_s=_step_s(result.window),
        reason="; ".join(result.suspect) if status == "ok" else result.reason or result.code,
        run=result.plan_id,
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


def trials_of(workspace: Path, study_id: str, space: Space) -> list[Trial]:
    """Return the trials of a study, from the records of its runs in the order in which they began."""
    found: list[Trial] = []
    for run in list_runs(workspace / RUNS):
        study = run.record.study
        if study is None or study.id != study_id or run.doubt or run.state != run.record.status.value:
            continue
        point, full = space.point(study.varied), not study.short
        trial = trial_of(result_of(run.record), run.folder, point, full=full, is_first=not found)
        found += [trial] if trial is not None else []
    return found


def lost_s(workspace: Path, study_id: str) -> float:
    """Return the seconds that went into runs of a study which tell nothing: interrupted, killed, ended by the machine.

    Of one that was killed it is known until when it wrote its log.
    """
    spent_s = 0.0
    for run in list_runs(workspace / RUNS):
        study = run.record.study
        if study is None or study.id != study_id or run.doubt:
            continue
        if run.state == CUT_OFF:
            with suppress(OSError):
                spent_s += max(0.0, (run.folder / LOG).lstat().st_mtime - began(run.folder) / 1e9)
        elif (result := result_of(run.record)).cause is Cause.INTERRUPTED or is_of_machine(result):
            spent_s += result.durations_s.get("total", 0.0)
    return spent_s


# The study on the disk.


class TuneState(Value, frozen=True):
    """What a study is about, so that it goes on with the same question alone."""

    id: str
    card: str
    backend: str
    device: str
    gpus: int
    default: dict[str, Scalar]
    fixed: dict[str, str]

    @classmethod
    def of(cls, study_id: str, tuning: Tuning, fixed: Mapping[str, str]) -> TuneState:
        """Return the state of a study that begins."""
        plan = tuning.default.plan
        return cls(
            id=study_id,
            card=plan.card.name,
            backend=plan.backend,
            device=plan.machine.device,
            gpus=plan.place.gpus_per_node,
            default=tuning.space.named(tuning.space.default),
            fixed=dict(fixed),
        )


def find_study(workspace: Path, named: str, state: TuneState) -> str:
    """Return the id of the study to go on with: the one that is named, or the newest of the same question.

    Raises:
        UsageProblem: there is none, or it asks another question.
    """
    known = studies_of(workspace, KIND)
    different, found = "", None
    for one in [one for one in known if one.study == named] if named else reversed(known):
        found = _state_of(one)
        if found is None:
            continue
        different = _difference(found, state)
        if not different:
            return found.id
        if not named and found.card == state.card:
            break
    if different and (named or found is not None):
        raise UsageProblem(
            f"study {named or (found.id if found else '')} is of {different}", "tune without --resume begins anew"
        )
    what = f"there is no study {named} of tune" if named else f"there is no study of {state.card} to go on with"
    raise UsageProblem(f"{what} in {workspace / RUNS}", "madlite runs --group study lists them")


def _state_of(started: StudyStarted) -> TuneState | None:
    try:
        return msgspec.convert(started.request, TuneState)
    except msgspec.ValidationError:  # of another madlite
        return None


def _difference(found: TuneState, state: TuneState) -> str:
    """Return in what a study differs from what the command asks for; "" where it is the same."""
    for name in ("card", "backend", "device", "gpus"):
        if getattr(found, name) != getattr(state, name):
            return f"{name} {getattr(found, name)}, not {getattr(state, name)}"
    for name in ("default", "fixed"):
        before, after = getattr(found, name), getattr(state, name)
        for key in sorted({*before, *after}):
            if before.get(key) != after.get(key):
                return f"{key} {before.get(key, 'unset')}, not {after.get(key, 'unset')}"
    return ""


# The runs of a study.


class TuneOutcome(Value, frozen=True):
    """What the runs came to: all trials, why the search stopped (None where it was interrupted), and the exit code."""

    trials: tuple[Trial, ...]
    stop: Stop | None
    exit_code: ExitCode = ExitCode.OK
    rows: int = 0
    bug: Exception | None = None


class TuneRunner:
    """Runs one point after another until the search stops."""

    def __init__(
        self,
        study_id: str,
        tuning: Tuning,
        planner: PointPlanner,
        budget: Budget,
        trials: Sequence[Trial] = (),
    ) -> None:
        self._id, self._tuning, self._planner, self._budget = study_id, tuning, planner, budget
        self.trials = list(trials)

    def run(
        self,
        options: Options,
        plugins: Plugins,
        screen: Screen,
        journal: BatchLog,
        settings: BatchSettings,
        say: Callable[[str], None],
    ) -> TuneOutcome:
        """Run until the search stops, or a signal comes."""
        rows, is_all_written = 0, True
        with Signals() as signals:
            while not isinstance(what := next_run(self._tuning.space, self.trials, self._budget), Stop):
                one = self._planner.make(what.point, full=what.full, steps=what.steps)
                if isinstance(one, str):
                    self.trials.append(Trial(point=what.point, status="refused", full=what.full, reason=one))
                    continue
                one = self._member(one, what.point, full=what.full)
                say(self._announce(what.point, full=what.full))
                batch = Batch([one], options, plugins, screen, journal=journal, settings=settings)
                outcome = batch.run(signals)
                trial = self._note(outcome, one, what.point, full=what.full)
                rows += one.plan.writes_row
                is_all_written &= not outcome.pending
                if outcome.bug is not None or trial is None or signals.exit_code is not None:
                    code = signals.exit_code or outcome.exit_code
                    is_ended = signals.exit_code is None and any(is_of_machine(one) for one in outcome.results)
                    stop = Stop(why="machine") if is_ended and trial is None else None
                    trials = tuple(self.trials)
                    return TuneOutcome(trials=trials, stop=stop, exit_code=code, rows=rows, bug=outcome.bug)
        code = ExitCode.OK if is_all_written and what.why != "default_failed" else ExitCode.RUN_FAILED
        return TuneOutcome(trials=tuple(self.trials), stop=what, exit_code=code, rows=rows)

    def _member(self, one: PlannedRun, point: Point, *, full: bool) -> PlannedRun:
        points = list(dict.fromkeys(trial.point for trial in self.trials if trial.status != "refused"))
        points += [point] * (point not in points)
        runs = sum(1 for trial in self.trials if trial.point == point and trial.full)
        study = Study(
            id=self._id,
            kind=KIND,
            varied=self._tuning.space.varied(point),
            series=points.index(point) + 1,
            index=runs + 1 if full else None,
            short=not full,
        )
        return replace(one, plan=replace(one.plan, study=study, writes_row=one.plan.writes_row and full))

    def _note(self, outcome: RunOutcome, one: PlannedRun, point: Point, *, full: bool) -> Trial | None:
        if not outcome.results:
            return None
        is_first = not self.trials
        trial = trial_of(outcome.results[0], one.plan.folder, point, full=full, is_first=is_first)
        if trial is not None:
            self.trials.append(trial)
        return trial

    def _announce(self, point: Point, *, full: bool) -> str:
        number = sum(1 for one in self.trials if one.status != "refused") + 1
        kind = "full run" if full else "short run, no result"
        return f"tune {number}: {point_text(self._tuning.space, point)} ({kind})"


def point_text(space: Space, point: Point) -> str:
    """Return a point in words: what of it differs from the default."""
    return ", ".join(f"{key}={scalar(value)}" for key, value in space.varied(point).items()) or "default"


def scalar(value: Scalar) -> str:
    """Return a value as `--set` takes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def open_folder(workspace: Path, state: TuneState, *, resume: bool) -> StudyFolder:
    """Make the folder of a study, or open the one that is there.

    Raises:
        UsageProblem: that is not possible; nothing has run.
    """
    with making_folder(state.id, workspace):
        if resume:
            return StudyFolder.reopen(workspace, state.id, make=True)
        return StudyFolder.create(workspace, state.id, KIND, msgspec.json.decode(masked_json(state, ())))
