"""Is each number, hash and plan of a run what its files give?  Nothing is repaired, and nothing written."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain, zip_longest
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import NamedTuple, TypeVar

import msgspec

from madlite.archive.import_ import Item, Outcome, unpack
from madlite.archive.pack import PackedRun, why_no_result
from madlite.backends.loader import Plugins
from madlite.errors import RecordError, UsageProblem
from madlite.files import Folder, open_plain, read_plain
from madlite.measure.checks.base import Observation
from madlite.measure.monitor import LogMonitor, last_measured
from madlite.measure.parse_log import AutoDetectReader, plan_monitor
from madlite.measure.performance import FileResults, parse_results
from madlite.measure.rules import with_common
from madlite.measure.verdict import Verdict, judge
from madlite.model import Cause, Exit, Json, RunPlan, Status, Value
from madlite.model.results import StopReason
from madlite.perfcsv.recorded import RowsInFile
from madlite.perfcsv.rows import has_results
from madlite.process import call_within
from madlite.reports.log import read_log
from madlite.reports.runs import UNREADABLE, StoredRun, why_not_over
from madlite.secrets import MASK
from madlite.store.folder import LOG, PLAN, STEPS, WORK
from madlite.store.log_file import LEFT_OUT
from madlite.store.record import (
    VERSION,
    NotedRuns,
    Record,
    load_record,
    plan_fields,
    read_plan,
    result_of,
    rows_here,
    step_lines,
)

_FROM_LOG = (Cause.NO_METRIC, Cause.BAD_NUMBER, Cause.ERROR_PATTERN, Cause.NAN_LOSS, Cause.INCOMPLETE, Cause.CONFIG)
_OF_PLAN = (
    *("card", "tags", "device", "hostname", "args", "backend", "runtime", "traits", "place", "variant", "settings"),
    *("overrides", "timeout_s", "batch", "study"),
)
_ASIDE = ("began_s", "ended_s")  # of a window: when its lines came
_ALSO_PRINT = ("clone", "data", "pre", "post")  # kinds of actions whose output is in the log and is not judged
_CHUNK_BYTES = 1 << 20
_CLOSE = 1e-9  # of floats that were computed the same way


class Verified(Value, frozen=True):
    """The checks of one run."""

    run: str
    card: str
    checks: tuple[Item, ...]
    notes: tuple[str, ...] = ()

    def of(self, outcome: Outcome) -> tuple[Item, ...]:
        """Return the checks with this outcome."""
        return tuple(item for item in self.checks if item.outcome == outcome)

    @property
    def outcome(self) -> Outcome:
        """The worst of the outcomes: a difference, then what could not be checked."""
        return "differs" if self.of("differs") else "unchecked" if self.of("unchecked") else "ok"


class Place(Value, frozen=True):
    """Where a run lies: its folder, and what the manifest has of it where it is in an archive.

    `imported`: it is not the working folder's own.
    """

    folder: Path
    packed: PackedRun | None = None
    pruned: bool = False
    imported: bool = False

    @property
    def from_elsewhere(self) -> bool:
        """Whether somebody else may have made its files."""
        return self.imported or self.packed is not None

    @property
    def workspace(self) -> Path | None:
        """The working folder of a run that is no archive's."""
        return None if self.packed is not None else self.folder.parent.parent


def verify_run(run: StoredRun, plugins: Plugins) -> Verified:
    """Return every check of a run of this folder.

    Raises:
        UsageProblem: its record cannot be read.
    """
    if run.state == UNREADABLE:
        raise UsageProblem(f"run {run.folder.name}: {run.problem}", "madlite runs")
    if why := why_not_over(run):
        return Verified(run=run.folder.name, card=run.record.card, checks=(_unchecked("record", why),))
    place = Place(folder=run.folder, pruned=run.pruned, imported=bool(run.origin))
    return _verify(run.record, place, plugins)


