"""Cards of a Primus tree: named as MAD names them, with what their files say of the runs."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from madlite import Problem, TreeCards
from madlite.catalog.sources import load_catalog
from madlite_plugins.primus import madlite_cards
from madlite_plugins.primus.tree import card_fields, cards_of_tree, configs, is_primus_tree, precision_of
from tests.rows import each_row

MAD_CARDS = Path(__file__).parents[1] / "data" / "cards.json"

MEGATRON = """\
work_group: ${PRIMUS_TEAM:us}
modules:
  pre_trainer:
    framework: megatron
    config: pre_trainer.yaml
    model: ${PRIMUS_MODEL:small_moe}.yaml
    overrides:
      train_iters: 31
      micro_batch_size: ${PRIMUS_MBS:3}
      global_batch_size: 96
      seq_length: ${PRIMUS_SEQ_LENGTH:1024}
      tensor_model_parallel_size: ${PRIMUS_TP:1}
      pipeline_model_parallel_size: ${PRIMUS_PP:2}
      expert_model_parallel_size: ${PRIMUS_EP}
      lr: 1.0e-5
"""
TORCHTITAN = """\
modules:
  pre_trainer:
    framework: torchtitan
    model: dense_3B-fp8.yaml
    overrides:
      training: {local_batch_size: 5, global_batch_size: -1, seq_len: 2048, steps: 17}
      parallelism: {tensor_parallel_degree: 2, expert_parallel_degree: 4}
      metrics: {log_freq: 1}
"""
LORA = """\
modules:
  post_trainer:
    framework: megatron_bridge
    model: big_30b.yaml
    overrides:
      peft: lora
      precision_config: bf16_mixed
      train_iters: 7
      micro_batch_size: 1
      seq_length: 512
      context_parallel_size: 2
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A Primus checkout of the layout since v25.10; tests add configs."""
    (tmp_path / "primus").mkdir()
    (tmp_path / "examples/megatron/configs").mkdir(parents=True)
    return tmp_path


def add(tree: Path, config: str, text: str) -> str:
    file = tree / "examples" / config
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return f"examples/{config}"


def recipe(tree: Path, config: str, text: str) -> dict[str, object]:
    """Return the recipe of a config's one card, without what its path says."""
    path = add(tree, config, text)
    (card,) = (card for card in cards_of_tree(tree) if isinstance(card, Problem) or card["recipe"]["config"] == path)
    assert isinstance(card, dict)
    assert (card["backend"], card["recipe"].pop("name"), card["recipe"].pop("config")) == ("primus", "tree", path)
    return card["recipe"]


def problem(tree: Path, config: str = "megatron/configs/MI300X/x.yaml") -> str:
    (found,) = cards_of_tree(tree)
    assert isinstance(found, Problem) and found.where == str(tree / "examples" / config) and "\n" not in found.what
    return found.what


def generated() -> list[dict[str, object]]:
    return [card for card in json.loads(MAD_CARDS.read_text()) if "--config_path" in card.get("args", "")]


def test_cards_are_mads_in_all_that_mad_says_of_them(tree: Path) -> None:
    wanted = {str(card["args"]).split()[1]: card for card in generated()[::60]}
    for config in wanted:
        add(tree, config.removeprefix("examples/"), MEGATRON)
    for card in cards_of_tree(tree):
        assert isinstance(card, dict)
        mad = wanted.pop(card["recipe"]["config"])
        mad |= {"dockerfile": "docker/primus", "scripts": "scripts/primus_train/run.sh"}  # from where a checkout begins
        assert card == {**{key: value for key, value in mad.items() if value != "" or key in card}, **ours(card)}
    assert wanted == {}
    # every card that mad generates is what its path makes
    listed = generated()
    assert len(listed) == 383
    for card in listed:
        fields = card_fields(card["args"].removeprefix("--config_path "))
        assert fields == {key: card[key] for key in fields}


