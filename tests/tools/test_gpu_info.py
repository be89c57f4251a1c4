"""The sampler of power and memory, with stand-ins that print what the GPU tools print (values are made up)."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import psutil
import pytest

from tests.csv_rows import csv_rows
from tests.rows import each_row
from tests.tools.scripts import TOOLS, bash, only, program
from tests.waiting import wait_until

pytestmark = pytest.mark.host

PROGRAMS = ("awk", "sleep", "timeout", "rm", "wc", "cat", "mkdir")
POWER, VRAM = "gpu_info_power_profiler_output.csv", "gpu_info_vram_profiler_output.csv"
AMD_SMI = """case "$*" in
*--power*)
  echo gpu,socket_power,gfx_voltage,throttle_status,power_management
  echo 0,512,N/A,N/A,ENABLED
  echo 1,498,N/A,N/A,ENABLED ;;
*--mem-usage*)
  echo gpu,total_vram,used_vram,free_vram,total_visible_vram,used_visible_vram
  echo 0,1000,250,750,1000,9
  echo 1,1000,1,999,1000,9 ;;
esac"""
ROCM_SMI = """echo 'WARNING: AMD GPU device(s) is/are in a low-power state.'
case "$*" in
*--showpower*)
  printf '\\ndevice,Average Graphics Package Power (W)\\n'
  printf 'card0,230.0\\ncard1,N/A (Secondary die)\\ncard2,199.0\\n\\n' ;;
*--showmeminfo*)
  printf 'device,VRAM Total Memory (B),VRAM Total Used Memory (B)\\ncard0,200,50\\ncard1,200,0\\n' ;;
esac"""
NVIDIA_SMI = """case "$*" in
*power.draw*) printf 'index, power.draw [W]\\n0, 345.67\\n1, [N/A]\\n2, 70.10\\n' ;;
*memory*) printf 'index, memory.used [MiB], memory.total [MiB]\\n0, 40000, 80000\\n1, 0, 80000\\n' ;;
esac"""


@pytest.fixture
def model(tmp_path):
    """The model's folder; samplers that a test leaves are ended."""
    folder = tmp_path / "run_directory"
    folder.mkdir()
    yield folder
    for state in folder.glob(".gpu_info_*"):
        with suppress(ProcessLookupError):
            os.kill(int(state.read_text()), signal.SIGKILL)


@pytest.fixture
def path(tmp_path):
    return only(tmp_path / "bin", *PROGRAMS)


def sampled(model: Path, path: Path, tool: str = "power", samples: int = 3, **env: str) -> list[dict[str, str]]:
    """Sample until there are some, stop, and return them."""
    file = model / (POWER if tool == "power" else VRAM)
    started = bash("gpu_info.sh", "start", tool, cwd=model, path=path, env=env)
    assert started.returncode == 0 and file.name in started.stdout, started
    wait_until(lambda: len(csv_rows(file)) >= samples, "samples")
    sampler = psutil.Process(int((model / f".gpu_info_{tool}").read_text()))
    stopped = bash("gpu_info.sh", "stop", tool, cwd=model, path=path)
    assert stopped.returncode == 0 and f"{len(csv_rows(file))} samples" in stopped.stdout
    assert gone(sampler)
    return csv_rows(file)


@pytest.mark.parametrize(
    ("smi", "body", "power", "vram"),
    [
        ("amd-smi", AMD_SMI, {"0": "512", "1": "498"}, {"0": "25.00", "1": "0.10"}),
        ("rocm-smi", ROCM_SMI, {"0": "230.0", "2": "199.0"}, {"0": "25.00", "1": "0.00"}),
        ("nvidia-smi", NVIDIA_SMI, {"0": "345.67", "2": "70.10"}, {"0": "50.00", "1": "0.00"}),
    ],
)
def test_each_moment_is_a_row_and_each_gpu_a_column(model, path, smi, body, power, vram):
    program(path, smi, body)
    for tool, column, values in (("power", "Power(Watt) GPU", power), ("vram", "vram(%) GPU", vram)):
        found = sampled(model, path, tool)
        times = [datetime.strptime(row.pop("time"), "%Y-%m-%d %H:%M:%S.%f") for row in found]
        assert times == sorted(times)
        assert all(row == {f"{column}{gpu}": value for gpu, value in values.items()} for row in found)


def test_both_can_sample_at_once(model, path):
    program(path, "amd-smi", AMD_SMI)
    assert bash("gpu_info.sh", "start", "vram", cwd=model, path=path).returncode == 0
    assert list(sampled(model, path, "power")[0]) == ["time", "Power(Watt) GPU0", "Power(Watt) GPU1"]
    wait_until(lambda: len(csv_rows(model / VRAM)) > 2, "samples of memory")
    assert "samples in" in bash("gpu_info.sh", "stop", "vram", cwd=model, path=path).stdout
    assert list(csv_rows(model / VRAM)[0]) == ["time", "vram(%) GPU0", "vram(%) GPU1"]


