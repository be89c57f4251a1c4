"""Planning: every card that madlite brings, planned and rendered for one GPU, imports and recipe books included."""

from __future__ import annotations

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
import madlite.cli.plan as explain
context = explain.command.make_context("explain", ["--machine", sys.argv[1], "x"])
given = {**context.params, "tags": ("all",)}
plugins = setup.load(False, False)
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


def main() -> None:
    import json

    print("| machine | cards | plans | files | without a recipe there | s |\n|---|--:|--:|--:|--:|--:|")
    with tempfile.TemporaryDirectory() as folder:
        for machine in GPUS:
            begun = time.perf_counter()
            done = subprocess.run(
                [sys.executable, "-c", _PLAN, machine], cwd=Path(folder), check=True, capture_output=True, text=True
            )
            cards, plans, files, refused, _ = json.loads(done.stdout)
            print(f"| {machine} | {cards} | {plans} | {files} | {refused} | {time.perf_counter() - begun:.2f} |")


if __name__ == "__main__":
    main()
