"""What is refused or warned of before a script of Megatron-LM starts."""

from __future__ import annotations

import json
import re

import msgspec
import pytest

from madlite.cli.main import call
from madlite.model import Asset, Machine, Place, Secret
from madlite_plugins.megatron_lm import madlite_failure_rules
from madlite_plugins.megatron_lm.backend import MegatronLM
from madlite_plugins.megatron_lm.scripts import parse_variables, read_scripts, variables_of
from madlite_plugins.tokenizers import TOKENIZER_FILES
from tests.factories import HOST
from tests.plugins.logs import machine_of
from tests.plugins.megatron_lm_tree import drafts, plan_of
from tests.rows import each_row

TWO_NODES = {"nodes": 2, "master_addr": "head", "data_cache_path": "/nfs", "node_rank": "1"}


def found(made, fatal=True):
    return [finding for finding in MegatronLM().check(made) if finding.fatal is fatal]


def one(made, fatal=True):
    (finding,) = found(made, fatal)
    return finding


def test_the_document_s_batch_of_llama_2_70b_is_refused_with_what_to_type():
    finding = one(plan_of("llama-2-70b", asked={"release": "v25.4"}, micro_batch=3, global_batch=56))
    assert finding.message == "global batch 56 is no multiple of micro batch 3 × 8 data ranks = 24"
    assert finding.hint == "--set global_batch=48"
    # a hint is what to type
    assert one(plan_of("llama-3.1-8b", model_size="8B")).hint == "--set model_size=8"
    assert one(plan_of("llama-3.1-70b", tp=8)).hint == "--set tp=1"
    assert "--set dataset=wiki" in one(plan_of("llama-3.1-8b", mock_data=False)).hint
    assert one(plan_of("mixtral-8x7b", mock_data=False)).hint == "--set data_dir="


@each_row(
    ("card", "changes", "words"),
    [
        ("llama-3.1-8b", {"global_batch": 100}, "micro batch 2 × 8 data ranks"),
        ("llama-3.1-8b", {"global_batch": 8}, "2 × 8 data ranks"),
        ("llama-3.1-8b", {"tp": 8, "micro_batch": 3}, "micro batch 3 × 1 data ranks"),
        ("llama-3.1-8b", {"tp": 3}, "tp 3 × pp 1 × cp 1 does not fit 8 rank(s)"),
        ("llama-3.1-8b", {"tp": 4, "pp": 4}, "tp 4 × pp 4 × cp 1 does not fit 8 rank(s)"),
        ("llama-3.1-8b", {"cp": -1}, "cp=-1"),
        ("llama-3.1-8b", {"steps": 0}, "steps is 0"),
        ("llama-3.1-8b", {"precision": "INT4"}, "does not train in 'INT4'"),
        ("llama-3.1-8b", {"precision": "FP16"}, "train_llama3.sh does not train in 'FP16'"),
        ("llama-3.1-8b", {"te_fp8": "1"}, "te_fp8 1 is not BF16"),
        ("deepseek-v3-proxy", {"pr": "fp8"}, "pr fp8 is not BF16"),
        ("deepseek-v3-proxy", {"precision": "FP8", "pr": "bf16"}, "pr bf16 is not FP8"),
        (
            "llama-3.1-70b",
            {"tp": 8},
            "FSDP goes without tensor, pipeline and expert parallelism, and the plan has tp=8",
        ),
        ("llama-3.1-70b", {"pp": 2}, "pp=2"),
        ("llama-3.1-8b", {"model_size": "8B"}, "train_llama3.sh has no MODEL_SIZE '8B'"),
        ("llama-3.1-8b", {"model_size": "405"}, "no MODEL_SIZE '405'"),
        ("mixtral-8x7b", {"model_size": "8x70B"}, "no MODEL_SIZE '8x70B'"),
        ("mixtral-8x7b", {"ep": 16}, "ep 16 does not fit 8 rank(s)"),
        ("mixtral-8x22b-proxy", {"num_layers": 5}, "one node has no memory for 5 layers of 8x22B"),
        ("deepseek-v3-proxy", {"num_layers": 0}, "no memory for all layers of 671B: its proxy has 3 at most"),
        ("llama-3.1-70b-proxy", {"num_layers": 80}, "its proxy has 40 at most"),
        ("llama-3.1-70b-proxy", {"num_layers": -1}, "num_layers is -1"),
        ("deepseek-v2-lite-16b", {"steps": 51}, "train_deepseekv2.sh ends after 50 steps, 51 are requested"),
        ("llama-3.1-8b", {"mock_data": False}, "without mock data the run needs data of its own"),
        ("mixtral-8x7b", {"mock_data": False}, "without mock data"),
        ("llama-3.1-8b", {"mock_data": False, "dataset": "c4"}, "dataset 'c4' is unknown"),
        ("llama-3.1-8b", {"use_flash_attn": "yes please"}, "use_flash_attn is 'yes please'"),
        ("llama-3.1-8b", {"data_dir": "/data;rm -rf x"}, "hands to a shell unquoted"),
        ("llama-3.1-8b", {"tokenizer_model": "/my tokenizer"}, "hands to a shell unquoted"),
        ("llama-3.1-8b", {"exp_name": "a\nb"}, "hands to a shell unquoted"),
        ("llama-3.1-8b", {"nnodes": -2}, "nnodes is -2"),
    ],
)
def test_what_would_fail_or_mean_something_else_is_refused(card, changes, words):
    assert words in one(plan_of(card, **changes)).message


