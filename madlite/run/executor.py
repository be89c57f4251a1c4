"""One plan, from its folder to its verdict: a list of small steps."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path
from threading import Event
from types import TracebackType
from typing import TYPE_CHECKING

from msgspec.structs import replace

from madlite.backends.loader import Plugins
from madlite.cancellation import Interrupted, check, interruptible
from madlite.errors import MadliteError, RuntimeProblem, UsageProblem, inline_hint
from madlite.files import NO_SPACE
from madlite.machine.host import Host
from madlite.measure.adaptive import ConvergenceMonitor, adaptive_text, ending_text
from madlite.measure.diagnosis import DiagnosisInput, DiskSpace, diagnose
from madlite.measure.monitor import LogMonitor
from madlite.measure.parse_log import AutoDetectReader
from madlite.measure.rules import with_common
from madlite.measure.verdict import Verdict, judge
from madlite.model import Cause, Diagnosis, ImageUsed, JobOutcome, Result, RunPlan, Status, Step
from madlite.plan.actions import bind_model_dir
from madlite.plan.manifest import plaintext_secrets
from madlite.plan.plan_file import secrets_in
from madlite.platforms.docker.request import request_secrets
from madlite.run.hang import HangProbe
from madlite.run.instrumentation import Instrumentation
from madlite.run.log import RunLog
from madlite.run.screen import PlannedRun, RunEvents, Screen, StatusFile
from madlite.run.session_runner import SessionRunner, check_type, guard_plugin
from madlite.run.state import MadLog, RunState, context_file, masked
from madlite.run.stop import StopControl
from madlite.run.watchdog import HangReport, StallDetector, StopReason, Watchdog
from madlite.secrets import Redactor, assigned, collect, spelled_out
from madlite.store.claims import claim_model_dir, locked_results, release_model_dir
from madlite.store.folder import CONTEXT, LOG, RunFolder
from madlite.store.journal import RunEntry

if TYPE_CHECKING:
    from madlite.machine.telemetry.sampler import Settle

# A failed run's result with its diagnosis, from its log and this machine.

# replaced by the diagnosed cause; the others decide rows and exit codes
_REPLACED = {Cause.EXIT_CODE, Cause.PREPARE}
_OF_ENGINE = {Cause.BUILD, Cause.DISK}  # the reason has the engine's message
_KNOWN = {cause.value: cause for cause in Cause}


def with_diagnosis(plan: RunPlan, result: Result, state: RunState) -> Result:
    """Return the result with why it failed; one that did not fail as it is."""
    if result.status is not Status.FAILURE or result.diagnosis is not None:
        return result
    found = _diagnosis(plan, result, state)
    outcome = outcome_text(state.outcome)
    replaced = result.cause in _REPLACED and result.exit_code != 0
    cause = _KNOWN.get(found.cause, result.cause) if replaced else result.cause
    if result.cause is Cause.DISK and found.cause == Cause.INODES.value:
        cause = Cause.INODES
    unread = [text for text in state.log.unread if text not in found.hint]
    return replace(
        result,
        diagnosis=found,
        cause=cause,
        reason=_reason_text(state, result, found),
        evidence=found.line or result.evidence,
        findings=tuple(dict.fromkeys((*result.findings, *([outcome] if outcome else []), *unread))),
    )


def outcome_text(outcome: JobOutcome | None) -> str:
    """Return what an engine reports of a session's end, "" where that is only its state."""
    if outcome is None or not (outcome.out_of_memory or outcome.reason):
        return ""
    memory = ["its memory limit ended a process"] if outcome.out_of_memory else []
    code = [f"exit code {outcome.code}"] if outcome.code else []
    return f"the engine reports: {'; '.join(filter(None, [outcome.state, *code, *memory, outcome.reason]))}"


def _diagnosis(plan: RunPlan, result: Result, state: RunState) -> Diagnosis:
    hint = state.hint or (plan.blocked.hint if plan.blocked is not None else "")
    if result.cause in _OF_ENGINE:
        return _build_diagnosis(result, hint)
    facts = DiagnosisInput(
        plan=plan,
        exit_code=state.ended.code if state.ended else None,
        oom_kills=state.oom_kills if plan.traits.local else None,
        disk=disk_space(plan.workspace) if plan.traits.shares_files else None,
        outcome=state.outcome,
    )
    state.log.finish()  # of a session that broke off it was not
    found = diagnose(result.cause, result.evidence, state.log, facts, hint)
    if result.cause is Cause.ERROR_PATTERN and found.cause == Cause.PYTHON.value:  # handled, for all that is known
        return replace(found, cause=result.cause.value)
    return found


