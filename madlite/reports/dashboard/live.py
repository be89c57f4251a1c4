"""What goes on in a folder of runs, for all open tabs: one thread looks, whoever listens gets what changed.

A tab that does not read loses events, never time of the thread: its queue is bounded, and once it is full it is told to
load its page again.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from contextlib import suppress
from pathlib import Path

from madlite.errors import MadliteError
from madlite.reports.index import RunFilter, RunIndex
from madlite.reports.log import masked, plain_text, read_log
from madlite.reports.runs import RUNNING
from madlite.reports.watch import Watch, WatchedRun, changes
from madlite.secrets import masked_json
from madlite.store.events import EVENTS

MOST_TABS, MOST_OF_A_CLIENT = 200, 50
FACETS = ("card", "backend", "mode", "precision", "device", "hostname", "cause")
"""The columns whose values the list of runs offers as filters."""
LOG_LINES, LOG_BYTES = 200, 64 << 10  # of the end of a log
_QUEUE = 64  # events that a tab may leave unread
_LOOK_S = 1.0
_LEAST_REST = 10  # a look at all folders rests ten times as long as it took
_LATEST_S = 30.0  # a record that changes in its place changes neither the folder nor the event log
_log = logging.getLogger(__name__)


def event(name: str, value: object) -> str:
    """Return one event of a stream: its data is JSON on one line, secrets masked text by text."""
    data = masked_json(value, ()).replace("\n", "")
    return f"event: {name}\ndata: {data}\n\n"


RELOAD, END = event("reload", {}), event("end", {})


class Tab:
    """An open tab: what it listens to, and what it has not read yet.  `put` is called from any thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, run: str, client: tuple[str, str]) -> None:
        self.run = run  # whose log it shows, "" for none
        self.client = client  # its address, and how it has shown the token
        self.events: asyncio.Queue[str] = asyncio.Queue(_QUEUE)
        self._loop = loop

    def put(self, text: str) -> None:
        """Add an event; where nobody reads them all are replaced by one."""
        with suppress(RuntimeError):  # the server has ended
            self._loop.call_soon_threadsafe(self._put, text)

    def _put(self, text: str) -> None:
        if self.events.full():
            while not self.events.empty():
                self.events.get_nowait()
            text = END if text is END else RELOAD
        self.events.put_nowait(text)


