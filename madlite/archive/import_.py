"""The runs of an archive → folders of a folder of runs: each whole or not at all, and never over another one.

Everything is extracted into a folder beside the runs and checked there; then each run gets an id that is made here and
is renamed into its place, after an event in the log of the folder of runs: it is none that madlite did not make,
and where it came from and under which id is known.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import secrets
import shutil
import sys
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import IO, Any, Literal, TypeAlias, cast

import msgspec
from msgspec.structs import replace

from madlite.archive.pack import (
    HINT,
    MANIFEST,
    Manifest,
    PackedFile,
    PackedRun,
    read_manifest,
    rendered_files,
    why_no_file,
)
from madlite.archive.pack import LIMIT_BYTES as MANIFEST_BYTES
from madlite.batch.collect import append_once, write_alone
from madlite.batch.leftovers import IMPORT_LOCK, IMPORTED, IMPORTED_LOCK
from madlite.errors import RecordError, UsageProblem
from madlite.files import Folder, open_given, shown, write_all
from madlite.model import Value
from madlite.perfcsv.rows import STANDARD_COLUMNS
from madlite.plan.inputs import RUNS
from madlite.reports.runs import utc_time
from madlite.store.events import EventLog, RunImported, RunPruned, append, now
from madlite.store.folder import (
    LOCK,
    PLAN,
    RECORD,
    RunEntry,
    RunFolder,
    check_runs_folder,
    new_run_id,
    open_runs,
    read_run,
)
from madlite.store.locks import is_locked, locked_file
from madlite.store.record import LIMIT_BYTES, NotedRuns, load_record, read_record
from madlite.text import size_text

_CHUNK_BYTES = 1 << 20
_Members: TypeAlias = Iterator[tuple[tarfile.TarInfo, IO[bytes]]]


class ImportedRun(Value, frozen=True):
    """The outcome of one run of an archive: its id here, and a message; `refused` where it is here as another one."""

    run: PackedRun
    id: str
    message: str
    is_new: bool = False
    refused: bool = False


def import_runs(file: Path, workspace: Path, max_bytes: int) -> tuple[ImportedRun, ...]:
    """Take the runs of an archive into a working folder.

    Raises:
        UsageProblem: the archive cannot be read to its end, is not as its manifest has it, or has what no archive of
            runs has; nothing of it is left.
    """
    check_runs_folder(workspace)
    try:
        with open_runs(workspace, make=True) as runs, _staging_folder(runs) as staging:
            manifest = _unpacked(file, staging, max_bytes)
            with locked_file(runs, IMPORT_LOCK):
                ids = _Ids(manifest, runs)
                for run in manifest.runs:
                    if not runs.holds(ids.local[run.id]):
                        _rename_ids(run, ids, staging, file)
                return tuple(_import_run(run, ids, staging, runs, shown(Path(file.name))) for run in manifest.runs)
    except OSError as error:
        raise UsageProblem(f"{shown(file)} cannot be taken in: {error.strerror or error}", f"ls -ld {RUNS}") from error


def _unpacked(file: Path, staging: Folder, max_bytes: int) -> Manifest:
    """Extract an archive, and check that it is what its manifest says, and each record the run's.

    Raises:
        UsageProblem: it is not.
    """
    manifest, mismatches = unpack(file, staging, max_bytes)
    if mismatches:
        raise UsageProblem.of_all(
            (f"{item.what[:200]} of {shown(file)} is not as it was packed: {item.recorded}, found {item.found}", "")
            for item in mismatches[:5]
        )
    for run in manifest.runs:
        try:
            record = load_record(staging.path / run.id)
        except RecordError as problem:
            what = f"run {run.id} of {shown(file)}: {problem.message}"
            raise UsageProblem(what, "pip install --upgrade madlite") from None
        if record is None or record.id != run.id:
            what = f"its {RECORD} is of run {record.id if record is not None else '-'}"
            raise UsageProblem(f"run {run.id} of {shown(file)}: {what}", "")
        rendered = rendered_files(record)
        for path, why in ((file.path, why_no_file(file.path, rendered)) for file in run.files):
            if why:
                what = f"the file {path!r} of run {run.id} is none that an archive has: {why}"
                raise UsageProblem(f"{shown(file)}: {what}", "madlite archive packs text that is a run's")
    return manifest


def _rename_ids(run: PackedRun, ids: _Ids, staging: Folder, file: Path) -> None:
    """Give the record and the plan of an extracted run the ids that they have here.

    Raises:
        UsageProblem: its record is too deep, where no field has anything that deep.
    """
    with staging.below(run.id) as home:
        try:
            home.write(RECORD, ids.renamed(home.read(RECORD, LIMIT_BYTES)))
        except ValueError as error:
            what = f"{RECORD} of run {run.id} of {shown(file)} cannot be read: {error}"
            raise UsageProblem(what, HINT) from None
        with suppress(OSError, ValueError):  # a plan that is none, or is not there
            home.write(PLAN, ids.renamed(home.read(PLAN, LIMIT_BYTES)))


def _import_run(run: PackedRun, ids: _Ids, staging: Folder, runs: Folder, origin: str) -> ImportedRun:
    """Rename one run into its place, under its id here, unless it is there already."""
    local_id = ids.local[run.id]
    known_as = "" if local_id == run.id else f" as {local_id}"
    if runs.holds(local_id):
        if _has_record(run, local_id, staging, runs):
            return ImportedRun(run=run, id=local_id, message=f"already here{known_as}")
        message = f"not taken in: a run of this id is here{known_as} with another {RECORD}"
        return ImportedRun(run=run, id=local_id, message=message, refused=True)
    with staging.below(run.id) as home:
        os.close(home.open_file(LOCK))
        append(runs, RunImported(run=local_id, origin=origin, archived_id=run.first_id or run.id))
    os.rename(run.id, local_id, src_dir_fd=staging.fd, dst_dir_fd=runs.fd)
    return ImportedRun(run=run, id=local_id, message=f"taken in{known_as}", is_new=True)


# The ids of runs of an archive, which are made here: what has one of the archive's could be taken for something else.

_ABROAD = (
    "-imported"  # ends the ids of batches, of studies and of runs that are not in the archive: none made here has it
)
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")
_Path = tuple[str, ...]
_OF_RUNS: tuple[_Path, ...] = (("id",), ("plan_id",), ("attempt", "next"), ("attempt", "earlier", "*", "run"))
_OF_GROUPS: tuple[_Path, ...] = (("batch",), ("study", "id"))
_NAMING_RUNS: tuple[_Path, ...] = (("beside", "*"), ("rows", "cells", "*", "run"))  # and perhaps something else


class _Ids:
    """The ids that the runs of an archive have here: as they were taken in before, or new ones."""

    def __init__(self, manifest: Manifest, runs: Folder) -> None:
        log = EventLog.read(runs.path)
        imported = {event.archived_id: event.run for event in log.of(RunImported) if event.archived_id}
        pruned = {event.run for event in log.of(RunPruned) if event.folder}
        self.local: dict[str, str] = {}
        for run in manifest.runs:
            first = run.first_id or run.id
            own = first if first in pruned or runs.holds(first) else ""
            imported[first] = self.local[run.id] = imported.get(first) or own or new_run_id(run.card, _began(run))

    def renamed(self, data: bytes) -> bytes:
        """Return a record or a plan with the ids that it has here.

        Raises:
            ValueError: it is no JSON.
        """
        return _with_ids(
            data, lambda name: self.local.get(name) or _abroad(name), _abroad, lambda text: self.local.get(text, text)
        )


def _abroad(name: str) -> str:
    return _UNSAFE.sub("_", name.removesuffix(_ABROAD)) + _ABROAD


def _began(run: PackedRun) -> datetime | None:
    """Return when a run started, as it says: its id begins with that, and so has its place among the others."""
    began = utc_time(run.started)
    return began if began is not None and 2000 <= began.year < 9999 else None


def _with_ids(
    data: bytes, run: Callable[[str], str], group: Callable[[str], str], known: Callable[[str], str]
) -> bytes:
    """Return a record or a plan as JSON with other ids of runs, and of batches and studies.

    Raises:
        ValueError: it is no JSON.
    """
    try:
        value = msgspec.json.decode(data)
        for paths, change in ((_OF_RUNS, run), (_OF_GROUPS, group), (_NAMING_RUNS, known)):
            for path in paths:
                _change(value, path, change)
        return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"
    except (msgspec.MsgspecError, RecursionError, OverflowError) as error:
        raise ValueError(str(error)) from None


def _change(value: Any, path: _Path, change: Callable[[str], str]) -> None:
    """Change the texts in a JSON value to which a path leads; an empty one names nothing."""
    first, rest = path[0], path[1:]
    if first == "*":
        places: Iterable[Any] = range(len(value)) if isinstance(value, list) else ()
    else:
        places = (first,) if isinstance(value, dict) and first in value else ()
    for place in places:
        if rest:
            _change(value[place], rest, change)
        elif value[place] and isinstance(value[place], str):
            value[place] = change(value[place])


def _has_record(run: PackedRun, local_id: str, staging: Folder, runs: Folder) -> bool:
    """Return whether the run that is here has a packed run's record, but for ids and what was masked in the archive."""
    try:
        packed, own = (
            _with_ids(folder.read(f"{name}/{RECORD}", LIMIT_BYTES), *[lambda _: ""] * 3)
            for folder, name in ((staging, run.id), (runs, local_id))
        )
    except (OSError, ValueError):
        return False
    return packed == own or any(file.masked for file in run.files if file.path == RECORD)


