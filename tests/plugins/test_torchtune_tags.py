"""MAD's tags of torchtune: batches by release, GPU, mode and precision as published; images, assets, refusals."""

from __future__ import annotations

import shlex
import subprocess

import msgspec
import pytest

from madlite.backends.recipe_book import read_book
from madlite.errors import UsageProblem
from madlite.model import Asset, Image, Machine, RunPlan
from madlite_plugins.torchtune.backend import Torchtune
from tests.factories import HOST
from tests.plugins.logs import gpu_machine, machine_of, plan
from tests.plugins.rendered import files
from tests.plugins.torchtune_plans import changed, drafts_of, fatal, plan_of, planned
from tests.rows import each_row

FW, LORA, QLORA = "finetune_fw", "finetune_lora", "finetune_qlora"
OLD, NEW = ("v25.6", "v25.7", "v25.8"), ("v25.11", "v26.1")
# tag → modes, micro batch on MI300X and MI325X, on MI350X and MI355X since v25.11
PUBLISHED = {
    "pyt_train_llama-2-7b": ((FW, LORA, QLORA), 32, 64),
    "pyt_train_llama-2-13b": ((FW, LORA), 32, 64),
    "pyt_train_llama-2-70b": ((LORA, QLORA), 8, 16),
    "pyt_train_llama-3-8b": ((FW, LORA), 16, 32),
    "pyt_train_llama-3-70b": ((FW, LORA), 4, 8),
    "pyt_train_llama-3.1-8b": ((FW, LORA), 16, 32),
    "pyt_train_llama-3.1-70b": ((FW, LORA), 4, 8),
    "pyt_train_llama-3.1-405b": ((QLORA,), 2, 4),
    "pyt_train_llama-3.2-1b": ((FW, LORA), 16, 16),
    "pyt_train_llama-3.2-3b": ((FW, LORA), 16, 64),
    "pyt_train_llama-3.2-vision-11b": ((FW,), 32, 64),
    "pyt_train_llama-3.2-vision-90b": ((FW,), 16, 32),
    "pyt_train_llama-3.3-70b": ((FW, LORA, QLORA), 4, 8),
    "pyt_train_llama-4-scout-17b-16e": ((FW, LORA), 4, 16),
    "pyt_train_qwen2-1.5b": ((FW, LORA), 0, 32),  # 32 and 16: below
    "pyt_train_qwen2-7b": ((FW, LORA), 16, 32),
    "pyt_train_qwen2.5-32b": ((LORA,), 8, 16),
    "pyt_train_qwen2.5-72b": ((LORA,), 4, 8),
    "pyt_train_qwen3-8b": ((FW, LORA), 14, 14),
    "pyt_train_qwen3-32b": ((LORA,), 8, 16),
}
CASES = [
    (card, device, release)
    for card in PUBLISHED
    for device in ("MI300X", "MI325X", "MI350X", "MI355X")
    for release in (*OLD, *NEW)
    if not ("qwen" in card and release == "v25.6")
]


def expected(card: str, device: str, release: str) -> list[tuple[str, str, int]]:
    modes, left, right = PUBLISHED[card]
    found = []
    for mode in modes:
        batch = right if device in ("MI350X", "MI355X") and release in NEW else left
        if card == "pyt_train_qwen2-1.5b" and batch == 0:
            batch = 32 if mode == FW else 16
        if card == "pyt_train_qwen3-8b" and release in OLD:
            batch = 16
        precisions = ("BF16", "FP8") if mode == FW and release != "v25.6" else ("BF16",)
        found += [(mode, precision, batch) for precision in precisions]
    return found


@each_row(("card", "device", "release"), CASES)
def test_a_tag_stands_for_the_published_runs(card, device, release):
    drafts = drafts_of(card, device, release=release)
    runs = [(one.variant.mode, one.variant.precision, one.variant.micro_batch) for one in drafts]
    assert runs == expected(card, device, release)
    folder = "primus" if release in NEW else "pytorch-training"
    assert {one.image for one in drafts} == {f"rocm/{folder}:{release}"}
    assert {one.variant.seq_len for one in drafts} == {4096 if "llama-2" in card else 8192}
    assert {one.variant.steps for one in drafts} == {20}


@pytest.mark.host
@each_row("card", PUBLISHED)
def test_no_published_run_has_anything_fatal_and_each_is_good_shell(card):
    for device, release in (("MI300X", "v25.8"), ("MI355X", "v26.1")):
        for mode, precision, _ in expected(card, device, release):
            made = plan_of(card, device, release=release, mode=mode, precision=precision)
            assert fatal(made) == []
            script = files(made)["run.sh"]
            assert subprocess.run(["bash", "-n"], input=script.encode(), check=False).returncode == 0
            assert "--nproc_per_node 8 " in script
            assert f"{'full' if mode == FW else 'lora'}_finetune_distributed.py --config train.yaml" in script


