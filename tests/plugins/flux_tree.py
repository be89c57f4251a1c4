"""Plans of the backend flux, and a stand-in for the benchmark's tree in which their run.sh is executed for real."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from madlite.measure.monitor import LogMonitor
from madlite.measure.verdict import Observation, Verdict, judge
from madlite.model import Card, Exit, Machine, Request, RunPlan, RunSpec, Scalar
from madlite.plan.plan_file import render
from madlite_plugins.flux import madlite_failure_rules
from madlite_plugins.flux.backend import Flux
from tests.plugins.logs import TEMPLATES, machine_of, planned
from tests.plugins.test_torchtitan_tags import card_of

# tells what it was given, trains as long as it was asked to, and fails where STUB_FAIL says how
TRAIN = r"""
import json, os, sys
given = dict(zip(sys.argv[1::2], sys.argv[2::2]))
json.dump([sys.argv[1:], dict(os.environ)], open(os.environ["STUB"] + "/train.json", "w"))
known = {"--model", "--mixed_precision", "--train_batch_size"} # grep looks for "--model" here
batch, steps = int(given["--train_batch_size"]), int(given["--num_iterations"])
fail, flops = os.environ.get("STUB_FAIL", ""), 0.0 if os.environ.get("STUB_COMPILED") else 276.2
for n in range(1, steps + 1):
    if fail and n == 8:
        print(fail, flush=True)
        sys.exit(1)
    seconds = 9.0 if n <= 5 else 2.0 + (n % 2) / 100
    step = {"step_time_total": seconds + 0.1, "step_loss": 0.5, "lr": 1e-05, "step_time_gpu": seconds,
            "fps_gpu": batch / seconds, "tflops/s": flops, "train_loss": 0.5}
    step = {k: float(f"{v:.4E}") for k, v in step.items()}
    print(f"2026-11-21 00:26:{n % 60:02d},018 - INFO - Step {n}: {step}", flush=True)
"""
# a later one, which takes other weights and data
LATER_TRAIN = TRAIN.replace("known = {", 'known = {"--model_path", "--train_data_path", ')
SUMMARY = r"""
def summarize(folder, log, status):
    rows = [eval(line.partition(": ")[2]) for line in open(log) if "INFO - Step" in line][5:]
    mean = lambda key: sum(row[key] for row in rows) / len(rows) if rows else None
    with open(folder + "/runs_summary.csv", "w", encoding="utf-8-sig") as file:
        file.write("run_id,status,train_batch_size,avg_step_time_gpu,avg_fps_gpu,avg_tflops\n")
        figures = [mean(key) for key in ("step_time_gpu", "fps_gpu", "tflops/s")]
        text = ["" if one is None else f"{float(f'{one:.4E}'):.6f}" for one in figures]
        file.write(",".join(["1", status, "10", *text]) + "\n")

def status_of(log):
    text = open(log).read()
    return "oom" if "out of memory" in text else "error" if "Traceback" in text or "ERROR" in text else "success"
"""
# as the later launcher: overrides as hydra takes them, the trainer's output on the screen as well, exit code 0
HYDRA = (
    SUMMARY
    + r"""
# @hydra.main(version_base=None, config_path="config")
import json, os, subprocess, sys
stub = os.environ["STUB"]
json.dump(sys.argv[1:], open(stub + "/overrides.json", "w"))
known = {"train_args.train_batch_size", "train_args.num_iterations", "accelerate_config.num_processes",
         "accelerate_config.mixed_precision", "train_args", "hydra.run.dir"}
values = {}
for word in sys.argv[1:]:
    if word.startswith("--config-name="):
        continue
    key, _, value = word.partition("=")
    if not key.startswith("++") and key not in known:
        sys.exit(f"Could not override '{key}'.\nTo append to your config use +{word}")
    values[key.lstrip("+")] = json.loads(value) if value.startswith('"') else value
