"""A run's log read again, as the run read it: by the readers and the rules of its plan, and judged by that plan.

What the log does not have is taken from the record: the exit code, and what ended the run from outside.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from madlite.backends.loader import Plugins
from madlite.errors import UsageProblem
from madlite.files import read_inside, read_regular
from madlite.measure.checks.table import Observation
from madlite.measure.monitor import LogMonitor
from madlite.measure.multiple import FileResults, parse_results
from madlite.measure.parse_log import AutoDetectReader
from madlite.measure.rules import with_common
from madlite.measure.verdict import Verdict, judge
from madlite.model import Cause, Exit, Reader, RunPlan, Status, Value
from madlite.process import call_within
from madlite.reports.log import read_log
from madlite.store.folder import LOG, PLAN, WORK
from madlite.store.log_file import LEFT_OUT
from madlite.store.record import Record

_LIMIT_PLAN_BYTES = 64 << 20
_LIMIT_S, _SLOWEST_BYTES_PER_S = 60, 2 << 20  # of a log that is read by patterns of elsewhere
_Found = TypeVar("_Found")
STOPS = (Cause.TIMEOUT, Cause.HANG, Cause.INTERRUPTED)
"""What ended a run from outside, whatever its log has."""


class Reread(Value, frozen=True):
    """What a log gives: the verdict, and the steps and figures it was made from; how much of it is missing."""

    log: LogMonitor
    verdict: Verdict
    missing_bytes: int = 0


def load_plan(folder: Path) -> RunPlan:
    """Return the plan of a run.

    Raises:
        UsageProblem: it has none that this madlite reads.
    """
    try:
        return msgspec.json.decode(read_regular(folder / PLAN, _LIMIT_PLAN_BYTES), type=RunPlan, dec_hook=_decode)
    except OSError as error:
        raise UsageProblem(f"{PLAN}: {error.strerror}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise UsageProblem(f"{PLAN}: {error}") from error


def _decode(kind: type, value: Any) -> Any:
    if kind is Path and isinstance(value, str):
        return Path(value)
    raise NotImplementedError(kind)


@cache
def load_readers(plugins: Plugins) -> None:
    """Load what reads logs, before processes are made that would each load it again; no plan has a part in it."""
    log = LogMonitor([], with_common(plugins.failure_rules(), None), script_reader=AutoDetectReader(plugins, ()))
    log.feed(b"a line\n")
    log.finish()


def limited(folder: Path, read: Callable[[], _Found]) -> _Found:
    """Return what is read of a log by the patterns of its run's plan, which somebody else made: it may never end.

    Raises:
        UsageProblem: it took too long, or what `read` raises.
    """
    try:
        size = (folder / LOG).lstat().st_size
    except OSError:
        size = 0
    limit_s = _LIMIT_S + size / _SLOWEST_BYTES_PER_S
    try:
        return call_within(limit_s, read)
    except TimeoutError:
        why = f"was not read within {limit_s:.0f} s"
    except ChildProcessError as error:
        why = f"could not be read: {error}"
    what = f"the log of run {folder.name} {why}, by the patterns of its plan, which came from elsewhere"
    raise UsageProblem(what, f"madlite log {folder.name} | madlite parse -   reads it without its plan")


def reread(folder: Path, record: Record, plan: RunPlan, plugins: Plugins, workspace: Path | None) -> Reread:
    """Read a run's log again; `workspace` is where a results file may still lie, None for an archive's.

    Raises:
        UsageProblem: it has no log, or one of its readers is not installed here.
    """
    log, missing = _monitor(plan, plugins), 0
    for chunk in read_log(folder):
        if b"bytes left out here" in chunk:
            missing += sum(int(found[1]) for found in LEFT_OUT.finditer(chunk))
        log.feed(chunk)
    log.finish(folder / WORK if record.containerised else folder)
    return Reread(log=log, verdict=judge(plan, _observed(record, plan, workspace), log), missing_bytes=missing)


def _monitor(plan: RunPlan, plugins: Plugins) -> LogMonitor:
    backends = plugins.backends()
    names = dict.fromkeys(plan.readers or (plan.backend,))
    if missing := [name for name in names if name not in backends]:
        raise UsageProblem(f"the plugin of its backend '{missing[0]}' is not installed here")
    readers: list[Reader | None] = [plugins.query(backends[name][0], "reader", plan, otherwise=None) for name in names]
    whose = None if plan.own_script else {plan.backend, *plan.readers}
    return LogMonitor(
        [reader for reader in readers if reader is not None],
        with_common(plugins.failure_rules(), whose),
        error_scan=plan.error_scan,
        script_reader=AutoDetectReader(plugins, plan.readers) if plan.own_script else None,
    )


def _observed(record: Record, plan: RunPlan, workspace: Path | None) -> Observation:
    code = record.exit_code
    if code is None and record.status is Status.SUCCESS:  # which claims that it ended well
        code = 0
    return Observation(
        exit=Exit(code=code, duration_s=0.0) if code is not None else None,
        stopped=record.ended_by if record.ended_by in STOPS else Cause.NONE,
        results=_results(plan, workspace) if workspace is not None else None,
        skipped=plan.skip_model_run,
    )


def _results(plan: RunPlan, workspace: Path) -> FileResults | None:
    """Return what is in the results file of the working folder: by now it may be another run's."""
    if plan.result_rule.kind != "multiple_results" or not plan.result_rule.file:
        return None
    path = workspace / plan.result_rule.file
    try:
        return parse_results(path.name, read_inside(path, workspace))
    except (OSError, ValueError):
        return None
