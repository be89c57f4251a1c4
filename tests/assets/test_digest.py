"""A file's bytes against the name that the hub gives them."""

from __future__ import annotations

import hashlib
import threading

import pytest

from madlite.assets.digest import Digest, is_sound
from madlite.assets.locks import Stopped

DATA = b"some words\n"


@pytest.fixture
def file(tmp_path):
    (tmp_path / "f").write_bytes(DATA)
    return tmp_path / "f"


def sound(file, name):
    return is_sound(file, name, len(DATA), threading.Event())


@pytest.mark.parametrize(
    "name",
    [
        hashlib.sha256(DATA).hexdigest(),
        hashlib.sha1(b"blob %d\0" % len(DATA) + DATA).hexdigest(),
        hashlib.sha1(DATA).hexdigest(),
    ],
)
def test_wrong_bytes_of_the_right_length_are_found(file, name):
    assert sound(file, name)
    file.write_bytes(DATA[::-1])
    assert not sound(file, name)


def test_git_names_an_empty_file_as_everybody_knows(tmp_path):
    (tmp_path / "f").touch()
    assert is_sound(tmp_path / "f", "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391", 0, threading.Event())


def test_a_name_that_is_no_hash_says_nothing(file):
    assert sound(file, "d41d8cd98f00b204e9800998ecf8427e-3")


def test_what_was_heard_is_not_read_again(file):
    digest = Digest(hashlib.sha256(DATA).hexdigest(), len(DATA))
    digest.hear(DATA[:4])
    digest.follow(file.with_name("nowhere"), 4, threading.Event())
    digest.hear(DATA[4:])
    assert digest.fits()
    digest.follow(file, 4, threading.Event())  # it begins anew from what is on the disk
    digest.hear(b"x" * 7)
    assert not digest.fits()


def test_a_stop_ends_it(file):
    stop = threading.Event()
    stop.set()
    with pytest.raises(Stopped):
        is_sound(file, "0" * 64, len(DATA), stop)