@contextmanager
def _staging_folder(runs: Folder) -> Iterator[Folder]:
    """Make a folder for what is extracted, locked until it is removed; those that a killed import left go first."""
    name = f"{IMPORTED}{secrets.token_hex(8)}"
    with ExitStack() as opened:
        with locked_file(runs, IMPORT_LOCK):
            for left in os.listdir(runs.fd):  # noqa: PTH208 - of the open folder
                if left.startswith(IMPORTED) and not is_locked(runs.path / left / IMPORTED_LOCK):
                    runs.remove_tree(left)
            staging = opened.enter_context(runs.below(name, new=True))
            opened.enter_context(locked_file(staging, IMPORTED_LOCK))
        try:
            yield staging
        finally:
            with suppress(OSError):
                runs.remove_tree(name)


# The rows of imported runs, each once.


def append_imported(
    taken: Sequence[ImportedRun], workspace: Path, output: Path, begin: Sequence[str] = STANDARD_COLUMNS
) -> Iterator[ImportedRun]:
    """Append the rows of runs that were imported into a results file, in the order in which they first were.

    A run of the folder's own has its rows already.
    """
    noted = NotedRuns(workspace / RUNS)
    for imported_run in sorted(taken, key=lambda imported: _first_append(imported, workspace)):
        rows, failed = "", False
        if not imported_run.refused and not noted.origin(imported_run.id):
            rows = ", its rows are this folder's own"
        elif not imported_run.refused:
            earlier = noted.rows_of_pruned.get(imported_run.id, "")
            try:
                rows = f", {_append_rows(workspace / RUNS / imported_run.id, workspace, output, begin, earlier)}"
            except (RecordError, OSError) as problem:
                why = problem.message if isinstance(problem, RecordError) else problem.strerror or str(problem)
                rows, failed = f", its rows are not appended: {why}", True
        yield replace(imported_run, message=f"{imported_run.message}{rows}", refused=imported_run.refused or failed)


