"""What chooses a recipe does so in every spelling and from every source, and no row is called by another's name."""

from __future__ import annotations

import json

import pytest

from madlite.cli.main import call
from tests.rows import each_row

TAG = "primus_pyt_train_llama-3.1-8b"


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("HF_TOKEN", "MAD_SECRETS_HFTOKEN", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)


def explained(capsys, *args):
    code = call(["explain", "--json", *args])
    out = capsys.readouterr()
    return code, json.loads(out.out) if code in (0, 3) else [], out.err


def facts(plans):
    return [(one["variant"]["precision"], one["variant"]["release"], one["image"]["ref"]) for one in plans]


@each_row(
    "args",
    [
        ["--image-release", "v25.10", "--precision", "fp8"],
        ["--set", "release=v25.10", "--set", "precision=FP8"],
        ["--set", "RELEASE=v25.10", "--set", "variant.precision=FP8"],
        ["-c", '{"settings": {"release": "v25.10", "PRECISION": "fp8"}}'],
        ["--image-release", "v26.6", "--set", "release=25.10", "--precision", "FP8"],
    ],
)
def test_every_source_and_spelling_chooses(capsys, args):
    _, plans, _ = explained(capsys, TAG, "--machine", "8xMI300X", *args)
    assert facts(plans) == [("FP8", "v25.10", "rocm/primus:v25.10")]
    assert plans[0]["variant"]["micro_batch"] == 5 and "FP8" in plans[0]["settings"]["config"]


@each_row(
    ("args", "hint"),
    [
        (["pyt_train_llama-3.1-8b", "--mode", "pretrai"], "nearest known: pretrain "),
        (["pyt_train_llama-3.1-8b", "--mode", "pretrai"], "hint: did you mean --mode pretrain?   nearest known: "),
        (["pyt_train_llama-3.1-8b", "--image-release", "v25.10"], "in upstream, v25.11, v26.1; "),
        (["pyt_train_llama-3.1-8b", "--mode", "inference"], "modes: pretrain, HF_pretrain, finetune_"),
        (["pyt_train_llama-3.1-8b", "--precision", "F8"], "did you mean --precision FP8?"),
        ([TAG, "--precision", "BF61"], "did you mean --precision BF16?"),
        ([TAG, "--image-release", "v99"], "releases: v25."),
        (["pyt_train_llama-3.1-8b", "--image-release", "v99"], "releases: v25.2, v25.3, v25.4"),
        (["demo_torchtitan_llama_debug", "--mode", "pretrian"], "did you mean --mode pretrain?"),
        (
            ["demo_torchtitan_llama_debug", "--image-release", "v99"],
            "v26.1, upstream (no image: the packages that are installed)",
        ),
        (["demo_torchtitan_llama_debug", "--backend", "torchtitn"], "did you mean torchtitan?"),
    ],
)
def test_a_slip_of_the_hand_is_told_what_was_meant_or_what_there_is(capsys, args, hint):
    code, _, told = explained(capsys, *args, "--machine", "8xMI300X")
    assert code == 4 and hint in told


def test_words_without_an_option_are_tags(capsys):
    assert call(["run", "demo", "--dry-run"]) == 0
    by_words = capsys.readouterr().out
    assert call(["run", "--tags", "demo", "--dry-run"]) == 0
    names = [line for line in capsys.readouterr().out.splitlines() if " · backend " in line]
    assert len(names) == 2 and [line for line in by_words.splitlines() if " · backend " in line] == names


def test_the_tag_comes_after_options_and_set_after_the_tag(capsys):
    _, plans, _ = explained(capsys, f"{TAG}:steps=100:precision=FP8", "--steps", "20", "--machine", "8xMI300X")
    assert [(one["variant"]["steps"], one["variant"]["precision"]) for one in plans] == [(100, "FP8")]
    args = [f"{TAG}:steps=100", "--set", "steps=30", "--precision", "BF16", "--machine", "8xMI300X"]
    _, plans, _ = explained(capsys, *args)
    assert [one["variant"]["steps"] for one in plans] == [30]


def test_another_gpus_recipe_in_any_spelling(capsys):
    args = ["--precision", "FP8", "--set", "recipe-device=mi355x", "--image-release", "v25.10"]
    _, (plan,), _ = explained(capsys, TAG, "--machine", "8xMI300X", *args)
    assert plan["settings"]["recipe_device"] == "MI355X" and plan["variant"]["micro_batch"] == 8
    assert "MI300X runs with the recipe of MI355X: as recipe_device asks" in plan["notes"]


@each_row("args", [["--mode", "banana"], ["-c", '{"settings": {"mode": "sft"}}']])
@each_row("tag", [TAG, "demo_torchtitan_llama_debug"])
def test_a_mode_that_is_none_is_refused(capsys, tag, args):
    code, _, err = explained(capsys, tag, "--machine", "8xMI300X", *args)
    assert code == 4 and ("no recipe is known" in err or "runs mode pretrain, not" in err)


