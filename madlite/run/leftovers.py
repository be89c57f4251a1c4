"""What runs that were cut off left behind, and how to remove it; never what belongs to a madlite that is alive."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from madlite.errors import RuntimeProblem
from madlite.plan.make import RUNS
from madlite.run.batch import dead_files, interrupted_batches
from madlite.run.docker_client import connected
from madlite.run.docker_give_back import give_back
from madlite.run.docker_start import attached, remove_container
from madlite.run.folder import CLEANED, LOCK, is_held, unfinished
from madlite.run.host_processes import all_marked
from madlite.run.host_runtime import HostRuntime
from madlite.run.marks import FOLDER_LABEL, FOLDER_MARK, KEPT_LABEL, KEPT_MARK, RUN_LABEL, RUN_MARK
from madlite.run.sweep import sweep, unwhole
from madlite.types import Value

GRACE_S = 5.0  # between TERM and KILL for processes nobody waits for


class Leftover(Value, frozen=True):
    """Something a run left.

    `handle` is the container's id, the run id of processes, or the path of a run folder, a batch's file or a file
    that was never whole; `kept` marks a container or processes that were asked to stay, `elsewhere` is the folder of
    the run where it is none of this workspace.  `row` says what became of a run's row.
    """

    kind: Literal["container", "process", "run", "batch", "file"]
    run_id: str
    text: str
    handle: str
    kept: bool = False
    row: str = ""
    elsewhere: str = ""


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
    found = (*containers, *_processes(runs), *_runs(workspace), *batches, *_files(workspace))
    return Leftovers(leftovers=found, notes=notes)


def end_orphans(workspace: Path, environ: Mapping[str, str]) -> tuple[str, ...]:
    """End what runs of this workspace that were cut off still have running, and say what it was.

    They would write into folders and files that the next run takes for its own, and use its GPUs.  What was asked to
    stay stays, and so do the folders of the runs.
    """
    dead = {folder.name for folder in unfinished(workspace)}
    if not dead:
        return ()
    told = []
    for one in find_leftovers(workspace, environ).leftovers:
        if one.run_id in dead and one.kind != "run" and not one.kept and not one.elsewhere:
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
            _remove_container(leftover.handle, environ)
        elif leftover.kind == "process":
            HostRuntime(environ).attach(leftover.handle).stop(GRACE_S)
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
        dead = [one for one in found if not _may_be_alive(one["Labels"].get(FOLDER_LABEL, ""))]
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
            )


def _processes(runs: Path) -> Iterator[Leftover]:
    """Yield one leftover per dead run, for its processes are ended together."""
    # without the folder nobody can say whether its madlite lives
    found = [
        (process, environment)
        for process, environment in all_marked()
        if FOLDER_MARK in environment and not _may_be_alive(environment[FOLDER_MARK])
    ]
    # a madlite that ended meanwhile had ended its processes before it gave its lock back
    there = {process.pid for process, _ in all_marked()} if found else set()
    dead: dict[str, list[tuple[Any, Mapping[str, str]]]] = {}
    for process, environment in found:
        if process.pid in there:
            dead.setdefault(environment[RUN_MARK], []).append((process, environment))
    for run_id, those in dead.items():
        pids = ", ".join(str(process.pid) for process, _ in those[:5]) + (", …" if len(those) > 5 else "")
        yield Leftover(
            kind="process",
            run_id=run_id,
            text=f"{len(those)} processes ({pids})",
            handle=run_id,
            kept=any(environment.get(KEPT_MARK) for _, environment in those),
            elsewhere=next(filter(None, (_elsewhere(runs, environment[FOLDER_MARK]) for _, environment in those)), ""),
        )


def _elsewhere(runs: Path, folder: str) -> str:
    """Return the folder that a mark names, as text, where it is no run's of this workspace."""
    return "" if Path(os.path.realpath(folder)).parent == runs else folder or "no folder"


def _may_be_alive(folder: str) -> bool:
    """Say whether a madlite holds the run, or may hold it: another user's folder cannot be looked into."""
    return is_held(Path(folder, LOCK), unknown=True)


def _runs(workspace: Path) -> Iterator[Leftover]:
    for folder in unfinished(workspace):
        yield Leftover(kind="run", run_id=folder.name, text=f"unfinished, {folder}", handle=str(folder))


def _mark(path: Path, row: str) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    fd = os.open(path, flags, 0o644)
    try:
        os.write(fd, f"{row}\n".encode())
    finally:
        os.close(fd)


def _files(workspace: Path) -> Iterator[Leftover]:
    undone = {batch.path for batch in interrupted_batches(workspace)}
    for path in dict.fromkeys((*unwhole(workspace), *dead_files(workspace))):
        if path not in undone:
            yield Leftover(kind="file", run_id="-", text=str(path), handle=str(path))


def _remove_container(handle: str, environ: Mapping[str, str]) -> None:
    with connected(environ) as client:
        container = attached(client, handle)
        give_back(client, container)
        remove_container(client, container.id)
