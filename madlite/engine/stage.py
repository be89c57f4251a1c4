"""What happens in one run's session: its actions, one by one, and what is seen of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec.structs import replace

from madlite.engine.account import Account
from madlite.engine.mad_log import MadLog
from madlite.engine.results_file import ResultsFile
from madlite.engine.screen import Planned, Screen
from madlite.engine.senses import Senses
from madlite.errors import MadliteError, RuntimeProblem
from madlite.measure.verdict import Witnesses
from madlite.run.folder import HANDLE, RunFolder
from madlite.run.log import RunLog, Sink
from madlite.run.watch import Interrupted, Signals, Watch
from madlite.types import Action, Cause, Runtime, Session

_log = logging.getLogger(__name__)
_PHASES = {
    "clone": "cloning the repository",
    "data": "fetching data",
    "run": "running",
    "prepare": "preparing",
}


class Stage:
    """Holds a run's session open while its actions run."""

    def __init__(
        self,
        one: Planned,
        account: Account,
        watch: Watch,
        screen: Screen,
        clock: Callable[[], float],
        senses: Senses,
        told: MadLog,
    ) -> None:
        self.one, self.plan = one, one.plan
        self.account, self.watch, self.screen, self.clock = account, watch, screen, clock
        self.senses, self.told = senses, told

    def act(self, folder: RunFolder, log: RunLog, signals: Signals) -> Witnesses:
        """Hold the session open while the actions run; ended from outside, that is what counts."""
        results = ResultsFile(self.plan)
        seen = Witnesses()
        session: Session | None = None
        signals.watch = self.watch
        try:
            if signals.received is not None:
                raise Interrupted
            with border(self.one.runtime), self.one.runtime.open(self.plan) as session, self.watch.guard(session):
                folder.put(HANDLE, session.handle)
                seen = self._act(session, folder, log, results)
                self.account.follower.finish(folder.work)
                seen = replace(seen, results=results.read())
                self._hand_up(session, seen)
                self._clean(session, log)
        except RuntimeProblem:
            if self.watch.reason is None:
                raise
        finally:
            signals.watch = None
            self.account.notes = session.notes if session is not None else ()
        reason = self.watch.reason
        if reason is None:
            return seen
        self.account.hint = reason.hint or self.account.hint
        return replace(seen, stopped=reason.cause, stopped_text=reason.text, stopped_line=reason.evidence)

    def _act(self, session: Session, folder: RunFolder, log: RunLog, results: ResultsFile) -> Witnesses:
        """Run the actions in their order; one that fails is the last."""
        for action in self.plan.actions:
            if action.kind == "clean" or (action.kind == "run" and self.plan.skip_model_run):
                continue
            if self.watch.reason is not None:
                break
            self.screen.phase(_phase(action))
            self.told.before(action)
            if action.kind == "run":
                results.begin()
                with self.watch.off_the_clock():
                    self.senses.look(session, action)
            self.account.begin(action.kind, self.clock())
            try:
                with self._following(action, session, folder, log) as feed:
                    ended = session.run(action, feed)
            except RuntimeProblem:
                self.account.cut_off(self.clock())
                raise
            log.settle()
            self.account.end(ended)
            self.told.after(action, ended)
            if ended.code != 0:
                failed = "" if action.kind == "run" else action.kind
                return Witnesses(exit=ended, failed_action=failed, failed_line=self.account.telling_line)
        return Witnesses(exit=self.account.ran, skipped=self.plan.skip_model_run)

    @contextmanager
    def _following(self, action: Action, session: Session, folder: RunFolder, log: RunLog) -> Iterator[Sink]:
        """Watch over the model's own step and sample its GPUs; other actions are short."""
        if action.kind != "run":
            yield log.feed
            return
        with self.watch.following(log.feed) as feed, self.senses.sampling(session, folder.files):
            yield feed

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


def _phase(action: Action) -> str:
    if action.kind in ("pre", "post"):
        return f"{action.kind}-script {Path(action.argv[-1]).name}"
    return _PHASES.get(action.kind, action.kind)


@contextmanager
def border(runtime: Runtime) -> Iterator[None]:
    """Turn what a runtime raises beyond its contract into its failure: it may be a plugin's."""
    try:
        yield
    except (MadliteError, Interrupted):
        raise
    except Exception as error:
        _log.debug("runtime %s", runtime.name, exc_info=True)
        what = f"runtime '{runtime.name}' failed: {type(error).__name__}: {error}"
        raise RuntimeProblem(what, cause=Cause.INTERNAL) from error
