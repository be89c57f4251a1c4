"""A log that madlite did not make → its steps, its numbers, and the verdict of a run that had it."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import zlib
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import BinaryIO, Protocol, cast, runtime_checkable

from msgspec.structs import replace

from madlite.backends.loader import Plugins
from madlite.backends.log_formats import FormatBackend
from madlite.backends.step_lines import MEANS
from madlite.errors import UsageProblem
from madlite.files import open_given, shown
from madlite.measure.diagnosis import diagnose
from madlite.measure.failure_scan import LAUNCHER, ROOT, FailureCandidate
from madlite.measure.monitor import LogMonitor
from madlite.measure.performance import make_metric
from madlite.measure.rules import with_common
from madlite.measure.steps import Steps
from madlite.measure.verdict import (
    Expected,
    Verdict,
    expected_steps,
    judge_line,
    judge_steps,
    launcher_failure,
    matched_error_patterns,
)
from madlite.measure.window import median_in
from madlite.model import (
    QUANTITIES,
    Backend,
    Cause,
    Diagnosis,
    ErrorScan,
    Metric,
    Quantity,
    Reader,
    ResultRule,
    RunPlan,
    Status,
    Value,
    Variant,
    Window,
)
from madlite.plan.actions import BENIGN, PATTERNS
from madlite.run.detect import MOST_LINES, detect_backend, head_lines, take_head
from madlite.run.unknown_log import unknown_log

WARMUP_STEPS = Variant(model="").warmup_steps

THROUGHPUTS = (
    Quantity.TOKENS_PER_S_PER_GPU,
    Quantity.SAMPLES_PER_S_PER_GPU,
    Quantity.IMAGES_PER_S_PER_GPU,
    Quantity.TFLOPS_PER_GPU,
)


@runtime_checkable
class HasResultRule(Protocol):
    """A backend that says how its runs are judged, as every TemplateBackend does; a Backend need not."""

    def result_rule(self) -> ResultRule:
        """Return where a run's result comes from."""


class LogReading(Value, frozen=True):
    """What a log shows; `backend` "" where no framework is known in it and its performance line is all there is."""

    log: str
    backend: str
    lines: int
    steps: Steps
    config: dict[str, str]  # the configuration that the log reports
    expected_steps: int | None  # of it, how many steps the training was to have
    verdict: Verdict
    medians: dict[Quantity, float]  # over the window's steps, its own quantity left out
    line: Metric | None  # MAD's `performance:` line
    summary: dict[str, str]  # what the framework reports of the whole run
    diagnosis: Diagnosis | None  # of a failure, where the log reports more of it than the verdict
    ended: bool  # the framework's own end mark is there


def read_log(
    name: str,
    chunks: Iterator[bytes],
    plugins: Plugins,
    given: Backend | None,
    warmup_steps: int = WARMUP_STEPS,
    plan: RunPlan | None = None,
) -> LogReading:
    """Return what a log shows; messages call it `name`. The backend is the one given, else the surest.

    `plan` is that of the run whose log it is, where the given backend made it: how its steps are read.

    Raises:
        UsageProblem: no backend detects this log, or several do; or its bytes cannot be read.
    """
    head = take_head(chunks)
    backend = given or detect_backend(name, head, plugins)
    log = _make_monitor(plugins, backend, plan)
    for chunk in chain(head, chunks):
        log.feed(chunk)
    log.finish(Path(os.devnull) if isinstance(backend, FormatBackend) else None)  # it has no files beside its log
    expected = Expected(
        rule=_rule(plugins, backend, log, plan), warmup_steps=warmup_steps, steps=expected_steps(log.config)
    )
    verdict = _with_end_findings(_judge(expected, log), expected, log, _prints_end(backend))
    if backend is None and verdict.cause is Cause.NO_METRIC:
        verdict = _without_backend(name, head, plugins, verdict, log)
    diagnosis = _diagnose(verdict, log)
    if diagnosis is not None:
        verdict = replace(verdict, evidence=diagnosis.line)
    return LogReading(
        log=name,
        backend=backend.name if backend else "",
        lines=log.lines,
        steps=log.steps,
        config=log.config,
        expected_steps=expected.steps,
        verdict=verdict,
        medians=_medians(log.steps, verdict.window),
        line=make_metric(*log.scan.first) if log.scan.first else None,
        summary=log.summary,
        diagnosis=diagnosis,
        ended=log.ended,
    )


def _make_monitor(plugins: Plugins, backend: Backend | None, plan: RunPlan | None) -> LogMonitor:
    reader: Reader | None = plugins.query(backend, "reader", plan, otherwise=None) if backend else None
    # a log that no framework's reader follows is judged as a script's, error patterns included
    scan = ErrorScan(patterns=PATTERNS, benign=BENIGN) if not isinstance(backend, HasResultRule) else None
    rules = with_common(plugins.failure_rules(), (backend.name,) if backend else None)
    return LogMonitor([reader] if reader else [], rules, error_scan=scan, jobs=plan is None)


