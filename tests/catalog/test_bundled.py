"""The catalogue and the folders that come with madlite."""

from __future__ import annotations

import json
from os.path import normpath
from pathlib import Path

import pytest

from madlite.catalog import sources
from madlite.catalog.cards import read_cards, select
from madlite.catalog.sources import bundled_models, load_catalog, template_root
from madlite.errors import CatalogError
from tests.rows import each_row


def test_the_bundled_catalogue_reads_and_begins_with_the_demos() -> None:
    file = bundled_models(None)
    cards = read_cards(file.read_bytes(), "models.json", file.parent)
    demos = [card for card in cards if "demo" in card.tags]
    assert [(card.name, card.backend, card.recipe, card.timeout_s) for card in cards[:2]] == [
        ("demo_torchtitan_llama_debug", "torchtitan", "debug", 600),
        ("demo_hf_lora_tiny", "hf", "tiny_lora", 600),
    ]
    assert demos == list(cards[:2])
    assert {"primus_pyt_train_llama-3.1-8b", "pyt_train_gpt_oss_20b", "pyt_train_wan2_1-i2v"} <= {c.name for c in cards}


MAD_CARDS = Path(__file__).parents[1] / "data" / "cards.json"
MOVED = {"primus": "primus_megatron-lm", "jax": "jax-maxtext"}  # whose newer cards lie in a folder of their own


def test_every_static_card_of_mad_is_there_field_by_field() -> None:
    """The list holds directory cards as their files do, with paths relative to the folder; three are scripts alone."""
    cards = {entry["name"]: entry for entry in json.loads(bundled_models(None).read_text())}
    listed = [entry for entry in json.loads(MAD_CARDS.read_text()) if "/" not in entry["name"] and "n_gpus" in entry]
    for entry in listed:
        if entry["scripts"] == "run.sh":
            folder = MOVED[entry["name"].split("_")[0]]
            paths = {key: normpath(f"scripts/{folder}/{entry[key]}") for key in ("dockerfile", "scripts")}
            entry |= paths
        assert cards.pop(entry["name"]) == entry
    demo, scripts = list(cards)[:2], list(cards)[2:]
    assert len(listed) == 97 and demo == ["demo_torchtitan_llama_debug", "demo_hf_lora_tiny"]
    assert scripts == ["pyt_mlperf_training_llama-3.1-8b", "pyt_mlperf_training_llama-3.1-405b", "pyt_mpt30b_training"]


@each_row(
    "name",
    [
        "primus_megatron-lm/primus_pyt_megatron_lm_train_llama-3.1-405b_overlay",
        "jax-maxtext/jax_maxtext_train_qwen3-14b_fp8",
        "jax-maxtext/jax_maxtext_train_llama-3.1-8b_multinode_rccl",
        "pytorch_train/pyt_train_flux",  # as MAD's newest layout has it
    ],
)
def test_a_directory_card_answers_to_its_full_and_to_its_bare_name(tmp_path: Path, name: str) -> None:
    catalog = load_catalog(tmp_path, bundled_models(None))
    for tag in (name, name.rpartition("/")[2]):
        (request,) = select(catalog, [tag])
        assert request.card.name == name.rpartition("/")[2]


def test_a_folder_of_mad_selects_its_cards(tmp_path: Path) -> None:
    catalog = load_catalog(tmp_path, bundled_models(None))
    assert (
        len(select(catalog, ["primus_megatron-lm/all"])) == 5 == len(select(catalog, ["primus_megatron-lm/scaleout"]))
    )
    with pytest.raises(CatalogError):
        select(catalog, ["primus_megatron-lm/pyt_train_flux"])


def test_bundled_cards_have_known_fields_and_paths_below_their_root() -> None:
    file = bundled_models(None)
    named = {entry["name"]: entry for entry in json.loads(file.read_text())}
    for card in read_cards(file.read_bytes(), "models.json", file.parent):
        assert card.extra == {}
        assert card.backend or card.scripts.startswith("scripts/")
        assert card.dockerfile.startswith("docker/") or card.backend or "dockerfile" not in named[card.name]


def test_the_home_folder_comes_before_the_package(tmp_path: Path) -> None:
    (tmp_path / "models.json").write_text("[]")
    (tmp_path / "templates").mkdir()
    assert (bundled_models(tmp_path), template_root(tmp_path)) == (tmp_path / "models.json", tmp_path / "templates")
    # a home folder without the files is an error not a fallback
    for find in (bundled_models, template_root):
        with pytest.raises(CatalogError, match=f"^MADLITE_HOME={tmp_path / 'none'} holds no "):
            find(tmp_path / "none")


def test_a_wheels_data_comes_before_the_folder_above_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site" / "madlite"
    monkeypatch.setattr(sources, "_PACKAGE", package)
    (package / "data").mkdir(parents=True)
    with pytest.raises(CatalogError, match=r"^madlite's own models\.json is in none of "):
        bundled_models(None)
    (tmp_path / "site" / "models.json").write_text("[]")
    assert bundled_models(None) == tmp_path / "site" / "models.json"
    (package / "data" / "models.json").write_text("[]")
    assert bundled_models(None) == package / "data" / "models.json"
