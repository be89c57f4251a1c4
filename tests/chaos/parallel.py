"""Rounds of two batches of parallel runs on the same eight pretended GPUs; one batch or both are attacked."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple

import psutil

from tests.chaos.killer import _is_supervisor
from tests.csv_rows import csv_rows
from tests.engine.test_parallel import QUICK, Machine

LIMIT_S = 240.0
GPUS = 8
# each GPU's file has the process that is on it: who finds a living one there shares the GPU
SCRIPT = """
gpus=$(echo "$HIP_VISIBLE_DEVICES" | tr , ' ')
for gpu in $gpus; do
  other=$(cat "$SEEN/gpu$gpu" 2>/dev/null)
  [ -n "$other" ] && kill -0 "$other" 2>/dev/null && echo "$gpu of $MADLITE_RUN_ID and $other" >> "$SEEN/shared"
  echo $$ > "$SEEN/gpu$gpu"
done
echo > "$SEEN/began.$MADLITE_RUN_ID"
sleep {length_s}
for gpu in $gpus; do rm "$SEEN/gpu$gpu"; done
echo 'performance: 5 x'
"""
Target = Literal["batch", "workload", "second batch", "both"]


class ParallelCard(NamedTuple):
    """A card of a round: how many GPUs it has, and how long."""

    name: str
    gpus: int
    length_s: float


class ParallelRound(NamedTuple):
    """Everything of a round; `after` so many runs have begun, and `wait_s` later, the target gets the signal."""

    seed: int
    cards: tuple[tuple[ParallelCard, ...], tuple[ParallelCard, ...]]
    at_once: tuple[int, int]
    word: str
    target: Target
    after: int
    wait_s: float


def draw_parallel(seed: int) -> ParallelRound:
    """Return the round of a seed, the same every time."""
    chance = random.Random(f"parallel {seed}")

    def cards(letter: str) -> tuple[ParallelCard, ...]:
        counts = chance.choices((1, 1, 2, 3, 4, 8), k=chance.randint(3, 5))
        return tuple(ParallelCard(f"{letter}{n}", count, chance.uniform(0.05, 1.5)) for n, count in enumerate(counts))

    both = cards("a"), cards("b")
    return ParallelRound(
        seed=seed,
        cards=both,
        at_once=(chance.randint(2, 4), chance.randint(2, 4)),
        word=chance.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)).name,
        target=chance.choice(("batch", "batch", "workload", "second batch", "both")),
        after=chance.randint(0, min(map(len, both))),
        wait_s=chance.uniform(0.0, 0.8),
    )


class Batches:
    """The two folders of a round, whose runs share GPUs and leases."""

    def __init__(self, home: Path, one: ParallelRound) -> None:
        self.round, self.seen, self.killed_workloads = one, home / "seen", 0
        self.machines = [Machine(home / name, self.seen) for name in ("a", "b")]
        for machine, cards in zip(self.machines, one.cards, strict=True):
            for card in cards:
                script = SCRIPT.replace("{length_s}", f"{card.length_s:.3f}")
                machine.card(card.name, script, n_gpus=str(card.gpus), tags=["t"])

    def play(self) -> list[str]:
        """Play the round and return the broken rules, each as one sentence."""
        started = [self._start(machine, at) for machine, at in zip(self.machines, self.round.at_once, strict=True)]
        try:
            self._wait_for_moment(started)
            self._attack(started)
            codes = [one.wait(LIMIT_S) for one in started]
        except subprocess.TimeoutExpired:
            return ["a batch did not end"]
        finally:
            for one in started:
                one.kill()
                one.wait()
        broken = [f"batch {n} ended with {code}" for n, code in enumerate(codes) if code not in self._codes(n)]
        completed = []
        for machine in self.machines:
            resumed = machine.madlite("run", "--resume")  # 4: it had ended, and there is nothing to go on with
            cleaned = machine.madlite("clean", "--yes")
            completed.append(resumed.returncode != 4)
            if cleaned.returncode or resumed.returncode not in (0, 3, 4) or "Traceback" in resumed.stderr:
                broken.append(f"clean {cleaned.returncode}, resume {resumed.returncode}: {resumed.stderr[-400:]}")
        return [*broken, *self._judged(completed)]

    def _start(self, machine: Machine, at_once: int) -> subprocess.Popen[bytes]:
        words = ("--tags", "t", "--runtime", "host", "--parallel", str(at_once), "--add-column", "cause")
        with (machine.folder.parent / f"{machine.folder.name}.screen").open("wb") as out:
            return subprocess.Popen(
                machine.command("run", *words, *QUICK, "--set", "stop_grace_s=0.4"),
                cwd=machine.folder,
                env=machine.env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def _wait_for_moment(self, started: list[subprocess.Popen[bytes]]) -> None:
        until_s = time.monotonic() + LIMIT_S
        while len([*self.seen.glob("began.*")]) < self.round.after and any(one.poll() is None for one in started):
            if time.monotonic() > until_s:
                raise subprocess.TimeoutExpired("the first runs", LIMIT_S)
            time.sleep(0.005)
        time.sleep(self.round.wait_s)

    def _attack(self, started: list[subprocess.Popen[bytes]]) -> None:
        number = signal.Signals[self.round.word]
        if self.round.target == "workload":
            found = [process for process in self.machines[0].left_processes() if not _is_supervisor(process)]
            self.killed_workloads = len(self.machines[0].cards) if found else 0
            for process in found:
                with suppress(psutil.Error):
                    process.send_signal(number)
            return
        for one in {"batch": started[:1], "second batch": started[1:], "both": started}[self.round.target]:
            with suppress(ProcessLookupError):
                os.kill(one.pid, number)

    def _codes(self, batch: int) -> set[int]:
        attacked = self.round.target == "both" or (self.round.target == "batch") == (batch == 0)
        if self.round.target == "workload":
            return {0, 3} if batch == 0 else {0}
        number = signal.Signals[self.round.word]
        return {0, -number, 128 + number} if attacked else {0}

    def _judged(self, completed: list[bool]) -> list[str]:
        broken = []
        for machine, cards, resumed in zip(self.machines, self.round.cards, completed, strict=True):
            began = {path.name.split("-")[-2] for path in self.seen.glob("began.*")} & {card.name for card in cards}
            rows = csv_rows(machine.folder / "perf.csv") if (machine.folder / "perf.csv").exists() else []
            for card in cards:
                own = [row for row in rows if row["model"] == card.name and row["cause"] != "interrupted"]
                if len(own) != 1 and (own or began or resumed):  # else it was ended before it had begun
                    broken.append(f"{card.name} has {len(own)} rows")
                failed = [row["cause"] for row in own if row["status"] != "SUCCESS"]
                if failed and not self.killed_workloads:
                    broken.append(f"{card.name} failed: {failed}")
            free = machine.madlite("doctor", "--gpus").stdout
            if free.count(" free") != GPUS:
                broken.append(f"a GPU is held for ever: {free}")
            left = [process.pid for process in machine.left_processes()]
            broken += [f"process {pid} is left" for pid in left]
        if (shared := self.seen / "shared").exists():
            broken.append(f"a GPU had two runs: {shared.read_text()}")
        return broken