def _build_diagnosis(result: Result, hint: str) -> Diagnosis:
    """Return the diagnosis of an engine's message: a build without network failed for that."""
    log = LogMonitor((), with_common(()))
    log.feed(result.reason.encode())
    log.finish()
    found = diagnose(Cause.BUILD, "", log, hint=hint)
    cause = result.cause.value if result.cause is Cause.DISK and found.cause != Cause.INODES.value else found.cause
    return Diagnosis(cause=cause, line=result.evidence, hint=hint or found.hint, source=found.source)


def _reason_text(state: RunState, result: Result, found: Diagnosis) -> str:
    """Return the reason as a sentence that stands alone: what happened, why, and what to do."""
    if found.cause == result.cause.value:
        return result.reason
    rule = state.log.rule
    reason = result.reason.partition(f" ({rule.cause})")[0] if rule else result.reason
    return f"{reason} ({found.cause}); {found.hint}" if found.hint else f"{reason} ({found.cause})"


def disk_space(folder: Path) -> DiskSpace | None:
    """Return what a folder's disk has left; None where it cannot be queried."""
    try:
        disk = os.statvfs(folder)
    except OSError:
        return None
    return DiskSpace(
        folder=folder,
        free_bytes=disk.f_bavail * disk.f_frsize,
        free_inodes=disk.f_favail if disk.f_files else None,
    )


# What runs of one folder share: locked, or separate for each.


@contextmanager
def claimed(plan: RunPlan, keep_waiting: Callable[[], bool]) -> Iterator[RunPlan]:
    """Lock what the plan's script uses in the workspace; a rendered run has all of it in its own folder.

    Raises:
        RuntimeProblem: the workspace cannot be written to, or `keep_waiting` ended the wait for another run.
    """
    if not plan.model_dir:
        yield plan
        return
    with ExitStack() as stack:
        with _as_runtime_problem(plan):
            stack.enter_context(locked_results(plan, keep_waiting))
            name = plan.model_dir
            if plan.traits.shares_files:
                name, lock = claim_model_dir(plan)
                stack.callback(release_model_dir, plan, name, lock)
        yield bind_model_dir(plan, name)


@contextmanager
def _as_runtime_problem(plan: RunPlan) -> Iterator[None]:
    try:
        yield
    except TimeoutError as error:
        raise RuntimeProblem(str(error), cause=Cause.INTERRUPTED) from error
    except OSError as error:
        place = error.filename if str(error.filename).startswith("/") else plan.workspace
        what = f"{place} cannot be written to: {error.strerror or error}"
        raise RuntimeProblem(what, cause=_disk_or(Cause.PREPARE, error)) from error


def _disk_or(cause: Cause, error: BaseException | None) -> Cause:
    """Return the cause of what could not be written: the disk, where it is full, else the given one."""
    return Cause.DISK if isinstance(error, OSError) and error.errno in NO_SPACE else cause


# madengine 1 has the first, madengine 2 the parts as well
LOG_END, BUILD_LOG_END, RUN_LOG_END = ".live.log", ".build.live.log", ".run.live.log"


