"""Read what an exec'd process writes, exactly, as it comes.

Format: the engine's multiplexed stream, frames of an 8-byte head (kind, three zeros, length as big-endian 32 bits) and
that many bytes; https://docs.docker.com/reference/api/engine (ContainerAttach, stream format).
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable
from typing import Any

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
        except ConnectionError:  # the engine went away: its exec tells how, if anything does
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
        self._held = b""  # the start of a head
        self._kind = 1
        self._missing = 0  # bytes of the open frame that are still to come

    def feed(self, data: bytes) -> None:
        """Pass on everything that is complete; neighbouring frames of one stream in one piece."""
        data, at = self._held + data, 0
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
        self._held = data[at:]
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
