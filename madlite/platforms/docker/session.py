"""A container held open, in which a plan's actions run one by one."""

from __future__ import annotations

import logging
import math
import os
import posixpath
import select
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from threading import Event
from typing import Any

from madlite.cancellation import STOPPED
from madlite.errors import RuntimeProblem
from madlite.images.client import ANSWER_LIMIT_S, API_LIMIT_S, Client, connected, explained, unless_refused
from madlite.model import PROBE_BYTES, Action, Cause, Chunk, Completed, Exit, Sink
from madlite.platforms.docker import container as containers
from madlite.platforms.docker.container import Container, restore_ownership, run_as_root, start_failure, state_of
from madlite.platforms.sessions import READ_BYTES, GatedSession
from madlite.secrets import reveal

# One process the engine started inside a container.

# Read what an exec'd process writes, exactly, as it comes.
#
# Format: the engine's multiplexed stream, frames of an 8-byte head (kind, three zeros, length as big-endian 32 bits)
# and that many bytes; https://docs.docker.com/reference/api/engine (ContainerAttach, stream format).
HEAD_BYTES = 8
STDERR = 2


class ExecOutput:
    """The connection that carries one exec's output."""

    def __init__(self, connection: Any) -> None:
        """Take over the socket-like object that docker's `exec_start(socket=True)` returns."""
        self._connection = connection
        below = getattr(connection, "_sock", connection)  # the docker library left its own time limit on it
        self._receive = getattr(connection, "recv", None)
        self._read_ahead = _read_ahead(connection, below)
        below.settimeout(None)
        self._poll = select.poll()
        self._poll.register(connection.fileno(), select.POLLIN)

    def read(self, wait_s: float) -> bytes | None:
        """Return what came, b"" at the end of the output, or None if nothing came in time."""
        if self._read_ahead:
            data, self._read_ahead = self._read_ahead, b""
            return data
        if not self._poll.poll(wait_s * 1000):
            return None
        try:
            if self._receive is not None:
                return bytes(self._receive(READ_BYTES))
            return os.read(self._connection.fileno(), READ_BYTES)
        except ConnectionError:  # the engine went away: its exec reports how, if anything does
            return b""

    def close(self) -> None:
        """Let go of the connection; the process goes on."""
        response = getattr(self._connection, "_response", None)
        if response is not None:
            response.close()
        self._connection.close()


def _read_ahead(connection: Any, below: Any) -> bytes:
    """Return the start of the output where it arrived together with the head of the HTTP answer.

    The docker library hands out the socket below the buffer it read the head through, so these bytes would be lost.
    """
    response = getattr(connection, "_response", None)
    reader: Any = getattr(getattr(getattr(response, "raw", None), "_fp", None), "fp", None)
    if not hasattr(reader, "peek"):
        return b""
    below.settimeout(0)  # an empty buffer must not wait for more
    return bytes(reader.peek())


class Frames:
    """Takes the multiplexed stream apart: `out` gets the bytes, with 1 for stdout and 2 for stderr."""

    def __init__(self, out: Callable[[bytes, int], None]) -> None:
        self._out = out
        self._partial = b""  # the start of a head
        self._kind, self._missing = 1, 0  # of the open frame, and how many of its bytes are still to come

    def feed(self, data: bytes) -> None:
        """Pass on everything that is complete; neighbouring frames of one stream in one piece."""
        data, at = self._partial + data, 0
        pieces: list[tuple[int, bytes]] = []
        while at < len(data) and (self._missing or len(data) - at >= HEAD_BYTES):
            if not self._missing:
                self._kind = 1 if data[at] < STDERR else STDERR
                self._missing = int.from_bytes(data[at + 4 : at + HEAD_BYTES], "big")
                at += HEAD_BYTES
            piece = data[at : at + self._missing]
            self._missing -= len(piece)
            at += len(piece)
            pieces.append((self._kind, piece))
        self._partial = data[at:]
        for kind, together in groupby(pieces, itemgetter(0)):
            if text := b"".join(piece for _, piece in together):
                self._out(text, kind)


_POLL_S = 0.1


