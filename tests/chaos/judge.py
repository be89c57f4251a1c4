"""What must hold after a round, whatever was done to it; each broken rule is one sentence."""

from __future__ import annotations

import csv
import json
import re
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import jsonschema

from madlite.store import record
from madlite.store.folder import read_run
from tests.chaos.attacks import Round
from tests.chaos.cards import Part
from tests.chaos.place import AFTER, Place

CODES = {0, 2, 3, 4, 129, 130, 143}
_SCHEMA = json.loads(Path(record.__file__).with_name(record.SCHEMA).read_text())
_ROW_IS_THERE = "its row is in perf.csv"
_UNFINISHED = re.compile(r"\..+\.\d+|\..+\.widening|\..+\.new|\.rows\.csv")


def judge(one: Round, place: Place, code: int | None) -> list[str]:
    """Return the broken rules of a round that has ended, with `code`; None where it had to be killed for not ending."""
    broken = [] if code is not None else ["madlite did not end"]
    said = place.screen.read_text(errors="replace")
    broken += _of_screen(one, said, code)
    try:
        rows = _rows(place)
    except (csv.Error, UnicodeDecodeError, OSError) as error:
        return [*broken, f"a results file does not parse: {error!r}"]
    broken += _of_table(place)
    try:
        told = _next_command(place)
    except subprocess.TimeoutExpired as error:
        return [*broken, f"the next command does not end: {error.cmd}"]
    broken += told.broken
    for part in one.parts:
        broken += _of_part(one, place, part, [row for row in rows if _of(row["model"], part)], said, told, code)
        broken += _of_cut_off(place, part, told)
    broken += _of_records(place)
    broken += _of_remains(one, place)
    return broken


def _of_screen(one: Round, said: str, code: int | None) -> Iterator[str]:
    if one.attack.word == "SIGINT" and _is_of_imports(said):
        return
    if "Traceback (most recent call last)" in said:
        yield "a traceback was shown"
    if "internal error" in said:
        yield "an internal error was shown"
    if code is not None and code not in CODES | _codes_of(one):
        yield f"exit code {code}"
    if "\nwarning: no row in " in said:
        lines = re.findall(r"^results: .*", said, re.MULTILINE)
        yield from (f"the screen claims a row that is not there: {line}" for line in lines if ", but for " not in line)


def _is_of_imports(said: str) -> bool:
    """Say whether this is all Python's own answer to Ctrl-C, before it had called anything of ours."""
    own = ("Traceback (most recent call last)", "Fatal Python error: init_", "Could not import runpy module\n")
    began = said.startswith(own)
    return began and ", in entry\n" not in said and said.rstrip().endswith("KeyboardInterrupt")


def _codes_of(one: Round) -> set[int]:
    """Return the codes of a process that a signal ended: the one that was sent to it and no other."""
    if one.attack.kind != "signal" or one.attack.target not in ("madlite", "group"):
        return set()
    return {-signal.Signals[one.attack.word]}


def _rows(place: Place) -> list[dict[str, str]]:
    tables = place.tables().values()
    return [dict(zip(map(str.strip, table[0]), row, strict=False)) for table in tables if table for row in table[1:]]


def _of_table(place: Place) -> Iterator[str]:
    """Yield what is wrong with the results files: their shape, and the rows that were there before."""
    before = place.earlier.get("perf.csv", [])[1:]  # a header may lose the blanks around its names
    tables = place.tables()
    for name, table in tables.items():
        for number, row in enumerate(table, 1):
            if len(row) != len(table[0]):
                yield f"{name}: record {number} has {len(row)} cells under {len(table[0])} columns"
            if number > 1 and [cell.strip() for cell in row[:3]] == [cell.strip() for cell in table[0][:3]]:
                yield f"{name}: record {number} is a second header"
    kept = [row for table in tables.values() for row in table]
    for row in before:
        if not any(other[: len(row)] == row for other in kept):
            yield f"an earlier record changed: {row}"


