"""The run script of primus, run for real against stand-ins of a Primus tree."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import msgspec
import pytest

from madlite.plan.plan_file import render
from tests.plugins.logs import TEMPLATES
from tests.plugins.primus_plans import machine, mad_card, plan, plans, tree_card
from tests.plugins.rendered import run_sh
from tests.rows import each_row

pytestmark = pytest.mark.host

TITAN, MEGATRON = "primus_pyt_train_", "primus_pyt_megatron_lm_train_"
TOKEN = "hf_nobody_may_see_this"
# what the launchers of Primus do that matters here: they read their words once more, and end in a pipe
EVAL = 'CMD="$show $*"\neval "$CMD" 2>&1 | tee "$log"\n'
PLAIN = '"$show" "$@" 2>&1 | tee "$log"\n'
SHOW = """#!/usr/bin/env bash
for word in "$@"; do echo "word:$word"; done
for name in HF_TOKEN; do [ -z "${!name:-}" ] || echo "$name is set"; done
for name in NNODES NODE_RANK GPUS_PER_NODE MASTER_ADDR MASTER_PORT HSA_NO_SCRATCH_RECLAIM NVTE_CK_USES_BWD_V3 \\
  MOCK_DATA PRIMUS_WORKSPACE PRIMUS_TRAIN_RUNTIME HIP_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES EXP; do
  echo "$name=${!name-unset}"
done
exit "${FAKE_STATUS:-0}"
"""


class Tree:
    """A folder laid out as Primus is, whose launchers tell how they were called."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "examples").mkdir(parents=True)
        self.show = folder / "show.sh"
        self.show.write_text(SHOW)
        self.show.chmod(0o755)

    def for_row(self, number: int) -> Tree:
        return Tree(self.folder.parent / f"row{number}" / "Primus")

    def config(self, path: str) -> Tree:
        (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / path).write_text("modules: {}\n")
        return self

    def script(self, how: str = EVAL) -> Tree:
        head = f'echo "by run_pretrain.sh in $PWD"\nshow={self.show}\nlog=$TRAIN_LOG\n'
        (self.folder / "examples/run_pretrain.sh").write_text(head + how)
        return self

    def cli(self, where: str = "runner") -> Tree:
        runner = self.folder / where
        runner.mkdir(exist_ok=True)
        (runner / "primus-cli").write_text('. "$(dirname "$0")/primus-cli-direct.sh"\n')
        head = f'set -u\necho "by primus-cli $1 $2 in $PWD"\nshow={self.show}\nlog=$3\nshift 4\n'
        (runner / "primus-cli-direct.sh").write_text(head + EVAL)
        return self


@pytest.fixture
def tree(tmp_path):
    return Tree(tmp_path / "Primus")


def run(made, tree: Tree | None, folder: Path, session: bool = False, **env: str) -> subprocess.CompletedProcess:
    folder.mkdir(parents=True, exist_ok=True)
    for file in render(made, [TEMPLATES]):
        (folder / file.path).write_bytes(file.data)
    base = {"PATH": os.environ["PATH"], "HOME": str(folder)}
    root = {"PRIMUS_ROOT": str(tree.folder)} if tree else {}
    command = ["bash", "run.sh"]
    env = {**base, **root, **env}
    return subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, check=False, start_new_session=session
    )


def words(done: subprocess.CompletedProcess) -> list[str]:
    return [line.removeprefix("word:") for line in done.stdout.splitlines() if line.startswith("word:")]


def titan(**asked):
    return plan(f"{TITAN}llama-3.1-8b", precision="BF16", release="v25.10", **asked)


TITAN_CONFIG = "examples/torchtitan/configs/MI300X/llama3.1_8B-BF16-pretrain.yaml"
MEGATRON_CONFIG = "examples/megatron/configs/MI300X/llama2_7B-BF16-pretrain.yaml"


def megatron(**asked):
    return plan(f"{MEGATRON}llama-2-7b", precision="BF16", release="v26.5", **asked)


