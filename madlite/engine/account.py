"""What is noted while one run goes on, and the result it adds up to."""

from __future__ import annotations

import re

from madlite.measure.follow import Follower
from madlite.measure.verdict import Verdict
from madlite.types import Exit, ImageUsed, Result, RunPlan

_COMMIT = re.compile(rb"^([0-9a-f]{40})\s*$", re.MULTILINE)
_KEPT_BYTES = 64 * 1024  # of a clone's output, whose last commit line is wanted


class Account:
    """Collects what one run shows; only the output of the model's own step is followed."""

    def __init__(self, follower: Follower) -> None:
        self.follower = follower
        self.image = ImageUsed()
        self.durations_s: dict[str, float] = {}
        self.git_commit = ""
        self.ran: Exit | None = None
        self._kind = ""
        self._aside = Follower(())
        self._clone_output = b""

    @property
    def telling_line(self) -> str:
        """The line that explains best how the action that ran last went."""
        return (self.follower if self._kind == "run" else self._aside).telling_line

    def begin(self, kind: str) -> None:
        """Note that an action of this kind starts."""
        self._kind = kind
        self._aside = Follower(())
        self._clone_output = b""

    def feed(self, chunk: bytes, stream: int) -> None:
        """Take output of the action that runs."""
        if self._kind == "run":
            self.follower.feed(chunk, stream)
            return
        self._aside.feed(chunk, stream)
        if self._kind == "clone" and stream == 1:
            self._clone_output = (self._clone_output + chunk)[-_KEPT_BYTES:]

    def end(self, ended: Exit) -> None:
        """Note how the action ended."""
        if self._kind == "run":
            self.ran = ended
            self.durations_s["run"] = ended.duration_s
        commits = _COMMIT.findall(self._clone_output)
        if commits:
            self.git_commit = commits[0].decode()
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
            exit_code=self.ran.code if self.ran else None,
            image=self.image,
            durations_s=self.durations_s,
            git_commit=self.git_commit,
            steps=len({step.n for step in self.follower.steps if step.phase == "train"}),
            started=started,
        )
