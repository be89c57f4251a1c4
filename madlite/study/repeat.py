"""`--repeat N`: each selected run N times, one round after the other, so that a drift of the machine meets them all.

The runs of a card, variant and image are a series.  Its caches of compiled and tuned kernels are its own: filled by one
warm-up that is no result, or with `cold` empty at the start of each run.  Runs that go on at the same time on several
machines have the user's caches, which nothing of the study fills.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta, timezone
from functools import partial
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from madlite.batch.resume import Resumption
from madlite.batch.runner import Batch, BatchSettings
from madlite.errors import ExitCode
from madlite.model import Status, Study, Value
from madlite.plan.caches import cache_folders, with_caches
from madlite.run.from_plan import copied
from madlite.run.screen import PlannedRun, RunOutcome, Screen, pair
from madlite.run.stop import Signals
from madlite.secrets import masked_json
from madlite.store.folder import new_run_id
from madlite.store.study import StudyFolder, caches_path
from madlite.study.summary import StudySummary, making_folder, samples_of, summarise
from madlite.study.sweep import point_text

if TYPE_CHECKING:
    from madlite.backends.loader import Plugins
    from madlite.plan.context import Options
    from madlite.store.batches import BatchLog

KIND = "repeat"


class Repeat(Value, frozen=True):
    """The runs of a repeat in their order: warm-ups, one of each series, and then the runs that are results."""

    id: str
    workspace: Path
    warm_ups: tuple[PlannedRun, ...]
    runs: tuple[PlannedRun, ...]

    @property
    def kind(self) -> str:
        """What the study does: the points of a sweep can be repeated, too."""
        study = self.runs[0].plan.study if self.runs else None
        return study.kind if study is not None else KIND

    @property
    def firsts(self) -> tuple[PlannedRun, ...]:
        """The first run of each series."""
        return tuple(one for one in self.runs if one.plan.study is not None and one.plan.study.index == 1)


def plan_repeat(
    planned: Sequence[PlannedRun], study_id: str, times: int, *, cold: bool = False, own_caches: bool = True
) -> Repeat:
    """Return each plan so many `times`, one round of all after the other; one that must not start comes once.

    Without `own_caches` the runs have the user's, and there is no warm-up.
    """
    runs = list(enumerate(planned, 1))
    ids = later_ids()
    startable = [(number, one) for number, one in runs if one.plan.blocked is None]
    has_warm_ups = own_caches and not cold

    def make(number: int, one: PlannedRun, index: int | None) -> PlannedRun:
        study = Study(
            id=study_id,
            kind=one.plan.study.kind if one.plan.study is not None else KIND,
            varied=one.plan.study.varied if one.plan.study is not None else {},
            series=number,
            index=index,
            count=None if index is None else times,
            warm_up=index is None,
            caches="" if not own_caches else "cold" if cold or index is None else "warm",
        )
        return _member(one, study, ids, is_first=index == (None if has_warm_ups else 1))

    rounds = [[make(number, one, 1) for number, one in runs]]
    rounds += [[make(number, one, index) for number, one in startable] for index in range(2, times + 1)]
    return Repeat(
        id=study_id,
        workspace=planned[0].plan.workspace if planned else Path(),
        warm_ups=tuple(make(number, one, None) for number, one in startable) if has_warm_ups else (),
        runs=tuple(chain.from_iterable(rounds)),
    )


def later_ids() -> Iterator[Callable[[str], str]]:
    """Yield what makes the ids of runs, each a second later than the last: ids sort as their runs start."""
    began = datetime.now(timezone.utc)
    return (partial(new_run_id, now=began + timedelta(seconds=second)) for second in count(1))


def _member(one: PlannedRun, study: Study, ids: Iterator[Callable[[str], str]], *, is_first: bool) -> PlannedRun:
    """Return a run of the study; an image that is to be built without a cache is, by the first run of its series."""
    if study.index != 1:
        name = one.plan.card.name
        one = copied(one, next(ids)(f"warm-up {name}" if study.warm_up else name))
    plan = one.plan
    if plan.blocked is not None:
        return replace(one, plan=replace(plan, study=replace(study, count=1, caches="")))
    if plan.image is not None and not is_first:
        plan = replace(plan, image=replace(plan.image, no_cache=False))
    plan = replace(plan, study=study, writes_row=plan.writes_row and not study.warm_up)
    if not study.caches:
        return replace(one, plan=plan)
    return replace(one, plan=with_caches(plan, caches_path(plan.workspace, study.id, _caches_name(study))))


def _caches_name(study: Study) -> str:
    """Return the name of the caches of a run: its series' own, or with cold ones the run's."""
    is_shared = study.warm_up or study.caches == "warm"
    return f"series-{study.series}" if is_shared else f"series-{study.series}-run-{study.index}"


class RepeatOutcome(Value, frozen=True):
    """What a repeat came to: its runs' outcome, its statistics, and what could not be written or removed."""

    runs: RunOutcome
    summary: StudySummary
    problems: tuple[str, ...] = ()


