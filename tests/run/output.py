"""Takes an action's output in tests, and lets a test act once the action said something."""

from __future__ import annotations

import threading

from madlite.model import Action, Chunk, Session


class Output:
    """The bytes of both streams so far."""

    def __init__(self) -> None:
        self.streams = {1: b"", 2: b""}
        self._came = threading.Condition()

    def __call__(self, chunk: Chunk) -> None:
        with self._came:
            self.streams[chunk.stream] += chunk.data
            self._came.notify_all()

    def wait_for(self, text: bytes) -> None:
        with self._came:
            assert self._came.wait_for(lambda: text in self.streams[1], timeout=240), self.streams


def bash(script: str, **changes: object) -> Action:
    """Return an action that runs a script."""
    return Action(kind="run", argv=("bash", "-c", script), **changes)  # type: ignore[arg-type]


def once_it_said(output: Output, text: bytes, act) -> threading.Thread:
    """Call `act` in another thread once the text came."""
    thread = threading.Thread(target=lambda: (output.wait_for(text), act()))
    thread.start()
    return thread


def stop_once_it_said(session: Session, output: Output, text: bytes, grace_s: float) -> threading.Thread:
    """Stop the session from another thread once the text came."""
    return once_it_said(output, text, lambda: session.stop(grace_s))
