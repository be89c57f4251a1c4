"""What is killed: a run, a batch, a study, jobs of a cluster; and what has to hold after the next command."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from tests.csv_rows import csv_rows


class Scenario(NamedTuple):
    """A command, and the commands that follow where it was cut off."""

    command: tuple[str, ...]
    after: tuple[tuple[str, ...], ...]


_UNPROBED = ("--set", "probe=false")  # to probe the environment is a third of such a run's time, and no event
_NEXT = ("run", "--tags", "next", *_UNPROBED)
SCENARIOS = {
    "run": Scenario(("run", "--tags", "good", *_UNPROBED), (_NEXT, ("clean", "--yes"))),
    "batch": Scenario(
        ("run", "--tags", "good,bad,several", "--retry", "1", "--retry-wait", "0", *_UNPROBED),
        (("run", "--resume"), _NEXT, ("clean", "--yes")),
    ),
    "study": Scenario(
        ("run", "--tags", "good", "--repeat", "2", *_UNPROBED), (("run", "--resume"), _NEXT, ("clean", "--yes"))
    ),
    "job": Scenario(
        ("run", "--cluster", "lab", "--tags", "good", "--repeat", "2", *_UNPROBED),
        (("cluster", "attach"), ("runs", "collect"), ("clean", "--yes")),
    ),
}
_SCRIPTS = {
    "good": 'echo "performance: 7 samples/s"\n',
    "next": 'echo "performance: 8 samples/s"\n',
    "bad": "echo 'torch.OutOfMemoryError: HIP out of memory' >&2\nexit 1\n",
    "several": "printf 'model,performance,metric\\nx,1,tok/s\\ny,2,tok/s\\n' >../results.csv\n",
}
_STAND_INS = {
    **dict.fromkeys(("scontrol", "squeue", "scancel", "sinfo", "sacct"), "exit 0"),
    "sbatch": "echo sbatch >>{folder}/submitted; echo $((4000 + $(wc -l <{folder}/submitted)))",
}


def make_folder(folder: Path) -> None:
    """Make a working folder with cards, and stand-ins of Slurm's commands whose jobs have all ended."""
    cards = []
    for name, script in _SCRIPTS.items():
        path = folder / "scripts" / name / "run.sh"
        path.parent.mkdir(parents=True)
        path.write_text("#!/bin/bash\n" + script)
        more = {"multiple_results": "results.csv"} if name == "several" else {}
        card = {"name": name, "scripts": f"scripts/{name}/run.sh", "n_gpus": "0", "tags": [], "runtimes": ["host"]}
        cards.append({**card, **more})
    (folder / "models.json").write_text(json.dumps(cards))
    (folder / "cluster.toml").write_text("[clusters.lab.slurm]\nexclusive = false\n")
    (folder / "bin").mkdir()
    for name, script in _STAND_INS.items():
        path = folder / "bin" / name
        path.write_text(f"#!/bin/sh\n{script.format(folder=folder)}\n")
        path.chmod(0o755)


def broken_promises(folder: Path, screen: str) -> list[str]:
    """Return what is false of a folder after the commands that follow: each run that began has one true row.

    A run whose disk was full to its end may have nothing but its row on the `screen`, and the command says so.
    """
    rows = csv_rows(folder / "perf.csv") if (folder / "perf.csv").exists() else []
    records = [json.loads(path.read_text()) for path in sorted(folder.glob("madlite_runs/*/record.json"))]
    broken = []
    expected: Counter[tuple[str, str]] = Counter()
    for record in records:
        if record["rows"] is None:
            is_warm_up = (record.get("study") or {}).get("warm_up")
            if not is_warm_up and not (record.get("attempt") or {}).get("next"):
                broken.append(f"{record['id']} has no row and no next attempt")
            continue
        for metric in record["metrics"] or [{"status": record["status"]}]:
            expected[_model(record["card"]), metric["status"]] += 1
    found = Counter((_model(row["model"]), row["status"]) for row in rows)
    if found != expected:
        broken.append(f"rows {dict(found)}, records {dict(expected)}")
    begun = [path.parent.name for path in folder.glob("madlite_runs/*/plan.json")]
    without = {name for name in begun if not (folder / "madlite_runs" / name / "record.json").exists()}
    if without and "it cannot be saved either" not in screen:
        broken.append(f"runs without a record: {sorted(without)}")
    broken += [f"{path.name} is no JSON" for path in folder.glob("perf*.json") if not _is_json(path)]
    superset = folder / "perf_super.json"
    if rows and superset.exists() and _is_json(superset):
        entries = Counter((_model(one["model"]), one["status"]) for one in json.loads(superset.read_text()))
        if entries - found:  # a run that never began has none
            broken.append(f"perf_super.json has {dict(entries)}, perf.csv {dict(found)}")
    return broken


def _model(name: str) -> str:
    return name.partition("_")[0]


def _is_json(path: Path) -> bool:
    try:
        json.loads(path.read_text())
    except ValueError:
        return False
    return True
