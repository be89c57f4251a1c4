"""Rounds of chaos over a real Slurm: a submission, one attack drawn from the seed, and what must hold afterwards.

The working folder is a small file system of its own, which the attack may fill, make read-only or stop for a while.
After the attack everything works again; then a user types `attach`, `collect` and `jobs`.  Whatever happened, each run
has one row or is named by `jobs`.
"""

from __future__ import annotations

import csv
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from tests.slurm_fixture import NODES, SlurmCluster

LIMIT_S = 240.0
_LATE_S = 90.0
KINDS = ("submitter", "slurmd", "slurmctld", "rank", "madlite of a job", "full", "read-only", "slow")
_SIGNALS = ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP")
_CLUSTER = "[clusters.lab.slurm]\nexclusive = false\n"
_SCRIPT = """
sleep {sleep_s}
[ "${{NODE_RANK:-0}}" != 0 ] || echo {name} >>{truth}
echo performance: 12.5 tok
exit {code}
"""


class Round(NamedTuple):
    """A submission of cards, each with how long its script sleeps and how it ends, and what is done when to it."""

    seed: int
    cards: tuple[tuple[str, float, int], ...]
    nodes: int
    kind: str
    word: str
    wait_s: float
    lasts_s: float

    def __str__(self) -> str:
        what = f"{self.kind} {self.word}".strip()
        when = f"+{self.wait_s:4.1f} s for {self.lasts_s:4.1f} s"
        return f"{self.seed:>4} {what:22} {when}, {len(self.cards)} cards on {self.nodes}"


def draw(seed: int) -> Round:
    """Return the round of a seed, the same every time."""
    chance = random.Random(seed)
    names = "abcd"[: chance.randint(1, 4)]
    cards = tuple((name, chance.uniform(0.0, 6.0), chance.choice((0, 0, 0, 3))) for name in names)
    kind = KINDS[(seed - 1) % len(KINDS)]
    word = chance.choice(_SIGNALS) if kind == "submitter" else chance.choice(NODES) if kind == "slurmd" else ""
    return Round(
        seed, cards, chance.choice((1, 1, 2)), kind, word, chance.uniform(0.0, 12.0), chance.uniform(1.0, 15.0)
    )


