"""A repository in the hub's cache: as huggingface_hub wants it, whole, one fetch at a time."""

from __future__ import annotations

import hashlib
import threading

import pytest

from madlite.assets.hub import Access, RepoDownload, list_files, missing_bytes
from madlite.assets.paths import Stopped, Token, find_snapshot, repo_folder
from madlite.errors import RuntimeProblem
from madlite.model import Asset, Secret
from tests.assets.hub_server import LARGE, Repo
from tests.rows import each_row

pytestmark = pytest.mark.host  # against a real server of this machine

MODEL = Asset(kind="model", ref="lab/small", files=("*.json", "*.safetensors"))
FILES = {
    "config.json": b"{}",
    "sub/more.json": b"[]",
    "model.safetensors": bytes(range(256)) * (LARGE // 64),
    "x.txt": b"x",
}
WHOLE = sum(len(data) for name, data in FILES.items() if name != "x.txt")


@pytest.fixture
def hub(hub):
    hub.repos["models/lab/small"] = Repo(dict(FILES))
    return hub


@pytest.fixture
def places(tmp_path):
    return tmp_path / "hub", tmp_path / "data"


def fetch(hub, places, asset=MODEL, token="", listing=None, tell=lambda count: None):
    access = Access(endpoint=hub.url, token=Token(value=Secret(token), origin="HF_TOKEN") if token else None)
    listing = listing or list_files(asset, access)
    return RepoDownload(asset, listing, access, places[0], tell, threading.Event()).run(places[1])


def listing_of(hub, asset=MODEL):
    return list_files(asset, Access(endpoint=hub.url))


def test_the_files_lie_where_the_hub_s_own_client_finds_them(hub, places):
    from huggingface_hub import snapshot_download, try_to_load_from_cache

    counts = []
    folder = fetch(hub, places, tell=counts.append)
    assert {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()} == FILES.keys() - {"x.txt"}
    assert all((folder / name).read_bytes() == data for name, data in FILES.items() if name != "x.txt")
    assert sum(counts) == WHOLE
    assert snapshot_download(
        "lab/small", cache_dir=places[0], local_files_only=True, allow_patterns=list(MODEL.files)
    ) == str(folder)
    assert try_to_load_from_cache("lab/small", "sub/more.json", cache_dir=places[0]) == str(folder / "sub/more.json")
    assert find_snapshot(MODEL, *places) == folder


def test_a_repository_may_be_a_link_to_another_disk(hub, places, tmp_path):
    (tmp_path / "disk").mkdir()
    places[0].mkdir()
    (places[0] / "models--lab--small").symlink_to(tmp_path / "disk")
    assert (fetch(hub, places) / "config.json").read_bytes() == b"{}" and list((tmp_path / "disk/blobs").iterdir())


def test_the_second_time_nothing_is_fetched(hub, places):
    listing = listing_of(hub)
    fetch(hub, places, listing=listing)
    hub.asked.clear()
    fetch(hub, places, listing=listing)
    assert hub.asked == []


def test_what_another_tool_fetched_counts(hub, places):
    from huggingface_hub import snapshot_download

    snapshot_download("lab/small", cache_dir=places[0], endpoint=hub.url, token=False)
    listing = listing_of(hub)
    assert missing_bytes(MODEL, listing, places[0]) == 0
    hub.asked.clear()
    fetch(hub, places, listing=listing)
    assert hub.asked == [] and find_snapshot(MODEL, *places) is not None


def test_a_connection_that_breaks_is_gone_on_with(hub, places, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 10_000)
    hub.cut_after = 100_000
    folder = fetch(hub, places)
    assert (folder / "model.safetensors").read_bytes() == FILES["model.safetensors"]
    assert [span for _, span in hub.gets("cdn")][1] == "bytes=100000-"


def test_of_a_file_that_did_not_come_whole_nothing_counts_and_the_others_stay(hub, places):
    listing = listing_of(hub)
    hub.fail["/cdn/"] = 503
    with pytest.raises(RuntimeProblem, match="answered 503") as caught:
        fetch(hub, places)
    assert "files that came are kept" in caught.value.hint
    assert find_snapshot(MODEL, *places) is None
    hub.fail = {}
    assert missing_bytes(MODEL, listing, places[0]) <= WHOLE
    assert (fetch(hub, places) / "model.safetensors").read_bytes() == FILES["model.safetensors"]
    assert not list(repo_folder(MODEL, places[0]).rglob("*.incomplete"))


def test_two_at_a_time_fetch_every_byte_once(hub, places):
    hub.hold_after = 50_000
    problems = []

    def go():
        try:
            fetch(hub, places)
        except Exception as error:
            problems.append(error)

    threads = [threading.Thread(target=go) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert hub.held.wait(240)
    threads[0].join(0.5)
    hub.hold_after = None
    hub.hold.set()
    for thread in threads:
        thread.join()
    assert problems == [] and len(hub.gets("cdn")) == 1
    assert find_snapshot(MODEL, *places) is not None


def test_the_token_goes_to_the_hub_and_nowhere_else(hub, places):
    hub.repos["models/lab/small"].gated = True
    fetch(hub, places, token="good")
    assert {auth for _, path, _, auth in hub.asked if "/cdn/" in path} == {""}
    assert {auth for _, path, _, auth in hub.asked if "/cdn/" not in path} == {"Bearer good"}


def test_a_branch_that_moved_is_fetched_anew_and_only_what_changed(hub, places):
    fetch(hub, places)
    hub.repos["models/lab/small"] = Repo({**FILES, "config.json": b'{"new": 1}'}, commit="d" * 40)
    hub.asked.clear()
    folder = fetch(hub, places)
    assert folder.name == "d" * 40 and (folder / "config.json").read_bytes() == b'{"new": 1}'
    assert hub.gets("cdn") == []
    assert find_snapshot(MODEL, *places) == folder


def test_a_branch_that_moves_meanwhile_is_told(hub, places):
    listing = listing_of(hub)
    hub.repos["models/lab/small"] = Repo({**FILES, "config.json": b"[]"}, commit="d" * 40)
    with pytest.raises(RuntimeProblem):
        fetch(hub, places, listing=listing)
    assert fetch(hub, places).name == "d" * 40


def test_a_pinned_commit(hub, places):
    asset = Asset(kind="model", ref="lab/small", files=MODEL.files, revision="a" * 40)
    assert fetch(hub, places, asset=asset).name == "a" * 40
    assert find_snapshot(asset, *places) is not None


def test_a_problem_of_one_file_ends_it(hub, places):
    listing = listing_of(hub)
    hub.fail["/cdn/"] = 403
    with pytest.raises(RuntimeProblem, match="403"):
        fetch(hub, places, listing=listing)


def test_a_cache_that_cannot_be_written_to_is_named(hub, tmp_path):
    (tmp_path / "hub").write_text("a file")
    with pytest.raises(OSError, match=str(tmp_path / "hub")):
        fetch(hub, (tmp_path / "hub", tmp_path / "data"))


def test_a_renamed_repository_gets_the_token_too(hub, places):
    hub.repos["models/lab/small"].gated = True
    hub.renamed["lab/old"] = "lab/small"
    old = Asset(kind="model", ref="lab/old", gated=True, files=MODEL.files)
    folder = fetch(hub, places, asset=old, token="good")
    assert (folder / "config.json").read_bytes() == FILES["config.json"]
    assert (folder / "model.safetensors").read_bytes() == FILES["model.safetensors"]
    assert {auth for _, path, _, auth in hub.asked if "/cdn/" in path} == {""}


@each_row(
    ("status", "token", "told", "hint"),
    [
        (401, "good", "does not accept the token in HF_TOKEN", "settings/tokens"),
        (403, "", "the hub refuses lab/small", "see http"),
    ],
)
def test_what_the_hub_refuses_of_a_download_is_told_as_where_it_is_asked(hub, places, status, token, told, hint):
    listing = listing_of(hub)
    hub.fail_gets["/resolve/"] = status
    with pytest.raises(RuntimeProblem, match=told) as caught:
        fetch(hub, places, token=token, listing=listing)
    assert hint in caught.value.hint and "files that came are kept" in caught.value.hint


@pytest.fixture
def no_links(monkeypatch):
    monkeypatch.setattr("huggingface_hub.file_download.are_symlinks_supported", lambda cache_dir=None: False)


def test_a_disk_without_links_has_each_file_once(hub, places, no_links):
    folder = fetch(hub, places)
    assert (folder / "model.safetensors").read_bytes() == FILES["model.safetensors"]
    assert not (folder / "model.safetensors").is_symlink() and (folder / "sub/more.json").is_file()
    assert list((repo_folder(MODEL, places[0]) / "blobs").iterdir()) == []


def test_on_a_disk_without_links_what_is_whole_is_not_fetched_again(hub, places, no_links):
    listing = listing_of(hub)
    folder = fetch(hub, places, listing=listing)
    (folder / "config.json").unlink()
    assert missing_bytes(MODEL, listing, places[0]) == 2
    hub.asked.clear()
    fetch(hub, places, listing=listing)
    assert hub.gets("cdn") == [] and (folder / "config.json").read_bytes() == b"{}"


def test_who_asks_is_said_and_nothing_else(hub, places):
    from huggingface_hub.utils import build_hf_headers

    from madlite import __version__
    from madlite.assets.hub import client, client_identity

    client()
    agent = build_hf_headers(**client_identity())["user-agent"]
    assert agent.startswith(f"madlite/{__version__};") and "torch" not in agent


def blob_of(places, data):
    return repo_folder(MODEL, places[0]) / "blobs" / hashlib.sha256(data).hexdigest()


def test_a_file_of_another_length_in_the_cache_is_fetched_anew(hub, places):
    blob = blob_of(places, FILES["model.safetensors"])
    blob.parent.mkdir(parents=True)
    blob.write_bytes(b"cut off")
    folder = fetch(hub, places)
    assert (folder / "model.safetensors").read_bytes() == FILES["model.safetensors"]


def test_a_cache_that_cannot_be_written_to_is_told_with_the_place(hub, places):
    under = repo_folder(MODEL, places[0]) / "snapshots"
    under.parent.mkdir(parents=True)
    under.write_text("no folder")
    with pytest.raises(OSError, match="snapshots"):
        fetch(hub, places)


def test_a_stop_ends_it_and_leaves_no_half_file(hub, places):
    stop, access = threading.Event(), Access(endpoint=hub.url)
    tell = lambda count: stop.set() if count > 10 else None  # noqa: E731
    download = RepoDownload(MODEL, listing_of(hub), access, places[0], tell, stop)
    with pytest.raises(Stopped):
        download.run(places[1])
    assert find_snapshot(MODEL, *places) is None and not list(places[0].rglob("*.incomplete"))
