"""A batch of plans, one after another or in parallel, each with its rows; runs never started are named."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from msgspec.structs import replace

from madlite.backends.loader import Plugins
from madlite.errors import ExitCode, RecordError
from madlite.measure.steps import Steps
from madlite.model import Cause, Result, Row, RunPlan, Status, Value
from madlite.plan.context import Options
from madlite.plan.plan_file import plan_digest
from madlite.results.batch_journal import BatchJournal, RequestedRun
from madlite.results.header import limited_cells, new_columns, plain_cells, truncation_text
from madlite.results.integrity import Integrity
from madlite.results.pending import rows_path
from madlite.results.perfcsv import append_rows, left_out_text, save_rows
from madlite.results.record import Record, make_record, record_json, step_lines
from madlite.results.rows import build_rows, masked_rows
from madlite.results.sidefiles import make_entries, write_side_files
from madlite.results.stored import RunResult, result_text
from madlite.run.attempts import Attempts, NextAttempt, RetryPolicy, Standing
from madlite.run.batch_jobs import bound_plan, cpu_slots, make_jobs, open_pool, with_own_port
from madlite.run.context import context_file, left_out_before
from madlite.run.one import Run, secrets_for
from madlite.run.scheduler import Scheduler, Start
from madlite.run.screen import Planned, RunOutcome, Screen
from madlite.run.stop import Signals, StopControl
from madlite.run.watchdog.watchdog import StopReason
from madlite.workspace.folder import RECORD, RESULT, STEPS, RunFolder, open_runs
from madlite.workspace.journal import RunEntry, RunRows, now

if TYPE_CHECKING:
    from madlite.run.settle import Settle

# What is written of a run that has ended, in an order in which no kill loses anything silently.
#
# steps.jsonl → the rows in the run's journal → perf.csv → the side files → record.json; then the journal is removed.
# Of a run from a plan file result.json comes after the steps; with `--no-rows` it is the last: `collect` writes the
# rest.

_log = logging.getLogger(__name__)


RelativeChange = Callable[[RunPlan, Mapping[str, str]], str]
"""The cell `relative_change` of a row: in percent of the number that a run is compared with; "" without one."""


class ResultWriter:
    """Writes one run's result: its rows once, whatever happens before or after them."""

    def __init__(
        self,
        one: Planned,
        options: Options,
        screen: Screen,
        mask: Callable[[str], str],
        relative_change: RelativeChange | None = None,
        *,
        recoverable: bool = False,
    ) -> None:
        self._relative_change = relative_change
        self._recoverable = recoverable  # whether the next command writes the rows where this one is killed
        self.saved = True  # whether the rows are in their file
        self._one, self._plan = one, one.plan
        self._options, self._screen, self._mask = options, screen, mask
        self._rows: RunRows | None = None
        self._attempted = False
        self._has_result_file = False
        self._truncated = ""  # message about truncated cells
        self._omitted_columns: list[str] = []  # columns for which the file's header has no room

    def write(self, result: Result, steps: Steps, folder: RunFolder | None) -> Result:
        """Write all of it, and return the result with errors as findings; without a folder only the rows."""
        problems = [folder.stream(STEPS, step_lines(steps))] if folder is not None and len(steps) else []
        if not self._attempted:  # a bug after the rows were written must not write them a second time
            self._attempted = True
            if self._options.result_file or self._recoverable or not self._options.rows:
                problems.append(self._save_result(result, filter(None, problems), folder))
            if self._options.rows:
                self._append_rows(result, folder)
                self._write_side_files(result)
        problems.append(self._truncated)
        problems.append(self._check_moved(folder) if folder is not None else "")
        if folder is not None and self._options.rows:
            findings = (*result.findings, *filter(None, problems))
            problems.append(self._write_record(replace(result, findings=findings), folder))
        return replace(result, findings=(*result.findings, *filter(None, problems)))

    def set_aside(self, result: Result, steps: Steps, folder: RunFolder) -> str:
        """Write the result file of a run that is tried again; return the error message, "" if none."""
        problem = folder.stream(STEPS, step_lines(steps)) if len(steps) else ""
        return problem or self._write_result_file(result, self._planned_rows(result), folder)

    def write_replaced(self, result: Result, folder: RunFolder) -> None:
        """Write the record of a run that was set aside, without rows: another attempt has taken its place."""
        if problem := self._write_record(result, folder):
            self._screen.warn(f"{self._plan.id}: {problem}")

    def _save_result(self, result: Result, problems: Iterable[str], folder: RunFolder | None) -> str:
        """Write the result file; where it is the only output and cannot be written, the rows are shown."""
        if self._has_result_file:
            return ""
        rows = self._planned_rows(result)
        result = replace(
            result, findings=(*result.findings, *problems, *([self._truncated] if self._truncated else []))
        )
        problem = self._write_result_file(result, rows, folder)
        if problem and not self._options.rows:
            self.saved = False
            self._screen.warn(f"the result cannot be saved ({problem}): {[row.cells for row in rows]}")
        return problem

    def _planned_rows(self, result: Result) -> tuple[Row, ...]:
        return self._make_rows(result) if has_row(self._one, result) else ()

    def _write_result_file(self, result: Result, rows: Sequence[Row], folder: RunFolder | None) -> str:
        """Write the result file after where its rows go, and return the error message, "" if none."""
        try:
            text = result_text(self._make_run_result(result, rows))
            if folder is None:
                return "the run has no folder"
            if self._recoverable and self._options.rows:
                path = rows_path(self._options.output_target or self._options.output, self._plan.workspace)
                folder.note(RunEntry(at=now(), file=path))
            problem = folder.write_result(text)
        except Exception as bug:  # noqa: BLE001 - the verdict stands, and rows may still be written
            _log.debug("result file of %s", self._plan.id, exc_info=True)
            return f"internal error in {RESULT}: {type(bug).__name__}: {bug}"
        self._has_result_file = not problem
        return problem

    def _make_run_result(self, result: Result, rows: Sequence[Row]) -> RunResult:
        cells = tuple(plain_cells(row) for row in rows)
        strict = self._options.strict_header
        run_rows = RunRows(path="", cells=cells, strict_header=strict) if cells else None
        return RunResult(
            record=self._make_record(result, run_rows),
            entries=make_entries(**self._side_file_inputs(result)) if cells else None,
        )

    def _check_moved(self, folder: RunFolder) -> str:
        """Warn where the run's folder was moved or replaced, and return the message."""
        if folder.is_in_place():
            return ""
        link = next((place for place in (folder.path.parent, folder.path) if place.is_symlink()), None)
        what = f"a link is in the place of {link}: it is not followed" if link else f"{folder.path} was moved away"
        message = f"{what}; the run's files are in the folder that was made for them, wherever it is now"
        self._screen.warn(message)
        return message

    def _append_rows(self, result: Result, folder: RunFolder | None) -> None:
        """Append the run's rows; if that is not possible, save them in the run's folder."""
        if not has_row(self._one, result):
            return
        options, rows = self._options, self._make_rows(result)
        integrity = Integrity(options.output_target or options.output, self._plan.workspace)

        def before_write(size: int, columns: tuple[str, ...]) -> None:
            self._note_rows(rows, size, columns, folder)

        try:
            append_rows(
                options.output,
                rows,
                strict_header=options.strict_header,
                before_write=before_write,
                leave_out=self._omitted_columns.extend,
                target=options.output_target,
                integrity=integrity,
                begin=new_columns(options.contract),
            )
        except (RecordError, OSError) as problem:
            self.saved = False
            file, message = self._save_rows(rows, folder)
            if self._rows is None:
                self._note_rows(rows, 0, (), folder)
            self._rows = replace(self._rows, kept=file) if self._rows else None
            self._screen.warn(f"no row in {options.output}: {problem}; {message}")
        else:
            self._rows = replace(self._rows, appended=True) if self._rows else None
            if self._omitted_columns:
                self._screen.warn(f"{left_out_text(options.output, self._omitted_columns)}; {RECORD} has them")
        for report in integrity.reports:
            self._screen.warn(report)

    def _make_rows(self, result: Result) -> tuple[Row, ...]:
        """Return the rows as they may stand in a file: without secrets, and short."""
        options = self._options
        rows = build_rows(
            self._plan,
            result,
            pipeline=options.environ.get("pipeline", ""),
            build_number=options.environ.get("BUILD_NUMBER", "0"),
            strict_header=options.strict_header,
            columns=options.columns,
        )
        if self._relative_change is not None:
            change = self._relative_change
            rows = tuple(Row(cells={**row.cells, "relative_change": change(self._plan, row.cells)}) for row in rows)
        rows = masked_rows(rows, self._mask)
        self._truncated = truncation_text(row.cells for row in rows)
        return tuple(Row(cells=limited_cells(row.cells)) for row in rows)

    def _note_rows(self, rows: Sequence[Row], size: int, columns: tuple[str, ...], folder: RunFolder | None) -> None:
        """Record what is about to be appended; a full disk costs the entry, not the row."""
        self._rows = RunRows(
            path=rows_path(self._options.output_target or self._options.output, self._plan.workspace),
            cells=tuple(plain_cells(row) for row in rows),
            at=now(),
            offset=size,
            columns=columns,
            strict_header=self._options.strict_header,
        ).without(self._omitted_columns)
        if folder is not None and (problem := folder.note(RunEntry(at=self._rows.at, rows=self._rows))):
            _log.debug("%s", problem)

    def _save_rows(self, rows: Sequence[Row], folder: RunFolder | None) -> tuple[str, str]:
        """Save rows that perf.csv did not take; return the file's name and a message, with the rows if that fails."""
        try:
            with ExitStack() as opened:
                if folder is None:
                    runs = opened.enter_context(open_runs(self._plan.workspace, make=True))
                    place = opened.enter_context(runs.below(self._plan.folder.name, make=True))
                else:
                    place = folder.files
                saved = save_rows(rows, place, new_columns(self._options.contract))
        except (RecordError, OSError) as problem:
            return "", f"it cannot be saved either ({problem}): {[row.cells for row in rows]}"
        return saved.name, f"it is saved in {saved}"

    def _write_side_files(self, result: Result) -> None:
        """Write the side files; an error is shown, and costs no row."""
        if not has_row(self._one, result):
            return
        try:
            problems = write_side_files(**self._side_file_inputs(result))
        except Exception as bug:  # noqa: BLE001 - the row is there: raised here, it would be written a second time
            _log.debug("side files of %s", self._plan.id, exc_info=True)
            problems = (f"internal error in the files beside perf.csv: {type(bug).__name__}: {bug}",)
        for problem in problems:
            self._screen.warn(problem)

    def _side_file_inputs(self, result: Result) -> dict[str, Any]:
        environ = self._options.environ
        pipeline, build_number = environ.get("pipeline", ""), environ.get("BUILD_NUMBER", "0")
        return {
            "plan": self._plan,
            "result": result,
            "pipeline": pipeline,
            "build_number": build_number,
            "mask": self._mask,
        }

    def _make_record(self, result: Result, rows: RunRows | None) -> Record:
        return make_record(
            self._plan,
            result,
            rows,
            command=self._options.command,
            rendered=[(file.path, file.data) for file in self._one.files],
            left_out=self._left_out(),
            mask=self._mask,
        )

    def _write_record(self, result: Result, folder: RunFolder) -> str:
        """Write the record and return the error message: a full disk costs the record, not the verdict."""
        try:
            text = record_json(self._make_record(result, self._rows))
        except Exception as bug:  # noqa: BLE001 - the row is there, and the verdict stands
            _log.debug("record of %s", self._plan.id, exc_info=True)
            return f"internal error in {RECORD}: {type(bug).__name__}: {bug}"
        problem = folder.write_record(text)
        if not problem and self.saved:
            folder.end_journal()
        return problem

    def _left_out(self) -> tuple[str, ...]:
        """Return the places of the context whose values the record lacks; of a repeated run also the original's."""
        before = left_out_before(self._options.command, self._plan.workspace)
        here = context_file(self._one.context, self._mask).left_out
        return tuple(dict.fromkeys((*before, *self._one.context_left_out, *here)))


