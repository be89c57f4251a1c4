"""`--resume`: what of a batch that was cut off or interrupted is finished, and what is run again.

A run is finished where it has a row or a result: also a failure, for that is its result.  One that was interrupted, cut
off or never begun is run again, also one whose next attempt was: the row of its failed attempt stays.  With `--failed`
a failure is run again, too.  Runs are found by their plans: of equal ones as many are finished as there were.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path

from msgspec.structs import replace

from madlite.batch.attempts import Standing, exit_code
from madlite.batch.collect import attempts_of, replaced_by, result_of_rows
from madlite.batch.leftovers import appended_rows, clean_run, find_incomplete
from madlite.batch.runner import series_of
from madlite.errors import ExitCode, RecordError, UsageProblem
from madlite.model import Cause, Result, RunPlan, Status, Value
from madlite.model.results import Attempt
from madlite.perfcsv.recorded import are_in_file
from madlite.plan.inputs import RUNS
from madlite.plan.plan_file import plan_digest
from madlite.plan.submission import PlannedRun
from madlite.run.from_plan import inputs_of, local_digest
from madlite.run.screen import RunOutcome, pair
from madlite.store.batches import LoggedBatch
from madlite.store.events import EventLog, RequestedRun, is_own, now
from madlite.store.folder import RECORD, RESULT, RunEntry, RunFolder, exists, is_uncollected, read_run, uncollected
from madlite.store.record import load_result, read_record, result_of


class Resumption(Value, frozen=True):
    """What of a command's runs is finished: by the ids of their plans, the results, and the runs as they were asked.

    `standing` are attempts that failed or were interrupted and are to be followed by another one, by the id of that.
    `notes` say what is otherwise now than when the batch began.
    """

    finished: dict[str, Result] = {}
    requested: dict[str, RequestedRun] = {}
    standing: dict[str, Standing] = {}
    notes: tuple[str, ...] = ()

    def with_ids(self, planned: Sequence[PlannedRun]) -> list[PlannedRun]:
        """Return the runs, those that are finished under the id of the run that is."""
        return [_as_run(run, self.finished.get(run.plan.id)) for run in planned]

    def left(self, planned: Sequence[PlannedRun]) -> list[PlannedRun]:
        """Return the runs that are not finished."""
        return [run for run in planned if run.plan.id not in self.finished]

    def whole(self, planned: Sequence[PlannedRun], outcome: RunOutcome) -> RunOutcome:
        """Return the outcome of all runs, of that of those which were left."""
        every = (*self.finished.values(), *outcome.results)
        results = tuple(result for _, result in pair(self.with_ids(planned), every) if result is not None)
        code = outcome.exit_code
        if code in (ExitCode.OK, ExitCode.BUILD_FAILED):
            code = exit_code(results)
        return replace(outcome, results=results, exit_code=code)


def _as_run(run: PlannedRun, result: Result | None) -> PlannedRun:
    if result is None:
        return run
    folder = run.plan.workspace / RUNS / result.plan_id
    return replace(run, plan=replace(run.plan, id=result.plan_id, folder=folder))


def find_standing(batch: LoggedBatch, workspace: Path) -> dict[str, Path]:
    """Return the failed attempts of a batch that were to be followed by another one, by the run that they are of."""
    asked = {requested.id for requested in batch.requested}
    found: dict[str, Path] = {}
    for folder in uncollected(workspace):
        following = read_run(folder).next
        if not following or replaced_by(folder):
            continue
        try:
            attempt = load_result(folder).record.attempt
        except RecordError:  # `collect` reports it
            continue
        names = (folder.name, following, *(failed.run for failed in (attempt.earlier if attempt else ())))
        found |= {name: folder for name in names if name in asked}
    return found


def standing_before(plan: RunPlan) -> dict[str, Standing]:
    """Return the failed attempt that a run takes the place of, by the run's id; none where this is the first one."""
    for folder in uncollected(plan.workspace):
        if read_run(folder).next == plan.id:
            found = _adopt(folder)
            return {plan.id: found} if found is not None else {}
    return failed_before(plan)


