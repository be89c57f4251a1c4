"""run.sh of the backend megatron_lm, executed for real against a stand-in for the fork's tree."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import msgspec
import pytest

from madlite.measure.diagnosis import DiagnosisInput, diagnose
from madlite.measure.monitor import LogMonitor
from madlite.measure.verdict import Observation, Verdict, judge
from madlite.model import Exit, Status
from madlite_plugins.megatron_lm import madlite_failure_rules
from madlite_plugins.megatron_lm.backend import MegatronLM
from tests.plugins.megatron_lm_tree import TRAIN, Tree, plan_of
from tests.rows import each_row
from tests.waiting import wait_until

pytestmark = pytest.mark.host

# one step of 128 × 8192 tokens over 8 GPUs: 25,000 tokens/s/GPU
STEP = (
    " [2026-09-24 09:43:42] iteration {n:8d}/{of:8d} | consumed samples: {n:12d} | elapsed time per iteration (ms): "
    "5242.9 | mem usages: 0.5462 | throughput per GPU (TFLOP/s/GPU): 1441.4 | learning rate: 1.0E-04 | "
    "global batch size:   128 | lm loss: 9.0E+00 | loss scale: 1.0 | grad norm: 0.5 | "
    "number of skipped iterations:   0 | number of nan iterations:   0 |"
)
END = "[after training is done] datetime: 2026-09-24 09:48:21"


def log(steps, of=50):
    return "\n".join(STEP.format(n=n, of=of) for n in range(1, steps + 1))


@pytest.fixture
def tree(tmp_path):
    return Tree(tmp_path)


def verdict(plan, done) -> Verdict:
    return judge(plan, Observation(exit=Exit(code=done.returncode, duration_s=1e6)), follow(plan, done))


def follow(plan, done) -> LogMonitor:
    monitor = LogMonitor([MegatronLM().reader(plan)], madlite_failure_rules())
    monitor.feed(done.stdout.encode())
    monitor.feed(done.stderr.encode(), 2)
    monitor.finish()
    return monitor


def test_a_run_that_went_well_has_the_reader_s_number_and_mad_s_two(tree):
    made = plan_of("llama-3.1-8b")
    tree.torchrun(f"{log(50)}\n{END}")
    judged = verdict(made, tree.run(made))
    assert judged.status is Status.SUCCESS and judged.findings == ()
    numbers = {metric.metric: metric.text for metric in judged.metrics}
    assert numbers == {
        "tok_per_s_per_gpu": "25000.000000",
        "TFLOPS_per_gpu": "540.25",
        "tokens_per_s_per_gpu": "24999.9",  # 128 × 8192 ÷ 5.2429 s ÷ 8
    }


def test_a_script_without_tflops_is_a_finding_and_no_failure(tree):
    made = plan_of("deepseek-v2-lite-16b", asked={"release": "v25.4"})
    script = TRAIN.replace('echo "throughput per GPU: 540.25"', "echo -n")
    tree.write("examples/deepseek_v2/train_deepseekv2.sh", "set -e\n" + script)
    planned = f"global batch size: {made.variant.global_batch}"
    tree.torchrun(re.sub(r"global batch size: *\d+", planned, log(50)) + f"\n{END}")
    judged = verdict(made, tree.run(made))
    assert judged.status is Status.SUCCESS, judged.reason
    assert [metric.metric for metric in judged.metrics] == ["tok_per_s_per_gpu", "tokens_per_s_per_gpu"]
    assert judged.findings == ("no TFLOPS_per_gpu: the log has no throughput per GPU",)


@each_row("header", ["", "set -e\n", "set -euo pipefail\n"])
@each_row("tee", [True, False])
def test_tee_does_not_hide_that_training_failed(tree, header, tee):
    made = plan_of("llama-3.1-8b", tee_output=tee)
    tree.write("examples/llama/train_llama3.sh", header + TRAIN)
    tree.torchrun(f"{log(7)}\ntorch.OutOfMemoryError: HIP out of memory", code=3)
    done = tree.run(made)
    assert done.returncode == 3
    judged = verdict(made, done)
    assert judged.status is Status.FAILURE and "exit code 3" in judged.reason


def test_a_script_s_own_failure_is_the_run_s(tree):
    tree.write("examples/llama/train_llama3.sh", "echo 'Model size not supported.'\nexit 1\n")
    made = plan_of("llama-3.1-8b")
    done = tree.run(made)
    judged = verdict(made, done)
    assert done.returncode == 1 and judged.evidence == "Model size not supported."
    told = diagnose(judged.cause, judged.evidence, follow(made, done), DiagnosisInput(plan=made, exit_code=1))
    assert told.cause == "bad_option" and "--set model_size=" in told.hint


def test_an_earlier_run_s_exit_code_is_not_this_one_s(tree):
    made = plan_of("llama-3.1-8b")
    tree.torchrun("x", code=9)
    assert tree.run(made).returncode == 9
    tree.write("examples/llama/train_llama3.sh", "echo nothing is started\n")
    assert tree.run(made).returncode == 0


def test_a_log_that_ends_early_is_incomplete_and_one_without_tee_is_shown_at_the_end(tree):
    # a log that ends early is incomplete
    made = plan_of("llama-3.1-8b")
    tree.torchrun(log(12))
    assert verdict(made, tree.run(made)).reason == "step 12 was the last of 50 asked for"
    # without tee the log is shown at the end
    made = plan_of("llama-3.1-8b", tee_output=False)
    tree.torchrun(f"{log(50)}\n{END}")
    assert verdict(made, tree.run(made)).status is Status.SUCCESS


def test_the_script_runs_in_megatron_s_folder_and_logs_in_the_run_s(tree):
    given = tree.given(plan_of("llama-3.1-8b"))
    assert tree.told("folder") == str(tree.root) and "HF_TOKEN" not in given
    assert given["PYTHONPATH"].split(":")[0] == str(tree.root)
    assert tree.told("torchrun") == "--nproc_per_node 8 pretrain_gpt.py"


def files_with(token: bytes, *folders) -> list[str]:
    files = [file for folder in folders for file in folder.rglob("*") if file.is_file()]
    return [str(file) for file in files if token in file.read_bytes()]


def test_with_a_checkpoint_megatron_saves_and_loads_in_the_run_s_folder(tree):
    made = plan_of("llama-3.1-8b", checkpoint=True)
    tree.torchrun(f"{log(50)}\n{END}")
    assert tree.run(made).returncode == 0
    folder = next(word for word in tree.told("torchrun").split() if word.endswith("/checkpoint"))
    assert tree.told("torchrun") == (
        f"--nproc_per_node 8 pretrain_gpt.py --save {folder} --load {folder} --save-interval 10 --exit-signal-handler"
    )
    assert Path(folder).is_absolute()


def test_what_the_script_leaves_beside_its_own_log_is_gone_after_the_run(tree, tmp_path):
    """It has in clear what the run's log masks."""
    (tmp_path / "scratch").mkdir()
    tree.write(
        "examples/llama/train_llama3.sh",
        'mkdir -p $LOG_DIR/trace_perf\necho "HF_TOKEN=$HF_TOKEN" | tee $LOG_DIR/output_perf.log\n'
        'echo {} >$LOG_DIR/trace_perf/rank0.json\nenv -0 >"$STUB/environment"\n',
    )
    made = plan_of("llama-3.1-8b")
    given = tree.given(made, HF_TOKEN="hf_secret", TMPDIR=str(tmp_path / "scratch"))
    assert given["LOG_DIR"].startswith(f"{tmp_path}/scratch/")
    assert files_with(b"hf_secret", tree.run_folder, tmp_path / "scratch") == []
    assert not (tree.run_folder / "logs").exists()
    assert list((tmp_path / "scratch").iterdir()) == []


