"""Output that never blocks a run: a thread writes it, and what a full pipe does not take is counted and dropped."""

from __future__ import annotations

import os
import queue
import threading

_MOST_BYTES = 8 << 20
_END = b""


class Sink:
    """Writes to a file descriptor from a thread of its own."""

    encoding = "utf-8"

    def __init__(self, fd: int) -> None:
        self.dropped_bytes = 0
        self._fd = fd
        self._queue: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._waiting_bytes = 0
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._drain, name="madlite-output", daemon=True)
        self._thread.start()

    def write(self, text: str) -> int:
        """Take text, as a file would."""
        self.put(text.encode("utf-8", "replace"))
        return len(text)

    def put(self, data: bytes) -> None:
        """Take bytes; never waits."""
        with self._lock:
            full = self._waiting_bytes + len(data) > _MOST_BYTES
            self._waiting_bytes += 0 if full else len(data)
            self.dropped_bytes += len(data) if full else 0
        if data and not full:
            self._queue.put(data)

    def flush(self) -> None:
        """Do nothing: the thread writes as soon as it can."""

    def isatty(self) -> bool:
        """Say whether people read this."""
        return os.isatty(self._fd)

    def fileno(self) -> int:
        """Return the file descriptor written to."""
        return self._fd

    def close(self, limit_s: float = 3.0) -> None:
        """Write what is left, for a limited time: a reader that stopped reading cannot keep us."""
        self._queue.put(_END)
        self._thread.join(limit_s)

    def _drain(self) -> None:
        while (data := self._queue.get()) != _END:
            view = memoryview(data)
            with self._lock:
                self._waiting_bytes -= len(data)
            try:
                while view:
                    view = view[os.write(self._fd, view) :]
            except OSError:  # the reader is gone: swallow the rest, so that nobody waits for us
                while self._queue.get() != _END:
                    pass
                return
