"""The 24 cards of the test checkout `minimad` in one command, one after another and then at the same time, each built
and run in a container.

Needs root and an engine (DOCKER_HOST) that has madlite-test/base:latest; the eight GPUs are pretended.  One card waits
for its time limit of 6 s.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.golden.machines import h100s
from tests.golden.runs import Bed, copied, fulfils_gpu_requests

TURNS = 3
BASE = "madlite-test/base:latest"


def main() -> None:
    engine = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    print("| turn | options | seconds | exit code | containers left |\n|--:|---|--:|--:|--:|")
    for turn, options in [(turn, options) for options in ((), ("--parallel", "auto")) for turn in range(1, TURNS + 1)]:
        with tempfile.TemporaryDirectory() as name:
            home = Path(name)
            bed = Bed(engine, {"h100": h100s(home, 8)}, gives_gpus=fulfils_gpu_requests(engine, BASE, 8))
            folder = copied("minimad", home)
            with bed.tapped(home) as tap:
                begun = time.perf_counter()
                ended = bed.start(folder, "h100", tap.address, ("run", "--tags", "mini", *options), {})
                took_s = time.perf_counter() - begun
            print(f"| {turn} | {' '.join(options)} | {took_s:.1f} | {ended.returncode} | {bed.take_away(folder)} |")


if __name__ == "__main__":
    main()