def test_mads_default_card_is_there_with_its_config(tree: Path) -> None:
    add(tree, "megatron/exp_pretrain.yaml", MEGATRON)
    add(tree, "megatron/configs/MI300X/a.yaml", MEGATRON)
    default, _ = cards_of_tree(tree)
    assert isinstance(default, dict)
    (mad,) = [card for card in json.loads(MAD_CARDS.read_text()) if card["name"] == "primus_train/default"]
    assert {key: default[key] for key in ("tags", "n_gpus", "args", "owner")} == {
        key: mad[key] for key in ("tags", "n_gpus", "args", "owner")
    }
    assert (default["recipe"]["config"], default["recipe"]["steps"]) == ("examples/megatron/exp_pretrain.yaml", 31)


def ours(card: dict[str, object]) -> dict[str, object]:
    return {"backend": "primus", "recipe": card["recipe"]}


def test_configs_of_each_framework_are_read(tree: Path) -> None:
    # a megatron config with placeholders
    assert recipe(tree, "megatron/configs/MI300X/small_moe-BF16-pretrain.yaml", MEGATRON) == {
        "framework": "megatron",
        "suite": "pretrain",
        "mode": "pretrain",
        "model": "small_moe",
        "precision": "BF16",
        "micro_batch": 3,
        "global_batch": 96,
        "seq_len": 1024,
        "steps": 31,
        "tp": 1,
        "pp": 2,
    }, "ep has no default, so that the file does not say it"
    # a torchtitan config has its sizes in sections
    assert recipe(tree, "torchtitan/configs/MI355X/dense_3B-FP8-pretrain.yaml", TORCHTITAN) == {
        "framework": "torchtitan",
        "suite": "pretrain",
        "mode": "pretrain",
        "model": "dense_3B-fp8",
        "precision": "FP8",
        "micro_batch": 5,
        "seq_len": 2048,
        "steps": 17,
        "tp": 2,
        "ep": 4,
    }
    # the key of v25 9 for the batch is read too
    text = TORCHTITAN.replace("local_batch_size", "batch_size")
    assert recipe(tree, "torchtitan/configs/MI300X/a.yaml", text)["micro_batch"] == 5
    # data and tokenizer are the file's
    preset(tree, MODEL, "tokenizer_model: preset/one\n")
    preset(tree, TRAINER, "mock_data: true\n")
    own = MEGATRON + "      mock_data: false\n      tokenizer_model: own/one\n"
    assert inputs(tree, own) == ("false", "own/one")


@each_row(("peft", "mode"), [("lora", "posttrain/lora"), ("none", "posttrain/sft")])
def test_a_post_training_config(tree: Path, peft: str, mode: str) -> None:
    text = LORA.replace("peft: lora", f"peft: {peft}")
    assert recipe(tree, "megatron_bridge/configs/MI355X/big_30b_posttrain.yaml", text) == {
        "framework": "megatron_bridge",
        "suite": "posttrain",
        "mode": mode,
        "model": "big_30b",
        "precision": "BF16",
        "micro_batch": 1,
        "seq_len": 512,
        "steps": 7,
        "cp": 2,
    }


@each_row(
    ("name", "precision"),
    [
        ("a-MXFP8-x", "MXFP8"),
        ("a-mxfp4", "MXFP4"),
        ("a_BF16", "BF16"),
        ("a-fp8", "FP8"),
        ("fp4-bf16", "BF16"),
        ("a", ""),
    ],
)
def test_the_precision_of_a_name_is_its_longest_word(name: str, precision: str) -> None:
    assert precision_of(name) == precision


@each_row(
    ("name", "more", "precision"),
    [
        ("a", "fp8: hybrid", "FP8"),
        ("a-BF16-pretrain", "fp8: hybrid", "FP8"),
        ("a-BF16-pretrain", "fp8: null", "BF16"),
        ("a-MXFP8-pretrain", "fp8: e4m3", "MXFP8"),
        ("a", "precision_config: bf16_with_fp8_current_scaling_mixed", "FP8"),
        ("a", "precision_config: [bf16]", None),
    ],
)
def test_fp8_that_a_file_turns_on_is_what_it_trains_in(tree: Path, name: str, more: str, precision: str | None) -> None:
    values = recipe(tree, f"megatron/configs/MI300X/{name}.yaml", f"{MEGATRON}      {more}\n")
    assert values.get("precision") == precision