def test_torchtitan_starts_by_the_script(tree, tmp_path):
    done = run(titan(), tree.config(TITAN_CONFIG).script().cli(), tmp_path / "a run")
    assert done.returncode == 0, done.stderr
    assert f"by run_pretrain.sh in {tree.folder}" in done.stdout
    assert f"EXP={TITAN_CONFIG}" in done.stdout and "HF_TOKEN is set" not in done.stdout
    expected = "--training.local_batch_size 4 --training.seq_len 8192 --training.steps 50 --metrics.log_freq 1"
    assert words(done) == expected.split()


def with_hub(folder: Path) -> str:
    """Write a stand-in for huggingface_hub with a tokenizer and c4 in its cache; return what Python finds it by."""
    for file in ("cache/tokenizer.json", "cache/tokenizer_config.json", "cache/en/c4-train.00000-of-01024.json.gz"):
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(file)
    package = folder / "library/huggingface_hub"
    package.mkdir(parents=True)
    text = f"def snapshot_download(repository, **options):\n    return {str(folder / 'cache')!r}\n"
    (package / "__init__.py").write_text(text)
    return str(folder / "library")


def test_prepared_torchtitan_finds_tokenizer_and_text_where_primus_looks(tree, tmp_path):
    made = titan(mock_data="false")
    made = msgspec.structs.replace(made, env={**made.env, "HF_HUB_OFFLINE": "1"})
    folder = tmp_path / "run"
    done = run(made, tree.config(TITAN_CONFIG).script(), folder, PYTHONPATH=with_hub(tmp_path), HF_HUB_OFFLINE="1")
    assert done.returncode == 0, done.stderr
    assert words(done)[-2:] == ["--training.dataset_path", f"{folder}/c4"]
    assert (folder / "c4/c4-train.00000-of-01024.json.gz").is_file()
    data = tree.folder / "data/torchtitan"
    for name in ("meta-llama/Llama-3.1-8B", "Llama-3.1-8B"):  # older and newer versions
        assert (data / name / "tokenizer.json").read_text() == "cache/tokenizer.json"
    assert "HF_TOKEN is set" in done.stdout, "newer versions stop without one before they look"