def test_the_configuration_is_torchtune_s_own_with_the_changes_of_mad_s_script():
    # the configuration is torchtune's own and is never written to
    script = files(plan_of("pyt_train_llama-3.1-405b", "MI300X"))["run.sh"]
    assert "find_recipes.py configs/llama3_1/405B_qlora.yaml)" in script
    assert 'make_config.py --base "$recipes"/configs/llama3_1/405B_qlora.yaml --changes changes.yaml' in script
    assert "sed" not in script
    scout = files(plan_of("pyt_train_llama-4-scout-17b-16e", "MI300X", mode=LORA))["run.sh"]
    assert "configs/llama4/scout_17B_16E_lora.yaml" in scout
    # changes are those of mad's script
    made = files(plan_of("pyt_train_llama-3.1-8b", "MI355X", mode=FW, precision="FP8"))["changes.yaml"]
    assert "batch_size: 32\ngradient_accumulation_steps: 1\nmax_steps_per_epoch: 20\nepochs: 1\nseed: 42\n" in made
    assert "enable_fp8_training: true\nfp8_recipe_name: tensorwise\n" in made
    assert "  packed: true\n" in made and "compile: true\nenable_activation_checkpointing: true\n" in made
    assert "log_peak_memory_stats: true\n" in made and "tensor_parallel_dim: 1\n" in made and "fused: true" in made
    assert "lr:" not in made and "clip_grad_norm" not in made, "the configuration's own"
    assert "fp8" not in files(plan_of("pyt_train_llama-3.1-8b", "MI355X", mode=FW, precision="BF16"))["changes.yaml"]

    # autotuning came with v25 7 and not for llama 4
    def tuned(card: str, release: str) -> bool:
        return (
            "TORCHINDUCTOR_MAX_AUTOTUNE=${TORCHINDUCTOR_MAX_AUTOTUNE:-1}"
            in files(plan_of(card, "MI300X", release=release, mode=LORA))["run.sh"]
        )

    assert [tuned("pyt_train_llama-3.1-8b", release) for release in ("v25.6", "v25.7", "v26.1")] == [False, True, True]
    assert not tuned("pyt_train_llama-4-scout-17b-16e", "v26.1")
    # before v25 7 a configuration kept its parallelism and optimizer
    before, since = (plan_of("pyt_train_llama-4-scout-17b-16e", "MI300X", release=one, mode=FW) for one in OLD[:2])
    assert (before.settings["tp"], before.settings["fused"], before.settings["compile"]) == (2, False, False)
    assert (since.settings["tp"], since.settings["fused"], since.settings["compile"]) == (1, True, True)
    assert not plan_of("pyt_train_llama-3.1-70b", "MI300X", release="v25.6", mode=FW).settings["fused"]


@each_row(
    ("device", "release", "offloaded"),
    [
        ("MI300X", "v26.1", "true"),
        ("MI325X", "v25.11", "true"),
        ("MI355X", "v26.1", "false"),
        ("MI355X", "v25.8", "true"),
    ],
)
def test_405b_is_offloaded_where_mad_s_table_says_so(device, release, offloaded):
    made = files(plan_of("pyt_train_llama-3.1-405b", device, release=release))["changes.yaml"]
    assert f"fsdp_cpu_offload: {offloaded}\n" in made


def test_mad_s_variables_are_set():
    env = plan_of("pyt_train_llama-3.1-8b", "MI300X", mode=LORA).env
    mad = {
        "ROCBLAS_USE_HIPBLASLT": "1",
        "DISABLE_ADDMM_CUDA_LT": "0",
        "HIP_FORCE_DEV_KERNARG": "1",
        "TORCH_NCCL_HIGH_PRIORITY": "0",
        "GPU_MAX_HW_QUEUES": "8",
        "WANDB_DISABLED": "true",
        "HSA_NO_SCRATCH_RECLAIM": "1",
    }
    assert mad.items() <= env.items()
    assert "HSA_NO_SCRATCH_RECLAIM" not in plan_of("pyt_train_llama-3.1-8b", "MI300X", release="v25.6").env
    wiki = plan_of("pyt_train_llama-3.1-70b", "MI300X", release="v25.3").env
    assert (wiki["GPU_MAX_HW_QUEUES"], wiki["TORCH_NCCL_HIGH_PRIORITY"]) == ("2", "1")