def _first_append(imported_run: ImportedRun, workspace: Path) -> tuple[str, str]:
    """Return when a run's rows were first appended, and its start, which has whole seconds."""
    record = read_record(workspace / RUNS / imported_run.id)
    return (record.rows.at if record is not None and record.rows is not None else ""), imported_run.run.started


def _append_rows(folder: Path, workspace: Path, output: Path, begin: Sequence[str], earlier: str) -> str:
    """Append the rows of a run, unless its journal or the file `earlier` has them; return what became of them."""
    record = load_record(folder)
    if record is None or record.rows is None:
        return "it has no row"
    rows = replace(record.rows, path="", appended=False, at="", offset=0, columns=())
    with closing(RunFolder.reopen(folder)) as run_folder:
        # its journal went with its folder when that was pruned; the file had them, and has unless they were removed:
        # they are looked for before they are appended
        if earlier and read_run(folder).rows is None:
            problem = run_folder.note(RunEntry(at=now(), rows=replace(rows, path=earlier)))
            if problem:
                raise RecordError(problem)
        return write_alone(append_once(rows, run_folder, workspace, output), begin)[1]


_BLOCK_BYTES, _BUFFER_BYTES = 512, 4 << 10  # of a tar file, and of what is read of it at once
_HEADER_BYTES = 8 << 10  # of a member: a path of 1000 characters at most, and a size
_PADDING_BYTES = 64 << 10  # after the end of an archive
_KINDS = {
    **dict.fromkeys((tarfile.LNKTYPE, tarfile.SYMTYPE), "a link"),
    **dict.fromkeys((tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE), "a device, a pipe or the like"),
    **{tarfile.DIRTYPE: "a folder", tarfile.GNUTYPE_SPARSE: "sparse"},
}


