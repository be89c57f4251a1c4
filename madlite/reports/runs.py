"""The runs of a working folder: found by name, and each in a line."""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path

from msgspec.structs import asdict, replace

from madlite.errors import RecordError, UsageProblem, nearest_words
from madlite.model import Metric, Status, Value, to_json
from madlite.model.results import Attempt, headline_of
from madlite.plan.inputs import RUNS
from madlite.store.events import EventLog, RunImported
from madlite.store.folder import (
    PLAN,
    check_runs_folder,
    is_alive,
    is_run,
    is_uncollected,
    read_run,
    real_folders,
    rows_path,
)
from madlite.store.record import (
    NotedRuns,
    Record,
    load_record,
    load_result,
    plan_fields,
    read_plan,
    read_record,
    record_json,
)

RUNNING, IN_CLUSTER, CUT_OFF, UNREADABLE = "RUNNING", "IN CLUSTER", "CUT OFF", "UNREADABLE"
LAST = "last"
BACK = re.compile(rf"{LAST}(?:~([0-9]{{1,9}}))?")  # last, last~1
_STARTED_LATER = 20  # runs of one batch are made together and start one after another


class StoredRun(Value, frozen=True):
    """One run of the list: `state` is its status, or RUNNING, IN CLUSTER, CUT OFF or UNREADABLE.

    The record of a run without one is made from its plan.
    """

    folder: Path
    state: str
    record: Record
    problem: str = ""
    origin: str = ""  # the archive that it was imported from: its files are not this folder's own
    archived_id: str = ""  # the id that it had there
    pruned: bool = False  # whether `madlite clean --old` removed its files, all but the record and the plan
    collected: bool = (
        True  # False where its result waits for `madlite runs collect`; then the record is the one it gets
    )

    @property
    def headline(self) -> Metric | None:
        """The number of a success."""
        record = self.record
        return headline_of(record.metrics, record.window) if self.state == Status.SUCCESS.value else None

    @property
    def is_suspect(self) -> bool:
        """Whether it is a success whose number is suspect."""
        return self.state == Status.SUCCESS.value and bool(self.record.suspect)

    @property
    def is_over(self) -> bool:
        """Whether it has ended with a record."""
        return self.state == self.record.status.value

    @property
    def n_gpus(self) -> int | None:
        """How many GPUs it had, all nodes together; None where unknown."""
        place = self.record.place
        return place.nodes * place.gpus_per_node if place is not None else None

    @property
    def when(self) -> str:
        """When it started, UTC: `2026-11-21 14:36:59`."""
        text = self.record.started
        if text[10:11] == "T":
            return text[:19].replace("T", " ")
        return f"{datetime.fromtimestamp(began(self.folder) / 1e9, timezone.utc):%Y-%m-%d %H:%M:%S}"


def why_not_over(run: StoredRun) -> str:
    """Return why a run has no record; "" where it has one."""
    reasons = {
        RUNNING: "it is still running",
        IN_CLUSTER: "a job of a cluster has it: madlite cluster attach follows it, madlite runs collect writes its row",
        CUT_OFF: "it was cut off: it has no record",
        UNREADABLE: run.problem or "its record cannot be read",
    }
    return reasons.get(run.state, "")


def runs_folder(folder: Path) -> Path:
    """Return the folder of runs of a working folder, which may itself be named.

    Raises:
        UsageProblem: there is no such working folder, a file has the name of its folder of runs, or that one is shut.
    """
    if not folder.is_dir():
        raise UsageProblem(f"{folder} is no folder", "name the one that madlite run was started in: --dir DIR")
    below = folder / RUNS
    if folder.name == RUNS and not below.is_dir():
        below = folder
    else:
        check_runs_folder(folder)
    with suppress(FileNotFoundError):
        _check_listable(below)
    return below


def _check_listable(runs: Path) -> None:
    """Refuse a folder that cannot be listed: it would look empty."""
    try:
        os.scandir(runs).close()
    except PermissionError as error:
        raise UsageProblem(f"{runs} cannot be read by this user", f"ls -ld {runs}") from error


def list_runs(runs: Path) -> tuple[StoredRun, ...]:
    """Return the runs, the newest last; one whose record is broken is UNREADABLE."""
    noted = NotedRuns(runs)
    return tuple(sorted((open_run(folder, noted) for folder in real_folders(runs) if is_run(folder)), key=_order))


