"""Runs on stand-in machines: what of their GPUs is there inside the container."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.engine_fixture import give_up
from tests.golden.facts import read_rows
from tests.golden.machines import H100
from tests.golden.runs import Bed, copied

pytestmark = pytest.mark.engine
DEVICES = ("/dev/kfd", "/dev/dri/renderD128", "/dev/dri/renderD136")
LOOK = "\nls /dev/kfd /dev/dri\nid -G\ngrep CapEff /proc/self/status\n"


def test_two_mi300x_reach_the_script(bed: Bed, tmp_path: Path) -> None:
    folder = copied("scenarios/checkout", tmp_path)
    with (folder / "scripts/x_dir/run.sh").open("a") as script:
        script.write(LOOK)
    with bed.tapped(tmp_path) as tap:
        done = bed.start(folder, "amd", tap.address, ("run", "--tags", "x_dir"), {})
    assert done.returncode == 0, done.stdout + done.stderr
    _, rows = read_rows(folder / "perf.csv")
    assert rows is not None
    facts = ("model", "n_gpus", "gpu_architecture", "performance", "metric", "status")
    assert [tuple(row[name] for name in facts) for row in rows] == [("x_dir", "2", "gfx942", "5", "dir_ok", "SUCCESS")]
    (log,) = folder.glob("x_dir_dummy.ubuntu.amd.run.live.log")
    seen = log.read_text()
    assert "/dev/kfd" in seen and "renderD128" in seen and "renderD136" in seen
    (asked,) = [call.body["HostConfig"] for call in tap.calls if call.what == "POST /containers/create"]
    assert [device["PathOnHost"] for device in asked["Devices"]] == ["/dev/fuse", *DEVICES]
    rights = int(re.findall(r"CapEff:\s*(\w+)", seen)[0], 16)
    assert rights >> 19 & 1 and rights >> 21 & 1, "SYS_PTRACE and SYS_ADMIN"
    assert bed.take_away(folder) == 0
    bed.remove_images([folder])


def test_four_h100_are_asked_for(bed: Bed, tmp_path: Path) -> None:
    if not bed.gives_gpus:
        give_up("the engine takes no requests for NVIDIA GPUs")
    folder = copied("minimad", tmp_path)
    done = bed.start(folder, "8 x H100", bed.engine, ("run", "--tags", "mini_env"), {})
    assert done.returncode == 0, done.stdout + done.stderr
    _, rows = read_rows(folder / "perf.csv")
    assert rows is not None
    assert [(row["n_gpus"], row["gpu_architecture"], row["status"]) for row in rows] == [("4", H100, "SUCCESS")]
    assert bed.take_away(folder) == 0
    bed.remove_images([folder])