Outcome = Literal["ok", "differs", "unchecked"]


class Item(Value, frozen=True):
    """One thing that was checked: what is recorded, what was found, and why it could not be checked."""

    what: str
    outcome: Outcome = "ok"
    recorded: str = ""
    found: str = ""
    why: str = ""


def unpack(file: Path, into: Folder, max_bytes: int) -> tuple[Manifest, tuple[Item, ...]]:
    """Extract an archive into an empty open folder, each run below its id; return what of it is not as its manifest.

    Raises:
        UsageProblem: it cannot be read to its end, is no archive of runs, or has what none has.
        OSError: a file cannot be written.
    """
    where = shown(file)
    with _opened(file) as stream, _as_problem(where):
        source = _Limited(stream, where)
        members = _members(source)
        first, content = next(members, (None, None))
        if first is None or content is None or first.name != MANIFEST or first.size > MANIFEST_BYTES:
            raise UsageProblem(f"{where} is no archive of runs: it does not begin with {MANIFEST}", HINT)
        manifest = read_manifest(content.read(), where)
        _check_size(manifest, into, max_bytes, where)
        files = manifest.sizes()
        # what the manifest names, with its headers; and some more, so that a difference is named
        source.left = sum(file.bytes for file in files.values()) + 8 * _BLOCK_BYTES * (len(files) + 2) + MANIFEST_BYTES
        return manifest, tuple(_extract(members, files, into, where))


def _extract(members: _Members, left: dict[str, PackedFile], into: Folder, where: str) -> Iterator[Item]:
    """Extract the files that a manifest names, and yield what is not as it has it."""
    seen = {MANIFEST}
    for member, content in members:
        if member.name in seen:
            raise UsageProblem(f"{where}: {member.name[:200]!r} is in it twice", HINT)
        seen.add(member.name)
        packed = left.pop(member.name, None)
        if packed is None:
            yield _differs(member.name, "no such file", f"{member.size} bytes")
        elif member.size > packed.bytes:  # as much as it claims is not written
            yield _differs(member.name, f"{packed.bytes} bytes", f"{member.size} bytes")
        elif (digest := _write(content, member.name, into)) != packed.sha256:
            yield _differs(member.name, f"sha256 {packed.sha256}", f"sha256 {digest}")
    yield from (_differs(name, f"{file.bytes} bytes", "no such file") for name, file in left.items())


def _differs(name: str, recorded: str, found: str) -> Item:
    return Item(what=name, outcome="differs", recorded=recorded, found=found)