class Told:
    """What the next command said, and which runs and cards it said to have no row, or to have one."""

    def __init__(self) -> None:
        self.text, self.broken = "", list[str]()

    def names(self, part: Part) -> bool:
        return part.name in self.text

    def says_no_row(self, part: Part) -> bool:
        ids = re.findall(r"^run +(\S+)  (?:unfinished, )?no row\b", self.text, re.MULTILINE)
        ids += re.findall(r"([\w-]+) \(no row\)", self.text)
        cards = ", ".join(re.findall(r"(?:never started|without a row, of an earlier batch): ([\w, -]+)", self.text))
        return any(f"-{part.name}-" in one for one in ids) or part.name in re.split(r"[^\w-]+", cards)

    def is_cut_off(self, part: Part) -> bool:
        """Return whether `clean` listed a run that has no row, and that the next run was to give one."""
        return bool(re.search(rf"^run +\S+-{part.name}-\w+  unfinished, no row\b", self.text, re.MULTILINE))

    def says_row(self, part: Part) -> bool:
        return bool(re.search(rf"-{part.name}-\w+ *(?: unfinished, |\(){_ROW_IS_THERE}", self.text))


def _next_command(place: Place) -> Told:
    """Run what comes next, which has to go well and to name what the attacked command left undone."""
    told = Told()
    listed = place.madlite("clean")
    done = place.run("--tags", AFTER.name)
    told.text = listed.stdout + listed.stderr + done.stdout + done.stderr
    if done.returncode != 0 or not any(
        row["model"] == AFTER.name and row["status"] == "SUCCESS" for row in _rows(place)
    ):
        told.broken.append(f"the next run failed ({done.returncode}): {done.stdout[-400:]} {done.stderr[-400:]}")
    if "Traceback" in told.text or "internal error" in told.text:
        told.broken.append(f"the next command broke: {told.text[-600:]}")
    return told


def _of(model: str, part: Part) -> bool:
    return model in {part.name, *((f"{part.name}_a", f"{part.name}_b") if part.kind == "multi" else ())}


def _of_part(
    one: Round, place: Place, part: Part, rows: list[dict[str, str]], said: str, told: Told, code: int | None
) -> Iterator[str]:
    truth = place.truth(part)
    good = [row for row in rows if row["status"] == "SUCCESS"]
    wanted = part.rows if good else 1
    if len(rows) > wanted or (rows and len(rows) != wanted):
        yield f"{part.name} has {len(rows)} rows instead of {wanted}"
    if good and (truth != f"ended {part.number}" or part.kind == "failing"):
        yield f"{part.name} is SUCCESS and truly {truth or 'never begun'}"
    for row in good:
        number = part.number + "1" if row["model"].endswith("_b") else part.number
        if row["performance"] != number:
            yield f"{part.name} says {row['performance']} and truly {number}"
    if any(row["performance"] for row in rows if row["status"] == "FAILURE" and part.kind != "failing"):
        yield f"{part.name} is FAILURE with a number"
    begun = f"[1/{len(one.parts)}]" in said  # before that it has not said that anything was begun
    told_at_once = re.search(rf"never started: .*\b{part.name}\b", said)
    told_at_once = told_at_once or (
        one.on_tmpfs and "cannot be saved either" in said and f'"model":"{part.name}' in said
    )
    if not rows and begun and not told_at_once and not told.names(part):
        yield f"{part.name} has no row and is not named by the next command"
    if rows and told.says_no_row(part):
        yield f"{part.name} has a row and the next command says that it has none"
    if not rows and told.says_row(part):
        yield f"{part.name} has no row and the next command says that it has one"
    if code == 0 and not good:
        yield f"exit code 0, and {part.name} is no SUCCESS"


def _of_cut_off(place: Place, part: Part, told: Told) -> Iterator[str]:
    """Yield what is wrong with the row of a run that was cut off, after the next run."""
    rows = [row for row in _rows(place) if _of(row["model"], part)]
    planned = any(place.folder.glob(f"madlite_runs/*-{part.name}-*/plan.json"))
    if told.is_cut_off(part) and planned and not rows:
        yield f"{part.name} was cut off and has no row after the next run"
    if len(rows) > part.rows or (len({row["status"] for row in rows}) > 1 and part.kind != "failing"):
        yield f"{part.name} has {len(rows)} rows after the next run"


