"""The pods of a run as they are now: listed once, then watched from the list's version on, else polled.

A watch that ends or breaks is resumed from the last version that it told; a version that the server has forgotten
(410 Gone) is listed anew.  Protocol: kubernetes.io/docs/reference/using-api/api-concepts, "Efficient detection of
changes".
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from madlite.errors import RuntimeProblem
from madlite.platforms.kubernetes.api import GONE, LOST_S, Api, Refusal, may_pass
from madlite.platforms.kubernetes.faults import pod_name

_LOG = logging.getLogger(__name__)
POLL_S = 2.0
_LONGEST_PAUSE_S = 30.0
_DENIED = (400, 403, 405, 501)  # answers to a watch after which it is polled


class PodWatch:
    """The pods of one run, kept up to date by a thread until `close`.

    A cluster that does not answer for `outage_limit_s` counts as gone.
    """

    def __init__(
        self, api: Api, run: str, clock: Callable[[], float] = time.monotonic, outage_limit_s: float = LOST_S
    ) -> None:
        self._api, self._run, self._clock, self._outage_limit_s = api, run, clock, outage_limit_s
        self._pods: dict[str, dict[str, Any]] = {}
        self._removed: dict[str, dict[str, Any]] = {}  # as they were last
        self._changed = threading.Condition()
        self._changes = 0
        self._problem: RuntimeProblem | None = None
        self._version = ""  # from which a watch goes on
        self._polls = False
        self._broken_s: float | None = None  # since when there was no answer
        self._pause_s = POLL_S / 4
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
            RuntimeProblem: the cluster refuses to list them, or has not answered for minutes.
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
        while not self._closed.is_set():
            began_s = self._clock()
            try:
                if not self._version or self._polls:
                    self._list()
                if not self._polls:
                    self._watch()
            except RuntimeProblem as problem:
                if not self._goes_on(problem):
                    return
            if self._polls or self._clock() - began_s < POLL_S:  # a server may end each watch at once
                self._closed.wait(POLL_S if self._polls else self._pause_s)

    def _goes_on(self, problem: RuntimeProblem) -> bool:
        """Return whether it is tried again: from the last version, by a list, or without a watch."""
        refusal = problem if isinstance(problem, Refusal) else Refusal(problem.message)
        status = refusal.status
        if self._version and status == GONE:
            self._version = ""
            return True
        if self._version and status in _DENIED:
            _LOG.debug("pods of %s are polled: %s", self._run, problem.message)
            self._polls = True
            return True
        self._broken_s = self._clock() if self._broken_s is None else self._broken_s
        self._pause_s = min(max(2 * self._pause_s, refusal.wait_s), _LONGEST_PAUSE_S)
        if not may_pass(refusal, self._outage_limit_s) or self._clock() - self._broken_s > self._outage_limit_s:
            with self._changed:
                self._problem = problem
                self._changed.notify_all()
            return False
        _LOG.debug("pods of %s: again in %s s: %s", self._run, self._pause_s, problem.message)
        return True

    def _list(self) -> None:
        """Replace what is known by a list.

        Raises:
            Refusal: the server does not give one.
        """
        pods, self._version = self._api.list_pods(self._run)
        found = {pod_name(pod): pod for pod in pods}
        with self._changed:
            self._removed |= {name: pod for name, pod in self._pods.items() if name not in found}
            is_news = found != self._pods or not self._changes
            self._pods = found
            self._note(is_news)

    def _watch(self) -> None:
        """Take changes until the connection ends.

        Raises:
            Refusal: the version is forgotten, watching is not allowed, or the connection broke.
        """
        for kind, pod in self._api.watch_pods(self._run, self._version):
            self._version = str(pod.get("metadata", {}).get("resourceVersion", "")) or self._version
            with self._changed:
                if kind == "DELETED":
                    self._pods.pop(pod_name(pod), None)
                    self._removed[pod_name(pod)] = pod
                elif kind != "BOOKMARK":
                    self._pods[pod_name(pod)] = pod
                self._note(kind != "BOOKMARK")
            if self._closed.is_set():
                return

    def _note(self, is_news: bool) -> None:
        self._broken_s, self._pause_s = None, POLL_S / 4
        self._changes += is_news
        if is_news:
            self._changed.notify_all()
