"""How long a session waits for its engine: as long as its work takes, and less once the session is to end."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from functools import partial
from typing import Any

from madlite.images.client import API_LIMIT_S, Client

LOST_LIMIT_S = 1.0  # for one call to an engine that left another without an answer while its session was to end
_TURN_S = 0.1


class Patience:
    """A client of the engine whose limit can be cut, for the call under way too.

    A call runs in a thread: nothing else lets go of an engine that took a request and does not answer it.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._limit_s = math.inf  # until it is cut, the client's own limit holds
        self._cut_s = 0.0
        self._lost = False

    @property
    def is_cut(self) -> bool:
        """Say whether the session is to end, and the engine has not been seen to answer since."""
        return self._limit_s < math.inf

    def cut(self, limit_s: float) -> None:
        """Wait no longer than this for any answer, from now on."""
        if limit_s < self._limit_s:
            self._limit_s, self._cut_s = limit_s, time.monotonic()
            self._client.timeout = limit_s

    def restore(self) -> None:
        """Wait again for as long as work takes, unless an answer never came: one can hang and still know its list."""
        if not self._lost:
            self._limit_s = math.inf
            self._client.timeout = API_LIMIT_S

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._client, name)
        return partial(self._ask, found) if callable(found) else found

    def _ask(self, call: Callable[..., Any], *args: object, **options: object) -> Any:
        import requests

        answer: Future[Any] = Future()

        def ask() -> None:
            try:
                answer.set_result(call(*args, **options))
            except BaseException as error:  # noqa: BLE001 - raised where it was asked
                answer.set_exception(error)

        threading.Thread(target=ask, name="madlite-ask", daemon=True).start()
        try:
            self._wait(answer)
            return answer.result()
        except requests.Timeout:
            if self.is_cut:
                self._lost = True
                self.cut(LOST_LIMIT_S)
            raise

    def _wait(self, answer: Future[Any]) -> None:
        import requests

        begun_s = time.monotonic()
        while not wait([answer], _TURN_S).done:
            if time.monotonic() > max(begun_s, self._cut_s) + self._limit_s:
                raise requests.ReadTimeout(f"no answer within {self._limit_s:g} s")
