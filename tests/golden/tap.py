"""A socket between madlite and a Docker Engine that notes every request and lets the engine answer.

What this machine may not fulfil is taken out of a container's request on its way, after it was noted: each device file
becomes /dev/null under its name, CPU numbers and limits go, and GPUs go where the engine cannot give any.  Each
container gets a name of its own, for runs go on side by side.
"""

from __future__ import annotations

import json
import re
import secrets
import socket
import socketserver
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import BufferedIOBase
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import parse_qsl, urlsplit

BLOCK = 1 << 16
LENGTH = re.compile(rb"^content-length:\s*(\d+)", re.IGNORECASE | re.MULTILINE)
NAME = re.compile(rb"(?<=[?&]name=)[^&\s]+")


@dataclass(frozen=True)
class Call:
    """One request: `POST /containers/create`, its query, and its body where that is JSON."""

    what: str
    query: dict[str, str]
    body: dict[str, Any]


class Tap:
    """The requests that came through, in the order of their arrival; `address` is where madlite sends them."""

    def __init__(self, path: Path, engine: str, *, gives_gpus: bool) -> None:
        self.address, self.calls = f"unix://{path}", list[Call]()
        self._gives_gpus, self._engine = gives_gpus, engine.removeprefix("unix://")
        self._path = path

    @contextmanager
    def opened(self) -> Iterator[Tap]:
        tap = self

        class Connection(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                tap._connection(self.connection, self.rfile)

        with socketserver.ThreadingUnixStreamServer(str(self._path), Connection) as server:
            server.daemon_threads = True
            Thread(target=server.serve_forever, daemon=True).start()
            yield self
            server.shutdown()

    def _connection(self, client: socket.socket, asked: BufferedIOBase) -> None:
        with socket.socket(socket.AF_UNIX) as engine:
            engine.connect(self._engine)
            answers = Thread(target=_pass_on, args=(engine, client), daemon=True)
            answers.start()
            with suppress(OSError):
                while head := _head(asked):
                    engine.sendall(self._request(head, asked))
                    if b"\nupgrade:" in head.lower():
                        break
                while block := asked.read1(BLOCK):
                    engine.sendall(block)
            with suppress(OSError):
                engine.shutdown(socket.SHUT_WR)
            answers.join()

    def _request(self, head: bytes, asked: BufferedIOBase) -> bytes:
        """Note one request and return what the engine is to get."""
        method, target, _ = head.decode("latin-1").split(" ", 2)
        found = LENGTH.search(head)
        body = asked.read(int(found[1])) if found else b"".join(_chunks(head, asked))
        url = urlsplit(target)
        path = re.sub(r"^/v[\d.]+", "", url.path)
        is_json = b"application/json" in head.lower() and body.startswith(b"{")
        call = Call(f"{method} {path}", dict(parse_qsl(url.query)), json.loads(body) if is_json else {})
        self.calls.append(call)
        if call.what != "POST /containers/create":
            return head + body
        body = json.dumps(self._possible(call.body)).encode()
        head = NAME.sub(lambda name: b"%s.%s" % (name[0], secrets.token_hex(4).encode()), head)
        return LENGTH.sub(b"Content-Length: %d" % len(body), head) + body

    def _possible(self, body: dict[str, Any]) -> dict[str, Any]:
        host = dict(body["HostConfig"])
        for limit in ("CpusetCpus", "Ulimits"):
            host.pop(limit, None)
        if not self._gives_gpus:
            host.pop("DeviceRequests", None)
        host["Devices"] = [{**device, "PathOnHost": "/dev/null"} for device in host.get("Devices") or []]
        return {**body, "HostConfig": host}


def _head(asked: BufferedIOBase) -> bytes:
    lines = []
    while (line := asked.readline()) not in (b"", b"\r\n"):
        lines.append(line)
    return b"".join([*lines, b"\r\n"]) if lines else b""


def _chunks(head: bytes, asked: BufferedIOBase) -> Iterator[bytes]:
    """Yield a body of unknown length as it came, chunk by chunk."""
    if b"transfer-encoding: chunked" not in head.lower():
        return
    while size := asked.readline():
        yield size + asked.read(int(size, 16) + 2)
        if int(size, 16) == 0:
            return


def _pass_on(engine: socket.socket, client: socket.socket) -> None:
    with suppress(OSError):
        while block := engine.recv(BLOCK):
            client.sendall(block)
        client.shutdown(socket.SHUT_WR)
        return
    for end in (engine, client):  # the client went away: the engine has to know
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
