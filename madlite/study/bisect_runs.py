"""The runs of a bisection: ordinary ones, tied by a study.

The event log has what was asked for; a command that resumes it takes the numbers from the records of the study's runs.
One that was cut off has none and is run again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from msgspec.structs import replace

from madlite.batch.attempts import TRANSIENT
from madlite.batch.runner import Batch, BatchSettings
from madlite.errors import ExitCode, UsageProblem
from madlite.model import Cause, Json, Metric, Result, Status, Study, Value
from madlite.plan.inputs import RUNS
from madlite.reports.runs import began
from madlite.reports.series import Direction, direction_of
from madlite.run.from_plan import copied
from madlite.run.screen import PlannedRun, RunOutcome
from madlite.run.stop import Signals
from madlite.store.batches import BatchLog
from madlite.store.events import StudyStarted
from madlite.store.folder import new_run_id, real_folders
from madlite.store.record import Record, result_of
from madlite.store.stored import read_plan, read_record
from madlite.store.study import StudyFolder, studies_of
from madlite.study.bisect import Bisection, NextItem, Sample, run_bisection

KIND = "bisect"
_OF_MACHINE = (Cause.DISK, Cause.INODES, Cause.ENGINE)  # whatever image, file or commit is tried


class BisectItem(Value, frozen=True):
    """One item of the list: `key` is what it is a value of (`image`, `recipe_file`, `commit`), `note` is for people."""

    key: str
    name: str
    planned: PlannedRun
    note: str = ""


class StartedRun(Value, frozen=True):
    """A run that was about to start."""

    id: str
    item: int


class BisectFolder:
    """The folder of a bisection while it goes on, and its runs in their order."""

    def __init__(self, study_id: str, folder: StudyFolder, runs: Iterable[StartedRun] = ()) -> None:
        self.id, self.runs = study_id, list(runs)
        self._folder = folder

    @classmethod
    def create(cls, workspace: Path, study_id: str, request: dict[str, Json]) -> BisectFolder:
        """Make the folder of a new one.

        Raises:
            UsageProblem: it cannot be made.
        """
        try:
            return cls(study_id, StudyFolder.create(workspace, study_id, KIND, request))
        except OSError as error:
            what = f"the folder of the study cannot be made: {error.strerror or error} ({error.filename or workspace})"
            raise UsageProblem(what, "run madlite in a folder of yours, on a disk with room") from error

    @classmethod
    def resume(cls, workspace: Path, name: str, request: dict[str, Json]) -> BisectFolder:
        """Open the folder of one that was cut off: by its id or the beginning of it, "" for the newest of this request.

        Raises:
            UsageProblem: there is none, it goes on, or it was asked for something else.
        """
        found = _find(workspace, name, request)
        if differing := _differences(found.request, request):
            raise UsageProblem(
                f"bisect {found.study} was begun with other options: {'; '.join(differing)}",
                "resume it by the same command with --resume, or leave --resume out to begin anew",
            )
        try:
            folder = StudyFolder.reopen(workspace, found.study, make=True)
        except BlockingIOError as error:
            raise UsageProblem(f"bisect {found.study} is still running", "madlite watch") from error
        except OSError as error:
            raise UsageProblem(f"bisect {found.study} cannot be resumed: {error.strerror or error}") from error
        return cls(found.study, folder, _started_runs(workspace, found.study))

    def end(self, summary: str) -> tuple[str, ...]:
        """Write what the bisection came to; return what could not be written."""
        return tuple(filter(None, (self._folder.write_summary(summary),)))

    def close(self) -> str:
        """Release the folder, which goes where nothing ran; return why something of it stays, "" if nothing does."""
        if not self.runs:
            self._folder.discard()
        return self._folder.close()


def _started_runs(workspace: Path, study_id: str) -> Iterator[StartedRun]:
    """Yield the runs of a study in the order in which they began."""
    for folder in sorted(real_folders(workspace / RUNS), key=began):
        plan = read_plan(folder)
        if plan is not None and plan.study is not None and plan.study.id == study_id:
            yield StartedRun(id=folder.name, item=(plan.study.series or 1) - 1)


def _find(workspace: Path, name: str, request: dict[str, Json]) -> StudyStarted:
    known = {one.study: one for one in studies_of(workspace, KIND)}
    if not known:
        raise UsageProblem("there is no bisect to resume in this folder", "leave --resume out to begin one")
    if name:
        found = [one for one in known if one.startswith(name)]
        if len(found) != 1:
            what = f"no bisect '{name}'" if not found else f"'{name}' begins {len(found)} bisects"
            raise UsageProblem(f"{what} in this folder", f"they are: {', '.join([*known][-5:])}")
        return known[found[0]]
    fitting = [one for one in known.values() if one.request == request]
    if not fitting:
        newest = [*known.values()][-1]
        raise UsageProblem(
            f"no bisect of this folder was begun with these options; the newest, {newest.study}: "
            f"{'; '.join(_differences(newest.request, request))}",
            "leave --resume out to begin one",
        )
    return fitting[-1]


def _differences(before: dict[str, Json], now: dict[str, Json]) -> list[str]:
    names = [name for name in dict.fromkeys((*before, *now)) if before.get(name) != now.get(name)]
    return [f"{name} {_short(before.get(name))}, now {_short(now.get(name))}" for name in names]


def _short(value: Json) -> str:
    text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
    return repr(text if len(text) <= 80 else f"{text[:77]}…") if value not in (None, [], "") else "none"


def known_samples(workspace: Path, runs: Iterable[StartedRun], metric: str, *, retried: bool) -> Iterator[Sample]:
    """Yield what the runs of a bisection came to, in their order; without those that were cut off or stopped.

    What ended a run of an item as a machine does, and again after that was to be mended, is the item's failure.
    Where failures that pass are `retried`, one whose next attempt was cut off tells nothing; the last attempt's counts.
    """
    stopped: set[int] = set()
    for run in runs:
        record = read_record(workspace / RUNS / run.id)
        if (
            record is None
            or record.ended_by is Cause.INTERRUPTED
            or (record.attempt is not None and record.attempt.next)
        ):
            continue
        if _is_of_machine(record.status, record.cause) and run.item not in stopped:
            stopped.add(run.item)
            continue
        if not (retried and _was_to_be_tried_again(record)):
            yield sample_of(run, result_of(record), metric)


def _was_to_be_tried_again(record: Record) -> bool:
    attempt = record.attempt
    is_last = attempt is not None and not attempt.next and not attempt.given_up
    return record.status is Status.FAILURE and record.cause in TRANSIENT and not is_last


def _is_of_machine(status: Status, code: str) -> bool:
    """Return whether a run failed for what would end the runs of all items: nothing of its own is known."""
    return status is Status.FAILURE and code in {one.value for one in _OF_MACHINE}


def sample_of(run: StartedRun, result: Result, metric: str) -> Sample:
    """Return what a run came to: the metric of a name, or its headline."""
    if result.status is not Status.SUCCESS:
        reason = f"{result.code}: {result.reason}" if result.reason else result.code
        return Sample(item=run.item, value=None, reason=reason, run=run.id)
    named = (one for one in result.metrics if one.value is not None and metric in _names_of(one))
    found = next(named, None) if metric else result.headline
    if found is None:
        has = ", ".join(dict.fromkeys(_names_of(one)[-1] for one in result.metrics)) or "no number"
        return Sample(item=run.item, value=None, reason=f"no metric '{metric}' among {has}", run=run.id)
    return Sample(
        item=run.item,
        value=float(found.value or 0.0),
        run=run.id,
        suspect=bool(result.suspect),
        direction=_direction(found),
        metric=f"{found.label} {found.metric}".strip(),
    )


def _names_of(metric: Metric) -> tuple[str, ...]:
    return (metric.metric, metric.label, f"{metric.label} {metric.metric}".strip())


def _direction(metric: Metric) -> Direction:
    return "lower" if metric.lower_is_better else direction_of(metric.metric)


class BisectRunner:
    """Runs what a bisection asks for, one run after another, until it has ended, a signal came or the machine fails."""

    def __init__(
        self, items: Sequence[BisectItem], folder: BisectFolder, metric: str, tell: Callable[[NextItem], None]
    ) -> None:
        self._items, self._folder, self._metric, self._tell = items, folder, metric, tell
        self.outcome = RunOutcome(results=(), not_started=(), exit_code=ExitCode.OK)
        self.stopped_by = ""  # why the machine ended it
        self.planned: list[PlannedRun] = []  # of the runs that were started, as the results of `outcome`

    def run(
        self,
        bisection: Bisection,
        known: Iterable[Sample],
        start: Callable[[Sequence[PlannedRun], Signals], RunOutcome],
    ) -> None:
        """Feed the samples that are known, then run until nothing is left; `start` runs a batch of one.

        Raises:
            UsageProblem: the known samples are those of another search, or a run cannot be noted.
        """
        with Signals() as signals:

            def measure(upcoming: NextItem) -> Sample | None:
                self._tell(upcoming)
                return self._measure(upcoming, bisection, signals, start)

            try:
                run_bisection(bisection, measure, known)
                if bisection.upcoming is not None and signals.exit_code is not None:
                    self.outcome = replace(self.outcome, exit_code=signals.exit_code)
            except ValueError as error:
                what = f"the records of bisect {self._folder.id} are not those of this search: {error}"
                raise UsageProblem(what, "leave --resume out to begin anew") from error

    def _measure(
        self,
        upcoming: NextItem,
        bisection: Bisection,
        signals: Signals,
        start: Callable[[Sequence[PlannedRun], Signals], RunOutcome],
    ) -> Sample | None:
        if signals.exit_code is not None:
            return None
        one = self._member(self._items[upcoming.item], upcoming.item, bisection)
        run = StartedRun(id=one.plan.id, item=upcoming.item)
        self._folder.runs.append(run)
        outcome = start([one], signals)
        self.planned.append(one)
        self._add(outcome)
        if not outcome.results or outcome.bug is not None:
            return None
        result = outcome.results[0]
        if result.cause is Cause.INTERRUPTED or (result.attempt is not None and result.attempt.given_up):
            return None
        if result.plan_id != run.id:  # a retry's
            self._folder.runs[-1] = run = replace(run, id=result.plan_id)
        if _is_of_machine(result.status, result.code) and not self._was_stopped_at(one, run):
            self.stopped_by = result.reason or result.code
            return None
        return sample_of(run, result, self._metric)

    def _was_stopped_at(self, one: PlannedRun, run: StartedRun) -> bool:
        """Return whether the machine ended an earlier run of the same item."""
        earlier = (before.id for before in self._folder.runs if before.item == run.item and before.id != run.id)
        records = (read_record(one.plan.workspace / RUNS / name) for name in earlier)
        return any(record is not None and _is_of_machine(record.status, record.cause) for record in records)

    def _member(self, item: BisectItem, number: int, bisection: Bisection) -> PlannedRun:
        index = 1 + sum(one.item == number for one in bisection.samples)
        study = Study(id=self._folder.id, kind=KIND, varied={item.key: item.name}, series=number + 1, index=index)
        one = copied(item.planned, new_run_id(item.planned.plan.card.name))
        image = one.plan.image
        if image is not None and index > 1:  # what is built without a cache is so once
            one = replace(one, plan=replace(one.plan, image=replace(image, no_cache=False)))
        return replace(one, plan=replace(one.plan, study=study))

    def _add(self, outcome: RunOutcome) -> None:
        self.outcome = replace(
            outcome,
            results=(*self.outcome.results, *outcome.results),
            pending=(*self.outcome.pending, *outcome.pending),
        )


def batch_start(journal: BatchLog, settings: BatchSettings, **inputs: object) -> Callable[..., RunOutcome]:
    """Return what runs a batch of a bisection; `inputs` are those of `Batch`."""

    def start(planned: Sequence[PlannedRun], signals: Signals) -> RunOutcome:
        return Batch(planned, journal=journal, settings=settings, **inputs).run(signals)  # type: ignore[arg-type]

    return start
