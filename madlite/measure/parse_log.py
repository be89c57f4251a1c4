"""A log that madlite did not make → its steps, its numbers, and the verdict of a run that had it."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import re
import shlex
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Any, BinaryIO, cast

from msgspec.structs import replace

from madlite.backends.loader import Plugins
from madlite.backends.log_formats import FormatBackend
from madlite.backends.step_lines import MEANS, NUMBER, Missed
from madlite.errors import UsageProblem
from madlite.files import open_given, shown
from madlite.measure.adaptive import ENDED
from madlite.measure.diagnosis import diagnose
from madlite.measure.lines import LineSplitter
from madlite.measure.monitor import LogMonitor, last_measured
from madlite.measure.number import parts_of
from madlite.measure.performance import make_metric
from madlite.measure.rules import LAUNCHER, ROOT, FailureCandidate, with_common
from madlite.measure.steps import Steps, median_in
from madlite.measure.verdict import (
    Expected,
    Observation,
    Verdict,
    expected_steps,
    judge_line,
    judge_steps,
    launcher_failure,
    matched_error_patterns,
)
from madlite.model import (
    QUANTITIES,
    SPEEDS,
    Backend,
    Cause,
    Diagnosis,
    ErrorScan,
    Event,
    Exit,
    FailureRule,
    Line,
    Metric,
    Quantity,
    Reader,
    ResultRule,
    RunPlan,
    Status,
    StopReason,
    Value,
    Variant,
    Window,
)
from madlite.plan.actions import BENIGN, PATTERNS
from madlite.text import printable

# A reader for the log of a card's own script: the framework's whose lines are in it, once it is detected.
#
# The result of such a run is what its script prints.  The steps beside it show how far the training is, and whether the
# result is suspect.

_MIN_CONFIDENCE = 0.5  # less is no answer for lines that need not be a training's
MOST_LINES, _MOST_CHARACTERS = 20_000, 4 << 20  # that may come before a framework's own first line
HEAD_BYTES = 4 << 20  # of a log, in which backends look for it
_EARLY, _TOGETHER = 500, 4  # lines that are inspected one by one; after them so many at a time


class AutoDetectReader:
    """Store the first lines until a backend knows some of them, and gives its reader all of them then."""

    def __init__(self, plugins: Plugins, excluded: Iterable[str] = ()) -> None:
        self._plugins = plugins
        self._backends = _backends(plugins, excluded)
        self._reader: Reader | None = None
        self._buffer: list[Line] = []
        self._characters = 0
        self._queried = 0  # lines that backends have inspected
        self._undecided = True

    def feed(self, line: Line) -> Iterable[Event]:
        """Return the events of one line; of the one by which the framework is recognised also those before it."""
        if self._reader is not None:
            return self._reader.feed(line)
        if not self._undecided:
            return ()
        self._buffer.append(line)
        self._characters += len(line.text)
        enough = 1 if self._queried < _EARLY else _TOGETHER
        return self._query() if len(self._buffer) - self._queried >= enough else ()

    def finish(self, outputs: Path) -> Iterable[Event]:
        """Return the events of what was left to ask about; files of a script's folder are not looked at."""
        return self._query() if self._undecided and self._reader is None else ()

    def _query(self) -> list[Event]:
        texts = [line.text for line in self._buffer[self._queried :]]
        self._queried = len(self._buffer)
        backend = self._best_match(texts)
        if backend is None:
            if self._queried >= MOST_LINES or self._characters >= _MOST_CHARACTERS:
                self._undecided, self._buffer = False, []
            return []
        reader: Reader | None = self._plugins.query(backend, "reader", None, otherwise=None)
        buffer, self._buffer, self._reader, self._undecided = self._buffer, [], reader, False
        return [event for line in buffer for event in reader.feed(line)] if reader is not None else []

    def _best_match(self, texts: list[str]) -> Backend | None:
        """Return the one backend that is surest of these lines; None where none is sure, or several are."""
        sure = _sure(self._backends, self._plugins, texts)
        best = max(sure.values(), default=0.0)
        found = [known for known in sure if sure[known] == best >= _MIN_CONFIDENCE]
        return self._backends[found[0]] if len(found) == 1 else None


def _backends(plugins: Plugins, excluded: Iterable[str] = ()) -> dict[str, Backend]:
    left_out = set(excluded)
    return {name: backend for name, (backend, _) in plugins.backends().items() if name not in left_out}


# Detection of the backend that a log belongs to: the one with the highest confidence.

