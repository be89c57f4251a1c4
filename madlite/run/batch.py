"""A batch of plans, one after another or some at once, each with its rows; what a signal leaves unstarted is named."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from msgspec.structs import replace

from madlite.backends.loader import Plugins
from madlite.errors import ExitCode
from madlite.model import Cause, Result, Status
from madlite.plan.options import Options
from madlite.results.batch_journal import Asked, BatchJournal
from madlite.run.keep import ResultWriter
from madlite.run.one import Run, secrets_for
from madlite.run.screen import Outcome, Planned, Screen
from madlite.run.signals import Signals
from madlite.run.stop import StopControl
from madlite.run.watchdog.reasons import StopReason

STOPPED = StopReason(cause=Cause.INTERRUPTED, text="stopped")


class Batch:
    """Plans on their way to results; `at_once` of them run at the same time.

    `journal` notes on the disk how far it is, for the next command if this one is killed.  A run knows nothing of
    the others: each has its stop, its log and its events, and is written when it ends.
    """

    def __init__(
        self,
        planned: Sequence[Planned],
        options: Options,
        plugins: Plugins,
        screen: Screen,
        clock: Callable[[], float] = time.monotonic,
        journal: BatchJournal | None = None,
        at_once: int = 1,
    ) -> None:
        self._options, self._plugins, self._screen = options, plugins, screen
        self._clock, self._journal, self._at_once = clock, journal or BatchJournal(), at_once
        self._planned = [replace(one, plan=replace(one.plan, batch=self._journal.id)) for one in planned]
        self._one = threading.Lock()  # of all below
        self._next = 0
        self._stop: StopReason | None = None  # of the whole batch
        self._stops: dict[str, StopControl] = {}  # of the runs that go on
        self._results: dict[int, Result] = {}
        self._kept_aside: list[int] = []
        self._bug: Exception | None = None

    def run(self, signals: Signals | None = None) -> Outcome:
        """Run all of them; after INT, TERM or HUP those that go on are ended and the rest is not started."""
        self._journal.ask(Asked(id=one.plan.id, card=one.plan.card.name) for one in self._planned)
        with ExitStack() as stack:
            signals = signals or stack.enter_context(Signals())
            stack.enter_context(signals.passing_to(self.stop))
            signals.watch_over(self._work_all)
            code = signals.exit_code
        return self._outcome(code)

    def stop(self, reason: StopReason = STOPPED, run_id: str | None = None) -> None:
        """End one run, or all that go on and start no other; safe from any thread.  A second time, kill at once."""
        with self._one:
            if run_id is None:
                self._stop = self._stop or reason
            stops = [stop for name, stop in self._stops.items() if run_id in (None, name)]
        for stop in stops:
            stop.request(reason)

    def _work_all(self) -> None:
        """Have as many threads as runs may go on at once; this one is the first."""
        raised: list[BaseException] = []

        def work() -> None:
            try:
                self._work()
            except BaseException as error:  # noqa: BLE001 - raised below, in the thread that waits
                raised.append(error)

        threads = [threading.Thread(target=work, name="madlite-run") for _ in range(1, self._at_once)]
        for thread in threads:
            thread.start()
        work()
        for thread in threads:
            thread.join()
        if raised:
            raise raised[0]

    def _work(self) -> None:
        while (position := self._take()) is not None:
            one = self._planned[position]
            self._screen.started(one.plan, position + 1, len(self._planned))
            self._journal.begin(one.plan.id)
            result, saved, bug = self._run(one)
            if saved:
                self._journal.end(one.plan.id)
            self._screen.finished(one.plan, result)
            self._plugins.notify("madlite_run_finished", plan=one.plan, result=result)
            self._note(position, result, saved, bug)

    def _take(self) -> int | None:
        with self._one:
            position = self._next
            if self._stop is not None or self._bug is not None or position == len(self._planned):
                return None
            self._next += 1
            return position

    @contextmanager
    def _stoppable(self, run: Run) -> Iterator[None]:
        """Let a run be stopped from outside; it is at once where the batch was before."""
        run_id = run.plan.id
        with self._one:
            self._stops[run_id] = run.stop
            asked = self._stop
        if asked is not None:
            run.stop.request(asked)
        try:
            yield
        finally:
            with self._one:
                del self._stops[run_id]

    def _run(self, one: Planned) -> tuple[Result, bool, Exception | None]:
        """Run one to its end and write it; with it comes a bug of ours, which ends the batch once all is safe."""
        environ = self._options.environ
        bug: Exception | None = None
        secrets = secrets_for(one, environ)
        with Run(one, self._plugins, self._screen, secrets, self._clock, environ) as run, self._stoppable(run):
            writer = ResultWriter(one, self._options, self._screen, run.mask)
            try:
                result = writer.write(run.run(), run.account.follower.steps, run.folder)
            except Exception as error:  # noqa: BLE001 - told by the caller, once the row and the rest are safe
                bug = error
                result = writer.write(run.broken(error), run.account.follower.steps, run.folder)
            run.progress.ended(result)
            return result, writer.saved, bug

    def _note(self, position: int, result: Result, saved: bool, bug: Exception | None) -> None:
        with self._one:
            self._results[position] = result
            self._kept_aside += [] if saved else [position]
            self._bug = self._bug or bug

    def _outcome(self, code: ExitCode | None) -> Outcome:
        results = tuple(self._results[position] for position in sorted(self._results))
        names = [one.plan.card.name for one in self._planned]
        return Outcome(
            results=results,
            not_started=tuple(name for position, name in enumerate(names) if position not in self._results),
            exit_code=code or (ExitCode.RUN_FAILED if self._kept_aside else exit_code(results)),
            bug=self._bug,
            kept_aside=tuple(names[position] for position in sorted(self._kept_aside)),
        )


def run_batch(
    planned: Sequence[Planned],
    options: Options,
    plugins: Plugins,
    screen: Screen,
    clock: Callable[[], float] = time.monotonic,
    journal: BatchJournal | None = None,
) -> Outcome:
    """Run all of them, one after another, as `Batch.run` does."""
    return Batch(planned, options, plugins, screen, clock, journal).run()


def exit_code(results: Iterable[Result]) -> ExitCode:
    """Return 3 where a run failed, 2 where every failure is a failed build, else 0."""
    causes = [result.cause for result in results if result.status is Status.FAILURE]
    if not causes:
        return ExitCode.OK
    return ExitCode.BUILD_FAILED if all(cause is Cause.BUILD for cause in causes) else ExitCode.RUN_FAILED
