"""Leftovers of runs that were cut off, and their removal; those of a running madlite are never touched."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Literal, TypeAlias

from msgspec.structs import replace

from madlite.backends.loader import guard_plugin
from madlite.batch.dead_processes import (
    LOCKED,
    DeadRun,
    describe_members,
    end_listed,
    find_dead_runs,
    may_be_alive,
    owner_of,
)
from madlite.batch.gpu_allocator import clear_leases
from madlite.errors import RecordError, RuntimeProblem, UsageProblem
from madlite.files import REMOVED, Folder, read_plain
from madlite.model import JobOutcome, RunPlan, Runtime, Value
from madlite.perfcsv.append import is_results_file
from madlite.perfcsv.recorded import NO_ROW, are_in_file
from madlite.plan.inputs import RUNS
from madlite.platforms.docker.runtime import DockerRuntime
from madlite.store.batches import cut_off_studies, dead_locks, has_caches, is_batch_lock, remove_study, reported_batches
from madlite.store.events import EventLog, RunImported, now
from madlite.store.folder import (
    CHECK_PREFIX,
    CHECK_REQUEST,
    HANDLE,
    RECORD,
    RUN_JOURNAL,
    LeftRun,
    RunEntry,
    RunFolder,
    RunRows,
    exists,
    is_alive,
    left_runs,
    lock_name,
    locked_name,
    read_run,
    real_folders,
    rows_path,
    uncollected,
)
from madlite.store.gpu_leases import lease_folder
from madlite.store.locks import is_locked, open_locked, remove_locked
from madlite.store.record import NotedRuns, load_result, read_plan, read_record, rows_here

# Rows of earlier runs that their results file may lack.

IN_FILE, UNKNOWN = "its row is in {path}", "whether its row is in {path} cannot be seen"
_PERF = "perf.csv"
_MOST_NAMED = 5


def appended_rows(workspace: Path, after: str | None = None) -> list[RunRows]:
    """Return the rows that runs certainly appended; those noted `after` a time by runs that were cut off, if there."""
    noted = NotedRuns(workspace / RUNS)
    records = ((folder, read_record(folder)) for folder in real_folders(workspace / RUNS))
    found = (rows_here(folder, record, noted) for folder, record in records if record is not None)
    certain = [rows for rows in found if rows is not None and rows.appended]
    left = [run.journal.rows for run in left_runs(workspace) if run.state != "recorded"] if after is not None else []
    newer = [rows for rows in left if rows is not None and (rows.appended or rows.at > (after or ""))]
    for rows in sorted(newer, key=lambda rows: rows.at, reverse=True):
        certain += [rows] if rows.appended or are_in_file(rows, workspace, certain) else []
    return certain


def target_of(name: str, workspace: Path, output: Path) -> Path | None:
    """Return the file of rows by their `path`; None where a command may not write to it.

    Other files than the `output` have to be results files of the working folder, or of a new one.
    """
    if name == rows_path(output, workspace):
        return output
    path = workspace / name
    inside = Path(os.path.realpath(path)).is_relative_to(os.path.realpath(workspace))
    is_new = not os.path.lexists(path) or (path.is_file() and not path.stat().st_size)
    return path if inside and (is_new or is_results_file(path)) else None


class IncompleteRun(Value, frozen=True):
    """A run that was cut off: its folder, and the state of its row as text."""

    folder: Path
    row: str


def find_incomplete(workspace: Path) -> tuple[IncompleteRun, ...]:
    """Return the runs of a workspace that were cut off."""
    left = [run for run in left_runs(workspace) if run.state == "cut off"]
    of_jobs = NotedRuns(workspace / RUNS).of_jobs if left else frozenset()
    left = [run for run in left if run.folder.name not in of_jobs]
    there = appended_rows(workspace, "") if any(run.journal.rows for run in left) else []
    return tuple(IncompleteRun(folder=run.folder, row=_row_state(run, workspace, there)) for run in left)


def _row_state(run: LeftRun, workspace: Path, there: Sequence[RunRows]) -> str:
    """Return the state of a run's row as text; `there` are the rows of all runs that are in their files."""
    rows = run.journal.rows
    if rows is None:
        return NO_ROW if run.journal.complete else UNKNOWN.format(path=_PERF)
    if rows in there:
        return IN_FILE.format(path=rows.path)
    return UNKNOWN.format(path=rows.path) if are_in_file(rows, workspace, there) is None else NO_ROW