def _rule(plugins: Plugins, backend: Backend | None, log: LogMonitor, plan: RunPlan | None) -> ResultRule:
    """Return how the number is taken: the backend's way, of a throughput that the steps have.

    Of MAD's figures those are left that the log can have: it may be another version's or another framework's.
    """
    rule = plugins.query(backend, "result_rule", otherwise=None) if isinstance(backend, HasResultRule) else None
    if plan is not None and isinstance(rule, ResultRule) and plan.result_rule.kind == rule.kind:
        rule = plan.result_rule
    own_line = isinstance(backend, FormatBackend) and log.scan.first is not None  # a script around the framework
    if own_line or not isinstance(rule, ResultRule):
        rule = ResultRule(kind="steps" if log.steps and not own_line else "performance_line", loss_expected=False)
    there = log.steps.quantities()
    rule = replace(rule, mad=tuple(one for one in rule.mad if one.quantity in there or one.key in log.summary))
    own = sorted((one for one in there if one.is_speed and one.name not in QUANTITIES), key=_label)
    speeds, times = (rule.headline, *THROUGHPUTS, *own), (Quantity.STEP_TIME_S, Quantity.STEP_TIME_S_MEAN, *MEANS)
    unread = log.training.unread  # a speed that is none says better what is wrong than another number
    tries = ((there, speeds), (unread, speeds), (there, times), (unread, times))
    headline = next((one for known, order in tries for one in order if one in known), rule.headline)
    if headline == rule.headline:
        return rule
    return replace(rule, headline=headline, headline_metric=headline.name)


def _label(quantity: Quantity) -> str:
    return quantity.label


def _medians(steps: Steps, window: Window | None) -> dict[Quantity, float]:
    if window is None:
        return {}
    totals = {Quantity.TOKENS_SEEN, Quantity.SAMPLES_SEEN}  # since the start: a median says nothing of them
    there = steps.quantities() - {window.quantity} - totals
    order = [one for one in (*QUANTITIES.values(), *sorted(there, key=_label)) if one in there]
    medians = {quantity: median_in(steps, quantity, window) for quantity in dict.fromkeys(order)}
    return {quantity: value for quantity, value in medians.items() if value is not None}


def _judge(expected: Expected, log: LogMonitor) -> Verdict:
    verdict = judge_steps(expected, log) if expected.rule.kind == "steps" else judge_line(log)
    if expected.rule.kind != "steps" and log.scan.torn:
        return _torn(log)
    if (
        verdict.cause is not Cause.NO_METRIC
        or expected.rule.kind != "steps"
        or not (log.scan.result or log.scan.unread)
    ):
        return verdict
    first_result = log.scan.first or log.scan.unread_line
    if not first_result and not log.steps and not log.summary and not log.torn:  # another framework's figure
        return verdict
    if log.scan.torn:
        return _torn(log)
    of_line = judge_line(log)
    return replace(of_line, findings=(*of_line.findings, f"{verdict.reason}: the result is a line of the log"))


def _torn(log: LogMonitor) -> Verdict:
    reason = "the log ends within the line of its result: the number may be cut short"
    return Verdict(status=Status.FAILURE, cause=Cause.NO_METRIC, reason=reason, evidence=log.best_error_line)


def _with_end_findings(verdict: Verdict, expected: Expected, log: LogMonitor, prints_end: bool) -> Verdict:
    """Return the verdict with what else the log reports: there is no exit code here to show a failure."""
    names, lines = matched_error_patterns(log)
    if verdict.status is Status.FAILURE:
        return verdict
    if names:
        return _failed(verdict, f"the log has the {names} beside its number", lines)
    if log.launcher_line:
        return launcher_failure(log)
    if log.fatal_line and not log.ended:
        return _failed(verdict, "the log has no end mark, and shows the cause after its last step", log.fatal_line)
    if verdict.window is None:  # the line of a result comes last
        return verdict
    all_there = log.ended or expected.steps is not None
    if (candidate := _late_root(log)) and not all_there:
        return _failed(verdict, f"the log has no end mark, and shows why ({candidate.cause})", candidate.line)
    finding = _end_finding(expected, log, prints_end)
    return replace(verdict, findings=(*verdict.findings, finding)) if finding else verdict


def _prints_end(backend: Backend | None) -> bool:
    return not isinstance(backend, FormatBackend) or bool(backend.format.end)


