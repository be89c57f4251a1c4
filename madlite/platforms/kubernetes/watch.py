"""The pods of a run as they are now: listed, watched from then on until the watch ends or breaks, and listed anew.

So a cluster that allows no watch is listed every few seconds.  Protocol:
kubernetes.io/docs/reference/using-api/api-concepts, "Efficient detection of changes".
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from madlite.errors import RuntimeProblem
from madlite.platforms.kubernetes.api import DAY_S, Api, Refusal, may_pass
from madlite.platforms.kubernetes.faults import pod_name

_LOG = logging.getLogger(__name__)
POLL_S = 2.0
_LONGEST_PAUSE_S = 30.0


class PodWatch:
    """The pods of one run, kept up to date by a thread until `close`.

    A cluster that does not answer for a day counts as gone.
    """

    def __init__(self, api: Api, run: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._api, self._run, self._clock = api, run, clock
        self._pods: dict[str, dict[str, Any]] = {}
        self._removed: dict[str, dict[str, Any]] = {}  # as they were last
        self._changed = threading.Condition()
        self._changes = 0
        self._problem: RuntimeProblem | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._follow, name=f"madlite-pods-{run}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Follow them no more."""
        self._closed.set()
        with self._changed:
            self._changed.notify_all()

    def now(self) -> list[dict[str, Any]]:
        """Return the pods that are there.

        Raises:
            RuntimeProblem: the cluster refuses to list them, or has not answered for a day.
        """
        with self._changed:
            if self._problem is not None:
                raise self._problem
            return list(self._pods.values())

    def get(self, name: str) -> tuple[dict[str, Any] | None, bool]:
        """Return a pod as it was last, and whether it is there still.

        Raises:
            RuntimeProblem: as `now`.
        """
        with self._changed:
            if self._problem is not None and name not in self._removed:
                raise self._problem
            found = self._pods.get(name)
            return (found, True) if found is not None else (self._removed.get(name), False)

    def wait(self, seen: int, limit_s: float) -> int:
        """Wait until there were more changes than `seen`, or for `limit_s`; return how many there were."""
        with self._changed:
            if self._changes == seen and self._problem is None and not self._closed.is_set():
                self._changed.wait(limit_s)
            return self._changes

    def _follow(self) -> None:
        answered_s, pause_s = self._clock(), POLL_S / 4
        while not self._closed.is_set():
            began_s = self._clock()
            try:
                version = self._list()
            except RuntimeProblem as problem:
                refusal = problem if isinstance(problem, Refusal) else Refusal(problem.message)
                if not may_pass(refusal, patient=True) or began_s - answered_s > DAY_S:
                    with self._changed:
                        self._problem = problem
                        self._changed.notify_all()
                    return
                pause_s = min(max(2 * pause_s, refusal.wait_s), _LONGEST_PAUSE_S)
                _LOG.debug("pods of %s: again in %s s: %s", self._run, pause_s, problem.message)
                self._closed.wait(pause_s)
                continue
            answered_s, pause_s = self._clock(), POLL_S / 4
            try:
                self._watch(version)
            except RuntimeProblem as problem:
                _LOG.debug("the watch of pods of %s: %s", self._run, problem.message)
            if self._clock() - began_s < POLL_S:
                self._closed.wait(POLL_S)

    def _list(self) -> str:
        """Replace what is known by a list, and return its version.

        Raises:
            Refusal: the server does not give one.
        """
        pods, version = self._api.list_pods(self._run)
        found = {pod_name(pod): pod for pod in pods}
        with self._changed:
            self._removed |= {name: pod for name, pod in self._pods.items() if name not in found}
            is_news = found != self._pods or not self._changes
            self._pods = found
            if is_news:
                self._note()
        return version

    def _watch(self, version: str) -> None:
        """Take changes after a version until the connection ends.

        Raises:
            Refusal: the version is forgotten, watching is not allowed, or the connection broke.
        """
        for kind, pod in self._api.watch_pods(self._run, version):
            with self._changed:
                self._pods.pop(pod_name(pod), None)
                (self._removed if kind == "DELETED" else self._pods)[pod_name(pod)] = pod
                self._note()
            if self._closed.is_set():
                return

    def _note(self) -> None:
        self._changes += 1
        self._changed.notify_all()