def incomplete_text(runs: Iterable[IncompleteRun]) -> list[str]:
    """Return messages about runs that were cut off."""
    cut_off = [f"{run.folder.name} ({run.row})" for run in runs]
    if not cut_off:
        return []
    were = "runs were" if len(cut_off) > 1 else "run was"
    return [f"{len(cut_off)} earlier {were} cut off: {_first(cut_off)}. madlite clean lists what is left"]


def uncollected_text(workspace: Path) -> list[str]:
    """Return messages about runs that have ended and whose results are not collected."""
    names = [folder.name for folder in uncollected(workspace)]
    if not names:
        return []
    what, rows = ("1 run is", "its row") if len(names) == 1 else (f"{len(names)} runs are", "their rows")
    return [f"{what} not collected: {_first(names)}. madlite runs collect adds {rows}"]


def planted_text(workspace: Path) -> list[str]:
    """Return messages about folders that look like runs and that madlite did not make."""
    others = (run for run in left_runs(workspace, planted=True) if run.journal.cleaned is None)
    found = [run.folder.name for run in others if run.state == "cut off" or run.journal.rows is not None]
    if not found:
        return []
    look = "look like runs" if len(found) > 1 else "looks like a run"
    names = _first([f"{RUNS}/{name}" for name in found])
    return [f"{names} {look} that madlite did not make (not in the event log of this folder): left alone"]


def _first(names: list[str]) -> str:
    more = f", and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more


# Files that a killed run left: the folder its script ran in, and temporary files.

OWN = "run_directory"  # a name that MAD and madlite alone use
CLONE_MARK = ".git/madlite"
IMPORT_LOCK, IMPORTED, IMPORTED_LOCK = ".import.lock", ".import-", ".lock"
"""The lock of imports, what the name of a folder begins with into which an archive is unpacked, and the lock in it."""
# temporary files of atomic writes: `.NAME.PID`, and under the lock of NAME `.NAME.new` and `.NAME.widening`
_OF_PROCESS = re.compile(r"\..+\.(?:log|csv|json|jsonl|html|tar\.gz|tgz)\.(\d+)")
_WIDENING = re.compile(r"\.(?P<name>.+?)(?:\.[a-z0-9_]{8})?\.widening")  # with the letters of an earlier madlite's
_SIDE = re.compile(r"\.(?:perf_(?:entry|super|entry_super)\.(?:json|csv)|common_info\.json)\.new")
_SIDE_LOCK = ".side_files.lock"
_OF_RUN = re.compile(r"\..+\.\d+")


def remove_run_files(folder: Path) -> None:
    """Remove what the run of this folder left beside it; except what another run may still use.

    Raises:
        OSError: something of it cannot be removed.
    """
    workspace = folder.parent.parent
    name = _model_dir(folder)
    if not (name and _is_ours(workspace / name)):
        return
    with locked_name(workspace, lock_name(name)) as is_free:
        if is_free:
            shutil.rmtree(workspace / name)


def partial_files(workspace: Path) -> Iterator[Path]:
    """Yield temporary files of a killed madlite, in the workspace and in the folders of its runs.

    Links are skipped, and so are files that a running process may be writing.
    """
    runs = workspace / RUNS
    for folder in (workspace, runs):
        yield from (path for path in _hidden(folder) if _is_dead(path, runs) and path.exists())
    for folder in real_folders(runs):
        if not is_alive(folder):
            yield from (path for path in _hidden(folder) if _OF_RUN.fullmatch(path.name))


def _hidden(folder: Path) -> Iterator[Path]:
    try:
        found = sorted(folder.glob(".*"))
    except OSError:
        return
    yield from (path for path in found if exists(path) and path.is_file() and not path.is_symlink())