def preset(tree: Path, path: str, text: str) -> None:
    file = tree / "primus/configs" / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


MODEL = "models/megatron/small_moe.yaml"
TRAINER = "modules/megatron/pre_trainer.yaml"


def inputs(tree: Path, text: str, framework: str = "megatron") -> tuple[object, object]:
    values = recipe(tree, f"{framework}/configs/MI300X/a-BF16.yaml", text)
    return values.get("mock_data"), values.get("tokenizer")


@each_row("bases", ["extends", "bases", "includes"])
def test_what_the_file_leaves_open_its_presets_decide(tree: Path, bases: str) -> None:
    preset(tree, MODEL, f"{bases}: [below.yaml]\nhidden_size: 8\n")
    preset(tree, "models/megatron/below.yaml", "tokenizer_model: meta-llama/Below\n")
    preset(tree, TRAINER, f"{bases}: [trainer_base.yaml]\n")
    preset(tree, "modules/megatron/trainer_base.yaml", "mock_data: false\n")
    assert inputs(tree, MEGATRON) == ("false", "meta-llama/Below")


def test_presets_say_what_a_file_leaves_open(tree: Path) -> None:
    # a torchtitan preset has both in sections
    text = TORCHTITAN.replace("framework: torchtitan", "framework: torchtitan\n    config: pre_trainer.yaml")
    preset(tree, "models/torchtitan/dense_3B-fp8.yaml", "model: {hf_assets_path: lab/dense}\n")
    preset(tree, "modules/torchtitan/pre_trainer.yaml", "training: {mock_data: true}\n")
    assert inputs(tree, text, "torchtitan") == ("true", "lab/dense")
    preset(tree, "models/torchtitan/dense_3B-fp8.yaml", "model: {tokenizer_path: lab/of_v25.9}\n")
    assert inputs(tree, text, "torchtitan") == ("true", "lab/of_v25.9")
    # megatron bridge starts from a repository and knows no made up data
    preset(tree, "models/megatron_bridge/big_30b.yaml", "hf_path: lab/big\n")
    assert inputs(tree, LORA + "      mock_data: true\n", "megatron_bridge") == (None, "lab/big")


@each_row("broken", ["[", "- a", "tokenizer_model: [a]", "tokenizer_model: ${TOKENIZER}", "mock_data: 1"])
def test_a_preset_that_says_nothing_leaves_it_unknown_and_the_card_there(tree: Path, broken: str) -> None:
    preset(tree, MODEL, f"{broken}\n")
    preset(tree, TRAINER, f"{broken}\n")
    assert inputs(tree, MEGATRON) == (None, None)


def test_a_preset_outside_of_its_folder_is_not_read(tree: Path) -> None:
    preset(tree, "secret.yaml", "tokenizer_model: lab/secret\n")
    outside = MEGATRON.replace("${PRIMUS_MODEL:small_moe}.yaml", "../../secret.yaml")
    assert inputs(tree, outside) == (None, None)


def test_a_file_that_extends_another_overlays_it(tree: Path) -> None:
    add(tree, "megatron/configs/base/base.yaml", MEGATRON)
    text = "extends: [../base/base.yaml, gone.yaml]\nmodules: {pre_trainer: {overrides: {train_iters: 99}}}\n"
    add(tree, "megatron/configs/MI300X/more.yaml", text)
    more, base = cards_of_tree(tree)
    assert isinstance(more, dict) and isinstance(base, dict)
    assert {**base["recipe"], "config": "", "steps": 99} == {**more["recipe"], "config": ""}


