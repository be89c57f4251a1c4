"""The step that a run's containers live as long as, on all of its nodes at once.

A container is no child of Slurm's, and once a job is cancelled or past its time limit no step of it can be started to
remove one: a step that is there already is signalled, and does it.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from madlite import process

_READ_BYTES = 1 << 16
_POLL_S = 0.1
_END_S = 10.0  # for srun to end the step's processes


class Keeper:
    """A step that starts something on each node, and removes it when Slurm ends the job."""

    def __init__(self) -> None:
        self._step: subprocess.Popen[bytes] | None = None

    def start(self, argv: Sequence[str], nodes: int, env: Mapping[str, str], limit_s: float) -> tuple[str, str]:
        """Start the step; return what it has printed and its errors, once each node has printed a line.

        So it does where the step ends before that, or `limit_s` has passed.

        Raises:
            OSError: srun cannot be started.
        """
        self._step = step = process.start(argv, env=env)
        said = {1: b"", 2: b""}
        deadline = time.monotonic() + limit_s
        with selectors.DefaultSelector() as pipes:
            for number, pipe in ((1, step.stdout), (2, step.stderr)):
                pipes.register(pipe or -1, selectors.EVENT_READ, number)
            while pipes.get_map() and said[1].count(b"\n") < nodes and time.monotonic() < deadline:
                for key, _ in pipes.select(_POLL_S):
                    data = os.read(key.fd, _READ_BYTES)
                    said[key.data] += data
                    if not data:
                        pipes.unregister(key.fileobj)
        return said[1].decode("utf-8", "replace"), said[2].decode("utf-8", "replace")

    def is_over(self, limit_s: float = 0.0) -> bool:
        """Return whether the step has ended by itself within a time, as with its job, and removed what it started."""
        if self._step is None:
            return False
        with suppress(subprocess.TimeoutExpired):
            self._step.wait(limit_s)
        return self._step.poll() is not None

    def end(self) -> None:
        """End the step, of which nothing is left to be removed: srun kills what is in it."""
        step, self._step = self._step, None
        if step is None:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            if step.poll() is None:
                process.kill_group(step.pid, number)
                with suppress(subprocess.TimeoutExpired):
                    step.wait(_END_S)
        for pipe in filter(None, (step.stdout, step.stderr)):
            pipe.close()