folder = values["train_args.logging_dir"]
assert os.path.isdir(folder) and values["hydra.run.dir"] == folder
pairs = [("--" + key[11:], value) for key, value in values.items() if key.startswith("train_args.")]
arguments = [part for pair in pairs for part in pair]
command = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", "/dev/null", "train.py", *arguments]
words = ["accelerate", *command[3:]]
print("[2026-11-21 00:25:50,100][root][INFO] - Executing command for run 1: " + " ".join(words), flush=True)
log = folder + "/1_logs_mdl=flux.txt"
with open(log, "w") as file:
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    for line in process.stdout:
        sys.stdout.write(line)
        file.write(line)
code = process.wait()
if code:
    print(f"[2026-11-21 00:27:00,100][root][ERROR] - Run 1 failed with return code {code}. Check {log} for details.")
else:
    print("[2026-11-21 00:27:00,100][root][INFO] - Run 1 completed successfully!")
summarize(folder, log, os.environ.get("STUB_STATUS") or status_of(log))
"""
)
# what both launchers do once they know the training's arguments
TRAINED = """
log = asked.output_dir + "/1_logs.txt"
print("2026-11-21 00:25:50,100 - INFO - Executing command for run 1: accelerate launch --config_file x train.py")
with open(log, "w") as file:
    code = subprocess.call([sys.executable, "train.py", *arguments], stdout=file, stderr=subprocess.STDOUT)
words = f"ERROR - Run 1 failed with return code {code}. Check {log}" if code else "INFO - Run 1 completed successfully!"
print(f"2026-11-21 00:27:00,100 - {words}")
summarize(asked.output_dir, log, status_of(log))
"""
# as the earlier one: files, and the trainer's output in a log alone
FILES = (
    SUMMARY
    + r"""
import argparse, json, os, re, subprocess, sys # takes no overrides of hydra's
options = argparse.ArgumentParser()
for name in ("--param_config_file", "--output_dir", "--warmup_steps"):
    options.add_argument(name)
options.add_argument("--accelerate_config_template", default="config/accelerate_fsdp_config.yaml")
options.add_argument("--no-resume", action="store_false", dest="resume")
asked = options.parse_args()
text = open(asked.param_config_file).read()
json.dump([text, asked.accelerate_config_template, asked.resume], open(os.environ["STUB"] + "/files.json", "w"))
pairs = [re.fullmatch(r'  "?(\w+)"?: \[(.*)\]', line) for line in text.partition("cli_args:")[2].splitlines() if line]
arguments = [part for pair in pairs for part in ("--" + pair[1], str(json.loads(pair[2])))]
"""
    + TRAINED
)
# as that of March 2025: options, hydra's overrides beside them, a log of its own, and nothing for a run that was done
COMPOSED = (
    SUMMARY
    + r"""
import argparse, json, os, subprocess, sys
if False:
    from hydra import compose, initialize
options = argparse.ArgumentParser()
options.add_argument("--config_file", default="config/flux_mini_benchmark.yaml")
options.add_argument("--output_dir", default="outputs/runs/sweep_000")
options.add_argument("--warmup_steps", type=int, default=5)
options.add_argument("--no_resume", action="store_false", dest="resume")
asked, overrides = options.parse_known_args()
json.dump([vars(asked), overrides], open(os.environ["STUB"] + "/composed.json", "w"))
if asked.resume and os.path.exists(asked.output_dir + "/runs_summary.csv"):
    print("2026-11-21 00:25:50,100 - INFO - SUCCESS: Skipping run 1 with status 'success' due to resume flag.")
    sys.exit(0)
known = {"train_args.train_batch_size", "train_args.num_iterations", "accelerate_config.num_processes",
         "accelerate_config.mixed_precision", "train_args"}
values = {}
for word in overrides:
    key, _, value = word.partition("=")
    if not key.startswith("++") and key not in known:
        sys.exit(f"Could not override '{key}'.")
    values[key.lstrip("+")] = json.loads(value) if value.startswith('"') else value
pairs = [("--" + key[11:], value) for key, value in values.items() if key.startswith("train_args.")]
arguments = [part for pair in pairs for part in pair]
"""
    + TRAINED
)
LAUNCH = r"""
import json, os, runpy, sys
json.dump(sys.argv[1:], open(os.environ["STUB"] + "/accelerate.json", "w"))
at = sys.argv.index("train.py")
sys.argv = sys.argv[at:]
runpy.run_path("train.py", run_name="__main__")
"""
HUB = r"""
import json, os
def snapshot_download(repository, repo_type="model", revision=None, allow_patterns=None):
    with open(os.environ["STUB"] + "/fetched", "a") as file:
        file.write(json.dumps([repository, repo_type, revision, allow_patterns]) + "\n")
    folder = os.path.join(os.environ["STUB"], "hub", repository)
    os.makedirs(folder, exist_ok=True)
    return folder
