"""One plan, from its folder to its verdict: a list of small steps."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path

from msgspec.structs import replace

from madlite.engine.account import Account
from madlite.engine.claims import claimed
from madlite.engine.mask import masked
from madlite.engine.results_file import ResultsFile
from madlite.engine.screen import Planned, Screen
from madlite.errors import MadliteError, RuntimeProblem, UsageProblem
from madlite.measure.follow import Follower
from madlite.measure.verdict import Verdict, Witnesses, judge
from madlite.plan.make import secrets_of
from madlite.plugins import Plugins
from madlite.run.docker_request import secrets_asked
from madlite.run.folder import HANDLE, LOG, RECORD, RunFolder
from madlite.run.log import RunLog
from madlite.run.watch import Interrupted, Signals, Watch
from madlite.secrets import Redactor, assigned, collect
from madlite.types import Action, Backend, Cause, Reader, Result, RunPlan, Runtime, Session, Status, Step, to_json

_log = logging.getLogger(__name__)
_PHASES = {
    "clone": "cloning the repository",
    "data": "fetching data",
    "run": "running",
    "prepare": "preparing",
}
# madengine 1 has the first, madengine 2 the parts as well
LOG_END, BUILD_LOG_END, RUN_LOG_END = ".live.log", ".build.live.log", ".run.live.log"


class OneRun:
    """One run while it goes on."""

    def __init__(
        self,
        one: Planned,
        plugins: Plugins,
        screen: Screen,
        secrets: Iterable[str],
        signals: Signals,
        clock: Callable[[], float],
    ) -> None:
        self.one, self.plan = one, one.plan
        self.plugins, self.screen, self.signals, self.clock = plugins, screen, signals, clock
        self.began = clock()
        self.started = datetime.now(timezone.utc).isoformat(timespec="seconds")
        self.account = Account(self._follower())
        self.watch = Watch(self.plan.timeout_s, self.plan.stop_grace_s, screen.stopping)
        self._secrets = tuple(secrets)
        self.mask = Redactor(self._secrets).text

    def run(self, save: Callable[[Result], None]) -> Result:
        """Run the plan to its verdict; a workload's failure is a result, never an exception.

        `save` writes the rows. It comes before the folder's record, which says that the run is done with: killed in
        between, the run has its row and is told as cut off, never the other way round.
        """
        why = self.plan.blocked
        try:
            if why is None:
                with claimed(self.plan, self._wait_for_another) as self.plan:
                    return self._run(save)
            verdict = Verdict(status=why.status, cause=why.cause, reason=why.reason)
        except Interrupted:
            verdict = _failed(Cause.INTERRUPTED, self.signals.reason.text)
        except RuntimeProblem as problem:
            verdict = _failed(_cause(problem.cause), problem.message)
        except UsageProblem as problem:  # the disk is full, say, since the batch began
            verdict = _failed(Cause.PREPARE, problem.message)
        finally:
            self.watch.close()
        result = self._result(verdict)
        save(result)
        return result

    def broken(self, bug: Exception) -> Result:
        """Return the result of a run that a bug of madlite ended."""
        return self._result(_failed(Cause.INTERNAL, f"internal error: {type(bug).__name__}: {bug}"))

    def _wait_for_another(self) -> bool:
        self.screen.phase(f"waiting for another run of this folder that writes {self.plan.result_rule.file}")
        return self.signals.received is None

    def _run(self, save: Callable[[Result], None]) -> Result:
        folder = RunFolder.create(self.plan, [(file.path, file.data) for file in self.one.files], self._secrets)
        try:
            log = self._open_log(folder)
            try:
                self.plugins.notify("madlite_run_started", plan=self.plan)
                verdict = self._attempt(folder, log)
                if verdict.status is Status.FAILURE:
                    log.say(f"madlite: {verdict.status.value} {verdict.reason}")
            finally:
                log.close()
            findings = (*verdict.findings, *self.account.image.notes, *([log.problem] if log.problem else []))
            result = self._result(replace(verdict, findings=findings))
            save(result)
            problem = _write(folder, RECORD, to_json(result))  # a full disk costs the record, not the verdict
            return replace(result, findings=(*result.findings, problem)) if problem else result
        finally:
            folder.close()

    def _attempt(self, folder: RunFolder, log: RunLog) -> Verdict:
        """Prepare, open, act, judge; every way in which this can fail becomes a verdict."""
        try:
            self._prepare(log)
            seen = self._in_session(folder, log)
        except Interrupted:
            return _failed(Cause.INTERRUPTED, self.signals.reason.text)
        except RuntimeProblem as problem:
            reason = problem.message + (f"; {problem.hint}" if problem.hint else "")
            return _failed(_cause(problem.cause), reason)
        except MadliteError as problem:
            return _failed(Cause.PREPARE, problem.message)
        return judge(self.plan, seen, self.account.follower)

    def _prepare(self, log: RunLog) -> None:
        def say(text: str) -> None:
            log.say(text)
            self.screen.phase(self.mask(text))

        image = self.plan.image
        builds = image is not None and image.dockerfile is not None and not image.prebuilt
        try:
            with self.signals.interruptible(), _border(self.one.runtime):
                self.account.image = self.one.runtime.prepare(self.plan, say)
        finally:
            if builds:
                log.keep_as(self._beside(BUILD_LOG_END))
        (log.split if builds else log.link)(self._beside(RUN_LOG_END))
        if builds and self.account.image.build_duration_s is not None:
            self.account.durations_s["build"] = self.account.image.build_duration_s
        if self.plan.timeout_s is not None:
            log.say(f"⏰ Setting timeout to {self.plan.timeout_s:.0f} seconds.")  # as MAD's tooling looks for it

    def _in_session(self, folder: RunFolder, log: RunLog) -> Witnesses:
        """Hold the session open while the actions run; ended from outside, that is what counts."""
        results = ResultsFile(self.plan)
        seen = Witnesses()
        self.signals.watch = self.watch
        try:
            if self.signals.received is not None:
                raise Interrupted
            with _border(self.one.runtime), self.one.runtime.open(self.plan) as session, self.watch.guard(session):
                _write(folder, HANDLE, session.handle)
                seen = self._act(session, log, results)
                self.account.follower.finish(folder.path)
                seen = replace(seen, results=results.read())
                self._hand_up(session, seen)
                self._clean(session, log)
        except RuntimeProblem:
            if self.watch.reason is None:
                raise
        finally:
            self.signals.watch = None
        reason = self.watch.reason
        return replace(seen, stopped=reason.cause, stopped_text=reason.text) if reason else seen

    def _act(self, session: Session, log: RunLog, results: ResultsFile) -> Witnesses:
        """Run the actions in their order; one that fails is the last."""
        for action in self.plan.actions:
            if action.kind == "clean" or (action.kind == "run" and self.plan.skip_model_run):
                continue
            if self.watch.reason is not None:
                break
            self.screen.phase(_phase(action))
            if action.kind == "run":
                results.begin()
            self.account.begin(action.kind, self.clock())
            try:
                ended = session.run(action, log.feed)
            except RuntimeProblem:
                self.account.cut_off(self.clock())
                raise
            log.settle()
            self.account.end(ended)
            if ended.code != 0:
                failed = "" if action.kind == "run" else action.kind
                return Witnesses(exit=ended, failed_action=failed, failed_line=self.account.telling_line)
        return Witnesses(exit=self.account.ran, skipped=self.plan.skip_model_run)

    def _hand_up(self, session: Session, seen: Witnesses) -> None:
        """Copy what a run that went well left for the workspace up into it."""
        if self.plan.outputs and seen.exit is not None and seen.exit.code == 0 and not seen.failed_action:
            patterns = [f"{self.plan.model_dir}/{pattern}" for pattern in self.plan.outputs]
            if any(True for pattern in patterns for _ in self.plan.workspace.glob(pattern)):
                session.collect(patterns, self.plan.workspace)

    def _clean(self, session: Session, log: RunLog) -> None:
        """Remove what the run made in the workspace; a run that was ended leaves it for inspection, as MAD does."""
        if self.watch.reason or self.plan.keep_alive or self.plan.keep_model_dir:
            return
        for action in self.plan.actions:
            if action.kind == "clean":
                try:
                    session.run(action, log.feed)
                except RuntimeProblem as problem:
                    _log.warning("%s was not cleaned: %s", self.plan.model_dir, problem.message)

    def _follower(self) -> Follower:
        return Follower(
            [reader for reader in map(self._reader, self.one.backends) if reader is not None],
            self.plugins.failure_rules(),
            error_scan=self.plan.error_scan,
            now=lambda: self.clock() - self.began,
            on_step=self._step,
        )

    def _reader(self, backend: Backend) -> Reader | None:
        reader: Reader | None = self.plugins.ask(backend, "reader", self.plan, otherwise=None)
        return reader

    def _step(self, step: Step) -> None:
        self.screen.step(self.plan, step)
        self.plugins.notify("madlite_run_step", plan=self.plan, step=step)

    def _open_log(self, folder: RunFolder) -> RunLog:
        legacy = [self._beside(LOG_END)] if self.plan.log_name else []
        return RunLog(folder.path / LOG, legacy, self._secrets, [self.screen.output], self.account.feed)

    def _beside(self, end: str) -> Path:
        """Return the place of a log in the workspace, where MAD's tooling looks for it."""
        return self.plan.workspace / f"{self.plan.log_name}{end}"

    def _result(self, verdict: Verdict) -> Result:
        self.account.durations_s["total"] = self.clock() - self.began
        return masked(self.account.result(self.plan, verdict, self.started), self.mask)


