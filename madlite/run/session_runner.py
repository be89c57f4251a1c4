"""What happens in one run's session: its actions, one by one, and what is seen of them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from msgspec.structs import replace

from madlite.cancellation import Interrupted
from madlite.errors import MadliteError, RuntimeProblem
from madlite.files import read_inside
from madlite.machine.processes import RUN_MARK
from madlite.measure.multiple import FileBefore, FileResults, is_fresh, is_touched, results_since, stamp, unreadable
from madlite.measure.performance import result_lines
from madlite.measure.verdict import Observation
from madlite.model import Action, Cause, Exit, JobOutcome, RunPlan, Runtime, Session, Sink
from madlite.run.instrumentation import Instrumentation
from madlite.run.log import RunLog
from madlite.run.screen import PlannedRun, RunEvents
from madlite.run.state import MadLog, RunState
from madlite.run.stop import StopControl
from madlite.store.folder import HANDLE, VIEW, RunFolder
from madlite.store.mounts import copy_whole
from madlite.store.special_files import left_text, special_files

# The `multiple_results` file of a run: found where scripts leave it, and only when this run wrote it.


class ResultsFile:
    """Remembers what lay there before the run, so that a left-over is never taken for a result."""

    def __init__(self, plan: RunPlan) -> None:
        rule = plan.result_rule
        self._root, self._target = plan.workspace, plan.workspace / rule.file
        wanted = rule.kind == "multiple_results"
        self._paths = (plan.workspace / plan.model_dir / rule.file, self._target) if wanted else ()
        self._before: dict[Path, FileBefore | None] = {}
        self._begun_ns = 0

    def begin(self) -> None:
        """Note what is there now that the script starts: a clone or a copy of scripts may have brought one along."""
        self._before = {path: stamp(path, self._content(path)) for path in self._paths}
        self._begun_ns = time.time_ns()

    def read(self) -> FileResults | None:
        """Return the results, and copy the file up into the workspace, as MAD's tooling expects it there."""
        fresh = next((p for p, before in self._before.items() if is_fresh(p, before, self._begun_ns)), None)
        if fresh is None:
            return None
        before = self._before[fresh]
        touched = is_touched(fresh, before)
        try:
            read = results_since(fresh.name, read_inside(fresh, self._root), before, touched=touched)
        except OSError as error:
            return unreadable(fresh.name, error)
        if fresh != self._target:
            copy_whole(fresh, self._target, self._root)
        return read

    def _content(self, path: Path) -> bytes:
        with suppress(OSError, ValueError):
            return read_inside(path, self._root)
        return b""


_TEXTS, _LIVE = (".log", ".txt", ".out"), ".live.log"  # what a script may keep its output in; and what madlite writes
_MOST_FILES, _MOST_BYTES = 50, 1 << 20  # of a folder, and of a file


def earlier_lines(plan: RunPlan) -> frozenset[str]:
    """Return the result lines of text files that are there before the script starts: it may append, and print them."""
    found: set[str] = set()
    for folder in (plan.workspace / plan.model_dir, plan.workspace):
        with suppress(OSError):
            files = sorted(path for path in folder.iterdir() if path.suffix in _TEXTS and not path.name.endswith(_LIVE))
            for file in files[:_MOST_FILES]:
                with suppress(OSError, ValueError):
                    found |= result_lines(read_inside(file, plan.workspace, limit_bytes=_MOST_BYTES))
    return frozenset(found)


_log = logging.getLogger(__name__)
_T = TypeVar("_T")
_PHASES = {
    "clone": "cloning the repository",
    "data": "fetching data",
    "run": "running",
    "prepare": "preparing",
}


class SessionRunner:
    """Holds a run's session open while its actions run."""

    def __init__(
        self,
        run: PlannedRun,
        state: RunState,
        stop: StopControl,
        screen: RunEvents,
        clock: Callable[[], float],
        instrumentation: Instrumentation,
        mad_log: MadLog,
        on_open: Callable[[str], None],
    ) -> None:
        self.planned, self.plan = run, run.plan
        self.state, self.stop, self.screen, self.clock = state, stop, screen, clock
        self.instrumentation, self.mad_log = instrumentation, mad_log
        self._on_open = on_open  # gets the session's handle
        self.session: Session | None = None  # while it is open

    def act(self, folder: RunFolder, log: RunLog) -> Observation:
        """Hold the session open while the actions run; ended from outside, that is what counts."""
        results = ResultsFile(self.plan)
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
                self._on_open(session.handle)
                self.state.shell, self.state.node_names = session.shell, session.nodes
                self.session = session
                observed = self._act(session, folder, log, results)
                collect_problem = self._collect_files(session, folder)
                self.state.monitor.finish(folder.work)
                observed = replace(observed, results=results.read())
                if (
                    collect_problem is not None
                    and _succeeded(observed)
                    and self.plan.result_rule.kind == "multiple_results"
                ):
                    raise collect_problem
                if collect_problem is None:
                    self._copy_outputs(session, observed)
                self._clean(session, log)
        except RuntimeProblem:
            if self.stop.reason is None or self.stop.reason.cause is Cause.NONE:
                raise
        finally:
            self.state.notes = (*session.notes, *self._special_files(folder)) if session is not None else ()
            self.session = None
        reason = self.stop.reason
        if reason is None:
            return observed
        if reason.cause is Cause.NONE:
            return replace(observed, ended_early=reason.text)
        self.state.hint = reason.hint or self.state.hint
        return replace(observed, stopped=reason.cause, stopped_text=reason.text, stopped_line=reason.evidence)

    def _special_files(self, folder: RunFolder) -> Iterator[str]:
        """Yield what to tell of setuid and setgid files and device nodes that the workload, root in there, has left."""
        traits, made = self.plan.traits, folder.path / VIEW / folder.path.name  # for the container, right before it
        if traits.containerised and traits.local and traits.shares_files:
            with suppress(OSError):
                found = special_files(self.plan.workspace, made.lstat().st_ctime_ns, folder.path)
                yield from filter(None, [left_text(found)])

    def _act(self, session: Session, folder: RunFolder, log: RunLog, results: ResultsFile) -> Observation:
        """Run the actions in their order; one that fails is the last."""
        skipped = ("clean", "run") if self.plan.skip_model_run else ("clean",)
        actions = [action for action in self.plan.actions if action.kind not in skipped]
        for action in actions:
            if self.stop.reason is not None:
                break
            self.screen.action(action.kind, _phase(action))
            self.mad_log.before(action)
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
            self.state.end(ended)
            self.mad_log.after(action, ended)
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


def check_type(value: object, kind: type[_T], what: str, runtime: Runtime) -> _T:
    """Return what a runtime answered.

    Raises:
        RuntimeProblem: it is something else, as a plugin's may be.
    """
    if isinstance(value, kind):
        return value
    text = f"runtime '{runtime.name}' failed: {what} answered {value!r}, not a madlite.{kind.__name__}"
    raise RuntimeProblem(text, cause=Cause.INTERNAL)


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


@contextmanager
def guard_plugin(runtime: Runtime) -> Iterator[None]:
    """Turn what a runtime raises beyond its contract into its failure: it may be a plugin's."""
    try:
        yield
    except (MadliteError, Interrupted):
        raise
    except Exception as error:
        _log.debug("runtime %s", runtime.name, exc_info=True)
        what = f"runtime '{runtime.name}' failed: {type(error).__name__}: {error}"
        raise RuntimeProblem(what, cause=Cause.INTERNAL) from error