def _is_dead(path: Path, runs: Path) -> bool:
    if found := _OF_PROCESS.fullmatch(path.name):
        return not _may_write(int(found[1]), path)
    if found := _WIDENING.fullmatch(path.name):
        return not is_locked(path.with_name(found["name"]), unknown=True)
    return bool(_SIDE.fullmatch(path.name)) and not is_locked(runs / _SIDE_LOCK, unknown=True)


def _may_write(pid: int, path: Path) -> bool:
    """Return whether the process that made a file is running; one with the same PID that began later is another."""
    import psutil

    try:
        began_s = psutil.Process(pid).create_time()
        return began_s <= path.lstat().st_mtime + 1.0  # the clocks of both are coarse
    except (psutil.NoSuchProcess, OverflowError, ValueError, OSError):
        return False
    except psutil.Error:
        return True


def _model_dir(folder: Path) -> str:
    """Return the folder of the run's script as its plan has it, a plain name; "" where it had none, or must stay."""
    plan = read_plan(folder)
    return "" if plan is None or plan.keep_alive or plan.keep_model_dir else plan.model_dir


def _is_ours(place: Path) -> bool:
    own = re.fullmatch(rf"{OWN}(_\w+)?", place.name) or (place / CLONE_MARK).is_file()
    return bool(own) and place.is_dir() and not place.is_symlink()


Runtimes: TypeAlias = Mapping[str, Runtime]
NO_RUNTIMES: Runtimes = MappingProxyType({})
RUNNING = ("container", "session", "process")
"""The kinds of what a run has running: they come first, and are ended first."""
GRACE_S = 5.0  # between TERM and KILL for orphaned processes


NO_RUN = "-"
"""In the place of a run's id: a temporary file or a half removed folder, which is of no run."""


class Leftover(Value, frozen=True):
    """Something a run left.

    `handle` is the container's id, that of a session of a plugin's `runtime`, the run id of processes, or the path of a
    run folder, a study's folder or a temporary file; `kept` marks what --keep-alive left.  `folder` is the run's as a
    container or its processes name it, `elsewhere` the same where it is none of this workspace, and `processes` are
    those that were listed.  `row` is the state of a run's row.
    """

    kind: Literal["container", "session", "process", "run", "study", "file"]
    run_id: str
    text: str
    handle: str
    kept: bool = False
    row: str = ""
    elsewhere: str = ""
    folder: str = ""
    processes: DeadRun | None = None
    runtime: str = ""


class Leftovers(Value, frozen=True):
    """What was found, and notes on what could not be inspected."""

    leftovers: tuple[Leftover, ...] = ()
    notes: tuple[str, ...] = ()


def find_leftovers(workspace: Path, environ: Mapping[str, str], runtimes: Runtimes = NO_RUNTIMES) -> Leftovers:
    """Return everything that `clean` deals with: what still runs, and what is on the disk of the workspace."""
    found = find_running(workspace, environ, runtimes)
    stored = (*_runs(workspace), *_studies(workspace), *_files(workspace))
    return replace(found, leftovers=(*found.leftovers, *stored))


def find_running(workspace: Path, environ: Mapping[str, str], runtimes: Runtimes = NO_RUNTIMES) -> Leftovers:
    """Return containers, sessions and processes of dead runs, wherever they ran.

    `runtimes` are the plugins': their sessions of the workspace's own runs are included.  A run whose folder is
    gone counts as dead; of an engine that several machines use, runs of the others look so.
    """
    notes: tuple[str, ...] = ()
    runs = workspace.resolve() / RUNS
    try:
        containers = tuple(_containers(runs, environ))
    except RuntimeProblem as problem:
        containers, notes = (), (f"containers were not inspected: {problem.message}",)
    dead = find_dead_runs()
    processes = tuple(_processes(runs, run) for run in dead.runs)
    seen = {leftover.run_id for leftover in (*containers, *processes)}
    sessions, session_notes = _sessions(runs, runtimes, seen)
    return Leftovers(leftovers=(*containers, *sessions, *processes), notes=(*notes, *dead.notes, *session_notes))