def test_a_second_start_starts_nothing(model, path):
    program(path, "amd-smi", AMD_SMI)
    first = bash("gpu_info.sh", "start", "power", cwd=model, path=path)
    sampler = (model / ".gpu_info_power").read_text()
    second = bash("gpu_info.sh", "start", "power", cwd=model, path=path)
    assert first.returncode == second.returncode == 0 and "already" in second.stdout
    assert (model / ".gpu_info_power").read_text() == sampler
    bash("gpu_info.sh", "stop", "power", cwd=model, path=path)


def test_variables_say_which_gpus_what_and_where(model, path):
    program(path, "nvidia-smi", NVIDIA_SMI)
    bash(
        "gpu_info.sh",
        "start",
        "power",
        cwd=model,
        path=path,
        env={"POWER_OUTPUT_FILE": "mine.csv", "POWER_DEVICE": "2,7"},
    )
    bash("gpu_info.sh", "stop", "power", cwd=model, path=path, env={"POWER_OUTPUT_FILE": "mine.csv"})
    assert list(csv_rows(model / "mine.csv")[0]) == ["time", "Power(Watt) GPU2"]
    assert "vram(%) GPU0" in sampled(model, path, POWER_MODE="vram", POWER_SAMPLING_RATE=".01")[0]


def test_a_tool_that_does_not_answer_leaves_the_place_to_the_next(model, path):
    program(path, "amd-smi", "echo 'error: no driver' >&2; exit 1")
    program(path, "rocm-smi", ROCM_SMI)
    started = bash("gpu_info.sh", "start", "power", cwd=model, path=path)
    assert "by rocm-smi" in started.stdout
    bash("gpu_info.sh", "stop", "power", cwd=model, path=path)


def test_a_gpu_that_falls_silent_leaves_its_cell_blank(model, path, tmp_path):
    lost = tmp_path / "lost"
    program(path, "nvidia-smi", f"printf 'index, power.draw [W]\\n0, 1\\n'; [ -e {lost} ] || echo '1, 2'")
    bash("gpu_info.sh", "start", "power", cwd=model, path=path)
    lost.touch()
    wait_until(lambda: csv_rows(model / POWER)[-1]["Power(Watt) GPU1"] == "", "a blank cell")
    bash("gpu_info.sh", "stop", "power", cwd=model, path=path)
    assert (
        csv_rows(model / POWER)[0]["Power(Watt) GPU1"] == "2" and csv_rows(model / POWER)[-1]["Power(Watt) GPU0"] == "1"
    )


@each_row("body", [None, "exit 0", "printf 'index, power.draw [W]\\n0, [N/A]\\n'"])
def test_without_a_gpu_that_tells_its_power_a_line_says_so_and_nothing_fails(model, path, body):
    if body:
        program(path, "nvidia-smi", body)
    started = bash("gpu_info.sh", "start", "power", cwd=model, path=path)
    stopped = bash("gpu_info.sh", "stop", "power", cwd=model, path=path)
    assert started.returncode == stopped.returncode == 0
    assert "nvidia-smi" in started.stdout and "nothing is sampled" in started.stdout
    assert "nothing was sampled" in stopped.stdout and list(model.iterdir()) == []


@each_row(
    ("args", "env", "word"),
    [
        (("start", "power"), {"POWER_SAMPLING_RATE": "fast"}, "'fast'"),
        (("start", "vram"), {"VRAM_MODE": "heat"}, "'heat'"),
        (("start", "power"), {"POWER_OUTPUT_FILE": "/nonexistent/x.csv"}, "/nonexistent/x.csv"),
        (("start", "heat"), {}, "usage"),
        ((), {}, "usage"),
    ],
)
def test_a_mistake_is_an_error_that_names_it(model, path, args, env, word):
    program(path, "nvidia-smi", NVIDIA_SMI)
    refused = bash("gpu_info.sh", *args, cwd=model, path=path, env=env)
    assert refused.returncode == 2 and word in refused.stderr
    assert not list(model.glob(".gpu_info_*"))


def start_and_find(model: Path, path: Path) -> psutil.Process:
    program(path, "nvidia-smi", NVIDIA_SMI)
    assert bash("gpu_info.sh", "start", "power", cwd=model, path=path).returncode == 0
    return psutil.Process(int((model / ".gpu_info_power").read_text()))


def catches_term(process: psutil.Process) -> bool:
    status = Path(f"/proc/{process.pid}/status").read_text()
    caught = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)


