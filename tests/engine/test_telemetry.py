"""Whole runs on a machine whose GPUs are made up by tools: what is sampled, told, and kept."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests import commands
from tests.engine.checkout import DOCKERFILE, Checkout

STATIC = json.dumps(
    {
        "gpu_data": [
            {
                "gpu": n,
                "asic": {
                    "market_name": "AMD Instinct MI325X",
                    "device_id": "0x74a5",
                    "target_graphics_version": "gfx942",
                },
                "bus": {"bdf": f"0000:0{n + 1}:00.0"},
                "driver": {"version": "6.12.12"},
                "vram": {"size": {"value": 262128, "unit": "MB"}},
            }
            for n in (0, 1)
        ]
    }
)
GPU = (
    '{"gpu": %d, "power": {"socket_power": {"value": %d, "unit": "W"}}, "temperature": {"hotspot": 88}, "throttle": '
    '{"accumulation_counter": \'$((n * 1000))\', "socket_thermal_accumulated": \'$((n * 180))\', "ppt_accumulated": '
    "'$((n * 900))'}}"
)
AMD_SMI = f"""#!/bin/sh
case "$1" in
static) echo '{STATIC}' ;;
list) echo '[{{"gpu": 0, "bdf": "0000:01:00.0"}}, {{"gpu": 1, "bdf": "0000:02:00.0"}}]' ;;
process) echo '[{{"gpu": 1, "process_list": [{{"process_info": {{"pid": '"$STRANGER"', "memory_usage": '\
'{{"vram_mem": {{"value": 3.25, "unit": "GB"}}}}}}}}]}}]' ;;
metric) n=$(($(cat "$COUNT" 2>/dev/null || echo 0) + 1)); echo $n >"$COUNT"
echo 'WARNING: the driver is old'; echo '[{GPU % (0, 900)}, {GPU % (1, 1000)}]' ;;
*) exit 2 ;;
esac
"""
NVIDIA_SMI = """#!/bin/sh
case "$*" in
*uuid*) echo "0, NVIDIA H200, GPU-1, 143771, 00000000:18:00.0, 580.65" ;;
*clocks_event*) echo "0, 695.5, 1500, 3201, 80, 100000, 99, 0x0000000000000024" ;;
*) exit 2 ;;
esac
"""
TORCHRUN = "import runpy\ndef main(argv):\n    runpy.run_path([one for one in argv if one.endswith('.py')][0])\n"
# its steps go on until a tool was asked so often after the tenth, however slow the machine is
TRAIN = """import os, time
def asked():
    try:
        return int(open(os.environ["COUNT"]).read() or 0)
    except OSError:
        return 0
until = 0
for n in range(1, 31):
    time.sleep(float(os.environ["STEP_S"]))
    while n == 30 and asked() < until:
        time.sleep(0.05)
    print(f'step {n} loss 2.5 tps 9500', flush=True)
    until = asked() + int(os.environ["ASKED"]) if n == 10 else until