class Exec:
    """An exec'd process; what the engine no longer knows, because its container is gone, has ended."""

    def __init__(
        self, client: Client, container: str, argv: Sequence[str], workdir: str, env: Mapping[str, str], user: str = ""
    ) -> None:
        self._client = client
        self._host_pid = 0
        made = client.exec_create(container, list(argv), workdir=workdir, environment=dict(env), user=user)
        self._id = made["Id"]

    def start(self) -> ExecOutput:
        """Start the process and return its output."""
        return ExecOutput(self._client.exec_start(self._id, socket=True))

    def is_running(self) -> bool:
        """Return whether the process itself is there; children of it may outlive it."""
        return bool(self._inspect().get("Running"))

    def has_surely_ended(self) -> bool:
        """Return whether the engine shows that the process ended; one that is too busy to answer reports nothing."""
        import requests

        try:
            return not self.is_running()
        except requests.RequestException:
            return False

    def wait_ended(self, limit_s: float, hurried: Event | None = None) -> bool:
        """Wait for the end of the process; False when it is still there after `limit_s`, or once `hurried` is set."""
        deadline = time.monotonic() + limit_s
        while self.is_running():
            if time.monotonic() > deadline or (hurried is not None and hurried.is_set()):
                return False
            time.sleep(_POLL_S)
        return True

    def exit_code(self, limit_s: float) -> int | None:
        """Return the exit code, 128 + n after signal n; None where it is not known within `limit_s`."""
        if not self.wait_ended(limit_s):
            return None
        code = self._inspect().get("ExitCode")
        return None if code is None else int(code)

    def host_pid(self) -> int:
        """Return the process id on the engine's machine, also once the process ended; 0 if it never was known."""
        self._inspect()
        return self._host_pid

    def _inspect(self) -> dict[str, Any]:
        found: dict[str, Any] = unless_refused(lambda: self._client.exec_inspect(self._id), 404) or {}
        self._host_pid = int(found.get("Pid") or 0) or self._host_pid  # the engine forgets it when the process ends
        return found


# End what runs inside a container, and only that: INT, TERM, then KILL.
#
# The engine signals a container's first process alone, and stopping a container kills an exec'd workload at once.  So
# a small POSIX shell script runs inside; it uses nothing but the shell and /proc, for images without ps, kill or
# pgrep.

KILL_LIMIT_S = 5.0  # for processes to vanish after KILL; one that waits for its GPU does not
_LOG = logging.getLogger(__name__)
_NOTHING_LEFT = 1

# The engine starts each exec as the leader of a session, whose parent is outside the container (0).  Session 1 is the
# container's own.  INT and TERM go to the process groups of the exec'd sessions: launchers that give their workers
# sessions of their own pass these on.  KILL goes to every process of the workload.  With $2, the container shares the
# process table of the host, and only that session is ours; 0 and 1 never are.
_SCRIPT = r"""
name=$1 only=$2 sent=1 done=
case "$only" in 0 | 1) exit 1 ;; esac
look() {
  read -r line < "/proc/$1/stat" || return 1
  set -- ${line##*) }
  state=$1 parent=$2 group=$3 session=$4
}
exec 2> /dev/null
look $$ && own=$session
for entry in /proc/[0-9]*; do
  pid=${entry#/proc/}
  look "$pid" || continue
  [ "$state" = Z ] || [ "$session" = "$own" ] && continue
  if [ -n "$only" ]; then [ "$session" = "$only" ] || continue
  elif [ "$session" = 1 ]; then continue
  fi
  if [ "$name" = KILL ]; then
    kill -KILL "$pid" && sent=0
    continue
  fi
  to=$group
  [ -z "$only" ] && look "$session" && [ "$parent" != 0 ] && continue
  case " $done " in *" $to "*) continue ;; esac
  done="$done $to"
  kill "-$name" "-$to" && sent=0
done
exit $sent
"""


def end_workload(client: Client, container: str, session: str, grace_s: float, ended: Callable[[float], bool]) -> None:
    """Send INT, then TERM, each with `grace_s` to end by itself, then KILL whatever is left.

    `session` is the exec's process id where the container shares the host's process table, else "".  `ended(limit_s)`
    waits for the exec'd process.
    """
    for name in ("INT", "TERM"):
        if send(client, container, name, session) != 0 or ended(grace_s):
            break
    deadline = time.monotonic() + KILL_LIMIT_S
    while send(client, container, "KILL", session) == 0 and time.monotonic() < deadline:
        time.sleep(0.1)


