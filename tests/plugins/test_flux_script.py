"""run.sh of the backend flux, executed for real against a stand-in for the benchmark's tree."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys

import pytest
import yaml

from madlite.backends.recipe_book import read_book
from madlite.model import Status
from madlite_plugins.flux.backend import Flux
from tests.plugins.flux_tree import COMPOSED, FILES, LATER_TRAIN, TRAIN, Tree, drafts_of, numbers, plan_of
from tests.plugins.logs import TEMPLATES, machine_of
from tests.plugins.rendered import files
from tests.rows import each_row

pytestmark = pytest.mark.host


@pytest.fixture
def tree(tmp_path):
    return Tree(tmp_path)


def post(tag="pyt_train_flux", device="MI300X", **changes):
    (draft,) = drafts_of(tag, device)
    return plan_of(draft, machine_of(device), **{"steps": 20, **changes})


def pre(release="v25.6", **changes):
    draft = drafts_of("pyt_train_flux", release=release)[-1]
    return plan_of(draft, **{"steps": 20, **changes})


def test_a_run_has_the_steady_window_s_number_and_mad_s_two_of_the_launcher(tree):
    verdict = tree.judged(post())
    assert verdict.status is Status.SUCCESS and verdict.findings == ()
    # after five slow steps 8 of 10 ÷ 2.0 s and 7 of 10 ÷ 2.01 s: (8 × 5 + 7 × 4.9751) ÷ 15 = 4.98838
    told = numbers(verdict)
    assert float(told["images_per_s_per_gpu"]) == pytest.approx(5.0)
    assert told["FPS_per_GPU"] == "4.988400" and told["TFLOPS_per_GPU"] == "276.200000"


def test_the_launcher_is_given_mad_s_overrides_and_the_run_s_own_folder(tree):
    assert tree.run(post("pyt_train_stable-diffusion-xl")).returncode == 0
    overrides = tree.told("overrides.json")
    assert overrides[:3] == [
        "train_args=stable-diffusion-xl",
        "train_args.train_batch_size=20",
        "train_args.num_iterations=20",
    ]
    runs = f'"{tree.run_folder}/outputs/runs"'
    assert {"accelerate_config.num_processes=8", "accelerate_config.mixed_precision=bf16"} <= set(overrides)
    assert {f"++train_args.logging_dir={runs}", f"hydra.run.dir={runs}"} <= set(overrides)
    assert not any("dynamo" in word or "fsdp" in word for word in overrides)


def test_every_setting_reaches_the_trainer_as_text(tree):
    plan = post(
        resolution="960,544", num_frames=9, max_train_samples=64, use_cache=False, gradient_checkpointing="0.5",
        use_lora=True, lora_rank=4, flash_attention="false", extra="learning_rate=1e-6 validation_prompts='a \"b\" c'",
        compile="inductor", sharding_strategy="SHARD_GRAD_OP", backward_prefetch="NO_PREFETCH", warmup_steps=7,
        model_path="own/weights", config_name="single_run",
    )  # fmt: skip
    assert tree.run(plan).returncode == 0
    arguments, _ = tree.told("train.json")
    given = dict(zip(arguments[::2], arguments[1::2], strict=True))
    assert given["--resolution"] == "960,544" and given["--num_frames"] == "9" and given["--max_train_samples"] == "64"
    assert given["--use_cache"] == "false" and given["--gradient_checkpointing"] == "0.5"
    assert (
        given["--use_lora"] == "true"
        and given["--lora_rank"] == "4"
        and given["--model_path"] == f"{tree.stub}/hub/own/weights"
    )
    assert given["--substitute_sdpa_with_flash_attn"] == "false"
    assert given["--learning_rate"] == "1e-6" and given["--validation_prompts"] == 'a "b" c'
    overrides = tree.told("overrides.json")
    assert overrides[0] == "--config-name=single_run" and "++launcher.warmup_steps=7" in overrides
    assert '++accelerate_config.dynamo_config.dynamo_backend="inductor"' in overrides
    assert '++accelerate_config.fsdp_config.fsdp_sharding_strategy="SHARD_GRAD_OP"' in overrides
    assert '++accelerate_config.fsdp_config.fsdp_backward_prefetch="NO_PREFETCH"' in overrides


def test_only_what_the_model_needs_is_fetched_and_the_data_is_read_from_where_it_lies(tree):
    assert tree.run(post("pyt_train_wan2_1-i2v")).returncode == 0
    model, data = tree.fetched()
    assert model[:3] == ["Wan-AI/Wan2.1-I2V-14B-480P-Diffusers", "model", None] and "*/*.safetensors" in model[3]
    assert data == ["Wild-Heart/Disney-VideoGeneration-Dataset", "dataset", "refs/pr/4", None]
    overrides = tree.told("overrides.json")
    folders = tree.stub / "hub/Wild-Heart/Disney-VideoGeneration-Dataset", tree.stub / f"hub/{model[0]}"
    assert f'++train_args.train_data_path="{folders[0]}"' in overrides
    assert f'++train_args.model_path="{folders[1]}"' in overrides


@each_row("recipe", sorted(read_book(Flux.book).recipes))
def test_what_a_run_fetches_is_what_its_assets_say(tree, recipe):
    draft = drafts_of("pyt_train_flux", recipe=recipe)[0]
    plan = plan_of(draft)
    assert tree.run(plan, MADLITE_PREPARE_ONLY="1").returncode == 0
    assert tree.fetched() == [
        [asset.ref, asset.kind, asset.revision or None, list(asset.files) or None] for asset in Flux().assets(plan)
    ]


def test_preparing_fetches_and_does_not_train(tree):
    done = tree.run(post(), MADLITE_PREPARE_ONLY="1", FLUX_BENCHMARK_ROOT="/nowhere")
    assert done.returncode == 0 and len(tree.fetched()) == 2
    assert not (tree.stub / "overrides.json").exists()


def test_folders_of_one_s_own_are_not_asked_of_the_hub(tree, tmp_path):
    (tmp_path / "weights").mkdir()
    (tmp_path / "a b").mkdir()
    plan = post(model_path=str(tmp_path / "weights"), dataset=str(tmp_path / "a b"))
    assert tree.run(plan).returncode == 0
    assert not (tree.stub / "fetched").exists()
    assert f'++train_args.train_data_path="{tmp_path}/a b"' in tree.told("overrides.json")


def test_the_variables_are_mad_s_and_give_way_to_the_user_s(tree):
    assert tree.run(post(), GPU_MAX_HW_QUEUES="4", MAD_SECRETS_HFTOKEN="hf_secret").returncode == 0
    _, env = tree.told("train.json")
    assert env["GPU_MAX_HW_QUEUES"] == "4" and env["HSA_NO_SCRATCH_RECLAIM"] == "1" and env["HF_TOKEN"] == "hf_secret"
    assert env["ROCBLAS_USE_HIPBLASLT"] == "1" and env["TORCH_NCCL_HIGH_PRIORITY"] == "0"
    assert all("hf_secret" not in file.read_text() for file in tree.run_folder.rglob("*") if file.is_file())
    # the token is read as every backend's scripts read it
    assert tree.run(post(), HF_TOKEN="", MAD_SECRETS_HF_TOKEN="hf_other").returncode == 0
    assert tree.told("train.json")[1]["HF_TOKEN"] == "hf_other"
    assert "for name in HUGGING_FACE_HUB_TOKEN MAD_SECRETS_HFTOKEN MAD_SECRETS_HF_TOKEN" in files(post())["run.sh"]


def test_2026_has_other_variables(tree):
    (draft,) = drafts_of("pyt_train_stable-diffusion-xl", "MI355X", recipe="stable-diffusion-xl-2026")
    assert tree.run(plan_of(draft, machine_of("MI355X"), steps=20)).returncode == 0
    arguments, env = tree.told("train.json")
    assert env["GPU_MAX_HW_QUEUES"] == "2" and env["CUDA_DEVICE_MAX_CONNECTIONS"] == env["HSA_ENABLE_SDMA"] == "1"
    assert env["PYTORCH_HIP_ALLOC_CONF"] == "expandable_segments:True"
    given = dict(zip(arguments[::2], arguments[1::2], strict=True))
    assert given["--train_batch_size"] == "12" and given["--substitute_sdpa_with_flash_attn"] == "false"


@each_row("start", ["launcher", "accelerate"])
def test_a_training_that_failed_is_a_failure_whatever_the_launcher_ends_with(tree, start):
    told = "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 GiB"
    (draft,) = drafts_of("pyt_train_flux", start=start)
    verdict = tree.judged(plan_of(draft, steps=20, start=start), STUB_FAIL=told)
    assert verdict.status is Status.FAILURE and verdict.metrics == ()
    if start == "launcher":
        assert verdict.reason == "step 7 was the last of 20 asked for"


@each_row("status", ["oom", "oom-skipped", "error", "not_run", "notrun"])
def test_a_status_of_the_launcher_other_than_success_fails_a_run_that_has_all_its_steps(tree, status):
    verdict = tree.judged(post(), STUB_STATUS=status)
    assert verdict.status is Status.FAILURE and verdict.metrics == ()
    assert verdict.evidence == f"runs_summary.csv: run 1 has the status '{status}'"


def test_without_flops_there_is_no_tflops_row(tree):
    verdict = tree.judged(post(compile="inductor"), STUB_COMPILED="1")
    assert verdict.status is Status.SUCCESS and "TFLOPS_per_GPU" not in numbers(verdict)


def test_an_earlier_launcher_takes_files_and_its_trainer_s_log_is_shown(tmp_path):
    tree = Tree(tmp_path, FILES)
    verdict = tree.judged(pre())
    assert verdict.status is Status.SUCCESS and numbers(verdict)["FPS_per_GPU"] == "4.988400"
    launcher, accelerate, resumes = tree.told("files.json")
    assert '  mixed_precision: ["bf16"]' in launcher and "  train_batch_size: [10]" in launcher
    assert accelerate == "config/accelerate_fsdp_config.yaml" and resumes is False
    assert yaml.safe_load(launcher)["accelerate_config"] == {"num_processes": [8]}, "sharding is the benchmark's own"


def test_sharding_and_compiling_that_are_asked_for_reach_the_earlier_launcher(tmp_path):
    tree = Tree(tmp_path, FILES)
    plan = pre(compile="inductor", sharding_strategy="SHARD_GRAD_OP", backward_prefetch="NO_PREFETCH")
    assert tree.run(plan).returncode == 0
    assert yaml.safe_load(tree.told("files.json")[0])["accelerate_config"] == {
        "num_processes": [8],
        "fsdp_config.fsdp_sharding_strategy": ["SHARD_GRAD_OP"],
        "fsdp_config.fsdp_backward_prefetch": ["NO_PREFETCH"],
        "dynamo_config.dynamo_backend": ["inductor"],
        "dynamo_config.dynamo_mode": ["default"],
    }


def test_a_launcher_with_options_and_overrides_writes_into_the_run_s_folder(tmp_path):
    tree = Tree(tmp_path, COMPOSED)
    verdict = tree.judged(pre(config_name="single_run", warmup_steps=7))
    assert verdict.status is Status.SUCCESS and numbers(verdict)["FPS_per_GPU"] == "4.988400"
    options, overrides = tree.told("composed.json")
    assert options == {
        "config_file": "config/single_run.yaml",
        "output_dir": f"{tree.run_folder}/outputs/runs",
        "warmup_steps": 7,
        "resume": False,
    }
    assert overrides[:3] == ["train_args=flux-dev", "train_args.train_batch_size=10", "train_args.num_iterations=20"]
    assert not any("hydra." in word or "logging_dir" in word or "fsdp" in word for word in overrides)
    assert not (tree.root / "outputs").exists()


def test_what_an_image_s_own_run_has_left_neither_skips_a_training_nor_is_its_result(tmp_path):
    tree = Tree(tmp_path, COMPOSED)
    left = "run_id,status,avg_fps\n1,success,99.0\n"
    tree.write(tree.root / "outputs/runs/sweep_000/runs_summary.csv", left)
    assert float(numbers(tree.judged(pre()))["FPS_per_GPU"]) == pytest.approx(4.9884)
    assert (tree.root / "outputs/runs/sweep_000/runs_summary.csv").read_text() == left


def test_a_launcher_that_trains_nothing_and_ends_well_is_a_failure(tmp_path):
    told = "2026-11-21 00:25:50,100 - INFO - SUCCESS: Skipping run 1 with status 'success' due to resume flag."
    verdict = Tree(tmp_path, f"if False:\n    from hydra import compose\nprint({told!r})\n").judged(pre())
    assert verdict.status is Status.FAILURE and verdict.metrics == ()
    assert verdict.reason == "the log has no training step"


def test_an_earlier_launcher_s_failure_is_shown_too(tmp_path):
    verdict = Tree(tmp_path, FILES).judged(pre(), STUB_FAIL="Traceback (most recent call last):")
    assert verdict.status is Status.FAILURE and verdict.reason == "step 7 was the last of 20 asked for"


def test_v25_7_starts_the_trainer_and_mad_s_figures_are_of_its_steps(tree):
    verdict = tree.judged(pre("v25.7"))
    assert verdict.status is Status.SUCCESS
    assert float(numbers(verdict)["FPS_per_GPU"]) == pytest.approx(0.49883, rel=1e-4)
    assert shlex.join(tree.told("accelerate.json")).partition(" train.py ")[0] == (
        "--config_file config/accelerate_fsdp_config.yaml --num_processes 8 --mixed_precision bf16 "
        "--fsdp_sharding_strategy FULL_SHARD"
    )
    arguments, _ = tree.told("train.json")
    given = dict(zip(arguments[::2], arguments[1::2], strict=True))
    assert (
        given["--train_batch_size"] == "1" and given["--mixed_precision"] == "bf16" and given["--model"] == "flux-dev"
    )
    assert "--train_data_path" not in given, "a trainer that does not know it is not given it"


def test_a_trainer_started_without_its_launcher_has_the_settings_and_the_tree_s_own_sharding(tree):
    (later,) = drafts_of("pyt_train_flux", start="accelerate")
    tree.write(tree.root / "config/accelerate_config/fsdp_config.yaml", "")
    assert tree.run(plan_of(later, steps=20, compile="inductor", start="accelerate")).returncode == 0
    assert shlex.join(tree.told("accelerate.json")).partition(" train.py ")[0] == (
        "--config_file config/accelerate_config/fsdp_config.yaml --num_processes 8 --mixed_precision bf16 "
        "--dynamo_backend inductor"
    )
    shutil.rmtree(tree.root / "config")
    done = tree.run(plan_of(later, steps=20, start="accelerate"))
    assert done.returncode == 2 and "has no configuration of accelerate for FSDP" in done.stderr


@each_row("own", [False, True])
def test_an_earlier_launcher_is_given_the_folders_too_where_its_trainer_takes_them(tmp_path, own):
    tree = Tree(tmp_path, FILES, LATER_TRAIN)
    (tmp_path / "a 'b").mkdir()
    changes = {"dataset": f"{tmp_path}/a 'b", "model_path": f"{tmp_path}/a 'b", "num_frames": 9} if own else {}
    verdict = tree.judged(pre(**changes))
    assert verdict.status is Status.SUCCESS
    arguments, _ = tree.told("train.json")
    given = dict(zip(arguments[::2], arguments[1::2], strict=True))
    hub = tree.stub / "hub"
    assert given["--train_data_path"] == (f"{tmp_path}/a 'b" if own else f"{hub}/bghira/pseudo-camera-10k")
    assert given["--model_path"] == (f"{tmp_path}/a 'b" if own else f"{hub}/black-forest-labs/FLUX.1-dev")
    assert given.get("--num_frames") == ("9" if own else None)


@each_row("start", ["launcher", "accelerate"])
@each_row(
    ("setting", "value", "argument"),
    [
        ("dataset", "own/pictures", "train_data_path"),
        ("dataset_revision", "refs/pr/1", "train_data_path"),
        ("model_path", "own/weights", "model_path"),
        ("config_name", "single_run", "config-name"),
    ],
)
def test_a_value_that_the_tree_cannot_take_ends_the_run(tmp_path, start, setting, value, argument):
    tree = Tree(tmp_path, FILES)
    done = tree.run(pre(start=start, **{setting: value}))
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert re.fullmatch(rf"madlite: \S+\.py has no --{argument}, so {setting} cannot be set here\n", done.stderr)
    assert not (tree.stub / "train.json").exists()


def test_a_trainer_of_one_model_cannot_be_asked_for_another(tmp_path):
    tree = Tree(tmp_path, FILES, TRAIN.replace('"--model", ', "").replace('"--model"', ""))
    assert tree.run(pre()).returncode == 0
    done = tree.run(pre(train_args="mochi-1"))
    assert done.returncode == 2 and done.stderr.endswith("has no --model, so train_args cannot be set here\n")


def test_the_earlier_launcher_s_run_leaves_nothing_but_what_it_reads_and_writes(tmp_path):
    tree = Tree(tmp_path, FILES)
    plan = pre()
    tree.run(plan)
    known = {file.path for file in plan.templates} | {"outputs"}
    assert {path.name for path in tree.run_folder.iterdir()} == known


def test_a_script_that_is_killed_leaves_no_follower(tmp_path):
    """The launcher kills the script that started it; what reads the follower's pipe then sees its end."""
    tree = Tree(tmp_path, "import os, signal, time  # --param_config_file\nos.kill(os.getppid(), signal.SIGKILL)\n")
    done = tree.run(pre())  # returns once all that holds its output is gone
    assert done.returncode == -9
    assert {path.name for path in tree.run_folder.iterdir()} == {file.path for file in pre().templates} | {"outputs"}