"""


def drafts_of(tag: str, device: str = "MI300X", **asked: str) -> list[RunSpec]:
    return list(Flux().expand(Request(card=card_of(tag), tag=tag, settings=asked), machine_of(device)))


def plan_of(draft: RunSpec, machine: Machine | None = None, nodes: int = 1, **changes: Scalar) -> RunPlan:
    """Return the plan of a draft on all GPUs of a machine, with values of variant and settings changed."""
    machine = machine or machine_of("MI300X")
    known = set(draft.variant.__struct_fields__)
    unknown = set(changes) - known - set(draft.settings)
    assert not unknown, f"no such settings: {unknown}"
    card = Card(name="pyt_train_flux", root=Path(), source="a test", scripts="run.sh", args="--model_repo x")
    origins = {f"settings.{key}": "--set" for key in changes if key not in known}
    return planned(draft, card, machine, changes, backend="flux", nodes=nodes, args=card.args, origins=origins)


class Tree:
    """The benchmark's folder, what it calls, and a hub; each tells what it was asked."""

    def __init__(self, folder: Path, launcher: str = HYDRA, train: str = TRAIN) -> None:
        self.folder, self.root, self.run_folder = folder, folder / "AMDiffusionBenchmark", folder / "run"
        self.stub = folder / "stub"
        for name, text in {"launcher.py": launcher, "train.py": train}.items():
            self.write(self.root / name, text)
        self.write(self.root / "config/accelerate_fsdp_config.yaml", "fsdp_sharding_strategy: FULL_SHARD\n")
        self.write(folder / "python/accelerate/__init__.py", "")
        self.write(folder / "python/accelerate/commands/__init__.py", "")
        self.write(folder / "python/accelerate/commands/launch.py", LAUNCH)
        self.write(folder / "python/huggingface_hub.py", HUB)
        self.write(folder / "bin/rocm-smi", "#!/bin/sh\n")
        (folder / "bin/rocm-smi").chmod(0o755)
        self.run_folder.mkdir()
        self.stub.mkdir()

    def for_row(self, number: int) -> Tree:
        return Tree(self.folder / f"row{number}")

    def write(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def run(self, plan: RunPlan, **env: str) -> subprocess.CompletedProcess[str]:
        """Render the plan's files and execute its run.sh."""
        for file in render(plan, [TEMPLATES]):
            (self.run_folder / file.path).write_bytes(file.data)
        given = {
            "PATH": f"{self.folder}/bin:{os.environ['PATH']}",
            "STUB": str(self.stub),
            "PYTHONPATH": str(self.folder / "python"),
            "MADLITE_PYTHON": sys.executable,
            "FLUX_BENCHMARK_ROOT": str(self.root),
            **{name: str(value) for name, value in plan.env.items()},
            **env,
        }
        return subprocess.run(
            ["bash", "run.sh"], cwd=self.run_folder, env=given, capture_output=True, text=True, check=False, timeout=240
        )

    def told(self, name: str) -> object:
        return json.loads((self.stub / name).read_text())

    def fetched(self) -> list[list[object]]:
        return [json.loads(line) for line in (self.stub / "fetched").read_text().splitlines()]

    def judged(self, plan: RunPlan, **env: str) -> Verdict:
        """Run a plan and return the verdict of it."""
        monitor = LogMonitor([Flux().reader(plan)], madlite_failure_rules())
        done = self.run(plan, **env)
        monitor.feed(done.stdout.encode())
        monitor.feed(done.stderr.encode(), 2)
        monitor.finish(self.run_folder)
        return judge(plan, Observation(exit=Exit(code=done.returncode, duration_s=1e6)), monitor)


def numbers(verdict: Verdict) -> Mapping[str, str]:
    return {metric.metric: metric.text for metric in verdict.metrics}