def send(client: Client, container: str, name: str, session: str = "") -> int:
    """Send one signal; 0 when something got it, 1 when nothing is left, else what the engine made of the attempt."""
    done = unless_refused(lambda: run_as_root(client, container, ["/bin/sh", "-c", _SCRIPT, "sh", name, session]))
    if done is None:  # the container ended meanwhile
        return _NOTHING_LEFT
    if done[0] in (126, 127):  # other codes: the attempt itself was killed with the container
        _LOG.warning("%s cannot be sent inside container %s (no /bin/sh?): it will be killed", name, container[:12])
    return done[0]


# A short command beside what runs in a container: bounded in time, in size, and without a trace once it ended.

LATE_S = 1.0  # for the engine's answers, beyond the limit of the command
_PROBE_POLL_S = 0.2
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


def _check_running(client: Client, container: str) -> None:
    state = state_of(client, container)
    if state is None:
        raise RuntimeProblem("its container is gone", cause=Cause.INTERRUPTED)
    if state.get("Paused") or not state.get("Running"):
        what = "paused" if state.get("Paused") else "not running"
        raise RuntimeProblem(f"its container is {what}", cause=Cause.INTERRUPTED)


def _read_until(until_s: float, running: Exec, source: ExecOutput, frames: Frames) -> int | None:
    """Read the output to its end and return the exit code; None at `until_s`."""
    with closing(source):
        while (left_s := until_s - time.monotonic()) > 0:
            data = source.read(min(_PROBE_POLL_S, left_s))
            if data is not None and not data:
                return running.exit_code(LATE_S)
            frames.feed(data or b"")
    return None


POLL_S = 1.0
INSPECT_AFTER_S = 30.0  # without output, before asking whether the process is still there
EXIT_CHECK_S = 1.0  # for a container to be told as ended after its processes were killed
STOP_LIMIT_S, HURRY_LIMIT_S = 20.0, 5.0  # for one answer of the engine while a run is ended, and once it is hurried
KILLED = 137  # 128 + SIGKILL
_HEAD_BYTES = 1024