def _of_remains(one: Round, place: Place) -> Iterator[str]:
    """Yield what is still there after `madlite clean --yes`, and what the records then do not tell."""
    done = place.madlite("clean", "--yes")
    if done.returncode != 0:
        yield f"clean --yes ended with {done.returncode}: {done.stdout[-300:]}{done.stderr[-300:]}"
    again = place.madlite("clean")
    for line in again.stdout.splitlines():  # other folders' runs may have left something meanwhile
        if "madlite clean --everywhere" not in line and not line.startswith("nothing is left behind"):
            yield f"clean still lists: {line}"
    yield from (f"{path.name} is left" for path in place.folder.glob("madlite_runs/.batch-*"))
    yield from _of_rebuilt(one, place)
    left = {process.pid for process in (*place.left_processes(), *place.astray())}
    yield from (f"process {pid} of the run is left" for pid in left)
    yield from (f"container {name} of the run is left" for name in place.left_containers())
    for path in sorted(place.folder.rglob("*")):
        name = path.relative_to(place.folder)
        if _UNFINISHED.fullmatch(path.name) or re.fullmatch(r"run_directory(_\w+)?", path.name):
            yield f"{name} is left"
        if path.suffix == ".json" and path.is_file() and not _is_json(path):
            yield f"{name} is no JSON"
    mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    yield from (f"{mount} is still mounted" for mount in mounts if mount.startswith(f"{place.folder}/"))


def _of_records(place: Place) -> Iterator[str]:
    """Yield the records that are none."""
    for path in sorted(place.folder.glob("madlite_runs/*/record.json")):
        try:
            jsonschema.validate(json.loads(path.read_bytes()), _SCHEMA, jsonschema.Draft202012Validator)
        except (ValueError, jsonschema.ValidationError) as error:
            yield f"{path.parent.name}/record.json is no record: {str(error)[:200]}"


def _of_rebuilt(one: Round, place: Place) -> Iterator[str]:
    """Yield how the file that is made of the records differs from perf.csv, where the records can tell all of it."""
    marks = [read_run(path.parent).cleaned or "" for path in place.folder.glob("madlite_runs/*/journal.jsonl")]
    folders = " ".join(path.name for path in place.folder.glob("madlite_runs/*-*"))
    if any("cannot be seen" in mark for mark in marks) or one.attack.kind == "rotate":
        return
    done = place.madlite("report", "rebuild", "-o", "again.csv")
    if done.returncode != 0:
        yield f"rebuild ended with {done.returncode}: {done.stderr[-300:]}"
        return
    header, *rows = place.tables()["perf.csv"]
    earlier = place.earlier.get("perf.csv", [])[1:]
    names = [name.strip() for name in header]
    ours = {part.name for part in (*one.parts, AFTER) if f"-{part.name}-" in folders}
    there = [row for row in rows if not any(row[: len(other)] == other for other in earlier)]
    wanted = Counter(_cells(dict(zip(names, row, strict=False)), names) for row in there if _is_of(row, names, ours))
    again = place.table("again.csv")
    found = Counter(_cells(dict(zip(again[0], row, strict=True)), names) for row in again[1:])
    if wanted != found:
        yield f"rebuilt, perf.csv lacks {[*(wanted - found)]} and has too much: {[*(found - wanted)]}"


def _is_of(row: list[str], names: list[str], cards: set[str]) -> bool:
    """Say whether a row is of a run that has a folder: one that could not make it has no record either."""
    model = row[names.index("model")]
    return any(model in (card, f"{card}_a", f"{card}_b") for card in cards)


def _cells(row: dict[str, str], names: list[str]) -> tuple[tuple[str, str], ...]:
    """Return the cells that both files can have, blank ones left out."""
    return tuple(sorted((name, text) for name, text in row.items() if text and name in names))


def _is_json(path: Path) -> bool:
    try:
        json.loads(path.read_bytes())
    except ValueError:
        return False
    return True
