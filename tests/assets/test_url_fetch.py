"""One file of the web below the folder of prepared data."""

from __future__ import annotations

import threading

import pytest

from madlite.assets import tries
from madlite.assets.presence import find_asset
from madlite.assets.url_fetch import fetch_url, look_up, part_of
from madlite.errors import RuntimeProblem
from madlite.model import Asset

DATA = b"0123456789" * 20_000


@pytest.fixture
def asset(hub, monkeypatch):
    monkeypatch.setattr(tries, "TRIES", 1)
    hub.files["/sets/text.bin"] = DATA
    return Asset(kind="dataset", ref=f"{hub.url}/sets/text.bin", source="url", path="sets/text.bin", env="DATA_DIR")


def fetch(asset, data, say=lambda text: None):
    return fetch_url(asset, look_up(asset, {}), data, {}, say, lambda count: None, threading.Event())


def test_a_file_is_there_under_its_name_only_once_it_is_whole(hub, asset, tmp_path):
    hub.cut_after, hub.after_cut = 70_000, {"/sets": 503}
    with pytest.raises(RuntimeProblem, match="the server answered 503"):
        fetch(asset, tmp_path)
    assert not (tmp_path / asset.path).exists() and part_of(asset, tmp_path).stat().st_size == 70_000
    assert find_asset(asset, tmp_path, tmp_path) is None
    hub.cut_after, hub.fail = None, {}
    assert fetch(asset, tmp_path).read_bytes() == DATA
    assert hub.gets()[-1] == ("/sets/text.bin", "bytes=70000-")
    assert find_asset(asset, tmp_path, tmp_path) == tmp_path / asset.path and not part_of(asset, tmp_path).exists()


def test_a_part_that_somebody_left_is_gone_on_with(hub, asset, tmp_path):
    part_of(asset, tmp_path).parent.mkdir(parents=True)
    part_of(asset, tmp_path).write_bytes(DATA[:1234])
    assert fetch(asset, tmp_path).read_bytes() == DATA
    assert hub.gets() == [("/sets/text.bin", "bytes=1234-")]


def test_what_came_of_another_version_is_left(hub, asset, tmp_path):
    hub.cut_after, hub.after_cut = 70_000, {"/sets": 503}
    with pytest.raises(RuntimeProblem):
        fetch(asset, tmp_path)
    hub.cut_after, hub.fail = None, {}
    hub.files["/sets/text.bin"] = DATA[::-1]
    assert fetch(asset, tmp_path).read_bytes() == DATA[::-1]


def test_a_whole_file_that_was_copied_there_is_taken(hub, asset, tmp_path):
    (tmp_path / "sets").mkdir()
    (tmp_path / asset.path).write_bytes(DATA)
    fetch(asset, tmp_path)
    assert hub.gets() == [] and find_asset(asset, tmp_path, tmp_path) is not None


def test_half_a_file_under_its_name_does_not_count(hub, asset, tmp_path):
    fetch(asset, tmp_path)
    (tmp_path / asset.path).write_bytes(DATA[:10])
    assert find_asset(asset, tmp_path, tmp_path) is None
    assert fetch(asset, tmp_path).read_bytes() == DATA


def test_another_length_than_the_backend_knows_is_refused(asset):
    wrong = Asset(kind="dataset", ref=asset.ref, source="url", path="x", size_bytes=17)
    with pytest.raises(RuntimeProblem, match="has 200000 bytes, and should have 17"):
        look_up(wrong, {})


def test_two_at_a_time_fetch_it_once(hub, asset, tmp_path):
    hub.hold_after = 1000
    said = []
    threads = [threading.Thread(target=fetch, args=(asset, tmp_path, said.append)) for _ in range(2)]
    for thread in threads:
        thread.start()
    hub.held.wait(30)
    while not said:
        threads[0].join(0.01)
        assert any(thread.is_alive() for thread in threads)
    hub.hold_after = None
    hub.hold.set()
    for thread in threads:
        thread.join()
    assert len(hub.gets()) == 1 and (tmp_path / asset.path).read_bytes() == DATA