def run_repeat(
    repeat: Repeat,
    options: Options,
    plugins: Plugins,
    screen: Screen,
    journal: BatchLog,
    settings: BatchSettings = BatchSettings(),  # noqa: B008 - frozen
    resumed: Resumption | None = None,
) -> RepeatOutcome:
    """Run the warm-ups, and if none failed the runs; their caches are gone when this returns.

    Of a study that is `resumed` run those that are not finished, and warm-ups where they have to be again.

    Raises:
        UsageProblem: the folder of the study cannot be made; nothing has run.
    """
    before = resumed or Resumption()
    runs = before.left(repeat.runs)
    folder, warm_ups = _open_folder(repeat, before, is_resumed=resumed is not None)
    problems = []
    try:
        with Signals() as signals:
            warm = Batch(
                warm_ups,
                options,
                plugins,
                screen,
                journal=journal,
                settings=settings.of_warm_ups,
                later=runs,
            ).run(signals)
            startable = _startable(runs, warm_ups, warm) if signals.exit_code is None else ()
            started = {one.plan.id for one in startable}
            left_out = [one for one in runs if one.plan.id not in started]
            if startable:
                batch = Batch(startable, options, plugins, screen, journal=journal, settings=settings, later=left_out)
                outcome = batch.run(signals)
            else:
                outcome = replace(warm, results=(), not_started=())
            outcome = _without(outcome, left_out)
        outcome = before.whole(repeat.runs, outcome)
        ended = pair(warm_ups, warm.results)
        failed = [
            warm_up_text(one.plan.card.name, one.plan.study)
            for one, result in ended
            if result and result.status is Status.FAILURE
        ]
        samples = samples_of(before.with_ids(repeat.runs), outcome.results)
        summary = summarise(repeat.id, repeat.kind, samples, failed)
        problems.append(folder.write_summary(_summary_text(repeat, summary, options)))
    finally:
        problems.append(folder.close())
    return RepeatOutcome(runs=outcome, summary=summary, problems=tuple(filter(None, problems)))


def _startable(runs: Sequence[PlannedRun], warm_ups: Sequence[PlannedRun], warm: RunOutcome) -> Sequence[PlannedRun]:
    """Return the runs that follow the warm-ups: one that failed ends all, but only its own point of a sweep."""
    if warm.bug is not None:
        return ()
    if warm.exit_code is ExitCode.OK:
        return runs
    ended = pair(warm_ups, warm.results)
    failed = {_series(one) for one, result in ended if result is None or result.status is Status.FAILURE}
    return [one for one in runs if one.plan.study is not None and one.plan.study.varied and _series(one) not in failed]


def _series(one: PlannedRun) -> int | None:
    return one.plan.study.series if one.plan.study is not None else None


def _without(outcome: RunOutcome, left_out: Sequence[PlannedRun]) -> RunOutcome:
    """Return an outcome with runs that were not started after a failed warm-up."""
    if not left_out:
        return outcome
    is_good = outcome.exit_code in (ExitCode.OK, ExitCode.BUILD_FAILED) and bool(outcome.results)
    code = ExitCode.RUN_FAILED if is_good else outcome.exit_code
    names = (one.plan.card.name for one in left_out)
    return replace(outcome, not_started=(*outcome.not_started, *names), exit_code=code)


def warm_up_text(card: str, study: Study | None) -> str:
    """Return the card of a warm-up, with the values of its point in a sweep."""
    varied = study.varied if study is not None else {}
    return card + (f" ({point_text(varied)})" if varied else "")


def _open_folder(repeat: Repeat, before: Resumption, *, is_resumed: bool) -> tuple[StudyFolder, tuple[PlannedRun, ...]]:
    """Return the folder of the study with its caches, and the warm-ups that fill those which are not filled."""
    left = before.left(repeat.runs)
    series = {one.plan.study.series for one in left if one.plan.study is not None}
    with making_folder(repeat.id, repeat.workspace):
        folder = (
            StudyFolder.reopen(repeat.workspace, repeat.id, make=True)
            if is_resumed
            else StudyFolder.create(repeat.workspace, repeat.id)
        )
        filled = {
            study.series
            for one in repeat.warm_ups
            if (study := one.plan.study) is not None
            and folder.has_caches(_caches_name(study))
            and (result := before.finished.get(one.plan.id)) is not None
            and result.status is Status.SUCCESS
        }
        for one in (*repeat.warm_ups, *left):
            study = one.plan.study
            if study is not None and one.plan.blocked is None:
                empty = study.series not in filled and (study.warm_up or study.caches == "cold")
                folder.make_caches(_caches_name(study), cache_folders(one.plan), empty=empty)
    wanted = (one for one in repeat.warm_ups if one.plan.study is not None and one.plan.study.series in series - filled)
    return folder, tuple(wanted)


def _summary_text(repeat: Repeat, summary: StudySummary, options: Options) -> str:
    from madlite.run.executor import secrets_for

    secrets = [text for one in repeat.firsts for text in secrets_for(one, options.environ)]
    return masked_json(summary, secrets)