def newest(runs: Path, most: int) -> tuple[StoredRun, ...]:
    """Return so many of the newest runs, the newest last, without reading all records of a folder.

    Ids begin with the time at which they were made; some more are read, for runs that started in another order.
    """
    noted = NotedRuns(runs)
    names = run_names(runs)[-most - _STARTED_LATER :]
    found = sorted((open_run(runs / name, noted) for name in names), key=_order)
    return tuple(found[-most:])


def _order(run: StoredRun) -> tuple[str, int, str]:
    return run.when, began(run.folder), run.folder.name


def appended_to(file: Path) -> Iterator[tuple[Path, Record, tuple[dict[str, str], ...]]]:
    """Yield the runs beside a results file that appended rows to it: folder, record, and the cells of these rows.

    The runs are those of the folder in which the file lies, links followed.
    """
    source = Path(os.path.realpath(file))
    path = rows_path(source, source.parent)
    for folder in real_folders(source.parent / RUNS):
        record = read_record(folder)
        if record is not None and record.rows is not None and record.rows.path == path:
            yield folder, record, record.rows.cells


def open_run(folder: Path, noted: NotedRuns | None = None) -> StoredRun:
    """Return one run; never raises for what its folder holds."""
    run, noted = _opened(folder), noted or NotedRuns(folder.parent)
    if run.state == CUT_OFF and folder.name in noted.of_jobs:
        run = replace(run, state=IN_CLUSTER)
    pruned = noted.pruned.get(folder.name)
    is_pruned = pruned is not None and not pruned.folder
    origin, archived_id = noted.origin(folder.name), noted.archived_id(folder.name)
    return replace(run, origin=origin, archived_id=archived_id, pruned=is_pruned)


def _opened(folder: Path) -> StoredRun:
    blank = Record(id=folder.name, status=Status.FAILURE, version=0)
    problem, record = "", None
    try:
        record = load_record(folder)
    except RecordError as error:
        problem = error.message
    if record is not None:
        return StoredRun(folder=folder, state=record.status.value, record=record)
    plan = read_plan(folder)
    planned = replace(blank, **{**plan_fields(plan), "id": folder.name}) if plan is not None else blank
    if problem:
        return StoredRun(folder=folder, state=UNREADABLE, record=planned, problem=problem)
    if is_alive(folder):  # first: a run that ends meanwhile has its result by then
        return _set_aside(folder) or StoredRun(folder=folder, state=RUNNING, record=planned)
    return (
        _waiting(folder, planned) if is_uncollected(folder) else StoredRun(folder=folder, state=CUT_OFF, record=planned)
    )


def _set_aside(folder: Path) -> StoredRun | None:
    """Return a failed attempt whose next one waits or goes on: its madlite keeps its folder until that has a result."""
    if not (following := read_run(folder).next):
        return None
    try:
        record = load_result(folder).record
    except RecordError:
        return None
    record = replace(record, attempt=replace(record.attempt or Attempt(), next=following))
    return StoredRun(folder=folder, state=record.status.value, record=record, collected=False)


def _waiting(folder: Path, planned: Record) -> StoredRun:
    """Return a run whose result waits to be collected; UNREADABLE if that cannot be read."""
    try:
        record = load_result(folder).record
    except RecordError as error:
        return StoredRun(folder=folder, state=UNREADABLE, record=planned, problem=error.message, collected=False)
    return StoredRun(folder=folder, state=record.status.value, record=record, collected=False)


def as_json(run: StoredRun) -> str:
    """Return a run's record as JSON; of a run without one a record made from its plan, with its state and version 0."""
    if run.is_over:
        return record_json(run.record)
    return to_json({**asdict(run.record), "status": run.state, "reason": run.problem})


def find_run(runs: Path, name: str) -> Path:
    """Return the folder of the run that a name stands for: its id, a part of it that no other has, `last`, `last~1`.

    An imported run is also found by the id that it had in its archive.

    Raises:
        UsageProblem: no run or several are named so.
    """
    if (found := find_named(runs, name)) is not None:
        return found
    names = run_names(runs)
    if not names:
        raise UsageProblem(f"there are no runs in {runs}", "name the working folder: --dir DIR")
    raise _unknown(name, names)