def test_a_follower_prints_what_came_before_its_input_s_end(tmp_path):
    script = TEMPLATES / "flux/follow.py"
    (tmp_path / "log").write_bytes(b"one\ntwo")
    done = subprocess.run([sys.executable, script, tmp_path / "log"], stdin=subprocess.DEVNULL, capture_output=True)
    assert done.stdout == b"one\ntwo"
    done = subprocess.run([sys.executable, script, tmp_path / "none"], stdin=subprocess.DEVNULL, capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_a_launcher_of_neither_kind_is_told(tmp_path):
    done = Tree(tmp_path, "print('?')").run(pre())
    assert done.returncode == 2 and "--set start=accelerate" in done.stderr


def test_what_is_missing_is_one_line(tree):
    done = tree.run(post(), FLUX_BENCHMARK_ROOT="/nowhere")
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert done.stderr.startswith("madlite: neither /nowhere nor /nowhere has a launcher.py")
    (tree.folder / "bin/rocm-smi").write_text("#!/bin/sh\nexit 1\n")
    done = tree.run(post())
    assert done.returncode == 2 and re.match("madlite: neither rocm-smi nor nvidia-smi", done.stderr)


def test_a_python_without_distutils_is_told(tree):
    tree.write(tree.root / "src/utils.py", "from distutils.util import strtobool\n")
    python = tree.folder / "bin/python3.12"
    tree.write(python, f'#!/bin/sh\ncase "$*" in *distutils*) exit 1 ;; esac\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    done = tree.run(post(), MADLITE_PYTHON=str(python))
    assert done.returncode == 2 and re.fullmatch(r"madlite: Python-\S+ has no distutils, .*\n", done.stderr)


@each_row("word", ["'; touch pwned; '", '"$(touch pwned)"', "`touch pwned`", "a b", "ä\\", "-x", "}{"])
def test_odd_values_stay_one_word(tree, word):
    plan = post(extra=f"validation_prompts={shlex.quote(word)}", dataset="", model_path="")
    script = files(plan)["run.sh"]
    assert subprocess.run(["bash", "-n"], input=script.encode(), check=False).returncode == 0
    assert tree.run(plan).returncode == 0
    arguments, _ = tree.told("train.json")
    assert arguments[arguments.index("--validation_prompts") + 1] == word
    assert not list(tree.folder.rglob("pwned"))


@each_row("start", ["launcher", "accelerate"])
def test_no_value_is_read_as_shell(tree, start):
    keys = (
        *("tree", "train_args", "config_name", "model_path", "dataset", "dataset_revision", "resolution", "compile"),
        *("gradient_checkpointing", "flash_attention", "sharding_strategy", "backward_prefetch", "environment"),
    )
    odd = "x}\"'$(touch pwned)`touch pwned`;touch pwned"
    tree.run(post(start=start, **dict.fromkeys(keys, odd)))
    assert not list(tree.folder.rglob("pwned"))
    assert (tree.stub / "fetched").read_text().count("pwned") == 3 * 3, "two names and a revision, as they are"