def test_a_run_that_is_stopped_leaves_no_log_of_the_script(tree, tmp_path):
    (tmp_path / "two words").mkdir()
    tree.write(
        "examples/llama/train_llama3.sh",
        'echo "HF_TOKEN=$HF_TOKEN" | tee $LOG_DIR/output_perf.log\necho "$LOG_DIR" >"$STUB/there"\nsleep 60\n',
    )
    started = tree.start(plan_of("llama-3.1-8b"), HF_TOKEN="hf_secret", TMPDIR=str(tmp_path / "two words"))
    try:
        assert started.stdout is not None
        while "HF_TOKEN=" not in (line := started.stdout.readline()):
            assert line, "the script did not start"
        there = tree.stub / "there"
        wait_until(lambda: there.exists() and there.read_text(), "the training")
    finally:
        os.killpg(started.pid, signal.SIGTERM)
        code = started.wait(240)
    logs = Path(tree.told("there"))
    assert code != 0 and not logs.exists() and " " not in str(logs)
    assert files_with(b"hf_secret", tree.run_folder) == []


def test_a_folder_for_logs_of_one_s_own_is_left_alone(tree, tmp_path):
    tree.given(plan_of("llama-3.1-8b", log_dir=str(tmp_path / "mine")))
    assert (tmp_path / "mine/output_perf.log").is_file() and not (tree.run_folder / "logs").exists()


