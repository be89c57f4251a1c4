"""`--until`: how often simulated trainings end early, and how often their interval has the full run's median."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.measure.simulated_steps import KINDS, simulate

_RUNS = int(sys.argv[1]) if len(sys.argv) > 1 else 300
_LENGTHS = (500, 2000)


def main() -> None:
    """Print a row for each kind and length."""
    print(f"{_RUNS} trainings each, steps of 0.5 s that vary by 0.2, 0.5 and 1 %, --until 0.5%\n")
    print("| steps | training | ended early | after | full run's median inside | ended before its level changed |")
    print("|--:|---|--:|--:|--:|--:|")
    for count in _LENGTHS:
        for kind in KINDS:
            found = simulate(kind, _RUNS, count)
            after = f"{found.steps / found.ended / count:.0%}" if found.ended else "-"
            inside = f"{found.coverage:.1%} of {found.known}" if found.known else "-"
            before = f"{found.before_change}, {found.inside_before_change} inside" if found.before_change else "-"
            print(f"| {count} | {kind} | {found.ended / _RUNS:.0%} | {after} | {inside} | {before} |", flush=True)


if __name__ == "__main__":
    main()