def has_row(one: Planned, result: Result) -> bool:
    """Say whether a run has a row: one that skips its model has none, unless it failed."""
    plan = one.plan
    return plan.writes_row and (not plan.skip_model_run or result.status is Status.FAILURE)


AUTO = 0  # so many runs at once
_MOST_THREADS = 256

STOPPED = StopReason(cause=Cause.INTERRUPTED, text="stopped")


class BatchSettings(Value, frozen=True):
    """How the runs of a batch go: `at_once` of them at the same time, `settle` waits before each of them.

    `retry` says after which failures a run is tried again; `standing` are failed attempts of an earlier command, by the
    ids of the runs that follow them.  What a `recoverable` run came to is written by the next command after a kill.

    No run starts any more once `max_failures` have failed.  An `exclusive` run has all GPUs of the machine to itself.
    `bind` keeps a run to the CPUs and the memory that are near its GPUs.
    """

    at_once: int = 1  # AUTO: as there are GPUs for, or cores for those without
    max_failures: int | None = None
    exclusive: bool = False
    bind: Literal["off", "numa"] = "off"
    settle: Settle | None = None
    relative_change: RelativeChange | None = None
    retry: RetryPolicy = RetryPolicy()
    standing: Mapping[str, Standing] = {}
    recoverable: bool = False


