"""What is here in full is told without asking, and nothing less counts."""

from __future__ import annotations

import json

import pytest

from madlite.assets.paths import AssetRecord, find_asset, matching, repo_folder, save_hub_record, save_prepared_record
from madlite.model import Asset

COMMIT = "b" * 40
MODEL = Asset(kind="model", ref="lab/small", files=("*.json", "weights/"))
FILES = {"config.json": b"{}", "weights/1.bin": b"12345"}


@pytest.fixture
def cache(tmp_path):
    """A cache as huggingface_hub lays it out."""
    folder = repo_folder(MODEL, tmp_path / "hub")
    for name, data in FILES.items():
        blob, link = folder / "blobs" / name.replace("/", "_"), folder / "snapshots" / COMMIT / name
        blob.parent.mkdir(parents=True, exist_ok=True)
        link.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(data)
        link.symlink_to(blob)
    (folder / "refs").mkdir()
    (folder / "refs/main").write_text(COMMIT)
    return tmp_path / "hub"


def noted(cache, tmp_path, patterns=MODEL.files, **changes):
    files = {name: len(data) for name, data in FILES.items()}
    values = {"ref": MODEL.ref, "files": files, "patterns": patterns, "revision": "main", "commit": COMMIT, **changes}
    save_hub_record(MODEL, cache, tmp_path / "data", AssetRecord(**values))


def found(cache, tmp_path, asset=MODEL):
    return find_asset(asset, cache, tmp_path / "data")


def test_a_repository_that_was_seen_complete_is_here(cache, tmp_path):
    assert found(cache, tmp_path) is None, "nobody has looked yet"
    noted(cache, tmp_path)
    assert found(cache, tmp_path) == repo_folder(MODEL, cache) / "snapshots" / COMMIT


@pytest.mark.parametrize("harm", ["deleted", "short", "moved", "other patterns", "other revision", "no record"])
def test_nothing_less_counts(cache, tmp_path, harm):
    noted(cache, tmp_path)
    folder, asset = repo_folder(MODEL, cache), MODEL
    if harm == "deleted":
        (folder / "blobs/weights_1.bin").unlink()
    elif harm == "short":
        (folder / "blobs/weights_1.bin").write_bytes(b"1234")
    elif harm == "moved":
        (folder / "refs/main").write_text("c" * 40)
    elif harm == "other patterns":
        asset = Asset(kind="model", ref=MODEL.ref, files=("*.model",))
    elif harm == "other revision":
        asset = Asset(kind="model", ref=MODEL.ref, files=MODEL.files, revision="v2")
    else:
        for record in (folder / ".madlite").iterdir():
            record.write_text("{")
    assert found(cache, tmp_path, asset) is None


def test_a_commit_needs_no_branch(cache, tmp_path):
    noted(cache, tmp_path)
    (repo_folder(MODEL, cache) / "refs/main").unlink()
    pinned = Asset(kind="model", ref=MODEL.ref, files=MODEL.files, revision=COMMIT)
    assert found(cache, tmp_path) is None and found(cache, tmp_path, pinned) is not None


def test_who_has_everything_has_each_part(cache, tmp_path):
    noted(cache, tmp_path, patterns=())
    part = Asset(kind="tokenizer", ref=MODEL.ref, files=("config.json",))
    assert found(cache, tmp_path, part) is not None
    assert found(cache, tmp_path, Asset(kind="model", ref=MODEL.ref)) is not None
    (repo_folder(MODEL, cache) / "blobs/weights_1.bin").unlink()
    assert found(cache, tmp_path, part) is not None and found(cache, tmp_path) is None


def test_a_listing_of_the_hub_s_own_client_does_as_well(cache, tmp_path):
    trees = repo_folder(MODEL, cache) / "trees"
    trees.mkdir()
    entries = {"config.json": {"size": 2}, "weights/1.bin": {"size": 130, "lfs_size": 5}, "other.bin": {"size": 9}}
    (trees / f"{COMMIT}.json").write_text(json.dumps({"format_version": 1, "files": entries}))
    assert found(cache, tmp_path) is not None
    assert found(cache, tmp_path, Asset(kind="model", ref=MODEL.ref)) is None, "other.bin is not here"


def test_a_cache_that_nobody_may_write_to_is_noted_elsewhere(cache, tmp_path):
    (repo_folder(MODEL, cache) / ".madlite").write_text("in the way")
    noted(cache, tmp_path)
    assert found(cache, tmp_path) is not None
    assert list((tmp_path / "data").rglob("*.json")) != []


def test_a_data_set_is_no_model_of_the_same_name(cache, tmp_path):
    noted(cache, tmp_path)
    assert found(cache, tmp_path, Asset(kind="dataset", ref=MODEL.ref, files=MODEL.files)) is None


def test_patterns_mean_what_they_mean_to_the_hub(tmp_path):
    from huggingface_hub.utils import filter_repo_objects

    names = dict.fromkeys(["a.json", "sub/b.json", "original/t.model", "weights/1.bin", "[x].txt", "A.JSON"], 1)
    for patterns in (["*.json"], ["original/"], ["*/*"], ["weights/?.bin"], ["[x].txt"], ["nothing"], []):
        assert list(matching(names, patterns)) == list(filter_repo_objects(names, allow_patterns=patterns or None))


def test_a_folder_that_a_run_made_is_here_while_its_files_are(tmp_path):
    asset = Asset(kind="dataset", ref="wiki", source="made", path="m/wiki", env="DATA_DIR")
    folder = tmp_path / "data/m/wiki"
    folder.mkdir(parents=True)
    (folder / "text.idx").write_bytes(b"123")
    assert find_asset(asset, tmp_path, tmp_path / "data") is None
    save_prepared_record(asset, tmp_path / "data", {"text.idx": 3})
    assert find_asset(asset, tmp_path, tmp_path / "data") == folder
    (folder / "more").write_bytes(b"an index beside it")
    assert find_asset(asset, tmp_path, tmp_path / "data") == folder
    (folder / "text.idx").write_bytes(b"12")
    assert find_asset(asset, tmp_path, tmp_path / "data") is None


def test_what_has_no_place_is_never_here(tmp_path):
    assert find_asset(Asset(kind="dataset", ref="squad", source="made"), tmp_path, tmp_path) is None