def _write(content: IO[bytes], name: str, into: Folder) -> str:
    """Write a file below the folder and return its SHA-256."""
    digest = hashlib.sha256()
    with (
        into.parent_of(name, make=True) as (folder, last),
        os.fdopen(folder.create(last, mode=0o644), "wb", buffering=0) as new,
    ):
        while piece := content.read(_CHUNK_BYTES):
            digest.update(piece)
            write_all(new.fileno(), piece)
    return digest.hexdigest()


def _check_size(manifest: Manifest, into: Folder, max_bytes: int, where: str) -> None:
    """Refuse an archive that is too large by what its manifest says, before anything is written."""
    size = sum(run.bytes for run in manifest.runs)
    if size > max_bytes:
        hint = f"--max-size {(size >> 30) + 1}G where you trust who packed it"
        raise UsageProblem(f"{where} unpacks to {size_text(size)}, above {size_text(max_bytes)}", hint)
    if size > (free := shutil.disk_usage(into.path).free):
        what = f"{where} unpacks to {size_text(size)}, and {into.path} has room for {size_text(free)}"
        raise UsageProblem(what, "madlite clean --old makes room")


@contextmanager
def _opened(file: Path) -> Iterator[IO[bytes]]:
    try:
        raw = os.fdopen(open_given(file), "rb")
    except (OSError, ValueError) as error:
        why = (error.strerror if isinstance(error, OSError) else "") or str(error)
        raise UsageProblem(f"{shown(file)} cannot be read: {why}", "name a file that madlite archive wrote") from None
    with raw, gzip.GzipFile(fileobj=raw) as stream:
        yield cast("IO[bytes]", stream)


@contextmanager
def _as_problem(where: str) -> Iterator[None]:
    """Turn what reading a broken archive raises into a sentence."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile, tarfile.TarError, ValueError) as error:
        raise UsageProblem(f"{where} is no whole archive of runs: {error}", HINT) from None


class _Limited:
    """An unpacked archive of which no more than `left` bytes are read, nor than `header` before a member's content.

    tarfile reads a header of any size into memory, and each of several within the one before.
    """

    def __init__(self, stream: IO[bytes], where: str) -> None:
        self.where, self._stream = where, stream
        self.left = 2 * MANIFEST_BYTES  # until the manifest is known
        self.header = 0

    def read(self, size: int) -> bytes:
        """Return up to so many bytes."""
        data = self._stream.read(size)
        self.left -= len(data)
        self.header -= len(data)
        if self.left < 0:
            raise UsageProblem(f"{self.where} unpacks to more than its {MANIFEST} names", HINT)
        if self.header < 0:
            raise _strange(self.where)
        return data


def _members(source: _Limited) -> _Members:
    """Yield the members of a tar file, all plain files, each with its content; owner, mode and times are ignored."""
    source.header = _HEADER_BYTES + _BUFFER_BYTES
    end = 0
    with tarfile.open(fileobj=source, mode="r|", bufsize=_BUFFER_BYTES, errors="strict") as tar:  # type: ignore[call-overload]
        while (member := tar.next()) is not None:
            if member.type in _KINDS:
                kind = _KINDS[member.type]
                raise UsageProblem(f"{source.where}: {member.name[:200]!r} is {kind}, no plain file", HINT)
            has_records = member.offset_data > end + _BLOCK_BYTES
            if (
                member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE)
                or member.size < 0
                or member.offset != end
                or has_records != bool(member.pax_headers)
                or member.pax_headers.keys() - {"path", "size"}
            ):
                raise _strange(source.where)
            source.header = sys.maxsize
            with tar.extractfile(member) as content:
                yield member, content
                while content.read(_CHUNK_BYTES):
                    pass  # what the caller left
            end = member.offset_data + member.size + -member.size % _BLOCK_BYTES
            source.header = _HEADER_BYTES + _BUFFER_BYTES
        source.header = _PADDING_BYTES
        while source.read(_BUFFER_BYTES):
            pass  # to the end, where the checksum of all of it is


def _strange(where: str) -> UsageProblem:
    return UsageProblem(f"{where} has a header that none of an archive of runs has", HINT)