ODD = "a b'c\"d$(touch hit)`touch hit`;*\\n ü"


def test_values_arrive_as_the_script_reads_them(tree):
    # odd characters arrive as they are
    tree.write("examples/llama/train_llama3.sh", 'env -0 >"$STUB/environment"\n')
    made = plan_of("llama-3.1-8b", data_dir=ODD, tokenizer_model="-n", exp_name=ODD, args=f"NAME='{ODD[:3]} =x' --flag")
    given = tree.given(made)
    assert given["DATA_DIR"] == given["EXP_NAME"] == ODD
    assert (given["TOKENIZER_MODEL"], given["NAME"]) == ("-n", "a b =x")
    assert not list(tree.root.rglob("hit")) and not list(tree.run_folder.rglob("hit"))
    # switches are written as the script reads them
    llama = tree.given(plan_of("llama-3.1-8b", fsdp=True, seq_parallel=False, use_flash_attn="true", gemm_tuning=False))
    assert [llama[name] for name in ("FSDP", "SEQ_PARALLEL", "USE_FLASH_ATTN", "GEMM_TUNING")] == ["1", "0", "1", "0"]
    mixtral = tree.given(plan_of("mixtral-8x7b", enable_profiling=True, force_balance="0", seq_parallel=False))
    assert [mixtral[name] for name in ("PROFILE", "FORCE_BALANCE", "SP")] == ["true", "false", "false"]
    # what is empty is the script's own
    given = tree.given(plan_of("llama-3.1-8b"))
    unset = ("NUM_LAYERS", "USE_FLASH_ATTN", "DATA_PATH", "DATA_DIR", "TOKENIZER_MODEL", "CKPT_FORMAT", "MASTER_PORT")
    assert [name for name in unset if name in given] == []