"""
STEP = r"step=step (?P<n>\d+) loss (?P<loss>\S+) tps (?P<tokens_per_s_per_gpu>\S+)"


class Machine:
    """A folder with a training and tools first on the path."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name, text in {
            "train.py": TRAIN,
            "fake/torch/__init__.py": "",
            "fake/torch/version.py": "__version__ = '2.9.1'\nhip: str = '6.4.4'\ncuda = None\n",
            "fake/torch/distributed/__init__.py": "",
            "fake/torch/distributed/run.py": TORCHRUN,
        }.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        (folder / "bin").mkdir()
        self.env = {
            **os.environ,
            "PATH": f"{folder}/bin:{os.environ['PATH']}",
            "NCCL_DEBUG": "WARN",
            "HF_TOKEN": "hf_averysecretone",
            "STRANGER": "0",
            "COUNT": f"{folder}/count",
            "STEP_S": "0.15",
            "ASKED": "0",
        }

    def tool(self, name: str, text: str) -> None:
        (self.folder / "bin" / name).write_text(text)
        (self.folder / "bin" / name).chmod(0o755)

    def run(self, *more: str) -> subprocess.CompletedProcess[str]:
        sets = ("script=train.py", STEP, "steps=30", f"env.PYTHONPATH={self.folder}/fake")
        words = ["run", "--tags", "torchrun_script", "--runtime", "host", *(f"--set={one}" for one in sets)]
        return commands.run([*words, *more], self.folder, self.env)

    def record(self) -> dict:
        (path,) = self.folder.glob("madlite_runs/*/record.json")
        return json.loads(path.read_text())


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.host
def test_amd_gpus_and_a_stranger_on_them(machine: Machine) -> None:
    machine.tool("amd-smi", AMD_SMI)
    machine.env["ASKED"] = "6"  # the first may be of before, the last is not read, and three are needed
    with subprocess.Popen(["sleep", "600"]) as stranger:
        machine.env["STRANGER"] = str(stranger.pid)
        try:
            done = machine.run()
        finally:
            stranger.kill()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "power 950 W/GPU, 10 tokens/J, throttled 18 % of the window (thermal)" in done.stdout
    record = machine.record()
    told = record["telemetry"]
    assert (told["source"], told["over"], told["power_w"], told["power_cap"]) == ("amd-smi", "window", 950.0, 0.9)
    assert told["gpus"][1]["throttled"] == {"thermal": 0.18} and told["gpus"][0]["temperature_c"] == 88.0
    assert "the GPUs were throttled 18 % of the window (thermal)" in record["findings"]
    if told["processes_known"]:  # not inside a container
        assert told["foreign_processes"] == [f"pid {stranger.pid} sleep 600, 3.2 GiB on GPU 1"]
        assert "sleep 600" in record["suspect"][0]
    (file,) = machine.folder.glob("madlite_runs/*/telemetry.jsonl")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [one["index"] for one in lines[0]["gpus"]] == [0, 1] and lines[0]["t_s"] < lines[-1]["t_s"]


