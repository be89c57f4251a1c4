"""One plan, from its folder to its verdict: a list of small steps."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from itertools import chain
from pathlib import Path
from threading import Event

from msgspec.structs import replace

from madlite.backends.loader import Plugins, check_type, guard_plugin
from madlite.cancellation import Interrupted, check, interruptible
from madlite.errors import MadliteError, RuntimeProblem, UsageProblem, inline_hint
from madlite.files import NO_SPACE
from madlite.machine.host import Host
from madlite.machine.processes import RUN_MARK
from madlite.machine.products import find_peak
from madlite.machine.telemetry import Settle
from madlite.measure.adaptive import ConvergenceMonitor, adaptive_text, ending_text
from madlite.measure.monitor import LogMonitor
from madlite.measure.parse_log import plan_monitor, plan_rules
from madlite.measure.profile import TRACE, largest_loss, read_profile
from madlite.measure.verdict import Observation, Verdict, judge
from madlite.model import (
    PROFILED_STEPS,
    Action,
    Cause,
    Exit,
    ImageUsed,
    JobOutcome,
    Json,
    Result,
    RunPlan,
    Session,
    Sink,
    Status,
    Step,
)
from madlite.model.results import StopReason
from madlite.plan.actions import bind_model_dir
from madlite.plan.context import Options
from madlite.plan.plan_file import secrets_in
from madlite.plan.submission import PlannedRun
from madlite.platforms.docker.request import request_secrets
from madlite.run.hang import probe_hang
from madlite.run.instrumentation import Instrumentation
from madlite.run.log import MadLog, RunLog
from madlite.run.screen import RunEvents, Screen
from madlite.run.state import KNOWN, ResultsFile, RunState, context_file, earlier_lines, masked, with_diagnosis
from madlite.run.stop import StopControl
from madlite.run.watchdog import HangReport, StallDetector, Watchdog
from madlite.secrets import Redactor, assigned, collect, plaintext_secrets, spelled_out
from madlite.store.events import now
from madlite.store.folder import CONTEXT, HANDLE, LOG, VIEW, RunEntry, RunFolder, claimed_model_dir, locked_results
from madlite.store.special_files import left_text, special_files

_log = logging.getLogger(__name__)

# What runs of one folder share: locked, or separate for each.


@contextmanager
def claimed(plan: RunPlan, wait: Callable[[], None]) -> Iterator[RunPlan]:
    """Lock what the plan's script uses in the workspace; a rendered run has all of it in its own folder.

    Raises:
        RuntimeProblem: the workspace cannot be written to.
    """
    if not plan.model_dir:
        yield plan
        return
    with ExitStack() as stack:
        try:
            stack.enter_context(locked_results(plan, wait))
            name = plan.model_dir
            if plan.traits.shares_files:
                name = stack.enter_context(claimed_model_dir(plan))
        except OSError as error:
            place = error.filename if str(error.filename).startswith("/") else plan.workspace
            what = f"{place} cannot be written to: {error.strerror or error}"
            raise RuntimeProblem(what, cause=_disk_or(Cause.PREPARE, error)) from error
        yield bind_model_dir(plan, name)


def _disk_or(cause: Cause, error: BaseException | None) -> Cause:
    """Return the cause of what could not be written: the disk, where it is full, else the given one."""
    return Cause.DISK if isinstance(error, OSError) and error.errno in NO_SPACE else cause


_PHASES = {"clone": "cloning the repository", "data": "fetching data", "run": "running", "prepare": "preparing"}
# madengine 1 has the first, madengine 2 the parts as well
LOG_END, BUILD_LOG_END, RUN_LOG_END = ".live.log", ".build.live.log", ".run.live.log"


class RunExecutor:
    """One run; until its `close` it holds its folder and the locks of its script."""

    def __init__(
        self,
        run: PlannedRun,
        options: Options,
        plugins: Plugins,
        screen: Screen,
        clock: Callable[[], float],
        settle: Settle | None,
    ) -> None:
        self.planned, self.plan = run, run.plan
        self._reserve = not options.rows  # room on the disk for its result, of which nothing else tells then
        self.plugins, self.clock, self.environ = plugins, clock, options.environ
        self.began = clock()
        self.started = now("seconds")
        self._secrets = secrets_for(run, self.environ)
        self.mask = Redactor(self._secrets).text
        self.screen = show = RunEvents(screen, run.plan, self.started, self.mask, clock)
        self.stall_detector = StallDetector(self.plan, clock)
        watchdog = Watchdog(self.stall_detector, self._probe_hang, tell=show.phase, say=show.stopping, now=clock)
        self.stop = StopControl(self.plan.timeout_s, self.plan.stop_grace_s, show.stopping, watchdog)
        self.state = RunState(self._make_monitor(), plan_rules(self.plan, plugins), self.plan.place.spanned)
        here = Host(path=self.environ.get("PATH", ""), env=dict(self.environ))
        self.instrumentation = Instrumentation(run, plugins, here, lambda: self.clock() - self.began, settle)
        rule, variant = self.plan.result_rule, self.plan.variant
        self._convergence = (
            ConvergenceMonitor(self.plan.until, rule.headline, variant.warmup_steps, variant.steps)
            if self.plan.until and variant is not None
            else None
        )
        self.folder: RunFolder | None = None
        self.begin_entry: RunEntry | None = None  # of its journal
        self.before: Path | None = None  # the folder of the attempt whose checkpoint it goes on from
        self.session: Session | None = None  # while it is open
        self._claims = ExitStack()
        self.on_open: Callable[[str], None] = lambda handle: None  # gets the handle of its session
        self.unshared_lease = ""  # why others may not see the lease of its GPUs
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
        except (Interrupted, RuntimeProblem, UsageProblem) as error:  # the disk is full, say, since the batch began
            verdict = self._verdict_of(error)
        self._find_folder()
        return self._result(verdict)

    def __enter__(self) -> RunExecutor:
        return self

    def __exit__(self, *raised: object) -> None:
        """Release the run's locks: it has ended."""
        try:
            self._claims.close()
        finally:
            if self.folder is not None:
                self.folder.close()
                self.folder = None

    def broken(self, bug: Exception) -> Result:
        """Return the result of a run that a bug of madlite ended."""
        return self._result(_failed(Cause.INTERNAL, f"internal error: {type(bug).__name__}: {bug}"))

    def _wait_for_another(self) -> None:
        self.screen.phase(f"waiting for another run of this folder that writes {self.plan.result_rule.file}")
        self.stop.check()

    def _verdict_of(self, error: Interrupted | MadliteError) -> Verdict:
        """Return what a run comes to that was ended or could not go on."""
        if isinstance(error, Interrupted):
            return _failed(Cause.INTERRUPTED, self.stop.reason.text if self.stop.reason else "interrupted")
        if not isinstance(error, RuntimeProblem):
            return _failed(_disk_or(Cause.PREPARE, error.__cause__), error.message)
        self.state.hint = error.hint
        reason = error.message + (f"; {inline_hint(error.hint)}" if error.hint else "")
        return _failed(KNOWN.get(error.cause, Cause.PREPARE), reason)

    def _create_folder(self) -> RunFolder:
        context = context_file(self.planned.context, self.mask).data
        files = [*((file.path, file.data) for file in self.planned.files), *([(CONTEXT, context)] if context else [])]
        self.folder = RunFolder.create(self.plan, files, self._secrets, self.begin_entry, reserve=self._reserve)
        self.screen.open(self.folder)
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
        taken = folder.take_checkpoint(self.before) if self.before is not None else ""
        with closing(self._open_log(folder)) as log:
            if taken:
                log.say(f"madlite: {taken}")
            self.plugins.notify("madlite_run_started", plan=self.plan)
            verdict = self._attempt(folder, log)
            if verdict.status is Status.FAILURE:
                log.say(f"madlite: {verdict.status.value} {verdict.reason}")
            elif (reason := self.stop.reason) is not None and self.state.is_complete:
                log.say(f"madlite: {reason.text}")  # by which `madlite parse` knows it
        stalls = self.stall_detector.findings(by_itself=self.stop.reason is None)
        notes = (
            *self._length(),
            *self._profile(folder),
            *stalls,
            *self.state.image.notes,
            *self.state.notes,
            *self.state.missing,
            *log.notes,
        )
        findings = (*verdict.findings, *notes)
        return self._result(replace(verdict, findings=findings))

    def _length(self) -> tuple[str, ...]:
        """Note how long a run with `--until` was, and return it as a sentence."""
        if self._convergence is None or not self.state.monitor.steps:
            return ()
        self.state.adaptive = self._convergence.outcome(self.state.monitor.steps)
        return (adaptive_text(self.state.adaptive),)

    def _profile(self, folder: RunFolder) -> tuple[str, ...]:
        """Note where a step's time went of a run with `--profile`, and return the largest loss or why nobody knows."""
        if not self.plan.profile or not self.state.monitor.steps:
            return ()
        precision = self.plan.variant.precision if self.plan.variant else ""
        peak = find_peak(self.plan.machine, self.plan.place.gpu_ids, precision)
        summaries = [metric.metric for metric in self.plan.result_rule.mad if metric.rule == "summary"]
        of_all = f"no {', '.join(summaries)}: the framework's own summary is of the profiled steps, too"
        left_out = (of_all,) if summaries else ()
        try:
            path = folder.work / TRACE
            found = read_profile(path, PROFILED_STEPS, None if isinstance(peak, str) else peak.tflops)
        except ValueError as error:
            return (f"no profile: {error}", *left_out)
        knobs = [knob for knob in self.planned.knobs if not knob.why_not(self.plan)]
        self.state.profile = replace(found, loss=largest_loss(found, knobs))
        return (self.state.profile.loss, *left_out)

    def _attempt(self, folder: RunFolder, log: RunLog) -> Verdict:
        """Prepare, open, act, judge; every way in which this can fail becomes a verdict."""
        try:
            mask = self.mask
            mad_log = MadLog(self.plan, self.state, log.write_live, lambda line: self.screen.mad_line(mask(line)), mask)
            self._prepare(log, mad_log)
            seen = self._in_session(folder, log, mad_log)
            foreign = self.instrumentation.telemetry.foreign_processes
            seen = replace(seen, foreign_processes=foreign, unshared_lease=self.unshared_lease)
        except (Interrupted, MadliteError) as error:
            return self._verdict_of(error)
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
            (log.begin_live if builds and self.plan.log_name else log.link_live)(self._beside(RUN_LOG_END))
        finally:
            mad_log.prepared()
            if builds:
                log.copy_live(self._beside(BUILD_LOG_END))
        if builds and self.state.image.build_duration_s is not None:
            self.state.durations_s["build"] = self.state.image.build_duration_s
        mad_log.opening()

    def _in_session(self, folder: RunFolder, log: RunLog, mad_log: MadLog) -> Observation:
        """Hold the session open while the actions run; ended from outside, that is what counts."""
        results = ResultsFile(self.plan, self.environ)
        observed = Observation()
        session: Session | None = None
        try:
            self.stop.check()
            with (
                guard_plugin(self.planned.runtime),
                self.planned.runtime.open(self.plan) as session,
                self.stop.guard(session),
            ):
                folder.write_text(HANDLE, session.handle)
                self.on_open(session.handle)
                self.state.shell, self.state.node_names = session.shell, session.nodes
                self.session = session
                observed = self._act(session, folder, log, mad_log, results)
                collect_problem = self._collect_files(session, folder)
                self.state.monitor.finish(folder.work)
                observed = replace(observed, results=results.read())
                if collect_problem is None:
                    self._copy_outputs(session, observed)
                elif _succeeded(observed) and self.plan.result_rule.kind == "multiple_results":
                    raise collect_problem
                self._clean(session, log)
        except RuntimeProblem:
            if self.stop.reason is None or self.stop.reason.cause is Cause.NONE:
                raise
        finally:
            self.state.notes = (*session.notes, *self._special_files(folder)) if session is not None else ()
            self.session = None
        reason = self.stop.reason
        if reason is not None:
            self.state.hint = reason.hint or self.state.hint
        return replace(observed, stop=reason)

    def _special_files(self, folder: RunFolder) -> Iterator[str]:
        """Yield what to tell of setuid and setgid files and device nodes that the workload, root in there, has left."""
        traits, made = self.plan.traits, folder.path / VIEW / folder.path.name  # for the container, right before it
        if traits.containerised and traits.local and traits.shares_files:
            with suppress(OSError):
                found = special_files(self.plan.workspace, made.lstat().st_ctime_ns, folder.path)
                yield from filter(None, [left_text(found)])

    def _act(
        self, session: Session, folder: RunFolder, log: RunLog, mad_log: MadLog, results: ResultsFile
    ) -> Observation:
        """Run the actions in their order; one that fails is the last."""
        skipped = ("clean", "run") if self.plan.skip_model_run else ("clean",)
        for action in (action for action in self.plan.actions if action.kind not in skipped):
            if self.stop.reason is not None:
                break
            self.screen.phase(_phase(action), action.kind)
            mad_log.before(action)
            if action.kind == "run":
                results.begin()
                if self.plan.result_rule.kind == "performance_line":
                    self.state.monitor.scan.earlier = earlier_lines(self.plan)
                with self.stop.paused_limit():
                    self.instrumentation.probe(session, action)
                    self.instrumentation.telemetry.begin(self.stop, self.screen.phase)
            self.state.begin(action.kind, self.clock())
            try:
                with self._monitored(action, session, folder, log) as feed:
                    answer = session.run(self._with_run_mark(action), feed)
                    ended = check_type(answer, Exit, "run", self.planned.runtime)
            except RuntimeProblem:
                self.state.cut_off(self.clock())
                self._note_outcome(session)
                raise
            log.flush()
            self.state.end(ended, log.of_node)
            mad_log.after(action, ended)
            if ended.code != 0:
                self._note_outcome(session)
                return Observation(
                    exit=ended,
                    failed_action="" if action.kind == "run" else action.kind,
                    failed_line=self.state.log.best_error_line,
                    failed_node=_node_text(session, ended.failed_node),
                    node_log=self.state.failed_log,
                )
        return Observation(exit=self.state.ran, skipped=self.plan.skip_model_run)

    def _with_run_mark(self, action: Action) -> Action:
        """Return an action by whose environment its processes are known where a probe sees those of others, too."""
        traits = self.plan.traits
        if traits.local or traits.containerised:  # a host's runtime marks its own, a container has no others
            return action
        return replace(action, env={RUN_MARK: self.plan.id, **action.env})

    def _note_outcome(self, session: Session) -> None:
        """Note what the engine reports of a session that failed by itself, while it can still be queried."""
        if self.stop.reason is not None:
            return
        try:
            with guard_plugin(self.planned.runtime):
                outcome = self.planned.runtime.outcome(session.handle)
                self.state.outcome = outcome if isinstance(outcome, JobOutcome) else None
        except RuntimeProblem as problem:
            _log.debug("no outcome: %s", problem.message)

    @contextmanager
    def _monitored(self, action: Action, session: Session, folder: RunFolder, log: RunLog) -> Iterator[Sink]:
        """Watch over the model's own step and sample its GPUs; other actions are short."""
        if action.kind != "run":
            yield log.feed
            return
        with self.stop.following(log.feed) as feed, self.instrumentation.sampling(session, folder.files):
            yield feed

    def _collect_files(self, session: Session, folder: RunFolder) -> RuntimeProblem | None:
        """Collect what is read of a run's files from where it ran, unless it is here as soon as it is written.

        Return why that cannot be, as of a node that is gone: what the run itself came to is reported all the same.
        """
        if self.plan.traits.shares_files:
            return None
        try:
            with guard_plugin(self.planned.runtime):
                if self.plan.result_rule.kind == "multiple_results":
                    file = self.plan.result_rule.file
                    session.collect([f"{self.plan.model_dir}/{file}", file], self.plan.workspace)
                session.collect([f"{folder.work.relative_to(self.plan.workspace)}/*"], folder.work)
        except RuntimeProblem as problem:
            self.state.missing = (f"what the run wrote was not collected: {problem.message}",)
            return problem
        return None

    def _copy_outputs(self, session: Session, observed: Observation) -> None:
        """Copy what a run that went well left for the workspace up into it."""
        if self.plan.outputs and _succeeded(observed):
            patterns = [f"{self.plan.model_dir}/{pattern}" for pattern in self.plan.outputs]
            is_there = any(True for pattern in patterns for _ in self.plan.workspace.glob(pattern))
            if is_there or not self.plan.traits.shares_files:
                session.collect(patterns, self.plan.workspace)

    def _clean(self, session: Session, log: RunLog) -> None:
        """Remove what the run made in the workspace; a run that was ended leaves it for inspection, as MAD does."""
        ended = self.stop.reason is not None and self.stop.reason.cause is not Cause.NONE
        if ended or self.plan.keep_alive or self.plan.keep_model_dir:
            return
        for action in self.plan.actions:
            if action.kind == "clean":
                try:
                    session.run(action, log.feed)
                except RuntimeProblem as problem:
                    _log.warning("%s was not cleaned: %s", self.plan.model_dir, problem.message)

    def _make_monitor(self) -> LogMonitor:
        return plan_monitor(
            self.plan,
            self.planned.backends,
            self.plugins,
            now=lambda: self.clock() - self.began,
            on_step=self._step,
            on_event=self.stall_detector.note,
            nodes=self.plan.place.spanned,
        )

    def _step(self, step: Step) -> None:
        self.screen.step(step)
        self.plugins.notify("madlite_run_step", plan=self.plan, step=step)
        if self._convergence is not None and (length := self._convergence.check(step, self.state.monitor.steps)):
            self.state.is_complete = True
            text = ending_text(length)
            self.stop.request(StopReason(cause=Cause.NONE, text=text, short="its steps are enough"))

    def _probe_hang(self, cancelled: Event) -> HangReport:
        """Look at what the run hangs in."""
        folder, session = self.folder, self.session  # another thread may end it meanwhile
        if folder is None or session is None:
            return HangReport()
        last_lines = self.state.monitor.failures.last_lines
        return probe_hang(folder, self.plan, session, self.mask, last_lines, cancelled)

    def _open_log(self, folder: RunFolder) -> RunLog:
        path, sinks = folder.path / LOG, [self.screen.output]
        nodes, limit_bytes = self.plan.place.spanned, self.plan.log_limit_bytes
        log = RunLog(
            path, self._secrets, sinks, self.state.feed, nodes=nodes, folder=folder.files, limit_bytes=limit_bytes
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
    return secrets_of(run.plan, run.context, environ)


def secrets_of(plan: RunPlan, context: dict[str, Json], environ: dict[str, str]) -> tuple[str, ...]:
    """Return every secret text that a plan and its context have, and of what it passes on from the environment."""
    wrapped = [item.secret for item in secrets_in(plan)]
    wrapped += request_secrets(plan, environ) if plan.image is not None else ()
    words = (plan.args, plan.run_args, *(word for action in plan.actions for word in action.argv))
    found = (collect(environ, wrapped), assigned(words), spelled_out(plan), spelled_out(context))
    return tuple(dict.fromkeys(chain(*found, plaintext_secrets(context))))


def _failed(cause: Cause, reason: str) -> Verdict:
    return Verdict(status=Status.FAILURE, cause=cause, reason=reason)


def _phase(action: Action) -> str:
    if action.kind in ("pre", "post"):
        return f"{action.kind}-script {Path(action.argv[-1]).name}"
    return _PHASES.get(action.kind, action.kind)


def _succeeded(observed: Observation) -> bool:
    return observed.exit is not None and observed.exit.code == 0 and not observed.failed_action


def _node_text(session: Session, node: int | None) -> str:
    """Return which of several nodes failed, by its number and name."""
    if node is None or len(session.nodes) < 2:
        return ""
    name = session.nodes[node] if node < len(session.nodes) else ""
    return f"node {node} ({name})" if name else f"node {node}"