def verify_archive(file: Path, plugins: Plugins, max_bytes: int) -> Iterator[Verified]:
    """Yield every check of the runs of an archive.

    Raises:
        UsageProblem: as `unpack`, or a record cannot be read although it is as the manifest has it.
    """
    with TemporaryDirectory(prefix="madlite-verify-") as name, Folder.open(Path(name)) as into:
        manifest, mismatches = unpack(file, into, max_bytes)
        wrong: dict[str, list[Item]] = {}
        for item in mismatches:
            run_id, _, path = item.what.partition("/")
            wrong.setdefault(run_id, []).append(msgspec.structs.replace(item, what=f"manifest {path or run_id}"))
        for run in manifest.runs:
            yield _of_packed(run, into.path / run.id, wrong.pop(run.id, ()), plugins, file)
        if wrong:  # of files of no run
            yield Verified(run=file.name, card="", checks=tuple(chain.from_iterable(wrong.values())))


def _of_packed(run: PackedRun, folder: Path, wrong: Sequence[Item], plugins: Plugins, file: Path) -> Verified:
    try:
        record = load_record(folder)
        problem = "it has no record.json"
    except RecordError as error:
        record, problem = None, error.message
    if record is not None:
        return _verify(record, Place(folder=folder, packed=run), plugins, wrong or [Item(what="manifest")])
    if not wrong:
        raise UsageProblem(f"run {run.id} of {file}: {problem}", "pip install --upgrade madlite")
    return Verified(run=run.id, card=run.card, checks=tuple(wrong), notes=(problem,))


def _verify(record: Record, place: Place, plugins: Plugins, before: Iterable[Item] = ()) -> Verified:
    """Return every check of one run with a record, after those that were made `before`."""
    from madlite import __version__

    items = [*before]
    if record.id != place.folder.name:
        items.append(Item(what="id", outcome="differs", recorded=record.id, found=place.folder.name))
    if (plan := read_plan(place.folder)) is None:
        why = f"{PLAN} is not there, cannot be read, or is of another madlite"
        items += [_unchecked("plan", why), _unchecked("number", f"its plan cannot be read: {why}")]
    else:
        items += [*_plan(record, plan), *_of_log_within(record, plan, place, plugins)]
    items += [*_files(record, place), *_rows(record), *_in_file(record, place)]
    notes = []
    if record.madlite and record.madlite != __version__:
        notes.append(f"recorded by madlite {record.madlite}, read by {__version__}: a reader may have changed since")
    return Verified(run=place.folder.name, card=record.card, checks=tuple(items), notes=tuple(notes))


def _unchecked(what: str, why: str) -> Item:
    return Item(what=what, outcome="unchecked", why=why)


def _compared(what: str, recorded: object, found: object, why: str = "") -> Item:
    """Return whether two values are the same; where they are not and `why` names a reason, it cannot be checked."""
    if _same(recorded, found):
        return Item(what=what)
    texts = {"recorded": _shown(recorded), "found": _shown(found)}
    return Item(what=what, outcome="unchecked" if why else "differs", why=why, **texts)


def _same(recorded: object, found: object) -> bool:
    if isinstance(recorded, float) and isinstance(found, float | int):
        return math.isclose(recorded, found, rel_tol=_CLOSE) or (math.isnan(recorded) and math.isnan(found))
    return recorded == found


def _shown(value: object) -> str:
    return "none" if value in (None, "", (), {}) else f"{value:.10g}" if isinstance(value, float) else str(value)


# Hashes of the record.


def _files(record: Record, place: Place) -> Iterator[Item]:
    """Check the hashes of rendered files, and the sizes of log and steps."""
    for file in record.files:
        if not (file.sha256 or file.path in (LOG, STEPS)):
            continue
        what, found = f"file {file.path}", _facts(place.folder, file.path)
        if found is None:
            yield _unchecked(what, _why_gone(place))
            continue
        why = "a secret was masked in it when it was packed" if place.from_elsewhere and found.has_mask else ""
        if file.sha256:
            yield _compared(what, file.sha256, found.sha256, why)
        else:
            yield _compared(what, f"{file.bytes} bytes", f"{found.bytes} bytes", why)


def _why_gone(place: Place) -> str:
    if place.pruned:
        return "it was pruned"
    return "it is not in the archive" if place.packed is not None else "it is not here"


class _Facts(NamedTuple):
    bytes: int
    sha256: str
    has_mask: bool


def _facts(folder: Path, name: str) -> _Facts | None:
    """Return what a file of a run is; None where there is none that can be read."""
    if ".." in PurePosixPath(name).parts:
        return None
    try:
        fd = open_plain(folder / name, folder)
    except (OSError, ValueError):
        return None
    with os.fdopen(fd, "rb") as file:
        digest, size, has_mask = hashlib.sha256(), 0, False
        while piece := file.read(_CHUNK_BYTES):
            digest.update(piece)
            size += len(piece)
            has_mask |= MASK in piece
    return _Facts(size, digest.hexdigest(), has_mask)


