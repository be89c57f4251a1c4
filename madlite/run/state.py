"""What is noted while one run goes on, and the result it adds up to."""

from __future__ import annotations

import re
import shlex
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path

from msgspec.structs import asdict, replace

from madlite.machine.host_facts import count_oom_kills
from madlite.measure.lines import clone_line, duration_lines, image_lines, limit_line, result_lines, scripts_line
from madlite.measure.monitor import LogMonitor
from madlite.measure.nodes import node_uses
from madlite.measure.performance import CELL_BYTES, LINE_BYTES, shortened
from madlite.measure.verdict import Observation, Verdict
from madlite.model import (
    Action,
    AdaptiveLength,
    Cause,
    Chunk,
    EnvValue,
    Exit,
    FailureRule,
    ImageUsed,
    JobOutcome,
    Json,
    Result,
    RunPlan,
    Secret,
    Value,
    to_json,
)
from madlite.perfcsv.rows import cut_of, limited_metric, masked_metric
from madlite.plan.inputs import RUNS
from madlite.plan.manifest import mask_json
from madlite.run.probe_inside import SEARCH_S, candidates, commit_of
from madlite.store.folder import CONTEXT
from madlite.store.record import sanitized
from madlite.store.stored import read_record

# The context of a run as its folder keeps it: the same values, for doing the run again, without secrets.

_OF_A_RUN = re.compile(rf"(?:^|[=/]){RUNS}/(?P<id>[^/]+)/{re.escape(CONTEXT)}$")


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


def left_out_before(command: Iterable[str], workspace: Path) -> tuple[str, ...]:
    """Return the places that were left out of the context of an earlier run, where a command names its file."""
    for word in command:
        if found := _OF_A_RUN.search(word):
            record = read_record(workspace / RUNS / found["id"])
            return record.context_left_out if record is not None else ()
    return ()


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


# The lines that madengine prints of a run, in its order, for the live log and in contract mode for the screen.

# A container's request as a `docker run` command, as madengine prints it; the container is started through the API.
_FUSE = "/dev/fuse"


def option_lines(plan: RunPlan) -> tuple[str, str]:
    """Return the lines of a plan's GPUs and of all its options, in madengine's order; secrets are ***."""
    gpus = " ".join(_gpus(plan))
    return f"GPU arguments: {gpus}", f"Docker options: {' '.join(_options(plan, gpus))}"


def _options(plan: RunPlan, gpus: str) -> Iterator[str]:
    given = plan.engine_options
    yield f"--network {given.network} -u {given.user}"
    yield from (f"--group-add {name}" for name in given.group_add)
    yield from (f"--cap-add {name}" for name in given.cap_add)
    yield from (f"--device {name}" for name in plan.devices if name == _FUSE)
    yield from (f"--security-opt {text}" for text in given.security_opt)
    yield from (f"--ulimit {text}" for text in given.ulimits)
    yield from ([f"--ipc={given.ipc}"] if given.ipc else [])
    yield from filter(None, [gpus])
    yield from ([f"--cpuset-cpus {given.cpuset}"] if given.cpuset else [])
    yield from (f"--env {name}={_shown(value)}" for name, value in plan.env.items())
    for mount in plan.mounts:
        end = ":ro" if mount.read_only else ""
        yield f"-v {shlex.quote(f'{mount.source}:{mount.target}{end}')}"
    yield from filter(None, [given.extra])


def _gpus(plan: RunPlan) -> Iterator[str]:
    if plan.machine.vendor == "NVIDIA" and plan.place.gpu_ids:
        yield f"--gpus '\"device={','.join(map(str, plan.place.gpu_ids))}\"'"
    yield from (f"--device={name}" for name in plan.devices if name != _FUSE)


def _shown(value: EnvValue) -> str:
    return "***" if isinstance(value, Secret) else shlex.quote(value)


class MadLog:
    """Write the lines that madengine would print of a run: `write` adds one to its live log, `show` shows it."""

    def __init__(
        self,
        plan: RunPlan,
        state: RunState,
        write: Callable[[str], None],
        show: Callable[[str], None],
    ) -> None:
        self._plan, self._state = plan, state
        self._log, self._show = write, show
        self._has_scripts = False

    def prepared(self) -> None:
        """Write which image there is, and of one that was built how long that took and on what it is based."""
        if self._plan.image is not None and self._state.image.ref:
            self._write_all(image_lines(self._plan.image, self._state.image))

    def opening(self) -> None:
        """Write the time limit; the screen, what the container is started with."""
        if self._plan.image is not None:
            for line in option_lines(self._plan):
                self._show(line)
        if self._plan.timeout_s is not None:
            self._write(limit_line(self._plan.timeout_s))

    def before(self, action: Action) -> None:
        """Write the lines that precede an action."""
        if action.kind in ("data", "run") and not self._has_scripts:
            self._has_scripts = True
            if self._plan.card.scripts:
                self._write(scripts_line(_commit(self._plan.workspace / self._plan.card.scripts)))

    def after(self, action: Action, ended: Exit) -> None:
        """Write what an action came to; for a failed one madengine prints nothing."""
        if ended.code == 0 and action.kind == "clone" and self._state.git_commit:
            self._write(clone_line(self._state.git_commit))
        if ended.code == 0 and action.kind == "run":
            self._write_all(duration_lines(self._state.durations_s["run"]))

    def judged(self, seen: Observation, verdict: Verdict) -> None:
        """Write what came out of a run whose actions came to their end."""
        if seen.skipped or seen.failed_action or seen.stopped is not Cause.NONE or seen.exit is None or seen.exit.code:
            return
        by_patterns = verdict.cause is Cause.ERROR_PATTERN
        name, rule = self._plan.card.name, self._plan.result_rule
        self._write_all(result_lines(name, verdict.status, verdict.metrics, rule, by_patterns=by_patterns))

    def _write(self, line: str) -> None:
        self._log(line)
        self._show(line)

    def _write_all(self, lines: Iterable[str]) -> None:
        for line in lines:
            self._write(line)


