"""What is noted while one run goes on, and the result it adds up to."""

from __future__ import annotations

import re
from collections.abc import Iterable

from madlite.machine.oom_kills import count_oom_kills
from madlite.measure.follow import Follower
from madlite.measure.verdict import Verdict
from madlite.types import Exit, FailureRule, ImageUsed, Result, RunPlan

_COMMIT = re.compile(rb"^([0-9a-f]{40})\s*$", re.MULTILINE)
_SIZE = re.compile(rb"^(\d[\d.,]*[BKMGTPE]?)\t[^\n]*\s*\Z", re.MULTILINE)  # as du -sh says it, last
_KEPT_BYTES = 64 * 1024  # of the output of an action that is asked for its end


class Account:
    """Collects what one run shows; only the output of the model's own step is followed.

    What the others say is looked through by `rules` alone, for why they failed.
    """

    def __init__(self, follower: Follower, rules: Iterable[FailureRule] = ()) -> None:
        self.follower = follower
        self.hint = ""  # what an engine or a runtime says is to be done
        self.ended: Exit | None = None  # the action that ran last
        self._rules = tuple(rules)
        self._oom_kills = count_oom_kills()
        self.image = ImageUsed()
        self.notes: tuple[str, ...] = ()  # of the session
        self.durations_s: dict[str, float] = {}
        self.git_commit = ""
        self.data_size = ""
        self.data_s: float | None = None
        self.ran: Exit | None = None
        self._kind, self._began_s = "", 0.0
        self._aside = Follower((), self._rules)
        self._output = b""

    @property
    def log(self) -> Follower:
        """The output of the action that ran last."""
        return self.follower if self._kind == "run" else self._aside

    @property
    def telling_line(self) -> str:
        """The line that explains best how the action that ran last went."""
        return self.log.telling_line

    @property
    def oom_kills(self) -> int | None:
        """How many processes of this machine the kernel ended for want of memory since the run began."""
        now = count_oom_kills()
        return None if now is None or self._oom_kills is None else now - self._oom_kills

    def begin(self, kind: str, now_s: float) -> None:
        """Note that an action of this kind starts."""
        self._kind, self._began_s = kind, now_s
        self._aside = Follower((), self._rules)
        self._output = b""
        self.ended = None

    def feed(self, chunk: bytes, stream: int) -> None:
        """Take output of the action that runs."""
        if self._kind == "run":
            self.follower.feed(chunk, stream)
            return
        self._aside.feed(chunk, stream)
        if stream == 1:
            self._output = (self._output + chunk)[-_KEPT_BYTES:]

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
        if self._kind == "data":  # of several sets the last one is told of
            size = _SIZE.search(self._output)
            self.data_size, self.data_s = (size[1].decode() if size else ""), ended.duration_s
        self._aside.finish()

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
            witnesses=verdict.witnesses,
            compute=verdict.compute,
            config=self.follower.config,
            exit_code=self.ran.code if self.ran else None,
            image=self.image,
            durations_s=self.durations_s,
            git_commit=self.git_commit,
            steps=self.follower.steps.count(),
            started=started,
            data_size=self.data_size,
            data_download_s=self.data_s,
        )