def still_running(workspace: Path) -> dict[str, str]:
    """Return by run what it still has running without a madlite, as a sentence; of runs that were cut off alone."""
    if not _may_have_left(workspace):  # processes are searched only where there may be some
        return {}
    runs = workspace.resolve() / RUNS
    dead = (run for run in find_dead_runs().runs if not _other_folder(runs, run.folder))
    return {run.run_id: run.still_running for run in dead}


def left_running(workspace: Path, environ: Mapping[str, str], runtimes: Runtimes = NO_RUNTIMES) -> dict[str, str]:
    """Return by run what it still has running without a madlite, as a sentence: containers and sessions too."""
    return {
        leftover.run_id: leftover.processes.still_running
        if leftover.processes is not None
        else f"its {leftover.kind} is still running; madlite clean{' --kept' if leftover.kept else ''} --yes ends it"
        for leftover in find_running(workspace, environ, runtimes).leftovers
        if not leftover.elsewhere
    }


def end_orphans(workspace: Path, environ: Mapping[str, str], runtimes: Runtimes = NO_RUNTIMES) -> tuple[str, ...]:
    """End what runs of this workspace that were cut off still have running, and return messages about it.

    They would write into folders and files of the next run, and use its GPUs.  What --keep-alive left stays, and so do
    the folders of the runs, and everything of another user's run.
    """
    dead = {str(folder.resolve()): folder.name for folder in _may_have_left(workspace) if _is_own_folder(folder)}
    if not dead:
        return ()
    messages = []
    for leftover in find_running(workspace, environ, runtimes).leftovers:
        is_own = leftover.folder and dead.get(os.path.realpath(leftover.folder)) == leftover.run_id
        if is_own and not leftover.kept and not leftover.elsewhere:
            problem = remove(leftover, environ, runtimes)
            but = f" ({problem})" if problem else ""
            messages.append(f"an earlier run was cut off and was still running, ended: {leftover.text}{but}")
    return tuple(messages)


def remove(leftover: Leftover, environ: Mapping[str, str], runtimes: Runtimes = NO_RUNTIMES) -> str | None:
    """Remove one leftover; return why that failed, or None.

    An unfinished run keeps its folder and log, with a mark in its journal; its files in the workspace are
    removed.  What was ended has its GPUs no more, whoever else can see that.
    """
    problem = _remove(leftover, environ, runtimes)
    if problem is None and leftover.kind in RUNNING:
        with suppress(UsageProblem):  # another command tells it
            clear_leases(lease_folder(environ), leftover.run_id)
        if not leftover.kept and not leftover.elsewhere and exists(Path(leftover.folder, RECORD)):
            _end_recorded(Path(leftover.folder))
    return problem


def end_journals(workspace: Path, found: Leftovers) -> None:
    """Remove the journals that runs with a record still have, except where something of the run was found running.

    Where not everything could be inspected, only journals without content go: a run with something running has some.
    """
    running = {leftover.run_id for leftover in found.leftovers if leftover.kind in RUNNING}
    for folder in _may_have_left(workspace):
        is_seen = not found.notes or not read_run(folder).at
        if folder.name not in running and exists(folder / RECORD) and is_seen:
            _end_recorded(folder)


def _end_recorded(path: Path) -> None:
    """Remove what was left for a run that was still running when its row was written: its files, and the journal."""
    with suppress(OSError), closing(RunFolder.reopen(path)) as folder:
        remove_run_files(path)
        if exists(path / RECORD):
            folder.end_journal()


def _remove(leftover: Leftover, environ: Mapping[str, str], runtimes: Runtimes) -> str | None:
    try:
        if leftover.kind in ("container", "session"):
            if may_be_alive(leftover.folder):
                return LOCKED
            runtime = runtimes[leftover.runtime] if leftover.runtime else DockerRuntime(environ)
            with guard_plugin(runtime):
                runtime.cancel(leftover.handle)
        elif leftover.kind == "process":
            return end_listed(leftover.processes, GRACE_S) if leftover.processes else "no process was listed"
        else:
            return _remove_stored(leftover)
    except RuntimeProblem as problem:
        return problem.message
    except OSError as error:
        return str(error)
    return None


