"""The `multiple_results` file of a run: found where scripts leave it, and only when this run wrote it."""

from __future__ import annotations

import time
from pathlib import Path

from madlite.measure.multiple import Read, Stamp, is_fresh, parse_results, stamp, unreadable
from madlite.model import RunPlan
from madlite.safe_read import read_inside
from madlite.workspace.mounts import copy_whole


class ResultsFile:
    """Remembers what lay there before the run, so that a left-over is never taken for a result."""

    def __init__(self, plan: RunPlan) -> None:
        rule = plan.result_rule
        self._root, self._up = plan.workspace, plan.workspace / rule.file
        wanted = rule.kind == "multiple_results"
        self._paths = (plan.workspace / plan.model_dir / rule.file, self._up) if wanted else ()
        self._before: dict[Path, Stamp | None] = {}
        self._begun_ns = 0

    def begin(self) -> None:
        """Note what is there now that the script starts: a clone or a copy of scripts may have brought one along."""
        self._before = {path: stamp(path) for path in self._paths}
        self._begun_ns = time.time_ns()

    def read(self) -> Read | None:
        """Return the results, and copy the file up into the workspace, as MAD's tooling expects it there."""
        fresh = next((p for p, before in self._before.items() if is_fresh(p, before, self._begun_ns)), None)
        if fresh is None:
            return None
        try:
            read = parse_results(fresh.name, read_inside(fresh, self._root))
        except OSError as error:
            return unreadable(fresh.name, error)
        if fresh != self._up:
            copy_whole(fresh, self._up, self._root)
        return read
