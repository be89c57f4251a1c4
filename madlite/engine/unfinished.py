"""What earlier commands left undone: said by the next command, listed and dealt with by `clean`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from msgspec.structs import replace

from madlite.engine.kept import appended, kept_aside
from madlite.record.intent import Rows, are_there, has_none, read_intent
from madlite.record.rebuild import NO_ROW
from madlite.record.stored import read_record
from madlite.run.batch import interrupted_batches
from madlite.run.folder import unfinished
from madlite.run.leftovers import Leftover, Leftovers, find_leftovers
from madlite.types import Value

IN_FILE, UNKNOWN = "its row is in {path}", "whether its row is in {path} cannot be seen"
_PERF = "perf.csv"
_COMES = "the next madlite run adds it"


class Undone(Value, frozen=True):
    """A run without a truthful end: its folder, and in words what became of its row.

    `recorded` where the run itself came to its end, and only its row is not where it belongs.
    """

    folder: Path
    row: str
    recorded: bool = False


def find_undone(workspace: Path) -> tuple[Undone, ...]:
    """Return the runs of a workspace that were cut off, or whose rows perf.csv did not take; `clean` ends that."""
    dead = [*unfinished(workspace), *kept_aside(workspace)]
    intents = {folder: read_intent(folder) for folder in dead}
    ordered = sorted(dead, key=lambda folder: ((found := intents[folder]) is not None and found.offset, folder.name))
    known: list[Rows] | None = None
    undone = []
    for folder in ordered:
        rows = intents[folder]
        record = read_record(folder)
        if record is not None:
            kept = f" ({folder.name}/{record.rows.kept})" if record.rows and record.rows.kept else ""
            undone.append(Undone(folder=folder, row=f"no row in {_path(record.rows)}{kept}", recorded=True))
        elif rows is None:
            undone.append(Undone(folder=folder, row=NO_ROW if has_none(folder) else UNKNOWN.format(path=_PERF)))
        else:
            known = appended(workspace) if known is None else known
            there = are_there(rows, workspace, known)
            known += [rows] if there else []
            words = UNKNOWN if there is None else IN_FILE if there else NO_ROW
            undone.append(Undone(folder=folder, row=words.format(path=rows.path)))
    return tuple(sorted(undone, key=lambda one: one.folder.name))


def words_of(undone: Iterable[Undone]) -> list[str]:
    """Return what the next command says of runs that were cut off."""
    told = tuple(undone)
    cut = [one for one in told if not one.recorded]
    lines = [f"{one.folder.name}: {one.row}; {_COMES}" for one in told if one.recorded]
    if cut:
        names = ", ".join(f"{one.folder.name} ({one.row})" for one in cut[:5])
        more = f", and {len(cut) - 5} more" if len(cut) > 5 else ""
        were = "runs were" if len(cut) > 1 else "run was"
        lines.append(f"{len(cut)} earlier {were} cut off: {names}{more}; madlite clean")
    return lines


def say_undone(workspace: Path) -> list[str]:
    """Return what the next command says of all that earlier ones left undone."""
    batches = [words for batch in interrupted_batches(workspace) for words in batch.words]
    return [*words_of(find_undone(workspace)), *(f"{words}; madlite clean" for words in batches)]


def find_all(workspace: Path, environ: Mapping[str, str]) -> Leftovers:
    """Return everything that `clean` deals with; of each run, what became of its row."""
    found = find_leftovers(workspace, environ)
    undone = {str(one.folder): one for one in find_undone(workspace)}
    listed = [
        replace(one, text=f"unfinished, {undone[one.handle].row}, {one.handle}", row=undone[one.handle].row)
        if one.kind == "run" and one.handle in undone
        else one
        for one in found.leftovers
    ]
    return replace(found, leftovers=(*listed, *(_of_recorded(one) for one in undone.values() if one.recorded)))


def _of_recorded(one: Undone) -> Leftover:
    text = f"{one.row}; {_COMES} unless it is cleaned; {one.folder}"
    return Leftover(kind="run", run_id=one.folder.name, text=text, handle=str(one.folder), row=one.row)


def _path(rows: Rows | None) -> str:
    return rows.path if rows is not None else _PERF
