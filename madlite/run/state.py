"""What is noted while one run goes on, and the result it adds up to."""

from __future__ import annotations

import glob
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path

from msgspec.structs import asdict, replace

from madlite.files import read_plain
from madlite.machine.host_facts import count_oom_kills
from madlite.measure.diagnosis import DiagnosisInput, DiskSpace, diagnose
from madlite.measure.monitor import LogMonitor
from madlite.measure.performance import (
    CELL_BYTES,
    LINE_BYTES,
    FileBefore,
    FileResults,
    is_fresh,
    is_touched,
    result_lines,
    results_since,
    shortened,
    stamp,
    unreadable,
)
from madlite.measure.rules import with_common
from madlite.measure.steps import node_uses
from madlite.measure.verdict import Verdict
from madlite.model import (
    AdaptiveLength,
    Cause,
    Chunk,
    Diagnosis,
    Exit,
    FailureRule,
    ImageUsed,
    JobOutcome,
    Json,
    Result,
    RunPlan,
    Status,
    StepProfile,
    Value,
    to_json,
)
from madlite.perfcsv.rows import cut_of, limited_metric, masked_metric
from madlite.plan.place import starts_itself
from madlite.plan.submission import RESULTS_VARIABLE
from madlite.platforms.sessions import copy_whole
from madlite.secrets import mask_json
from madlite.store.record import sanitized

# The context of a run as its folder keeps it: the same values, for doing the run again, without secrets.


class ContextFile(Value, frozen=True):
    """A context that can be given again, and the places of what was left out of it."""

    values: dict[str, Json] = {}
    left_out: tuple[str, ...] = ()

    @property
    def data(self) -> bytes:
        """The file; nothing where there is no value."""
        return to_json(self.values).encode() if self.values else b""


def context_file(values: Mapping[str, Json], mask: Callable[[str], str]) -> ContextFile:
    """Return the context without what is secret, by its name or for holding a secret that `mask` knows."""
    left_out: list[str] = []
    public = dict(_without_secrets(values, mask, "", left_out))
    return ContextFile(values=public, left_out=tuple(left_out))


def _without_secrets(
    values: Mapping[str, Json], mask: Callable[[str], str], above: str, left_out: list[str]
) -> Iterator[tuple[str, Json]]:
    for name, value in values.items():
        place = f"{above}.{name}" if above else str(name)
        is_named = mask(str(name)) == str(name)
        if is_named and isinstance(value, Mapping):
            yield name, dict(_without_secrets(value, mask, place, left_out))
        elif is_named and not mask_json(value, mask, str(name))[1]:
            yield name, value
        else:
            left_out.append(mask(place))


# The border where what a workload, an engine or a results file reported becomes a result: without secrets, and short.
#
# Masked first: half of a secret would be none to the mask.

# fields with foreign text, and how long it may be
_TEXT_LIMITS = {
    **dict.fromkeys(("evidence", "diagnosis"), LINE_BYTES),
    **dict.fromkeys(
        ("reason", "findings", "suspect", "checks", "config", "provenance", "telemetry", "nodes", "outcome"), CELL_BYTES
    ),
}
_MOST_CONFIG = 1000  # keys of the configuration that a log reports


def masked(result: Result, mask: Callable[[str], str]) -> Result:
    """Return the result with every text of foreign origin masked, and of its size; a cut cell is reported."""

    def shortener(most_bytes: int) -> Callable[[str], str]:
        return lambda text: shortened(mask(text), most_bytes)

    whole = tuple(masked_metric(metric, mask) for metric in result.metrics)
    cut_note = cut_of(whole)
    config = dict(islice(result.config.items(), _MOST_CONFIG))
    result = replace(result, config=config, findings=(*result.findings, *([cut_note] if cut_note else [])))
    texts = {name: sanitized(getattr(result, name), shortener(most_bytes)) for name, most_bytes in _TEXT_LIMITS.items()}
    data_size = shortened(result.data_size, LINE_BYTES)
    return replace(result, metrics=tuple(map(limited_metric, whole)), data_size=data_size, **texts)


