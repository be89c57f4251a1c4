"""A batch of plans, one after another or in parallel, each with its rows; runs never started are named."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from msgspec.structs import replace

from madlite.backends.loader import Plugins
from madlite.batch.attempts import Attempts, MicroBatches, NextAttempt, Standing, exit_code
from madlite.batch.collect import collect_open
from madlite.batch.scheduler import Allocation, Scheduler, bound_plan, cpu_slots, make_jobs, open_pool, with_own_port
from madlite.errors import ExitCode, RecordError
from madlite.model import Cause, Diagnosis, Json, Result, RunPlan, Status, Value
from madlite.model.results import Attempt, StopReason
from madlite.perfcsv.rows import new_columns
from madlite.perfcsv.side_files import write_waiting
from madlite.plan.context import Options
from madlite.plan.plan_file import plan_digest
from madlite.plan.submission import PlannedRun, RetryPolicy
from madlite.run.executor import RunExecutor
from madlite.run.result_writer import RelativeChange, ResultWriter, SideFiles
from madlite.run.screen import RunOutcome, Screen
from madlite.run.stop import Signals, StopControl
from madlite.secrets import masked_value
from madlite.store.batches import BatchLog
from madlite.store.events import RequestedRun
from madlite.store.record import load_result

if TYPE_CHECKING:
    from madlite.batch.resume import Resumption
    from madlite.machine.telemetry import Settle

AUTO = 0  # so many runs at once
_MOST_THREADS = 256
_PREEMPTED_S = 3600.0  # in which a job that another one preempts surely ends: it is queued again, or is over
_ALIKE = 3  # runs that failed with the same error are no coincidence
_OF_A_POINT = frozenset(  # which one point has and the next one may not have
    cause.value for cause in (Cause.GPU_MEMORY, Cause.HOST_MEMORY, Cause.TIMEOUT, Cause.HANG, Cause.INTERRUPTED)
)

ScheduledRetry: TypeAlias = tuple[PlannedRun, NextAttempt]
"""The next attempt of a run, and when it is."""
STOPPED = StopReason(cause=Cause.INTERRUPTED, text="stopped")


class BatchSettings(Value, frozen=True):
    """How the runs of a batch go: `at_once` of them at the same time, `settle` waits before each of them.

    `retry` says after which failures a run is tried again, `micro_batches` what fitted before.  `standing` are failed
    attempts of an earlier command, by the ids of the runs that follow them.  What a `recoverable` run came to is
    written by the next command after a kill.

    No run starts any more once `max_failures` have failed, or with `ends_alike` once the first ones all failed with the
    same error before a step, which is then one of the machine or the card and not of a point.  An `exclusive` run has
    all GPUs of the machine to itself.  `bind` keeps a run to the CPUs and the memory that are near its GPUs.
    `preemption` says of a job of a cluster, which ends and may be queued again, that another one preempts it.
    """

    at_once: int = 1  # AUTO: as there are GPUs for, or cores for those without
    max_failures: int | None = None
    ends_alike: bool = False
    exclusive: bool = False
    bind: Literal["off", "numa"] = "off"
    settle: Settle | None = None
    relative_change: RelativeChange | None = None
    retry: RetryPolicy = RetryPolicy()
    micro_batches: MicroBatches | None = None
    standing: Mapping[str, Standing] = {}
    recoverable: bool = False
    preemption: Callable[[], str] | None = None

    @property
    def of_warm_ups(self) -> BatchSettings:
        """The same for runs one after another that only fill caches."""
        kept = {name: getattr(self, name) for name in ("retry", "micro_batches", "recoverable", "standing")}
        return BatchSettings(**kept)


class BatchStart(NamedTuple):
    """What a batch is run with; `resumed` is an earlier one that it goes on with, of runs that can be resumed."""

    options: Options
    plugins: Plugins
    screen: Screen
    settings: BatchSettings
    resumed: Resumption | None = None


class Batch:
    """Runs plans as `settings` has it.

    `journal` records the progress, in the event log, for the next command if this one is killed.  Runs are independent:
    each has its own stop, log and events, and is written when it ends.  `later` are runs of the same command that
    another batch runs after these.
    """

    def __init__(
        self,
        planned: Sequence[PlannedRun],
        options: Options,
        plugins: Plugins,
        screen: Screen,
        journal: BatchLog | None = None,
        settings: BatchSettings = BatchSettings(),  # noqa: B008 - frozen
        later: Sequence[PlannedRun] = (),
    ) -> None:
        self._options, self._plugins, self._screen = options, plugins, screen
        self._journal = journal or BatchLog()
        self._settings, self._later = settings, later
        of_batch = (replace(run, plan=replace(run.plan, batch=self._journal.id)) for run in planned)
        self._planned = dict(enumerate(of_batch))  # those not begun: thousands are large
        self._names = tuple(run.plan.card.name for run in planned)
        self._side_files = SideFiles(screen.warn)
        self._scheduler: Scheduler | None = None  # while they run
        self._lock = threading.Lock()  # guards all below
        self._ports: set[str] = set()  # of the running runs
        self._unshared_lease = ""  # why others may share its GPUs
        self._stop: StopReason | None = None  # of the whole batch
        self._stopped = threading.Event()  # the same, to wait for
        self._stops: dict[str, StopControl] = {}  # of the running runs
        self._results: dict[int, Result] = {}
        self._pending: list[int] = []
        self._bug: Exception | None = None
        self._failed: set[int] = set()
        self._took_s = 0.0  # by all that ended, together

    def run(self, signals: Signals | None = None) -> RunOutcome:
        """Run all of them; after INT, TERM or HUP running ones are ended and the rest is not started."""
        asked, standing = (*self._planned.values(), *self._later), self._settings.standing
        self._journal.request(requested_run(run, standing.get(run.plan.id)) for run in asked)
        with ExitStack() as stack:
            stack.callback(self._side_files.close)
            signals = signals or stack.enter_context(Signals())
            stack.enter_context(signals.passing_to(self.stop))
            signals.watch_over(self._work_all)
            code = signals.exit_code
        return self._outcome(code)

    def stop(self, reason: StopReason = STOPPED) -> None:
        """End all running runs and start no other; safe from any thread.  A second call kills at once."""
        with self._lock:
            self._stop = self._stop or reason
            self._stopped.set()
            stops, scheduler = [*self._stops.values()], self._scheduler
        for stop in stops:
            stop.request(reason)
        if scheduler is not None:
            scheduler.stop()

    def _work_all(self) -> None:
        """Run as many threads as runs at once; this one is the first."""
        raised: list[BaseException] = []

        def work() -> None:
            try:
                self._work(scheduler)
            except BaseException as error:  # noqa: BLE001 - raised below, in the thread that waits
                raised.append(error)
                scheduler.stop()

        with self._scheduling() as (scheduler, at_once):
            threads = [threading.Thread(target=work, name="madlite-run") for _ in range(1, at_once)]
            for thread in threads:
                thread.start()
            work()
            for thread in threads:
                thread.join()
        if raised:
            raise raised[0]

    @contextmanager
    def _scheduling(self) -> Iterator[tuple[Scheduler, int]]:
        """Yield what says which run starts when, and how many threads run them; GPUs are given back after the block."""
        settings = self._settings
        planned, environ = tuple(self._planned.values()), self._options.environ
        jobs = make_jobs(planned, self._plugins, environ, settings.at_once, settings.exclusive)
        with open_pool(jobs, planned, environ, settings.at_once, self._stopped) as pool:
            del planned
            if pool is not None and pool.problem:
                self._unshared_lease = pool.problem
                self._screen.warn(f"another user may share the GPUs, and numbers are suspect: {pool.problem}")
            for gpu, text in (pool.foreign() if pool is not None else {}).items():
                self._screen.warn(f"GPU {gpu} is left alone: {text}")
            slots, in_order = settings.at_once or cpu_slots(), settings.at_once == 1
            on_wait = self._screen.waiting
            scheduler = Scheduler(jobs, pool, slots, in_order=in_order, on_wait=on_wait)
            with self._lock:
                self._scheduler, is_over = scheduler, self._stop is not None
            if is_over:
                scheduler.stop()
            with_gpus = len(pool.every) if pool is not None and settings.at_once == AUTO else 0
            yield scheduler, max(1, min(slots + with_gpus, len(jobs), _MOST_THREADS))

    def _work(self, scheduler: Scheduler) -> None:
        while (start := scheduler.take()) is not None:
            try:
                self._attempt_all(scheduler, start)
            finally:
                scheduler.end(start)
            self._after(scheduler)

    def _attempt_all(self, scheduler: Scheduler, start: Allocation) -> None:
        """Run the attempts of a run, one after another, until one of them stands."""
        position, run_id, settings = start.job.position, start.job.run_id, self._settings
        before = settings.standing.get(run_id)
        attempts = Attempts(run_id, settings.retry, self._plugins, before, settings.micro_batches)
        planned = attempts.first(self._planned.pop(position))
        self._journal.begin(run_id)
        again: Allocation | None = start
        while again is not None:
            failed, following = self._attempt(planned, attempts, scheduler, again)
            if following is None:
                return
            planned, when = following
            again = scheduler.try_again(again, planned.plan.id, str(planned.plan.folder), when.wait_s)
        self._give_up(position, failed, attempts, scheduler)

    def _attempt(
        self, planned: PlannedRun, attempts: Attempts, scheduler: Scheduler, start: Allocation
    ) -> tuple[RunPlan, ScheduledRetry | None]:
        """Run one attempt of a run on the GPUs that it gets, and with a port that no other run of the batch has.

        Return its plan, and the attempt that follows it.
        """
        position, own = start.job.position, self._settings
        plan = bound_plan(planned.plan, start, self._options.environ, numa=own.bind == "numa")
        if own.at_once != 1:
            with self._lock:
                plan = with_own_port(plan, self._ports)
        self._screen.started(plan, position + 1, len(self._names))
        try:
            result, saved, bug, following = self._run(replace(planned, plan=plan), planned, attempts, scheduler, start)
        finally:
            with self._lock:
                self._ports.discard(str(plan.env.get("MASTER_PORT")))
        if following is None:
            self._finish(position, plan, attempts, result, saved=saved, bug=bug)
            self._count(scheduler, position, result.status)
            if self._settings.ends_alike:
                self._end_alike(scheduler)
        else:
            again, when = following
            attempt = replace(result.attempt or Attempt(), next=again.plan.id)  # as its record will have it
            self._plugins.notify("madlite_run_finished", plan=plan, result=replace(result, attempt=attempt))
            self._screen.retrying(plan, result, when.text)
        return plan, following

    def _give_up(self, position: int, plan: RunPlan, attempts: Attempts, scheduler: Scheduler) -> None:
        """Write the rows of the attempt that is set aside after all: its next one does not start any more."""
        failed = attempts.failed
        assert failed is not None  # noqa: S101 - who waits for the next attempt has set one aside
        why = f"not tried again: {'the command was ended' if self._stop is not None else 'no run starts any more'}"
        attempt = replace(failed.result.attempt or Attempt(), given_up=True)
        saved = self._finish_failed(attempts, why=why)
        result = replace(failed.result, attempt=attempt, findings=(*failed.result.findings, why))
        self._finish(position, plan, attempts, result, saved=saved)
        self._count(scheduler, position, result.status)

    def _finish_failed(self, attempts: Attempts, why: str = "") -> bool:
        """Write what is left to write of the attempt that is set aside, if one is; return whether that is done.

        It is its record, and rows where no other one took its place, as `why` says then.
        """
        failed, attempts.failed = attempts.failed, None
        options = self._options
        if failed is None or failed.folder is None:
            return True
        with closing(failed.folder) as folder:
            if why and not options.rows:  # `collect` does
                return True
            try:
                found = load_result(folder.path)
                record = found.record
                record = replace(record, findings=(*record.findings, why)) if why else replace(record, rows=None)
                output, begin = options.output_target or options.output, new_columns(options.contract)
                done = collect_open(replace(found, record=record), folder, options.workspace, output, begin)
            except (RecordError, OSError) as problem:
                self._screen.warn(f"{folder.path.name}: {problem}")
                return False
        waiting = write_waiting(options.workspace) if options.rows else ()
        for text in (*([done.message] if done.failed else []), *done.warnings, *waiting):
            self._screen.warn(text)
        return not done.failed

    def _finish(
        self,
        position: int,
        plan: RunPlan,
        attempts: Attempts,
        result: Result,
        *,
        saved: bool,
        bug: Exception | None = None,
    ) -> None:
        """Say that a run has ended, of which `attempts` were made, and note its result."""
        if saved:
            self._journal.end(attempts.run_id)
        self._screen.finished(plan, result)
        self._plugins.notify("madlite_run_finished", plan=plan, result=result)
        with self._lock:
            self._results[position] = _kept(result)
            self._pending += [] if saved else [position]
            self._bug = self._bug or bug
            self._took_s += result.durations_s.get("total", 0.0)

    def _after(self, scheduler: Scheduler) -> None:
        """Show how far the batch is where runs go on at the same time."""
        with self._lock:
            ended, took_s = len(self._results), self._took_s
        if ended and not scheduler.is_over and self._settings.at_once != 1 and len(self._names) > 1:
            self._screen.overall(ended, len(self._names), scheduler.left_s(took_s / ended))

    @contextmanager
    def _stoppable(self, run: RunExecutor) -> Iterator[None]:
        """Let a run be stopped from outside; at once where the batch was stopped before."""
        run_id = run.plan.id
        with self._lock:
            self._stops[run_id] = run.stop
            reason = self._stop
        if reason is not None:
            run.stop.request(reason)
        try:
            yield
        finally:
            with self._lock:
                del self._stops[run_id]

    def _run(
        self, planned_run: PlannedRun, planned: PlannedRun, attempts: Attempts, scheduler: Scheduler, start: Allocation
    ) -> tuple[Result, bool, Exception | None, ScheduledRetry | None]:
        """Run one, `planned` without its GPUs, to its end and write it; return also a bug, which ends the batch.

        What is tried again is set aside, and the next attempt returned.
        """
        options, settings, screen = self._options, self._settings, self._screen
        bug: Exception | None = None
        retries = settings.retry.is_active
        recoverable = settings.recoverable or retries
        executor = RunExecutor(planned_run, options, self._plugins, screen, time.monotonic, settings.settle)
        with executor as run, self._stoppable(run):
            run.on_open = partial(scheduler.note, start, planned_run.plan.id, str(planned_run.plan.folder))
            run.on_open("")
            run.unshared_lease = self._unshared_lease if start.leased else ""
            run.on_end = (lambda _: scheduler.beside(start)) if retries else partial(self._ended, scheduler, start)
            change, side_files = settings.relative_change, self._side_files
            writer = ResultWriter(planned_run, options, screen, run.mask, change, side_files, recoverable=recoverable)
            try:
                run.begin_entry = writer.begin_entry(attempts.attempt_of(planned_run))
                run.before = attempts.checkpointed(planned_run)
                ended = self._named(run.run())
                steps = run.state.monitor.steps  # of the training that it ended with
                result = attempts.annotated(planned_run, ended, steps)
                is_last = scheduler.is_over or self._stopped.is_set() or run.folder is None
                following = None if is_last else attempts.next(planned, result)
                if following is not None and (problem := writer.write_result(result, steps, run.folder)):
                    screen.warn(f"{planned.plan.card.name} is not tried again: {problem}")
                    following = None
                result = result if following is not None else writer.write(result, steps, run.folder)
            except Exception as error:  # noqa: BLE001 - told by the caller, once the row and the rest are safe
                bug, following = error, None
                result = writer.write(run.broken(error), run.state.monitor.steps, run.folder)
            run.screen.ended(result, "tried again" if following is not None else "")
            self._finish_failed(attempts)
            if following is not None and (folder := run.folder) is not None:
                run.folder = None  # it stays open and locked
                attempts.set_aside(run.plan, result, folder, following[0])
                if self._settings.preemption is not None and result.cause is Cause.PREEMPTED:
                    following = following[0], replace(following[1], wait_s=_PREEMPTED_S)
            return result, writer.saved, bug, following

    def _named(self, result: Result) -> Result:
        """Return a result with the preemption of its job as the cause of its failure, where there is one."""
        preemption = self._settings.preemption
        why = preemption() if preemption is not None and result.status is Status.FAILURE else ""
        if not why:
            return result
        hint = "--retry N tries a run again whose job is queued again"
        found = Diagnosis(cause=Cause.PREEMPTED.value, line=result.evidence, hint=hint, source="job")
        return replace(result, cause=Cause.PREEMPTED, reason=f"{why}; {result.reason}", diagnosis=found)

    def _ended(self, scheduler: Scheduler, start: Allocation, status: Status) -> tuple[str, ...]:
        """Give back what a run had, once it is counted: one too many that failed leaves its GPUs to no other."""
        self._count(scheduler, start.job.position, status)
        return scheduler.end(start)

    def _count(self, scheduler: Scheduler, position: int, status: Status) -> None:
        """Count a run that failed, and start no other one after too many of them."""
        with self._lock:
            self._failed |= {position} if status is Status.FAILURE else set()
            too_many = self._settings.max_failures is not None and len(self._failed) >= self._settings.max_failures
            is_over = too_many or self._bug is not None
        if is_over:
            scheduler.stop()

    def _end_alike(self, scheduler: Scheduler) -> None:
        """Start no other run where the first ones, of one card, all failed with the same error before a step."""
        with self._lock:
            results, left = [*self._results.values()], len(self._names) - len(self._results)
        first = results[0]
        if len(results) < _ALIKE or not left or scheduler.is_over or first.code in _OF_A_POINT:
            return
        if len(set(self._names)) > 1:  # the error is possibly one card's alone
            return
        errors = {(result.status, result.code, result.evidence, result.steps) for result in results}
        if errors == {(Status.FAILURE, first.code, first.evidence, 0)} and first.evidence:
            scheduler.stop()
            self._screen.warn(
                f"the first {len(results)} runs failed with the same error before a step, so no other one starts"
                f" [{first.code}]: {first.evidence.strip()}; --keep-going starts them all the same"
            )

    def _outcome(self, code: ExitCode | None) -> RunOutcome:
        results = tuple(self._results[position] for position in sorted(self._results))
        names = self._names
        return RunOutcome(
            results=results,
            not_started=tuple(name for position, name in enumerate(names) if position not in self._results),
            exit_code=code or (ExitCode.RUN_FAILED if self._pending else exit_code(results)),
            bug=self._bug,
            pending=tuple(names[position] for position in sorted(self._pending)),
        )


class BatchRuns:
    """The runs of a command, of a study or not; after `run`, what they came to: data, problems and lines to print.

    `study_id` is "" without a study.
    """

    def __init__(self, planned: Sequence[PlannedRun], journal: BatchLog, study_id: str = "") -> None:
        self._journal = journal
        self.planned, self.study_id = planned, study_id
        self.study: Json = None
        self.problems: tuple[str, ...] = ()
        self.lines: list[str] = []

    @property
    def every(self) -> Sequence[PlannedRun]:
        """The runs with the warm-ups."""
        return self.planned

    def run(self, start: BatchStart) -> RunOutcome:
        """Run all of them, of an earlier batch those that are not finished."""
        options, plugins, screen, settings, resumed = start
        left = resumed.left(self.planned) if resumed is not None else self.planned
        outcome = Batch(left, options, plugins, screen, journal=self._journal, settings=settings).run()
        return resumed.whole(self.planned, outcome) if resumed is not None else outcome


_IN_RECORD = Result(plan_id="", status=Status.SKIPPED)  # whose fields are empty


def _kept(result: Result) -> Result:
    """Return what is needed of a result once it is written; of thousands the rest, which the records have, is large."""
    return replace(result, provenance=_IN_RECORD.provenance, config=_IN_RECORD.config, checks=(), compute=None)


def series_of(planned: Sequence[PlannedRun]) -> tuple[str, ...]:
    """Return the digests of the first runs of a study's series, in their order; "" where it must not start."""
    firsts = {
        run.plan.study.series or 0: "" if run.plan.blocked is not None else plan_digest(run.plan)
        for run in planned
        if run.plan.study is not None and run.plan.study.index == 1
    }
    return tuple(firsts[number] for number in sorted(firsts))


def requested_run(planned_run: PlannedRun, before: Standing | None = None) -> RequestedRun:
    """Return a run as the event log lists it, with the failed attempt `before` it."""
    plan = planned_run.plan
    varied = plan.study.varied if plan.study is not None else {}
    masked = {key: masked_value(key, value) for key, value in varied.items()}
    after = before.result.plan_id if before is not None else ""
    return RequestedRun(id=plan.id, card=plan.card.name, digest=plan_digest(plan), varied=masked, after=after)