def _remove_stored(leftover: Leftover) -> str | None:
    """Remove what is on the disk alone.

    Raises:
        OSError: it cannot be removed.
    """
    path = Path(leftover.handle)
    if leftover.kind == "run":
        return clean_run(path, leftover.row)
    if leftover.kind == "study":
        return remove_study(path) or None
    if path.is_dir() and not path.is_symlink():
        with Folder.open(path.parent) as folder:
            folder.remove_tree(path.name)
    elif is_batch_lock(path):
        return _remove_lock(path)
    else:
        path.unlink(missing_ok=True)
    return None


def _remove_lock(path: Path) -> str | None:
    """Remove the lock of a batch unless a command goes on with that by now."""
    with Folder.open(path.parent) as folder:
        try:
            remove_locked(folder, path.name, open_locked(folder, path.name, 0))
        except BlockingIOError:
            return "a madlite process has locked the batch by now"
    return None


def _containers(runs: Path, environ: Mapping[str, str]) -> Iterator[Leftover]:
    runtime = DockerRuntime(environ)
    dead = [container for container in runtime.containers() if not may_be_alive(container.folder)]
    # a madlite that ended meanwhile had removed its container before it released its lock
    there = {container.id for container in runtime.containers()} if dead else set()
    for container in dead:
        if container.id in there:
            yield Leftover(
                kind="container",
                run_id=container.run_id,
                text=f"{container.name} ({container.image}, {container.status})",
                handle=container.id,
                kept=container.kept,
                elsewhere=_other_folder(runs, container.folder),
                folder=container.folder,
            )


def _processes(runs: Path, run: DeadRun) -> Leftover:
    folder = run.folder
    return Leftover(
        kind="process",
        run_id=run.run_id,
        text=describe_members(run.counted),
        handle=run.run_id,
        kept=run.kept,
        elsewhere=_other_folder(runs, folder),
        folder=folder,
        processes=run,
    )


def _sessions(runs: Path, runtimes: Runtimes, seen: Collection[str]) -> tuple[list[Leftover], tuple[str, ...]]:
    """Return the sessions of plugins' runtimes that run without a madlite, and notes on those not inspected."""
    found, problems = [], []
    for name in sorted(EventLog.read(runs).own_runs()) if runtimes else ():
        plan = read_plan(runs / name)
        if plan is None or name in seen or plan.runtime not in runtimes or not _may_be_running(runs / name, plan):
            continue
        try:
            session = _session(runs / name, plan, runtimes[plan.runtime])
        except (RuntimeProblem, OSError) as problem:
            problems.append(f"the session of run {name} was not inspected: {problem}")
        else:
            found += [session] if session is not None else []
    return found, tuple(problems)


def _may_be_running(folder: Path, plan: RunPlan) -> bool:
    over = exists(folder / RECORD) and not exists(folder / RUN_JOURNAL) and not plan.keep_alive
    return not over and exists(folder / HANDLE) and not is_alive(folder)


def _session(folder: Path, plan: RunPlan, runtime: Runtime) -> Leftover | None:
    handle = read_plain(folder / HANDLE, folder).decode(errors="surrogateescape")
    with guard_plugin(runtime):
        outcome = runtime.outcome(handle)
    if not isinstance(outcome, JobOutcome) or outcome.ended:  # it may be a plugin's
        return None
    return Leftover(
        kind="session",
        run_id=folder.name,
        text=f"a session of runtime {plan.runtime}, {outcome.state}",
        handle=handle,
        kept=plan.keep_alive,
        folder=str(folder),
        runtime=plan.runtime,
    )


def _other_folder(runs: Path, folder: str) -> str:
    """Return the folder that a mark names, as text, where it is no run's of this workspace."""
    return "" if Path(os.path.realpath(folder)).parent == runs else folder or "no folder"