class Place:
    """The working folder of a round, on a file system of its own, and the commands that a user types there."""

    def __init__(self, one: Round, slurm: SlurmCluster) -> None:
        self.home = Path(tempfile.mkdtemp(prefix=f"madlite-chaos-cluster-{one.seed}-"))
        self.folder, self.truth, self.screen = self.home / "mad", self.home / "truth", self.home / "screen"
        self.slurm = slurm
        self.environ = {**slurm.environ, "USER": "root", "XDG_CONFIG_HOME": str(self.home)}
        image = self.home / "image"
        with image.open("wb") as file:
            file.truncate(24 << 20)
        self.folder.mkdir()
        self.truth.touch()
        _do("mkfs.ext4", "-q", "-F", str(image))
        _do("mount", "-o", "loop", str(image), str(self.folder))
        (self.folder / "cluster.toml").write_text(_CLUSTER)
        for name, sleep_s, code in one.cards:
            script = self.folder / f"scripts/{name}/run.sh"
            script.parent.mkdir(parents=True)
            script.write_text(_SCRIPT.format(sleep_s=sleep_s, name=name, truth=self.truth, code=code))
        common = {"args": "", "tags": ["t"], "runtimes": ["host"]}
        cards = [{"name": name, "scripts": f"scripts/{name}/run.sh", **common} for name, _, _ in one.cards]
        (self.folder / "models.json").write_text(json.dumps(cards))

    def submit(self, nodes: int) -> subprocess.Popen[bytes]:
        """Start the command that is attacked; its output goes beside the folder."""
        with self.screen.open("wb") as out:
            words = ("run", "--cluster", "lab", "--nodes", str(nodes), "--tags", "t")
            return subprocess.Popen(**self._command(*words), stdout=out, stderr=out, start_new_session=True)

    def _command(self, *words: str) -> dict[str, Any]:
        """Return how a command of madlite is started in the folder."""
        argv = [sys.executable, "-m", "madlite", *words]
        return {"args": argv, "cwd": self.folder, "env": self.environ, "stdin": subprocess.DEVNULL}

    def call(self, *words: str) -> str:
        """Run a command that nothing attacks; "it does not end" stands for the output of one that hangs."""
        try:
            done = subprocess.run(**self._command(*words), capture_output=True, text=True, timeout=LIMIT_S, check=False)
        except subprocess.TimeoutExpired:
            return "it does not end"
        return done.stdout + done.stderr

    def rows(self) -> list[dict[str, str]]:
        """Return the rows of perf.csv."""
        file = self.folder / "perf.csv"
        if not file.exists():
            return []
        with file.open(newline="") as opened:
            return [*csv.DictReader(opened, strict=True)]

    def runs(self) -> list[dict[str, str]]:
        """Return the runs that were given to the cluster."""
        files = self.folder.glob("madlite_runs/jobs-*/submission.json")
        return [run for file in files for run in json.loads(file.read_text())["runs"]]

    def processes(self, mark: str) -> list[psutil.Process]:
        """Return the processes of the round's jobs: those in whose command line or environment the mark is."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                words, environ = process.cmdline(), process.environ()
                is_ours = any(str(self.folder) in text for text in (*words, environ.get("MADLITE_RUN_FOLDER", "")))
                if is_ours and (mark in environ if mark.isupper() else mark in words):
                    found.append(process)
        return found

    def close(self) -> None:
        """End what is left of the round, and take its file system away."""
        names = self.slurm.run("squeue", "-h", "-o", "%i").stdout.split()
        if names:
            self.slurm.run("scancel", *names)
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.cwd().startswith(str(self.folder)):
                    process.kill()
        subprocess.run(["umount", "-l", str(self.folder)], check=False, capture_output=True)
        shutil.rmtree(self.home, ignore_errors=True)


def _do(*argv: str) -> None:
    subprocess.run(argv, check=True, capture_output=True)


def attack(one: Round, place: Place, started: subprocess.Popen[bytes]) -> None:
    """Do what the round has, for as long as it has, and make all of it work again."""
    folder, slurm = str(place.folder), place.slurm
    time.sleep(one.wait_s)
    match one.kind:
        case "submitter":
            with suppress(ProcessLookupError):
                os.kill(started.pid, signal.Signals[one.word])
        case "rank" | "madlite of a job":
            found = place.processes("MADLITE_RUN_ID" if one.kind == "rank" else "--no-rows")
            for process in found[:1]:
                with suppress(psutil.Error):
                    process.kill()
        case "slurmd" | "slurmctld":
            daemon = f"slurmd-{one.word}" if one.word else "slurmctld"
            slurm.kill(daemon)
            time.sleep(one.lasts_s)
            slurm.restart(daemon)
        case "slow":
            _do("fsfreeze", "-f", folder)
            try:
                time.sleep(one.lasts_s)
            finally:
                _do("fsfreeze", "-u", folder)
        case "read-only":
            if subprocess.run(["mount", "-o", "remount,ro", folder], capture_output=True, check=False).returncode == 0:
                time.sleep(one.lasts_s)
                _do("mount", "-o", "remount,rw", folder)
                return
            # somebody has a file open for writing: no name can be added to a folder that is immutable
            shut = [folder, *(str(path) for path in place.folder.rglob("*") if path.is_dir() and not path.is_symlink())]
            subprocess.run(["chattr", "+i", *shut], check=False, capture_output=True)
            try:
                time.sleep(one.lasts_s)
            finally:
                subprocess.run(["chattr", "-i", *shut], check=False, capture_output=True)
        case "full":
            filler = place.folder / "filler"
            until_s = time.monotonic() + one.lasts_s
            with filler.open("ab", buffering=0) as file:
                while time.monotonic() < until_s:
                    with suppress(OSError):
                        file.write(b"\0" * 4096)
            filler.unlink()


def play(seed: int, slurm: SlurmCluster) -> list[str]:
    """Play a round, and return the rules that it broke."""
    one = draw(seed)
    place = Place(one, slurm)
    try:
        started = place.submit(one.nodes)
        attack(one, place, started)
        said = []
        try:
            started.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            said.append("the command does not end")
            started.kill()
            started.wait()
        attached = place.call("cluster", "attach", "--on-interrupt", "leave")
        collected = place.call("runs", "collect")
        return [*said, *_judge(one, place, {"attach": attached, "collect": collected})]
    finally:
        place.close()


def _judge(one: Round, place: Place, screens: dict[str, str]) -> Iterator[str]:
    """Yield what does not hold of a round that is over."""
    rows = place.rows()
    screens = {**screens, "collect again": place.call("runs", "collect"), "jobs": place.call("cluster", "jobs")}
    if len(place.rows()) != len(rows):
        yield "a second collect added rows"
    screens["run"] = place.screen.read_text(errors="replace")
    for name, text in screens.items():
        if "Traceback" in text or "internal error" in text or text == "it does not end":
            yield f"{name}: {text[-300:]}"
    counts = Counter(row["model"] for row in rows)
    open_runs = [run for run in place.runs() if run["id"] in screens["jobs"]]
    for run in place.runs():
        named = run in open_runs
        if counts[run["card"]] + named != 1:
            yield f"run {run['id']} has {counts[run['card']]} rows, and jobs {'names' if named else 'does not name'} it"
    ended = place.truth.read_text().split()
    for row in rows:
        if row["status"] == "SUCCESS" and row["model"] not in ended:
            yield f"{row['model']} has SUCCESS, and its script did not come to its end"
    if not open_runs and (left := _left_in_queue(place.slurm)):
        yield f"no run is open, and jobs are in the queue: {left}"


def _left_in_queue(slurm: SlurmCluster) -> list[str]:
    """Return the jobs that stay in the queue.

    A controller that was down when a job ended learns that late, or queues it again once nobody follows any more: such
    a job is held, or waits for two minutes and ends at once.
    """
    until_s = time.monotonic() + _LATE_S
    while True:
        lines = slurm.run("squeue", "-h", "-o", "%j %T %r").stdout.splitlines()
        left = [line for line in lines if not line.endswith(("PENDING BeginTime", "requeued held"))]
        if not left or time.monotonic() > until_s:
            return left
        time.sleep(0.5)
