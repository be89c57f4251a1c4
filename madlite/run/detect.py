"""A reader for the log of a card's own script: the framework's whose lines are in it, once it is detected.

The result of such a run is what its script prints.  The steps beside it show how far the training is, and whether the
result is suspect.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from madlite.backends.loader import Plugins
from madlite.errors import UsageProblem
from madlite.measure.lines import LineSplitter
from madlite.model import Backend, Event, Line, Reader

_MIN_CONFIDENCE = 0.5  # less is no answer for lines that need not be a training's
MOST_LINES, _MOST_CHARACTERS = 20_000, 4 << 20  # that may come before a framework's own first line
HEAD_BYTES = 4 << 20  # of a log, in which backends look for it
_EARLY, _TOGETHER = 500, 4  # lines that are inspected one by one; after them so many at a time


class AutoDetectReader:
    """Store the first lines until a backend knows some of them, and gives its reader all of them then."""

    def __init__(self, plugins: Plugins, excluded: Iterable[str] = ()) -> None:
        self._plugins = plugins
        self._backends = [one for name, (one, _) in plugins.backends().items() if name not in set(excluded)]
        self._reader: Reader | None = None
        self._buffer: list[Line] = []
        self._characters = 0
        self._queried = 0  # lines that backends have inspected
        self._undecided = True

    def feed(self, line: Line) -> Iterable[Event]:
        """Return the events of one line; of the one by which the framework is recognised also those before it."""
        if self._reader is not None:
            return self._reader.feed(line)
        if not self._undecided:
            return ()
        self._buffer.append(line)
        self._characters += len(line.text)
        enough = 1 if self._queried < _EARLY else _TOGETHER
        return self._query() if len(self._buffer) - self._queried >= enough else ()

    def finish(self, outputs: Path) -> Iterable[Event]:
        """Return the events of what was left to ask about; files of a script's folder are not looked at."""
        return self._query() if self._undecided and self._reader is None else ()

    def _query(self) -> list[Event]:
        texts = [line.text for line in self._buffer[self._queried :]]
        self._queried = len(self._buffer)
        backend = self._best_match(texts)
        if backend is None:
            if self._queried >= MOST_LINES or self._characters >= _MOST_CHARACTERS:
                self._undecided, self._buffer = False, []
            return []
        reader: Reader | None = self._plugins.query(backend, "reader", None, otherwise=None)
        buffer, self._buffer, self._reader, self._undecided = self._buffer, [], reader, False
        return [event for line in buffer for event in reader.feed(line)] if reader is not None else []

    def _best_match(self, texts: list[str]) -> Backend | None:
        """Return the one backend that is surest of these lines; None where none is sure, or several are."""
        answers = [(self._plugins.query(one, "detect", texts, otherwise=0.0), one) for one in self._backends]
        sure = [
            (float(sure), one) for sure, one in answers if isinstance(sure, int | float) and sure >= _MIN_CONFIDENCE
        ]
        best = max((how for how, _ in sure), default=0.0)
        found = [one for how, one in sure if how == best]
        return found[0] if len(found) == 1 else None


# Detection of the backend that a log belongs to: the one with the highest confidence.

_HEADS = (500, MOST_LINES)  # an image's build or a download may come before the framework's own first line


def take_head(chunks: Iterable[bytes]) -> list[bytes]:
    """Return the first chunks of a log, as many as backends may inspect."""
    buffer: list[bytes] = []
    size = 0
    for chunk in chunks:
        buffer.append(chunk)
        size += len(chunk)
        if size >= HEAD_BYTES:
            break
    return buffer


def head_lines(head: Sequence[bytes]) -> list[str]:
    """Return the lines of a log's first chunks."""
    splitter = LineSplitter()
    return [*splitter.take(b"".join(head)).lines, *splitter.take_rest().lines]


def detect_backend(log: str, head: Sequence[bytes], plugins: Plugins) -> Backend | None:
    """Return the backend that is surest of a log that begins so; None where none knows it. Messages call it `log`.

    Raises:
        UsageProblem: several are equally sure.
        PluginError: two distributions bring a backend of one name.
    """
    backends = {name: backend for name, (backend, _) in plugins.backends().items()}
    lines = head_lines(head)
    sure: dict[str, float] = {}
    for count in _HEADS:
        if max(sure.values(), default=0.0) < _MIN_CONFIDENCE:
            sure = _sure(backends, plugins, lines[:count]) or sure
    return _single_best(log, backends, sure) if sure else None


def _sure(backends: Mapping[str, Backend], plugins: Plugins, lines: Sequence[str]) -> dict[str, float]:
    """Return how sure each backend is that knows these lines."""
    answers = {known: plugins.query(one, "detect", lines, otherwise=0.0) for known, one in backends.items()}
    return {known: float(sure) for known, sure in answers.items() if isinstance(sure, int | float) and sure > 0}


def _single_best(log: str, backends: Mapping[str, Backend], sure: Mapping[str, float]) -> Backend:
    best = [known for known in sure if sure[known] == max(sure.values())]
    if len(best) > 1:
        what = f"{log} could be a log of {' or '.join(sorted(best))}: these backends are equally sure"
        raise UsageProblem(what, f"say which: --backend {sorted(best)[0]}")
    return backends[best[0]]
