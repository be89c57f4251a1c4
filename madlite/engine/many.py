"""A batch of plans, one after another, each with its rows; what a signal leaves unstarted is named."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from madlite.engine.keep import Keeping
from madlite.engine.one import OneRun, secrets_for
from madlite.engine.screen import Outcome, Planned, Screen
from madlite.errors import ExitCode
from madlite.plan.options import Options
from madlite.plugins import Plugins
from madlite.run.batch import Asked, Batch
from madlite.run.watch import Signals
from madlite.types import Cause, Result, Status


def run_many(
    planned: Sequence[Planned],
    options: Options,
    plugins: Plugins,
    screen: Screen,
    clock: Callable[[], float] = time.monotonic,
    batch: Batch | None = None,
) -> Outcome:
    """Run all of them; after INT, TERM or HUP the running one is ended and the rest is not started.

    `batch` notes on the disk how far it is, for the next command if this one is killed.
    """
    results: list[Result] = []
    aside: list[str] = []
    bug = None
    batch = batch or Batch()
    batch.ask(Asked(id=one.plan.id, card=one.plan.card.name) for one in planned)
    with Signals() as signals:
        for position, one in enumerate(planned, 1):
            if signals.received is not None:
                break
            screen.started(one.plan, position, len(planned))
            batch.begin(one.plan.id)
            secrets = secrets_for(one, options.environ)
            run = OneRun(one, plugins, screen, secrets, signals, clock, options.environ)
            keeping = Keeping(one, options, screen, run.mask)
            result, bug = _run(run, keeping)
            if keeping.saved:
                batch.end(one.plan.id)
            aside += [] if keeping.saved else [one.plan.card.name]
            screen.finished(one.plan, result)
            plugins.notify("madlite_run_finished", plan=one.plan, result=result)
            results.append(result)
            if bug is not None:
                break
        code = signals.exit_code or (ExitCode.RUN_FAILED if aside else exit_code(results))
    rest = tuple(one.plan.card.name for one in planned[len(results) :])
    return Outcome(results=tuple(results), not_started=rest, exit_code=code, bug=bug, kept_aside=tuple(aside))


def _run(run: OneRun, keeping: Keeping) -> tuple[Result, Exception | None]:
    """Run one to its end and keep it; with it comes a bug of ours, which ends the batch once all is safe."""

    def save(result: Result) -> Result:
        return keeping.keep(result, run.account.follower.steps, run.folder)

    try:
        return run.run(save), None
    except Exception as error:  # noqa: BLE001 - told by the caller, once the row and the rest are safe
        return save(run.broken(error)), error
    finally:
        run.close()


def exit_code(results: Iterable[Result]) -> ExitCode:
    """Return 3 where a run failed, 2 where every failure is a failed build, else 0."""
    causes = [result.cause for result in results if result.status is Status.FAILURE]
    if not causes:
        return ExitCode.OK
    return ExitCode.BUILD_FAILED if all(cause is Cause.BUILD for cause in causes) else ExitCode.RUN_FAILED
