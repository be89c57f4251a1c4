"""`python -m tests.chaos --runs 200 --seed 1`: play rounds, print a line for each, and the seeds of broken rules."""

from __future__ import annotations

import argparse
import signal
import sys

from tests.chaos.daemon import Engine
from tests.chaos.play import Played, play


def main() -> int:
    options = argparse.ArgumentParser(prog="chaos", description=__doc__)
    options.add_argument("--runs", type=int, default=200, help="how many rounds")
    options.add_argument("--seed", type=int, default=1, help="the first one's")
    options.add_argument("--keep", action="store_true", help="leave the folders of rounds that broke a rule")
    given = options.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):  # also as a background job: nothing of ours stays
        signal.signal(number, signal.default_int_handler)
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