def _is_own_folder(folder: Path) -> bool:
    owner = owner_of(str(folder))
    return owner is not None and owner[1] is not None and owner[0] == os.geteuid()


def _may_have_left(workspace: Path) -> list[Path]:
    found = [run.folder for run in left_runs(workspace) if run.may_have_left]
    # of imported ones nothing ran here, and their journals have which rows were appended
    imported = frozenset(EventLog.read(workspace / RUNS).ids(RunImported)) if found else frozenset()
    return [folder for folder in found if folder.name not in imported]


def _runs(workspace: Path) -> Iterator[Leftover]:
    """Yield the runs that were cut off, or cannot be collected."""
    for run in find_incomplete(workspace):
        yield _of_run(run.folder, f"unfinished, {run.row}, ", run.row)
    for folder in uncollected(workspace):
        try:
            load_result(folder)
        except RecordError as problem:
            yield _of_run(folder, f"{NO_ROW}, and its result cannot be collected: {problem.message}; ", NO_ROW)


def _of_run(folder: Path, what: str, row: str) -> Leftover:
    return Leftover(kind="run", run_id=folder.name, text=f"{what}{folder}", handle=str(folder), row=row)


def _studies(workspace: Path) -> Iterator[Leftover]:
    for study_id, folder in cut_off_studies(workspace):
        what = "its caches" if has_caches(folder) else "its lock"
        yield Leftover(kind="study", run_id=study_id, text=f"{what}, {folder}", handle=str(folder))


def clean_run(path: Path, row: str) -> str | None:
    """Remove a run's files in the workspace and mark it as cleaned, under its lock; return why that failed, or None.

    Raises:
        OSError: its files cannot be removed.
    """
    try:
        folder = RunFolder.reopen(path)
    except BlockingIOError:
        return LOCKED
    except OSError as error:
        return error.strerror
    with closing(folder):
        remove_run_files(path)
        return folder.note(RunEntry(at=now(), cleaned=row)) or None


def _files(workspace: Path) -> Iterator[Leftover]:
    for path in (*partial_files(workspace), *dead_locks(workspace)):
        yield Leftover(kind="file", run_id=NO_RUN, text=str(path), handle=str(path))
    for folder in _half_removed(workspace / RUNS):
        yield Leftover(kind="file", run_id=NO_RUN, text=str(folder), handle=str(folder))
    for folder in real_folders(workspace / RUNS):
        if folder.name.startswith(CHECK_PREFIX) and not is_locked(folder / CHECK_REQUEST, unknown=True):
            text = f"{folder}, of a check of a cluster"
            yield Leftover(kind="file", run_id=NO_RUN, text=text, handle=str(folder))


def _half_removed(runs: Path) -> Iterator[Path]:
    """Yield the folders that a killed import or removal of runs left."""
    for folder in real_folders(runs):
        if folder.name.startswith(REMOVED):
            yield folder
        elif folder.name.startswith(IMPORTED):  # one that is not locked yet is made under the lock of imports
            locks = (runs / IMPORT_LOCK, folder / IMPORTED_LOCK)
            if not any(is_locked(lock, unknown=True) for lock in locks):
                yield folder


RESUME = "madlite run --resume goes on with it"


def recovery_report(workspace: Path, resumed: str = "", told: Iterable[str] = ()) -> list[str]:
    """Return messages about all unfinished work of earlier commands, apart from the study that is `resumed`.

    Runs that the messages `told` begin with are not named again.
    """
    known = {text.partition(":")[0] for text in told}
    return [
        *incomplete_text(run for run in find_incomplete(workspace) if run.folder.name not in known),
        *(f"{name}: {text}" for name, text in still_running(workspace).items()),
        *(
            f"{batch.message}{f'. {RESUME}' if batch.is_resumable else ''}"
            for batch in reported_batches(workspace)
            if batch.message
        ),
        *(
            f"study {name} was cut off and its caches are left. madlite clean --yes removes them"
            for name, folder in cut_off_studies(workspace)
            if name != resumed and has_caches(folder)
        ),
        *uncollected_text(workspace),
        *planted_text(workspace),
    ]
