"""Plans of the backend megatron_lm, and a stand-in for the fork's tree in which their run.sh is executed for real."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from madlite.model import Card, Machine, Request, RunPlan, RunSpec, Scalar
from madlite.plan.plan_file import render
from madlite_plugins.megatron_lm.backend import MegatronLM
from tests.plugins.logs import TEMPLATES, machine_of, planned

SCRIPTS = (
    "examples/llama/train_llama2.sh",
    "examples/llama/train_llama3.sh",
    "examples/deepseek_v2/train_deepseekv2.sh",
    "examples/deepseek_v3/train_deepseekv3.sh",
    "examples/mixtral/train_mixtral_moe.sh",
    "examples/qwen/train_qwen2.sh",
)
# prints what it was given as the fork's scripts see it, and starts torchrun as they do
TRAIN = """#!/bin/bash
env -0 >"$STUB/environment"
pwd >"$STUB/folder"
echo "$0 $*" >"$STUB/called"
mkdir -p $LOG_DIR
run_cmd="torchrun --nproc_per_node 8 pretrain_gpt.py"
TRAIN_LOG=$LOG_DIR/output_${EXP_NAME:-perf}.log
if [ "${TEE_OUTPUT:-1}" -eq 0 ]; then run_cmd="$run_cmd >& $TRAIN_LOG"; else run_cmd="$run_cmd |& tee $TRAIN_LOG"; fi
eval $run_cmd
echo "throughput per GPU: 540.25" |& tee -a $TRAIN_LOG
echo "elapsed time per iteration: 5242.88" |& tee -a $TRAIN_LOG
echo "tokens/GPU/s: 25000.000000" |& tee -a $TRAIN_LOG
echo "mem usages: 0.5462" |& tee -a $TRAIN_LOG
"""


def card_of(name: str, args: str = "") -> Card:
    full = f"pyt_megatron_lm_train_{name}"
    return Card(name=full, root=Path(), source="a test", n_gpus="-1", args=args or f"--model_repo {full}")


def drafts(name: str, machine: Machine | None = None, **asked: str) -> list[RunSpec]:
    card = card_of(name)
    return list(MegatronLM().expand(Request(card=card, tag=card.name, settings=asked), machine or machine_of()))


def plan_of(
    name: str,
    machine: Machine | None = None,
    asked: Mapping[str, str] | None = None,
    nodes: int = 1,
    args: str = "",
    **changes: Scalar,
) -> RunPlan:
    """Return the plan of a card's first run on all GPUs of a machine, with values of variant and settings changed."""
    machine = machine or machine_of()
    draft, *_ = drafts(name, machine, **(asked or {}))
    known = set(draft.variant.__struct_fields__)
    unknown = set(changes) - known - set(draft.settings)
    assert not unknown, f"no such settings: {unknown}"
    card = card_of(name, args)
    return planned(draft, card, machine, changes, backend="megatron_lm", nodes=nodes, args=card.args)


class Tree:
    """A Megatron-LM tree whose scripts tell what they were given, and a torchrun that prints a log."""

    def __init__(self, folder: Path) -> None:
        self.root, self.run_folder, self.bin = folder / "Megatron-LM", folder / "run", folder / "bin"
        self.stub = folder / "stub"
        for place in (self.root, self.run_folder, self.bin, self.stub):
            place.mkdir()
        for script in SCRIPTS:
            self.write(script, TRAIN)
        self.torchrun("iteration 1")

    def for_row(self, number: int) -> Tree:
        folder = self.stub.parent / f"row{number}"
        folder.mkdir(exist_ok=True)
        return Tree(folder)

    def write(self, name: str, text: str) -> None:
        (self.root / name).parent.mkdir(parents=True, exist_ok=True)
        (self.root / name).write_text(text)

    def torchrun(self, output: str, code: int = 0) -> None:
        (self.stub / "log").write_text(output + "\n")
        program = self.bin / "torchrun"
        program.write_text(f'#!/bin/bash\necho "$*" >"$STUB/torchrun"\ncat "$STUB/log"\nexit {code}\n')
        program.chmod(0o755)

    def run(self, plan: RunPlan, **env: str) -> subprocess.CompletedProcess[str]:
        """Render the plan's run.sh and execute it."""
        given = self._prepare(plan, env)
        return subprocess.run(
            ["bash", "run.sh"], cwd=self.run_folder, env=given, capture_output=True, text=True, check=False, timeout=240
        )

    def start(self, plan: RunPlan, **env: str) -> subprocess.Popen[str]:
        """Render the plan's run.sh and start it in a process group of its own."""
        given = self._prepare(plan, env)
        return subprocess.Popen(
            ["bash", "run.sh"],
            cwd=self.run_folder,
            env=given,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )

    def _prepare(self, plan: RunPlan, env: Mapping[str, str]) -> dict[str, str]:
        for file in render(plan, [TEMPLATES]):
            (self.run_folder / file.path).write_bytes(file.data)
        usual = {
            "PATH": f"{self.bin}:{os.environ['PATH']}",
            "STUB": str(self.stub),
            "MEGATRON_ROOT": str(self.root),
            "HF_HUB_OFFLINE": "1",
            "HF_HOME": str(self.stub / "hub"),
        }
        return {**usual, **env}

    def given(self, plan: RunPlan, **env: str) -> dict[str, str]:
        """Return the environment that the script saw."""
        done = self.run(plan, **env)
        assert done.returncode == 0, done.stderr
        text = (self.stub / "environment").read_text()
        return dict(entry.partition("=")[::2] for entry in text.split("\0") if entry)

    def told(self, name: str) -> str:
        return (self.stub / name).read_text().strip()
