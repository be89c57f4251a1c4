"""Runs of the diffusion benchmark: batches by release and GPU as published, sweeps, assets, refusals, rendering."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from madlite.cli.main import call
from madlite.errors import UsageProblem
from madlite.measure.verdict import result_columns
from madlite_plugins.flux import madlite_failure_rules
from madlite_plugins.flux.backend import Flux
from tests.plugins.flux_tree import drafts_of, plan_of
from tests.plugins.logs import machine_of
from tests.plugins.rendered import files
from tests.plugins.test_torchtitan_tags import card_of
from tests.rows import each_row

FLUX, SDXL, MOCHI = "pyt_train_flux", "pyt_train_stable-diffusion-xl", "pyt_train_mochi-1"
HUNYUAN, WAN = "pyt_train_hunyuan-video", "pyt_train_wan2_1-i2v"
TAGS = (FLUX, SDXL, MOCHI, HUNYUAN, WAN)
# MAD's table: MI355X and MI350X, MI300X and MI325X, and the steps that its launcher takes of them
PUBLISHED = {FLUX: (16, 10, 100), SDXL: (30, 20, 200), MOCHI: (4, 1, 100), HUNYUAN: (3, 1, 100), WAN: (1, 1, 30)}


@each_row("tag", TAGS)
@each_row("device", ["MI300X", "MI325X", "MI350X", "MI355X"])
@each_row("release", ["v25.8", "v25.11", "v26.1", ""])
def test_batches_are_mad_s(tag, device, release):
    (draft,) = drafts_of(tag, device, **({"release": release} if release else {}))
    newer, older, steps = PUBLISHED[tag]
    assert draft.variant.micro_batch == (newer if device in ("MI350X", "MI355X") else older)
    assert (draft.variant.mode, draft.variant.precision, draft.variant.steps) == ("posttrain", "BF16", steps)
    assert draft.variant.seq_len == 256 and draft.settings["tree"] == "AMDiffusionBenchmark"
    image = {"v25.8": "rocm/pytorch-training:v25.8", "v25.11": "rocm/primus:v25.11"}
    assert draft.image == image.get(release, "rocm/primus:v26.1")


@each_row("release", ["v25.2", "v25.3", "v25.4", "v25.5", "v25.6", "v25.7"])
def test_up_to_v25_7_flux_is_fluxbenchmark_and_called_pretraining(release):
    last = release == "v25.7"
    for device in ("MI300X", "MI325X"):
        drafts = drafts_of(FLUX, device, release=release)
        assert [draft.variant.micro_batch for draft in drafts] == ([1] if last else [1, 10])
        for draft in drafts:
            assert draft.variant.mode == "pretrain" and draft.image == f"rocm/pytorch-training:{release}"
            assert draft.settings["tree"] == "FluxBenchmark" and draft.settings["dataset"] == "bghira/pseudo-camera-10k"
            assert draft.settings["start"] == ("accelerate" if last else "launcher")
            assert draft.settings["sharding_strategy"] == ("FULL_SHARD" if last else ""), "else the benchmark's own"
            assert draft.variant.steps == 100


@each_row(
    ("tag", "asked"),
    [
        (FLUX, {"precision": "FP8"}),
        (SDXL, {"mode": "pretrain"}),
        (SDXL, {"release": "v25.7"}),
        (FLUX, {"mode": "posttrain", "release": "v25.6"}),
        (FLUX, {"mode": "finetune_lora"}),
    ],
)
def test_what_nobody_published_is_refused(tag, asked):
    with pytest.raises(UsageProblem, match="no recipe is known") as raised:
        drafts_of(tag, **asked)
    assert raised.value.hint.startswith("nearest known: ")
    with pytest.raises(UsageProblem):
        drafts_of(tag, "H100")


@each_row("device", ["MI350X", "MI355X"])
def test_mad_s_changes_of_2026_are_a_recipe(device):
    (draft,) = drafts_of(SDXL, device, recipe="stable-diffusion-xl-2026")
    settings = draft.settings
    assert draft.variant.micro_batch == 12 and settings["flash_attention"] == "false"
    assert (settings["sharding_strategy"], settings["backward_prefetch"]) == ("SHARD_GRAD_OP", "NO_PREFETCH")
    assert settings["expandable_segments"] is True and settings["environment"] == "2026"
    (older,) = drafts_of(SDXL, "MI300X", recipe="stable-diffusion-xl-2026")
    assert older.variant.micro_batch == 20 and older.settings["sharding_strategy"] == ""


def test_a_sweep_is_a_run_for_each_combination():
    drafts = drafts_of(FLUX, batch_sizes="1, 10,17", dynamo_backends="no,inductor")
    points = [(draft.variant.micro_batch, draft.settings["compile"]) for draft in drafts]
    assert points == [(1, "no"), (1, "inductor"), (10, "no"), (10, "inductor"), (17, "no"), (17, "inductor")]
    columns = [result_columns(plan_of(draft), draft.variant) for draft in drafts]
    assert len({(one["batch_size"], one["compile"]) for one in columns}) == 6
    assert "run 6 of a sweep of 6: micro batch 17, compile inductor" in drafts[-1].notes
    # the readme's sweep is a recipe
    drafts = drafts_of(FLUX, recipe="flux-sweep")
    assert len(drafts) == 6 and {draft.variant.steps for draft in drafts} == {20}
    # one batch that is asked for takes the place of a recipe's sweep
    (draft,) = drafts_of(FLUX, release="v25.6", micro_batch="10")
    assert draft.variant.micro_batch == 10 and draft.result_rule.columns == ()
    assert [one.variant.micro_batch for one in drafts_of(FLUX, release="v25.6", batch_sizes="4,8")] == [4, 8]
    # a run alone has mad's columns and no other
    (draft,) = drafts_of(FLUX)
    assert list(result_columns(plan_of(draft), draft.variant)) == [
        "mode", "precision", "batch_size", "seq_len", "device", "num_gpus",
    ]  # fmt: skip


# of MAD's script (a1899e90), of FluxBenchmark's time, and of 2026
EVERY_YEAR = {
    "DISABLE_ADDMM_CUDA_LT": "0", "HIP_FORCE_DEV_KERNARG": "1", "ROCBLAS_USE_HIPBLASLT": "1",
    "TOKENIZERS_PARALLELISM": "false", "WANDB_DISABLED": "true",
}  # fmt: skip
OF_2025 = {**EVERY_YEAR, "GPU_MAX_HW_QUEUES": "8", "TORCH_NCCL_HIGH_PRIORITY": "0"}
OF_2026 = {
    **EVERY_YEAR, "GPU_MAX_HW_QUEUES": "2", "TORCH_NCCL_HIGH_PRIORITY": "1", "CUDA_DEVICE_MAX_CONNECTIONS": "1",
    "HSA_ENABLE_SDMA": "1", "HSA_NO_SCRATCH_RECLAIM": "1",
}  # fmt: skip
ALLOCATOR = {"PYTORCH_HIP_ALLOC_CONF": "expandable_segments:True"}


@each_row(
    ("asked", "env"),
    [
        ({}, {**OF_2025, "HSA_NO_SCRATCH_RECLAIM": "1"}),
        ({"release": "v25.6"}, OF_2025),
        ({"environment": "2026"}, OF_2026),
        ({"environment": "2026", "expandable_segments": "true"}, {**OF_2026, **ALLOCATOR}),
    ],
)
def test_the_variables_are_in_the_plan(asked, env):
    assert all(draft.env == env for draft in drafts_of(FLUX, **asked))


def test_explain_shows_variables_with_who_set_them_and_a_sweep_s_plans(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command = ["explain", FLUX, "--machine", "8xMI300X", "--set", "env.GPU_MAX_HW_QUEUES=4", "--json"]
    assert call(command) == 0
    (plan,) = json.loads(capsys.readouterr().out)
    assert plan["env"]["GPU_MAX_HW_QUEUES"] == "4" and plan["origins"]["env.GPU_MAX_HW_QUEUES"] == "--set"
    assert plan["env"]["ROCBLAS_USE_HIPBLASLT"] == "1"
    assert plan["origins"]["env.ROCBLAS_USE_HIPBLASLT"] == "recipe"
    # explain plans a sweep through the command line
    monkeypatch.chdir(tmp_path)
    code = call(["explain", FLUX, "--machine", "8xMI300X", "--set", "batch_sizes=1,10", "--json"])
    told = capsys.readouterr().out
    assert code == 0 and [plan["variant"]["micro_batch"] for plan in json.loads(told)] == [1, 10]


@each_row(
    ("release", "figures"),
    [("v25.6", ["FPS_per_GPU"]), ("v25.7", ["FPS_per_GPU"]), ("v25.8", ["FPS_per_GPU", "TFLOPS_per_GPU"])],
)
def test_the_figures_are_those_of_mad_s_rows_of_the_release(release, figures):
    draft = drafts_of(FLUX, release=release)[-1]
    assert [one.metric for one in draft.result_rule.mad] == figures


def test_mad_s_changes_of_2026_name_no_image_and_have_their_variables_in_each_plan():
    (draft,) = drafts_of(SDXL, recipe="stable-diffusion-xl-2026")
    assert not draft.image and any("--image-release v26.1" in note for note in draft.notes)
    (named,) = drafts_of(SDXL, recipe="stable-diffusion-xl-2026", release="v26.1")
    assert named.image == "rocm/primus:v26.1" and not any("no image" in note for note in named.notes)
    (draft,) = drafts_of(SDXL, "MI355X", recipe="stable-diffusion-xl-2026")
    assert draft.env == {**OF_2026, **ALLOCATOR}
    (off,) = drafts_of(SDXL, "MI355X", recipe="stable-diffusion-xl-2026", expandable_segments="off")
    assert off.env == OF_2026


PAGES = Path(__file__).parents[2] / "docs/backends"
COMMANDS = [
    line.partition("#")[0].strip()
    for page in ("flux.md", "dlrm.md")
    for line in (PAGES / page).read_text(encoding="utf-8").splitlines()
    if line.startswith("madlite run ")
]


@pytest.mark.host
@each_row("command", COMMANDS)
def test_every_command_of_the_documents_is_planned_in_an_image(command, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tag = shlex.split(command)[shlex.split(command).index("--tags") + 1]
    options = command.removeprefix("madlite run ").replace(f"--tags {tag}", "").split()
    assert call(["explain", tag, *options, "--machine", "8xMI300X", "--json"]) == 0
    plans = json.loads(capsys.readouterr().out)
    assert plans and all(plan["image"]["ref"].startswith("rocm/") for plan in plans)


@each_row(
    ("asked", "word"),
    [
        ({"batch_sizes": "1,x"}, "'x' is no micro_batch"),
        ({"batch_sizes": "0"}, "'0' is no micro_batch"),
        ({"dynamo_backends": "no,a b"}, "'a b' is no compile"),
        ({"batch_sizes": "1,2", "micro_batch": "4"}, "micro_batch 4 was requested as well"),
        ({"dynamo_backends": "no", "compile": "inductor"}, "compile inductor was requested as well"),
    ],
)
def test_a_sweep_that_cannot_be_is_refused(asked, word):
    with pytest.raises(UsageProblem, match=word):
        drafts_of(FLUX, **asked)


def test_a_model_needs_its_own_repositories_alone():
    needed = {tag: [asset.ref for asset in Flux().assets(plan_of(*drafts_of(tag)))] for tag in TAGS}
    siheyuan, disney = "frank-chieng/chinese_architecture_siheyuan", "Wild-Heart/Disney-VideoGeneration-Dataset"
    assert needed == {
        FLUX: ["black-forest-labs/FLUX.1-dev", siheyuan],
        SDXL: ["stabilityai/stable-diffusion-xl-base-1.0", siheyuan],
        MOCHI: ["genmo/mochi-1-preview", disney],
        HUNYUAN: ["hunyuanvideo-community/HunyuanVideo", disney],
        WAN: ["Wan-AI/Wan2.1-I2V-14B-480P-Diffusers", disney],
    }
    # flux's weights are gated and the script asks for the same files
    plan = plan_of(*drafts_of(FLUX))
    model, data = Flux().assets(plan)
    assert model.gated and not data.gated and model.kind == "model" and data.kind == "dataset"
    script = files(plan)["run.sh"]
    assert f'weights=$("$python" fetch.py "$weights" {shlex.join(model.files)})' in script
    own = plan_of(*drafts_of(FLUX), model_path="/models/flux", dataset="/data/pictures")
    assert list(Flux().assets(own)) == []


@each_row("device", ["MI300X", "MI355X"])
@each_row("tag", TAGS)
def test_published_runs_have_nothing_against_them(tag, device):
    assert list(Flux().check(plan_of(*drafts_of(tag, device), machine_of(device)))) == []


@each_row(
    ("changes", "word"),
    [
        ({"precision": "FP8"}, "precision 'FP8' is unknown"),
        ({"seq_len": 8192}, "seq_len 8192 is nothing to a diffusion model"),
        ({"steps": 5}, "5 steps are over before 5 of warm-up are"),
        ({"micro_batch": 0}, "micro_batch is 0"),
        ({"global_batch": 81}, "global batch 81 is not micro batch × GPUs = 80"),
        ({"num_frames": -1}, "num_frames is -1"),
        ({"lora_rank": 0}, "lora_rank is 0"),
    ],
)
def test_what_the_benchmark_would_refuse_or_not_do_is_found_before(changes, word):
    plan = plan_of(*drafts_of(FLUX), **changes)
    fatal = [finding.message for finding in Flux().check(plan) if finding.fatal]
    assert len(fatal) == 1 and word in fatal[0]


@each_row(
    ("asked", "word"),
    [
        ({"resolution": "512x512"}, "resolution cannot be '512x512'"),
        ({"gradient_checkpointing": "1.5"}, "gradient_checkpointing cannot be '1.5'"),
        ({"start": "torchrun"}, "start cannot be 'torchrun'"),
        ({"tree": "Flux"}, "tree cannot be 'Flux'"),
        ({"sharding_strategy": "shard"}, "sharding_strategy cannot be 'shard'"),
        ({"flash_attention": "yes"}, "flash_attention cannot be 'yes'"),
        ({"compile": "a b"}, "compile cannot be 'a b'"),
        ({"train_args": "-x"}, "train_args cannot be '-x'"),
        ({"model_path": "weights"}, "model_path 'weights' is no repository"),
        ({"dataset": "../data"}, "dataset '../data' is no repository"),
        ({"extra": "seed"}, "'seed' is not of that form"),
        ({"extra": "--seed=1"}, "'--seed=1' is not of that form"),
        ({"extra": "train_batch_size=4"}, "extra sets train_batch_size"),
        ({"extra": "logging_dir=/x"}, "extra sets logging_dir"),
        ({"extra": "learning_rate=[1e-5,1e-6]"}, "which the launcher would make a sweep of"),
        ({"extra": "output_dir=${oc.env:HOME}"}, "would look for a key of its configuration"),
        ({"extra": "'"}, "extra is no shell words"),
        ({"environment": "2024"}, "environment cannot be '2024'"),
        ({"config_name": "../x"}, "config_name cannot be '../x'"),
        ({"dataset_revision": "-x"}, "dataset_revision cannot be '-x'"),
    ],
)
def test_a_word_that_is_none_is_refused_before_a_file_has_it(asked, word):
    with pytest.raises(UsageProblem) as raised:
        drafts_of(FLUX, **asked)
    assert word in raised.value.message and raised.value.hint


@each_row(
    ("asked", "hint"),
    [
        ({"flash_attention": "maybe"}, "--set flash_attention= takes true or false"),
        ({"extra": "a"}, "--set extra='learning_rate=1e-6 lr_scheduler=cosine'"),
        ({"extra": "note=${x}"}, "write the value itself, without ${…}"),
        ({"batch_sizes": "1,x"}, "--set batch_sizes=1,10,17"),
        ({"dynamo_backends": "no,1"}, "--set dynamo_backends=no,inductor"),
    ],
)
def test_a_refusal_s_hint_is_of_the_value_that_is_refused(asked, hint):
    with pytest.raises(UsageProblem) as raised:
        drafts_of(FLUX, **asked)
    assert raised.value.hint == hint


def test_several_nodes_and_a_machine_without_gpus_are_refused():
    (draft,) = drafts_of(FLUX)
    assert [one.message for one in Flux().check(plan_of(draft, nodes=2)) if one.fatal]
    assert [one.hint for one in Flux().check(plan_of(draft, machine_of("MI300X", 4)))] == [
        "a smaller --batch-size, or more GPUs"
    ]
    # a dollar that is no key of hydra's is a value as any
    assert drafts_of(FLUX, extra="note='a b$(c) $5'")
    # the cards are its own without being named
    assert all(Flux().claim(card_of(tag), tag_root) == 30 for tag in TAGS for tag_root in [card_of(tag).root])


@pytest.mark.skipif(not shutil.which("shellcheck"), reason="shellcheck is not here")
@each_row("changes", [{}, {"start": "accelerate"}, {"start": "accelerate", "config_name": "x"}])
def test_the_script_is_clean(changes, tmp_path):
    (draft,) = drafts_of(SDXL, "MI355X", recipe="stable-diffusion-xl-2026")
    plan = plan_of(draft, machine_of("MI355X"), compile="inductor", extra="a=b", warmup_steps=6, **changes)
    (tmp_path / "run.sh").write_text(files(plan)["run.sh"])
    done = subprocess.run(["shellcheck", "-S", "style", tmp_path / "run.sh"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_configurations_are_files_that_yaml_reads():
    yaml = pytest.importorskip("yaml")
    odd = "x: [\"'\\ ä"
    texts = files(plan_of(*drafts_of(FLUX), extra="validation_prompts='a: \"b\" #'", compile=odd))
    launcher = yaml.safe_load(texts["launcher.yaml"])
    accelerate = launcher["accelerate_config"]
    assert accelerate["dynamo_config.dynamo_backend"] == [odd] and accelerate["num_processes"] == [8]
    assert launcher["cli_args"]["validation_prompts"] == ['a: "b" #']
    assert all(isinstance(value, list) and len(value) == 1 for value in launcher["cli_args"].values())


def test_the_launcher_s_file_and_the_script_s_overrides_are_one_list():
    yaml = pytest.importorskip("yaml")
    changes = {
        "resolution": "960,544", "num_frames": 9, "max_train_samples": 64, "use_cache": False, "use_lora": True,
        "gradient_checkpointing": "0.5", "lora_rank": 4, "flash_attention": "false", "extra": "learning_rate=1e-6",
    }  # fmt: skip
    texts = files(plan_of(*drafts_of(FLUX), **changes))
    in_file = {name: str(one) for name, (one,) in yaml.safe_load(texts["launcher.yaml"])["cli_args"].items()}
    overrides = re.findall(r"train_args\.(\w+)'?\"?=(?:\"\$\(quoted )?(\S+?)\)?\"?\)$", texts["run.sh"], re.M)
    arguments = {name: shlex.split(value)[0] for name, value in overrides if not value.startswith('\\"$')}
    assert in_file == arguments and len(in_file) == 12
    assert in_file["num_frames"] == "9" and in_file["learning_rate"] == "1e-6"


@each_row(
    ("line", "hint"),
    [
        ("ModuleNotFoundError: No module named 'distutils'", "Python 3.10 or 3.11"),
        ("ModuleNotFoundError: No module named 'deepspeed'", "install_requirements=true"),
        ("RuntimeError: Neither NVIDIA nor AMD GPU tools are available.", "rocm-smi or nvidia-smi"),
        ("Could not override 'train_args.seed'.", "--set extra="),
        ("madlite: /a/train.py has no --train_data_path, so dataset cannot be set here", "--image-release"),
        ("madlite: neither /workspace/FluxBenchmark nor /workspace/AMDiffusionBenchmark has a launcher.py", "ROOT="),
    ],
)
def test_a_failure_is_explained(line, hint):
    matching = [rule for rule in madlite_failure_rules() if re.search(rule.pattern, line)]
    assert len(matching) == 1 and hint in f"{matching[0].hint}; {matching[0].here}"