def test_two_nodes_get_what_the_document_gives_them(tree):
    sizes = {"global_batch": 256, "data_cache_path": "/nfs/cache", "master_addr": "IP_NODE0", "master_port": "6001"}
    for rank in ("0", "1"):
        made = plan_of("llama-3.1-8b", asked={"precision": "FP8"}, nodes=2, node_rank=rank, **sizes)
        given = tree.given(made)
        names = ("MBS", "BS", "TE_FP8", "NNODES", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT", "DATA_CACHE_PATH")
        assert [given[name] for name in names] == ["2", "256", "1", "2", rank, "IP_NODE0", "6001", "/nfs/cache"]
    # two nodes take rank and address from the environment too
    given = tree.given(plan_of("llama-3.1-8b", nodes=2), NODE_RANK="1", MASTER_ADDR="head")
    assert (given["NNODES"], given["NODE_RANK"], given["MASTER_ADDR"]) == ("2", "1", "head")
    # one node does not listen to a job's variables
    given = tree.given(plan_of("llama-3.1-8b"), NNODES="4", NODE_RANK="3", MASTER_ADDR="head")
    assert (given["NNODES"], given["NODE_RANK"], given["MASTER_ADDR"]) == ("1", "0", "localhost")


def test_old_images_get_an_interface_that_there_is_but_not_over_the_user_s(tree):
    made = plan_of("llama-3.1-8b", asked={"release": "v25.3"})
    assert tree.given(made)["NCCL_SOCKET_IFNAME"] == "lo"
    own = plan_of("llama-3.1-8b", asked={"release": "v25.3"}, nccl_socket_ifname="ens3")
    assert tree.given(own)["NCCL_SOCKET_IFNAME"] == "ens3"
    assert "NCCL_SOCKET_IFNAME" not in tree.given(plan_of("llama-3.1-8b"))


def test_a_line_that_a_version_has_fixed_gives_way_to_what_is_asked_for(tree):
    script = "examples/deepseek_v2/train_deepseekv2.sh"
    lines = (
        'DATA_DIR="/root/deepseek-datasets"\nDATA_CACHE_PATH="${DATA_CACHE_PATH:-/root/cache}"\nTOKENIZER_MODEL="x/y"\n'
    )
    tree.write(
        script, lines + 'export DATA_DIR DATA_CACHE_PATH TOKENIZER_MODEL\nenv -0 >"$STUB/environment"\necho "$0"\n'
    )
    asked = {"release": "v25.4"}
    plain = tree.given(plan_of("deepseek-v2-lite-16b", asked=asked))
    assert (plain["DATA_DIR"], plain["TOKENIZER_MODEL"]) == ("/root/deepseek-datasets", "x/y")
    made = plan_of("deepseek-v2-lite-16b", asked=asked, mock_data=False, data_dir="/data/ds", data_cache_path="/c")
    done = tree.run(made)
    assert done.stdout.strip().endswith(script)
    given = tree.given(made)
    names = ("DATA_DIR", "DATA_CACHE_PATH", "TOKENIZER_MODEL", "MOCK_DATA")
    assert [given[name] for name in names] == ["/data/ds", "/c", "x/y", "0"]


def test_the_document_s_two_names_of_one_script(tree):
    (tree.root / "examples/deepseek_v2/train_deepseekv2.sh").rename(
        tree.root / "examples/deepseek_v2/train_deepseek_v2.sh"
    )
    tree.given(plan_of("deepseek-v2-lite-16b"))
    assert tree.told("called") == "examples/deepseek_v2/train_deepseek_v2.sh"


def test_the_tree_of_the_plan_or_the_environment_is_used_or_told_to_be_missing(tree):
    # megatron root of the plan goes before the environment's
    made = plan_of("llama-3.1-8b", megatron_root=str(tree.root))
    tree.given(made, MEGATRON_ROOT="/nowhere")
    assert tree.told("folder") == str(tree.root)
    # a tree without the script is one line that says which there are
    (tree.root / "examples/llama/train_llama3.sh").unlink()
    done = tree.run(plan_of("llama-3.1-8b"))
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "has none of examples/llama/train_llama3.sh" in done.stderr
    assert "there are: examples/deepseek_v2/train_deepseekv2.sh " in done.stderr
    # no tree is one line that says what is there
    done = tree.run(plan_of("llama-3.1-8b"), MEGATRON_ROOT=str(tree.root.parent / "nowhere"))
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert (
        "no Megatron-LM at" in done.stderr
        and "nowhere" in done.stderr
        and "(in its folder: Megatron-LM, bin" in done.stderr
    )
    assert "megatron_root" in verdict(plan_of("llama-3.1-8b"), done).reason


@each_row("name", ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "MAD_SECRETS_HFTOKEN", "MAD_SECRETS_HF_TOKEN"])
def test_the_token_reaches_the_script_and_no_file(tree, name):
    given = tree.given(plan_of("llama-3.1-8b"), **{name: "hf_secret"})
    assert given["HF_TOKEN"] == "hf_secret"
    files = [file for file in tree.run_folder.rglob("*") if file.is_file()]
    assert not any(b"hf_secret" in file.read_bytes() for file in files)


PREPARE = """env -0 >"$STUB/prepared"
mkdir -p "$DATA_DIR"; : >"$DATA_DIR/data_text_document.bin"; : >"$DATA_DIR/data_text_document.idx"
"""


