"""Planning: every card that madlite brings, planned and rendered for one GPU, imports and recipe books included; and
`explain` over a checkout whose cards are in nested folders, each with its script and Dockerfile.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

GPUS = ("8xMI300X", "8xMI325X", "8xMI355X", "8xH200")
_PLAN = """
import sys, json, time
begun = time.perf_counter()
from madlite.cli import setup
from madlite.cli.main import main
from madlite.cli.planning import plan_all
from madlite.cli.plan import explain
context = explain.make_context("explain", ["--machine", sys.argv[1], "x"])
given = {**context.params, "tags": ("all",)}
plugins = setup.load()
options = setup.make_options(given)
requests = setup.select_requests(plugins, ("all",), options.workspace)
plans, files, refused = 0, 0, 0
from madlite.errors import UsageProblem
for request in requests:
    try:
        planned = plan_all(plugins, options, {**given, "tags": (request.card.name,)})
    except UsageProblem:
        refused += 1
        continue
    plans += len(planned)
    files += sum(len(one.files) for one in planned)
print(json.dumps([len(requests), plans, files, refused, time.perf_counter() - begun]))
"""


CARDS = Path(__file__).parents[1] / "tests/data/cards.json"
_DOCKERFILE = "# CONTEXT {'gpu_vendor': 'AMD', 'guest_os': 'UBUNTU'}\nARG BASE_DOCKER=rocm/pytorch\nFROM $BASE_DOCKER\n"


def _make_checkout(folder: Path) -> int:
    """Make a folder of scripts/ for each card, with its models.json, script and Dockerfile; return how many."""
    cards = json.loads(CARDS.read_text())
    for number, card in enumerate(cards):
        own = {key: value for key, value in card.items() if not key.startswith("_")}
        home = folder / f"scripts/m{number}"
        script = home / str(own.get("scripts", "run.sh"))
        script = script if script.suffix else script / "run.sh"
        dockerfile = home / f"{own.get('dockerfile', 'docker/x')}.ubuntu.amd.Dockerfile"
        for file, text in ((script, "echo performance: 1 tok\n"), (dockerfile, _DOCKERFILE)):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        (home / "models.json").write_text(json.dumps([own]))
    return len(cards)


def _explain(*words: str, folder: Path) -> tuple[float, float]:
    """Return the seconds of a command by the clock, and of CPU."""
    began, before = time.perf_counter(), os.times()
    argv = [sys.executable, "-m", "madlite", "explain", "--machine", "8xMI300X", *words]
    subprocess.run(argv, cwd=folder, check=True, capture_output=True)
    after = os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return time.perf_counter() - began, cpu


def main() -> None:
    print("| machine | cards | plans | files | without a recipe there | s |\n|---|--:|--:|--:|--:|--:|")
    with tempfile.TemporaryDirectory() as folder:
        for machine in GPUS:
            begun = time.perf_counter()
            done = subprocess.run(
                [sys.executable, "-c", _PLAN, machine], cwd=Path(folder), check=True, capture_output=True, text=True
            )
            cards, plans, files, refused, _ = json.loads(done.stdout)
            print(f"| {machine} | {cards} | {plans} | {files} | {refused} | {time.perf_counter() - begun:.2f} |")
    with tempfile.TemporaryDirectory() as folder:
        cards = _make_checkout(Path(folder))
        print(f"\n| explain, {cards} cards in nested folders | s | s of CPU |\n|---|--:|--:|")
        for words in (("--all", "--tags", "all"), ("--tags", "pretrain")):
            clock_s, cpu_s = min(_explain(*words, folder=Path(folder)) for _ in range(3))
            print(f"| {' '.join(words)} | {clock_s:.2f} | {cpu_s:.2f} |")


if __name__ == "__main__":
    main()