class RunExecutor:
    """One run; until its `close` it holds its folder and the locks of its script."""

    def __init__(
        self,
        run: PlannedRun,
        plugins: Plugins,
        screen: Screen,
        secrets: Iterable[str],
        clock: Callable[[], float],
        environ: Mapping[str, str],
        settle: Settle | None = None,
        *,
        reserve: bool = False,
    ) -> None:
        self.planned, self.plan = run, run.plan
        self._reserve = reserve  # room on the disk for its result, of which nothing else tells
        self.plugins, self.clock = plugins, clock
        self.began = clock()
        self.started = datetime.now(timezone.utc).isoformat(timespec="seconds")
        self.environ = environ
        self._secrets = tuple(secrets)
        self.mask = Redactor(self._secrets).text
        self.progress = StatusFile(run.plan, self.started, self.mask, clock)
        self.screen = RunEvents(screen, run.plan, self.progress)
        self.stall_detector = StallDetector(self.plan, clock)
        whose = None if self.plan.own_script else {self.plan.backend, *self.plan.readers}
        self._rules = with_common(plugins.failure_rules(), whose)
        self.state = RunState(self._make_monitor(), self._rules, self.plan.place.spanned)
        here = Host(path=environ.get("PATH", ""), env=dict(environ))
        self.instrumentation = Instrumentation(run, plugins, here, lambda: self.clock() - self.began, settle)
        show = self.screen
        watchdog = Watchdog(self.stall_detector, self._probe_hang, tell=show.phase, say=show.stopping, now=clock)
        self.stop = StopControl(self.plan.timeout_s, self.plan.stop_grace_s, show.stopping, watchdog)
        self._convergence = self._make_convergence()
        self.folder: RunFolder | None = None
        self.begin_entry: RunEntry | None = None  # of its journal
        self.session_runner: SessionRunner | None = None  # once its session can be opened
        self._claims = ExitStack()
        self.on_open: Callable[[str], None] = lambda handle: None  # gets the handle of its session
        self.unshared_lease: Callable[[], str] = lambda: ""  # why others may not see the lease of its GPUs
        # gets how it ended, once its session is closed; returns the runs that were beside it
        self.on_end: Callable[[Status], tuple[str, ...]] = lambda status: ()

    def run(self) -> Result:
        """Run the plan to its verdict; a workload's failure is a result, never an exception."""
        why = self.plan.blocked
        try:
            if why is None:
                self.plan = self._claims.enter_context(claimed(self.plan, self._wait_for_another))
                with self.stop.cancellation.scope():
                    return self._run()
            verdict = Verdict(status=why.status, cause=why.cause, reason=why.reason)
        except Interrupted:
            verdict = self._interrupted()
        except RuntimeProblem as problem:
            self.state.hint = problem.hint
            verdict = _failed(_cause(problem.cause), problem.message)
        except UsageProblem as problem:  # the disk is full, say, since the batch began
            verdict = _failed(_disk_or(Cause.PREPARE, problem.__cause__), problem.message)
        self._find_folder()
        return self._result(verdict)

    def __enter__(self) -> RunExecutor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release the run's locks: it has ended."""
        self.stop.close()
        try:
            self._claims.close()
        finally:
            if self.folder is not None:
                self.folder.close()
                self.folder = None

    def release_folder(self) -> RunFolder:
        """Return the run's folder, which stays open and locked when the run is closed."""
        folder, self.folder = self.folder, None
        if folder is None:
            raise ValueError("the run has no folder")
        return folder

    def broken(self, bug: Exception) -> Result:
        """Return the result of a run that a bug of madlite ended."""
        return self._result(_failed(Cause.INTERNAL, f"internal error: {type(bug).__name__}: {bug}"))

    def _wait_for_another(self) -> bool:
        self.screen.phase(f"waiting for another run of this folder that writes {self.plan.result_rule.file}")
        return self.stop.reason is None

    def _interrupted(self) -> Verdict:
        return _failed(Cause.INTERRUPTED, self.stop.reason.text if self.stop.reason else "interrupted")

    def _create_folder(self) -> RunFolder:
        context = context_file(self.planned.context, self.mask).data
        files = [*((file.path, file.data) for file in self.planned.files), *([(CONTEXT, context)] if context else [])]
        self.folder = RunFolder.create(self.plan, files, self._secrets, self.begin_entry, reserve=self._reserve)
        self.progress.open(self.folder)
        return self.folder

    def _find_folder(self) -> None:
        """Create or open a folder for the record of a run that did not start, if possible."""
        if self.folder is None:
            try:
                self._create_folder()
            except UsageProblem:  # the disk is full, say: a partial folder takes at least the rows
                with suppress(OSError):
                    self.folder = RunFolder.reopen(self.plan.folder, begun=True)

    def _run(self) -> Result:
        folder = self._create_folder()
        log = self._open_log(folder)
        try:
            self.plugins.notify("madlite_run_started", plan=self.plan)
            verdict = self._attempt(folder, log)
            if verdict.status is Status.FAILURE:
                log.say(f"madlite: {verdict.status.value} {verdict.reason}")
        finally:
            log.close()
        stalls = self.stall_detector.findings(by_itself=self.stop.reason is None)
        notes = (*self._length(), *stalls, *self.state.image.notes, *self.state.notes, *self.state.missing, *log.notes)
        findings = (*verdict.findings, *notes)
        return self._result(replace(verdict, findings=findings))

    def _length(self) -> tuple[str, ...]:
        """Note how long a run with `--until` was, and return it as a sentence."""
        if self._convergence is None or not self.state.monitor.steps:
            return ()
        self.state.adaptive = self._convergence.outcome(self.state.monitor.steps)
        return (adaptive_text(self.state.adaptive),)

    def _attempt(self, folder: RunFolder, log: RunLog) -> Verdict:
        """Prepare, open, act, judge; every way in which this can fail becomes a verdict."""
        try:
            mad_log = MadLog(self.plan, self.state, log.write_live, lambda line: self.screen.mad_line(self.mask(line)))
            self._prepare(log, mad_log)
            claimed_run = replace(self.planned, plan=self.plan)  # as it is claimed
            self.session_runner = SessionRunner(
                claimed_run, self.state, self.stop, self.screen, self.clock, self.instrumentation, mad_log, self.on_open
            )
            seen = self.session_runner.act(folder, log)
            foreign = self.instrumentation.telemetry.foreign_processes
            seen = replace(seen, foreign_processes=foreign, unshared_lease=self.unshared_lease())
        except Interrupted:
            return self._interrupted()
        except RuntimeProblem as problem:
            self.state.hint = problem.hint
            reason = problem.message + (f"; {inline_hint(problem.hint)}" if problem.hint else "")
            return _failed(_cause(problem.cause), reason)
        except MadliteError as problem:
            return _failed(Cause.PREPARE, problem.message)
        verdict = judge(self.plan, seen, self.state.monitor)
        mad_log.judged(seen, verdict)
        return verdict

    def _prepare(self, log: RunLog, mad_log: MadLog) -> None:
        def say(text: str) -> None:
            check()  # of a call that was left nothing is told any more
            log.say(text)
            self.screen.phase(self.mask(text))

        image = self.plan.image
        builds = image is not None and image.dockerfile is not None and not image.prebuilt
        try:
            with guard_plugin(self.planned.runtime):
                used = interruptible(lambda: self.planned.runtime.prepare(self.plan, say))
                self.state.image = check_type(used, ImageUsed, "prepare", self.planned.runtime)
            (log.begin_live if builds else log.link_live)(self._beside(RUN_LOG_END))
            mad_log.prepared()
        finally:
            if builds:
                log.copy_live(self._beside(BUILD_LOG_END))
        if builds and self.state.image.build_duration_s is not None:
            self.state.durations_s["build"] = self.state.image.build_duration_s
        mad_log.opening()

    def _make_monitor(self) -> LogMonitor:
        readers = [self.plugins.query(item, "reader", self.plan, otherwise=None) for item in self.planned.backends]
        return LogMonitor(
            [reader for reader in readers if reader is not None],
            self._rules,
            error_scan=self.plan.error_scan,
            now=lambda: self.clock() - self.began,
            on_step=self._step,
            on_event=self.stall_detector.note,
            # of whatever framework a card's own script turns out to run
            script_reader=AutoDetectReader(self.plugins, self.plan.readers) if self.plan.own_script else None,
            nodes=self.plan.place.spanned,
        )

    def _step(self, step: Step) -> None:
        self.screen.step(step)
        self.plugins.notify("madlite_run_step", plan=self.plan, step=step)
        if self._convergence is not None and (length := self._convergence.check(step, self.state.monitor.steps)):
            self.state.is_complete = True
            text = ending_text(length)
            self.stop.request(StopReason(cause=Cause.NONE, text=text, short="its steps are enough"))

    def _make_convergence(self) -> ConvergenceMonitor | None:
        variant = self.plan.variant
        if not self.plan.until or variant is None:
            return None
        quantity = self.plan.result_rule.headline
        return ConvergenceMonitor(self.plan.until, quantity, variant.warmup_steps, variant.steps)

    def _probe_hang(self, cancelled: Event) -> HangReport:
        """Look at what the run hangs in."""
        session = self.session_runner.session if self.session_runner is not None else None
        if self.folder is None or session is None:
            return HangReport()
        last_lines = self.state.monitor.failures.last_lines
        return HangProbe(self.folder, self.plan, session, self.environ, self.mask).run(last_lines, cancelled)

    def _open_log(self, folder: RunFolder) -> RunLog:
        sinks, limit_bytes = [self.screen.output], self.plan.log_limit_bytes
        log = RunLog(
            folder.path / LOG,
            self._secrets,
            sinks,
            self.state.feed,
            nodes=self.plan.place.spanned,
            folder=folder.files,
            limit_bytes=limit_bytes,
        )
        if self.plan.log_name:
            log.begin_live(self._beside(LOG_END))
        self.screen.logs()
        return log

    def _beside(self, end: str) -> Path:
        """Return the place of a log in the workspace, where MAD's tooling looks for it."""
        return self.plan.workspace / f"{self.plan.log_name}{end}"

    def _result(self, verdict: Verdict) -> Result:
        self.state.durations_s["total"] = self.clock() - self.began
        beside = self.on_end(verdict.status) if self.plan.blocked is None else ()
        result = replace(self.state.result(self.plan, verdict, self.started), beside=beside)
        return masked(self.instrumentation.annotate(with_diagnosis(self.plan, result, self.state)), self.mask)


def secrets_for(run: PlannedRun, environ: dict[str, str]) -> tuple[str, ...]:
    """Return every secret text that a run's output must not show."""
    plan = run.plan
    spelled = assigned((plan.args, plan.run_args, *(word for action in plan.actions for word in action.argv)))
    own = [item.secret for item in secrets_in(plan)]
    known = collect(environ, own, request_secrets(plan, environ))
    of_context = (*spelled_out(run.context), *plaintext_secrets(run.context))
    return tuple(dict.fromkeys((*known, *spelled, *spelled_out(plan), *of_context)))


def _failed(cause: Cause, reason: str) -> Verdict:
    return Verdict(status=Status.FAILURE, cause=cause, reason=reason)


def _cause(name: str) -> Cause:
    return Cause(name) if name in {cause.value for cause in Cause} else Cause.PREPARE