def failed_before(plan: RunPlan) -> dict[str, Standing]:
    """Return the failed run that a command asked a run to be the next attempt of, by the run's id; none without one."""
    runs = plan.workspace / RUNS
    name = EventLog.read(runs).failed_before(plan.id)
    found = last_failure(runs / name) if name else None
    return {plan.id: found} if found is not None else {}


def is_finished(batch: LoggedBatch, workspace: Path) -> bool:
    """Return whether nothing of a batch is to be run again, and all of it has rows."""
    return not batch.is_left and all(_result(requested, batch, workspace) for requested in batch.requested)


def resume(
    batch: LoggedBatch, planned: Sequence[PlannedRun], workspace: Path, environ: Mapping[str, str]
) -> Resumption:
    """Return which of the planned runs are finished; what their batch left unfinished of the others is cleaned.

    Raises:
        UsageProblem: failed runs are to be run again, and there are others than those of the batch.
    """
    standing = find_standing(batch, workspace)
    results = {requested.id: _result(requested, batch, workspace) for requested in batch.requested}
    left: dict[tuple[str, bool], deque[RequestedRun]] = defaultdict(deque)  # by their digest, and whether they ended
    for asked in batch.requested:
        left[asked.digest, results[asked.id] is not None].append(asked)
    digests = [plan_digest(run.plan) for run in planned]
    never = _kept_from_starting(batch, digests, workspace) if batch.failed else {}
    finished: dict[str, Result] = {}
    requested: dict[str, RequestedRun] = {}
    adopted: dict[str, Standing] = {}
    for run, digest in zip(planned, digests, strict=True):
        if (ended := left[digest, True]) and (result := results[ended[0].id]) is not None:
            finished[run.plan.id], requested[run.plan.id] = result, ended.popleft()
        elif again := left[digest, False] or never.get(run.plan.card.name, deque()):
            asked = again.popleft()
            folder = standing.get(asked.id)
            taken = _adopt(folder) if folder is not None else None
            earlier = (last_failure(workspace / RUNS / name) for name in (asked.id, asked.after) if name)
            if attempt := taken or next(filter(None, earlier), None):
                adopted[run.plan.id] = attempt
        elif batch.failed:
            batch.close()
            what = f"--failed: {run.plan.card.name} is planned otherwise now than in the batch of {batch.started[:19]}"
            raise UsageProblem(what, f"its options, card or machine changed: madlite run --tags {run.plan.card.name}")
    cut_off = {requested.id for requested in batch.requested if results[requested.id] is None}
    _clean(workspace, cut_off | {read_run(folder).next for folder in standing.values()})
    notes = tuple(_changes(batch, planned, finished, environ))
    return Resumption(finished=finished, requested=requested, standing=adopted, notes=notes)


def _kept_from_starting(batch: LoggedBatch, planned: Sequence[str], workspace: Path) -> dict[str, deque[RequestedRun]]:
    """Return by their cards the failed runs of a batch that never began: what kept them may be gone."""
    found: dict[str, deque[RequestedRun]] = defaultdict(deque)
    for asked in batch.requested:
        failure = last_failure(workspace / RUNS / asked.id) if asked.digest not in planned else None
        if failure is not None and "run" not in failure.result.durations_s:
            found[asked.card].append(asked)
    return found


def last_failure(first: Path) -> Standing | None:
    """Return the last attempt of a run where it failed and has its row."""
    folder = next(reversed(attempts_of(first)), None)
    record = read_record(folder) if folder is not None and is_own(folder) else None
    if record is None or record.status is not Status.FAILURE:
        return None
    return Standing(result=result_of(record), variant=record.variant)


def refuse_other_study(batch: LoggedBatch, planned: Sequence[PlannedRun]) -> None:
    """Keep runs of another configuration out of the series of the study that a batch is of; more series may follow.

    Raises:
        UsageProblem: a series is of other runs, or missing.
    """
    now = series_of(planned)
    pairs = zip(batch.series, now, strict=False)
    differ = any(before and this and before != this for before, this in pairs)
    if batch.study and (differ or len(now) < len(batch.series)):
        raise UsageProblem(
            f"--resume: study {batch.study}, the last unfinished batch, was begun with other cards or options",
            "madlite run --resume goes on with it by its own command; without --resume a new study begins",
        )


