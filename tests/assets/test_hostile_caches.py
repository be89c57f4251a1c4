"""A cache that others may write to: what they laid where files come is neither written through nor waited for."""

from __future__ import annotations

import hashlib
import os
import threading
from pathlib import Path

import pytest

from madlite.assets import web
from madlite.assets.cache import _record_name
from madlite.assets.hub import Access, RepoDownload, list_files
from madlite.assets.web import fetch_file, look_up, part_of
from madlite.errors import RuntimeProblem
from madlite.model import Asset
from tests.assets.hub_server import LARGE, Repo

pytestmark = pytest.mark.host  # against a real server of this machine

MODEL = Asset(kind="model", ref="lab/small", files=("*.json", "*.bin"))
DATA = bytes(range(256)) * (LARGE // 64)
ETAG = hashlib.sha256(DATA).hexdigest()
REPO = "models--lab--small"
TEXT = b"0123456789" * 1000
STRANGER = 12345


@pytest.fixture
def served(hub, monkeypatch):
    monkeypatch.setattr(web, "TRIES", 1)
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
    listing = list_files(MODEL, access)
    download = RepoDownload(MODEL, listing, cache, access, print, lambda count: None, threading.Event())
    return download.run(cache.parent / "data")


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
        with pytest.raises(
            RuntimeProblem, match=rf"{REPO} cannot be written to: it is a link that user {STRANGER} laid"
        ):
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


def fetch_into(asset: Asset, data: Path) -> Path:
    return fetch_file(asset, look_up(asset), data, print, lambda count: None, threading.Event())


@pytest.mark.parametrize(
    ("place", "kind"),
    [
        *((place, kind) for place in ("PART", "sets/text.bin", "LOCK", "RECORD") for kind in FILES),
        *((place, "folder link") for place in ("sets", ".madlite")),
    ],
)
def test_nothing_is_written_through_what_lies_among_prepared_data(asset, victim, tmp_path, place, kind):
    before, data = snapshot(victim), tmp_path / "data"
    note = data / _record_name(asset)
    named = {"PART": part_of(asset, look_up(asset), data), "LOCK": note.with_suffix(".lock"), "RECORD": note}
    plant(named.get(place, data / place), kind, victim)
    try:
        assert fetch_into(asset, data).read_bytes() == TEXT
    except RuntimeProblem as problem:
        assert "cannot be written" in problem.message and place in ("sets", ".madlite")
    assert snapshot(victim) == before