def test_a_data_set_is_prepared_before_and_once(tree, tmp_path):
    tree.write("examples/llama/prepare_dataset.sh", PREPARE)
    made = plan_of("llama-3.1-8b", mock_data=False, dataset="wiki", data_dir=str(tmp_path / "data"))
    given = tree.given(made)
    assert given["DATA_PATH"] == f"{tmp_path}/data/data_text_document" and given["MOCK_DATA"] == "0"
    prepared = dict(entry.partition("=")[::2] for entry in tree.told("prepared").split("\0"))
    assert (prepared["DATASET"], prepared["TOKENIZER_MODEL"]) == ("wiki", "NousResearch/Meta-Llama-3-8B")
    (tree.stub / "prepared").unlink()
    tree.given(made)
    assert not (tree.stub / "prepared").exists()


def test_scripts_that_prepare_into_a_folder_of_their_own(tree):
    """Up to v25.4: tmp/data/<name> below Megatron's folder, a validation set beside it."""
    tree.write(
        "examples/llama/prepare_dataset.sh",
        "mkdir -p tmp/data/$DATASET && cd tmp/data/$DATASET && touch w.train_document.idx w.valid_document.idx\n",
    )
    given = tree.given(plan_of("llama-2-7b", asked={"release": "v25.4"}, mock_data=False, dataset="wiki"))
    assert given["DATA_PATH"] == "tmp/data/wiki/w.train_document"


def test_a_preparation_that_fails_ends_the_run(tree):
    tree.write("examples/llama/prepare_dataset.sh", "exit 7\n")
    assert tree.run(plan_of("llama-3.1-8b", mock_data=False, dataset="bookcorpus")).returncode == 7
    tree.write("examples/llama/prepare_dataset.sh", "true\n")
    done = tree.run(plan_of("llama-3.1-8b", mock_data=False, dataset="bookcorpus"))
    assert done.returncode == 2 and "no data" in done.stderr and not (tree.stub / "called").exists()


def test_data_of_one_s_own_is_read_unless_data_is_made_up(tree, tmp_path):
    # data of one's own
    assert (
        tree.given(plan_of("llama-3.1-8b", mock_data=False, data_path="/data/my_text"))["DATA_PATH"] == "/data/my_text"
    )
    assert tree.given(plan_of("llama-3.1-8b", mock_data=False), DATA_PATH="/env/text")["DATA_PATH"] == "/env/text"
    (tmp_path / "one").mkdir()
    (tmp_path / "one/mine.idx").touch()
    found = tree.given(plan_of("llama-3.1-8b", mock_data=False, data_dir=str(tmp_path / "one")))
    assert found["DATA_PATH"] == f"{tmp_path}/one/mine" and found["DATA_DIR"] == f"{tmp_path}/one"
    (tmp_path / "one/other.idx").touch()
    done = tree.run(plan_of("llama-3.1-8b", mock_data=False, data_dir=str(tmp_path / "one")))
    assert done.returncode == 2 and "name one with --set data_path=" in done.stderr
    # Scripts from v25.8 on take any DATA_PATH for real data, whatever MOCK_DATA says
    given = tree.given(plan_of("llama-3.1-8b", data_path="/data/my_text"), DATA_PATH="/env/text")
    assert "DATA_PATH" not in given and given["MOCK_DATA"] == "1"


def test_mixtral_s_tokenizer_is_fetched_where_it_is_not_there(tree, tmp_path):
    hub = tmp_path / "hub/huggingface_hub"
    hub.mkdir(parents=True)
    (tmp_path / "cached").write_text("tokens")
    (hub / "__init__.py").write_text(
        "def hf_hub_download(repository, name):\n"
        "    assert (repository, name) == ('mistralai/Mixtral-8x7B-v0.1', 'tokenizer.model')\n"
        f"    return {str(tmp_path / 'cached')!r}\n"
    )
    file = tmp_path / "tokenizer/tokenizer.model"
    made = plan_of("mixtral-8x7b", tokenizer_file=str(file))
    given = tree.given(made, PYTHONPATH=str(tmp_path / "hub"))
    assert given["TOKENIZER_MODEL"] == str(file) and file.read_text() == "tokens"
    (tmp_path / "cached").unlink()
    tree.given(made)  # it is there now
    own = tree.given(plan_of("mixtral-8x7b", tokenizer_model="/mine/tokenizer.model"))
    assert own["TOKENIZER_MODEL"] == "/mine/tokenizer.model"


