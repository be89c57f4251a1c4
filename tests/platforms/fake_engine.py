"""An engine that answers as a test wants it to: HTTP on a socket of its own, for docker's own client."""

from __future__ import annotations

import json
import re
import shutil
import socket
import socketserver
import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from typing import Any

# a status and what is sent with it: JSON, Lines of it, or bytes, which with HANDED_OVER
# are an exec's output; with an event that output ends once it is set
Answer = tuple[int, Any] | Callable[[], tuple[int, Any]]
HANDED_OVER = 101


def frame(data: bytes, stream: int = 1) -> bytes:
    """Return a piece of an exec's output with its head."""
    return bytes([stream, 0, 0, 0]) + len(data).to_bytes(4, "big") + data


class Lines(list[Any]):
    """JSON that an engine sends a line at a time."""


class FakeEngine:
    """Answers by `METHOD /path`, without version and query; what nobody planned is 404.

    Each answer has the `headers`.
    """

    def __init__(self, answers: Mapping[str, Answer], headers: Mapping[str, str] | None = None) -> None:
        self.headers = headers or {}
        self.answers: dict[str, Answer] = {"GET /version": (200, {"ApiVersion": "1.43", "Components": []}), **answers}
        self.asked: list[str] = []
        self._folder = tempfile.mkdtemp(prefix="madlite-")  # a socket's path must be short
        self._server = _Server(f"{self._folder}/sock", _Handler)
        self._server.engine = self
        self.environ = {"DOCKER_HOST": f"unix://{self._folder}/sock"}
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        for connection in self._server.connections:
            with suppress(OSError):  # the client closed it
                connection.shutdown(socket.SHUT_RDWR)
        shutil.rmtree(self._folder)

    def answer(self, asked: str) -> tuple[int, Any]:
        """Return what a request gets, and note that it came."""
        self.asked.append(asked)
        found = self.answers.get(asked, (404, {"message": f"nothing at {asked}"}))
        return found() if callable(found) else found


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    engine: FakeEngine

    def __init__(self, *args: Any) -> None:
        self.connections: list[socket.socket] = []
        super().__init__(*args)

    def process_request(self, request: Any, client_address: Any) -> None:
        self.connections.append(request)
        super().process_request(request, client_address)

    def handle_error(self, *args: object) -> None:
        """Stay silent: a test broke the connection off."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = re.sub(r"^/v[\d.]+", "", self.path.partition("?")[0])
        status, body = self.server.engine.answer(f"{self.command} {path}")
        held = body if isinstance(body, threading.Event) else None
        data = b"" if held else body if isinstance(body, bytes) else json.dumps(body).encode()
        lines = [f"{json.dumps(one)}\r\n".encode() for one in body] if isinstance(body, Lines) else []
        if status == HANDED_OVER:
            self.wfile.write(b"HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n" + data)
            self.close_connection = True
            if held:
                held.wait()
            return
        self.send_response(status)
        for name, text in self.server.engine.headers.items():
            if name != "Server":  # which is sent already
                self.send_header(name, text)
        self.send_header("Content-Type", "application/json")
        self.send_header(*(("Transfer-Encoding", "chunked") if lines else ("Content-Length", str(len(data)))))
        self.end_headers()
        for line in lines:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
        self.wfile.write(b"0\r\n\r\n" if lines else data)

    do_POST = do_DELETE = do_GET

    def version_string(self) -> str:
        return self.server.engine.headers.get("Server", "FakeEngine")

    def address_string(self) -> str:
        return "a socket"

    def log_message(self, *args: object) -> None:
        """Stay silent."""


def in_a_row(*answers: tuple[int, Any]) -> Callable[[], tuple[int, Any]]:
    """Answer one after the other; the last one stays."""
    left = list(answers)
    return lambda: left.pop(0) if len(left) > 1 else left[0]


def break_off() -> tuple[int, Any]:
    """Close the connection without an answer."""
    raise ConnectionAbortedError
