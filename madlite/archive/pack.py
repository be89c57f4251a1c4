"""Runs → an archive: their files, secrets masked, and a manifest, the same bytes for the same runs."""

from __future__ import annotations

import codecs
import errno
import gzip
import hashlib
import os
import re
import stat
import tarfile
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from io import BytesIO
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import BinaryIO

import msgspec
from msgspec.structs import replace

from madlite.errors import UsageProblem
from madlite.files import Folder, NotJson, decode_json, folder_of, kind_of
from madlite.model import RUN_ID, Value, to_json
from madlite.reports.runs import StoredRun, why_not_over
from madlite.secrets import MASK, Redactor, is_secret_name, masked_json
from madlite.store.folder import CONTEXT, HANDLE, LOCK, LOG, PLAN, PROGRESS, RECORD, RESULT, RUN_JOURNAL, STEPS
from madlite.store.record import Record

# What is in an archive of runs: `manifest.json`, its first file.
#
# Format: docs/archive.md.  It is read before anything is extracted, and nothing is extracted that it does not name.


FORMAT = 1
MANIFEST = "manifest.json"
LIMIT_BYTES = 64 << 20
MAX_FILES, MAX_RUNS = 200_000, 10_000  # of one archive
OF_ONE_FOLDER = frozenset((LOCK, HANDLE, PROGRESS, RUN_JOURNAL, RESULT))
"""Files of a run that mean something in the folder alone that madlite made them in."""
_NO_RUN = re.compile(r"(?:jobs|study|check|batch)-.*|baselines")  # what else has its place among the folders of runs
_SHA256 = re.compile(r"[0-9a-f]{64}")
_LONGEST_NAME, _LONGEST_PATH, _MOST_PARTS = 255, 1000, 32  # bytes of a part, characters, parts


class PackedFile(Value, frozen=True):
    """A file of a run as the archive has it; `masked` where secrets were masked in it while it was packed, `masks`."""

    path: str
    bytes: int
    sha256: str
    masked: bool = False
    masks: int = 0


class LeftOut(Value, frozen=True):
    """A file of a run's folder, and why the archive does not have it; "" for one that it is to have."""

    path: str
    bytes: int
    why: str = ""


