"""What a rank prints is in run.log alone, masked: torchrun keeps no copy in the run folder, however the run ends."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest

from madlite.plan.plan_file import render
from madlite_plugins.hf.backend import HuggingFace
from madlite_plugins.pytorch_fsdp.backend import PytorchFsdp
from madlite_plugins.torchtitan.backend import Torchtitan
from tests.plugins.logs import TEMPLATES, gpu_machine, plan
from tests.rows import each_row

TOKEN = "hf_not-for-anybodys-eyes"
TRAINER = """
import os, sys, time
print("token", os.environ["HF_TOKEN"], flush=True)
print("once more", os.environ["HF_TOKEN"], file=sys.stderr, flush=True)
time.sleep(float(os.environ["LASTS_S"]))

from torch.distributed.elastic.multiprocessing.errors import record

@record
def fail():
    raise RuntimeError("refused: " + os.environ["HF_TOKEN"])

fail()
"""


@each_row(("backend", "recipe"), [(Torchtitan(), "debug"), (HuggingFace(), "tiny_lora"), (PytorchFsdp(), "mistral-7b")])
def test_torchrun_is_asked_for_no_copy_of_the_output(backend, recipe):
    (script,) = [file for file in render(plan(backend, gpu_machine(2), recipe), [TEMPLATES]) if file.path == "run.sh"]
    assert b"torch.distributed.run" in script.data
    assert not any(option in script.data for option in (b"--tee", b" -t ", b"--redirects", b" -r "))


@contextlib.contextmanager
def started(folder, lasts_s: float) -> Iterator[subprocess.Popen[str]]:
    """Start a run of the trainer above; whatever is left of it in the end is killed."""
    (folder / "titan/torchtitan").mkdir(parents=True)
    (folder / "titan/torchtitan/__init__.py").touch()
    (folder / "titan/torchtitan/train.py").write_text(TRAINER)
    (folder / "work").mkdir()
    (folder / "tmp").mkdir()
    env = {**os.environ, "HF_TOKEN": TOKEN, "TORCHTITAN_ROOT": str(folder / "titan"), "LASTS_S": str(lasts_s)}
    env["TMPDIR"] = str(folder / "tmp")
    command = [sys.executable, "-m", "madlite", "run", "--runtime", "host", "--tags", "demo_torchtitan_llama_debug"]
    run = subprocess.Popen(
        command, cwd=folder / "work", env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    left = []
    try:
        yield run
    finally:
        if run.poll() is None:
            left = [*psutil.Process(run.pid).children(recursive=True), run]
        for process in left:
            process.kill()


def wait_for(folder, text: str) -> str:
    """Return the run's log once it has the text."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        for log in folder.glob("work/madlite_runs/*/run.log"):
            if text in (told := log.read_text()):
                return told
        time.sleep(0.1)
    raise AssertionError(f"no log has {text!r}")


def holders(folder) -> list[str]:
    files = [file for file in (folder / "work").rglob("*") if file.is_file()]
    assert any(file.name == "run.log" for file in files)
    return [str(file) for file in files if TOKEN.encode() in file.read_bytes()]


def words_of(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:  # it ended meanwhile
        return ""


@pytest.mark.training
@pytest.mark.full
@pytest.mark.timeout(180)
@pytest.mark.parametrize("number", [None, signal.SIGTERM, signal.SIGKILL])
def test_a_token_that_a_rank_echoes_is_in_no_file(tmp_path, number):
    with started(tmp_path, 0 if number is None else 600) as run:
        assert "token ***" in wait_for(tmp_path, "once more ***")
        if number == signal.SIGKILL:  # of the launcher itself, which then cleans nothing up
            workload = psutil.Process(run.pid).children(recursive=True)
            assert any("torch.distributed.run" in words_of(process) for process in workload)
            for process in workload:
                process.kill()
        elif number is not None:
            run.send_signal(number)
        out, _ = run.communicate(timeout=240)
    assert TOKEN not in out and holders(tmp_path) == []
    if number != signal.SIGKILL:
        assert list((tmp_path / "tmp").glob("torch*")) == []
    if number is None:
        assert "RuntimeError: refused: ***" in wait_for(tmp_path, "torchtitan.train FAILED")
