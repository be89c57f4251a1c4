"""A child of these tests says what became of it, and never goes on with the tests of its parent."""

from __future__ import annotations

import os
import sys

import pytest

from madlite.errors import RecordError
from tests.rows import each_row

from .limits import in_child, with_files_of_at_most


def test_a_refusal_comes_back_as_its_message_and_success_as_none():
    def refuse() -> None:
        raise RecordError("no space")

    assert (in_child(refuse), in_child(os.getpid)) == ("no space", "")


@each_row("leave", [lambda: 1 / 0, lambda: sys.exit(0), lambda: pytest.fail("no")])
def test_what_nobody_expected_fails_the_test_with_a_traceback(capfd, leave):
    pid = os.getpid()
    with pytest.raises(AssertionError):
        with_files_of_at_most(1 << 20, leave)
    assert os.getpid() == pid and "Traceback (most recent call last)" in capfd.readouterr().err
