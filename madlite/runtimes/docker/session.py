"""A container held open, in which a plan's actions run one by one."""

from __future__ import annotations

import logging
import posixpath
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from madlite.errors import RuntimeProblem
from madlite.images.client import Client, Patience, explained
from madlite.model import Action, Chunk, Completed, Exit, Sink
from madlite.runtimes.docker import container as containers
from madlite.runtimes.docker.container import Container
from madlite.runtimes.docker.exec import Exec
from madlite.runtimes.docker.give_back import give_back
from madlite.runtimes.docker.probe import probe
from madlite.runtimes.docker.signals import end_workload
from madlite.runtimes.docker.stream import ExecOutput, Frames
from madlite.runtimes.turn import STOPPED, Turn
from madlite.secrets import reveal
from madlite.workspace.mounts import copy_matching

POLL_S = 1.0
ASK_AFTER_S = 30.0  # without output, before asking whether the process is still there
SETTLE_S = 1.0  # for a container to be told as ended after its processes were killed
RETURN_LIMIT_S = 5.0  # for run() to see that its process is gone
STOP_LIMIT_S, HURRY_LIMIT_S = 20.0, 5.0  # for one answer of the engine while a run is ended, and once it is hurried
KILLED = 137  # 128 + SIGKILL
_HEAD_BYTES = 1024
_LOG = logging.getLogger(__name__)


class DockerSession:
    """Runs actions in a container by the engine's exec."""

    nodes: tuple[str, ...] = ("",)

    def __init__(self, client: Client, environ: Mapping[str, str], container: Container, grace_s: float) -> None:
        self.handle = container.id
        self.shell = f"docker exec -it {container.id[:12]} bash"
        self.notes: tuple[str, ...] = ()  # the container's end ends all that is in it
        self._client = Patience(client)
        self._environ = environ
        self._container = container
        self._grace_s = grace_s
        self._exec: Exec | None = None  # the one that was created last
        self._turn = Turn()

    def run(self, action: Action, out: Sink) -> Exit:
        """Run the action to its end; `out` gets its output as it comes.

        Raises:
            RuntimeProblem: the command cannot be started, or the container went away under it.
        """
        begun = time.monotonic()
        head = bytearray()  # the engine writes why it cannot start a command where the output goes

        def keep_head(data: bytes, stream: int) -> None:
            if len(head) < _HEAD_BYTES:
                head.extend(data[:_HEAD_BYTES])
            out(Chunk(data=data, stream=stream))

        expire = partial(self._stop, self._grace_s)
        with explained(self._environ), self._turn.take(action.timeout_s, expire) as expired:
            code = STOPPED if self._turn.closed.is_set() else self._run(action, Frames(keep_head))
        if words := containers.start_failure(code, bytes(head)):
            raise containers.cannot_start(self._container, action, words)
        return Exit(code=code, duration_s=time.monotonic() - begun, timed_out=expired.is_set())

    def probe(self, argv: Sequence[str], node: int, limit_s: float) -> Completed:
        """Run a short command in the container as its root, over a connection of its own.

        Raises:
            RuntimeProblem: nothing can be started in it: it is paused, gone, or the engine does not answer.
        """
        return probe(self._environ, self.handle, argv, limit_s)

    def stop(self, grace_s: float) -> None:
        """End the running action: INT, `grace_s`, TERM, `grace_s`, KILL; nothing starts here any more.

        Safe from another thread.  Without a grace it also hurries a stop that is under way.  What the engine refuses
        is logged, and one that hangs is not waited for as if it removed a container, whatever it was asked for.
        """
        self._turn.closed.set()
        self._client.cut(STOP_LIMIT_S if grace_s > 0 else HURRY_LIMIT_S)
        self._stop(grace_s)

    def collect(self, patterns: Sequence[str], into: Path) -> None:
        """Copy the files of the workspace that match into the folder `into`."""
        with explained(self._environ):
            give_back(self._client, self._container)
        copy_matching(self._container.workspace, patterns, into)

    def close(self) -> None:
        """End what an interrupted action left running, and give the files back; the container stays."""
        if self._client.is_cut:
            containers.is_alive(self._client, self.handle)  # raises where it still answers nothing
        if self._exec is not None and self._exec.is_running():
            self._end(self._grace_s)
            if self._exec.is_running():
                containers.kill(self._client, self.handle)
        self._client.restore()  # it answers, so what takes long now is work
        give_back(self._client, self._container)

    def _stop(self, grace_s: float) -> None:
        try:
            with self._turn.ending(grace_s), explained(self._environ):
                if not self._turn.end_until_over(partial(self._end, grace_s), RETURN_LIMIT_S):
                    containers.kill(self._client, self.handle)
                    if not self._turn.wait_over(RETURN_LIMIT_S):
                        self._turn.given_up.set()
        except RuntimeProblem as problem:
            _LOG.warning("the run cannot be stopped: %s", problem.message)
            self._turn.given_up.set()

    def _run(self, action: Action, frames: Frames) -> int:
        running, output = self._start(action)
        self._pump(running, output, frames)
        return self._exit_code(running, action)

    def _start(self, action: Action) -> tuple[Exec, ExecOutput]:
        import docker.errors

        cwd = action.cwd.replace("{folder}", self._container.folder_inside)
        workdir = posixpath.normpath(posixpath.join(self._container.inside, cwd))
        try:
            self._exec = Exec(self._client, self.handle, action.argv, workdir, reveal(action.env))
            output = self._exec.start()
            if self._container.shares_processes:
                self._exec.host_pid()  # known only while it runs, and needed to end what outlives it
            return self._exec, output
        except docker.errors.APIError as error:
            if error.status_code in (404, 409):  # no such container, or it is not running
                raise containers.gone(self._client, self._container, action) from error
            raise

    def _pump(self, running: Exec, output: ExecOutput, frames: Frames) -> None:
        """Pass the output on to its end; the engine ends it 2 s after the process where a child holds it open."""
        quiet_s = 0.0
        try:
            while not self._turn.given_up.is_set():
                data = output.read(POLL_S)
                if data:
                    frames.feed(data)
                elif data is not None or (quiet_s > ASK_AFTER_S and running.has_surely_ended()):
                    return
                quiet_s = 0.0 if data or quiet_s > ASK_AFTER_S else quiet_s + POLL_S
        finally:
            output.close()

    def _exit_code(self, running: Exec, action: Action) -> int:
        code = None if self._turn.given_up.is_set() else running.exit_code(RETURN_LIMIT_S)
        if self._turn.asked_to_end.is_set():
            return KILLED if code is None else code
        if code is None or (code == KILLED and not containers.stays_alive(self._client, self.handle, SETTLE_S)):
            raise containers.gone(self._client, self._container, action)
        return code

    def _end(self, grace_s: float) -> None:
        if self._exec is not None:
            only = str(self._exec.host_pid()) if self._container.shares_processes else ""
            if only == "0":  # a session nobody can name: the container's end is what ends it, strangers stay untouched
                return
            ended = partial(self._exec.wait_ended, hurried=self._turn.hurried)
            end_workload(self._client, self.handle, only, grace_s, ended)
