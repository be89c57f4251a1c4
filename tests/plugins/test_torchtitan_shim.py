"""The CPU shim: silent until torchtitan is imported, refused beside a GPU, and in nobody's way.

A stand-in named torchtitan shows when the shim acts; training with the real one is tests/training's.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.plugins.logs import TEMPLATES

SHIM = TEMPLATES / "torchtitan/cpu_shim"
TORCH = """
class cuda:
    device_count = staticmethod(lambda: {gpus})
    get_device_name = staticmethod(lambda index: "AMD Instinct MI300X")
class _utils: pass
class cpu: pass
"""


@pytest.fixture
def python(tmp_path):
    """Run a program with the shim, a stand-in torchtitan and a stand-in torch with some GPUs."""

    def run(program: str, gpus: int = 0) -> subprocess.CompletedProcess[str]:
        for name in ("torchtitan", "torch", "torch/distributed"):
            (tmp_path / name).mkdir(exist_ok=True)
            (tmp_path / name / "__init__.py").touch()
        (tmp_path / "torch/__init__.py").write_text(TORCH.format(gpus=gpus))
        (tmp_path / "torch/distributed/__init__.py").write_text("barrier = lambda group=None, async_op=False: 'met'")
        env = {**os.environ, "PYTHONPATH": f"{SHIM}:{tmp_path}"}
        return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=env, check=False)

    return run


def test_other_programs_never_see_torch(python):
    ran = python("import sys, json\nprint('torch' in sys.modules)")
    assert (ran.stdout, ran.stderr, ran.returncode) == ("False\n", "", 0)


def test_torchtitan_finds_a_cpu_with_the_functions_it_needs(python):
    ran = python(
        "from pathlib import Path; Path.exists = lambda path: False\n"
        "import torchtitan, torch, torch.distributed\n"
        "print(torch._utils._get_available_device_type(), torch.cpu.get_device_name('cpu'))\n"
        "print(torch.distributed.barrier(device_ids=['cpu']))\n"
        "peak = torch.cpu.memory_stats()['reserved_bytes.all.peak']\n"
        "print(torch.cpu.get_device_properties().total_memory >= peak > 1e6)"
    )
    assert (ran.stdout, ran.stderr) == ("cpu cpu\nmet\nTrue\n", "")


def test_a_gpu_that_torch_sees_ends_the_program(python):
    ran = python("import torchtitan; print('went on')", gpus=1)
    assert ran.returncode == 1 and ran.stdout == ""
    assert "on a machine with a GPU (" in ran.stderr


@pytest.mark.parametrize("device", ["/dev/kfd", "/dev/nvidia0"])
def test_a_gpu_s_device_file_ends_the_program(python, device):
    ran = python(
        f"import sitecustomize; from pathlib import Path; Path.exists = lambda path: str(path) == {device!r}\n"
        "import torchtitan"
    )
    assert ran.returncode == 1 and device in ran.stderr


def test_a_sitecustomize_that_it_hides_still_runs(python, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("print('mine')")
    assert python("pass").stdout == "mine\n"
