"""One process the engine started inside a container."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Mapping, Sequence
from threading import Event
from typing import Any

from madlite.images.client import Client

# Read what an exec'd process writes, exactly, as it comes.
#
# Format: the engine's multiplexed stream, frames of an 8-byte head (kind, three zeros, length as big-endian 32 bits)
# and that many bytes; https://docs.docker.com/reference/api/engine (ContainerAttach, stream format).

HEAD_BYTES = 8
READ_BYTES = 1 << 18
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
        self._kind = 1
        self._missing = 0  # bytes of the open frame that are still to come

    def feed(self, data: bytes) -> None:
        """Pass on everything that is complete; neighbouring frames of one stream in one piece."""
        data, at = self._partial + data, 0
        pieces: list[bytes] = []
        while at < len(data):
            if not self._missing:
                if len(data) - at < HEAD_BYTES:
                    break
                at = self._open(data, at, pieces)
            piece = data[at : at + self._missing]
            self._missing -= len(piece)
            at += len(piece)
            pieces.append(piece)
        self._partial = data[at:]
        self._pass_on(pieces)

    def _open(self, data: bytes, at: int, pieces: list[bytes]) -> int:
        kind = 1 if data[at] < STDERR else STDERR
        if kind != self._kind:
            self._pass_on(pieces)
            self._kind = kind
        self._missing = int.from_bytes(data[at + 4 : at + HEAD_BYTES], "big")
        return at + HEAD_BYTES

    def _pass_on(self, pieces: list[bytes]) -> None:
        text = b"".join(pieces)
        pieces.clear()
        if text:
            self._out(text, self._kind)


_POLL_S = 0.1


class Exec:
    """An exec'd process; what the engine no longer knows, because its container is gone, has ended."""

    def __init__(
        self,
        client: Client,
        container: str,
        argv: Sequence[str],
        workdir: str,
        env: Mapping[str, str],
        user: str = "",
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
        import docker.errors

        try:
            found = dict(self._client.exec_inspect(self._id))
        except docker.errors.NotFound:
            return {}
        self._host_pid = int(found.get("Pid") or 0) or self._host_pid  # the engine forgets it when the process ends
        return found