_HEADS = (500, MOST_LINES)  # an image's build or a download may come before the framework's own first line


def take_head(chunks: Iterable[bytes]) -> list[bytes]:
    """Return the first chunks of a log, as many as backends may inspect."""
    buffer: list[bytes] = []
    size = 0
    for chunk in chunks:
        buffer.append(chunk)
        size += len(chunk)
        if size >= HEAD_BYTES:
            break
    return buffer


def head_lines(head: Sequence[bytes]) -> list[str]:
    """Return the lines of a log's first chunks."""
    splitter = LineSplitter()
    return [*splitter.take(b"".join(head)).lines, *splitter.take_rest().lines]


def detect_backend(log: str, head: Sequence[bytes], plugins: Plugins) -> Backend | None:
    """Return the backend that is surest of a log that begins so; None where none knows it. Messages call it `log`.

    Raises:
        UsageProblem: several are equally sure.
        PluginError: two distributions bring a backend of one name.
    """
    backends, lines = _backends(plugins), head_lines(head)
    sure: dict[str, float] = {}
    for count in _HEADS:
        if max(sure.values(), default=0.0) < _MIN_CONFIDENCE:
            sure = _sure(backends, plugins, lines[:count]) or sure
    return _single_best(log, backends, sure) if sure else None


def _sure(backends: Mapping[str, Backend], plugins: Plugins, lines: Sequence[str]) -> dict[str, float]:
    """Return how sure each backend is that knows these lines."""
    answers = {known: plugins.query(backend, "detect", lines, otherwise=0.0) for known, backend in backends.items()}
    return {known: float(sure) for known, sure in answers.items() if isinstance(sure, int | float) and sure > 0}


def _single_best(log: str, backends: Mapping[str, Backend], sure: Mapping[str, float]) -> Backend:
    best = [known for known in sure if sure[known] == max(sure.values())]
    if len(best) > 1:
        what = f"{log} could be a log of {' or '.join(sorted(best))}: these backends are equally sure"
        raise UsageProblem(what, f"say which: --backend {sorted(best)[0]}")
    return backends[best[0]]


# A log that no backend knows: which frameworks it speaks of, the line nearest to a step, and how that is read.

_SEVERAL = 3  # frameworks that are named
_WORDS = {  # of the other backends, by which a log speaks of the framework
    "torchtitan": ("torchtitan",),
    "torchtune": ("torchtune",),
    "primus": ("primus",),
    "megatron_lm": ("megatron",),
    "hf": ("transformers", "accelerate"),
}
_STEP = re.compile(
    r"(?i)(?:(?<![a-z])(?:global[_ ]?)?(?:step|iter(?:ation)?|it|batch|update)s?[\s:=#\[]{0,4}"
    r"|^\s*\[(?=\d+/\d+\]))(?P<n>\d+)"
)
_TOKENS = r"(?:tokens?|tok|toks)(?:/|_per_| per )s(?:ec(?:ond)?)?"
_SAMPLES = r"(?:samples?|seqs?|sequences?|imgs?|images?)(?:/|_per_| per )s(?:ec(?:ond)?)?"
_GPU = r"(?:/|_per_| per )(?:gpu|device|rank)"
_VALUE = rf"[\s:=]{{1,3}}(?P<x>{NUMBER})"
_PARTS = (  # names of numbers, with what stands before or behind them
    ("loss", rf"(?i)(?<!val[_ ])loss{_VALUE}"),
    ("tokens_per_s_per_gpu", rf"(?i){_TOKENS}{_GPU}{_VALUE}"),
    ("tokens_per_s_per_gpu", rf"(?i)(?P<x>{NUMBER}) ?{_TOKENS}{_GPU}"),
    ("tokens_per_s", rf"(?i)(?:{_TOKENS}|tps){_VALUE}"),
    ("tokens_per_s", rf"(?i)(?P<x>{NUMBER}) ?[kM]? ?{_TOKENS}(?!{_GPU})"),
    ("samples_per_s_per_gpu", rf"(?i){_SAMPLES}{_GPU}{_VALUE}"),
    ("samples_per_s_per_gpu", rf"(?i)(?P<x>{NUMBER}) ?{_SAMPLES}{_GPU}"),
    ("samples_per_s", rf"(?i){_SAMPLES}{_VALUE}"),
    ("samples_per_s", rf"(?i)(?P<x>{NUMBER}) ?[kM]? ?{_SAMPLES}(?!{_GPU})"),
    ("step_time_ms", rf"(?P<x>{NUMBER}) ?ms\b"),
    ("step_time_s", rf"(?i)(?<!elapsed )(?<!total )(?<![a-z])(?:step[ _]|iter[ _]|batch[ _])?time{_VALUE} ?s(?:ec)?\b"),
    ("step_time_s", rf"(?P<x>{NUMBER}) ?s/it\b"),
    ("steps_per_s", rf"(?P<x>{NUMBER}) ?it/s\b"),
)