_COMMIT = re.compile(rb"^([0-9a-f]{40})\s*$", re.MULTILINE)
_SIZE = re.compile(rb"^(\d[\d.,]*[BKMGTPE]?)\t[^\n]*\s*\Z", re.MULTILINE)  # as du -sh prints it, last
_KEPT_BYTES = 64 * 1024  # of the output of an action whose end is read


class RunState:
    """Collects what one run shows; only the output of the model's own step is followed.

    What the others say is looked through by `rules` alone, for why they failed.  Of several `nodes` so is, at the end,
    what the one said that failed first, by its own log.
    """

    def __init__(self, monitor: LogMonitor, rules: Iterable[FailureRule] = (), nodes: int = 1) -> None:
        self.monitor = monitor
        self.outcome: JobOutcome | None = None  # of a session that failed, in its engine's words
        self.shell = ""  # what opens one in a session that is kept
        self._nodes = nodes
        self._of_failed: LogMonitor | None = None  # the node that failed first
        self.hint = ""  # the hint of an engine or a runtime
        self.ended: Exit | None = None  # the action that ran last
        self._rules = tuple(rules)
        self._oom_kills = count_oom_kills()
        self.image = ImageUsed()
        self.notes: tuple[str, ...] = ()  # of the session
        self.node_names: tuple[str, ...] = ()  # of the session
        self.missing: tuple[str, ...] = ()  # what was not brought from where it ran
        self.durations_s: dict[str, float] = {}
        self.git_commit = ""
        self.data_size = ""
        self.data_s: float | None = None
        self.ran: Exit | None = None
        self._kind, self._began_s = "", 0.0
        self._aside = self._monitor_aside()  # of the action that runs, of any but the model's own step
        self._output = b""
        self.is_complete = False  # the steps are enough: what the model's step prints while it is ended is not read
        self.adaptive: AdaptiveLength | None = None
        self.profile: StepProfile | None = None

    @property
    def log(self) -> LogMonitor:
        """The output of the action that ran last, of several nodes that of the one which failed first."""
        whole = self.monitor if self._kind == "run" else self._aside
        own = self._of_failed
        return own if own is not None and own.lines else whole

    @property
    def failed_log(self) -> LogMonitor | None:
        """The output of the node that failed first; None of one node, and where it printed nothing."""
        return self.log if self.ended is not None and self.log is self._of_failed else None

    @property
    def oom_kills(self) -> int | None:
        """How many processes of this machine the kernel ended for want of memory since the run began."""
        now = count_oom_kills()
        return None if now is None or self._oom_kills is None else now - self._oom_kills

    def begin(self, kind: str, now_s: float) -> None:
        """Note that an action of this kind starts."""
        self._kind, self._began_s = kind, now_s
        self._aside = self._monitor_aside()
        self._of_failed = None
        self._output = b""
        self.ended = None

    def feed(self, chunk: Chunk) -> None:
        """Take output of the action that runs."""
        if self.is_complete:
            return
        if self._kind == "run":
            self.monitor.feed(chunk.data, chunk.stream, chunk.node, chunk.t_s)
            return
        self._aside.feed(chunk.data, chunk.stream, chunk.node)
        if (chunk.node, chunk.stream) == (0, 1):
            self._output = (self._output + chunk.data)[-_KEPT_BYTES:]

    def cut_off(self, now_s: float) -> None:
        """Note that the action ended with the container or the engine it was in."""
        self.durations_s[self._kind] = now_s - self._began_s

    def end(self, ended: Exit, of_node: Callable[[int], Iterable[bytes]]) -> None:
        """Note how the action ended; `of_node` returns the log of one of several nodes."""
        self.ended = ended
        if self._kind == "run":
            self.ran = ended
        if self._kind in ("run", "data"):
            self.durations_s[self._kind] = self.durations_s.get(self._kind, 0.0) + ended.duration_s
        if self._kind == "clone" and (commits := _COMMIT.findall(self._output)):
            self.git_commit = commits[0].decode()
        if self._kind == "data":  # of several sets the last one is reported
            size = _SIZE.search(self._output)
            self.data_size, self.data_s = (size[1].decode() if size else ""), ended.duration_s
        self._aside.finish()
        if ended.failed_node is not None and self._nodes > 1:
            self._of_failed = LogMonitor((), self._rules)
            for data in of_node(ended.failed_node):
                self._of_failed.feed(data)
            self._of_failed.finish()

    def _monitor_aside(self) -> LogMonitor:
        return LogMonitor((), self._rules, nodes=self._nodes)

    def result(self, plan: RunPlan, verdict: Verdict, started: str) -> Result:
        """Return the run's result."""
        return Result(
            plan_id=plan.id,
            **asdict(verdict),
            config=self.monitor.config,
            exit_code=self.ran.code if self.ran else None,
            node_codes=self.ran.codes if self.ran else (),
            nodes=node_uses(self.monitor.node_speeds, verdict.window, self.node_names),
            outcome=self.outcome,
            shell=self.shell if plan.keep_alive else "",
            image=self.image,
            durations_s=self.durations_s,
            git_commit=self.git_commit,
            steps=self.monitor.steps.count(),
            adaptive=self.adaptive,
            profile=self.profile,
            started=started,
            data_size=self.data_size,
            data_download_s=self.data_s,
        )


