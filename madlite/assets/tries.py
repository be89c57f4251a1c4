"""Ask a server again that is in trouble for now, and not sooner than it says."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar
from urllib.error import HTTPError

from madlite.assets.locks import Stopped

Answer = TypeVar("Answer")

LATER = (408, 425, 429, 500, 502, 503, 504)
TRIES = 5  # in a row that bring nothing
FIRST_S, LONGEST_S = 1.0, 8.0  # pauses where the server names none
PATIENCE_S = 60.0  # the longest pause that a server gets; one that wants more is not asked again


def patiently(
    ask: Callable[[], Answer], stop: threading.Event, passes: Callable[[Exception], bool] = lambda error: False
) -> Answer:
    """Return what is asked for; what a server refuses for now, or what `passes` says will pass, is asked again.

    Raises:
        Exception: the last try's.
        Stopped: `stop` was set.
    """
    failed = 0
    while True:
        try:
            return ask()
        except Exception as error:
            failed += 1
            pause = pause_s(failed, error)
            if failed >= TRIES or pause is None or not (status_of(error) in LATER or passes(error)):
                raise
        if stop.wait(pause):
            raise Stopped


def pause_s(failed: int, error: Exception | None) -> float | None:
    """Return how long to wait after so many tries that failed, None where the server asks for too much."""
    wanted = wanted_s(error) if error else 0.0
    own = min(FIRST_S * 2.0 ** (failed - 1), LONGEST_S) if failed else 0.0
    return None if wanted > PATIENCE_S else max(own, wanted)


def wanted_s(error: Exception) -> float:
    """Return the pause that an answer asks for, 0 where it names none (RFC 9110, 10.2.3: seconds or a date)."""
    text = str((_headers(error) or {}).get("Retry-After") or "").strip()
    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        return max(parsedate_to_datetime(text).timestamp() - time.time(), 0.0) if text else 0.0
    except (ValueError, TypeError, OverflowError):
        return 0.0


def status_of(error: BaseException) -> int | None:
    """Return the number of the answer that an error stands for."""
    if isinstance(error, HTTPError):
        return error.code
    status: int | None = getattr(getattr(answered(error), "response", None), "status_code", None)
    return status


def answered(error: BaseException) -> BaseException:
    """Return the error that has the server's answer: huggingface_hub wraps some in errors of its own."""
    cause = error.__cause__
    wraps = getattr(error, "response", None) is None and cause is not None
    return cause if wraps and cause is not None and getattr(cause, "response", None) is not None else error


def _headers(error: Exception) -> Any:
    return error.headers if isinstance(error, HTTPError) else getattr(_response(error), "headers", None)


def _response(error: Exception) -> Any:
    return getattr(answered(error), "response", None)