# The plan, and what its log gives.


def _plan(record: Record, plan: RunPlan) -> Iterator[Item]:
    yield _compared("plan id", record.id, plan.id)
    if record.version != VERSION:
        yield _unchecked("plan", f"its record is of version {record.version}")
        return
    planned = plan_fields(plan)
    items = [_compared(f"plan {name}", _plain(getattr(record, name)), _plain(planned[name])) for name in _OF_PLAN]
    wrong = [item for item in _differing(items) if MASK.decode() not in item.recorded + item.found]
    yield from wrong or [Item(what="plan")]


def _plain(value: object) -> Json:
    return msgspec.to_builtins(value)


def _of_log_within(record: Record, plan: RunPlan, place: Place, plugins: Plugins) -> Iterable[Item]:
    """Check what the log gives: with a time limit where the patterns of the plan are not our own."""
    if not place.from_elsewhere:
        return _of_log(record, plan, place, plugins)
    _load_readers(plugins)
    try:
        return limited(place.folder, lambda: tuple(_of_log(record, plan, place, plugins)))
    except UsageProblem as problem:
        return (_unchecked("number", problem.message),)


@cache
def _load_readers(plugins: Plugins) -> None:
    """Load what reads logs, before processes are made that would each load it again; no plan has a part in it."""
    log = LogMonitor([], with_common(plugins.failure_rules(), None), script_reader=AutoDetectReader(plugins, ()))
    log.feed(b"a line\n")
    log.finish()


def _of_log(record: Record, plan: RunPlan, place: Place, plugins: Plugins) -> Iterator[Item]:
    if plan.blocked is not None or (not record.steps and not record.metrics and not (place.folder / LOG).exists()):
        yield _unchecked("number", "the run was not started, it has no number" if plan.blocked else _why_gone(place))
        return
    try:
        result = reread(place.folder, record, plan, plugins, place.workspace)
    except UsageProblem as problem:
        yield _unchecked("number", _why_gone(place) if place.pruned else problem.message)
        return
    why = _doubtful(record, result, place)
    yield _status(record, plan, result, why)
    yield from _numbers(record, plan, result, why)
    yield from _steps(place.folder, result, why)


def _doubtful(record: Record, result: LogResult, place: Place) -> str:
    """Return why a number that the log does not give may be right all the same; "" where it may not."""
    if result.missing_bytes:
        return f"the log lacks {result.missing_bytes} bytes of the run's output"
    gone = [
        file.path
        for file in record.files
        if not file.sha256
        and file.path not in (LOG, STEPS)
        and not why_no_result(file.path)
        and not (place.folder / file.path).exists()
    ]
    if not gone:
        return ""
    return f"files that the run left are not here, which its reader may have read: {', '.join(gone[:3])}"


def _status(record: Record, plan: RunPlan, result: LogResult, why: str) -> Item:
    verdict = result.verdict
    if record.status is Status.FAILURE and not (record.ended_by in _FROM_LOG or verdict.status is Status.FAILURE):
        return _unchecked("status", f"what ended the run is not in its log ({record.ended_by.value or 'unknown'})")
    if record.status is Status.FAILURE and (record.ended_by in STOPS or record.exit_code):
        return _unchecked("status", "its exit code decides, which the log does not have")
    if record.status is Status.SKIPPED and verdict.status is not Status.SKIPPED:
        return _unchecked("status", "the log does not show why it was skipped")
    if _is_from_file(plan, result):
        why = why or f"its results are of {plan.result_rule.file}, which the log does not have"
    others = ", ".join(dict.fromkeys(action.kind for action in plan.actions if action.kind in _ALSO_PRINT))
    if others and verdict.cause is Cause.ERROR_PATTERN:
        why = why or f"the log also has the output of other steps ({others}), which the run did not judge"
    reason = f" ({verdict.reason})" if verdict.reason else ""
    item = _compared("status", record.status.value, verdict.status.value, why)
    return msgspec.structs.replace(item, found=f"{item.found}{reason}") if item.outcome != "ok" else item


