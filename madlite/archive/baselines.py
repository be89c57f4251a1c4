"""The runs that a baseline names: `madlite_runs/baselines/NAME.json`, whose `runs` are their ids."""

from __future__ import annotations

from pathlib import Path

from madlite.errors import UsageProblem
from madlite.files import read_json, shown


def baseline_runs(runs: Path) -> frozenset[str]:
    """Return the ids of the runs that any baseline of a folder of runs names.

    Raises:
        UsageProblem: a baseline cannot be read: which runs it names is not known.
    """
    found: set[str] = set()
    for file in sorted((runs / "baselines").glob("*.json")):
        content = read_json(file)
        named = content.get("runs") if isinstance(content, dict) else None
        if not isinstance(named, list) or not all(isinstance(one, str) for one in named):
            raise UsageProblem(f"{shown(file)}: it has no list 'runs' of the ids of runs", f"less {shown(file)}")
        found.update(named)
    return frozenset(found)