class Live:
    """The thread that keeps the index up to date, and the one that watches what is running while a tab is open."""

    def __init__(self, index: RunIndex) -> None:
        self.index = index
        self.ready = threading.Event()  # the index was brought up to date once
        self._watch = Watch(index.folder)
        self._tabs: set[Tab] = set()
        self._lock = threading.Lock()
        self._stop, self._wanted = threading.Event(), threading.Event()
        self._now: tuple[WatchedRun, ...] = ()
        self._logs: dict[str, str] = {}
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._refresh, self._follow)]

    def start(self) -> None:
        """Begin to look."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End the threads and the streams of all tabs."""
        self._stop.set()
        self._wanted.set()
        self._send(END)

    def join(self) -> None:
        """Wait for the threads, as long as a read may take."""
        for thread in self._threads:
            thread.join(5)

    def open(self, loop: asyncio.AbstractEventLoop, run: str, client: tuple[str, str]) -> Tab | None:
        """Return a new tab with what is running as its first events; None where all or its client have too many."""
        tab = Tab(loop, run, client)
        with self._lock:
            own = sum(other.client == client for other in self._tabs)
            if own >= MOST_OF_A_CLIENT or len(self._tabs) >= MOST_TABS or self._stop.is_set():
                return None
            self._tabs.add(tab)
            now = self._now
        tab.put(event("runs", [run for run in now if run.state == RUNNING]))
        if run and (text := self._logs.get(run)) is not None:
            tab.put(event("log", {"id": run, "text": text}))
        self._wanted.set()
        return tab

    def close(self, tab: Tab) -> None:
        """Forget a tab."""
        with self._lock:
            self._tabs.discard(tab)

    # The index.

    def _refresh(self) -> None:
        before: tuple[object, ...] = ()
        looked_s, took_s = -_LATEST_S, 0.0
        if (
            self.index.count()
        ):  # it has been here before: the first page is shown from that, before a look at all folders
            self._prepare_lists()
            self._stop.wait(_LOOK_S)
        while not self._stop.is_set():
            now = self._signs()
            rest_s = _LOOK_S
            if now != before or time.monotonic() - looked_s > max(_LATEST_S, 2 * _LEAST_REST * took_s):
                took_s = self._look(is_new=now != before)
                looked_s, before, rest_s = time.monotonic(), now, max(_LOOK_S, _LEAST_REST * took_s)
            self._stop.wait(rest_s)

    def _look(self, *, is_new: bool) -> float:
        begun, states = time.monotonic(), self.index.states()
        try:
            done = self.index.refresh()
            if done.removed or is_new or self.index.states() != states:
                self._send(event("ledger", {"runs": done.runs}))
        except Exception:  # noqa: BLE001 - the next look may do; the pages show what is known
            _log.exception("%s could not be read", self.index.folder)
        self._prepare_lists()
        self.ready.set()
        return time.monotonic() - begun

    def _prepare_lists(self) -> None:
        """Ask the index what every first page asks, so that no page waits for an answer about all runs."""
        with suppress(Exception):  # a page that asks says what is wrong
            self.index.count()
            self.index.count(RunFilter(status="suspect"))
            self.index.summaries()
            for column in FACETS:
                self.index.values(column)

    def _signs(self) -> tuple[object, ...]:
        """Return what changes when a run begins or ends: the folder, its event log, and which locks are held."""
        found: list[object] = []
        for path in (self.index.folder, self.index.folder / EVENTS):
            with suppress(OSError):
                facts = path.stat()
                found += [facts.st_mtime_ns, facts.st_size]
        return (*found, *(run.id for run in self._now if run.state != RUNNING))

    # What is running.

    def _follow(self) -> None:
        while not self._stop.is_set():
            if not self._tabs:
                self._wanted.clear()
                self._wanted.wait()
                continue
            begun = time.monotonic()
            try:
                self._watch_once()
            except Exception:  # noqa: BLE001 - the next look may do
                _log.exception("what is running could not be read")
            self._stop.wait(max(_LOOK_S, _LEAST_REST * (time.monotonic() - begun)))

    def _watch_once(self) -> None:
        now = self._watch.read(self._folders())
        before, self._now = self._now, now
        for watched_run in changes(before, now):
            self._send(event("run", watched_run))
        self._send_logs()

    def _folders(self) -> list[Path]:
        """Return the folders of runs that go on, by the index, and of those that did a moment ago."""
        names = dict.fromkeys((*(run.id for run in self._now), *self.index.ids(RunFilter(status="running"))))
        return [self.index.folder / name for name in sorted(names)]

    def _send_logs(self) -> None:
        with self._lock:
            wanted = {tab.run for tab in self._tabs if tab.run}
        known = {run.id for run in self._now}
        self._logs = {run: text for run, text in self._logs.items() if run in wanted}
        for run in wanted & known:
            text = log_end(self.index.folder / run)
            if text != self._logs.get(run):
                self._logs[run] = text
                self._send(event("log", {"id": run, "text": text}), run)

    def _send(self, text: str, run: str = "") -> None:
        with self._lock:
            tabs = [tab for tab in self._tabs if not run or tab.run == run]
        for tab in tabs:
            tab.put(text)


def log_end(folder: Path) -> str:
    """Return the last lines of a run's log, masked and without what steers a terminal; "" where there is none."""
    try:
        data = b"".join(plain_text(masked(read_log(folder, tail=LOG_LINES))))
    except (MadliteError, OSError):
        return ""
    return data[-LOG_BYTES:].decode("utf-8", "replace")
