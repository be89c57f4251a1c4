"""Progress of the runs of a working folder, polled from their folders; no run waits for a reader."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from pathlib import Path

from msgspec.structs import replace

from madlite.model import Status, Study, Value
from madlite.reports.runs import RUNNING, StoredRun, open_run, utc_time
from madlite.store.batches import is_batch_running
from madlite.store.folder import Progress, is_alive, is_run, read_progress, real_folders
from madlite.store.record import NotedRuns, read_plan

_MOST_LAST = 50  # runs of the last batch that are shown where none is running


class WatchedRun(Value, frozen=True):
    """One run as it is now; `state` is RUNNING, or as the list of runs has it once it has ended.

    `number` is the result of a success.
    """

    id: str
    card: str
    state: str
    cause: str = ""
    suspect: bool = False
    progress: Progress = Progress()
    elapsed_s: float | None = None
    number: str = ""
    batch: str = ""
    study: Study | None = None


class Watch:
    """Polls the active runs and those that end meanwhile; where none is active, the runs of the last batch."""

    def __init__(self, runs: Path) -> None:
        self._runs = runs
        self._before: set[str] | None = None  # what had ended when watching began
        self._ended: dict[str, WatchedRun] = {}
        self._planned: dict[str, WatchedRun] = {}  # from a run's plan, read once

    def read(self, folders: Iterable[Path] | None = None) -> tuple[WatchedRun, ...]:
        """Return the runs in the order of their ids; never raises for what their folders hold.

        `folders` are those that may have a run, where the caller knows them: it need not look at all.
        """
        first = self._before is None
        before = self._before = self._before or set()
        found: list[WatchedRun] = []
        for folder in real_folders(self._runs) if folders is None else folders:
            if folder.name in before or not is_run(folder):
                continue
            if folder.name in self._ended:
                found.append(self._ended[folder.name])
            elif is_alive(folder):
                found.append(self._running(folder))
            elif first:
                before.add(folder.name)
            else:
                self._ended[folder.name] = _ended(open_run(folder, NotedRuns(self._runs)))
                found.append(self._ended[folder.name])
        return tuple(found)

    @property
    def is_batch_running(self) -> bool:
        """Whether a command still has runs to start here, also where none is active now."""
        return is_batch_running(self._runs)

    def last(self) -> tuple[WatchedRun, ...]:
        """Return the runs of the newest batch that had ended when watching began."""
        noted = NotedRuns(self._runs)
        runs: list[StoredRun] = []
        for name in sorted(self._before or (), reverse=True)[:_MOST_LAST]:
            run = open_run(self._runs / name, noted)
            if runs and (not run.record.batch or run.record.batch != runs[0].record.batch):
                break
            runs.append(run)
        return tuple(map(_ended, reversed(runs)))

    def _running(self, folder: Path) -> WatchedRun:
        planned = self._planned.get(folder.name)
        if planned is None:
            planned = WatchedRun(id=folder.name, card="", state=RUNNING)
            if (plan := read_plan(folder)) is not None:
                planned = replace(planned, card=plan.card.name, batch=plan.batch, study=plan.study)
                self._planned[folder.name] = planned
        progress = read_progress(folder) or Progress(state="running")
        return replace(planned, progress=progress, elapsed_s=_since(progress.started, progress.ended))


def changes(before: tuple[WatchedRun, ...], now: tuple[WatchedRun, ...]) -> Iterator[WatchedRun]:
    """Yield the runs that changed, ignoring the time."""
    earlier = {run.id: _visible_state(run) for run in before}
    yield from (run for run in now if earlier.get(run.id) != _visible_state(run))


def _visible_state(watched_run: WatchedRun) -> tuple[object, ...]:
    progress = watched_run.progress
    return watched_run.state, progress.state, progress.doing, progress.step, progress.speed, progress.loss


def _ended(run: StoredRun) -> WatchedRun:
    record, headline = run.record, run.headline
    return WatchedRun(
        id=run.folder.name,
        card=record.card,
        state=run.state,
        cause=record.cause if run.state == Status.FAILURE.value else "",
        suspect=run.is_suspect,
        progress=read_progress(run.folder) or Progress(),
        elapsed_s=record.durations_s.get("total"),
        number=f"{headline.text} {headline.metric}" if headline else "",
        batch=record.batch,
        study=record.study,
    )


def _since(started: str, ended: str = "") -> float | None:
    begun = utc_time(started)
    until = utc_time(ended) if ended else datetime.now(timezone.utc)
    return max(0.0, (until - begun).total_seconds()) if until is not None and begun is not None else None
