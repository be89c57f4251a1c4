"""A short command beside what runs in a container: bounded in time, in size, and without a trace once it ended."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping, Sequence

from madlite.errors import RuntimeProblem
from madlite.images.client import ANSWER_LIMIT_S, Client, connected
from madlite.model import PROBE_BYTES, Cause, Completed
from madlite.runtimes.docker.container import start_failure, state_of
from madlite.runtimes.docker.exec import Exec
from madlite.runtimes.docker.stream import Frames

LATE_S = 1.0  # for the engine's answers, beyond the limit of the command
_TURN_S = 0.2
# The engine starts each exec as the leader of a session and process group of its own, and cannot end it: so it ends
# itself.  $1 is the limit in whole seconds.  The timer holds no output open that its command has closed.
_LIMITED = r"""
limit=$1
shift
(exec > /dev/null 2>&1; sleep "$limit"; kill -KILL 0) &
timer=$!
"$@"
code=$?
kill "$timer" 2> /dev/null
exit "$code"
"""


def probe(environ: Mapping[str, str], container: str, argv: Sequence[str], limit_s: float) -> Completed:
    """Run a command in a container as its root and return what it printed; soon after `limit_s` it ends in any case.

    Raises:
        RuntimeProblem: it cannot be started there.
    """
    asked = _Probe(environ, container, argv, time.monotonic() + limit_s)
    thread = threading.Thread(target=asked.run, name="madlite-probe", daemon=True)
    thread.start()  # nothing else lets go of an engine that took a request and does not answer it
    thread.join(limit_s + LATE_S)
    return asked.result(late=thread.is_alive())


class _Probe:
    """One command while it runs."""

    def __init__(self, environ: Mapping[str, str], container: str, argv: Sequence[str], until_s: float) -> None:
        self._environ, self._container, self._until_s = environ, container, until_s
        limit_s = max(1, math.ceil(until_s - time.monotonic()))
        self._argv = ("/bin/sh", "-c", _LIMITED, "sh", str(limit_s), *argv)
        self._said = {1: bytearray(), 2: bytearray()}
        self._code: int | None = None
        self._problem: RuntimeProblem | None = None
        self._started = False

    def run(self) -> None:
        """Run it; what goes wrong is kept for `result`."""
        try:
            with connected(self._environ, ANSWER_LIMIT_S) as client:
                self._check(client)
                self._run(client)
        except RuntimeProblem as problem:
            self._problem = problem

    def result(self, *, late: bool) -> Completed:
        """Return what there is; `late` where the engine has not answered in time."""
        if late and not self._started:
            raise RuntimeProblem("the engine does not answer in time", cause=Cause.ENGINE)
        if self._problem is not None and not self._started:
            raise self._problem
        out, err = (bytes(said) for said in self._said.values())
        if words := start_failure(self._code, out or err):
            raise RuntimeProblem(f"its container cannot start a command: {words}", cause=Cause.PREPARE)
        return Completed(code=None if late else self._code, stdout=out, stderr=err)

    def _check(self, client: Client) -> None:
        state = state_of(client, self._container)
        if state is None:
            raise RuntimeProblem("its container is gone", cause=Cause.INTERRUPTED)
        if state.get("Paused") or not state.get("Running"):
            what = "paused" if state.get("Paused") else "not running"
            raise RuntimeProblem(f"its container is {what}", cause=Cause.INTERRUPTED)

    def _run(self, client: Client) -> None:
        running = Exec(client, self._container, self._argv, "/", {}, user="0")
        output = running.start()
        self._started = True
        frames = Frames(self._keep)
        try:
            while (left_s := self._until_s - time.monotonic()) > 0:
                data = output.read(min(_TURN_S, left_s))
                if data is not None and not data:
                    self._code = running.exit_code(LATE_S)
                    return
                frames.feed(data or b"")
        finally:
            output.close()

    def _keep(self, data: bytes, stream: int) -> None:
        said = self._said[stream]
        said.extend(data[: PROBE_BYTES - len(said)])