@each_row(
    ("card", "release", "mode", "steps"),
    [
        ("pyt_train_llama-3.1-70b", "v25.3", FW, 30),
        ("pyt_train_llama-3.1-70b", "v25.4", LORA, 30),
        ("pyt_train_llama-3.3-70b", "v25.5", QLORA, 20),
    ],
)
def test_the_first_releases_trained_on_wikitext_with_configurations_of_mad_s(card, release, mode, steps):
    made = plan_of(card, "MI300X", release=release, mode=mode)
    assert (made.variant.micro_batch, made.variant.steps, made.variant.precision) == (64, steps, "BF16")
    assert fatal(made) == []
    rendered = files(made)
    assert "torchtune.datasets.text_completion_dataset\n  column: input" in rendered["base.yaml"]
    assert ("quantize_base: true" in rendered["base.yaml"]) is (mode == QLORA)
    assert "  packed: false" in rendered["changes.yaml"]
    assert "--dataset Salesforce/wikitext 'wikitext-103-v1/train-*.parquet'" in rendered["run.sh"]


def fetched(made: RunPlan) -> list[list[str]]:
    """Return the words that run.sh gives to fetch.py, as its shell reads them."""
    lines = (line for line in files(made)["run.sh"].splitlines() if " fetch.py " in line)
    return [shlex.split(line.split(" fetch.py ")[1].removesuffix(")")) for line in lines]


def words(asset: Asset) -> list[str]:
    return [*(["--dataset"] if asset.kind == "dataset" else []), asset.ref, *asset.files]


RECIPES = sorted(read_book(Torchtune.book).recipes)
DATA = ("alpaca", "alpaca_cleaned", "the_cauldron", "wikitext")


@pytest.mark.host
@each_row("recipe", RECIPES)
def test_what_prepare_fetches_is_what_the_script_asks_for(recipe):
    for machine in (gpu_machine(8), Machine()):
        made = plan(Torchtune(), machine, recipe)
        assert fetched(made) == [words(asset) for asset in Torchtune().assets(made)]
        for name in DATA:
            other = changed(made, dataset=name, mock_data=False, weights="fetched", repo="o/n", packed=False)
            model, data = Torchtune().assets(other)
            assert fetched(other) == [words(model), words(data)] and len(data.files) == 1
            pattern = shlex.quote(data.files[0])
            assert f"--files {pattern}" in files(other)["run.sh"], "and what is read of it, in a cache that has more"


def test_weights_of_llama_are_gated_and_what_is_given_is_not_fetched():
    for card in PUBLISHED:
        made = plan_of(card, "MI300X")
        model, _ = Torchtune().assets(made)
        assert model.gated is model.ref.startswith("meta-llama/")
    assert [asset.kind for asset in Torchtune().assets(changed(made, weights_path="/w", mock_data=True))] == []
    # a mirror of a data set is fetched and read
    made = changed(plan_of("pyt_train_llama-3.1-8b", "MI300X"), data_alpaca="me/mirror it's*.json")
    assert fetched(made)[1] == ["--dataset", "me/mirror", "it's*.json"] == words(list(Torchtune().assets(made))[1])
    assert fatal(made) == []
    # the token has the name that the hub's library reads where something is fetched
    assert "MAD_SECRETS_HFTOKEN" in files(plan_of("pyt_train_llama-3.1-8b", "MI300X"))["run.sh"]
    assert "HFTOKEN" not in files(plan_of("pyt_train_llama-3.1-8b", "H100"))["run.sh"]


def test_every_release_says_all_that_follows_from_it():
    book = read_book(Torchtune.book)
    for name, facts in book.releases.items():
        of_image = {"published_gpus", "image", "least_seq_len", "most_seq_len"} if name != "upstream" else set()
        assert {"mad_variables", "fp8", *of_image} <= set(facts), name
        assert f"AMD {facts['mad_variables']}" in book.env, name
    assert [name for name, facts in book.releases.items() if facts["fp8"]] == ["v25.7", "v25.8", "v25.11", "v26.1"]
    # a run on wikitext says that it validates nothing
    wiki = drafts_of("pyt_train_llama-3.1-70b", "MI300X", release="v25.3", mode=FW)[0]
    other = drafts_of("pyt_train_llama-3.1-8b", "MI300X")[0]
    assert any("no validation set" in note and "VALIDATE=True" in note for note in wiki.notes)
    assert not any("validation" in note for note in other.notes)
    assert "val_dataset" not in files(planned(wiki, "pyt_train_llama-3.1-70b", machine_of("MI300X")))["changes.yaml"]


def fp8_warnings(made: RunPlan) -> list[str]:
    return [one.message for one in Torchtune().check(made) if "FP8" in one.message and not one.fatal]