@each_row(
    ("card", "changes"),
    [
        ("llama-3.1-8b", {"tp": 8, "seq_parallel": False}),
        ("llama-3.1-8b", {"tp": 2, "pp": 2, "cp": 2, "global_batch": 2}),
        ("llama-3.1-8b", {"mock_data": False, "data_path": "0.3 /a/x 0.7 /b/y"}),
        ("llama-3.1-8b", {"mock_data": False, "dataset": "bookcorpus"}),
        ("llama-3.1-8b", {"precision": "FP8", "te_fp8": "1", "use_flash_attn": "0"}),
        ("deepseek-v2-lite-16b", {"mock_data": False, "data_dir": "/data"}),
        ("qwen2.5-72b", {"tp": 1}),
    ],
)
def test_what_fits_passes(card, changes):
    assert list(MegatronLM().check(plan_of(card, **changes))) == []


def test_sizes_are_counted_on_the_gpus_that_are_granted():
    assert found(plan_of("llama-3.1-8b", machine_of(count=4))) == []
    assert "does not fit 4" in one(plan_of("deepseek-v2-lite-16b", machine_of(count=4))).message
    assert "× 3 data ranks" in one(plan_of("llama-3.1-8b", machine_of(count=3))).message
    # no gpu is refused
    made = plan_of("llama-3.1-8b")
    bare = msgspec.structs.replace(made, machine=Machine(), place=Place())
    assert "no GPU is granted" in one(bare).message
    # a script that sets its devices gets the first gpus
    made = plan_of("deepseek-v3-proxy")
    place = msgspec.structs.replace(made.place, gpu_ids=tuple(range(8, 16)))
    assert found(msgspec.structs.replace(made, place=place)) == []
    assert "HIP_VISIBLE_DEVICES" in one(msgspec.structs.replace(made, place=place, runtime="host", traits=HOST)).message


def test_scripts_take_what_their_version_has():
    # an older script has no fsdp or proxies
    assert "v25.3 takes no FSDP" in one(plan_of("llama-3.1-8b", asked={"release": "v25.3"}, fsdp=True)).message
    layers = one(plan_of("llama-3.1-8b", asked={"release": "v25.5"}, num_layers=8))
    assert "NUM_LAYERS" in layers.message and layers.hint == "--image-release v25.8 or later"
    # a script of one's own needs to be told what it takes
    own = {"script": "examples/qwen3/train_qwen3.sh"}
    made = plan_of("llama-3.1-8b", asked=own, **own)
    assert "which variables train_qwen3.sh takes is not known" in one(made).message
    assert found(plan_of("llama-3.1-8b", asked=own, **own, variables="MBS=micro_batch GBS=global_batch")) == []
    # variables name settings that there are
    every = {"micro_batch", "global_batch", "seq_len", "steps", *drafts("llama-3.1-8b", script="none")[0].settings}
    for path, script in read_scripts().items():
        variables = list(parse_variables(variables_of(script)))
        assert {one.key for one in variables} <= every, path
        assert {one.kind for one in variables} <= {"", "01", "tf"}
        assert {one.key for one in variables} >= {"micro_batch", "global_batch", "seq_len", "steps", "mock_data"}


def test_what_a_run_will_not_do_as_it_reads_is_said():
    # few steps leave no window
    assert "few after 5 of warm-up" in one(plan_of("llama-3.1-8b", steps=9), fatal=False).message
    assert "over before 5 of warm-up" in one(plan_of("llama-3.1-8b", steps=5)).message
    # data that is not read is said
    assert "data_path is not read" in one(plan_of("llama-3.1-8b", data_path="/d/x"), False).message
    made = msgspec.structs.replace(plan_of("llama-3.1-8b"), env={"DATA_PATH": "/d/x"})
    assert "DATA_PATH is not read" in one(made, False).message
    assert "relative" in one(plan_of("llama-3.1-8b", mock_data=False, data_dir="data"), False).message
    # variables of the environment that the plan overrides are said
    made = plan_of("llama-3.1-8b")
    env = {"MBS": "4", "MODEL_SIZE": "8", "TE_FP8": "0", "NNODES": "2", "MASTER_PORT": "1", "SECRET": Secret("x")}
    findings = found(msgspec.structs.replace(made, env=env), fatal=False)
    assert [(finding.message, finding.hint) for finding in findings] == [
        ("MBS=4 of the environment is not passed on: micro_batch is 2", "--set micro_batch=4"),
        ("NNODES=2 of the environment is not passed on: nnodes is 1", "--set nnodes=2"),
    ]
    # args are variables
    assert "are left out" in one(plan_of("llama-3.1-8b", args="--lr 1"), False).message
    # tee off is said
    assert "TEE_OUTPUT" in one(plan_of("llama-3.1-8b", tee_output=False), False).message


