"""A cache that an older huggingface_hub filled: complete as far as its files tell, or not here."""

from __future__ import annotations

import json

import pytest

from madlite.assets.paths import repo_folder, scan_cache
from madlite.model import Asset

COMMIT = "b" * 40
MODEL = Asset(kind="model", ref="lab/m", files=("*.safetensors", "*.json", "original/tokenizer.model"))
SHARDS = [f"model-0000{n}-of-00002.safetensors" for n in (1, 2)]
INDEX = json.dumps({"weight_map": {"a": SHARDS[0], "b": SHARDS[1]}})
FILES = {"model.safetensors.index.json": INDEX, **dict.fromkeys(SHARDS, "w"), "original/tokenizer.model": "t"}


@pytest.fixture
def lay(tmp_path):
    def lay(files, asset=MODEL):
        folder = repo_folder(asset, tmp_path)
        for name, text in files.items():
            file = folder / "snapshots" / COMMIT / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        for name in ("refs", "blobs"):
            (folder / name).mkdir(exist_ok=True)
        (folder / "refs/main").write_text(COMMIT)
        return folder

    return lay


def test_every_part_that_its_files_name_is_here(lay, tmp_path):
    lay({**FILES, "other.txt": "no"})
    found = scan_cache(MODEL, tmp_path)
    assert found.commit == COMMIT
    assert found.files.keys() == FILES.keys()


@pytest.mark.parametrize("gone", [SHARDS[1], "original/tokenizer.model"])
def test_a_part_that_is_missing_is_missed(lay, tmp_path, gone):
    lay({name: text for name, text in FILES.items() if name != gone})
    assert scan_cache(MODEL, tmp_path) is None


def test_shards_are_counted_where_no_index_names_them(lay, tmp_path):
    asset = Asset(kind="dataset", ref="lab/s", files=("data/*.parquet",))
    lay({"data/train-00000-of-00002.parquet": "x"}, asset)
    assert scan_cache(asset, tmp_path) is None
    lay({"data/train-00001-of-00002.parquet": "x"}, asset)
    assert scan_cache(asset, tmp_path) is not None
    one = Asset(kind="dataset", ref="lab/one", files=("en/c4-train.00000-of-01024.json.gz",))
    lay(dict.fromkeys(one.files, "x"), one)
    assert scan_cache(one, tmp_path) is not None, "a part that is asked for by its name is all of it"


def test_a_file_that_is_on_its_way_or_a_link_to_nowhere_is_not_here(lay, tmp_path):
    folder = lay(FILES)
    part = folder / "blobs/abc.incomplete"
    part.touch()
    assert scan_cache(MODEL, tmp_path) is None
    part.unlink()
    shard = folder / "snapshots" / COMMIT / SHARDS[0]
    shard.unlink()
    shard.symlink_to("../../blobs/gone")
    assert scan_cache(MODEL, tmp_path) is None


def test_a_tokenizer_alone_is_no_model(lay, tmp_path):
    lay({"tokenizer.json": "{}"})
    assert scan_cache(Asset(kind="model", ref="lab/m"), tmp_path) is None
    names = ("tokenizer.json", "vocab.json", "tokenizer.model")
    assert scan_cache(Asset(kind="tokenizer", ref="lab/m", files=names), tmp_path) is not None


def test_a_name_that_the_hub_said_it_has_not_is_not_missed(lay, tmp_path):
    folder = lay({name: text for name, text in FILES.items() if name != "original/tokenizer.model"})
    mark = folder / ".no_exist" / COMMIT / "original/tokenizer.model"
    mark.parent.mkdir(parents=True)
    mark.touch()
    assert scan_cache(MODEL, tmp_path) is not None


def test_nothing_is_nothing(tmp_path):
    assert scan_cache(MODEL, tmp_path) is None