def _commit(scripts: Path) -> str:
    """Return the commit of the repository that a script or a folder of scripts lies in; "" where it is in none."""
    folder, until = scripts if scripts.is_dir() else scripts.parent, time.monotonic() + SEARCH_S
    return next(filter(None, (commit_of(place, until) for place in candidates([str(folder)], (), until))), "")


_COMMIT = re.compile(rb"^([0-9a-f]{40})\s*$", re.MULTILINE)
_SIZE = re.compile(rb"^(\d[\d.,]*[BKMGTPE]?)\t[^\n]*\s*\Z", re.MULTILINE)  # as du -sh prints it, last
_KEPT_BYTES = 64 * 1024  # of the output of an action whose end is read
_KEPT_OF_NODES_BYTES = 64 << 20  # of the output of several nodes together


class _Tail:
    """The last output of one node, up to so many bytes."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes, self._size_bytes, self._is_cut = limit_bytes, 0, False
        self._chunks: deque[Chunk] = deque()

    def add(self, chunk: Chunk) -> None:
        self._chunks.append(chunk)
        self._size_bytes += len(chunk.data)
        while self._size_bytes > self._limit_bytes and len(self._chunks) > 1:
            self._size_bytes -= len(self._chunks.popleft().data)
            self._is_cut = True

    def chunks(self) -> Iterator[Chunk]:
        """Yield what is kept, from the beginning of a line of each stream on."""
        begun = set() if self._is_cut else {1, 2}
        for chunk in self._chunks:
            if chunk.stream in begun:
                yield chunk
            elif b"\n" in chunk.data:
                begun.add(chunk.stream)
                yield replace(chunk, data=chunk.data.partition(b"\n")[2])


class RunState:
    """Collects what one run shows; only the output of the model's own step is followed.

    What the others say is looked through by `rules` alone, for why they failed.  Of several `nodes` so is, at the end,
    what the one said that failed first; until then the last output of each is kept as it came.
    """

    def __init__(self, monitor: LogMonitor, rules: Iterable[FailureRule] = (), nodes: int = 1) -> None:
        self.monitor = monitor
        self.outcome: JobOutcome | None = None  # of a session that failed, in its engine's words
        self.shell = ""  # what opens one in a session that is kept
        self._nodes = nodes
        self._tails: dict[int, _Tail] = {}
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
        self._log_aside: LogMonitor | None = None
        self._output = b""
        self.is_complete = False  # the steps are enough: what the model's step prints while it is ended is not read
        self.adaptive: AdaptiveLength | None = None

    @property
    def log(self) -> LogMonitor:
        """The output of the action that ran last, of several nodes that of the one which failed first."""
        whole = self.monitor if self._kind == "run" else self._aside
        own = self._of_failed
        return own if own is not None and own.lines else whole

    @property
    def _aside(self) -> LogMonitor:
        """The output of the action that runs, of any but the model's own step; most print nothing."""
        if self._log_aside is None:
            self._log_aside = LogMonitor((), self._rules, nodes=self._nodes)
        return self._log_aside

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
        self._log_aside = None
        self._tails, self._of_failed = {}, None
        self._output = b""
        self.ended = None

    def feed(self, chunk: Chunk) -> None:
        """Take output of the action that runs."""
        if self.is_complete:
            return
        if self._nodes > 1:
            tail = self._tails.get(chunk.node)
            if tail is None:
                tail = self._tails[chunk.node] = _Tail(_KEPT_OF_NODES_BYTES // self._nodes)
            tail.add(chunk)
        if self._kind == "run":
            self.monitor.feed(chunk.data, chunk.stream, chunk.node, chunk.t_s)
            return
        self._aside.feed(chunk.data, chunk.stream, chunk.node)
        if (chunk.node, chunk.stream) == (0, 1):
            self._output = (self._output + chunk.data)[-_KEPT_BYTES:]

    def cut_off(self, now_s: float) -> None:
        """Note that the action ended with the container or the engine it was in."""
        self.durations_s[self._kind] = now_s - self._began_s

    def end(self, ended: Exit) -> None:
        """Note how the action ended."""
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
        if self._log_aside is not None:
            self._log_aside.finish()
        tail = self._tails.get(ended.failed_node) if ended.failed_node is not None else None
        if tail is not None:
            self._of_failed = LogMonitor((), self._rules)
            for chunk in tail.chunks():
                self._of_failed.feed(chunk.data, chunk.stream)
            self._of_failed.finish()
        self._tails = {}

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
            started=started,
            data_size=self.data_size,
            data_download_s=self.data_s,
        )
