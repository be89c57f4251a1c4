"""Whether something listens where data is to come from."""

from __future__ import annotations

import socket
import threading

import pytest

from madlite.run.planning import why_unreachable
from tests.rows import each_row


@each_row("endpoint", ["http://[bad", "http://user:hush@[bad", "http://h:99999", "h:x", "http://a\0b", ""])
def test_an_address_that_is_none_is_told_and_nobody_is_asked(endpoint, monkeypatch):
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **kwargs: pytest.fail("asked"), raising=True)
    if endpoint in ("", "http://a\0b"):
        monkeypatch.setattr(socket, "getaddrinfo", _nobody)
    why = why_unreachable(endpoint)
    assert "cannot be reached" in why and "hush" not in why


def _nobody(*args: object, **kwargs: object) -> None:
    raise ValueError("embedded null character")


def test_somebody_who_listens_is_reached():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert why_unreachable(f"http://127.0.0.1:{port}") == why_unreachable(f"127.0.0.1:{port}") == ""
    assert "127.0.0.1 cannot be reached" in why_unreachable(f"https://127.0.0.1:{port}/gone")


@pytest.mark.parametrize(("said", "why"), [(b"SSH-2.0-x\r\n", ""), (b"220 smtp\r\n", "not as an SSH server")])
def test_an_ssh_server_speaks_first_and_another_one_is_none(said, why):
    with socket.create_server(("127.0.0.1", 0)) as server:

        def greet():
            with server.accept()[0] as client:
                client.sendall(said)

        thread = threading.Thread(target=greet)
        thread.start()
        found = why_unreachable(f"ssh://127.0.0.1:{server.getsockname()[1]}")
        thread.join()
    assert why in found and bool(why) == bool(found)