@each_row(("card", "layers"), [("llama-3.1-70b-proxy", 40), ("deepseek-v3-proxy", 3), ("mixtral-8x22b-proxy", 4)])
def test_a_proxy_is_said_to_be_one(card, layers):
    assert (
        one(plan_of(card), fatal=False).message == f"a proxy of {layers} layers: its numbers are not the full model's"
    )


def test_two_nodes_need_to_meet():
    assert [finding.message for finding in MegatronLM().check(plan_of("llama-3.1-8b", **TWO_NODES))] == []
    lost = found(plan_of("llama-3.1-8b", nodes=2))
    assert [finding.message for finding in lost] == [
        "of 2 nodes none is number ''",
        "2 nodes cannot meet at 'localhost'",
    ]
    assert "none is number '2'" in one(plan_of("llama-3.1-8b", **{**TWO_NODES, "node_rank": "2"})).message
    assert "cannot meet" in one(plan_of("llama-3.1-8b", **{**TWO_NODES, "master_addr": "localhost"})).message
    assert "common folder" in one(plan_of("llama-3.1-8b", **{**TWO_NODES, "data_cache_path": ""}), fatal=False).message
    first = one(plan_of("llama-3.1-8b", **{**TWO_NODES, "node_rank": "0"}), fatal=False)
    assert (
        first.message == "the result is printed on node 1: on node 0 there will be no result"
        and "skip_perf_collection" in first.hint
    )
    old = plan_of("llama-3.1-8b", asked={"release": "v25.3"}, **TWO_NODES)
    assert one(old).message == "interface lo reaches no other node"
    alone = one(plan_of("deepseek-v2-lite-16b", nodes=2, global_batch=512))
    assert alone.message == "train_deepseekv2.sh trains on one node alone"
    # the environment can say where nodes meet
    made = plan_of("llama-3.1-8b", nodes=2, data_cache_path="/nfs")
    env = {"NODE_RANK": "1", "MASTER_ADDR": "head"}
    assert list(MegatronLM().check(msgspec.structs.replace(made, env=env))) == []
    # more nodes share the global batch and the layers
    assert "× 16 data ranks" in one(plan_of("llama-3.1-8b", **TWO_NODES, global_batch=16)).message
    assert found(plan_of("deepseek-v3-proxy", **TWO_NODES, num_layers=6)) == []


@each_row(
    ("card", "asked", "changes", "ref", "gated"),
    [
        ("llama-3.1-8b", {"release": "v25.4"}, {}, "meta-llama/Llama-3.1-8B", True),
        ("llama-3.1-8b", {}, {}, "NousResearch/Meta-Llama-3-8B", False),
        ("llama-3.3-70b", {}, {}, "meta-llama/Llama-3.3-70B-Instruct", True),
        ("mixtral-8x7b", {}, {}, "mistralai/Mixtral-8x7B-v0.1", True),
        ("qwen2.5-7b", {}, {}, "Qwen/Qwen2.5-7B", False),
    ],
)
def test_the_tokenizer_is_an_asset(card, asked, changes, ref, gated):
    (asset,) = MegatronLM().assets(plan_of(card, asked=asked, **changes))
    assert asset == Asset(kind="tokenizer", ref=ref, gated=gated, files=TOKENIZER_FILES)


def test_a_tokenizer_or_data_that_is_there_is_no_asset_and_tokenized_data_is_one_for_each_tokenizer():
    assert list(MegatronLM().assets(plan_of("mixtral-8x7b", tokenizer_model="/t/tokenizer.model"))) == []
    made = plan_of("llama-3.1-8b", mock_data=False, dataset="wiki", tokenizer_model="/t")
    (data,) = MegatronLM().assets(made)
    assert (data.ref, data.source, data.env, data.path) == ("wiki", "made", "DATA_DIR", "megatron_lm/wiki/t")
    assert list(MegatronLM().assets(msgspec.structs.replace(made, settings={**made.settings, "data_dir": "/d"}))) == []
    assert list(MegatronLM().assets(msgspec.structs.replace(made, env={"DATA_DIR": "/d"}))) == []
    one, other = (
        list(MegatronLM().assets(plan_of("llama-3.1-8b", mock_data=False, dataset="wiki", tokenizer_model=ref)))[-1]
        for ref in ("lab/one", "lab/other")
    )
    assert one.path != other.path and one.ref == other.ref == "wiki"