def _result(asked: RequestedRun, batch: LoggedBatch, workspace: Path) -> Result | None:
    """Return what a run of a batch came to, of its last attempt; None where it is to be run again."""
    last = next(reversed(attempts_of(workspace / RUNS / asked.id)), None) if "/" not in asked.id else None
    if last is not None and (found := _stored_result(last, workspace)) is not None:
        attempt = found.attempt or Attempt()
        if not attempt.next:
            is_again = batch.failed and found.status is Status.FAILURE
            return None if is_again or found.cause is Cause.INTERRUPTED or attempt.given_up else found
    if asked.id in batch.ended:
        why = "it ended before, and its record is gone"
        return Result(plan_id=asked.id, status=Status.SKIPPED, reason=why)
    return None


def _stored_result(folder: Path, workspace: Path) -> Result | None:
    if not is_own(folder):
        return None
    record = read_record(folder)
    if record is not None:
        return result_of(record)
    journal = read_run(folder)
    if journal.cleaned is not None:
        return None
    if is_uncollected(folder):
        try:
            return None if journal.next else result_of(load_result(folder).record)
        except RecordError:
            return None
    rows = journal.rows
    if rows is None or not rows.cells or not are_in_file(rows, workspace, appended_rows(workspace)):
        return None
    return result_of_rows(rows, folder.name)


def _clean(workspace: Path, names: Iterable[str]) -> None:
    """Mark what was cut off and is run again: it is not reported any more."""
    wanted = set(names)
    for run in find_incomplete(workspace):
        if run.folder.name in wanted:
            with suppress(OSError):  # the next command reports it once more
                clean_run(run.folder, run.row)


def follow_cut_off(first: Path, run_id: str) -> Mapping[str, Standing]:
    """Let another run take the place of one that was cut off, whose first attempt has this folder.

    Return what it came to, by the id of the other; one without a result was preempted, or its node was lost.

    Raises:
        UsageProblem: it goes on, or has its row or its number.
    """
    last = next(reversed(attempts_of(first)), None)
    if last is None:
        return {}
    has_result = exists(last / RESULT)
    try:
        folder = RunFolder.reopen(last)
    except BlockingIOError:
        raise UsageProblem(f"run {last.name} goes on: it cannot be tried again meanwhile", "madlite runs") from None
    except OSError as error:
        raise UsageProblem(f"run {last.name} cannot be tried again: {error.strerror or error}") from error
    with closing(folder):
        if exists(last / RECORD):
            raise UsageProblem(f"run {last.name} has its row: it is not tried again", f"madlite show {last.name}")
        before = Standing(Result(plan_id=last.name, status=Status.FAILURE, cause=Cause.PREEMPTED), None)
        if has_result:
            with suppress(RecordError):
                record = load_result(last).record
                before = Standing(result_of(record), record.variant)
        if before.result.status is not Status.FAILURE:
            raise UsageProblem(f"run {last.name} has its result: it is not tried again", f"madlite show {last.name}")
        folder.note(RunEntry(at=now(), next=run_id))
    if not has_result:
        _clean(first.parent.parent, [last.name])
    return {run_id: before}


def _changes(
    batch: LoggedBatch, planned: Sequence[PlannedRun], finished: Mapping[str, Result], environ: Mapping[str, str]
) -> Iterator[str]:
    """Yield which inputs and images are others now than when the batch began; its finished runs stay what they are."""
    now = inputs_of(run.plan for run in planned)
    for name, text in batch.inputs.items():
        if name in now and now[name] != text:
            yield f"{name} has changed since the batch began: its finished runs are not repeated"
    seen = set[str]()
    for run in planned:
        result, image = finished.get(run.plan.id), run.plan.image
        if result is None or image is None or image.ref in seen or not result.image.digest:
            continue
        seen.add(image.ref)
        digest = local_digest(run.plan, environ)
        if digest and digest != result.image.digest:
            yield f"image {image.ref} is {digest} now, and was {result.image.digest} in run {result.plan_id}"


def _adopt(folder: Path) -> Standing | None:
    """Take a failed attempt over, for the run that follows it; None where another command has it."""
    try:
        run_folder = RunFolder.reopen(folder)
    except OSError:
        return None
    try:
        record = load_result(folder).record
    except RecordError:
        run_folder.close()
        return None
    return Standing(result=result_of(record), variant=record.variant, folder=run_folder)
