"""One fetches, the others wait; and they stop waiting where their command is ended."""

from __future__ import annotations

import fcntl
import threading

import pytest

from madlite.assets import locks
from madlite.assets.locks import Stopped, held


class Turns(threading.Event):
    """Set after so many waits, without waiting."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.left = count

    def wait(self, timeout: float | None = None) -> bool:
        self.left -= 1
        return self.left < 0


def test_who_waits_is_told_once_and_leaves_where_it_is_ended(tmp_path):
    said = []
    again = held(tmp_path, "x.lock", Turns(3), lambda: said.append("waiting"))
    with held(tmp_path, "x.lock", threading.Event()), pytest.raises(Stopped), again:
        raise AssertionError("not reached")
    assert said == ["waiting"]


@pytest.mark.parametrize("again", [True, False])
def test_a_lock_file_that_another_client_removes_meanwhile_is_no_lock(tmp_path, monkeypatch, again):
    path, flock, taken = tmp_path / "x.lock", fcntl.flock, []

    def remove_first(fd: int, how: int) -> None:
        flock(fd, how)
        taken.append(fd)
        if len(taken) == 1:
            path.unlink()
            if again:  # and somebody else makes it anew
                path.touch()

    monkeypatch.setattr(locks.fcntl, "flock", remove_first)
    with held(tmp_path, "x.lock", Turns(3)):
        assert len(taken) == 2 and path.exists()
        with path.open() as other, pytest.raises(BlockingIOError):
            flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
