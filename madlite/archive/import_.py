"""The runs of an archive → folders of a folder of runs: each whole or not at all, and never over another one.

Everything is extracted into a folder beside the runs and checked there; then each run gets an id that is made here and
is renamed into its place, after an event in the log of the folder of runs: it is none that madlite did not make,
and where it came from and under which id is known.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import IO, Any

import msgspec

from madlite.archive.pack import HINT, MANIFEST, Manifest, PackedRun, read_manifest, rendered_files, why_no_file
from madlite.archive.pack import LIMIT_BYTES as MANIFEST_BYTES
from madlite.errors import RecordError, UsageProblem
from madlite.files import Folder, open_plain, shown, write_all
from madlite.model import Value
from madlite.plan.inputs import RUNS
from madlite.reports.runs import utc_time
from madlite.store.events import EventLog, RunImported, RunPruned, append
from madlite.store.folder import LOCK, PLAN, RECORD, check_runs_folder, new_run_id, open_runs
from madlite.store.locks import is_locked, locked_file
from madlite.store.record import LIMIT_BYTES, load_record
from madlite.text import size_text

_CHUNK_BYTES = 1 << 20
_LOCK, _STAGED = ".import.lock", ".import-"  # of imports; of the folders into which archives are unpacked
_STAGED_LOCK = ".lock"  # in such a folder


class ImportedRun(Value, frozen=True):
    """The outcome of one run of an archive: its id here, and a message."""

    run: PackedRun
    id: str
    message: str
    is_new: bool = False


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
            with locked_file(runs, _LOCK):
                local, origin = _local_ids(manifest, runs), shown(Path(file.name))
                for run in manifest.runs:
                    if not runs.holds(local[run.id]):
                        _rename_ids(run, local, staging, file)
                return tuple(_import_run(run, local[run.id], staging, runs, origin) for run in manifest.runs)
    except OSError as error:
        raise UsageProblem(f"{shown(file)} cannot be taken in: {error.strerror or error}", f"ls -ld {RUNS}") from error


def _unpacked(file: Path, staging: Folder, max_bytes: int) -> Manifest:
    """Extract an archive, and check that it is what its manifest says, and each record the run's.

    Raises:
        UsageProblem: it is not.
    """
    manifest = unpack(file, staging, max_bytes)
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


def _rename_ids(run: PackedRun, local: Mapping[str, str], staging: Folder, file: Path) -> None:
    """Give the record and the plan of an extracted run the ids that they have here.

    Raises:
        UsageProblem: its record is too deep, where no field has anything that deep.
    """
    with staging.below(run.id) as home:
        try:
            home.write(RECORD, _renamed(home.read(RECORD, LIMIT_BYTES), local))
        except ValueError as error:
            what = f"{RECORD} of run {run.id} of {shown(file)} cannot be read: {error}"
            raise UsageProblem(what, HINT) from None
        with suppress(OSError, ValueError):  # a plan that is none, or is not there
            home.write(PLAN, _renamed(home.read(PLAN, LIMIT_BYTES), local))


def _import_run(run: PackedRun, local_id: str, staging: Folder, runs: Folder, origin: str) -> ImportedRun:
    """Rename one run into its place, under its id here, unless it is there already."""
    known_as = "" if local_id == run.id else f" as {local_id}"
    if runs.holds(local_id):
        return ImportedRun(run=run, id=local_id, message=f"already here{known_as}")
    with staging.below(run.id) as home:
        os.close(home.open_file(LOCK))
        append(runs, RunImported(run=local_id, origin=origin, archived_id=run.first_id or run.id))
    os.rename(run.id, local_id, src_dir_fd=staging.fd, dst_dir_fd=runs.fd)
    return ImportedRun(run=run, id=local_id, message=f"taken in{known_as}", is_new=True)


# The ids of runs of an archive, which are made here: what has one of the archive's could be taken for something else.

_ABROAD = "-imported"  # ends the ids of batches and studies: none made here has it
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")


def _local_ids(manifest: Manifest, runs: Folder) -> dict[str, str]:
    """Return the ids that the runs of an archive have here: as they were taken in before, or new ones."""
    log = EventLog.read(runs.path)
    imported = {event.archived_id: event.run for event in log.of(RunImported) if event.archived_id}
    pruned = {event.run for event in log.of(RunPruned) if event.folder}
    local: dict[str, str] = {}
    for run in manifest.runs:
        first = run.first_id or run.id
        own = first if first in pruned or runs.holds(first) else ""
        imported[first] = local[run.id] = imported.get(first) or own or new_run_id(run.card, _began(run))
    return local


def _began(run: PackedRun) -> datetime | None:
    """Return when a run started, as it says: its id begins with that, and so has its place among the others."""
    began = utc_time(run.started)
    return began if began is not None and 2000 <= began.year < 9999 else None


def _renamed(data: bytes, local: Mapping[str, str]) -> bytes:
    """Return a record or a plan with the ids that runs of the archive have here, and other batches and studies.

    Raises:
        ValueError: it is no JSON.
    """
    try:
        value = _with_ids(msgspec.json.decode(data), local)
        for holder, key in ((value, "batch"), (value.get("study"), "id")):
            if isinstance(holder, dict) and (name := holder.get(key)):
                holder[key] = _UNSAFE.sub("_", str(name).removesuffix(_ABROAD)) + _ABROAD
        return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"
    except (msgspec.MsgspecError, RecursionError, OverflowError, AttributeError) as error:
        raise ValueError(str(error)) from None


def _with_ids(value: Any, local: Mapping[str, str]) -> Any:
    """Return a JSON value with other ids wherever a text is one."""
    if isinstance(value, str):
        return local.get(value, value)
    if isinstance(value, list):
        return [_with_ids(item, local) for item in value]
    return {key: _with_ids(item, local) for key, item in value.items()} if isinstance(value, dict) else value


@contextmanager
def _staging_folder(runs: Folder) -> Iterator[Folder]:
    """Make a folder for what is extracted, locked until it is removed; those that a killed import left go first."""
    name = f"{_STAGED}{secrets.token_hex(8)}"
    with ExitStack() as opened:
        with locked_file(runs, _LOCK):
            for left in os.listdir(runs.fd):  # noqa: PTH208 - of the open folder
                if left.startswith(_STAGED) and not is_locked(runs.path / left / _STAGED_LOCK):
                    runs.remove_tree(left)
            staging = opened.enter_context(runs.below(name, new=True))
            opened.enter_context(locked_file(staging, _STAGED_LOCK))
        try:
            yield staging
        finally:
            with suppress(OSError):
                runs.remove_tree(name)


def unpack(file: Path, into: Folder, max_bytes: int) -> Manifest:
    """Extract an archive into an empty open folder, each run below its id.

    Raises:
        UsageProblem: it cannot be read to its end, is not as its manifest has it, or has what no archive of runs has.
        OSError: a file cannot be written.
    """
    where = shown(file)
    with _opened(file) as archive:
        listed = archive.infolist()
        members = {member.filename: member for member in listed}
        first = members.pop(MANIFEST, None)
        if first is None or first.file_size > MANIFEST_BYTES:
            raise UsageProblem(f"{where} is no archive of runs: it has no {MANIFEST}", HINT)
        if any(member.compress_type != zipfile.ZIP_DEFLATED for member in listed):  # others may take any memory
            raise UsageProblem(f"{where} is no archive of runs: it is compressed otherwise", HINT)
        manifest = read_manifest(archive.read(first), where)
        _check_size(manifest, into, max_bytes, where)
        files = manifest.sizes()
        if odd := next(iter(members.keys() ^ files.keys()), ""):
            what = "is missing" if odd in files else "is not in its manifest"
            raise UsageProblem(f"{where}: {odd[:200]!r} {what}", HINT)
        if len(listed) != len(files) + 1:
            raise UsageProblem(f"{where}: a file is in it twice", HINT)
        for name, packed in files.items():
            # what zipfile reads of a member ends at the size that it claims
            is_as_packed = members[name].file_size == packed.bytes
            if not is_as_packed or _write(archive.open(members[name]), name, into) != packed.sha256:
                raise UsageProblem(f"{where}: {name[:200]!r} is not as it was packed", HINT)
        return manifest


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
def _opened(file: Path) -> Iterator[zipfile.ZipFile]:
    """Open an archive, and turn what reading a broken one raises into a sentence."""
    try:
        raw = os.fdopen(open_plain(file), "rb")
    except (OSError, ValueError) as error:
        why = (error.strerror if isinstance(error, OSError) else "") or str(error)
        raise UsageProblem(f"{shown(file)} cannot be read: {why}", "name a file that madlite archive wrote") from None
    try:
        with raw, zipfile.ZipFile(raw) as archive:
            yield archive
    # a member that is encrypted or packed otherwise is a RuntimeError
    except (zipfile.BadZipFile, zlib.error, EOFError, ValueError, RuntimeError) as error:
        raise UsageProblem(f"{shown(file)} is no whole archive of runs: {error}", HINT) from None
