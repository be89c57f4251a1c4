"""Fetch what a survey found missing, one thing after another; what fails does not stop the rest."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from typing import Protocol

from madlite.assets.hub_fetch import HubFetch
from madlite.assets.url_fetch import fetch_url
from madlite.cancellation import Interrupted, check, interruptible
from madlite.errors import ExitCode, MadliteError
from madlite.model import Value
from madlite.plan.context import Options
from madlite.run.needs import HubJob, ImageJob, MadeJob, Need, Survey, UrlJob
from madlite.run.prepare_made import make_asset
from madlite.run.signals import Signals
from madlite.run.stop import StopControl


class PrepareScreen(Protocol):
    """Shows to people how what is needed comes; never blocks it and never raises."""

    def need_started(self, need: Need, position: int, total: int) -> None:
        """Something is fetched now, the `position`th of `total`."""

    def need_advanced(self, done: int, total: int) -> None:
        """So many bytes of it came; called from several threads."""

    def need_said(self, text: str) -> None:
        """Whoever fetches it says something."""

    def need_output(self, chunk: bytes, stream: int) -> None:
        """A run that prepares data printed something, secrets masked."""

    def need_here(self, need: Need, place: str) -> None:
        """It is here."""

    def need_failed(self, need: Need, message: str, hint: str) -> None:
        """It could not be had."""


class Prepared(Value, frozen=True):
    """How it went: names of what failed, of what was not tried, and of what each run fetches; the exit code."""

    failed: tuple[str, ...]
    left: tuple[str, ...]
    exit_code: ExitCode
    by_runs: tuple[str, ...] = ()


def prepare_all(survey: Survey, options: Options, screen: PrepareScreen, mask: Callable[[str], str]) -> Prepared:
    """Have everything here; after INT, TERM or HUP nothing more is fetched, and what came stays for the next try."""
    todo = [need for need in survey.needs if need.job is not None]
    failed: list[str] = []
    left: list[str] = []
    stop = StopControl()

    def fetch_all() -> None:
        for position, need in enumerate(todo, 1):
            if stop.reason is not None:
                left.append(need.what)
                continue
            screen.need_started(need, position, len(todo))
            try:
                screen.need_here(need, _Fetch(need, survey, options, screen, stop).run())
            except Interrupted:
                left.append(need.what)
            except MadliteError as problem:
                failed.append(need.what)
                screen.need_failed(need, mask(problem.message), mask(problem.hint))

    with Signals() as signals, closing(stop), signals.passing_to(stop.request), stop.cancellation.scope():
        signals.watch_over(fetch_all)
        code = signals.exit_code or (ExitCode.RUN_FAILED if failed else ExitCode.OK)
    return Prepared(failed=tuple(failed), left=tuple(left), exit_code=code, by_runs=survey.by_runs)


class _Fetch:
    """One need on its way."""

    def __init__(self, need: Need, survey: Survey, options: Options, screen: PrepareScreen, stop: StopControl) -> None:
        self._need, self._survey, self._options = need, survey, options
        self._screen, self._stop = screen, stop
        self._lock, self._done = threading.Lock(), 0

    def run(self) -> str:
        """Have it here and say where.

        Raises:
            MadliteError: it cannot be had.
            Interrupted: a stop came.
        """
        job = self._need.job
        if isinstance(job, MadeJob):
            return str(
                make_asset(self._need.one, job.asset, self._survey.data, self._options, self._screen, self._stop)
            )
        return interruptible(lambda: self._fetch(job))

    def _fetch(self, job: ImageJob | HubJob | UrlJob | None) -> str:
        need, environ, asked = self._need, self._options.environ, self._stop.cancellation.asked
        if job is None or isinstance(job, ImageJob):
            used = need.one.runtime.prepare(need.one.plan, self._say)
            return used.digest or used.ref
        said, data = self._say, self._survey.data
        if isinstance(job, HubJob):
            fetch = HubFetch(job.asset, job.cache, data, job.access, environ, said, self._tell, job.verify)
            return str(fetch.run(job.listing))
        return str(fetch_url(job.asset, job.source, data, environ, said, self._tell, asked))

    def _say(self, text: str) -> None:
        check()  # of a call that was left nothing is told any more
        self._screen.need_said(text)

    def _tell(self, count: int) -> None:
        with self._lock:
            self._done += count
            done = self._done
        self._screen.need_advanced(done, self._need.missing)
