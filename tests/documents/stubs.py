"""Programs and folders of AMD's images that only write down how they were called, for a rendered script to run in."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable
from pathlib import Path

import msgspec

from madlite.model import RunPlan
from madlite.plan.plan_file import Rendered

TOKEN = "hf_TheTokenOfTheDocuments"
_RECORD = r"""{ printf '%s\0' "$PWD" "$@" '>env'; env -0; } >"$STUB/call.$EPOCHREALTIME.$BASHPID"
"""
_PYTHON = r"""#!/bin/bash
. "$STUB/record" python "$@"
case "$*" in
  *fetch.py*) echo "$STUB/hub" ;;
  *find_recipes.py*) echo "$STUB/recipes" ;;
  *socket*) echo 4711 ;;
esac
"""
_PROGRAM = '#!/bin/bash\n. "$STUB/record" {name} "$@"\n'
_SCRIPT = '. "$STUB/record" bash "$0" "$@"\n'
# what an earlier trainer and launcher know, as their sources name it: run.sh looks for it there
_LAUNCHER = 'for name in ("--param_config_file", "--accelerate_config_template", "--output_dir", "--no_resume"): ...\n'
_TRAINER = 'known = ("--model", "--mixed_precision", "--train_batch_size")\n'
_MEGATRON = ("llama/train_llama2.sh", "llama/train_llama3.sh", "deepseek_v2/train_deepseekv2.sh")
_PREPARE = 'mkdir -p "$DATA_DIR"; touch "$DATA_DIR/text.idx" "$DATA_DIR/text.bin"\n'
_TREES = {
    "Primus": {"examples/run_pretrain.sh": _SCRIPT},
    "Megatron-LM": {
        **{f"examples/{name}": _SCRIPT for name in _MEGATRON},
        "examples/llama/prepare_dataset.sh": _PREPARE + _SCRIPT,
    },
    "pytorch-training-benchmark": {"train_fsdp.py": ""},
    "torchtitan": {
        "run_llama_train.sh": _SCRIPT,
        "requirements.txt": "",
        "train_configs/llama3_70b.toml": 'tokenizer_path = "./assets/tokenizer/original/tokenizer.model"\n',
    },
    "FluxBenchmark": {"launcher.py": _LAUNCHER, "train.py": _TRAINER},
    "llama3_1_8B": {"train_llama.py": "", "fsdp_fp8.yaml": ""},
}
_OF_THE_TEST = {"PATH", "PWD", "OLDPWD", "SHLVL", "_", "HOME", "STUB", "MADLITE_PYTHON", "TRAIN_LLAMA_ROOT"}


class Call(msgspec.Struct, frozen=True):
    """A program's words and environment, with the run's own folders in short."""

    words: tuple[str, ...]
    env: dict[str, str]


class Image:
    """An image's programs, and the folders of its /workspace."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.stub, self.bin, self.run_folder = folder, folder / "stub", folder / "bin", folder / "run"
        for place in (self.stub, self.bin, self.run_folder):
            place.mkdir()
        (self.stub / "record").write_text(_RECORD)
        programs = {name: _PROGRAM.format(name=name) for name in ("torchrun", "tune", "accelerate", "make", "wget")}
        programs |= {"python": _PYTHON, "python3": _PYTHON, "rocm-smi": "#!/bin/sh\n"}
        for name, text in programs.items():
            (self.bin / name).write_text(text)
            (self.bin / name).chmod(0o755)
        self._write(self.stub / "hub/original/tokenizer.model", "")
        for tree, files in _TREES.items():
            for name, text in files.items():
                self._write(folder / tree / name, text)

    def _write(self, file: Path, text: str) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def calls(self, plan: RunPlan, files: Iterable[Rendered]) -> list[Call]:
        """Run a plan's script among its other files, and return what that called."""
        if "config" in plan.settings and plan.backend == "primus":
            self._write(self.folder / "Primus" / str(plan.settings["config"]), "")
        for file in files:
            text = file.data.decode()
            self._write(self.run_folder / file.path, text.replace("/workspace", str(self.folder)))
        done = subprocess.run(
            ["bash", "run.sh"], cwd=self.run_folder, env=self._env(plan), capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return [call for call in self._recorded() if call.words[:2] != ("python", "-c")]

    def _env(self, plan: RunPlan) -> dict[str, str]:
        given = {name: str(value) for name, value in plan.env.items()}
        own = {"STUB": self.stub, "HOME": self.folder, "MADLITE_PYTHON": self.bin / "python"}
        more = {"TRAIN_LLAMA_ROOT": self.folder / "llama3_1_8B", "PATH": f"{self.bin}:{os.environ['PATH']}"}
        return {**given, "MAD_SECRETS_HFTOKEN": TOKEN, **{name: str(value) for name, value in (own | more).items()}}

    def _recorded(self) -> list[Call]:
        found = []
        for file in sorted(self.stub.glob("call.*")):
            words, _, env = file.read_text().partition("\0>env\0")
            folder, *argv = words.split("\0")
            pairs = (one.partition("=") for one in env.split("\0") if one)
            kept = {name: self._short(value, folder) for name, _, value in pairs if name not in _OF_THE_TEST}
            found.append(Call(words=_plain([self._short(word, folder) for word in argv]), env=kept))
        return found

    def _short(self, text: str, folder: str) -> str:
        """Return a text with what lies in the program's own folder by its name there, and `$RUN` and so on."""
        for place, short in ((folder + "/", ""), (self.run_folder, "$RUN"), (self.stub, "$STUB"), (TOKEN, "$token")):
            text = text.replace(str(place), short)
        for tree in _TREES:
            text = text.replace(f"{self.folder / tree}/", "")
        return text.replace(str(self.folder), "/workspace").replace("$STUB/recipes/", "")


def _plain(words: list[str]) -> tuple[str, ...]:
    """Return the words with torchrun and accelerate by their names, as which madlite starts them from Python."""
    if words[:2] == ["python", "-c"] and "torch.distributed.run" in words[2]:
        return ("torchrun", *words[3:])
    if words[:3] == ["python", "-m", "accelerate.commands.launch"]:
        return ("accelerate", "launch", *words[3:])
    return ("pip", *words[3:]) if words[:3] == ["python", "-m", "pip"] else tuple(words)
