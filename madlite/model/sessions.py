"""What passes between a session and who runs actions in it: output, how an action ended, what a probe printed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from madlite.model.values import Value


class Chunk(Value, frozen=True):
    """Bytes of an action's output as they came: of `stream` 1 (stdout) or 2 (stderr), from one node of the session.

    `node` counts from 0 in the order of `Session.nodes`, as torchrun's node rank does.  `t_s` is when it was written,
    in seconds since the session's first output, where the engine knows that; None where it was written as it came.
    """

    data: bytes
    stream: int = 1
    node: int = 0
    t_s: float | None = None


Sink: TypeAlias = Callable[[Chunk], None]


class Exit(Value, frozen=True):
    """How an action ended: its exit code, or the signal (negative) that ended it; `timed_out` at its own limit.

    On several nodes `codes` has each node's, in their order, None of one that ran nothing or whose end nobody knows.
    `failed_node` is the one that failed first, and `code` is its own, 0 where none failed.
    """

    code: int
    duration_s: float
    timed_out: bool = False
    codes: tuple[int | None, ...] = ()
    failed_node: int | None = None

    @classmethod
    def of_nodes(
        cls, codes: Sequence[int | None], failed_first: int | None, duration_s: float, *, timed_out: bool = False
    ) -> Exit:
        """Return how an action of several nodes ended; `failed_first` None leaves the first in their order."""
        failed = next((node for node, code in enumerate(codes) if code), None)
        first = failed if failed_first is None or not codes[failed_first] else failed_first
        return cls(
            code=(codes[first] or 0) if first is not None else 0,
            duration_s=duration_s,
            timed_out=timed_out,
            codes=tuple(codes),
            failed_node=first,
        )


PROBE_BYTES = 1 << 20
"""What is kept at most of each stream of a probe."""


class Completed(Value, frozen=True):
    """How a probe's command ended: `code` None where its limit ended it; the output up to there, `PROBE_BYTES` each."""

    code: int | None
    stdout: bytes = b""
    stderr: bytes = b""


class JobOutcome(Value, frozen=True):
    """What an engine itself says of how a session ended, or that it goes on; evidence beside the log.

    `state` is the engine's own word, as `exited` or `NODE_FAIL`; `reason` what it adds to it.  `out_of_memory` where
    the session's own memory limit ended a process.  Times are ISO 8601, empty where they are not known.
    """

    state: str
    ended: bool = True
    code: int | None = None
    out_of_memory: bool = False
    reason: str = ""
    began_at: str = ""
    ended_at: str = ""
