"""The runs of a bisection: ordinary ones, tied by a study.

The event log has what was asked for; a command that resumes it takes the numbers from the records of the study's runs.
One that was cut off has none and is run again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from statistics import median

from msgspec.structs import replace

from madlite.batch.attempts import TRANSIENT
from madlite.batch.runner import Batch, BatchSettings
from madlite.errors import ExitCode, UsageProblem
from madlite.measure.statistics import Interval
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
from madlite.study.bisect import Bisection, NextItem, Sample, Standing, change_interval, run_bisection
from madlite.study.summary import making_folder
from madlite.text import align, change, figure, shortened_middle

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
        with making_folder(study_id, workspace):
            return cls(study_id, StudyFolder.create(workspace, study_id, KIND, request))

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


class ItemSummary(Value, frozen=True):
    """One item; `change` and `interval` compare it with the good one, as parts of it: below 0 is worse."""

    name: str
    note: str
    standing: Standing
    values: tuple[float, ...]
    median: float | None
    change: float | None
    interval: Interval | None
    runs: tuple[str, ...]
    failures: tuple[str, ...]  # why its failed runs failed


class BisectSummary(Value, frozen=True):
    """A bisection; `conclusion` is "" where it was cut off.

    `first_bad` is exact where `candidates` is empty, else it is one of these, which could not be tested, or itself.
    `change` and `interval` are those of the pair, of `no change` those of the ends.  `other_changes` are the ends of
    the parts before and after the pair in which the number changes as well.
    """

    id: str
    kind: str
    metric: str
    conclusion: str
    last_good: str
    first_bad: str
    candidates: tuple[str, ...]
    failed: str
    change: float | None
    interval: Interval | None
    drifted: bool
    runs: int
    items: tuple[ItemSummary, ...]
    other_changes: tuple[tuple[str, str], ...] = ()


def summarise_bisection(study_id: str, kind: str, items: Sequence[BisectItem], bisection: Bisection) -> BisectSummary:
    """Return what a search came to, or how far it is."""
    found = bisection.found
    names = [item.name for item in items]
    change = found.change if found is not None else None
    is_pair = found is not None and found.kind in ("found", "not confirmed")
    return BisectSummary(
        id=study_id,
        kind=kind,
        metric=next((one.metric for one in bisection.samples if one.metric), ""),
        conclusion=found.kind if found is not None else "",
        last_good=names[found.last_good] if found is not None and is_pair else "",
        first_bad=names[found.first_bad] if found is not None and is_pair else "",
        candidates=tuple(names[item] for item in found.candidates) if found is not None else (),
        failed=names[found.failed] if found is not None and found.failed >= 0 else "",
        change=change.change if change is not None else None,
        interval=change_interval(change) if change is not None else None,
        drifted=bisection.drifted_at is not None,
        runs=len(bisection.samples),
        items=tuple(_item(number, item, bisection) for number, item in enumerate(items)),
        other_changes=tuple((names[one], names[other]) for one, other in bisection.other_changes),
    )


def _item(number: int, item: BisectItem, bisection: Bisection) -> ItemSummary:
    values = tuple(bisection.values(number))
    samples = [one for one in bisection.samples if one.item == number]
    change = bisection.change(0, number) if values and number and bisection.values(0) else None
    return ItemSummary(
        name=item.name,
        note=item.note,
        standing=bisection.standing.get(number, ""),
        values=values,
        median=median(values) if values else None,
        change=change.change if change is not None else None,
        interval=change_interval(change) if change is not None else None,
        runs=tuple(one.run for one in samples),
        failures=tuple(dict.fromkeys(one.reason for one in samples if one.value is None)),
    )


# The table, and the pair.


def summary_lines(summary: BisectSummary) -> Iterator[str]:
    """Yield the items that were run, and where the number changed."""
    count = f"{summary.runs} run{'s' if summary.runs != 1 else ''}"
    yield f"bisect {summary.id}: {summary.metric or 'no number'}, {count}"
    rows = [("", "ITEM", "RUNS", "MEDIAN", "CHANGE", "INTERVAL", "STANDS")]
    for number, one in enumerate(summary.items, 1):
        if one.runs:
            name = shortened_middle(f"{one.name} {one.note}".strip(), 60)
            stands = _standing_text(summary, number) + (f": {one.failures[0]}" if one.failures else "")
            row = (figure(one.median, "-"), change(one.change, "-"), _interval_text(one.interval), stands)
            rows.append((str(number), name, str(len(one.runs)), *row))
    if len(rows) > 1:
        yield from (f"  {line}" for line in align(rows))
    if summary.drifted:
        yield "  the machine drifted: from then on each item was run in turns with the good one and compared with these"
    yield f"  {_conclusion(summary)}"
    for begin, end in summary.other_changes:
        yield f"  it changes between {begin} and {end}, too: --good {begin} --bad {end} finds where"


def _standing_text(summary: BisectSummary, number: int) -> str:
    """Return how an item stands; the ends, of which nothing is known before they differ, by what they were given as."""
    standing = summary.items[number - 1].standing or "not decided"
    is_end = number in (1, len(summary.items))
    return f"the {standing} end" if is_end and summary.conclusion not in ("found", "not confirmed") else standing


def _interval_text(interval: Interval | None) -> str:
    return "-" if interval is None else f"[{change(interval.low)}, {change(interval.high)}]"


def _no_change_text(summary: BisectSummary, by: str) -> str:
    good, bad = summary.items[0], summary.items[-1]
    return (
        f"nothing to find: {good.name} (the good end) and {bad.name} (the bad end) do not differ: "
        f"{figure(good.median)} and {figure(bad.median)} by {len(good.values)} and {len(bad.values)} runs, "
        f"change {by}; other ends: --good, --bad; a smaller change: --max-repeats and --fail-on"
    )


def _end_failed_text(summary: BisectSummary) -> str:
    end = "good" if summary.failed == summary.items[0].name else "bad"
    failed = next(one for one in summary.items if one.name == summary.failed)
    why = f" ({failed.failures[0]})" if failed.failures else ""
    see = f"madlite show {failed.runs[-1]} has the cause; " if failed.runs else ""
    return (
        f"{summary.failed} has no number{why}, and it is the {end} end, by which the others are judged: "
        f"{see}--{end} ITEM names another one"
    )


def _conclusion(summary: BisectSummary) -> str:
    if summary.conclusion == "end failed":
        return _end_failed_text(summary)
    by = "" if summary.change is None else f"{change(summary.change)} {_interval_text(summary.interval)}"
    if summary.conclusion == "no change":
        return _no_change_text(summary, by)
    pair = f"last good {summary.last_good}, first bad {summary.first_bad}"
    if summary.conclusion == "found" and summary.candidates:
        names = ", ".join((*summary.candidates, summary.first_bad))
        return (
            f"last good {summary.last_good}; the first bad one is one of: {names} "
            f"({', '.join(summary.candidates)} could not be tested); change {by}"
        )
    texts = {
        "found": f"{pair}: change {by}",
        "not confirmed": f"not confirmed: {pair}, but in turns the change is {change}: the number changes little by "
        "little, or the machine does",
    }
    return texts.get(summary.conclusion, f"not finished: the same command with --resume={summary.id} goes on")