def unknown_log(name: str, lines: Sequence[str], backends: Mapping[str, Backend], where: str) -> UsageProblem:
    """Return that nothing knows a log of these first lines, with what it looks like and what to try."""
    nearest = _nearest(lines)
    what = f"nothing that a backend knows{where}, and no line 'performance: <number> <metric>'"
    mentioned = list(_mentioned("\n".join(lines).casefold(), backends))[:_SEVERAL]
    speaks = f"; it mentions {' and '.join(mentioned)}" if mentioned else ""
    near = f"; the line nearest to a step: {printable(nearest)}" if nearest else ""
    step = suggest_step(nearest) or r"step (?P<n>\d+) loss (?P<loss>\S+) (?P<step_time_ms>\S+) ms"
    command = f"madlite parse {shlex.quote(name.removeprefix('run '))}"
    first = f"{command} --backend {mentioned[0]}, or " if mentioned else ""
    hint = f"{first}{command} --step {shlex.quote(step)}; [NAME] step = '…' in readers.toml keeps it (docs/readers.md)"
    return UsageProblem(f"{name} has {what}{speaks}{near}", hint)


def step_pattern_of(lines: Sequence[str]) -> str:
    """Return a pattern that reads the line that looks most like a step; "" where none does."""
    return suggest_step(_nearest(lines))


def _nearest(lines: Iterable[str]) -> str:
    missed = Missed()
    for line in lines:
        missed.see(line)
    return missed.nearest


def _mentioned(text: str, backends: Mapping[str, Backend]) -> Iterator[str]:
    """Yield the backends whose framework a text names."""
    for name, backend in backends.items():
        words = backend.format.words if isinstance(backend, FormatBackend) else _WORDS.get(name, ())
        if any(re.search(rf"(?<![a-z]){re.escape(word)}(?![a-z])", text) for word in words):
            yield name


def suggest_step(line: str) -> str:
    """Return a pattern that reads the step, the loss and a speed of a line; "" where it has no step."""
    step = _STEP.search(line)
    if step is None:
        return ""
    places = [(step.start(), step.span("n"), step.end(), "n")]
    for name, text in _PARTS:
        found = re.compile(text).search(line, step.end())
        free = found is not None and all(found.end() <= begin or end <= found.start() for begin, _, end, _ in places)
        if found is not None and free and name not in {taken for *_, taken in places}:
            places.append((found.start(), found.span("x"), found.end(), name))
    pieces = [
        f"{_literal(line[begin:first])}(?P<{name}>{_shape(name)}){_literal(line[last:end])}"
        for begin, (first, last), end, name in sorted(places)
    ]
    return ".*?".join(pieces)


def _shape(name: str) -> str:
    return {"n": r"\d+", "loss": r"[^\s,|\]]+"}.get(name, r"[\d.,]*\d")


def _literal(text: str) -> str:
    return re.sub(r"(?:\\ | )+", " +", re.escape(text))


_LAST_BYTES = 200  # of a log, in which madlite says that it ended the run
_RESULT_RULE = "result_rule"  # a member of every TemplateBackend: how its runs are judged; a Backend need not have it


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
    warmup_steps: int = Variant(model="").warmup_steps,
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
    last = b""
    for chunk in chain(head, chunks):
        log.feed(chunk)
        last = (last + chunk)[-_LAST_BYTES:]
    early = ENDED.search(last) if log.steps else None
    log.finish(Path(os.devnull) if isinstance(backend, FormatBackend) else None)  # it has no files beside its log
    rule = _rule(plugins, backend, log, plan)
    expected = Expected(rule=rule, warmup_steps=warmup_steps, steps=expected_steps(log.config))
    if early:  # what it printed while it was ended is no failure
        stop = StopReason(cause=Cause.NONE, text=early[1].decode())
        verdict = judge_steps(expected, log, observed=Observation(exit=Exit(code=0, duration_s=0.0), stop=stop))
        verdict = replace(verdict, findings=(*verdict.findings, stop.text))
    else:
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