def gone(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # between the two questions
        return True


def test_it_ends_when_the_models_folder_goes(model, path, tmp_path):
    sampler = start_and_find(model, path)
    model.rename(tmp_path / "elsewhere")  # its state file is still below its feet
    assert not gone(sampler)
    shutil.rmtree(tmp_path / "elsewhere", ignore_errors=True)  # a row may come meanwhile, and make its file again
    wait_until(lambda: gone(sampler), "the end of the sampler")
    model.mkdir()


def test_it_ends_when_it_is_told_to(model, path):
    sampler = start_and_find(model, path)
    wait_until(lambda: catches_term(sampler), "a sampler that catches TERM")
    sampler.terminate()
    wait_until(lambda: gone(sampler), "the end of the sampler")
    assert not (model / ".gpu_info_power").exists()


def test_it_ends_with_the_program_that_runs_the_session(model, path):
    program(path, "nvidia-smi", NVIDIA_SMI)
    engine = """
import subprocess, sys, time
subprocess.run(["/bin/bash", "-c", 'true && bash -- "$0" start power', sys.argv[1]], start_new_session=True, check=True)
print("started", flush=True)
time.sleep(1000)
"""
    only(path, "bash")
    with subprocess.Popen(
        [sys.executable, "-c", engine, str(TOOLS / "gpu_info.sh")],
        cwd=model,
        env={**os.environ, "PATH": str(path)},
        stdout=subprocess.PIPE,
        text=True,
    ) as started:
        assert started.stdout is not None
        wait_until(lambda: started.stdout.readline() == "started\n", "the start")
        sampler = psutil.Process(int((model / ".gpu_info_power").read_text()))
        before = len(csv_rows(model / POWER))
        wait_until(lambda: len(csv_rows(model / POWER)) > before + 2, "samples after the script's end")
        started.kill()
    wait_until(lambda: gone(sampler), "the end of the sampler")


def test_it_samples_where_the_leader_of_its_session_has_ended(model, path):
    """A job that was sent to the background outlives the shell that led its session: the script still starts."""
    program(path, "nvidia-smi", NVIDIA_SMI)
    only(path, "bash")
    os.mkfifo(model / "go")
    job = f"{{ read -r _ <go; bash {TOOLS / 'gpu_info.sh'} start power >said 2>&1; echo >>said; }} & exit 0"
    subprocess.run(
        ["/bin/bash", "-c", job], cwd=model, env={**os.environ, "PATH": str(path)}, start_new_session=True, timeout=240
    )
    (model / "go").write_text("now\n")  # its leader has been waited for
    wait_until(lambda: (model / POWER).exists() and len(csv_rows(model / POWER)) > 2, "samples")
    assert "samples GPU 0" in (model / "said").read_text()
    assert "samples in" in bash("gpu_info.sh", "stop", "power", cwd=model, path=path).stdout


@pytest.mark.engine
def test_in_a_kept_container_it_ends_when_nothing_else_runs_there(engine, base_image, tmp_path):
    """What a run starts in a container has no parent there, and a kept container goes on without the run."""
    import docker

    script = (TOOLS / "gpu_info.sh").read_text()
    quick = re.sub(r"^QUIET_S=60", "QUIET_S=1", script, flags=re.MULTILINE)
    assert quick != script
    (tmp_path / "gpu_info.sh").write_text(quick)
    program(tmp_path, "nvidia-smi", NVIDIA_SMI)
    client = docker.DockerClient(engine)
    mounts = {str(tmp_path): {"bind": "/w", "mode": "rw"}}
    container = client.containers.run(
        base_image, ["sleep", "1000"], detach=True, network_mode="none", volumes=mounts, init=True, working_dir="/w"
    )
    try:
        env = {"PATH": "/w:/usr/bin:/bin"}
        (tmp_path / "model").touch()
        # at once: the engine may take longer for another command than the sampler stays alone
        model = "setsid sh -c 'while [ -e model ]; do sleep 0.1; done' </dev/null >/dev/null 2>&1 &"
        command = ["bash", "-c", f"true && bash gpu_info.sh start power && {{ {model} }}"]
        done = container.exec_run(command, environment=env)
        assert done.exit_code == 0, done.output
        # at 0.1 s each longer than the quiet time and than it takes to look
        wait_until(lambda: len(csv_rows(tmp_path / POWER)) > 70, "samples while something runs")
        assert (tmp_path / ".gpu_info_power").exists()
        (tmp_path / "model").unlink()
        wait_until(lambda: not (tmp_path / ".gpu_info_power").exists(), "the end of the sampler")
    finally:
        container.remove(force=True)
        client.close()