class PackedRun(Value, frozen=True):
    """A run of an archive.

    `first_id` is its id in the folder that it was made in, where it had been imported before it was packed.
    `left_out` names the first files that are not here, the counts are of all of them.
    """

    id: str
    card: str
    status: str
    first_id: str = ""
    started: str = ""
    files: tuple[PackedFile, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    left_out_files: int = 0
    left_out_bytes: int = 0

    @property
    def bytes(self) -> int:
        """How large its files are together."""
        return sum(file.bytes for file in self.files)


class Manifest(Value, frozen=True):
    """The content of an archive; `format` is incremented when the meaning of a field changes."""

    format: int
    madlite: str
    runs: tuple[PackedRun, ...] = ()

    def sizes(self) -> dict[str, PackedFile]:
        """Return the files by their names in the archive."""
        return {f"{run.id}/{file.path}": file for run in self.runs for file in run.files}


class _Versioned(Value, frozen=True):
    format: int = 0
    madlite: str = ""


def read_manifest(data: bytes, where: str) -> Manifest:
    """Return the manifest of an archive; messages call that `where`.

    Raises:
        UsageProblem: it is none, of another format, or names what no archive of runs has.
    """
    try:
        version = msgspec.json.decode(data, type=_Versioned)
        if version.format != FORMAT:
            raise UsageProblem(
                f"{where}: its {MANIFEST} is of format {version.format} (madlite {version.madlite or 'unknown'}), "
                f"and this madlite reads format {FORMAT}",
                "pip install --upgrade madlite",
            )
        manifest = msgspec.json.decode(data, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageProblem(f"{where}: its {MANIFEST} cannot be read: {error}", HINT) from None
    check_number(manifest, where)
    if problem := next(_problems(manifest), ""):
        raise UsageProblem(f"{where}: {problem}", HINT)
    return manifest


def check_number(manifest: Manifest, where: str) -> None:
    """Refuse more runs and files than one archive may have."""
    files = sum(len(run.files) for run in manifest.runs)
    for found, most, what in ((len(manifest.runs), MAX_RUNS, "runs"), (files, MAX_FILES, "files")):
        if found > most:
            raise UsageProblem(
                f"{where} has {found} {what}, more than {most} {what}", "pack fewer runs into one archive"
            )


HINT = "madlite archive writes archives of runs; nothing was taken in"


def is_run_id(name: str) -> bool:
    """Return whether a folder of this name can be a run's: not where madlite keeps something else under such names."""
    return RUN_ID.fullmatch(name) is not None and _NO_RUN.fullmatch(name) is None


def _problems(manifest: Manifest) -> Iterator[str]:
    """Yield what is wrong with the names of a manifest: they become paths."""
    if len({run.id for run in manifest.runs}) < len(manifest.runs):
        yield "a run is named twice"
    for run in manifest.runs:
        for name in filter(None, (run.id, run.first_id)):
            if not is_run_id(name):
                yield f"{name[:_LONGEST_NAME]!r} is no id of a run"
        yield from _problems_of_files(run)


def _problems_of_files(run: PackedRun) -> Iterator[str]:
    paths = {file.path for file in run.files}
    if len(paths) < len(run.files):
        yield f"a file of run {run.id} is named twice"
    if RECORD not in paths:
        yield f"run {run.id} has no {RECORD}"
    for file in run.files:
        if why := why_not_a_name(file.path):
            yield f"the file {file.path[:_LONGEST_NAME]!r} of run {run.id} {why}"
        if file.bytes < 0 or not _SHA256.fullmatch(file.sha256):
            yield f"size or SHA-256 of {file.path!r} of run {run.id} is none"


def why_not_a_name(path: str) -> str:
    """Return, as the end of a sentence, why a path is no file's of a run in an archive; "" where it may be one."""
    parts = path.split("/")
    if not path.isprintable() or "\\" in path or any(0xD800 <= ord(char) <= 0xDFFF for char in path):
        return "has characters that no file of an archive has"
    if any(part in ("", ".", "..") for part in parts):
        return "is outside of its folder"
    if parts[0] in OF_ONE_FOLDER or parts[0].startswith("."):
        return "has a name that is not taken in"
    too_long = len(path) > _LONGEST_PATH or any(len(part.encode()) > _LONGEST_NAME for part in parts)
    return "has too long a name" if too_long or len(PurePosixPath(path).parts) > _MOST_PARTS else ""


# Packing.


ENDS = (".tar.gz", ".tgz")
_CHUNK_BYTES = 1 << 20
_DOCUMENT_BYTES = 64 << 20  # of a JSON file that is masked text by text
_LEVEL = 6  # of gzip: another one would give other bytes


def why_not_packed(run: StoredRun) -> str:
    """Return why a run cannot be packed; "" where it can."""
    if why := why_not_over(run):
        return why
    if not run.collected:
        return "it is not collected (madlite runs collect)"
    if not is_run_id(run.folder.name):
        return "its folder's name is no id of a run"
    return ""


def pack(
    runs: Iterable[StoredRun], file: Path, secrets: Sequence[str], max_file_bytes: int, *, binary: bool = False
) -> tuple[Manifest, int]:
    """Write runs into a new archive, and return its manifest and its size.

    `secrets` are masked in every file, and whatever is one by its shape or its name.

    With `binary` also results that by their content are no text, in which such a secret may not be found.

    Raises:
        UsageProblem: the file is there, cannot be written or has no name of an archive, or a run has no record.
    """
    from madlite import __version__

    _check_name(file)
    try:
        with tempfile.TemporaryFile(dir=file.parent) as spool:
            files = _Spool(spool, secrets, binary=binary)
            in_order = sorted(runs, key=lambda run: run.folder.name)
            packed = tuple(_pack_run(run, files, max_file_bytes) for run in in_order)
            manifest = Manifest(format=FORMAT, madlite=__version__, runs=packed)
            check_number(manifest, str(file))
            with (
                folder_of(file) as (folder, name),
                folder.atomic(name) as beside,
                os.fdopen(folder.create(beside), "wb") as out,
            ):
                _write(out, manifest, spool)
                size = out.tell()
    except OSError as error:
        raise UsageProblem(f"{file} cannot be written: {error.strerror or error}", f"ls -ld {file.parent}") from error
    return manifest, size


def _check_name(file: Path) -> None:
    if not file.name.endswith(ENDS):
        raise UsageProblem(f"{file} is no name of an archive", f"-o {file.name.partition('.')[0] or 'runs'}.tar.gz")
    if os.path.lexists(file):
        raise UsageProblem(f"{file} is there already", f"rm {file}   or name another file: -o")


def _pack_run(run: StoredRun, files: _Spool, max_file_bytes: int) -> PackedRun:
    record = run.record
    with Folder.open(run.folder.parent) as parent, parent.below(run.folder.name) as home:
        packed, out = [], []
        for candidate in list_files(home, record, max_file_bytes):
            why = candidate.why
            if not why and candidate.path not in WRITTEN and files.text(candidate.path) != candidate.path:
                why = "its path has a secret"  # under a masked one it would be another file
            try:
                packed += [] if why else [files.add(home, candidate)]
            except OSError as error:  # it was replaced meanwhile, or is not ours to read
                why = error.strerror or str(error)
            out += [replace(candidate, why=why)] if why else []
    if RECORD not in (file.path for file in packed):
        raise UsageProblem(f"run {run.folder.name} cannot be packed: its {RECORD} cannot be read", "madlite runs")
    named = (replace(file, path=files.text(file.path)) for file in out if file.path.isprintable())
    return PackedRun(
        id=run.folder.name,
        card=files.text(record.card),
        status=run.state,
        first_id=run.archived_id,
        started=record.started,
        files=tuple(packed),
        left_out=tuple(islice(named, SHOWN)),
        left_out_files=len(out),
        left_out_bytes=sum(left_out.bytes for left_out in out),
    )


class _Spool:
    """The masked content of the files, one after another, in a file without a name: a kill leaves nothing of it."""

    def __init__(self, file: BinaryIO, secrets: Sequence[str], *, binary: bool = False) -> None:
        self._file, self._secrets, self._binary = file, tuple(secrets), binary
        self.text = Redactor(self._secrets).text

    def add(self, home: Folder, omitted: LeftOut) -> PackedFile:
        """Append a plain file of an open folder.

        Raises:
            OSError: it is none, or cannot be read; nothing of it is appended.
        """
        with home.parent_of(omitted.path) as (folder, name):
            fd = folder.open_file(name, os.O_RDONLY, make=False)
        begin = self._file.tell()
        try:
            return self._copy(fd, omitted)
        except OSError:
            self._file.seek(begin)
            self._file.truncate()
            raise
        finally:
            os.close(fd)

    def _copy(self, fd: int, omitted: LeftOut) -> PackedFile:
        before, after, size, masks = hashlib.sha256(), hashlib.sha256(), 0, 0
        check = None if self._binary or omitted.path in WRITTEN else _text_check(omitted.path)
        for original, masked in self._pieces(fd, omitted):
            if check is not None:
                check(original)
            before.update(original)
            after.update(masked)
            size += self._file.write(masked)
            masks += masked.count(MASK) - original.count(MASK)
        digest = after.hexdigest()
        is_masked = digest != before.hexdigest()
        return PackedFile(
            path=omitted.path, bytes=size, sha256=digest, masked=is_masked, masks=max(1, masks) if is_masked else 0
        )

    def _pieces(self, fd: int, omitted: LeftOut) -> Iterator[tuple[bytes, bytes]]:
        """Yield what a file holds, each piece with what is written of it."""
        redactor = Redactor(self._secrets, named=True)
        if omitted.path.endswith(".json") and omitted.bytes <= _DOCUMENT_BYTES:
            data = b"".join(_chunks(fd, omitted.bytes))
            yield data, _masked_document(data, redactor, self._secrets)
            return
        for piece in _chunks(fd, omitted.bytes):
            yield piece, redactor.feed(piece)
        yield b"", redactor.flush()


def _chunks(fd: int, size: int) -> Iterator[bytes]:
    """Yield a file's bytes, no more than it had: it may grow."""
    while size > 0 and (piece := os.read(fd, min(size, _CHUNK_BYTES))):
        size -= len(piece)
        yield piece


def _text_check(path: str) -> Callable[[bytes], None]:
    """Return what refuses a file that is not UTF-8, piece by piece: of another encoding no secret would be found."""
    decoder = codecs.getincrementaldecoder("utf-8")()

    def check(piece: bytes) -> None:
        try:
            is_text = b"\0" not in piece and decoder.decode(piece, final=not piece) is not None
        except UnicodeDecodeError:
            is_text = False
        if not is_text:
            raise OSError(errno.EILSEQ, "it cannot be read as text: --binary", path)

    return check


def _masked_document(data: bytes, redactor: Redactor, secrets: Sequence[str]) -> bytes:
    """Return a JSON text with its secrets masked, as JSON: a masked number would be none."""
    masked = redactor.feed(data) + redactor.flush()
    with suppress(NotJson):
        if masked != data:
            decode_json(masked)
        return masked
    with suppress(NotJson):
        masked = redactor.feed(masked_json(decode_json(data), secrets).encode()) + redactor.flush()
    return masked


def _write(out: BinaryIO, manifest: Manifest, spool: BinaryIO) -> None:
    """Write the archive: no time, user or right of a file is in it."""
    text = to_json(manifest).encode()
    spool.seek(0)
    with (
        gzip.GzipFile(filename="", mode="wb", compresslevel=_LEVEL, fileobj=out, mtime=0) as stream,
        tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        tar.addfile(_member(MANIFEST, len(text)), BytesIO(text))
        for name, file in manifest.sizes().items():
            tar.addfile(_member(name, file.bytes), spool)
    out.flush()
    os.fsync(out.fileno())


def _member(name: str, size: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size, member.mode = size, 0o644
    return member


WRITTEN = (RECORD, PLAN, CONTEXT, LOG, STEPS)
"""The names of madlite's own files."""
_TEXT = frozenset((".csv", ".html", ".json", ".jsonl", ".log", ".md", ".toml", ".tsv", ".txt", ".yaml", ".yml"))
_NOT_RESULTS = frozenset(("assets", "data", "dataset", "datasets", "hub", "node_modules", "venv"))
_KEYS = frozenset((".env", ".key", ".p12", ".pem", ".pfx"))  # ends of names, or names
_MOST_ENTRIES, _DEEPEST = 50_000, 100  # of a folder, in which a workload may leave any number
SHOWN = 200  # files that are left out, each by its name


def list_files(home: Folder, record: Record, most_bytes: int) -> Iterator[LeftOut]:
    """Yield the files of a run's open folder in order, `most_bytes` being the limit of one.

    What another run or program has no use for, as a lock, is not named.
    """
    rendered = rendered_files(record)
    for count, (path, facts) in enumerate(_walk(home)):
        if count == _MOST_ENTRIES:
            yield LeftOut(path=path, bytes=0, why=f"more than {_MOST_ENTRIES} files: this one and those after it")
            return
        if path not in OF_ONE_FOLDER:
            is_plain = stat.S_ISREG(facts.st_mode)
            why = (why_no_file(path, rendered) if is_plain else kind_of(facts)) or why_not_a_name(path)
            size = facts.st_size if is_plain else 0
            if not why and size > most_bytes:
                why = "larger than --max-file"
            yield LeftOut(path=path, bytes=size, why=why)


def _walk(home: Folder) -> Iterator[tuple[str, os.stat_result]]:
    """Yield what is in a folder but folders, by name, with what it is; no link is followed."""
    for root, folders, files, fd in os.fwalk(".", dir_fd=home.fd):
        folders.sort()
        for name in sorted((*folders, *files)):
            with suppress(OSError):  # it is gone
                facts = os.stat(name, dir_fd=fd, follow_symlinks=False)
                if not stat.S_ISDIR(facts.st_mode):
                    yield os.path.normpath(f"{root}/{name}"), facts
        if root.count("/") == _DEEPEST:
            folders.clear()


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
