"""Runs on stand-in machines, nothing between madlite and the engine: AMD with device files, NVIDIA with its hook."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.golden.facts import read_rows
from tests.golden.machines import H100
from tests.golden.runs import Bed, copied

pytestmark = pytest.mark.engine
DEVICES = ("/dev/kfd", "/dev/dri/renderD128", "/dev/dri/renderD136")
LOOK = "\nls /dev/kfd /dev/dri\nid -G\ngrep CapEff /proc/self/status\n"


@contextmanager
def device_files() -> Iterator[None]:
    """Make the files that an AMD machine has, as copies of /dev/null; none may be there."""
    folder = Path("/dev/dri")
    had_folder = folder.exists()
    made = []
    try:
        folder.mkdir(exist_ok=True)
        for path in DEVICES:
            os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
            made.append(path)
        yield
    finally:
        for path in made:
            Path(path).unlink()
        if not had_folder:
            folder.rmdir()


def test_two_mi300x_reach_the_script(bed: Bed, tmp_path: Path) -> None:
    folder = copied("scenarios/checkout", tmp_path)
    with (folder / "scripts/x_dir/run.sh").open("a") as script:
        script.write(LOOK)
    with device_files():
        done = bed.start(folder, "amd", bed.engine, ("run", "--tags", "x_dir"), {})
    assert done.returncode == 0, done.stdout + done.stderr
    _, rows = read_rows(folder / "perf.csv")
    assert rows is not None
    facts = ("model", "n_gpus", "gpu_architecture", "performance", "metric", "status")
    assert [tuple(row[name] for name in facts) for row in rows] == [("x_dir", "2", "gfx942", "5", "dir_ok", "SUCCESS")]
    (log,) = folder.glob("x_dir_dummy.ubuntu.amd.run.live.log")
    seen = log.read_text()
    assert "/dev/kfd" in seen and "renderD128" in seen and "renderD136" in seen
    rights = int(re.findall(r"CapEff:\s*(\w+)", seen)[0], 16)
    assert rights >> 19 & 1 and rights >> 21 & 1, "SYS_PTRACE and SYS_ADMIN"
    assert bed.take_away(folder) == 0


def test_four_h100_are_asked_for(bed: Bed, tmp_path: Path) -> None:
    if not bed.gives_gpus:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("the engine takes no requests for NVIDIA GPUs")
    folder = copied("minimad", tmp_path)
    done = bed.start(folder, "8 x H100", bed.engine, ("run", "--tags", "mini_env"), {})
    assert done.returncode == 0, done.stdout + done.stderr
    _, rows = read_rows(folder / "perf.csv")
    assert rows is not None
    assert [(row["n_gpus"], row["gpu_architecture"], row["status"]) for row in rows] == [("4", H100, "SUCCESS")]
    assert bed.take_away(folder) == 0
