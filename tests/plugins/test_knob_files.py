"""What the knobs of `madlite tune` make of a run's files and variables; what would do nothing is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tomli
import yaml
from msgspec.structs import replace

from madlite.errors import UsageProblem
from madlite.model import Card, Machine, Request, RunPlan
from madlite_plugins.hf.backend import HuggingFace
from madlite_plugins.megatron_lm.backend import MegatronLM
from madlite_plugins.torchtitan.backend import Torchtitan
from madlite_plugins.torchtitan.eras import ERAS
from madlite_plugins.torchtune.backend import Torchtune
from tests.plugins.logs import gpu_machine, machine_of, plan
from tests.plugins.rendered import files
from tests.plugins.torchtune_plans import changed, fatal, plan_of
from tests.rows import each_row

NVIDIA, AMD = machine_of("H200"), machine_of("MI300X")


def drafted(backend: type, recipe: str, machine: Machine, **settings: str) -> dict[str, str]:
    """Return the variables of a recipe's run with these settings."""
    card = Card(name="a", root=Path(), backend=backend.name, recipe=recipe, source="a test")
    (spec,) = backend().expand(Request(card=card, tag="a", settings=settings), machine)
    return spec.env


@each_row("era", [era for era in ERAS if era != "0.0"])
def test_the_optimizer_s_kernel_is_torchtitan_s_own_unless_it_is_set(era):
    made = plan(Torchtitan(), gpu_machine(2), "llama3.1_8B", era=era)
    assert "implementation" not in tomli.loads(files(made)["train.toml"])["optimizer"]
    made = plan(Torchtitan(), gpu_machine(2), "llama3.1_8B", era=era, optimizer_kernel="foreach")
    assert tomli.loads(files(made)["train.toml"])["optimizer"]["implementation"] == "foreach"
    wrong = plan(Torchtitan(), gpu_machine(2), "llama3.1_8B", era=era, optimizer_kernel="quick")
    assert [one.keys for one in Torchtitan().check(wrong) if one.fatal] == [("optimizer_kernel",)]


@each_row(
    ("backend", "recipe"),
    [(Torchtitan, "llama3.1_8B"), (Torchtune, "llama3.1_8B_lora"), (HuggingFace, "llama3.1_8B_lora")],
)
def test_a_named_set_of_variables_is_the_vendor_s_and_goes_over_the_recipe_s(backend, recipe):
    before, after = drafted(backend, recipe, AMD), drafted(backend, recipe, AMD, env_set="vendor")
    assert before.items() != after.items() and before.keys() <= after.keys()
    assert (after["GPU_MAX_HW_QUEUES"], after["TORCH_NCCL_HIGH_PRIORITY"]) == ("2", "1")
    before, after = drafted(backend, recipe, NVIDIA), drafted(backend, recipe, NVIDIA, env_set="vendor")
    assert after == {**before, "TORCH_NCCL_HIGH_PRIORITY": "1"}
    with pytest.raises(UsageProblem, match="env_set 'none of them' is unknown") as raised:
        drafted(backend, recipe, AMD, env_set="none of them")
    assert "vendor" in (raised.value.hint or "")


def test_a_named_set_reaches_megatron_lm_s_scripts_beside_their_own_settings():
    card = Card(name="pyt_megatron_lm_train_llama-3.1-8b", root=Path(), backend="megatron_lm", source="a test")
    made = [
        MegatronLM().expand(Request(card=card, tag="a", settings=settings), AMD)[0]
        for settings in ({}, {"env_set": "vendor"})
    ]
    assert [spec.settings["env_set"] for spec in made] == ["", ""], "what --set gives comes over it"
    assert made[1].env == {**made[0].env, **made[1].env} and made[1].env["TORCH_NCCL_HIGH_PRIORITY"] == "1"
    assert made[0].env != made[1].env


def test_torchinductor_s_own_tuning_is_a_set_of_torchtitan():
    assert drafted(Torchtitan, "llama3.1_8B", NVIDIA, env_set="autotune")["TORCHINDUCTOR_MAX_AUTOTUNE"] == "1"


def test_torchtune_recomputes_every_so_many_layers_in_full_fine_tuning_on_several_gpus():
    made = plan_of("pyt_train_llama-3.1-8b", "H200", mode="finetune_fw")
    several = replace(made, place=replace(made.place, gpus_per_node=2))
    parts = changed(several, checkpoint_every=4)
    changes = yaml.safe_load(files(parts)["changes.yaml"])
    assert (changes["enable_activation_checkpointing"], changes["ac_mode"], changes["ac_option"]) == (
        False,
        "selective",
        4,
    )
    whole = yaml.safe_load(files(several)["changes.yaml"])
    assert whole["enable_activation_checkpointing"] is True and "ac_mode" not in whole
    assert fatal(parts) == []
    alone = replace(made, place=replace(made.place, gpus_per_node=1))
    lora = plan_of("pyt_train_llama-3.1-8b", "H200", mode="finetune_lora")
    for refused in (changed(alone, checkpoint_every=4), changed(lora, checkpoint_every=4)):
        assert any("works in full fine-tuning on several GPUs alone" in text for text in fatal(refused))
    assert any("checkpoint_every" in text for text in fatal(changed(several, checkpoint_every=0)))
    assert any("checkpoint_every" in text for text in fatal(changed(parts, activation_checkpointing=False)))


@each_row(
    ("changes", "word"),
    [
        ({"gradient_checkpointing": True, "checkpoint_every": 4}, ""),
        ({"checkpoint_every": 4}, "works with strategy ddp alone"),
        ({"gradient_checkpointing": True, "checkpoint_every": 4, "strategy": "fsdp"}, "works with strategy ddp alone"),
        ({"compile": True, "compile_mode": "max-autotune-no-cudagraphs"}, ""),
        ({"compile_mode": "max-autotune-no-cudagraphs"}, "compile_mode means nothing without compile"),
        ({"compile": True, "compile_mode": "fastest"}, "compile_mode 'fastest' is unknown"),
        ({"optim": "adamw_torch"}, ""),
    ],
)
def test_knobs_of_hf_reach_its_script_or_are_refused(changes, word):
    made: RunPlan = plan(
        HuggingFace(), gpu_machine(2), "llama3.1_8B_lora", **{"gradient_checkpointing": False, **changes}
    )
    values = json.loads(files(made)["train.json"])
    assert changes.items() <= values.items()
    said = [one.message for one in HuggingFace().check(made) if one.fatal]
    assert [word in text for text in said] == ([True] if word else [])