def _phase(action: Action) -> str:
    if action.kind in ("pre", "post"):
        return f"{action.kind}-script {Path(action.argv[-1]).name}"
    return _PHASES.get(action.kind, action.kind)


def _write(folder: RunFolder, name: str, text: str) -> str:
    """Write a file of the run's folder; return what kept it from being written."""
    try:
        folder.write(name, text.encode("utf-8", "backslashreplace"))
    except OSError as error:
        return f"{name} could not be written: {error.strerror}"
    return ""


@contextmanager
def _border(runtime: Runtime) -> Iterator[None]:
    """Turn what a runtime raises beyond its contract into its failure: it may be a plugin's."""
    try:
        yield
    except (MadliteError, Interrupted):
        raise
    except Exception as error:
        _log.debug("runtime %s", runtime.name, exc_info=True)
        what = f"runtime '{runtime.name}' failed: {type(error).__name__}: {error}"
        raise RuntimeProblem(what, cause=Cause.INTERNAL) from error


def secrets_for(plan: RunPlan, environ: dict[str, str]) -> tuple[str, ...]:
    """Return every secret text that a run's output must not show."""
    spelled = assigned((plan.args, plan.run_args, *(word for action in plan.actions for word in action.argv)))
    return (*collect(environ, secrets_of(plan).values(), secrets_asked(plan, environ)), *spelled)


def _failed(cause: Cause, reason: str) -> Verdict:
    return Verdict(status=Status.FAILURE, cause=cause, reason=reason)


def _cause(name: str) -> Cause:
    return Cause(name) if name in {cause.value for cause in Cause} else Cause.PREPARE