def plan_monitor(plan: RunPlan, backends: Iterable[Backend], plugins: Plugins, **more: Any) -> LogMonitor:
    """Return a new monitor for the log of a plan's run, by the readers of these backends."""
    readers: list[Reader | None] = [plugins.query(backend, "reader", plan, otherwise=None) for backend in backends]
    # of whatever framework a card's own script turns out to run
    script_reader = AutoDetectReader(plugins, plan.readers) if plan.own_script else None
    settings = {"last": last_measured(plan), "error_scan": plan.error_scan, "script_reader": script_reader, **more}
    return LogMonitor([reader for reader in readers if reader is not None], plan_rules(plan, plugins), **settings)


def plan_rules(plan: RunPlan, plugins: Plugins) -> tuple[FailureRule, ...]:
    """Return the failure rules for a plan's run; of a card's own script nobody knows whose training it is."""
    return with_common(plugins.failure_rules(), None if plan.own_script else {plan.backend, *plan.readers})


def _make_monitor(plugins: Plugins, backend: Backend | None, plan: RunPlan | None) -> LogMonitor:
    reader: Reader | None = plugins.query(backend, "reader", plan, otherwise=None) if backend else None
    # a log that no framework's reader follows is judged as a script's, error patterns included
    scan = ErrorScan(patterns=PATTERNS, benign=BENIGN) if not hasattr(backend, _RESULT_RULE) else None
    rules = with_common(plugins.failure_rules(), (backend.name,) if backend else None)
    return LogMonitor([reader] if reader else [], rules, error_scan=scan, jobs=plan is None, last=last_measured(plan))


def _rule(plugins: Plugins, backend: Backend | None, log: LogMonitor, plan: RunPlan | None) -> ResultRule:
    """Return how the number is taken: the backend's way, of a throughput that the steps have.

    Of MAD's figures those are left that the log can have: it may be another version's or another framework's.
    """
    rule = plugins.query(backend, _RESULT_RULE, otherwise=None) if backend and hasattr(backend, _RESULT_RULE) else None
    if plan is not None and isinstance(rule, ResultRule) and plan.result_rule.kind == rule.kind:
        rule = plan.result_rule
    own_line = isinstance(backend, FormatBackend) and log.scan.first is not None  # a script around the framework
    if own_line or not isinstance(rule, ResultRule):
        rule = ResultRule(kind="steps" if log.steps and not own_line else "performance_line", loss_expected=False)
    there = log.steps.quantities()
    rule = replace(rule, mad=tuple(item for item in rule.mad if item.quantity in there or item.key in log.summary))
    own = sorted((item for item in there if item.is_speed and item.name not in QUANTITIES), key=attrgetter("label"))
    speeds = (rule.headline, *SPEEDS, Quantity.TFLOPS_PER_GPU, *own)
    times = (Quantity.STEP_TIME_S, Quantity.STEP_TIME_S_MEAN, *MEANS)
    unread = log.training.unread  # a speed that is none says better what is wrong than another number
    tries = ((there, speeds), (unread, speeds), (there, times), (unread, times))
    headline = next((item for known, order in tries for item in order if item in known), rule.headline)
    if headline == rule.headline:
        return rule
    return replace(rule, headline=headline, headline_metric=headline.name)


def _medians(steps: Steps, window: Window | None) -> dict[Quantity, float]:
    if window is None:
        return {}
    totals = {Quantity.TOKENS_SEEN, Quantity.SAMPLES_SEEN}  # since the start: a median says nothing of them
    there = steps.quantities() - {window.quantity} - totals
    order = [item for item in (*QUANTITIES.values(), *sorted(there, key=attrgetter("label"))) if item in there]
    medians = {quantity: median_in(steps, quantity, window) for quantity in dict.fromkeys(order)}
    return {quantity: value for quantity, value in medians.items() if value is not None}


def _judge(expected: Expected, log: LogMonitor) -> Verdict:
    if expected.rule.kind != "steps":
        return judge_line(log)
    verdict = judge_steps(expected, log)
    if verdict.cause is not Cause.NO_METRIC or not (log.scan.result or log.scan.unread):
        return verdict
    first_result = log.scan.first or log.scan.unread_line
    if not first_result and not log.steps and not log.summary and not log.torn:  # another framework's figure
        return verdict
    of_line = judge_line(log)
    if log.scan.torn:
        return of_line
    return replace(of_line, findings=(*of_line.findings, f"{verdict.reason}: the result is a line of the log"))