class DockerSession(GatedSession):
    """Runs actions in a container by the engine's exec."""

    nodes: tuple[str, ...] = ("",)

    def __init__(self, client: Client, environ: Mapping[str, str], container: Container, grace_s: float) -> None:
        super().__init__(container.workspace, grace_s)
        self.handle = container.id
        self.shell = f"docker exec -it {container.id[:12]} bash"
        self._client = client
        self._environ = environ
        self._container = container
        self._exec: Exec | None = None  # the one that was created last

    def run(self, action: Action, out: Sink) -> Exit:
        """Run the action to its end; `out` gets its output as it comes.

        Raises:
            RuntimeProblem: the command cannot be started, or the container went away under it.
        """
        begun = time.monotonic()
        head = bytearray()  # the engine writes why it cannot start a command where the output goes

        def record_head(data: bytes, stream: int) -> None:
            if len(head) < _HEAD_BYTES:
                head.extend(data[:_HEAD_BYTES])
            out(Chunk(data=data, stream=stream))

        expire = partial(self._stop, self._grace_s)
        with explained(self._environ), self._gate.take(action.timeout_s, expire) as expired:
            code = STOPPED if self._gate.closed.is_set() else self._run(action, Frames(record_head))
        if message := containers.start_failure(code, bytes(head)):
            raise containers.cannot_start(self._container, action, message)
        return Exit(code=code, duration_s=time.monotonic() - begun, timed_out=expired.is_set())

    def probe(self, argv: Sequence[str], node: int, limit_s: float) -> Completed:
        """Run a short command in the container as its root, over a connection of its own; soon after `limit_s` it ends.

        Raises:
            RuntimeProblem: nothing can be started in it: it is paused, gone, or the engine does not answer.
        """
        command = ("/bin/sh", "-c", _LIMITED, "sh", str(max(1, math.ceil(limit_s))), *argv)
        output = {1: bytearray(), 2: bytearray()}

        def collect(data: bytes, stream: int) -> None:
            output[stream].extend(data[: PROBE_BYTES - len(output[stream])])

        with connected(self._environ, ANSWER_LIMIT_S) as client:
            _check_running(client, self.handle)
            running = Exec(client, self.handle, command, "/", {}, user="0")
            code = _read_until(time.monotonic() + limit_s, running, running.start(), Frames(collect))
        out, err = map(bytes, output.values())
        if message := start_failure(code, out or err):
            raise RuntimeProblem(f"its container cannot start a command: {message}", cause=Cause.PREPARE)
        return Completed(code=code, stdout=out, stderr=err)

    def stop(self, grace_s: float) -> None:
        """End the running action, as every session does.

        What the engine refuses is logged; what it is asked from now on it has less time to answer.
        """
        self._gate.closed.set()  # before answers have less time: what is refused then has an end asked for
        self._client.timeout = STOP_LIMIT_S if grace_s > 0 else HURRY_LIMIT_S
        super().stop(grace_s)

    def collect(self, patterns: Sequence[str], into: Path) -> None:
        """Copy the files of the workspace that match into the folder `into`."""
        with explained(self._environ):
            restore_ownership(self._client, self._container)
        super().collect(patterns, into)

    def close(self) -> None:
        """End what an interrupted action left running, and give the files back; the container stays."""
        if self._gate.closed.is_set():
            containers.is_alive(self._client, self.handle)  # raises where it still answers nothing
        if self._exec is not None and self._exec.is_running():
            self._end(self._grace_s)
            if self._exec.is_running():
                containers.kill(self._client, self.handle)
        self._client.timeout = API_LIMIT_S  # it answers, so what takes long now is work
        restore_ownership(self._client, self._container)

    def _stop(self, grace_s: float) -> None:
        try:
            with self._gate.ending(grace_s), explained(self._environ):
                if not self._gate.end_until_over(partial(self._end, grace_s), self.return_limit_s):
                    containers.kill(self._client, self.handle)
                    if not self._gate.wait_over(self.return_limit_s):
                        self._gate.abandoned.set()
        except RuntimeProblem as problem:
            _LOG.warning("the run cannot be stopped: %s", problem.message)
            self._gate.abandoned.set()

    def _run(self, action: Action, frames: Frames) -> int:
        running, output = self._start(action)
        self._pump(running, output, frames)
        return self._exit_code(running, action)

    def _start(self, action: Action) -> tuple[Exec, ExecOutput]:
        cwd = action.cwd.replace("{folder}", self._container.folder_inside)
        workdir = posixpath.normpath(posixpath.join(self._container.inside, cwd))

        def begin() -> tuple[Exec, ExecOutput]:
            self._exec = Exec(self._client, self.handle, action.argv, workdir, reveal(action.env))
            output = self._exec.start()
            if self._container.shares_processes:
                self._exec.host_pid()  # known only while it runs, and needed to end what outlives it
            return self._exec, output

        begun = unless_refused(begin, 404, 409)
        if begun is None:  # there is no such container, or it is not running
            raise containers.gone(self._client, self._container, action)
        return begun

    def _pump(self, running: Exec, output: ExecOutput, frames: Frames) -> None:
        """Pass the output on to its end; the engine ends it 2 s after the process where a child holds it open."""
        quiet_s = 0.0
        with closing(output):
            while not self._gate.abandoned.is_set():
                data = output.read(POLL_S)
                if data:
                    frames.feed(data)
                elif data is not None or (quiet_s > INSPECT_AFTER_S and running.has_surely_ended()):
                    return
                quiet_s = 0.0 if data or quiet_s > INSPECT_AFTER_S else quiet_s + POLL_S

    def _exit_code(self, running: Exec, action: Action) -> int:
        code = None if self._gate.abandoned.is_set() else running.exit_code(self.return_limit_s)
        if self._gate.end_requested.is_set():
            return KILLED if code is None else code
        if code is None or (code == KILLED and not containers.stays_alive(self._client, self.handle, EXIT_CHECK_S)):
            raise containers.gone(self._client, self._container, action)
        return code

    def _end(self, grace_s: float) -> None:
        if self._exec is not None:
            only = str(self._exec.host_pid()) if self._container.shares_processes else ""
            if only == "0":  # its PID is unknown: the end of the container ends it, foreign processes are left alone
                return
            ended = partial(self._exec.wait_ended, hurried=self._gate.hurried)
            end_workload(self._client, self.handle, only, grace_s, ended)
