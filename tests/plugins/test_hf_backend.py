"""The hf backend: its recipes, its checks, and the files of a run folder."""

from __future__ import annotations

import ast
import json
import subprocess

import pytest

from madlite.plan.render import render
from madlite.types import Machine, RunPlan
from madlite_plugins.hf.backend import HuggingFace
from tests.plugins.logs import TEMPLATES, gpu_machine, plan


def hf(machine: Machine, recipe: str = "tiny_lora", args: str = "", **changes) -> RunPlan:
    return plan(HuggingFace(), machine, recipe, args, **changes)


def files(made: RunPlan) -> dict[str, str]:
    return {file.path: file.data.decode() for file in render(made, [TEMPLATES])}


def test_the_training_script_gets_every_value_it_reads():
    given = files(hf(gpu_machine(8), global_batch=64))
    values = json.loads(given["train.json"])
    reads = {
        node.slice.value
        for node in ast.walk(ast.parse(given["train_lora.py"]))
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id == "values"
    }
    assert reads <= set(values) and {"lora_r", "steps", "global_batch"} <= reads
    assert values["global_batch"] == 64 and values["steps"] == 40 and values["gradient_checkpointing"] is False


def test_the_script_is_good_shell_and_ends_with_the_card_s_args():
    script = files(hf(gpu_machine(2), args="--weight_decay 0.1 --run_name 'a b'"))["run.sh"]
    assert subprocess.run(["bash", "-n"], input=script.encode(), check=False).returncode == 0
    assert "--nproc_per_node 2 " in script
    assert script.rstrip().endswith("train_lora.py train.json --weight_decay 0.1 --run_name 'a b'")


@pytest.mark.parametrize(("machine", "recipe"), [(Machine(), "tiny_lora"), (gpu_machine(1), "llama3.1_8B_lora")])
def test_no_recipe_is_refused_where_it_belongs(machine, recipe):
    made = hf(machine, recipe)
    assert list(HuggingFace().check(made)) == []
    assert made.env["HF_HUB_OFFLINE"] == "1"


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"precision": "FP8"}, "precision 'FP8'"),
        ({"global_batch": 3}, "global batch 3"),
        ({"kv_heads": 3}, "kv_heads"),
        ({"heads": 0}, "0 heads"),
        ({"hidden_size": 100}, "hidden_size 100"),
        ({"steps": 0}, "steps is 0"),
    ],
)
def test_what_the_trainer_would_refuse_is_refused_before_the_start(changes, word):
    fatal = [finding.message for finding in HuggingFace().check(hf(gpu_machine(2), **changes)) if finding.fatal]
    assert len(fatal) == 1 and word in fatal[0]


def test_published_rows_keep_their_names():
    (metric,) = HuggingFace().result_rule().mad
    assert (metric.metric, metric.rule, metric.key) == ("train_samples_per_s", "summary", "train_samples_per_second")
