"""A thousand jobs of a real Slurm of four nodes: what following and collecting them costs the controller and this side.

The commands of Slurm on PATH are wrappers that count.  The jobs start a stand-in for madlite, as a thousand real ones
take half an hour on two cores: it waits a moment, then puts the result there that this program made before with
madlite's own functions, or leaves none where its number is divided by ten.

    python -m benchmarks slurm_load      # root; slurm-wlm and munge of Debian
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

import psutil

from madlite.model import Metric, Result, Status
from madlite.perfcsv.side_files import make_result
from madlite.plan.plan_file import read_plan_file
from madlite.store.folder import RunFolder, RunStart
from madlite.store.record import result_text
from tests.csv_rows import perf_rows
from tests.slurm_fixture import SlurmCluster, end_cluster, start_cluster

JOBS, WAITING_S = int(os.environ.get("JOBS", "1000")), 60.0
COMMANDS = ("sbatch", "squeue", "scancel", "scontrol", "sinfo", "sacct")
COUNTED = '#!/bin/sh\n[ -n "$SLURM_JOB_ID" ] && who=job || who=login\necho "{name} $who" >>{log}\nexec {real} "$@"\n'
# `run --plan PLANS/7.json --no-rows --once`: the result of run 7 lies in ready/7
STAND_IN = """#!/bin/sh
n=$(basename "$3" .json)
sleep $((n % {longest}))
[ -d ready/$n ] && for run in ready/$n/*; do mv "$run" madlite_runs/; done
exit 0
"""


def main() -> None:
    home = Path(tempfile.mkdtemp(prefix="madlite-load-"))
    slurm = start_cluster(home / "cluster", leader=os.getpid())
    try:
        print("| what | figure |\n|---|--:|")
        for name, size in (("each with a script of its own", 2), ("of one array", 0)):
            site = Site(home / f"work{size}", slurm, size, longest_s=15)
            site.submit(name)
            site.follow(name)
            site = Site(home / f"ended{size}", slurm, size, longest_s=1)
            site.submit("")
            site.collect(name)
    finally:
        end_cluster(slurm.home)
        shutil.rmtree(home, ignore_errors=True)


class Site:
    """A working folder with a card of each job; `size` is the cluster's MaxArraySize, where it is not asked."""

    def __init__(self, folder: Path, slurm: SlurmCluster, size: int, longest_s: int) -> None:
        self.folder, self.slurm, self.log = folder, slurm, folder / "queries"
        (folder / "bin").mkdir(parents=True)
        self.command("job.sh", STAND_IN.format(longest=longest_s))
        for name in COMMANDS:
            real = shutil.which(name, path=slurm.environ["PATH"])
            self.command(name, COUNTED.format(name=name, log=self.log, real=real))
        (folder / "run.sh").write_text("echo performance: 1 tok\n")
        common = {"scripts": "run.sh", "tags": ["all"], "runtimes": ["host"]}
        cards = [{"name": f"m{n}", "args": f"--n {n}", **common} for n in range(JOBS)]
        (folder / "models.json").write_text(json.dumps(cards))
        (folder / "cluster.toml").write_text(
            f'[clusters.lab]\nmadlite = "{folder}/bin/job.sh"\n[clusters.lab.slurm]\nexclusive = false\n'
            f'gpus = "none"\ndirectives = ["--hold"]\nmax_array_size = {size}\n'
        )
        environ = slurm.environ
        self.environ = {**environ, "PATH": f"{folder}/bin:{environ['PATH']}", "USER": "root"}
        self.environ["PYTHONPATH"] = str(Path(__file__).parents[1])

    def command(self, name: str, script: str) -> None:
        file = self.folder / "bin" / name
        file.write_text(script)
        file.chmod(0o755)

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-m", "madlite", *words]
        with (self.folder / "output").open("ab") as out:
            return subprocess.Popen(argv, cwd=self.folder, env=self.environ, stdout=out)

    def submit(self, name: str) -> None:
        """Submit jobs that are held, and make the results that they will have."""
        began = time.perf_counter()
        assert self.start("run", "--cluster", "lab", "--tags", "all", "--detach").wait() == 0
        if name:
            print(f"| submit {JOBS:,} jobs, {name} | {time.perf_counter() - began:.1f} s |", flush=True)
        plans = next(self.folder.glob("madlite_runs/jobs-*")) / "plans"
        for n in range(1, JOBS + 1):
            if n % 10:
                (self.folder / f"ready/{n}").mkdir(parents=True)
                self.result(plans / f"{n}.json", self.folder / f"ready/{n}")

    def result(self, file: Path, place: Path) -> None:
        plan = read_plan_file(file, {}).plan
        metric = Metric(metric="tok", text="1", status=Status.SUCCESS, value=1.0)
        result = Result(plan_id=plan.id, status=Status.SUCCESS, metrics=(metric,))
        with closing(RunFolder.create(plan, (), ())) as folder:
            assert not folder.write_result(result_text(make_result(plan, result, RunStart(), str)))
        plan.folder.rename(place / plan.id)

    def release(self) -> None:
        self.log.unlink()
        jobs = self.slurm.checked("squeue", "-h", "-o", "%A").split()
        for at in range(0, len(jobs), 200):
            self.slurm.checked("scontrol", "release", ",".join(dict.fromkeys(jobs[at : at + 200])))

    def follow(self, name: str) -> None:
        """Count the queries and the processor time of following jobs that wait, then from the queue to the last row."""
        attached = self.start("cluster", "attach")
        process, times = psutil.Process(attached.pid), None
        time.sleep(10)
        before = sum(process.cpu_times())
        time.sleep(WAITING_S)
        part = (sum(process.cpu_times()) - before) / WAITING_S
        print(f"| follow {JOBS:,} jobs that wait, {name}: part of a core, with the commands it starts | {part:.2%} |")
        self.release()
        began, before = time.perf_counter(), sum(process.cpu_times())
        while attached.poll() is None:
            times = process.cpu_times()
            time.sleep(0.5)
        took = time.perf_counter() - began
        assert attached.returncode == 3, attached.returncode
        self.check_rows()
        queries = Counter(self.log.read_text().splitlines())
        said = ", ".join(f"{count} {what.split()[0]}" for what, count in queries.most_common())
        rate = sum(queries.values()) / took
        print(f"| follow {JOBS:,} jobs that all end in {took:.0f} s, {name}: queries a second ({said}) | {rate:.3f} |")
        a_row = (sum(times) - before) / JOBS
        print(f"| the same: processor time for each job and its row | {1000 * a_row:.1f} ms |", flush=True)

    def collect(self, name: str) -> None:
        """Measure `runs collect` of jobs that all have ended."""
        self.release()
        while self.slurm.checked("squeue", "-h").strip():
            time.sleep(1)
        time.sleep(65)  # files of a job that ended a minute ago certainly are seen here
        began, used = time.perf_counter(), os.times()
        assert self.start("runs", "collect").wait() == 3
        took, now = time.perf_counter() - began, os.times()
        used_s = now.children_user + now.children_system - used.children_user - used.children_system
        self.check_rows()
        queries = Counter(self.log.read_text().splitlines())
        said = ", ".join(f"{count} {what.split()[0]}" for what, count in queries.most_common())
        print(
            f"| collect {JOBS:,} jobs that ended, {name} ({said}) | {took:.1f} s, {used_s:.1f} s of CPU |", flush=True
        )

    def check_rows(self) -> None:
        rows = Counter(row["status"] for row in perf_rows(self.folder))
        assert rows == {"SUCCESS": JOBS - JOBS // 10, "FAILURE": JOBS // 10}, rows


if __name__ == "__main__":
    main()
