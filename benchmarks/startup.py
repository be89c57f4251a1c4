"""Start-up: `madlite --help`, `discover` over 500 static cards, in an environment that holds madlite alone."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
TURNS, WARM_UPS = 15, 3


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program = alone(folder / "venv")
        cards = [
            {"name": f"model_{n}", "scripts": "scripts/x/run.sh", "n_gpus": "8", "tags": ["all", f"group_{n % 7}"]}
            for n in range(500)
        ]
        work = folder / "work"
        work.mkdir()
        (work / "models.json").write_text(json.dumps(cards))
        print("| command | median, ms | worst, ms |\n|---|--:|--:|")
        python = [str(folder / "venv/bin/python"), "-c", "pass"]
        for title, command in {
            "python -c pass": python,
            "madlite --version": [program, "--version"],
            "madlite --help": [program, "--help"],
            "madlite discover, 500 cards": [program, "discover"],
            "madlite discover --tags group_3": [program, "discover", "--tags", "group_3"],
        }.items():
            times = timed(command, work)
            print(f"| {title} | {statistics.median(times):.0f} | {max(times):.0f} |")


def alone(venv: Path) -> str:
    """Make an environment with madlite and what it depends on, and return its program."""
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    pip = [str(venv / "bin/python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, str(ROOT)], check=True)
    return str(venv / "bin/madlite")


def timed(command: list[str], cwd: Path) -> list[float]:
    """Return the wall clock of each turn in milliseconds, after warm-ups."""
    times = []
    for _ in range(TURNS + WARM_UPS):
        begun = time.perf_counter()
        subprocess.run(command, cwd=cwd, check=True, stdout=subprocess.DEVNULL)
        times.append(1e3 * (time.perf_counter() - begun))
    return times[WARM_UPS:]


if __name__ == "__main__":
    main()