def test_what_is_no_training_still_has_its_card_as_in_mad_and_nothing_is_made_up(tree: Path) -> None:
    assert recipe(tree, "megatron/configs/MI355X/layers-FP8-precision.yaml", "matchers: {}\n") == {"precision": "FP8"}


@each_row(
    "value", ["-1", "0", "true", "1.5", "'eight'", "null", "[8]", "{a: 8}", "${TP}", "${TP:}", "${TP:null}", "9" * 30]
)
def test_a_size_that_is_none_is_left_out(tree: Path, value: str) -> None:
    text = MEGATRON.replace("global_batch_size: 96", f"global_batch_size: {value}")
    values = recipe(tree, "megatron/configs/MI300X/a.yaml", text)
    assert "global_batch" not in values and values["micro_batch"] == 3


@each_row(
    "text",
    [
        "modules: []\n",
        "modules: {pre_trainer: [megatron]}\n",
        "modules: {pre_trainer: {framework: [megatron], model: 3, overrides: text}}\n",
        "extends: base.yaml\n",
        "extends: [3, null, [a]]\n",
        "3: 4\n",
    ],
)
def test_a_mapping_of_another_shape_is_a_card_of_which_nothing_is_known(tree: Path, text: str) -> None:
    assert recipe(tree, "megatron/configs/MI300X/a.yaml", text).keys() <= {"suite", "mode"}


@each_row(
    ("text", "said"),
    [
        (b"modules: [\n", "no YAML"),
        (b"a: \xff\xfe\n", "no UTF-8"),
        (b"\0", "no YAML"),
        (b"a: !!python/object/apply:os.system [x]\n", "no YAML"),
        (b"? [a]\n: b\n", "no YAML"),
        (b"a: *nobody\n", "no YAML"),
        (b"a: 2026-13-45\n", "no YAML"),
        (b"[" * 300_000, "lists and tables"),
        (b"- " * 300_000 + b"a", "lists and tables"),
        (b"\xff\xfe" + b"[\0" * 300_000, "no UTF-8"),
        (b"", "found NoneType"),
        (b"- a\n", "found list"),
        (b"#" * (1 << 20) + b"\na: b\n", "size"),
        (b"extends: [x.yaml]\n", "circle"),
    ],
)
def test_a_broken_config_is_one_sentence_instead_of_a_card(tree: Path, text: bytes, said: str) -> None:
    add(tree, "megatron/configs/MI300X/x.yaml", "")
    (tree / "examples/megatron/configs/MI300X/x.yaml").write_bytes(text)
    assert said in problem(tree)


def test_an_alias_of_its_own_whole_is_no_endless_work(tree: Path) -> None:
    circle = "modules: &all\n  pre_trainer: *all\n"
    add(tree, "megatron/base.yaml", circle)
    add(tree, "megatron/configs/MI300X/x.yaml", f"extends: [../../base.yaml]\n{circle}")
    assert "too deep" in problem(tree)


@pytest.mark.parametrize("way", ["link", "base", "linked base"])
def test_what_lies_outside_of_the_tree_is_not_read(
    tree: Path, tmp_path_factory: pytest.TempPathFactory, way: str
) -> None:
    hosts = tmp_path_factory.mktemp("hosts")
    (hosts / "hosts.yaml").write_text("modules:\n  pre_trainer:\n    framework: of_the_host\n")
    folder = tree / "examples/megatron/configs/MI300X"
    folder.mkdir(parents=True, exist_ok=True)
    if way == "link":
        (folder / "x.yaml").symlink_to(hosts / "hosts.yaml")
    elif way == "base":
        up = os.path.relpath(hosts / "hosts.yaml", folder)
        add(tree, "megatron/configs/MI300X/x.yaml", f"extends: [{up}]\n")
    else:
        (folder / "base.yml").symlink_to(hosts / "hosts.yaml")
        add(tree, "megatron/configs/MI300X/x.yaml", "extends: [base.yml]\n")
    told = problem(tree)
    assert "outside of" in told and "of_the_host" not in told


