"""A server in trouble is asked again as it wants it, and never once the command is ended."""

from __future__ import annotations

import threading
import time
from email.message import Message
from email.utils import formatdate
from urllib.error import HTTPError

import pytest

from madlite.assets.locks import Stopped
from madlite.assets.tries import patiently, pause_s, wanted_s


def answer(status: int, retry_after: str = "") -> HTTPError:
    headers = Message()
    if retry_after:
        headers["Retry-After"] = retry_after
    return HTTPError("http://hub/x", status, "Busy", headers, None)


def test_an_ended_command_asks_no_more():
    asked = []

    def ask():
        asked.append(1)
        raise answer(503)

    stop = threading.Event()
    stop.set()
    with pytest.raises(Stopped):
        patiently(ask, stop)
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("text", "wanted"), [("7", 7.0), ("", 0.0), ("soon", 0.0), ("Fri, 99 Nov 2026 00:00:00 GMT", 0.0), ("٣", 0.0)]
)
def test_the_pause_that_a_server_names_is_kept_where_it_can_be_read(text, wanted):
    assert wanted_s(answer(503, text)) == wanted


def test_a_date_is_a_pause_too_and_one_of_the_past_is_none():
    assert 50 < wanted_s(answer(503, formatdate(time.time() + 59, usegmt=True))) < 60
    assert wanted_s(answer(503, formatdate(0, usegmt=True))) == 0.0


def test_who_asks_for_too_long_a_pause_is_not_asked_again():
    assert pause_s(1, answer(429, "3600")) is None
