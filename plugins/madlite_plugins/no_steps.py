"""The reader of backends whose result is in no step of the log."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from madlite import Event, Line


class NoSteps:
    """Finds nothing: the result is a line or a file that the engine reads itself."""

    def feed(self, line: Line) -> Iterable[Event]:
        """Return nothing."""
        return ()

    def finish(self, outputs: Path) -> Iterable[Event]:
        """Return nothing."""
        return ()
