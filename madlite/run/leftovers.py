"""What runs that were cut off left behind, and how to remove it; never what belongs to a madlite that is alive."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from madlite.errors import RuntimeProblem
from madlite.plan.make import RUNS
from madlite.run.batch import dead_files, interrupted_batches
from madlite.run.dead_processes import DeadRun, end_listed, find_dead_runs, may_be_alive, place_of
from madlite.run.docker_client import connected
from madlite.run.docker_give_back import give_back
from madlite.run.docker_start import attached, remove_container
from madlite.run.folder import CLEANED, open_runs, unfinished
from madlite.run.marks import FOLDER_LABEL, KEPT_LABEL, RUN_LABEL
from madlite.run.sweep import sweep, unwhole
from madlite.types import Value

GRACE_S = 5.0  # between TERM and KILL for processes nobody waits for


class Leftover(Value, frozen=True):
    """Something a run left.

    `handle` is the container's id, the run id of processes, or the path of a run folder, a batch's file or a file
    that was never whole; `kept` marks a container or processes that were asked to stay.  `folder` is the run's as a
    container or its processes name it, `elsewhere` the same where it is none of this workspace, and `processes` are
    those that were listed.  `row` says what became of a run's row.
    """

    kind: Literal["container", "process", "run", "batch", "file"]
    run_id: str
    text: str
    handle: str
    kept: bool = False
    row: str = ""
    elsewhere: str = ""
    folder: str = ""
    processes: DeadRun | None = None


class Leftovers(Value, frozen=True):
    """What was found, and notes on what could not be looked at."""

    leftovers: tuple[Leftover, ...] = ()
    notes: tuple[str, ...] = ()


def find_leftovers(workspace: Path, environ: Mapping[str, str]) -> Leftovers:
    """Return containers and processes of dead runs, wherever they ran, and unfinished runs of the workspace.

    A run whose folder is gone counts as dead; of an engine that several machines use, runs of the others look so.
    """
    notes: tuple[str, ...] = ()
    runs = workspace.resolve() / RUNS
    try:
        containers = tuple(_containers(runs, environ))
    except RuntimeProblem as problem:
        containers, notes = (), (f"containers were not looked at: {problem.message}",)
    batches = (
        Leftover(kind="batch", run_id="-", text=words, handle=str(batch.path))
        for batch in interrupted_batches(workspace)
        for words in batch.words
    )
    dead = find_dead_runs()
    processes = (_processes(runs, run) for run in dead.runs)
    found = (*containers, *processes, *_runs(workspace), *batches, *_files(workspace))
    return Leftovers(leftovers=found, notes=(*notes, *dead.notes))


def end_orphans(workspace: Path, environ: Mapping[str, str]) -> tuple[str, ...]:
    """End what runs of this workspace that were cut off still have running, and say what it was.

    They would write into folders and files that the next run takes for its own, and use its GPUs.  What was asked to
    stay stays, and so do the folders of the runs, and all that is of another user's run.
    """
    dead = {str(folder.resolve()): folder.name for folder in unfinished(workspace) if _is_ours(folder)}
    if not dead:
        return ()
    told = []
    for one in find_leftovers(workspace, environ).leftovers:
        if one.folder and dead.get(os.path.realpath(one.folder)) == one.run_id and not one.kept and not one.elsewhere:
            problem = remove(one, environ)
            told.append(
                f"an earlier run was cut off and still ran, ended: {one.text}" + (f" ({problem})" if problem else "")
            )
    return tuple(told)


def remove(leftover: Leftover, environ: Mapping[str, str]) -> str | None:
    """Remove one leftover; return why that failed, or None.

    An unfinished run keeps its folder and log, with a mark that says that it was dealt with; what it left in the
    workspace is removed.
    """
    try:
        if leftover.kind == "container":
            _remove_container(leftover, environ)
        elif leftover.kind == "process":
            return end_listed(leftover.processes, GRACE_S) if leftover.processes else "no process was listed"
        elif leftover.kind == "run":
            sweep(Path(leftover.handle))
            _mark(Path(leftover.handle, CLEANED), leftover.row)
        else:
            Path(leftover.handle).unlink(missing_ok=True)
    except RuntimeProblem as problem:
        return problem.message
    except OSError as error:
        return str(error)
    return None


def _containers(runs: Path, environ: Mapping[str, str]) -> Iterator[Leftover]:
    with connected(environ) as client:
        found: list[dict[str, Any]] = client.containers(all=True, filters={"label": RUN_LABEL})
        dead = [one for one in found if not may_be_alive(one["Labels"].get(FOLDER_LABEL, ""))]
        # a madlite that ended meanwhile had removed its container before it gave its lock back
        again = client.containers(all=True, filters={"label": RUN_LABEL}) if dead else []
    there = {one["Id"] for one in again}
    for container in dead:
        labels = container["Labels"]
        if container["Id"] in there:
            yield Leftover(
                kind="container",
                run_id=labels[RUN_LABEL],
                text=f"{container['Names'][0].lstrip('/')} ({container['Image']}, {container['Status']})",
                handle=container["Id"],
                kept=KEPT_LABEL in labels,
                elsewhere=_elsewhere(runs, labels.get(FOLDER_LABEL, "")),
                folder=labels.get(FOLDER_LABEL, ""),
            )


def _processes(runs: Path, run: DeadRun) -> Leftover:
    folder = run.place.path
    return Leftover(
        kind="process",
        run_id=run.run_id,
        text=run.text,
        handle=run.run_id,
        kept=run.kept,
        elsewhere=_elsewhere(runs, folder),
        folder=folder,
        processes=run,
    )


def _elsewhere(runs: Path, folder: str) -> str:
    """Return the folder that a mark names, as text, where it is no run's of this workspace."""
    return "" if Path(os.path.realpath(folder)).parent == runs else folder or "no folder"


def _is_ours(folder: Path) -> bool:
    place = place_of(str(folder))
    return place is not None and place.inode is not None and place.uid == os.geteuid()


def _runs(workspace: Path) -> Iterator[Leftover]:
    for folder in unfinished(workspace):
        yield Leftover(kind="run", run_id=folder.name, text=f"unfinished, {folder}", handle=str(folder))


def _mark(path: Path, row: str) -> None:
    with open_runs(path.parent.parent.parent) as runs, runs.below(path.parent.name) as folder:
        folder.write(path.name, f"{row}\n".encode())


def _files(workspace: Path) -> Iterator[Leftover]:
    undone = {batch.path for batch in interrupted_batches(workspace)}
    for path in dict.fromkeys((*unwhole(workspace), *dead_files(workspace))):
        if path not in undone:
            yield Leftover(kind="file", run_id="-", text=str(path), handle=str(path))


def _remove_container(leftover: Leftover, environ: Mapping[str, str]) -> None:
    with connected(environ) as client:
        container = attached(client, leftover.handle)
        if may_be_alive(leftover.folder):
            raise RuntimeProblem("a madlite holds the run by now")
        give_back(client, container)
        remove_container(client, container.id)