def with_hub(folder: Path, snapshot: Path) -> str:
    """Write a stand-in for huggingface_hub that has one repository; return what Python finds it by."""
    package = folder / "library/huggingface_hub"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(
        f"def snapshot_download(repository, **options):\n    return {str(snapshot)!r}\n"
    )
    return str(folder / "library")


@each_row(("card", "folder"), [("llama-3.1-8b", True), ("qwen2.5-7b", True), ("deepseek-v2-lite-16b", False)])
def test_a_prepared_tokenizer_is_a_folder_to_scripts_that_would_fetch_it_themselves(tree, tmp_path, card, folder):
    made = plan_of(card)
    prepared = msgspec.structs.replace(made, env={**made.env, "HF_HUB_OFFLINE": "1"})
    given = tree.given(prepared, PYTHONPATH=with_hub(tmp_path, tmp_path / "snapshot"))
    assert (given.get("TOKENIZER_MODEL") == str(tmp_path / "snapshot")) is folder


def test_a_tokenizer_of_one_s_own_stays_where_everything_is_prepared(tree):
    made = plan_of("llama-3.1-8b", tokenizer_model="/mine")
    given = tree.given(msgspec.structs.replace(made, env={**made.env, "HF_HUB_OFFLINE": "1"}))
    assert given["TOKENIZER_MODEL"] == "/mine"


def test_prepared_files_are_seen_in_a_folder_that_can_be_written_to(tree, tmp_path):
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared/text.bin").write_text("data")
    made = plan_of("deepseek-v2-lite-16b", mock_data=False)
    origins = {**made.origins, "env.DATA_DIR": "madlite prepare"}
    given = tree.given(msgspec.structs.replace(made, origins=origins), DATA_DIR=str(tmp_path / "shared"))
    folder = Path(given["DATA_DIR"])
    assert folder.is_relative_to(tree.run_folder) and (folder / "text.bin").read_text() == "data"
    assert tree.given(made, DATA_DIR=str(tmp_path / "shared"))["DATA_DIR"] == str(tmp_path / "shared")


def test_prepared_only_a_run_leaves_its_data_in_data_dir_and_trains_nothing(tree, tmp_path):
    tree.write(
        "examples/llama/prepare_dataset.sh",
        "mkdir -p tmp/data/$DATASET && cd tmp/data/$DATASET && echo i >w_document.idx && echo b >w_document.bin\n",
    )
    made = plan_of("llama-2-7b", asked={"release": "v25.4"}, mock_data=False, dataset="wiki")
    done = tree.run(made, DATA_DIR=str(tmp_path / "data"), MADLITE_PREPARE_ONLY="1")
    assert done.returncode == 0 and not (tree.stub / "called").exists()
    assert sorted(file.name for file in (tmp_path / "data").iterdir()) == ["w_document.bin", "w_document.idx"]
    used = tree.given(made, DATA_DIR=str(tmp_path / "data"))
    assert used["DATA_PATH"] == f"{tmp_path}/data/w_document"


def test_a_tokenizer_that_cannot_be_fetched_is_said(tree, tmp_path):
    done = tree.run(plan_of("mixtral-8x7b", tokenizer_file=str(tmp_path / "none/tokenizer.model")))
    assert f"madlite: no tokenizer at {tmp_path}/none/tokenizer.model" in done.stderr


def test_the_interpreter_of_the_host_is_the_script_s_too(tree, tmp_path):
    venv = tmp_path / "venv"
    venv.mkdir()
    (venv / "python3").symlink_to("/bin/true")
    given = tree.given(plan_of("llama-3.1-8b"), MADLITE_PYTHON=str(venv / "python3"))
    assert given["PATH"].split(os.pathsep)[0] == str(venv)