def _without_backend(name: str, head: Sequence[bytes], plugins: Plugins, verdict: Verdict, log: LogMonitor) -> Verdict:
    """Return the verdict of a log without a result that no backend knows: it may show why there is none."""
    if log.scan.torn:
        return verdict
    candidate = log.candidate
    if candidate is not None and candidate.tier < LAUNCHER:
        return _failed(verdict, "the log has no result, and shows why", candidate.line)
    if line := log.loss_scan.nan:
        return replace(_failed(verdict, "the log has no result, and a loss is not finite", line), cause=Cause.NAN_LOSS)
    if (line := log.launcher_line) or log.exited is not None:
        failed = _failed(verdict, "the log has no result, and a launcher reports that a process failed", line)
        return replace(failed, cause=Cause.EXIT_CODE)
    if not log.lines:
        raise UsageProblem(f"{name} has no line that a run printed", "name the file that has the training's output")
    where = f" in its first {MOST_LINES:,} lines" if log.lines > MOST_LINES else ""
    backends = {known: backend for known, (backend, _) in plugins.backends().items()}
    raise unknown_log(name, head_lines(head)[:MOST_LINES], backends, where)


def _diagnose(verdict: Verdict, log: LogMonitor) -> Diagnosis | None:
    if verdict.status is not Status.FAILURE:
        return None
    found = diagnose(verdict.cause, verdict.evidence, log)
    return found if found.cause != verdict.cause.value or found.hint else None


def _late_root(log: LogMonitor) -> FailureCandidate | None:
    """Return what is the cause of a failure wherever it stands, of the lines since the last step."""
    late = log.late_candidate
    return late if late is not None and late.tier == ROOT else None


def _failed(verdict: Verdict, reason: str, evidence: str) -> Verdict:
    failed = replace(verdict, status=Status.FAILURE, cause=Cause.ERROR_PATTERN, reason=reason, evidence=evidence)
    return replace(failed, suspect=())  # no number is left that could be doubted


def _end_finding(expected: Expected, log: LogMonitor, prints_end: bool) -> str:
    """Return what a reader of a good log should know of its end."""
    if candidate := _late_root(log):
        return f"a line looks like a failure ({candidate.cause}), though the training came to its end: {candidate.line}"
    if log.fatal_line:
        return f"a line looks like a failure, though the training came to its end: {log.fatal_line}"
    if log.restarted_at is not None and not log.steps.is_overtaken:
        return f"steps went back to {log.restarted_at}: the log has several trainings, their steps are mixed"
    if log.ended:
        return ""
    if expected.steps is not None:
        return "the framework's end mark is missing, though the last step is there" if prints_end else ""
    return "no end mark, and the log does not say how many steps there were to be: it may have been cut off"


# A log as a stream of bytes: a file or a pipe, packed or not.

_CHUNK_BYTES = 256 * 1024
_LONGEST_MARK = 6


class _Readable(Protocol):
    def read(self, size: int = -1, /) -> bytes: ...


def open_log(path: Path) -> BinaryIO:
    """Open a log.

    Raises:
        UsageProblem: there is no such file, or it cannot be read.
    """
    try:
        return os.fdopen(open_given(path), "rb")
    except FileNotFoundError:
        raise UsageProblem(f"{shown(path)}: no such file") from None
    except (OSError, ValueError) as error:
        raise UsageProblem(f"{shown(path)} cannot be read: {_why(error)}") from None


def read_chunks(file: _Readable, name: str) -> Iterator[bytes]:
    """Yield a log's bytes, unpacked where they begin as gzip, xz or bzip2 files do.

    Raises:
        UsageProblem: they cannot be read or unpacked to their end.
    """
    try:
        log = _unpacked(file)
        while chunk := log.read(_CHUNK_BYTES):
            yield chunk
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise UsageProblem(f"{name} cannot be read: {_why(error)}") from None


class _Peeked:
    """A file whose first bytes were read; a pipe cannot go back."""

    def __init__(self, start: bytes, file: _Readable) -> None:
        self._start, self._file = start, file

    def read(self, size: int = -1) -> bytes:
        """Return up to `size` bytes, what was looked at first."""
        if not self._start:
            return self._file.read(size)
        end = size if size >= 0 else len(self._start)
        start, self._start = self._start[:end], self._start[end:]
        return start


def _unpacked(file: _Readable) -> _Readable:
    start = file.read(_LONGEST_MARK)
    whole = cast("BinaryIO", _Peeked(start, file))  # read is all that unpacking needs
    if start.startswith(b"\x1f\x8b"):
        return gzip.open(whole)
    if start.startswith(b"\xfd7zXZ\x00"):
        return lzma.open(whole)
    return bz2.open(whole) if start.startswith(b"BZh") else whole


def _why(error: Exception) -> str:
    code = error.errno if isinstance(error, OSError) else None
    return os.strerror(code) if code else str(error)