@pytest.mark.host
def test_what_it_ran_with(machine: Machine) -> None:
    machine.tool("amd-smi", AMD_SMI)
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(machine.folder)]
    for words in (["init", "-q"], ["add", "train.py"], ["commit", "-qm", "x"]):
        subprocess.run([*git, *words], check=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    assert machine.run("--gpus", "1", "--set", "n_gpus=1").returncode == 0
    record = machine.record()
    found = record["provenance"]
    assert found["repositories"] == {str(machine.folder.resolve()): commit}
    assert found["packages"]["torch.hip"] == "6.4.4"
    assert found["environment"]["NCCL_DEBUG"] == "WARN" and found["environment"]["HIP_VISIBLE_DEVICES"] == "1"
    assert found["gpu"]["count"] == "1"
    assert [gpu["index"] for gpu in record["telemetry"]["gpus"]] == [1]
    assert record["config"] is not None and len(found["script_sha256"]) == 64 and found["host"]["kernel"]
    kept = "".join(path.read_text(errors="replace") for path in machine.folder.rglob("madlite_runs/*/*"))
    assert "hf_averysecretone" not in kept
    (log,) = machine.folder.glob("madlite_runs/*/run.log")
    assert "madlite-probe" not in log.read_text()


@pytest.mark.host
def test_nvidia_gpus_by_their_tool(machine: Machine) -> None:
    machine.tool("nvidia-smi", NVIDIA_SMI)
    done = machine.run()
    assert done.returncode == 0, done.stdout + done.stderr
    told = machine.record()["telemetry"]
    assert (told["source"], told["power_w"], told["throttled"], told["power_cap"]) == ("nvidia-smi", 695.5, 1.0, 1.0)
    assert told["throttled_by"] == {"thermal": 1.0}


@pytest.mark.host
def test_a_run_settles_and_its_start_stands_beside_its_number(machine: Machine) -> None:
    """Each call of the tool finds the GPU four degrees cooler, and it is called every two seconds at most."""
    count = 'n=$(($(cat "$COUNT" 2>/dev/null || echo 0) + 1)); echo $n >"$COUNT"; '
    cooling = NVIDIA_SMI.replace('*clocks_event*) echo "', f'*clocks_event*) {count}echo "')
    machine.tool("nvidia-smi", cooling.replace("3201, 80,", "3201, $((60 - 4 * n)),"))
    done = machine.run("--settle=50")
    assert done.returncode == 0, done.stdout + done.stderr
    told = machine.record()["telemetry"]
    assert told["start"] == [{"index": 0, "temperature_c": 48.0, "clock_mhz": 1500.0}]
    settling = told["settling"]
    assert (settling["target_c"], settling["from_c"], settling["to_c"], settling["reached"]) == (50.0, 56.0, 48.0, True)
    assert settling["waited_s"] >= 4.0, "two more readings, of a tool"
    waited = f"waited {settling['waited_s']:.0f} s for the GPUs to cool down from 56 °C to 48 °C (--settle)"
    assert f"note: {waited}" in done.stdout and waited in machine.record()["findings"]
    assert "began at 48 °C, 1,500 MHz" in done.stdout


@pytest.mark.host
def test_a_tool_that_answers_na_is_in_the_record_and_on_the_runs_page_and_not_on_the_screen(machine: Machine) -> None:
    blank = ", ".join(["[N/A]"] * 7)
    machine.tool("nvidia-smi", NVIDIA_SMI.replace("695.5, 1500, 3201, 80, 100000, 99, 0x0000000000000024", blank))
    done = machine.run()
    assert done.returncode == 0, done.stdout + done.stderr
    problem = "nvidia-smi reports no power"
    assert problem in machine.record()["telemetry"]["problem"] and "nothing of" not in done.stdout
    shown = commands.run(("show", "last"), machine.folder, machine.env)
    assert problem in shown.stdout


@pytest.mark.host
def test_switched_off(machine: Machine) -> None:
    machine.tool("amd-smi", AMD_SMI)
    machine.env["STEP_S"] = "0"
    assert machine.run("--no-telemetry").returncode == 0
    assert machine.record()["telemetry"] is None
    assert not list(machine.folder.glob("madlite_runs/*/telemetry.jsonl"))


@pytest.mark.host
def test_a_tool_that_hangs_neither_delays_nor_fails_the_run(machine: Machine) -> None:
    machine.tool("amd-smi", AMD_SMI.replace("metric)", "metric) sleep 300 & wait;"))
    done = machine.run()
    assert done.returncode == 0, done.stdout + done.stderr
    record = machine.record()
    assert record["telemetry"]["samples"] == 0 and record["telemetry"]["problem"]
    assert record["durations_s"]["total"] < 200
    assert "no telemetry: " in done.stdout


@pytest.mark.engine
def test_what_an_image_brought(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    docker_host = request.getfixturevalue("engine")
    request.getfixturevalue("base_image")
    checkout = Checkout(tmp_path / "mad", "docker", docker_host)
    checkout.words = ()  # with the probe
    repository = "RUN mkdir -p /workspace/titan && cd /workspace/titan && git init -q && "
    repository += "git -c user.name=a -c user.email=a@b commit -q --allow-empty -m x\n"
    (checkout.folder / "docker/base.Dockerfile").write_text(
        f"{DOCKERFILE}LABEL org.example.release=v25.9\nENV HSA_NO_SCRATCH_RECLAIM=1 NVTE_CK_USES_BWD_V3=1\n{repository}"
    )
    checkout.card("x", "git -C /workspace/titan rev-parse HEAD; ls -la; echo 'performance: 5 tokens/s'\n")
    done = checkout.run("--tags", "x")
    assert done.returncode == 0, done.stdout + done.stderr
    (record,) = checkout.records()
    (log,) = checkout.folder.glob("madlite_runs/*/run.log")
    found, commit = record["provenance"], record["provenance"]["repositories"]["/workspace/titan"]
    assert commit in log.read_text() and "madlite-probe" not in log.read_text() and "__pycache__" not in log.read_text()
    assert found["labels"]["org.example.release"] == "v25.9" and record["image"]["labels"] == {}
    assert record["image"]["id"].startswith("sha256:")
    assert found["environment"]["HSA_NO_SCRATCH_RECLAIM"] == "1" and found["inside"]["python"].startswith("3.")
    assert found["script"] == "scripts/x/run.sh" and found["notes"] == []
    assert len(checkout.rows) == 1
    checkout.assert_nothing_left()