def test_megatron_starts_by_primus_cli(tree, tmp_path):
    done = run(megatron(), tree.config(MEGATRON_CONFIG).script().cli(), tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert f"by primus-cli direct --log_file in {tree.folder}" in done.stdout
    assert words(done)[:5] == ["train", "pretrain", "--config", MEGATRON_CONFIG, "--micro_batch_size"]
    seen = variables(done)
    assert (seen["EXP"], seen["MOCK_DATA"], seen["NVTE_CK_USES_BWD_V3"]) == ("unset", "1", "1")


@each_row("made", [titan, megatron])
def test_a_launcher_in_the_tree_s_own_folder_starts_what_has_no_other(made, tree, tmp_path):
    """Primus v26.7 has its launcher there, and MAD starts all of it with that one."""
    config = made().settings["config"]
    done = run(made(flags="--note 'two words'"), tree.config(config).cli("."), tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert f"by primus-cli direct --log_file in {tree.folder}" in done.stdout
    assert words(done)[:4] == ["train", "pretrain", "--config", config]
    assert "two words" in words(done), "the launcher reads its words once more"


def leaking(tree: Tree) -> Tree:
    """Have the workload write its token where Primus logs: to its output, and to files in its workspace."""
    tree.show.write_text('echo "token $HF_TOKEN"\necho "$HF_TOKEN" > "$PRIMUS_WORKSPACE/rank-0.log"\n' + SHOW)
    return tree.script().cli()


@each_row("made", [titan, megatron])
def test_nothing_in_the_run_s_folder_has_a_token_that_the_workload_shows(made, tree, tmp_path):
    leaking(tree.config(made().settings["config"]))
    done = run(made(), tree, tmp_path / "run", HF_TOKEN=TOKEN)
    assert done.returncode == 0 and f"token {TOKEN}" in done.stdout, "the run's own log, where it is masked"
    written = [file.read_bytes() for file in (tmp_path / "run").rglob("*") if file.is_file()]
    assert written and not any(TOKEN.encode() in data for data in written)


@each_row("status", ["0", "7"])
def test_primus_s_workspace_is_gone_afterwards_unless_it_is_the_user_s(status, tree, tmp_path):
    leaking(tree.config(TITAN_CONFIG))
    done = run(titan(), tree, tmp_path / "run", FAKE_STATUS=status, HF_TOKEN=TOKEN)
    workspace = Path(variables(done)["PRIMUS_WORKSPACE"])
    assert tmp_path / "run" not in workspace.parents and not workspace.exists()
    own = tmp_path / "own"
    own.mkdir()
    done = run(titan(), tree, tmp_path / "run", FAKE_STATUS=status, HF_TOKEN=TOKEN, PRIMUS_WORKSPACE=str(own))
    assert done.returncode == int(status) and (own / "rank-0.log").is_file()


@each_row(
    ("experiment", "folder"),
    [("${PRIMUS_EXP_NAME:llama3.1_8B-pretrain}", "$PRIMUS_EXP_NAME"), ('"quoted" # mine', "quoted"), ("mine", "mine")],
)
@each_row("status", ["0", "7"])
def test_no_unmasked_log_stays_in_a_tree_whose_file_names_its_workspace_itself(
    status, experiment, folder, tree, tmp_path
):
    folder = f"output/amd/root/{folder}/logs"
    tree.config(TITAN_CONFIG).script()
    (tree.folder / TITAN_CONFIG).write_text(f"workspace: ./output\nexp_name: {experiment}\nmodules: {{}}\n")
    for own in ("mine", "quoted", "other"):  # what an earlier run has left there
        earlier = tree.folder / f"output/amd/root/{own}/logs/own.log"
        earlier.parent.mkdir(parents=True)
        earlier.write_text("earlier")
    tree.show.write_text(f'mkdir -p "{folder}/rank-0"\necho "$HF_TOKEN" >"{folder}/rank-0/debug.log"\n{SHOW}')
    before = sorted(tree.folder.rglob("*"))
    done = run(titan(), tree, tmp_path / "run", FAKE_STATUS=status, HF_TOKEN=TOKEN)
    assert done.returncode == int(status), done.stderr
    left = {file for file in tree.folder.rglob("*") if file.is_file()}
    assert not any(TOKEN.encode() in file.read_bytes() for file in left)
    assert sorted(tree.folder.rglob("*")) == before, "and nothing else is gone"


def test_flags_that_are_set_reach_primus(tree, tmp_path):
    flags = "--primus_turbo.use_classic_attention true --job.description 'a b'"
    for made, config in ((titan, TITAN_CONFIG), (megatron, MEGATRON_CONFIG)):
        done = run(made(flags=flags), tree.config(config).script(), tmp_path / "run")
        at = words(done).index("--primus_turbo.use_classic_attention")
        assert words(done)[at : at + 4] == ["--primus_turbo.use_classic_attention", "true", "--job.description", "a b"]


@each_row("gpu", ["MI350X", "MI355X"])
def test_deepseek_in_fp8_is_told_mad_s_flags(gpu, tree, tmp_path):
    made = plan(f"{TITAN}deepseek-v2", machine(gpu), precision="FP8", release="v25.10")
    config = "examples/torchtitan/configs/MI355X/deepseek_v3_16b-pretrain.yaml"
    done = run(made, tree.config(config).script(), tmp_path / "run")
    assert f"EXP={config}" in done.stdout
    assert words(done)[:8] == [
        *("--primus_turbo.use_moe_fp8", "true", "--primus_turbo.use_turbo_float8_linear", "true"),
        *("--primus_turbo.use_classic_attention", "false", "--training.local_batch_size", "16"),
    ]


def test_a_stopped_run_waits_for_its_launcher_s_own_end(tree, tmp_path):
    stopped = 'echo "workspace $PRIMUS_WORKSPACE"\ntrap "echo bye; exit 9" TERM\nkill -TERM 0\n'
    done = run(titan(), tree.config(TITAN_CONFIG).script(stopped), tmp_path / "run", session=True)
    assert done.returncode == 9 and done.stdout.endswith("bye\n")
    (workspace,) = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("workspace ")]
    assert not Path(workspace).exists()


@each_row(("made", "config"), [(megatron, MEGATRON_CONFIG), (titan, TITAN_CONFIG)])
def test_the_other_launcher_stands_in_and_that_is_said(made, config, tree, tmp_path):
    tree.config(config)
    tree.script() if made is megatron else tree.cli()
    done = run(made(), tree, tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert "starts the training" in done.stderr and str(tree.folder) in done.stderr
    assert words(done)


def test_a_post_training_has_one_launcher_alone(tree, tmp_path):
    made = plan(f"{MEGATRON}qwen3-32b-lora", release="v26.2")
    done = run(made, tree.config(made.settings["config"]).script(), tmp_path / "run")
    assert done.returncode == 2 and "no runner/primus-cli" in done.stderr


def test_a_missing_config_is_one_line_with_those_near_it(tree, tmp_path):
    near = "examples/torchtitan/configs/MI355X/llama3.1_8B-FP8-pretrain.yaml"
    done = run(titan(), tree.config(near).config(MEGATRON_CONFIG).script(), tmp_path / "run")
    assert done.returncode == 2 and done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert TITAN_CONFIG in line and near in line and "llama2" not in line


def test_a_missing_config_without_any_of_its_name_shows_the_folders(tree, tmp_path):
    done = run(titan(), tree.config(MEGATRON_CONFIG).script(), tmp_path / "run")
    assert done.returncode == 2 and "near it: examples/megatron/configs/MI300X" in done.stderr


@each_row("by", ["primus_root", "$PRIMUS_ROOT"])
def test_a_folder_that_is_named_and_is_no_primus_is_refused(by, tree, tmp_path):
    made = titan(primus_root="/nothing here") if by == "primus_root" else titan()
    environment = {"PRIMUS_ROOT": "/nothing here"} if by == "$PRIMUS_ROOT" else {"PRIMUS_ROOT": str(tree.folder)}
    done = run(made, None, tmp_path / "run", **environment)
    assert done.returncode == 2 and done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line == f"madlite: there is no Primus here: {by} names /nothing here, which has no folder examples"


@pytest.mark.skipif(Path("/workspace/Primus/examples").is_dir(), reason="this machine has a Primus")
def test_no_primus_at_all_is_one_line(tmp_path):
    done = run(titan(), None, tmp_path / "run")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "/workspace/Primus" in line and "primus_root" in line and "$PRIMUS_ROOT" in line


def test_on_the_host_the_tree_of_the_card_is_what_is_trained(tree, tmp_path):
    config = "examples/megatron/configs/MI300X/deepseek_v2_lite-BF16-pretrain.yaml"
    card = tree_card(tree.config(config).cli().folder, ep=1)
    done = run(plan(card, runtime="host"), None, tmp_path / "run")
    assert done.returncode == 0 and f"in {tree.folder}" in done.stdout
    other = Tree(tmp_path / "other").config(config).cli()
    assert f"in {other.folder}" in run(plan(card, runtime="host"), other, tmp_path / "run").stdout
    assert str(tree.folder) not in run_sh(plan(card, runtime="docker"))


def test_a_named_folder_goes_before_the_variable(tree, tmp_path):
    tree.config(TITAN_CONFIG).script()
    done = run(titan(primus_root=str(tree.folder)), None, tmp_path / "run", PRIMUS_ROOT=str(tmp_path))
    assert done.returncode == 0, done.stderr


@each_row("made", [titan, megatron])
def test_a_failing_training_is_not_hidden_by_the_launcher_s_pipe(made, tree, tmp_path):
    """Neither of these launchers sets pipefail itself: that is the template's."""
    tree.config(made().settings["config"]).script().cli()
    done = run(made(), tree, tmp_path / "run", FAKE_STATUS="7")
    assert done.returncode == 7, done.stderr


ODD = ["a b", '$(touch "$HOME/odd")', "it's", '"', "*", "x;y", "", "t*1|t*2", "ü\\n"]


@each_row("how", [EVAL, PLAIN])
def test_odd_words_arrive_as_they_are(how, tree, tmp_path):
    import shlex

    card = mad_card(f"{TITAN}llama-3.1-8b", scripts="", args=shlex.join(["--x", *ODD]))
    (made,) = plans(card, precision="BF16", release="v25.10")
    done = run(made, tree.config(TITAN_CONFIG).script(how), tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert words(done)[-len(ODD) :] == ODD
    assert not (tmp_path / "run" / "odd").exists()


@each_row("name", ["HF_TOKEN", "MAD_SECRETS_HFTOKEN", "HUGGING_FACE_HUB_TOKEN"])
def test_a_token_is_handed_on_and_never_written(name, tree, tmp_path):
    folder = tmp_path / "run"
    done = run(titan(), tree.config(TITAN_CONFIG).script(), folder, **{name: TOKEN})
    assert "HF_TOKEN is set" in done.stdout
    written = [file.read_bytes() for file in folder.rglob("*") if file.is_file()]
    assert written and not any(TOKEN.encode() in data for data in written)
    assert TOKEN not in done.stdout + done.stderr


def variables(done: subprocess.CompletedProcess) -> dict[str, str]:
    return dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line and not line.startswith("word:"))


def test_the_ranks_are_the_plan_s_and_not_a_surrounding_job_s(tree, tmp_path):
    tree.config(TITAN_CONFIG).script()
    seen = variables(run(titan(), tree, tmp_path / "run", NNODES="4", NODE_RANK="3", MASTER_ADDR="head"))
    assert (seen["NNODES"], seen["NODE_RANK"], seen["GPUS_PER_NODE"]) == ("1", "0", "8")
    assert seen["MASTER_ADDR"] == "localhost" and 1023 < int(seen["MASTER_PORT"]) < 65536
    assert seen["HSA_NO_SCRATCH_RECLAIM"] == "1"


def test_several_nodes_meet_at_one_address_and_port(tree, tmp_path):
    tree.config(MEGATRON_CONFIG).cli()
    ports = set()
    for rank in ("0", "1"):
        made = megatron(nnodes=2, node_rank=rank, master_addr="head", global_batch=512)
        seen = variables(run(made, tree, tmp_path / rank))
        assert (seen["NNODES"], seen["NODE_RANK"], seen["MASTER_ADDR"]) == ("2", rank, "head")
        ports.add(seen["MASTER_PORT"])
    assert len(ports) == 1
    seen = variables(run(megatron(nnodes=2), tree, tmp_path / "env", NODE_RANK="1", MASTER_ADDR="x", MASTER_PORT="77"))
    assert (seen["NODE_RANK"], seen["MASTER_ADDR"], seen["MASTER_PORT"]) == ("1", "x", "77")


def test_what_the_user_sets_stays(tree, tmp_path):
    tree.config(MEGATRON_CONFIG).cli()
    given = {"MASTER_PORT": "4711", "HSA_NO_SCRATCH_RECLAIM": "0", "NVTE_CK_USES_BWD_V3": "0", "MOCK_DATA": "x"}
    seen = variables(run(megatron(), tree, tmp_path / "run", **given))
    assert {name: seen[name] for name in given} == given


def test_on_the_host_the_granted_gpus_are_those_that_primus_counts_from_zero(tree, tmp_path):
    tree.config(TITAN_CONFIG).script()
    (made,) = plans(f"{TITAN}llama-3.1-8b", runtime="host", precision="BF16", release="v25.10")
    seen = variables(run(made, tree, tmp_path / "run", HIP_VISIBLE_DEVICES="4,5"))
    assert (seen["HIP_VISIBLE_DEVICES"], seen["ROCR_VISIBLE_DEVICES"]) == ("unset", "4,5")


def test_an_earlier_post_training_s_checkpoints_are_told_and_left_alone(tree, tmp_path):
    made = plan(f"{MEGATRON}qwen3-32b-lora", release="v26.2")
    tree.config(made.settings["config"]).cli()
    (tree.folder / "nemo_experiments").mkdir()
    done = run(made, tree, tmp_path / "run")
    assert "nemo_experiments is of an earlier run" in done.stderr
    assert words(done)[:2] == ["train", "posttrain"] and (tree.folder / "nemo_experiments").is_dir()
