"""Runs at the same time: eight cards of ten seconds on eight pretended GPUs, two hundred short ones, ten thousand that
start nothing, and what it costs to wait.

The docker part needs root and an engine (DOCKER_HOST) that has madlite-test/base:latest.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.batch.nothing import batch_of
from tests.engine.test_parallel import AMD_SMI
from tests.golden.machines import h100s
from tests.golden.runs import Bed, fulfils_gpu_requests

BASE = "madlite-test/base:latest"
TURNS = 3
MANY = 10_000
IDLE_S = 30


def main() -> None:
    chosen = sys.argv[1:] or ["eight", "docker", "short", "many", "idle"]
    print("| what | seconds | more |\n|---|--:|---|")
    for name in chosen:
        PARTS[name]()


@contextmanager
def checkout(count: int, script: str, **fields: object) -> Iterator[tuple[Path, dict[str, str]]]:
    """Yield a folder with so many cards, and the environment of a machine with eight GPUs."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in ("scripts", "bin"):
            (folder / part).mkdir()
        (folder / "scripts/run.sh").write_text(f"#!/bin/bash\n{script}\n")
        card = {"scripts": "scripts/run.sh", "n_gpus": "1", "tags": ["t"], "image": BASE, **fields}
        (folder / "models.json").write_text(json.dumps([{"name": f"c{n}", **card} for n in range(count)]))
        (folder / "bin/amd-smi").write_text(AMD_SMI)
        (folder / "bin/amd-smi").chmod(0o755)
        leases = {"MADLITE_GPU_LEASES": str(folder / "leases")}
        yield (
            folder,
            {**os.environ, **leases, "PATH": f"{folder}/bin:{Path(sys.executable).parent}:{os.environ['PATH']}"},
        )


def madlite(*words: str) -> list[str]:
    return [sys.executable, "-m", "madlite", "run", "--tags", "t", "--runtime", "host", *words]


def timed(folder: Path, env: dict[str, str], *words: str) -> tuple[float, float]:
    """Return the seconds of a command, and those of processors that it and what it started took."""
    begun, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(madlite(*words), cwd=folder, env=env, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.perf_counter() - begun, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def eight() -> None:
    for _ in range(TURNS):
        with checkout(8, "sleep 10; echo 'performance: 1 x'") as (folder, env):
            took_s, cpu_s = timed(folder, env, "--parallel", "auto")
            print(f"| eight cards of 10 s, host | {took_s:.1f} | {cpu_s:.1f} s of processor |")


def docker() -> None:
    engine = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    look = ["docker", "-H", engine, "image", "inspect", BASE]
    if not shutil.which("docker") or subprocess.run(look, capture_output=True).returncode:
        print(f"| eight cards of 10 s, docker | - | no engine with {BASE} |")
        return
    for _ in range(TURNS):
        with checkout(8, "sleep 10; echo 'performance: 1 x'") as (folder, _):
            home = folder / "home"
            home.mkdir()
            bed = Bed(engine, {"h100": h100s(home, 8)}, gives_gpus=fulfils_gpu_requests(engine, BASE, 8))
            with bed.tapped(home) as tap:
                begun = time.perf_counter()
                ended = bed.start(folder, "h100", tap.address, ("run", "--tags", "t", "--parallel", "auto"), {})
                took_s = time.perf_counter() - begun
            print(f"| eight cards of 10 s, docker | {took_s:.1f} | exit code {ended.returncode} |")


def short() -> None:
    for _ in range(TURNS):
        with checkout(200, "echo 'performance: 1 x'") as (folder, env):
            took_s, cpu_s = timed(folder, env, "--parallel", "8")
            print(f"| 200 cards of one line, --parallel 8 | {took_s:.1f} | {cpu_s:.1f} s of processor |")


def many(count: int = MANY, at_once: int = 1) -> None:
    """Run in this process; the memory after the first thousand and at the end is that of plans and of all else."""
    with tempfile.TemporaryDirectory() as name:
        sizes: list[int] = []
        ended = 0

        def note_size() -> None:
            nonlocal ended
            ended += 1
            if ended % 1000 == 0:
                sizes.append(resident())

        batch = batch_of(Path(name), count, note_size, at_once)
        begun_s = time.process_time()
        batch.run()
        cost_ms = 1000 * (time.process_time() - begun_s) / count
        growth = f"{sizes[0] / 2**20:.0f} MiB after 1,000, {sizes[-1] / 2**20:.0f} MiB at the end" if sizes else ""
        print(
            f"| {count:,} runs that start nothing | {cost_ms * count / 1000:.1f} | {cost_ms:.2f} ms a run; {growth} |"
        )


def resident() -> int:
    """Return the bytes that this process has in memory; format: proc(5), statm."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def idle() -> None:
    """Measure a command whose runs sleep, and one that waits for the GPUs that the first one has."""
    with checkout(8, f"sleep {IDLE_S + 20}; echo 'performance: 1 x'") as (folder, env):
        busy = subprocess.Popen(madlite("--parallel", "auto", "--set", "telemetry_s=0"), cwd=folder, env=env)
        time.sleep(8)
        waiting = subprocess.Popen(madlite(), cwd=folder, env=env, stdout=subprocess.DEVNULL)
        time.sleep(4)
        before = [processor_s(one.pid) for one in (busy, waiting)]
        time.sleep(IDLE_S)
        after = [processor_s(one.pid) for one in (busy, waiting)]
        for one in (waiting, busy):
            one.terminate()
            one.wait()
    for title, first, last in zip(("eight sleeping runs", "a wait for GPUs"), before, after, strict=True):
        print(f"| idle: {title} | {last - first:.2f} of {IDLE_S} | {100 * (last - first) / IDLE_S:.2f} % of a core |")


def processor_s(pid: int) -> float:
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


PARTS = {"eight": eight, "docker": docker, "short": short, "many": many, "idle": idle}

if __name__ == "__main__":
    main()