def _is_from_file(plan: RunPlan, result: LogResult) -> bool:
    """Return whether the results are those of a file: some scripts leave one in place of a line."""
    rule = plan.result_rule
    return rule.kind == "multiple_results" or (bool(rule.file) and result.log.scan.first is None)


def _numbers(record: Record, plan: RunPlan, result: LogResult, why: str) -> Iterator[Item]:
    """Compare the numbers of a record with those that its log gives; of a window the median, and what else differs."""
    old, new = dict(_named(record.steps, record)), dict(_named(result.log.steps.count(), result.verdict))
    from_file = _is_from_file(plan, result)
    if from_file and record.metrics:
        why_none = f"its results are of {plan.result_rule.file}, which the log does not have"
        yield Item(what="number") if result.verdict.metrics == record.metrics else _unchecked("number", why_none)
    own_failure = record.status is Status.FAILURE and not has_results(result_of(record))
    judged = result.verdict.status is record.status  # else the difference is the run's, and said there
    for name in dict.fromkeys((*old, *new)):
        is_number = name.startswith("number ")
        if is_number and (from_file or (own_failure and name not in old)):
            continue
        pairs = [*zip_longest(old.get(name, ()), new.get(name, ()))][: None if judged else 2]
        recorded, found = next((pair for pair in pairs if not _same(*pair)), (None, None))
        item = _compared(name, recorded, found, why or _why_no_summary(name, plan, result))
        is_detail = name.startswith("window ") and name != "window median"
        if not is_detail or (item.outcome != "ok" and name in old and name in new):
            yield item


def _named(steps: int, of: Record | Verdict) -> Iterator[tuple[str, tuple[object, ...]]]:
    """Yield the numbers of a run under the names of their checks, each as what is compared of it."""
    yield "steps", (steps,)
    for metric in of.metrics:
        name = " ".join(filter(None, ("number", metric.label, metric.metric)))
        yield name, (metric.text, metric.value, metric.status.value)
    if of.window is not None:
        names = (name for name in of.window.__struct_fields__ if name not in _ASIDE)
        yield from ((f"window {name}", (_plain(getattr(of.window, name)),)) for name in names)
    if of.compute is not None:
        yield "TFLOP/s/GPU", (of.compute.tflops_per_gpu,)
        yield "MFU", (of.compute.mfu,)


def _why_no_summary(name: str, plan: RunPlan, result: LogResult) -> str:
    """Return that a figure of the framework's own summary is in no line of the log: it was in a file."""
    keys = [rule.key for rule in plan.result_rule.mad if (f"number {rule.metric}", rule.rule) == (name, "summary")]
    if not keys or keys[0] in result.log.summary:
        return ""
    return f"the log has no {keys[0]}: it was read from a file that the run left"


def _differing(items: Iterable[Item]) -> Iterator[Item]:
    return (item for item in items if item.outcome != "ok")


def _steps(folder: Path, result: LogResult, why: str) -> Iterator[Item]:
    """Compare steps.jsonl line by line with the steps of the log; when each came is not in it."""
    try:
        fd = open_plain(folder / STEPS, folder)
    except OSError:
        if result.log.steps:
            yield _unchecked(STEPS, "it is not here")
        return
    with os.fdopen(fd, "rb") as file:
        pairs = zip_longest(map(_step, file), map(_step, step_lines(result.log.steps)))
        wrong = next((items for items in enumerate(pairs, 1) if items[1][0] != items[1][1]), None)
    if wrong is None:
        yield Item(what=STEPS)
    else:
        n, (old, new) = wrong
        yield _compared(f"{STEPS} line {n}", _short(old), _short(new), why)


def _step(line: bytes) -> Json:
    try:
        step = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return line.decode(errors="replace")
    return {name: value for name, value in step.items() if name != "t_s"} if isinstance(step, dict) else step


def _short(step: Json) -> str:
    return "none" if step is None else msgspec.json.encode(step).decode()[:200]


# The rows: of the record, and in their file.


def _rows(record: Record) -> Iterator[Item]:
    """Compare number, metric and status of the row's cells with those of the record."""
    if record.rows is None:
        return
    pairs = zip_longest(_expected_rows(record), map(_row, record.rows.cells), fillvalue="no row")
    items = [_compared(f"row {n}", *rows) for n, rows in enumerate(pairs, 1)]
    yield from [*_differing(items)] or [Item(what="row")]


