"""A word of a command line that is the name of a file, or stands for a run of the working folder."""

from __future__ import annotations

from pathlib import Path


def run_of(name: str, directory: Path) -> Path | None:
    """Return the folder of the run that a name stands for; None for a file, which comes first, or where none is.

    Raises:
        UsageProblem: several runs are meant.
    """
    from madlite.files import exists
    from madlite.reports.runs import find_named, runs_folder

    if not name or "/" in name or exists(Path(name)):
        return None
    return find_named(runs_folder(directory), name)
