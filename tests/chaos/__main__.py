"""`python -m tests.chaos --runs 200 --seed 1`: play rounds, print a line for each, and the seeds of broken rules."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.chaos import cluster
from tests.chaos.daemon import Engine
from tests.chaos.play import Played, play
from tests.slurm_fixture import end_cluster, start_cluster


def main() -> int:
    options = argparse.ArgumentParser(prog="chaos", description=__doc__)
    options.add_argument("--runs", type=int, default=200, help="how many rounds")
    options.add_argument("--seed", type=int, default=1, help="the first one's")
    options.add_argument("--keep", action="store_true", help="leave the folders of rounds that broke a rule")
    options.add_argument("--cluster", action="store_true", help="rounds over a real Slurm")
    given = options.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):  # also as a background job: nothing of ours stays
        signal.signal(number, signal.default_int_handler)
    if given.cluster:
        return play_on_cluster(range(given.seed, given.seed + given.runs))
    engine = Engine()
    print(f"{'seed':>6} {'runtime':7} {'attack':34} {'moment':16} {'code':>5} {'rows':>4} {'s':>5}  cards")
    try:
        played = []
        for seed in range(given.seed, given.seed + given.runs):
            played.append(play(seed, engine, given.keep))
            tell(played[-1])
    finally:
        engine.close()
    bad = [one for one in played if one.broken]
    print(f"{len(played)} rounds, {len(bad)} with a broken rule")
    for one in bad:
        print(f"make chaos SEED={one.round.seed} RUNS=1   # {one.broken[0]}")
    return 1 if bad else 0


def play_on_cluster(seeds: range) -> int:
    """Play rounds over a Slurm of their own, and return 1 where one broke a rule."""
    home = Path(tempfile.mkdtemp(prefix="madlite-slurm-"))
    slurm = start_cluster(home / "cluster", leader=os.getpid(), slurmd_timeout_s=10)
    bad = 0
    try:
        for seed in seeds:
            begun_s = time.monotonic()
            broken = cluster.play(seed, slurm)
            bad += bool(broken)
            print(f"{cluster.draw(seed)}  {time.monotonic() - begun_s:5.1f} s", flush=True)
            for rule in broken:
                print(f"       BROKEN: {rule}", flush=True)
    finally:
        end_cluster(slurm.home)
        shutil.rmtree(home, ignore_errors=True)
    print(f"{len(seeds)} rounds, {bad} with a broken rule")
    return 1 if bad else 0


def tell(played: Played) -> None:
    one, attack = played.round, played.round.attack
    moment = f"{attack.moment} +{attack.wait_s:.2f} s"
    cards = " ".join(part.kind for part in one.parts)
    print(
        f"{one.seed:>6} {one.runtime:7} {attack!s:34} {moment:16} {played.code!s:>5} {played.rows:>4} "
        f"{played.took_s:>5.1f}  {cards}" + (f"  ({played.note})" if played.note else ""),
        flush=True,
    )
    for rule in played.broken:
        print(f"       BROKEN: {rule}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