def test_deepseek_s_data_are_the_files_of_its_document():
    made = plan_of("deepseek-v2-lite-16b", mock_data=False)
    files = [asset for asset in MegatronLM().assets(made) if asset.source == "url"]
    assert [asset.ref.rpartition("/")[2] for asset in files] == [
        "SlimPajama.json",
        "alpaca_zh-train.json",
        "alpaca_zh-valid.json",
        "mmap_deepseekv2_datasets_text_document.bin",
        "mmap_deepseekv2_datasets_text_document.idx",
    ]
    assert {asset.env for asset in files} == {"DATA_DIR"} and len(
        {asset.path.rpartition("/")[0] for asset in files}
    ) == 1
    assert all(asset.ref.startswith("https://") for asset in files)
    assert "madlite prepare --tags" in one(made).hint
    assert not any(asset.source == "url" for asset in MegatronLM().assets(plan_of("deepseek-v2-lite-16b")))


@each_row(
    ("line", "cause"),
    [
        ("Model size not supported.", "bad_option"),
        ("invalid model size", "bad_option"),
        ("madlite: no Megatron-LM at /workspace/Megatron-LM (in its folder: x)", "missing_package"),
        ("madlite: /m has none of a.sh; there are: b.sh", "missing_package"),
        (
            "AssertionError: global batch size (56) is not divisible by micro batch size (3) times data parallel size",
            "bad_option",
        ),
        ("AssertionError: Rank 0: found NaN in local forward loss calculation. Device: 0, node: x", "nan_loss"),
        ("run.sh: line 61: torchrun: command not found", "missing_package"),
        ("n1:1:1 [0] misc/socket.cc:485 NCCL WARN Bootstrap : no socket interface found", "network"),
    ],
)
def test_failures_that_say_why(line, cause):
    assert [rule.cause for rule in madlite_failure_rules() if re.search(rule.pattern, line)] == [cause]


def explained(capsys, *args):
    code = call(["explain", "--json", "--machine", "8xMI300X", *args])
    shown = capsys.readouterr()
    return code, json.loads(shown.out) if shown.out.startswith("[") else [], shown.err


@pytest.fixture
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("NNODES", "NODE_RANK", "MASTER_ADDR", "HF_TOKEN", "MAD_SECRETS_HFTOKEN"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("_folder")
def test_the_command_line_reaches_the_plan_and_its_refusals(capsys):
    tag = "pyt_megatron_lm_train_llama-3.1-8b"
    two = ["nnodes=2", "node_rank=1", "master_addr=IP_NODE0", "data_cache_path=/nfs", "global_batch=256"]
    code, (plan,), err = explained(
        capsys, tag, "--precision", "FP8", "--image-release", "v25.8", *(w for s in two for w in ("--set", s))
    )
    assert code == 0 and "warning" not in err
    assert plan["place"]["nodes"] == 2 and plan["settings"]["node_rank"] == "1"
    assert plan["image"]["ref"] == "rocm/megatron-lm:v25.8_py310" and plan["backend"] == "megatron_lm"
    assert plan["variant"]["global_batch"] == 256
    # explain shows what would be refused
    code, _, err = explained(capsys, "pyt_megatron_lm_train_llama-2-70b", "--batch-size", "3")
    assert code == 0 and "would be refused" in err and "global batch 56 is no multiple" in err
    code, _, err = explained(capsys, "pyt_megatron_lm_train_mixtral-8x7b", "--no-mock-data", "--set", "env.HF_TOKEN=x")
    assert code == 0 and "would be refused" in err and "needs data of its own" in err
    code, _, err = explained(capsys, "pyt_megatron_lm_train_llama-3.3-70b")
    assert code == 0 and "would be refused" in err and "meta-llama/Llama-3.3-70B-Instruct is a gated repository" in err
    code, _, err = explained(capsys, "pyt_megatron_lm_train_deepseek-v2-lite-16b", "--set", "fsdp=true")
    assert code == 4 and "has no key 'fsdp'" in err
    code, _, err = explained(capsys, "pyt_megatron_lm_train_deepseek-v2-lite-16b", "--image-release", "v25.9")
    assert code == 4 and "no recipe is known" in err and "in v25.8" in err
    # traces that nobody would find are told
    args = ["pyt_megatron_lm_train_llama-2-7b", "--set", "ENABLE_PROFILING=1", "--precision", "BF16"]
    assert "the traces go with the script's own log (--set log_dir=FOLDER keeps them)" in explained(capsys, *args)[2]
    assert "traces" not in explained(capsys, *args, "--set", "log_dir=/logs")[2]