def test_fp8_is_doubted_where_the_plan_does_not_use_the_image_s_torchtune():
    image = Image(ref="rocm/primus:v26.1")
    made = plan_of("pyt_train_llama-3.1-8b", "MI300X", mode=FW, precision="FP8")
    made = msgspec.structs.replace(made, image=image)
    assert fp8_warnings(made) == [] and fatal(made) == []
    (host,) = fp8_warnings(msgspec.structs.replace(made, runtime="host", traits=HOST, image=None))
    assert "--runtime host takes what is installed" in host and "ends before it trains" in host
    (other,) = fp8_warnings(msgspec.structs.replace(made, image=Image(ref="mine:1")))
    assert "the run is in mine:1" in other
    (tree,) = fp8_warnings(msgspec.structs.replace(made, env={**made.env, "TORCHTUNE_ROOT": ""}))
    assert "TORCHTUNE_ROOT" in tree
    bf16 = plan_of("pyt_train_llama-3.1-8b", "MI300X", mode=FW, precision="BF16")
    assert fp8_warnings(msgspec.structs.replace(bf16, runtime="host", traits=HOST)) == []
    assert any("from v25.7 on" in message for message in fatal(changed(made, fp8=False)))


@each_row(
    ("card", "settings"),
    [
        ("pyt_train_llama-3.1-8b", {"mode": LORA, "precision": "FP8"}),
        ("pyt_train_llama-3.3-70b", {"mode": QLORA, "precision": "FP8"}),
        ("pyt_train_qwen3-32b", {"mode": FW}),
        ("pyt_train_qwen2.5-32b", {"mode": FW}),
        ("pyt_train_qwen2.5-72b", {"mode": FW}),
        ("pyt_train_llama-3.2-vision-11b", {"mode": LORA}),
        ("pyt_train_llama-3.2-vision-90b", {"mode": QLORA}),
        ("pyt_train_llama-2-70b", {"mode": FW}),
        ("pyt_train_llama-3.1-405b", {"mode": LORA}),
        ("pyt_train_llama-3.1-8b", {"mode": FW, "precision": "FP8", "release": "v25.6"}),
        ("pyt_train_qwen2-7b", {"release": "v25.6"}),
        ("pyt_train_llama-3.1-8b", {"mode": FW, "release": "v25.3"}),
        ("pyt_train_llama-3-8b", {"release": "upstream"}),
    ],
)
def test_what_nobody_published_is_refused_with_the_nearest_that_is_known(card, settings):
    with pytest.raises(UsageProblem) as caught:
        drafts_of(card, "MI300X", **settings)
    assert "nearest known: " in caught.value.hint


@each_row(
    ("card", "length", "word"),
    [
        ("pyt_train_llama-3.1-8b", 1024, "from 2048 to 8192"),
        ("pyt_train_llama-3.1-8b", 16384, "from 2048 to 8192"),
        ("pyt_train_llama-2-7b", 8192, "at most 4096"),
        ("pyt_train_llama-3.1-8b", 2048, ""),
        ("pyt_train_llama-2-7b", 4096, ""),
    ],
)
def test_sequence_lengths_of_mad_s_script_and_of_the_model(card, length, word):
    found = fatal(changed(plan_of(card, "MI300X"), seq_len=length))
    assert [word in message for message in found] == [True] * bool(word)
    longer = plan_of("pyt_train_llama-3.1-8b", "H200", release="upstream")
    assert fatal(changed(longer, seq_len=16384)) == []


def test_without_an_image_the_8b_model_is_made_up():
    for mode in (FW, LORA):
        made = plan_of("pyt_train_llama-3.1-8b", "H100", mode=mode)
        assert fatal(made) == [] and list(Torchtune().assets(made)) == []
        assert "llama3_1.lora_llama3_1_8b" in files(made)["base.yaml"] or mode == FW
    real = changed(made, weights="fetched", mock_data=False)
    assert [asset.ref for asset in Torchtune().assets(real)] == ["meta-llama/Llama-3.1-8B-Instruct", "tatsu-lab/alpaca"]


def test_mad_s_run_of_two_nodes_is_the_tag_s_own_on_two_nodes():
    made = plan_of("pyt_train_llama-3.3-70b", "MI300X", release="v25.7", mode=FW, precision="BF16")
    both = {"nnodes": 2, "node_rank": "0", "master_addr": "first", "steps": 10}
    made = msgspec.structs.replace(changed(made, **both), place=msgspec.structs.replace(made.place, nodes=2))
    assert fatal(made) == [] and made.variant.micro_batch == 4
    rendered = files(made)
    assert '--nnodes "$NNODES"' in rendered["run.sh"] and "export MASTER_ADDR=first\n" in rendered["run.sh"]
    assert "--samples 640 " in rendered["run.sh"], "10 steps of 4 sequences on each of 16 ranks"
    for value in ("fused: true", "compile: true", "fsdp_cpu_offload: false", "packed: true", "tensor_parallel_dim: 1"):
        assert f"{value}\n" in rendered["changes.yaml"], "as llama3_3/70B_full_multinode has it"
    second = changed(made, node_rank="1")
    assert any("the result is printed on node 0" in one.message for one in Torchtune().check(second))
