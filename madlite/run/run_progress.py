"""What is noted while one run goes on, and the result it adds up to."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from madlite.machine.host_facts import count_oom_kills
from madlite.measure.monitor import LogMonitor
from madlite.measure.nodes import node_uses
from madlite.measure.verdict import Verdict
from madlite.model import AdaptiveLength, Chunk, Exit, FailureRule, ImageUsed, JobOutcome, Result, RunPlan

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


class RunProgress:
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
            status=verdict.status,
            cause=verdict.cause,
            reason=verdict.reason,
            evidence=verdict.evidence,
            window=verdict.window,
            metrics=verdict.metrics,
            findings=verdict.findings,
            suspect=verdict.suspect,
            checks=verdict.checks,
            compute=verdict.compute,
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
