"""Runs of a Trackio project by its public interface, that of Weights & Biases: `init`, `log`, `finish`.

A run's name is the id of madlite's run, or else the key of its row: what has that name is there.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from madlite import Exported, ExportRow, UsageProblem
from madlite_plugins.tracking import tracked_runs

PROJECT = "madlite"
_REMOTE = ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL")


def trackio() -> Any:
    """Return the package, without what it prints: the screen belongs to madlite.

    Raises:
        UsageProblem: it is not installed.
    """
    try:
        import trackio as found
        from trackio import deploy, run, utils
    except ImportError:
        raise UsageProblem("trackio is not installed", "pip install 'madlite[trackio]'") from None
    for module in (found, deploy, run, utils):
        vars(module)["print"] = lambda *words, **options: None
    return found


def project_name(target: str = "") -> str:
    """Return the project: the one that is named, $TRACKIO_PROJECT, or madlite."""
    return target or os.environ.get("TRACKIO_PROJECT", "") or PROJECT


def begin(project: str, name: str, config: dict[str, str]) -> Any:
    """Make a run that samples neither GPUs nor the host: madlite does."""
    return trackio().init(
        project=project, name=name, config=config, embed=False, auto_log_gpu=False, auto_log_cpu=False
    )


def export(rows: Iterable[ExportRow], target: str) -> Exported:
    """Write each run that a project of the local store does not have."""
    project = project_name(target)
    for variable in _REMOTE:
        if os.environ.get(variable):
            what = f"{variable} is set, and an export goes into the store of this machine alone"
            raise UsageProblem(what, f"unset it; trackio sync --project {project} publishes the store")
    runs = tracked_runs(rows)
    new = 0
    with _sentences(project):
        there = _names(trackio(), project)
        for run in runs:
            if run.key in there:
                continue
            begun = begin(project, run.key, {"name": run.name, **run.texts})
            begun.log(run.metrics, step=0)
            begun.finish()
            new += 1
        lost = {run.key for run in runs} - _names(trackio(), project)
    notes = (f"Trackio has not taken {len(lost)} of {len(runs)} runs",) if lost else ()
    return Exported(new=new - len(lost), present=len(runs) - new, target=f"project {project} of Trackio", notes=notes)


def _names(package: Any, project: str) -> set[str]:
    """Return the names of a project's runs; none where there is no such project."""
    try:
        return {run.name for run in package.Api().runs(project)}
    except ValueError:
        return set()


@contextmanager
def _sentences(project: str) -> Iterator[None]:
    """Turn what Trackio raises into one sentence."""
    try:
        yield
    except UsageProblem:
        raise
    except Exception as error:
        words = " ".join(str(error).split())[:300]
        raise UsageProblem(f"project {project} of Trackio: {words}", "TRACKIO_DIR is where it stores") from error
