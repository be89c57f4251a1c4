"""The tokenizer and the text that a run makes for itself."""

from __future__ import annotations

import base64
import json
import os
import runpy
import subprocess
import sys

import pytest
import yaml

from tests.plugins.logs import TEMPLATES

SCRIPT = TEMPLATES / "torchtitan/make_assets.py"


def make(folder, *options: str, path: str = "") -> None:
    env = {**os.environ, "PYTHONPATH": path} if path else None
    subprocess.run([sys.executable, str(SCRIPT), *options], cwd=folder, check=True, env=env)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("assets")
    make(folder, "--tokenizer", "a/tokenizer", "--text", "a/text")
    return folder / "a"


def test_the_made_vocabulary_and_text_fit_the_smallest_model(made):
    # the vocabulary has a token for every byte and fits the smallest model
    tokenizer = json.loads((made / "tokenizer/tokenizer.json").read_text())
    assert sorted(tokenizer["model"]["vocab"].values()) == list(range(258))
    config = json.loads((made / "tokenizer/tokenizer_config.json").read_text())
    assert {config["bos_token"], config["eos_token"]} == {token["content"] for token in tokenizer["added_tokens"]}
    # bytes have gpt 2's letters
    letters = runpy.run_path(str(SCRIPT))["byte_letters"]()
    assert len(set(letters)) == 256
    assert (letters[ord("a")], letters[ord(" ")], letters[ord("\n")], letters[0xAD]) == ("a", "Ġ", "Ċ", "Ń")
    # the text is json lines of words
    texts = [json.loads(line)["text"] for line in (made / "text/data.json").read_text().splitlines()]
    assert len(texts) == 4000 and len(set(texts)) == 4000
    assert sum(map(len, texts)) > 1_000_000 and {len(text.split()) for text in texts} == {80}


@pytest.mark.host
def test_the_same_seed_makes_the_same_text(made, tmp_path):
    make(tmp_path, "--text", "same")
    make(tmp_path, "--text", "other", "--seed", "1")
    assert (tmp_path / "same/data.json").read_bytes() == (made / "text/data.json").read_bytes()
    assert (tmp_path / "other/data.json").read_bytes() != (made / "text/data.json").read_bytes()
    assert not (tmp_path / "assets").exists()


@pytest.mark.host
def test_a_tiktoken_file_counts_as_many_tokens_as_the_model_is_to_have(tmp_path):
    """torchtitan before 0.2 sizes the model by it, and adds 256 special tokens of its own."""
    make(tmp_path, "--tokenizer", "t", "--tiktoken", "128256")
    lines = (tmp_path / "t/tokenizer.model").read_text().splitlines()
    tokens = [base64.b64decode(line.split()[0]) for line in lines]
    assert len(set(tokens)) == 128256 - 256 and tokens[:256] == [bytes([n]) for n in range(256)]
    assert [int(line.split()[1]) for line in lines] == list(range(128000))
    assert {len(token) for token in tokens[256:]} == {6}, "no two bytes join to one of these"
    make(tmp_path, "--tokenizer", "small", "--tiktoken", "512")
    assert len((tmp_path / "small/tokenizer.model").read_text().splitlines()) == 256


def test_c4_s_files_that_are_here_are_a_data_set_of_one_configuration(tmp_path):
    source = tmp_path / "snapshot/en"
    source.mkdir(parents=True)
    for name in ("c4-train.00000-of-01024.json.gz", "c4-validation.00000-of-00008.json.gz"):
        (source / name).write_bytes(b"x")
    for _ in range(2):
        make(tmp_path, "--c4", "snapshot", "c4")
    assert [file.name for file in sorted((tmp_path / "c4").iterdir())] == [
        "README.md",
        "c4-train.00000-of-01024.json.gz",
    ]
    assert (tmp_path / "c4/c4-train.00000-of-01024.json.gz").read_bytes() == b"x"
    head = (tmp_path / "c4/README.md").read_text().split("---")[1]
    assert yaml.safe_load(head)["configs"] == [
        {"config_name": "en", "data_files": [{"split": "train", "path": "*.json.gz"}]}
    ]
