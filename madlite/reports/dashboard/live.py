"""What goes on in a folder of runs, for all open tabs: a thread keeps the index up to date, and tabs ask what runs."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path

from madlite.errors import MadliteError
from madlite.reports.index import RunFilter, RunIndex
from madlite.reports.log import masked, plain_text, read_log
from madlite.reports.runs import RUNNING
from madlite.reports.watch import Watch, WatchedRun

FACETS = ("card", "backend", "mode", "precision", "device", "hostname", "cause")
"""The columns whose values the list of runs offers as filters."""
LOG_LINES, LOG_BYTES = 200, 64 << 10  # of the end of a log
_MOST_ENDED = 50  # runs that ended are told of until so many others did
_LOOK_S = 1.0
_LEAST_REST = 10  # a look at all folders rests ten times as long as it took
_log = logging.getLogger(__name__)


class Live:
    """The thread that keeps the index up to date, and what is running as the last tab that asked found it."""

    def __init__(self, index: RunIndex) -> None:
        self.index = index
        self.ready = threading.Event()  # the index was brought up to date once
        self._changes = 0  # of the index
        self._watch = Watch(index.folder)
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._now: tuple[WatchedRun, ...] = ()
        self._ended: list[str] = []  # the ids of those that ended last, in the order in which they were seen to
        self._next_look_s = 0.0
        self._thread = threading.Thread(target=self._refresh, daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread, and wait for it as long as a read may take."""
        self._stop.set()
        self._thread.join(5)

    def now(self, run: str) -> dict[str, object]:
        """Return the runs that go on and those that have ended meanwhile, and how often the index has changed.

        With them is the end of the log of a `run` that is one of them, None of another.
        """
        with self._lock:  # one look a second is for all tabs
            begun = time.monotonic()
            if begun >= self._next_look_s:
                self._now = self._watch.read(self._folders())
                ended = (run.id for run in self._now if run.state != RUNNING)
                self._ended = [*dict.fromkeys((*self._ended, *ended))][-_MOST_ENDED:]
                took_s = time.monotonic() - begun
                self._next_look_s = begun + max(_LOOK_S, _LEAST_REST * took_s)
            now = self._now
        is_known = run in {known.id for known in now}
        log = log_end(self.index.folder / run) if is_known else None
        return {"runs": now, "log": log, "changes": self._changes}

    def _folders(self) -> list[Path]:
        """Return the folders of runs that go on, by the index, and of those that did a moment ago."""
        running = (run.id for run in self._now if run.state == RUNNING)
        names = {*running, *self._ended, *self.index.ids(RunFilter(status="running"))}
        return [self.index.folder / name for name in sorted(names)]

    # The index.

    def _refresh(self) -> None:
        if self.index.count():  # it has been here before: the first page is shown from that, before a look at all
            self._stop.wait(_LOOK_S)
        while not self._stop.is_set():
            begun = time.monotonic()
            self._look()
            self._stop.wait(max(_LOOK_S, _LEAST_REST * (time.monotonic() - begun)))

    def _look(self) -> None:
        states = self.index.states()
        try:
            self.index.refresh()
            self._changes += self.index.states() != states
        except Exception:  # noqa: BLE001 - the next look may do; the pages show what is known
            _log.exception("%s could not be read", self.index.folder)
        self.ready.set()


def log_end(folder: Path) -> str:
    """Return the last lines of a run's log, masked and without what steers a terminal; "" where there is none."""
    try:
        data = b"".join(plain_text(masked(read_log(folder, tail=LOG_LINES))))
    except (MadliteError, OSError):
        return ""
    return data[-LOG_BYTES:].decode("utf-8", "replace")