def find_named(runs: Path, name: str, names: Sequence[str] | None = None) -> Path | None:
    """Return the folder of a run as `find_run` does; None where no run is named so.

    `names` are the ids of the runs, where the caller knows them.

    Raises:
        UsageProblem: several are, or there are fewer runs than `last~N` goes back.
    """
    names = run_names(runs) if names is None else names
    if names and (found := BACK.fullmatch(name)):
        return _before_last(runs, int(found[1] or 0))
    if name in names:
        return runs / name
    matching = names_with(names, name) or _imported_as(runs, name)
    if len(matching) > 1:
        raise several(name, matching)
    return runs / matching[0] if matching else None


def _imported_as(runs: Path, part: str) -> list[str]:
    """Return the runs that were imported under other ids, which begin with a part or have it."""
    imported = {event.archived_id: event.run for event in EventLog.read(runs).of(RunImported) if event.archived_id}
    found = [imported[name] for name in names_with(sorted(imported), part)]
    return [name for name in found if is_run(runs / name)]


def _before_last(runs: Path, back: int) -> Path:
    """Return the folder of the run that started so many runs before the newest."""
    found = newest(runs, back + 1)
    if len(found) <= back:
        count = "1 run" if len(found) == 1 else f"{len(found)} runs"
        raise UsageProblem(f"{LAST}~{back}: {runs} has {count}", "madlite runs lists them")
    return found[-1 - back].folder


_PATTERN = frozenset("*?[")


def match_runs(runs: Path, name: str) -> list[Path]:
    """Return the folders of the runs that a name or a pattern of ids stands for, at least one.

    Raises:
        UsageProblem: none is like it, or several have a part of a name.
    """
    names = run_names(runs)
    if name in names or not _PATTERN & set(name):
        return [find_run(runs, name)]
    matching = fnmatch.filter(names, name)
    if not matching:
        raise UsageProblem(f"no run is like '{name}'", "madlite runs lists them")
    return [runs / name for name in matching]


def run_names(runs: Path) -> list[str]:
    """Return the ids of the runs, sorted."""
    return [folder.name for folder in real_folders(runs) if is_run(folder)]


def names_with(names: Sequence[str], part: str) -> list[str]:
    """Return the names that begin with a part, or else those that have it anywhere; none with an empty one."""
    if not part:
        return []
    return [name for name in names if name.startswith(part)] or [name for name in names if part in name]


def several(name: str, matching: Sequence[str], what: str = "runs") -> UsageProblem:
    """Return that a name is a part of several ids."""
    more = f", and {len(matching) - 5} more" if len(matching) > 5 else ""
    return UsageProblem(
        f"'{name}' is part of {len(matching)} {what}: {', '.join(matching[-5:])}{more}", "name more of it"
    )


def _unknown(name: str, names: Sequence[str]) -> UsageProblem:
    parts = {part: each for each in names for part in (each, each[16:-7], each[-6:])}
    close = nearest_words(name, reversed(parts), most=1)
    hint = f"did you mean {parts[close[0]]}?   " if close else ""
    return UsageProblem(f"no run '{name}'", f"{hint}madlite runs lists them")


def began(folder: Path) -> int:
    """Return when a run's plan was written, in nanoseconds; without a plan the time in its name, else 0."""
    with suppress(OSError):
        return os.lstat(f"{folder}/{PLAN}").st_mtime_ns
    named = named_time(folder.name)
    return int(named.timestamp()) * 10**9 if named is not None else 0


def named_time(run: str) -> datetime | None:
    """Return the time with which a run's id begins, UTC; None where it begins otherwise."""
    with suppress(ValueError):
        return datetime.strptime(run[:15], "%Y%m%dT%H%M%S").replace(tzinfo=timezone.utc)
    return None


def utc_time(text: str) -> datetime | None:
    """Return a time in UTC, of which one without a zone is; None of other text."""
    try:
        found = datetime.fromisoformat(text.replace("Z", "+00:00"))
        return found.replace(tzinfo=found.tzinfo or timezone.utc).astimezone(timezone.utc)
    except (ValueError, OverflowError):
        return None
