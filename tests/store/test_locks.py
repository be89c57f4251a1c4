"""Locks on files: there while they are held, and never of a file that another holder took away."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from madlite.files import Folder
from madlite.store.locks import is_locked, locked_file, open_locked, remove_locked


def test_a_lock_file_is_there_only_while_it_is_held(tmp_path: Path):
    with Folder.open(tmp_path) as folder:
        with locked_file(folder, "x.lock"):
            assert is_locked(tmp_path / "x.lock")
            with pytest.raises(BlockingIOError):
                open_locked(folder, "x.lock", 0)
        assert list(tmp_path.iterdir()) == [] and not is_locked(tmp_path / "x.lock")


def test_what_cannot_be_opened_is_as_locked_as_the_caller_says(tmp_path: Path):
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    assert is_locked(tmp_path / "link", unknown=True) and not is_locked(tmp_path / "link")


def test_who_waited_for_a_file_that_its_holder_took_away_has_the_lock_of_the_new_one(tmp_path: Path):
    """Two holders at once would each have a file of their own otherwise."""
    held, most, ends = 0, 0, []
    guard = threading.Lock()

    def work() -> None:
        nonlocal held, most
        with Folder.open(tmp_path) as folder:
            for _ in range(60):
                lock = open_locked(folder, "x.lock", None)
                with guard:
                    held, most = held + 1, max(most, held + 1)
                same = os.path.samestat(os.fstat(lock), (tmp_path / "x.lock").lstat())
                with guard:
                    held -= 1
                    ends.append(same)
                remove_locked(folder, "x.lock", lock)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1 and ends == [True] * 240 and list(tmp_path.iterdir()) == []
