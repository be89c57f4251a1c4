"""Two runs of the host runtime, made once: a training whose steps give the number, and a card's own script."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from madlite.cli.main import call

STEP = r"step=step (?P<n>\d+) loss (?P<loss>\S+) tps (?P<tokens_per_s_per_gpu>[\d,.]+)"
# in place of torch, whose launcher takes most of a minute on a slow machine: it runs the script
LAUNCHER = "import runpy, sys\ndef main(words):\n    runpy.run_path(words[-1], run_name='__main__')\n"
TRAIN = "for n in range(1, 21):\n    print(f'step {n} loss {3 - n / 20:.2f} tps {1000 + n % 3}.5', flush=True)\n"
SCRIPT = "echo step 3\necho performance: 12.5 tok\n"


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a working folder with both runs; nobody may change it."""
    work, launcher = tmp_path_factory.mktemp("made"), tmp_path_factory.mktemp("launcher") / "torch/distributed"
    launcher.mkdir(parents=True)
    for place in (launcher.parent, launcher):
        (place / "__init__.py").write_text("")
    (launcher / "run.py").write_text(LAUNCHER)
    (work / "train.py").write_text(TRAIN)
    (work / "scripts/a").mkdir(parents=True)
    (work / "scripts/a/run.sh").write_text(SCRIPT)
    card = {"name": "a", "scripts": "scripts/a/run.sh", "args": "", "tags": ["t"], "runtimes": ["host"]}
    (work / "models.json").write_text(json.dumps([card]))
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MODEL_DIR", raising=False)
        patch.setenv("DOCKER_HOST", f"unix://{work}/none.sock")
        patch.setenv("PYTHONPATH", os.pathsep.join([str(launcher.parents[1]), os.environ.get("PYTHONPATH", "")]))
        patch.chdir(work)
        tag = ["--tags", "torchrun_script", "--runtime", "host", "--set", "script=train.py", "--set", STEP]
        assert call(["run", *tag]) == 0 and call(["run", "--tags", "a"]) == 0
    yield work


@pytest.fixture
def place(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a copy of the working folder with both runs, as the current folder."""
    work = tmp_path / "work"
    shutil.copytree(made, work, copy_function=shutil.copy2)
    monkeypatch.setenv("DOCKER_HOST", f"unix://{work}/none.sock")
    monkeypatch.chdir(work)
    return work
