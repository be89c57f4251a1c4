"""What is noted while one run goes on, and the result it adds up to."""

from __future__ import annotations

import re
from collections.abc import Iterable

from madlite.machine.host_facts import count_oom_kills
from madlite.measure.monitor import LogMonitor
from madlite.measure.verdict import Verdict
from madlite.model import AdaptiveLength, Chunk, Exit, FailureRule, ImageUsed, JobOutcome, Result, RunPlan

_COMMIT = re.compile(rb"^([0-9a-f]{40})\s*$", re.MULTILINE)
_SIZE = re.compile(rb"^(\d[\d.,]*[BKMGTPE]?)\t[^\n]*\s*\Z", re.MULTILINE)  # as du -sh prints it, last
_KEPT_BYTES = 64 * 1024  # of the output of an action whose end is read


class RunProgress:
    """Collects what one run shows; only the output of the model's own step is followed.

    What the others say is looked through by `rules` alone, for why they failed.  Of several `nodes` so is what each of
    them says: a failure is explained by the node that failed first.
    """

    def __init__(self, monitor: LogMonitor, rules: Iterable[FailureRule] = (), nodes: int = 1) -> None:
        self.monitor = monitor
        self.outcome: JobOutcome | None = None  # of a session that failed, in its engine's words
        self.shell = ""  # what opens one in a session that is kept
        self._nodes = nodes
        self._of_node: dict[int, LogMonitor] = {}
        self.hint = ""  # the hint of an engine or a runtime
        self.ended: Exit | None = None  # the action that ran last
        self._rules = tuple(rules)
        self._oom_kills = count_oom_kills()
        self.image = ImageUsed()
        self.notes: tuple[str, ...] = ()  # of the session
        self.missing: tuple[str, ...] = ()  # what was not brought from where it ran
        self.durations_s: dict[str, float] = {}
        self.git_commit = ""
        self.data_size = ""
        self.data_s: float | None = None
        self.ran: Exit | None = None
        self._kind, self._began_s = "", 0.0
        self._aside = LogMonitor((), self._rules, nodes=nodes)
        self._output = b""
        self.is_complete = False  # the steps are enough: what the model's step prints while it is ended is not read
        self.adaptive: AdaptiveLength | None = None

    @property
    def log(self) -> LogMonitor:
        """The output of the action that ran last, of several nodes that of the one which failed first."""
        whole = self.monitor if self._kind == "run" else self._aside
        failed = self.ended.failed_node if self.ended is not None else None
        own = self._of_node.get(failed) if failed is not None else None
        return own if own is not None and own.lines else whole

    @property
    def failed_log(self) -> LogMonitor | None:
        """The output of the node that failed first; None of one node, and where it printed nothing."""
        return self.log if self.ended is not None and self.log in self._of_node.values() else None

    @property
    def oom_kills(self) -> int | None:
        """How many processes of this machine the kernel ended for want of memory since the run began."""
        now = count_oom_kills()
        return None if now is None or self._oom_kills is None else now - self._oom_kills

    def begin(self, kind: str, now_s: float) -> None:
        """Note that an action of this kind starts."""
        self._kind, self._began_s = kind, now_s
        self._aside = LogMonitor((), self._rules, nodes=self._nodes)
        self._of_node = {}
        self._output = b""
        self.ended = None

    def feed(self, chunk: Chunk) -> None:
        """Take output of the action that runs."""
        if self.is_complete:
            return
        if self._nodes > 1:
            self._of_node.setdefault(chunk.node, LogMonitor((), self._rules)).feed(chunk.data, chunk.stream)
        if self._kind == "run":
            self.monitor.feed(chunk.data, chunk.stream, chunk.node)
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
        self._aside.finish()
        for log in self._of_node.values():
            log.finish()

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