def test_what_is_no_plain_file_is_not_waited_for(tree: Path) -> None:
    folder = tree / "examples/megatron/configs/MI300X"
    folder.mkdir()
    os.mkfifo(folder / "x.yaml")
    assert "no plain file" in problem(tree)
    (folder / "x.yaml").unlink()
    (folder / "x.yaml").symlink_to("gone.yaml")
    assert "no plain file" in problem(tree)


def test_a_broken_config_stops_no_other(tree: Path) -> None:
    for name, text in (("a", MEGATRON), ("b", ":\n- ["), ("c", MEGATRON)):
        add(tree, f"megatron/configs/MI300X/{name}.yaml", text)
    kinds = [isinstance(found, Problem) for found in cards_of_tree(tree)]
    assert kinds == [False, True, False]


def test_which_files_count(tree: Path) -> None:
    for config in (
        "megatron/configs/MI300X/diffusion/deep.yaml",
        "megatron/configs/MI300X/b.yaml",
        "megatron/configs/flat.yaml",
        "megatron/configs/MI300X/.hidden.yaml",
        "megatron/configs/MI300X/other.yml",
        "megatron/other/MI300X/a.yaml",
        "maxtext/configs/MI300X/a.yaml",
        "maxdiffusion/configs/MI300X/a.yaml",
        "deeper/still/configs/MI300X/a.yaml",
        "new_thing/configs/MI999X/a.yaml",
    ):
        add(tree, config, MEGATRON)
    assert list(configs(tree)) == [
        "examples/megatron/configs/MI300X/b.yaml",
        "examples/megatron/configs/MI300X/diffusion/deep.yaml",
        "examples/new_thing/configs/MI999X/a.yaml",
    ]
    assert (
        card_fields("examples/megatron/configs/MI300X/diffusion/deep.yaml")["name"]
        == "primus_train/megatron_MI300X_deep"
    )


def test_the_flat_layout_of_v25_9_has_no_cards_and_says_so(tree: Path) -> None:
    add(tree, "megatron/configs/llama-pretrain.yaml", MEGATRON)
    (found,) = cards_of_tree(tree)
    assert isinstance(found, Problem) and "configs/<GPU>/" in found.what


def test_a_name_with_blanks_is_one_word_of_the_args() -> None:
    assert card_fields("examples/m/configs/G/a b;c.yaml")["args"] == "--config_path 'examples/m/configs/G/a b;c.yaml'"


@each_row(
    ("folders", "known"),
    [
        (("examples/megatron/configs", "primus"), True),
        (("examples/megatron/configs", "runner"), True),
        (("examples/megatron/configs",), False),
        (("examples/megatron", "primus", "runner"), False),
        ((), False),
    ],
)
def test_what_is_a_primus_tree(tmp_path: Path, folders: tuple[str, ...], known: bool) -> None:
    for folder in folders:
        (tmp_path / folder).mkdir(parents=True)
    assert is_primus_tree(tmp_path) is known


def test_the_hook_returns_the_trees_it_knows_and_they_load(tree: Path, tmp_path: Path) -> None:
    add(tree, "megatron/configs/MI300X/a-BF16.yaml", MEGATRON)
    (tree / "other").mkdir()
    os.mkfifo(tree / "examples/megatron/configs/MI300X/b\udcff.yaml")  # a name that is no text
    (found,) = [item for item in madlite_cards(trees=(tree, tree / "other")) if isinstance(item, TreeCards)]
    assert found.tree == tree
    catalog = load_catalog(tmp_path / "empty", None, [("primus", tmp_path, [found])])
    (card,) = catalog.cards
    assert (card.name, card.scope, card.root) == ("primus_train/megatron_MI300X_a-BF16", "primus_train", tree)
    assert (card.n_gpus, card.timeout_s, card.training_precision) == ("8", 86400, "bf16")
    assert len(catalog.problems) == 1
