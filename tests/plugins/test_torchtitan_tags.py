"""MAD's tags of torchtitan: batches by release, GPU and precision as published, images, notes and refusals."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import msgspec
import pytest

from madlite.errors import UsageProblem
from madlite.model import Card, Request, RunPlan, RunSpec
from madlite_plugins.torchtitan.backend import Torchtitan
from tests.plugins.logs import gpu_machine, machine_of, planned
from tests.plugins.rendered import run_sh
from tests.rows import each_row

EIGHT, SEVENTY = "pyt_train_llama-3.1-8b", "pyt_train_llama-3.1-70b"
OLD_IMAGE, NEW_IMAGE = "rocm/pytorch-training", "rocm/primus"
# card, GPU, release (the newest where empty) → image, and for each precision the local batch, in MAD's order
PUBLISHED = [
    (EIGHT, "MI300X", "v25.6", f"{OLD_IMAGE}:v25.6", {"BF16": 18}),
    (EIGHT, "MI300X", "v25.7", f"{OLD_IMAGE}:v25.7", {"BF16": 3, "FP8": 4}),
    (EIGHT, "MI355X", "v25.8", f"{OLD_IMAGE}:v25.8", {"BF16": 3, "FP8": 4}),
    (EIGHT, "MI300X", "v25.11", f"{NEW_IMAGE}:v25.11", {"BF16": 3, "FP8": 4}),
    (EIGHT, "MI325X", "", f"{NEW_IMAGE}:v26.1", {"BF16": 3, "FP8": 4}),
    (EIGHT, "MI350X", "", f"{NEW_IMAGE}:v26.1", {"BF16": 6, "FP8": 8}),
    (EIGHT, "MI355X", "v25.11", f"{NEW_IMAGE}:v25.11", {"BF16": 6, "FP8": 8}),
    (EIGHT, "MI355X", "upstream", "", {"BF16": 6, "FP8": 8}),
    (EIGHT, "H100", "", "", {"BF16": 2, "FP8": 2}),
    (EIGHT, "H200", "", "", {"BF16": 2, "FP8": 2}),
    (SEVENTY, "MI300X", "v25.2", f"{OLD_IMAGE}:v25.2", {"BF16": 4}),
    (SEVENTY, "MI325X", "v25.2", f"{OLD_IMAGE}:v25.2", {"BF16": 7}),
    (SEVENTY, "MI325X", "v25.3", f"{OLD_IMAGE}:v25.3", {"BF16": 7}),
    (SEVENTY, "MI325X", "v25.6", f"{OLD_IMAGE}:v25.6", {"BF16": 4}),
    (SEVENTY, "MI300X", "v25.8", f"{OLD_IMAGE}:v25.8", {"BF16": 4, "FP8": 3}),
    (SEVENTY, "MI300X", "", f"{NEW_IMAGE}:v26.1", {"BF16": 3, "FP8": 4}),
    (SEVENTY, "MI350X", "v25.11", f"{NEW_IMAGE}:v25.11", {"BF16": 8, "FP8": 6}),
    (SEVENTY, "H100", "", "", {"BF16": 1, "FP8": 1}),
    (SEVENTY, "H200", "", "", {"BF16": 1, "FP8": 1}),
]


def card_of(name: str) -> Card:
    return Card(name=name, root=Path(), source="a test", scripts="scripts/run.sh", args=f"--model_repo {name}")


def drafts_of(name: str, device: str, **settings: str) -> list[RunSpec]:
    card = card_of(name)
    return list(Torchtitan().expand(Request(card=card, tag=name, settings=settings), machine_of(device)))


def plan_of(name: str, device: str, **settings: str) -> RunPlan:
    draft, machine = drafts_of(name, device, **settings)[0], machine_of(device)
    more = {"backend": "torchtitan", "inside": "/myworkspace", "args": f"--model_repo {name}"}
    return planned(draft, card_of(name), machine, **more)


@each_row(("card", "device", "release", "image", "batches"), PUBLISHED)
def test_batches_and_images_are_the_published_ones(card, device, release, image, batches):
    drafts = drafts_of(card, device, **({"release": release} if release else {}))
    assert {draft.variant.precision: draft.variant.micro_batch for draft in drafts} == batches
    assert [draft.variant.precision for draft in drafts] == list(batches)
    assert {draft.image for draft in drafts} == {image}
    assert {draft.variant.seq_len for draft in drafts} == {8192}
    assert {(draft.variant.steps, draft.variant.warmup_steps) for draft in drafts} == {(50, 10)}


@each_row(("card", "device", "release", "image", "batches"), PUBLISHED)
def test_no_published_run_has_anything_fatal(card, device, release, image, batches):
    for precision in batches:
        made = plan_of(card, device, precision=precision, **({"release": release} if release else {}))
        assert [finding.message for finding in Torchtitan().check(made) if finding.fatal] == []
        script = run_sh(made)
        assert subprocess.run(["bash", "-n"], input=script.encode(), check=False).returncode == 0
        assert "--model_repo" not in script, "those are the arguments of MAD's script"


def test_variables_checkpointing_and_data_follow_the_release():
    old, new = plan_of(EIGHT, "MI300X", release="v25.6").settings, plan_of(EIGHT, "MI300X").settings
    assert (old["era"], old["activation_checkpoint"], old["mock_data"]) == ("0.0", "full", False)
    assert (new["era"], new["activation_checkpoint"], new["mock_data"]) == ("0.0", "none", False)
    here = plan_of(EIGHT, "H200").settings
    assert (here["era"], here["activation_checkpoint"], here["mock_data"]) == ("0.2", "selective", True)
    assert plan_of(SEVENTY, "MI300X").settings["activation_checkpoint"] == "full"
    assert plan_of(SEVENTY, "H100").settings["dtype"] == "bfloat16"
    # mad's runs need the gated tokenizer unless data is made up
    gated = [asset.ref for asset in Torchtitan().assets(plan_of(EIGHT, "MI300X")) if asset.gated]
    assert gated == ["meta-llama/Llama-3.1-8B"]
    assert {asset.hint for asset in Torchtitan().assets(plan_of(EIGHT, "MI300X")) if asset.gated} == {
        "--mock-data, which needs none"
    }
    made = plan_of(EIGHT, "MI300X")
    mock = msgspec.structs.replace(made, settings={**made.settings, "mock_data": True})
    assert list(Torchtitan().assets(mock)) == []
    assert list(Torchtitan().assets(plan_of(SEVENTY, "MI300X", release="v25.2"))) == []
    # mad's variables are set
    assert plan_of(EIGHT, "MI300X").env == {
        "PYTORCH_ALLOC_CONF": "expandable_segments:True",
        "TOKENIZERS_PARALLELISM": "false",
        "WANDB_MODE": "disabled",
        "WANDB_DISABLED": "true",
        "ROCBLAS_USE_HIPBLASLT": "1",
        "DISABLE_ADDMM_CUDA_LT": "0",
        "HIP_FORCE_DEV_KERNARG": "1",
        "TORCH_NCCL_HIGH_PRIORITY": "0",
        "GPU_MAX_HW_QUEUES": "8",
    }


def test_the_first_images_train_with_their_own_script():
    made = plan_of(SEVENTY, "MI325X", release="v25.2")
    assert [file.path for file in made.templates] == ["run.sh", "fetch.py"]
    script = run_sh(made)
    assert 'cd "$root"\n"$python" -m pip install --quiet' in script
    assert (
        "export NGPU=8\nexec bash run_llama_train.sh --training.batch_size 7 \\\n"
        "  --training.seq_len 8192 --training.steps 50 \\\n  --metrics.log_freq 1\n" in script
    )
    # v25 3 asks for the tokenizer that its image lacks
    (asset,) = Torchtitan().assets(plan_of(SEVENTY, "MI300X", release="v25.3"))
    assert (asset.kind, asset.ref, asset.gated) == ("tokenizer", "meta-llama/Llama-3.1-8B", True)
    assert asset.files == ("original/tokenizer.model",) and "mock" not in asset.hint
    assert "HF_TOKEN" in run_sh(plan_of(SEVENTY, "MI300X", release="v25.3"))
    assert "HF_TOKEN" not in run_sh(plan_of(SEVENTY, "MI300X", release="v25.2")), "all is in its image"


@each_row("there", [False, True])
def test_the_tokenizer_is_put_where_the_image_s_configuration_looks(there, tmp_path):
    made = plan_of(SEVENTY, "MI300X", release="v25.3")
    tree, python, hub = tmp_path / "tree", tmp_path / "python", tmp_path / "hub/original"
    file = tree / "assets/a/original/tokenizer.model"
    (tree / "train_configs").mkdir(parents=True)
    (tree / "train_configs/llama3_70b.toml").write_text('tokenizer_path = "./assets/a/original/tokenizer.model"\n')
    (tree / "train_configs/llama3_8b.toml").write_text('tokenizer_path = "/elsewhere/tokenizer.model" # "x"\n')
    (tree / "run_llama_train.sh").write_text('cat assets/a/original/tokenizer.model; echo " $*"\n')
    hub.mkdir(parents=True)
    (hub / "tokenizer.model").write_text("fetched")
    if there:
        file.parent.mkdir(parents=True)
        file.write_text("the image's")
    python.write_text(
        f'#!/bin/sh\ncase "$*" in *fetch.py*) echo "$*" >>{tmp_path}/asked; echo {tmp_path}/hub ;; esac\n'
    )
    python.chmod(0o755)
    (tmp_path / "run.sh").write_text(run_sh(made))
    env = {"PATH": os.environ["PATH"], "MADLITE_PYTHON": str(python), "TORCHTITAN_ROOT": str(tree)}
    done = subprocess.run(["bash", "run.sh"], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("the image's --training" if there else "fetched --training")
    assert (tmp_path / "asked").exists() != there
    if not there:
        assert (tmp_path / "asked").read_text().endswith("fetch.py meta-llama/Llama-3.1-8B original/tokenizer.model\n")


@each_row(("release", "exported"), [("v25.2", set()), ("v25.3", {"DISABLE_ADDMM_CUDA_LT", "GPU_MAX_HW_QUEUES"})])
def test_an_image_s_own_script_has_what_its_release_exports_and_no_more(release, exported):
    env = set(plan_of(SEVENTY, "MI300X", release=release).env)
    assert env >= exported and not env & {"PYTORCH_ALLOC_CONF", "WANDB_MODE", "TOKENIZERS_PARALLELISM"}
    assert exported or not env


@each_row(
    ("changes", "origin", "word"),
    [
        ({"compile": False}, {"settings.compile": "--set"}, "compile would not reach run_llama_train.sh"),
        ({"mock_data": True}, {"settings.mock_data": "--mock-data"}, "mock_data would not reach"),
        ({"log_freq": 10}, {"settings.log_freq": "--set"}, ""),
    ],
)
def test_what_would_not_reach_an_image_s_own_script_is_refused(changes, origin, word):
    made = plan_of(SEVENTY, "MI325X", release="v25.2")
    made = msgspec.structs.replace(made, settings={**made.settings, **changes}, origins=origin)
    assert [word in finding.message for finding in Torchtitan().check(made) if finding.fatal] == [True] * bool(word)


def test_a_precision_that_the_image_does_not_train_in_is_refused():
    made = plan_of(SEVENTY, "MI325X", release="v25.2")
    made = msgspec.structs.replace(made, variant=msgspec.structs.replace(made.variant, precision="FP8"))
    (finding,) = Torchtitan().check(made)
    assert finding.fatal and finding.message.startswith("precision would not reach")


@each_row("mode", ["finetune_fw", "finetune_lora", "HF_pretrain", "hf_pretrain"])
def test_modes_of_other_trainers_are_refused(mode):
    with pytest.raises(UsageProblem, match=f"no recipe is known for {EIGHT} in {mode} on MI300X") as caught:
        drafts_of(EIGHT, "MI300X", mode=mode)
    assert "nearest known: pretrain " in caught.value.hint


@each_row("release", ["v25.2", "V25.3", "25.3"])
def test_a_release_that_trains_the_model_by_another_program_is_refused(release):
    with pytest.raises(UsageProblem, match="no recipe is known"):
        drafts_of(EIGHT, "MI300X", release=release)


@each_row(
    ("device", "settings"),
    [
        ("MI210", {}),
        ("MI300X", {"mode": "posttrain"}),
        ("MI300X", {"precision": "MXFP4"}),
        ("MI300X", {"release": "v25.6", "precision": "FP8"}),
        ("MI300X", {"release": "v24.1"}),
        ("H100", {"release": "v25.11"}),
        ("cpu", {}),
    ],
)
def test_what_nobody_published_is_refused(device, settings):
    with pytest.raises(UsageProblem) as caught:
        drafts_of(EIGHT, device, **settings)
    assert "nearest known: " in caught.value.hint


def test_notes_say_what_a_user_of_the_tag_should_know():
    (first, *_) = drafts_of(EIGHT, "MI300X")
    assert any("--mock-data needs neither" in note for note in first.notes)
    (mock, *_) = drafts_of(EIGHT, "MI300X", mock_data="true")
    assert not any("--mock-data" in note for note in mock.notes)
    (here, *_) = drafts_of(EIGHT, "H100")
    assert any("--runtime host uses the torchtitan that is installed" in note for note in here.notes)
    (own,) = drafts_of(SEVENTY, "MI300X", release="v25.2")
    assert any("its image's own run_llama_train.sh" in note for note in own.notes)
    # a card that names the backend has no notes of mad
    card = Card(name="mine", root=Path(), source="a test", backend="torchtitan", recipe="debug")
    (draft,) = Torchtitan().expand(Request(card=card, tag="mine"), gpu_machine(1))
    assert draft.notes == ()
    # a gpu without fp8 is told
    made = plan_of(EIGHT, "H100", precision="FP8")
    made = msgspec.structs.replace(made, machine=gpu_machine(8, "A100"))
    assert [finding.message for finding in Torchtitan().check(made) if finding.fatal] == ["A100 has no FP8"]