# A failed run's result with its diagnosis, from its log and this machine.

# replaced by the diagnosed cause; the others decide rows and exit codes
_REPLACED = {Cause.EXIT_CODE, Cause.PREPARE}
_OF_ENGINE = {Cause.BUILD, Cause.DISK}  # the reason has the engine's message
KNOWN = {cause.value: cause for cause in Cause}


def with_diagnosis(plan: RunPlan, result: Result, state: RunState) -> Result:
    """Return the result with why it failed; one that did not fail as it is."""
    if result.status is not Status.FAILURE or result.diagnosis is not None:
        return result
    found = _diagnosis(plan, result, state)
    outcome = outcome_text(state.outcome)
    replaced = result.cause in _REPLACED and result.exit_code != 0
    cause = KNOWN.get(found.cause, result.cause) if replaced else result.cause
    if result.cause is Cause.DISK and found.cause == Cause.INODES.value:
        cause = Cause.INODES
    unread = [text for text in state.log.unread if text not in found.hint]
    return replace(
        result,
        diagnosis=found,
        cause=cause,
        reason=_reason_text(state, result, found),
        evidence=found.line or result.evidence,
        findings=tuple(dict.fromkeys((*result.findings, *([outcome] if outcome else []), *unread))),
    )


def outcome_text(outcome: JobOutcome | None) -> str:
    """Return what an engine reports of a session's end, "" where that is only its state."""
    if outcome is None or not (outcome.out_of_memory or outcome.reason):
        return ""
    memory = ["its memory limit ended a process"] if outcome.out_of_memory else []
    code = [f"exit code {outcome.code}"] if outcome.code else []
    return f"the engine reports: {'; '.join(filter(None, [outcome.state, *code, *memory, outcome.reason]))}"


def _diagnosis(plan: RunPlan, result: Result, state: RunState) -> Diagnosis:
    hint = state.hint or (plan.blocked.hint if plan.blocked is not None else "")
    if result.cause in _OF_ENGINE:
        return _build_diagnosis(result, hint)
    facts = DiagnosisInput(
        plan=plan,
        exit_code=state.ended.code if state.ended else None,
        oom_kills=state.oom_kills if plan.traits.local else None,
        disk=disk_space(plan.workspace) if plan.traits.shares_files else None,
        outcome=state.outcome,
    )
    state.log.finish()  # of a session that broke off it was not
    found = diagnose(result.cause, result.evidence, state.log, facts, hint)
    if result.cause is Cause.ERROR_PATTERN and found.cause == Cause.PYTHON.value:  # handled, for all that is known
        return replace(found, cause=result.cause.value)
    return found


def _build_diagnosis(result: Result, hint: str) -> Diagnosis:
    """Return the diagnosis of an engine's message: a build without network failed for that."""
    log = LogMonitor((), with_common(()))
    log.feed(result.reason.encode())
    log.finish()
    found = diagnose(Cause.BUILD, "", log, hint=hint)
    cause = result.cause.value if result.cause is Cause.DISK and found.cause != Cause.INODES.value else found.cause
    return Diagnosis(cause=cause, line=result.evidence, hint=hint or found.hint, source=found.source)