def _expected_rows(record: Record) -> list[str]:
    if record.status is Status.SKIPPED:
        return [Status.SKIPPED.value]
    metrics = record.metrics if has_results(result_of(record)) else ()
    return [_line(metric.text, metric.metric, metric.status.value) for metric in metrics] or [Status.FAILURE.value]


def _row(cells: Mapping[str, str]) -> str:
    return _line(*(cells.get(name, "") for name in ("performance", "metric", "status")))


def _line(*cells: str) -> str:
    return " ".join(filter(None, cells))


def _in_file(record: Record, place: Place) -> Iterator[Item]:
    """Check that the results file has the rows as they were appended."""
    if place.workspace is None or record.rows is None:
        return
    rows = rows_here(place.folder, record, NotedRuns(place.folder.parent))
    if rows is None or not rows.appended:
        return
    try:
        is_there = RowsInFile(place.workspace).has(rows)
    except RecordError as problem:
        yield _unchecked(rows.path, problem.message)
        return
    recorded = _row(rows.cells[0])
    yield _compared(rows.path, recorded, recorded if is_there else "no row with these cells")


def as_json(found: Iterable[Verified]) -> list[Mapping[str, Json]]:
    """Return the checks as JSON values."""
    return [{**msgspec.to_builtins(verified), "outcome": verified.outcome} for verified in found]


_LIMIT_S, _SLOWEST_BYTES_PER_S = 60, 2 << 20  # of a log that is read by patterns of elsewhere
_Result = TypeVar("_Result")
STOPS = (Cause.TIMEOUT, Cause.HANG, Cause.INTERRUPTED)
"""What ended a run from outside, whatever its log has."""


class LogResult(Value, frozen=True):
    """What a log gives: the verdict, and the steps and figures it was made from; how much of it is missing."""

    log: LogMonitor
    verdict: Verdict
    missing_bytes: int = 0


def limited(folder: Path, read: Callable[[], _Result]) -> _Result:
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


def reread(folder: Path, record: Record, plan: RunPlan, plugins: Plugins, workspace: Path | None) -> LogResult:
    """Read a run's log again; `workspace` is where a results file may still lie, None for an archive's.

    Raises:
        UsageProblem: it has no log, or one of its readers is not installed here.
    """
    log, missing = _monitor(plan, plugins, _ended_early(record)), 0
    for chunk in read_log(folder):
        if b"bytes left out here" in chunk:
            missing += sum(int(found[1]) for found in LEFT_OUT.finditer(chunk))
        log.feed(chunk)
    log.finish(folder / WORK if record.containerised else folder)
    return LogResult(log=log, verdict=judge(plan, _observed(record, plan, workspace), log), missing_bytes=missing)


def _ended_early(record: Record) -> int | None:
    """Return the step after which `--until` ended a run, whose log was not read from there on; None for any other."""
    length = record.adaptive
    return length.steps_run if length is not None and length.reached and record.ended_by is Cause.NONE else None


def _monitor(plan: RunPlan, plugins: Plugins, last: int | None) -> LogMonitor:
    backends = plugins.backends()
    names = dict.fromkeys(plan.readers or (plan.backend,))
    if missing := [name for name in names if name not in backends]:
        raise UsageProblem(f"the plugin of its backend '{missing[0]}' is not installed here")
    last = last if last is not None else last_measured(plan)
    return plan_monitor(plan, [backends[name][0] for name in names], plugins, last=last)


def _observed(record: Record, plan: RunPlan, workspace: Path | None) -> Observation:
    code = record.exit_code
    if code is None and record.status is Status.SUCCESS:  # which claims that it ended well
        code = 0
    by_madlite = record.ended_by in STOPS or _ended_early(record) is not None
    return Observation(
        exit=Exit(code=code, duration_s=0.0) if code is not None else None,
        stop=StopReason(cause=record.ended_by, text=record.reason) if by_madlite else None,
        results=_results(plan, workspace) if workspace is not None else None,
        skipped=plan.skip_model_run,
    )


def _results(plan: RunPlan, workspace: Path) -> FileResults | None:
    """Return what is in the results file of the working folder: by now it may be another run's."""
    if not plan.result_rule.file:
        return None
    path = workspace / plan.result_rule.file
    try:
        return parse_results(path.name, read_plain(path, workspace))
    except (OSError, ValueError):
        return None