def _with_end_findings(verdict: Verdict, expected: Expected, log: LogMonitor, prints_end: bool) -> Verdict:
    """Return the verdict with what else the log reports: there is no exit code here to show a failure."""
    names, lines = matched_error_patterns(log)
    if verdict.status is Status.FAILURE:
        return verdict
    if names:
        return _failed(verdict, f"the log has the {names} beside its number", lines)
    if log.failures.launcher_line:
        return launcher_failure(log)
    if (line := log.failures.fatal_line) and not log.ended:
        return _failed(verdict, "the log has no end mark, and shows the cause after its last step", line)
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
    candidate = log.failures.candidate
    if candidate is not None and candidate.tier < LAUNCHER:
        return _failed(verdict, "the log has no result, and shows why", candidate.line)
    if line := log.loss_scan.nan:
        return replace(_failed(verdict, "the log has no result, and a loss is not finite", line), cause=Cause.NAN_LOSS)
    if (line := log.failures.launcher_line) or log.failures.scan.exited is not None:
        failed = _failed(verdict, "the log has no result, and a launcher reports that a process failed", line)
        return replace(failed, cause=Cause.EXIT_CODE)
    if not log.lines:
        raise UsageProblem(f"{name} has no line that a run printed", "name the file that has the training's output")
    where = f" in its first {MOST_LINES:,} lines" if log.lines > MOST_LINES else ""
    raise unknown_log(name, head_lines(head)[:MOST_LINES], _backends(plugins), where)


def _diagnose(verdict: Verdict, log: LogMonitor) -> Diagnosis | None:
    if verdict.status is not Status.FAILURE:
        return None
    found = diagnose(verdict.cause, verdict.evidence, log)
    return found if found.cause != verdict.cause.value or found.hint else None


def _late_root(log: LogMonitor) -> FailureCandidate | None:
    """Return what is the cause of a failure wherever it stands, of the lines since the last step."""
    late = log.failures.late_candidate
    return late if late is not None and late.tier == ROOT else None


def _failed(verdict: Verdict, reason: str, evidence: str) -> Verdict:
    failed = replace(verdict, status=Status.FAILURE, cause=Cause.ERROR_PATTERN, reason=reason, evidence=evidence)
    return replace(failed, suspect=())  # no number is left that could be doubted


def _end_finding(expected: Expected, log: LogMonitor, prints_end: bool) -> str:
    """Return what a reader of a good log should know of its end."""
    if candidate := _late_root(log):
        return f"a line looks like a failure ({candidate.cause}), though the training came to its end: {candidate.line}"
    if log.failures.fatal_line:
        return f"a line looks like a failure, though the training came to its end: {log.failures.fatal_line}"
    if log.restarted_at is not None and not log.steps.is_overtaken:
        return parts_of(log)
    if log.ended:
        return ""
    if expected.steps is not None:
        return "the framework's end mark is missing, though the last step is there" if prints_end else ""
    return "no end mark, and the log does not say how many steps there were to be: it may have been cut off"


# A log as a stream of bytes: a file or a pipe, packed or not.

_CHUNK_BYTES = 256 * 1024
_LONGEST_MARK = 6


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


def read_chunks(file: BinaryIO, name: str) -> Iterator[bytes]:
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


class _Rejoined:
    """A file and its first bytes, which were read already: a pipe cannot go back, nor be waited for by `peek`."""

    def __init__(self, start: bytes, file: BinaryIO) -> None:
        self._start, self._file = start, file

    def read(self, size: int = -1) -> bytes:
        """Return up to `size` bytes; the first ones alone, as long as there are any."""
        if not self._start:
            return self._file.read(size)
        end = size if size >= 0 else len(self._start)
        start, self._start = self._start[:end], self._start[end:]
        return start


def _unpacked(file: BinaryIO) -> BinaryIO | gzip.GzipFile | lzma.LZMAFile | bz2.BZ2File:
    start = file.read(_LONGEST_MARK)
    whole = cast("BinaryIO", _Rejoined(start, file))  # read is all that unpacking needs
    if start.startswith(b"\x1f\x8b"):
        return gzip.open(whole)
    if start.startswith(b"\xfd7zXZ\x00"):
        return lzma.open(whole)
    return bz2.open(whole) if start.startswith(b"BZh") else whole


def _why(error: Exception) -> str:
    code = error.errno if isinstance(error, OSError) else None
    return os.strerror(code) if code else str(error)
