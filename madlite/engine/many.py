"""A batch of plans, one after another, each with its rows; what a signal leaves unstarted is named."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence

from madlite.engine.one import OneRun, secrets_for
from madlite.engine.screen import Outcome, Planned, Screen
from madlite.errors import ExitCode, RecordError
from madlite.plan.options import Options
from madlite.plugins import Plugins
from madlite.record.perfcsv import append_rows, save_beside
from madlite.record.rows import build_rows, masked_rows
from madlite.record.sidefiles import write_side_files
from madlite.run.watch import Signals
from madlite.types import Cause, Result, Row, RunPlan, Status

_log = logging.getLogger(__name__)


def run_many(
    planned: Sequence[Planned],
    options: Options,
    plugins: Plugins,
    screen: Screen,
    clock: Callable[[], float] = time.monotonic,
) -> Outcome:
    """Run all of them; after INT, TERM or HUP the running one is ended and the rest is not started."""
    results: list[Result] = []
    saved: list[bool] = []
    bug = None
    with Signals() as signals:
        for position, one in enumerate(planned, 1):
            if signals.received is not None:
                break
            screen.started(one.plan, position, len(planned))
            run = OneRun(one, plugins, screen, secrets_for(one.plan, options.environ), signals, clock)

            def save(result: Result, run: OneRun = run) -> None:
                saved.append(record(run.plan, result, options, screen, run.mask))

            try:
                result = run.run(save)
            except Exception as error:  # noqa: BLE001 - told by the caller, once the row and the rest are safe
                bug, result = error, run.broken(error)
                if len(saved) == len(results):
                    save(result)
            screen.finished(one.plan, result)
            plugins.notify("madlite_run_finished", plan=one.plan, result=result)
            results.append(result)
            if bug is not None:
                break
        code = exit_code(results) if all(saved) else ExitCode.RUN_FAILED
        rest = tuple(one.plan.card.name for one in planned[len(results) :])
        return Outcome(results=tuple(results), not_started=rest, exit_code=signals.exit_code or code, bug=bug)


def record(plan: RunPlan, result: Result, options: Options, screen: Screen, mask: Callable[[str], str] = str) -> bool:
    """Append the run's rows and say whether they are where they belong; if not, they are kept in the run's folder.

    The side files follow; what keeps one of them from being written is said, and costs no row.
    """
    if not plan.writes_row or (plan.skip_model_run and result.status is not Status.FAILURE):
        return True
    rows = build_rows(
        plan,
        result,
        pipeline=options.environ.get("pipeline", ""),
        build_number=options.environ.get("BUILD_NUMBER", "0"),
        strict_header=options.strict_header,
    )
    rows = masked_rows(rows, mask)
    saved = True
    try:
        append_rows(options.output, rows, strict_header=options.strict_header)
    except (RecordError, OSError) as problem:
        screen.warn(f"no row in {options.output}: {problem}; {_keep(rows, plan)}")
        saved = False
    _write_beside(plan, result, options, screen, mask)
    return saved


def _write_beside(plan: RunPlan, result: Result, options: Options, screen: Screen, mask: Callable[[str], str]) -> None:
    pipeline, build_number = options.environ.get("pipeline", ""), options.environ.get("BUILD_NUMBER", "0")
    try:
        problems = write_side_files(plan, result, pipeline=pipeline, build_number=build_number, mask=mask)
    except Exception as bug:  # noqa: BLE001 - the row is there: raised here, it would be written a second time
        _log.debug("side files of %s", plan.id, exc_info=True)
        problems = (f"internal error in the files beside perf.csv: {type(bug).__name__}: {bug}",)
    for problem in problems:
        screen.warn(problem)


def _keep(rows: Sequence[Row], plan: RunPlan) -> str:
    """Keep rows that perf.csv did not take, and say where; where even that fails, say the rows themselves."""
    try:
        plan.folder.mkdir(parents=True, exist_ok=True)
        return f"it is kept in {save_beside(rows, plan.folder)}"
    except (RecordError, OSError) as problem:
        return f"it cannot be kept either ({problem}): {[row.cells for row in rows]}"


def exit_code(results: Iterable[Result]) -> ExitCode:
    """Return 3 where a run failed, 2 where every failure is a failed build, else 0."""
    causes = [result.cause for result in results if result.status is Status.FAILURE]
    if not causes:
        return ExitCode.OK
    return ExitCode.BUILD_FAILED if all(cause is Cause.BUILD for cause in causes) else ExitCode.RUN_FAILED