class Batch:
    """Runs plans as `settings` has it.

    `journal` records the progress, for the next command if this one is killed.  Runs are independent: each has its own
    stop, log and events, and is written when it ends.  `later` are runs of the same command that another batch runs
    after these.
    """

    def __init__(
        self,
        planned: Sequence[Planned],
        options: Options,
        plugins: Plugins,
        screen: Screen,
        clock: Callable[[], float] = time.monotonic,
        journal: BatchJournal | None = None,
        settings: BatchSettings = BatchSettings(),  # noqa: B008 - frozen
        later: Sequence[Planned] = (),
    ) -> None:
        self._options, self._plugins, self._screen = options, plugins, screen
        self._clock, self._journal = clock, journal or BatchJournal()
        self._settings, self._later = settings, later
        self._planned = [replace(one, plan=replace(one.plan, batch=self._journal.id)) for one in planned]
        self._scheduler: Scheduler | None = None  # while they run
        self._lock = threading.Lock()  # guards all below
        self._ports: set[str] = set()  # of the running runs
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
        every = (*self._planned, *self._later)
        self._journal.request(requested_run(one) for one in every)
        with ExitStack() as stack:
            signals = signals or stack.enter_context(Signals())
            stack.enter_context(signals.passing_to(self.stop))
            signals.watch_over(self._work_all)
            code = signals.exit_code
        return self._outcome(code)

    def stop(self, reason: StopReason = STOPPED, run_id: str | None = None) -> None:
        """End one run, or all running ones and start no other; safe from any thread.  A second call kills at once."""
        with self._lock:
            if run_id is None:
                self._stop = self._stop or reason
                self._stopped.set()
            stops = [stop for name, stop in self._stops.items() if run_id in (None, name)]
            scheduler = self._scheduler if run_id is None else None
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
        jobs = make_jobs(self._planned, self._plugins, self._options.environ, settings.at_once, settings.exclusive)
        with open_pool(jobs, self._planned, self._options.environ, settings.at_once) as pool:
            for gpu, text in (pool.foreign() if pool is not None else {}).items():
                self._screen.warn(f"GPU {gpu} is left alone: {text}")
            slots = settings.at_once or cpu_slots()
            scheduler = Scheduler(
                jobs, pool, slots, in_order=settings.at_once == 1, on_wait=self._screen.waiting, clock=self._clock
            )
            with self._lock:
                self._scheduler, is_over = scheduler, self._stop is not None
            if is_over:
                scheduler.stop()
            with_gpus = len(pool.every) if pool is not None and settings.at_once == AUTO else 0
            yield scheduler, max(1, min(slots + with_gpus, len(jobs), _MOST_THREADS))

    def _work(self, scheduler: Scheduler) -> None:
        while (start := scheduler.take()) is not None:
            position = start.job.position
            before = self._settings.standing.get(self._planned[position].plan.id)
            attempts = Attempts(self._settings.retry, self._plugins, before)
            one: Planned | None = attempts.first(self._planned[position])
            self._journal.begin(self._planned[position].plan.id)
            try:
                while one is not None:
                    one = self._attempt(position, self._bound(one, start), attempts, scheduler, start)
            finally:
                scheduler.end(start)
            self._after(scheduler)

    def _attempt(
        self, position: int, one: Planned, attempts: Attempts, scheduler: Scheduler, start: Start
    ) -> Planned | None:
        """Run one attempt of a run; return the next one when it is due, None where this was the last."""
        self._screen.started(one.plan, position + 1, len(self._planned))
        try:
            result, saved, bug, following = self._run(one, attempts, scheduler, start)
        finally:
            with self._lock:
                self._ports.discard(str(one.plan.env.get("MASTER_PORT")))
        if following is not None:
            self._plugins.notify("madlite_run_finished", plan=one.plan, result=attempts.replaced(result, following))
            self._screen.retrying(one.plan, result, following[1].text)
            if not self._stopped.wait(following[1].wait_s):
                return following[0]
            result, saved = attempts.give_up("not tried again: the command was ended")
        if saved:
            self._journal.end(self._planned[position].plan.id)
        self._screen.finished(one.plan, result)
        if following is None:
            self._plugins.notify("madlite_run_finished", plan=one.plan, result=result)
        self._note(scheduler, position, result, saved, bug)
        return None

    def _bound(self, one: Planned, start: Start) -> Planned:
        """Return a run as it starts: on the GPUs that it gets, and with a port that no other run of the batch has."""
        plan = bound_plan(one.plan, start, self._options.environ, numa=self._settings.bind == "numa")
        if self._settings.at_once != 1:
            with self._lock:
                plan = with_own_port(plan, self._ports)
        return replace(one, plan=plan)

    def _after(self, scheduler: Scheduler) -> None:
        """Show how far the batch is where runs go on at the same time."""
        with self._lock:
            ended, took_s = len(self._results), self._took_s
        if not scheduler.is_over and self._settings.at_once != 1 and len(self._planned) > 1:
            self._screen.overall(ended, len(self._planned), scheduler.left_s(took_s / ended))

    @contextmanager
    def _stoppable(self, run: Run) -> Iterator[None]:
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
        self, one: Planned, attempts: Attempts, scheduler: Scheduler, start: Start
    ) -> tuple[Result, bool, Exception | None, tuple[Planned, NextAttempt] | None]:
        """Run one to its end and write it; return a bug too, which ends the batch once all is written.

        What is tried again is set aside, and the next attempt returned: it has the GPUs of this one.
        """
        environ, settings = self._options.environ, self._settings
        bug: Exception | None = None
        secrets = secrets_for(one, environ)
        retries = settings.retry.is_active
        recoverable = settings.recoverable or retries
        with (
            Run(one, self._plugins, self._screen, secrets, self._clock, environ, settings.settle) as run,
            self._stoppable(run),
        ):
            scheduler.note(start, one.plan.id, str(one.plan.folder))
            run.on_open = partial(scheduler.note, start, one.plan.id, str(one.plan.folder))
            run.on_end = (lambda _: scheduler.beside(start)) if retries else partial(self._ended, scheduler, start)
            writer = ResultWriter(
                one, self._options, self._screen, run.mask, settings.relative_change, recoverable=recoverable
            )
            steps = run.state.monitor.steps
            try:
                result = attempts.annotated(one, run.run())
                if (following := self._set_aside(one, result, attempts, run, writer)) is not None:
                    return result, False, None, following
                result = writer.write(result, steps, run.folder)
            except Exception as error:  # noqa: BLE001 - told by the caller, once the row and the rest are safe
                bug = error
                result = writer.write(run.broken(error), steps, run.folder)
            run.progress.ended(result)
            attempts.replaced_by(one.plan.id)
            return result, writer.saved, bug, None

    def _set_aside(
        self, one: Planned, result: Result, attempts: Attempts, run: Run, writer: ResultWriter
    ) -> tuple[Planned, NextAttempt] | None:
        """Set a failed run aside that is tried again, and return its next attempt; None where it stands."""
        following = attempts.next(one, result) if run.folder is not None and not self._stopped.is_set() else None
        if following is None or run.folder is None:
            return None
        if problem := writer.set_aside(result, run.state.monitor.steps, run.folder):
            self._screen.warn(f"{one.plan.card.name} is not tried again: {problem}")
            return None
        run.progress.ended(result)
        attempts.set_aside(one, result, writer, run.release_folder(), following[0])
        return following

    def _ended(self, scheduler: Scheduler, start: Start, status: Status) -> tuple[str, ...]:
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

    def _note(self, scheduler: Scheduler, position: int, result: Result, saved: bool, bug: Exception | None) -> None:
        with self._lock:
            self._results[position] = result
            self._pending += [] if saved else [position]
            self._bug = self._bug or bug
            self._took_s += result.durations_s.get("total", 0.0)
        self._count(scheduler, position, result.status)

    def _outcome(self, code: ExitCode | None) -> RunOutcome:
        results = tuple(self._results[position] for position in sorted(self._results))
        names = [one.plan.card.name for one in self._planned]
        return RunOutcome(
            results=results,
            not_started=tuple(name for position, name in enumerate(names) if position not in self._results),
            exit_code=code or (ExitCode.RUN_FAILED if self._pending else exit_code(results)),
            bug=self._bug,
            pending=tuple(names[position] for position in sorted(self._pending)),
        )


def requested_run(one: Planned) -> RequestedRun:
    """Return a run as the journal of its batch lists it."""
    return RequestedRun(id=one.plan.id, card=one.plan.card.name, digest=plan_digest(one.plan))


def run_batch(
    planned: Sequence[Planned],
    options: Options,
    plugins: Plugins,
    screen: Screen,
    clock: Callable[[], float] = time.monotonic,
    journal: BatchJournal | None = None,
    settings: BatchSettings = BatchSettings(),  # noqa: B008 - frozen
) -> RunOutcome:
    """Run all of them, as `Batch.run` does."""
    return Batch(planned, options, plugins, screen, clock, journal, settings).run()


def exit_code(results: Iterable[Result]) -> ExitCode:
    """Return 3 where a run failed, 2 where every failure is a failed build, else 0."""
    causes = [result.cause for result in results if result.status is Status.FAILURE]
    if not causes:
        return ExitCode.OK
    return ExitCode.BUILD_FAILED if all(cause is Cause.BUILD for cause in causes) else ExitCode.RUN_FAILED
