"""The files that a plan's templates make."""

from __future__ import annotations

from madlite.model import RunPlan
from madlite.plan.plan_file import render
from tests.plugins.logs import TEMPLATES


def files(plan: RunPlan) -> dict[str, str]:
    """Return the text of every file by its path in the run's folder."""
    return {file.path: file.data.decode() for file in render(plan, [TEMPLATES])}


def run_sh(plan: RunPlan) -> str:
    """Return the script that the run starts with."""
    return files(plan)["run.sh"]