def _reason_text(state: RunState, result: Result, found: Diagnosis) -> str:
    """Return the reason as a sentence that stands alone: what happened, why, and what to do."""
    if found.cause == result.cause.value:
        return result.reason
    rule = state.log.rule
    reason = result.reason.partition(f" ({rule.cause})")[0] if rule else result.reason
    return f"{reason} ({found.cause}); {found.hint}" if found.hint else f"{reason} ({found.cause})"


def disk_space(folder: Path) -> DiskSpace | None:
    """Return what a folder's disk has left; None where it cannot be queried."""
    try:
        disk = os.statvfs(folder)
    except OSError:
        return None
    free_inodes = disk.f_favail if disk.f_files else None
    return DiskSpace(folder=folder, free_bytes=disk.f_bavail * disk.f_frsize, free_inodes=free_inodes)


# The `multiple_results` file of a run: found where scripts leave it, and only when this run wrote it.

# where scripts that start their steps themselves leave a perf.csv, as madengine 2 looks for it
_OF_JOBS = (
    "{results}/perf*.csv",
    "/shared_inference/{user}/{job}/perf.csv",
    "/shared_inference/{user}/model_blog_logs/{job}/perf.csv",
    "{model}/slurm_output/perf_csv/*{job}*.csv",
    "{model}/perf*.csv",
)
_NAMES = re.compile(r"{(\w+)}")


class ResultsFile:
    """Remembers what lay there before the run, so that a left-over is never taken for a result."""

    def __init__(self, plan: RunPlan, environ: Mapping[str, str]) -> None:
        rule, model = plan.result_rule, plan.workspace / plan.model_dir
        self._root, self._target = plan.workspace, plan.workspace / rule.file
        self._places = [model / rule.file, self._target] if rule.file else []
        self._card = plan.card.name
        self._patterns: list[str] = []
        if starts_itself(plan.launcher):
            results, user, job = (environ.get(name, "") for name in (RESULTS_VARIABLE, "USER", "SLURM_JOB_ID"))
            found = {"results": results and str(plan.workspace / results), "user": user, "job": job}
            known = {name: glob.escape(text) for name, text in {**found, "model": str(model)}.items() if text}
            self._patterns = [one.format_map(known) for one in _OF_JOBS if {*_NAMES.findall(one)} <= {*known}]
        self._before: dict[Path, FileBefore | None] = {}
        self._begun_ns = 0

    @property
    def _paths(self) -> list[Path]:
        found = (Path(path) for pattern in self._patterns for path in sorted(glob.glob(pattern)))  # noqa: PTH207
        return [*dict.fromkeys((*self._places, *found))]

    def begin(self) -> None:
        """Note what is there now that the script starts: a clone or a copy of scripts may have brought one along."""
        self._before = {path: stamp(path, self._content(path)) for path in self._paths}
        self._begun_ns = time.time_ns()

    def read(self) -> FileResults | None:
        """Return the results, and copy the file up into the workspace, as MAD's tooling expects it there."""
        paths = self._paths if self._begun_ns else ()  # of a run whose script never began nothing is its own
        fresh = next((p for p in paths if is_fresh(p, self._before.get(p), self._begun_ns)), None)
        if fresh is None:
            return None
        before, is_perf_csv = self._before.get(fresh), bool(self._patterns)
        touched = is_touched(fresh, before)
        try:
            data = read_plain(fresh, self._root_of(fresh))
        except OSError as error:
            return unreadable(fresh.name, error)
        read = results_since(fresh.name, data, before, touched=touched, by_status=is_perf_csv)
        if self._places and fresh != self._target:
            copy_whole(fresh, self._target, self._root_of(fresh))
        if read is None or not is_perf_csv:
            return read
        own = (replace(metric, label=metric.label.removeprefix(self._card).lstrip("_")) for metric in read.metrics)
        return replace(read, metrics=tuple(own))

    def _content(self, path: Path) -> bytes:
        with suppress(OSError, ValueError):
            return read_plain(path, self._root_of(path))
        return b""

    def _root_of(self, path: Path) -> Path:
        """Return the folder that no link of a file may leave."""
        return self._root if path.is_relative_to(self._root) else path.parent


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
                    found |= result_lines(read_plain(file, plan.workspace, limit_bytes=_MOST_BYTES))
    return frozenset(found)