@each_row(("option", "key"), [("--mode", "mode"), ("--precision", "precision"), ("--image-release", "release")])
def test_no_value_and_several_are_refused_where_one_is_wanted(capsys, option, key):
    for tag, words, said in (
        (TAG, [option, ""], f"{option} is empty"),
        (TAG, ["--set", f"{key}="], f"--set {key}= is empty"),
        (f"{TAG}:{key}=", [], f"tag {key}= is empty"),
        ("pyt_train_llama-3.1-8b", [option, "a,b"], f"{option} 'a,b': one value, no list"),
    ):
        code, _, err = explained(capsys, tag, "--machine", "8xMI300X", *words)
        assert code == 4 and said in err


def test_every_card_that_has_no_recipe_is_named_at_once(capsys):
    tags = ["jax_maxtext_train_llama-2-7b", "pyt_train_dlrm", TAG]
    code, plans, _ = explained(capsys, *tags, "--machine", "8xH100", "--check")
    reasons = [one["blocked"]["reason"] for one in plans]
    assert code == 3 and len(reasons) == 3
    assert all(tag in reason for tag, reason in zip(tags, reasons, strict=True))


def test_what_would_be_refused_is_told_with_its_run_and_without_lint_as_a_warning(capsys):
    args = [TAG, "--machine", "8xMI300X", "--set", "global_batch=17", "--image-release", "v25.10"]
    code, _, err = explained(capsys, *args)
    assert code == 0 and f"warning: {TAG} pretrain FP8: would be refused: global batch 17 is no multiple" in err
    code, _, err = explained(capsys, *args, "--no-lint")
    assert code == 0 and f"warning: {TAG} pretrain FP8: global batch 17 is no multiple" in err
    assert "would be refused" not in err


def test_the_hint_of_a_gated_repository_works_when_it_is_typed(capsys):
    args = [TAG, "--machine", "8xMI300X", "--precision", "BF16"]
    _, _, err = explained(capsys, *args)
    assert "would be refused: meta-llama/Llama-3.1-8B is a gated repository" in err
    assert "--set env.HF_HUB_OFFLINE=1" in err
    _, _, err = explained(capsys, *args, "--set", "env.HF_HUB_OFFLINE=1")
    assert "gated" not in err
    _, _, err = explained(capsys, *args, "--set", "env.HF_HUB_OFFLINE=0")
    assert "gated" in err


@each_row("value", ["4_0", "４", "9" * 30, "1e3", "-"])
def test_what_is_no_whole_number_is_refused(capsys, value):
    code, _, err = explained(capsys, TAG, "--machine", "8xMI300X", "--set", f"micro_batch={value}")
    assert code == 4 and "micro_batch takes a whole number" in err


@each_row(("tag", "machine", "warned"), [(TAG, "4xMI300X", True), (TAG, "8xMI300X", False)])
def test_fewer_gpus_than_the_sizes_were_published_for_are_told(capsys, tag, machine, warned):
    _, _, err = explained(capsys, tag, "--machine", machine, "--precision", "BF16")
    assert ("these sizes are of 8 GPUs: each of 4 holds more" in err) == warned


def test_a_recipe_that_was_measured_on_two_gpus_runs_on_two(capsys):
    asked = ("--mode", "pretrain", "--machine", "2xH200", "--runtime", "host")
    _, plans, err = explained(capsys, "pyt_train_llama-3.1-8b", *asked)
    assert [(one["variant"]["precision"], one["variant"]["micro_batch"]) for one in plans] == [("BF16", 2), ("FP8", 2)]
    assert "these sizes are of" not in err


def test_a_named_recipe_takes_a_release_and_a_mode_in_any_spelling(capsys):
    args = ["--image-release", "V25.11", "--mode", "PRETRAIN", "--machine", "8xMI300X"]
    _, (plan,), _ = explained(capsys, "demo_torchtitan_llama_debug", *args)
    assert (plan["variant"]["release"], plan["variant"]["mode"]) == ("v25.11", "pretrain")


def test_blanks_around_a_choice_do_not_count(capsys):
    _, plans, _ = explained(capsys, TAG, "--machine", "8xMI300X", "--set", "precision= fp8 ")
    assert [one["variant"]["precision"] for one in plans] == ["FP8"]


@each_row(("value", "said"), [("8k", "'8k' is not a valid whole number"), ("0", "x>=1")])
def test_a_size_that_is_none_is_refused(capsys, value, said):
    code, _, err = explained(capsys, TAG, "--batch-size", value)
    assert code == 4 and said in err


def test_a_machine_without_a_gpu_is_told_how_to_plan_for_one_that_has_them(capsys):
    code, (plan,), _ = explained(capsys, "pyt_train_llama-3.1-8b")
    assert code == 0 and "no GPU is seen here (--machine 8xMI300X" in plan["blocked"]["reason"]
