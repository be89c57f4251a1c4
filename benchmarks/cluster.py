"""Jobs of a cluster: what planning and submitting, following and collecting cost, with stand-ins for its commands.

They answer at once, so that what is measured is madlite's own part.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

RUNS, FOLLOWED, COLLECTED, FOLLOW_S = 1000, 100, 500, 30.0
CLUSTERS = '[clusters.lab]\ngpu = "MI300X"\ngpus_per_node = 8\n'


def main() -> None:
    print("| what | seconds |\n|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        site = Site(Path(folder))
        one = "primus_pyt_train_llama-3.1-8b"
        site.take("plan and script of a run on 1,000 nodes", "--tags", "m1", "--nodes", "1000", "-n")
        site.take(f"submit {RUNS:,} runs of one card's script", "--tags", "m1", "--repeat", str(RUNS), "--detach")
        site.take(
            f"submit {RUNS:,} runs of one rendered plan",
            "--tags",
            one,
            "--precision",
            "BF16",
            "--repeat",
            "500",
            "--detach",
        )
        site.take(f"submit {RUNS:,} different plans", "--tags", "all", "--detach")
        site.follow()
        site.collect()
        stream(Path(folder))


NODES, RANKS, STREAM_BYTES = 32, 8, 80_000_000
STEP = (
    "[rank{rank}]:[titan] 2026-11-26 21:00:00,123 - root - INFO - step: {n:2d}  loss:  {loss:.4f}  "
    "grad_norm:  1.2345  memory: 50.00GiB(26.00%)  tps: 5,000  tflops: 300.00  mfu: 45.00%\n"
)
OTHER = (
    "[rank{rank}]:W1126 21:00:00.123000 410 torch/_inductor/utils.py:1436] [{k}/0] "
    "Not enough SMs to use max_autotune_gemm mode\n"
)


def stream(folder: Path) -> None:
    """Measure how quickly the output of 256 ranks is masked, written and read as it comes, on one core."""
    from madlite.measure.monitor import LogMonitor
    from madlite.measure.rules import with_common
    from madlite.model import Chunk
    from madlite.run.log import RunLog
    from madlite.run.state import RunState
    from madlite_plugins.torchtitan.backend import Torchtitan

    rules = with_common(())
    monitor = LogMonitor([Torchtitan().reader(None)], rules, nodes=NODES)
    progress = RunState(monitor, rules, nodes=NODES)
    progress.begin("run", 0.0)
    log = RunLog(folder / "run.log", ["hf_" + "x" * 34], [], progress.feed, nodes=NODES)
    size, used_s, n = 0, 0.0, 0
    while size < STREAM_BYTES:
        n += 1
        chunks = [Chunk(data=_output(node, n), node=node) for node in range(NODES)]
        size += sum(len(chunk.data) for chunk in chunks)
        began_s = time.process_time()
        for chunk in chunks:
            log.feed(chunk)
        used_s += time.process_time() - began_s
    assert monitor.steps.count() == n
    log.close()
    print(f"| log of {NODES * RANKS} ranks on {NODES} nodes, MB per second of CPU time | {size / 1e6 / used_s:.1f} |")


def _output(node: int, n: int) -> bytes:
    """Return what the ranks of a node print in a step: the first its line, each four others."""
    ranks = range(node * RANKS, (node + 1) * RANKS)
    step = STEP.format(rank=ranks[0], n=n, loss=9 - n / 1000)
    return (step + "".join(OTHER.format(rank=rank, k=k) for rank in ranks for k in range(4))).encode()


class Site:
    """A working folder with cards, a cluster file, and commands of a Slurm that is not there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "work"
        (self.folder / "scripts").mkdir(parents=True)
        (self.folder / "scripts/run.sh").write_text("echo performance: 1 tok\n")
        (self.folder / "cluster.toml").write_text(CLUSTERS)
        common = {"scripts": "scripts/run.sh", "tags": ["all"], "runtimes": ["host"], "n_gpus": "-1"}
        cards = [{"name": f"m{n}", "args": f"--n {n}", **common} for n in range(RUNS)]
        (self.folder / "models.json").write_text(json.dumps(cards))
        self._bin = folder / "bin"
        self._bin.mkdir()
        for name in ("scontrol", "squeue", "scancel", "sinfo"):
            self.command(name, "exit 0")
        self.command("sbatch", "echo 77")
        self.environ = {**os.environ, "PATH": f"{self._bin}:{os.environ['PATH']}", "HF_TOKEN": "hf_" + "x" * 34}

    def command(self, name: str, script: str) -> None:
        file = self._bin / name
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(0o755)

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-m", "madlite", *words]
        return subprocess.Popen(argv, cwd=self.folder, env=self.environ, stdout=subprocess.DEVNULL)

    def take(self, what: str, *words: str) -> None:
        shutil.rmtree(self.folder / "madlite_runs", ignore_errors=True)
        began = time.perf_counter()
        assert self.start("run", "--cluster", "lab", *words).wait() == 0, what
        print(f"| {what} | {time.perf_counter() - began:.2f} |", flush=True)

    def follow(self) -> None:
        """Measure the CPU time of following jobs of which some run and the others wait."""
        running = f'i=1; while [ $i -le {FOLLOWED} ]; do echo "77_$i|RUNNING|None|N/A|n$i|"; i=$((i+1)); done'
        self.command("squeue", f"echo '77_[{FOLLOWED + 1}-{RUNS}]|PENDING|Resources|N/A||'; {running}")
        attached = self.start("cluster", "attach", "--on-interrupt", "leave")
        time.sleep(5)
        process = psutil.Process(attached.pid)
        before = process.cpu_times()
        time.sleep(FOLLOW_S)
        after = process.cpu_times()
        attached.terminate()
        attached.wait()
        used = after.user + after.system - before.user - before.system
        print(f"| CPU time of following {RUNS:,} runs, per second | {used / FOLLOW_S:.4f} |", flush=True)

    def collect(self) -> None:
        """Measure how long the rows of jobs take that ended without a result."""
        shutil.rmtree(self.folder / "madlite_runs")
        submitted = self.start("run", "--cluster", "lab", "--tags", "m1", "--repeat", str(COLLECTED), "--detach")
        assert submitted.wait() == 0
        self.command("squeue", "exit 0")
        self.command("sacct", f"echo '77_[1-{COLLECTED}]|FAILED|1:0|n1|1:0|2026-01-01T00:00:00'")
        began = time.perf_counter()
        assert self.start("runs", "collect").wait() == 3
        print(f"| collect {COLLECTED} failed jobs | {time.perf_counter() - began:.2f} |", flush=True)
        rows = (self.folder / "perf.csv").read_text().splitlines()
        assert len(rows) == COLLECTED + 1, len(rows)


if __name__ == "__main__":
    main()
