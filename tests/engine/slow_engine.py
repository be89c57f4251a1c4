"""A way to a real engine that holds one kind of request back until it is told to let it through."""

from __future__ import annotations

import re
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

READ_BYTES = 1 << 16


class SlowEngine:
    """Listens at `address` and passes everything on to the engine, requests for `path` once `let_through` is set."""

    def __init__(self, engine: str, path: bytes) -> None:
        self._engine = engine.removeprefix("unix://")
        self._path = path
        self.asked, self.let_through, self.check_type = threading.Event(), threading.Event(), threading.Event()
        self._folder = tempfile.mkdtemp(prefix="madlite-")  # a socket's path must be short
        self.address = f"unix://{self._folder}/sock"
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(Path(self._folder, "sock")))
        self._listener.listen()
        _in_thread(self._accept)

    def close(self) -> None:
        self.let_through.set()
        self._listener.close()
        shutil.rmtree(self._folder)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            engine = socket.socket(socket.AF_UNIX)
            engine.connect(self._engine)
            held = threading.Event()
            _in_thread(lambda c=client, e=engine, h=held: self._forward(c, e, h))
            _in_thread(lambda c=client, e=engine, h=held: self._back(e, c, h))

    def _forward(self, client: socket.socket, engine: socket.socket, held: threading.Event) -> None:
        while data := _received(client):
            if self._path in data.partition(b"\r\n")[0]:
                data = _whole(client, data)  # a client that is ended in the midst of a request has asked for nothing
                held.set()
                self.asked.set()
                self.let_through.wait()
            engine.sendall(data)
        if not held.is_set():  # what was held is answered, even where nobody listens any more
            engine.shutdown(socket.SHUT_WR)

    def _back(self, engine: socket.socket, client: socket.socket, held: threading.Event) -> None:
        while data := _received(engine):
            with suppress(OSError):
                client.sendall(data)
            if held.is_set():
                self.check_type.set()
        client.close()
        engine.close()


def _whole(client: socket.socket, data: bytes) -> bytes:
    """Return a request with its body, which comes apart from the head."""
    head, _, body = data.partition(b"\r\n\r\n")
    length = re.search(rb"(?im)^content-length: *(\d+)", head)
    missing = (int(length[1]) if length else 0) - len(body)
    while missing > 0 and (more := _received(client)):
        data, missing = data + more, missing - len(more)
    return data


def _received(connection: socket.socket) -> bytes:
    try:
        return connection.recv(READ_BYTES)
    except OSError:
        return b""


def _in_thread(work: Callable[[], None]) -> None:
    threading.Thread(target=work, daemon=True).start()
