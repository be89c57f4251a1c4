"""A cache that others may write to: what they laid where files come is neither written through nor waited for."""

from __future__ import annotations

import hashlib
import os
import threading
from pathlib import Path

import pytest

from madlite.assets import tries
from madlite.assets.hub import Access, ask
from madlite.assets.hub_fetch import HubFetch
from madlite.assets.presence import find_asset
from madlite.assets.records import kept_file
from madlite.assets.url_fetch import fetch_url, look_up
from madlite.errors import RuntimeProblem
from madlite.model import Asset
from tests.assets.hub_server import LARGE, Repo

MODEL = Asset(kind="model", ref="lab/small", files=("*.json", "*.bin"))
DATA = bytes(range(256)) * (LARGE // 64)
ETAG = hashlib.sha256(DATA).hexdigest()
REPO = "models--lab--small"
TEXT = b"0123456789" * 1000
STRANGER = 12345


@pytest.fixture
def served(hub, monkeypatch):
    monkeypatch.setattr(tries, "TRIES", 1)
    hub.repos["models/lab/small"] = Repo({"config.json": b"{}", "model.bin": DATA})
    hub.files["/sets/text.bin"] = TEXT
    return hub


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """What another user, or the caller himself, has elsewhere."""
    (tmp_path / "victim/folder").mkdir(parents=True)
    (tmp_path / "victim/file").write_text("own")
    return tmp_path / "victim"


def snapshot(victim: Path) -> dict[str, bytes]:
    return {str(path.relative_to(victim)): path.read_bytes() if path.is_file() else b"" for path in victim.rglob("*")}


def plant(place: Path, kind: str, victim: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    if kind == "link":
        place.symlink_to(victim / "file")
    elif kind == "dangling link":
        place.symlink_to(victim / "new")
    elif kind == "hard link":
        os.link(victim / "file", place)
    elif kind == "pipe":
        os.mkfifo(place)
    elif kind == "folder link":
        place.symlink_to(victim / "folder")


def fetch(hub, cache: Path) -> Path:
    access = Access(endpoint=hub.url)
    return HubFetch(MODEL, cache, cache.parent / "data", access, {}, print, lambda count: None).run(ask(MODEL, access))


FILES = ("link", "dangling link", "hard link", "pipe")


@pytest.mark.parametrize(
    ("place", "kind"),
    [
        *((f"{REPO}/blobs/{ETAG}.incomplete", kind) for kind in FILES),
        *((f".locks/{REPO}/{ETAG}.lock", kind) for kind in FILES),
        *((f"{REPO}/refs/main", kind) for kind in FILES),
        *(
            (f"{REPO}/{name}", "folder link")
            for name in ("blobs", "refs", "snapshots", f"snapshots/{'a' * 40}", ".madlite")
        ),
        *((name, "folder link") for name in (".locks", f".locks/{REPO}")),
    ],
)
def test_nothing_is_written_through_what_lies_in_the_cache(served, victim, tmp_path, place, kind):
    before = snapshot(victim)
    plant(tmp_path / "hub" / place, kind, victim)
    try:
        folder = fetch(served, tmp_path / "hub")
        assert (folder / "model.bin").read_bytes() == DATA
    except RuntimeProblem as problem:
        assert place.rpartition("/")[2] in problem.message and "cannot be written" in problem.message
    assert snapshot(victim) == before


@pytest.mark.parametrize("kind", FILES)
def test_a_partial_file_that_is_none_costs_no_file(served, victim, tmp_path, kind):
    """What lies where a partial file was to be is taken away: the name is ours."""
    plant(tmp_path / f"hub/{REPO}/blobs/{ETAG}.incomplete", kind, victim)
    assert (fetch(served, tmp_path / "hub") / "model.bin").read_bytes() == DATA
    assert (victim / "file").read_text() == "own" and (victim / "file").stat().st_nlink == 1


def test_a_repository_may_be_a_link_of_the_one_who_owns_the_cache(served, tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub" / REPO).symlink_to(tmp_path / "disk")
    assert (fetch(served, tmp_path / "hub") / "model.bin").read_bytes() == DATA
    assert (tmp_path / f"disk/blobs/{ETAG}").read_bytes() == DATA and list((tmp_path / "disk/.madlite").iterdir())


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone gives files away")
class TestAStranger:
    """Another user, where a cache is everybody's."""

    @pytest.fixture
    def cache(self, tmp_path: Path) -> Path:
        (tmp_path / "hub").mkdir()
        (tmp_path / "hub").chmod(0o1777)
        return tmp_path / "hub"

    def test_his_link_in_place_of_a_repository_is_not_followed(self, served, cache, victim):
        (cache / REPO).symlink_to(victim / "folder")
        os.chown(cache / REPO, STRANGER, STRANGER, follow_symlinks=False)
        before = snapshot(victim)
        with pytest.raises(RuntimeProblem, match=rf"{REPO}: it is a link that user {STRANGER} laid"):
            fetch(served, cache)
        assert snapshot(victim) == before

    def test_his_partial_file_is_not_gone_on_with(self, served, cache):
        part = cache / f"{REPO}/blobs/{ETAG}.incomplete"
        part.parent.mkdir(parents=True)
        part.write_bytes(b"evil")
        os.chown(part, STRANGER, STRANGER)
        with part.open("r+b") as still_open:
            folder = fetch(served, cache)
            still_open.write(b"more")
            still_open.flush()
            assert (folder / "model.bin").read_bytes() == DATA and (folder / "model.bin").stat().st_uid == 0
        assert served.gets("cdn")[-1][1] == ""  # from the start


@pytest.fixture
def asset(served) -> Asset:
    return Asset(kind="dataset", ref=f"{served.url}/sets/text.bin", source="url", path="sets/text.bin")


def fetch_file(asset: Asset, data: Path) -> Path:
    return fetch_url(asset, look_up(asset, {}), data, {}, print, lambda count: None, threading.Event())


LOCK, NOTE, RECORD = (
    kept_file(Asset(kind="dataset", ref="", path="sets/text.bin"), end) for end in (".lock", ".part", ".json")
)


@pytest.mark.parametrize(
    ("place", "kind"),
    [
        *((place, kind) for place in ("sets/text.bin.part", "sets/text.bin", LOCK, NOTE, RECORD) for kind in FILES),
        *((place, "folder link") for place in ("sets", ".madlite")),
    ],
)
def test_nothing_is_written_through_what_lies_among_prepared_data(asset, victim, tmp_path, place, kind):
    before = snapshot(victim)
    plant(tmp_path / "data" / place, kind, victim)
    try:
        assert fetch_file(asset, tmp_path / "data").read_bytes() == TEXT
    except RuntimeProblem as problem:
        assert "cannot be written" in problem.message and place not in ("sets/text.bin.part", NOTE, RECORD)
    assert snapshot(victim) == before


class TestChecksums:
    def test_the_right_one_is_taken_in_either_case(self, asset, tmp_path):
        for n, text in enumerate((hashlib.sha256(TEXT).hexdigest(), hashlib.sha256(TEXT).hexdigest().upper())):
            whole = Asset(kind="file", ref=asset.ref, source="url", path=f"{n}/text.bin", sha256=text)
            assert fetch_file(whole, tmp_path).read_bytes() == TEXT
            assert find_asset(whole, tmp_path, tmp_path) is not None

    @pytest.mark.parametrize("resumed", [False, True])
    def test_another_file_is_refused_and_not_kept(self, served, asset, tmp_path, resumed):
        wrong = Asset(kind="file", ref=asset.ref, source="url", path="x/text.bin", sha256="0" * 64)
        if resumed:
            (tmp_path / "x").mkdir()
            (tmp_path / "x/text.bin.part").write_bytes(TEXT[:100])
        with pytest.raises(RuntimeProblem, match="its SHA-256 is not 0{64}") as refused:
            fetch_file(wrong, tmp_path)
        assert refused.value.hint and list((tmp_path / "x").iterdir()) == []
        assert find_asset(wrong, tmp_path, tmp_path) is None

    def test_a_file_that_lies_there_whole_is_checked_too(self, served, asset, tmp_path):
        right = Asset(kind="file", ref=asset.ref, source="url", path="t", sha256=hashlib.sha256(TEXT).hexdigest())
        (tmp_path / "t").write_bytes(TEXT[::-1])
        assert fetch_file(right, tmp_path).read_bytes() == TEXT
        assert len(served.gets()) == 1

    def test_what_is_no_checksum_is_refused_unasked(self, served, asset):
        odd = Asset(kind="file", ref=asset.ref, source="url", path="t", sha256="md5:123")
        with pytest.raises(RuntimeProblem, match="'md5:123' is no SHA-256"):
            look_up(odd, {})
        assert served.asked == []
