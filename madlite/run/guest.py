"""A reader for the log of a card's own script: the framework's whose lines are in it, once one is recognised.

Such a run's number is what its script says.  The steps beside it show how far the training is, and whether there is
something to doubt.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from madlite.backends.loader import Plugins
from madlite.model import Backend, Event, Line, Reader

_SURE = 0.5  # less is no answer for lines that nobody said are a training's
_MOST_LINES, _MOST_CHARACTERS = 20_000, 4 << 20  # that may come before a framework's own first line
_EARLY, _TOGETHER = 500, 4  # lines of which each is asked about at once; after them so many at a time


class Guest:
    """Keeps the first lines until a backend knows some of them, and gives its reader all of them then."""

    def __init__(self, plugins: Plugins, besides: Iterable[str] = ()) -> None:
        self._plugins = plugins
        self._backends = [one for name, (one, _) in plugins.backends().items() if name not in set(besides)]
        self._reader: Reader | None = None
        self._held: list[Line] = []
        self._characters = 0
        self._asked = 0  # lines that backends were asked about
        self._open = True

    def feed(self, line: Line) -> Iterable[Event]:
        """Return the events of one line; of the one by which the framework is recognised also those before it."""
        if self._reader is not None:
            return self._reader.feed(line)
        if not self._open:
            return ()
        self._held.append(line)
        self._characters += len(line.text)
        enough = 1 if self._asked < _EARLY else _TOGETHER
        return self._look() if len(self._held) - self._asked >= enough else ()

    def finish(self, outputs: Path) -> Iterable[Event]:
        """Return the events of what was left to ask about; files of a script's folder are not looked at."""
        return self._look() if self._open and self._reader is None else ()

    def _look(self) -> list[Event]:
        texts = [line.text for line in self._held[self._asked :]]
        self._asked = len(self._held)
        backend = self._surest(texts)
        if backend is None:
            if self._asked >= _MOST_LINES or self._characters >= _MOST_CHARACTERS:
                self._open, self._held = False, []
            return []
        reader: Reader | None = self._plugins.ask(backend, "reader", None, otherwise=None)
        held, self._held, self._reader, self._open = self._held, [], reader, False
        return [event for line in held for event in reader.feed(line)] if reader is not None else []

    def _surest(self, texts: list[str]) -> Backend | None:
        """Return the one backend that is surest of these lines; None where none is sure, or several are."""
        answers = [(self._plugins.ask(one, "recognise", texts, otherwise=0.0), one) for one in self._backends]
        sure = [(float(sure), one) for sure, one in answers if isinstance(sure, int | float) and sure >= _SURE]
        best = max((how for how, _ in sure), default=0.0)
        found = [one for how, one in sure if how == best]
        return found[0] if len(found) == 1 else None
