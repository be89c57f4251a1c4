"""Which files of a run go into an archive: what madlite wrote, and results that are text; no weights, data, secrets."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterator
from contextlib import nullcontext
from itertools import islice
from pathlib import PurePosixPath

from madlite.archive.manifest import OF_ONE_FOLDER, LeftOut, why_not_a_name
from madlite.files import Folder, kind_of
from madlite.model import Value
from madlite.secrets import is_secret_name
from madlite.store.folder import CONTEXT, LOG, PLAN, RECORD, STEPS, WORK
from madlite.store.record import Record

ROWS = "rows.csv"
WRITTEN = (RECORD, PLAN, CONTEXT, LOG, STEPS, ROWS)
"""The names of madlite's own files."""
_TEXT = frozenset((".csv", ".html", ".json", ".jsonl", ".log", ".md", ".toml", ".tsv", ".txt", ".yaml", ".yml"))
_NOT_RESULTS = frozenset(("assets", "data", "dataset", "datasets", "hub", "node_modules", "venv"))
_KEYS = frozenset((".env", ".key", ".p12", ".pem", ".pfx"))  # ends of names, or names
_MOST_ENTRIES = 50_000  # of a folder, a workload may leave any number
SHOWN = 200  # files that are left out, each by its name


class Candidate(Value, frozen=True):
    """A file of a run's folder: its path there, its size, and why it is left out, "" where it is packed."""

    path: str
    bytes: int
    why: str = ""


def list_files(home: Folder, record: Record, most_bytes: int) -> Iterator[Candidate]:
    """Yield the files of a run's open folder in order, `most_bytes` being the limit of one.

    What another run or program has no use for, as a lock, is not named.
    """
    rendered = rendered_files(record)
    for count, (path, facts) in enumerate(_walk(home)):
        if count == _MOST_ENTRIES:
            yield Candidate(path=path, bytes=0, why=f"more than {_MOST_ENTRIES} files: this one and those after it")
            return
        if path not in OF_ONE_FOLDER:
            why = _why(path, facts, rendered) or why_not_a_name(path)
            size = facts.st_size if stat.S_ISREG(facts.st_mode) else 0
            if not why and size > most_bytes:
                why = "larger than --max-file"
            yield Candidate(path=path, bytes=size, why=why)


def left_out(candidates: list[Candidate]) -> tuple[LeftOut, ...]:
    """Return the first files that are left out, those of which the path can be named."""
    out = (one for one in candidates if one.why and one.path.isprintable())
    return tuple(LeftOut(path=one.path, bytes=one.bytes, why=one.why) for one in islice(out, SHOWN))


def _walk(home: Folder) -> Iterator[tuple[str, os.stat_result]]:
    """Yield what is in a folder but folders, by name, with what it is; no link is followed."""
    pending = [""]
    while pending:
        below = pending.pop()
        found = _entries(home, below)
        yield from ((path, facts) for path, facts in found if not stat.S_ISDIR(facts.st_mode))
        deeper = [path for path, facts in found if stat.S_ISDIR(facts.st_mode)]
        pending += [path for path in reversed(deeper) if path.count("/") < 100]


def _entries(home: Folder, below: str) -> list[tuple[str, os.stat_result]]:
    """Return the entries of a folder, sorted; none where it cannot be listed, or is gone."""
    begin = f"{below}/" if below else ""
    try:
        with home.below(below) if below else nullcontext(home) as folder, os.scandir(folder.fd) as entries:
            found = [(f"{begin}{entry.name}", entry.stat(follow_symlinks=False)) for entry in entries]
    except OSError:
        return []
    return sorted(found, key=lambda one: one[0])


def _why(path: str, facts: os.stat_result, rendered: Collection[str]) -> str:
    """Return why a file is left out, whatever its size."""
    if not stat.S_ISREG(facts.st_mode):
        return kind_of(facts)
    *folders, name = PurePosixPath(path).parts
    if (
        path not in WRITTEN
        and path not in rendered
        and folders[:1] == [WORK]
        and "/".join((*folders[1:], name)) in rendered
    ):
        return "a copy of a rendered file"
    return why_no_file(path, rendered)


def why_no_file(path: str, rendered: Collection[str]) -> str:
    """Return why a file is none of a run's that an archive has: madlite's own, those it `rendered`, and results."""
    return "" if path in WRITTEN or path in rendered else why_no_result(path)


def rendered_files(record: Record) -> frozenset[str]:
    """Return the names of the files that madlite made or copied for a run."""
    return frozenset(file.path for file in record.files if file.sha256)


def why_no_result(path: str) -> str:
    """Return why a file of a workload is no result that is packed; "" where by its name it is one."""
    *folders, name = PurePosixPath(path).parts
    if any(part.startswith(".") for part in folders) or name.startswith("."):
        return "hidden"
    if _is_secret(name):
        return "its name is that of a secret"
    if any("cache" in part.lower() or part.lower() in _NOT_RESULTS for part in folders):
        return "cache or data"
    return "" if PurePosixPath(name).suffix.lower() in _TEXT else "no text"


def _is_secret(name: str) -> bool:
    path = PurePosixPath(name.lower())
    return bool(_KEYS & {path.suffix, path.name}) or is_secret_name(path.stem)
