"""Overhead of `madlite run` over the bare workload (host) and over `docker run` (docker), alternating.

The docker part needs an engine (DOCKER_HOST) that has the image of IMAGE, and the docker program.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

IMAGE = os.environ.get("IMAGE", "madlite-test/base:latest")
TURNS = 7
SCRIPT = '#!/bin/bash\nsleep 0.5\necho "performance: 1 x"\n'


def main() -> None:
    print("| runtime | bare, s | madlite, s | overhead, s |\n|---|--:|--:|--:|")
    with tempfile.TemporaryDirectory() as name:
        folder = checkout(Path(name))
        bare = ["bash", "scripts/x/run.sh"]
        row("host", bare, madlite("host"), folder)
        if docker_has_image():
            inside = ["docker", "run", "--rm", "--network", "host", "-v", f"{folder}:/w", "-w", "/w", IMAGE, *bare]
            row("docker", inside, madlite("docker"), folder)
        else:
            print(f"| docker | - | - | no engine with {IMAGE} |")


def checkout(folder: Path) -> Path:
    (folder / "scripts/x").mkdir(parents=True)
    (folder / "scripts/x/run.sh").write_text(SCRIPT)
    card = {"name": "x", "scripts": "scripts/x/run.sh", "n_gpus": "-1", "tags": [], "image": IMAGE}
    (folder / "models.json").write_text(json.dumps([card]))
    return folder


def madlite(runtime: str) -> list[str]:
    return [sys.executable, "-m", "madlite", "run", "--tags", "x", "--runtime", runtime]


def docker_has_image() -> bool:
    look = ["docker", "image", "inspect", IMAGE]
    return bool(shutil.which("docker")) and subprocess.run(look, capture_output=True).returncode == 0


def row(title: str, bare: list[str], ours: list[str], folder: Path) -> None:
    """Run both in turns, so that what else the machine does hits them alike."""
    times: dict[str, list[float]] = {"bare": [], "ours": []}
    for _ in range(TURNS):
        for name, command in (("bare", bare), ("ours", ours)):
            begun = time.perf_counter()
            subprocess.run(command, cwd=folder, check=True, capture_output=True)
            times[name].append(time.perf_counter() - begun)
    one, two = statistics.median(times["bare"]), statistics.median(times["ours"])
    print(f"| {title} | {one:.3f} | {two:.3f} | {two - one:.3f} |")


if __name__ == "__main__":
    main()
