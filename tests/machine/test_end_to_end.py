"""From a machine's files and tools to the plan of a run: `madlite explain` on a made-up AMD machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .elsewhere import ELSEWHERE
from .stand_in import Bench, amd_list, amd_static, rocm_cards

pytestmark = pytest.mark.host

CARD = {"name": "a", "dockerfile": "docker/a", "scripts": "scripts/a/run.sh", "n_gpus": "-1", "tags": ["t"], "args": ""}


@pytest.fixture
def checkout(bench: Bench) -> Path:
    """A card with a Dockerfile for each vendor."""
    folder = bench.folder / "checkout"
    for path in ("docker", "scripts/a"):
        (folder / path).mkdir(parents=True)
    for vendor in ("AMD", "NVIDIA"):
        header = f"# CONTEXT {{'gpu_vendor': '{vendor}', 'guest_os': 'UBUNTU'}}\nFROM scratch\n"
        (folder / f"docker/a.ubuntu.{vendor.lower()}.Dockerfile").write_text(header)
    (folder / "scripts/a/run.sh").write_text("echo performance: 1 tokens_per_second\n")
    (folder / "models.json").write_text(json.dumps([CARD]))
    return folder


def explain(bench: Bench, *args: str) -> subprocess.CompletedProcess[str]:
    env = {name: text for name, text in os.environ.items() if not name.startswith(("MAD", "ROC", "HIP", "CUDA"))}
    return subprocess.run(
        [sys.executable, "-c", ELSEWHERE, str(bench.root), "explain", "a", "--json", *args],
        cwd=bench.folder / "checkout",
        env={**env, "PATH": f"{bench.bin}:/usr/bin:/bin", **bench.env},
        capture_output=True,
        text=True,
        timeout=240,
    )


def plan(bench: Bench, *args: str) -> dict[str, Any]:
    done = explain(bench, *args)
    assert done.returncode == 0, done.stderr
    (only,) = json.loads(done.stdout)
    return only


def mi300x_host(bench: Bench) -> None:
    """Four MI300X whose render nodes are eight apart, ROCm 6.4.1, NUMA balancing on."""
    bench.node(0)
    for node in range(1, 5):
        bench.mi300x(1, first=node, drm_render_minor=120 + 8 * node)
    bench.file("dev/kfd")
    bench.file("opt/rocm/.info/version", "6.4.1-83\n")
    bench.file("proc/sys/kernel/numa_balancing", "1\n")
    bench.tool("amd-smi", ("*static*", amd_static([0, 1, 2, 3])), ("*list*", amd_list([2, 1, 3, 4])))


def test_a_machine_becomes_variables_and_devices(bench: Bench, checkout: Path) -> None:
    mi300x_host(bench)
    made = plan(bench)
    told = {name: text for name, text in made["env"].items() if name.startswith(("MAD_SYSTEM", "MAD_GPU", "MAD_RUN"))}
    assert told == {
        "MAD_GPU_VENDOR": "AMD",
        "MAD_SYSTEM_NGPUS": "4",
        "MAD_SYSTEM_GPU_ARCHITECTURE": "gfx942",
        "MAD_SYSTEM_GPU_PRODUCT_NAME": "AMD Instinct MI300X",
        "MAD_SYSTEM_HIP_VERSION": "6.4",
        "MAD_RUNTIME_NGPUS": "4",
    }
    nodes = [f"/dev/dri/renderD{minor}" for minor in (136, 128, 144, 152)]  # as amd-smi numbers the GPUs
    assert made["devices"] == ["/dev/fuse", "/dev/kfd", *nodes]
    assert made["image"]["dockerfile"].endswith("a.ubuntu.amd.Dockerfile")


def test_a_subset_is_given_the_tools_ids(bench: Bench, checkout: Path) -> None:
    mi300x_host(bench)
    made = plan(bench, "--additional-context", '{"docker_gpus": "0,2-3", "n_gpus": 2}')
    assert made["place"]["gpu_ids"] == [0, 2]
    assert made["devices"][2:] == ["/dev/dri/renderD136", "/dev/dri/renderD144"]
    assert (made["env"]["MAD_SYSTEM_NGPUS"], made["env"]["MAD_RUNTIME_NGPUS"]) == ("4", "2")


def test_a_warning_is_said_once(bench: Bench, checkout: Path) -> None:
    mi300x_host(bench)
    assert explain(bench).stderr.count("numa_balancing") == 2  # the name, and the command that turns it off
    assert "numa_balancing" not in explain(bench, "--additional-context", '{"numa_balancing": "0"}').stderr


def test_an_older_host_with_rocm_smi_alone(bench: Bench, checkout: Path) -> None:
    bench.mi300x(2, gfx_target_version=90402, device_id=0x74A5)
    bench.tool("rocm-smi", ("*--json*", rocm_cards(2, series_key="Card series")))
    bench.tool("hipconfig", ("--version", "6.2.41133-ab12cd34"))
    made = plan(bench)
    assert made["machine"]["device"] == "MI325X"
    assert made["env"]["MAD_SYSTEM_HIP_VERSION"] == "6.2"


def test_a_gpu_that_no_tool_can_read_stops_everything(bench: Bench, checkout: Path) -> None:
    bench.pci("0000:1b:00.0", "1002", "74a1", "120000")
    bench.script("rocm-smi", "echo 'ERROR:root:Driver not initialized (amdgpu not found in modules)'; exit 1")
    done = explain(bench)
    assert (done.returncode, done.stdout) == (4, "")
    assert "AMD GPUs are in this machine but cannot be read" in done.stderr
    for said in ("amd-smi: not installed", "rocm-smi: exit code 1: ERROR:root:Driver not initialized"):
        assert said in done.stderr
