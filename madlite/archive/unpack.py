"""An archive → files in a folder: plain ones that its manifest names, within limits, and nothing else.

Archives are hostile input: links, devices, absolute paths and `..` are refused, and so is more than the manifest and
the limits allow, before it is written.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import shutil
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, BinaryIO

from madlite.archive.manifest import LIMIT_BYTES, MANIFEST, Manifest, PackedFile, read_manifest
from madlite.assets.room import size_text
from madlite.errors import UsageProblem
from madlite.files import shown
from madlite.model import Value
from madlite.safe_files import Folder, write_all
from madlite.safe_read import open_given

MAX_BYTES = 16 << 30
MAX_FILES = 200_000
_CHUNK_BYTES = 1 << 20
_HINT = "madlite archive writes archives of runs; nothing was taken in"


class Limits(Value, frozen=True):
    """What an archive may have, unpacked: bytes and files."""

    bytes: int = MAX_BYTES
    files: int = MAX_FILES


class Mismatch(Value, frozen=True):
    """A file that is not what the manifest names: what is recorded there, and what was found."""

    name: str
    recorded: str
    found: str


class Unpacked(Value, frozen=True):
    """What was extracted, and what of it is not as the manifest has it."""

    manifest: Manifest
    mismatches: tuple[Mismatch, ...] = ()


def unpack(file: Path, into: Folder, limits: Limits) -> Unpacked:
    """Extract an archive into an empty open folder, each run below its id.

    Raises:
        UsageProblem: it cannot be read to its end, is no archive of runs, or has what none has.
        OSError: a file cannot be written.
    """
    where = shown(file)
    with _opened(file) as source, _as_problem(where):
        stream = _Bounded(source, limits, where)
        tar = tarfile.open(fileobj=stream, mode="r:")  # noqa: SIM115 - it owns nothing
        members = _members(tar, limits, where)
        first = next(members, None)
        if first is None or first.name != MANIFEST or first.size > LIMIT_BYTES:
            raise UsageProblem(f"{where} is no archive of runs: it does not begin with {MANIFEST}", _HINT)
        manifest = read_manifest(_content(tar, first).read(), where)
        _check_room(manifest, into, limits, where)
        mismatches = tuple(_extract(tar, members, manifest, into))
        while stream.read(_CHUNK_BYTES):  # to its end, where the checksum of all of it is
            pass
        return Unpacked(manifest=manifest, mismatches=mismatches)


def _extract(
    tar: tarfile.TarFile, members: Iterator[tarfile.TarInfo], manifest: Manifest, into: Folder
) -> Iterator[Mismatch]:
    """Extract the files that the manifest names, and yield what is not as it has it."""
    left = manifest.sizes()
    for member in members:
        named = left.pop(member.name, None)
        if named is None:
            yield Mismatch(name=member.name, recorded="no such file", found=f"{member.size} bytes")
        elif member.size > named.bytes:  # as much as it claims is not written
            yield Mismatch(name=member.name, recorded=f"{named.bytes} bytes", found=f"{member.size} bytes")
        else:
            yield from _compare(named, member, _write(_content(tar, member), member.name, into))
    yield from (Mismatch(name=name, recorded=f"{one.bytes} bytes", found="no such file") for name, one in left.items())


def _compare(named: PackedFile, member: tarfile.TarInfo, digest: str) -> Iterator[Mismatch]:
    if digest != named.sha256:
        yield Mismatch(name=member.name, recorded=f"sha256 {named.sha256}", found=f"sha256 {digest}")


def _write(content: IO[bytes], name: str, into: Folder) -> str:
    """Write a file below the folder and return its SHA-256."""
    digest = hashlib.sha256()
    with into.parent_of(name, make=True) as (folder, last):
        fd = os.open(last, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644, dir_fd=folder.fd)
        try:
            while piece := content.read(_CHUNK_BYTES):
                digest.update(piece)
                write_all(fd, piece)
        finally:
            os.close(fd)
    return digest.hexdigest()


def _members(tar: tarfile.TarFile, limits: Limits, where: str) -> Iterator[tarfile.TarInfo]:
    """Yield the members, each once and plain; none of their attributes but name and size is used."""
    seen: set[str] = set()
    while (member := tar.next()) is not None:
        if not member.isreg() or member.issparse():
            raise UsageProblem(f"{where}: {member.name[:200]!r} is {_kind(member)}, no plain file", _HINT)
        if member.name in seen:
            raise UsageProblem(f"{where}: {member.name[:200]!r} is in it twice", _HINT)
        seen.add(member.name)
        if len(seen) > limits.files + 1:
            raise UsageProblem(f"{where} has more than {limits.files} files", "pack fewer runs into one archive")
        yield member


def _kind(member: tarfile.TarInfo) -> str:
    if member.issym() or member.islnk():
        return "a link"
    return "a folder" if member.isdir() else "sparse" if member.issparse() else "a device, a pipe or the like"


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo) -> IO[bytes]:
    content = tar.extractfile(member)
    if content is None:  # a plain file has one
        raise tarfile.ReadError(f"{member.name} has no content")
    return content


def _check_room(manifest: Manifest, into: Folder, limits: Limits, where: str) -> None:
    """Refuse an archive that is too large by what its manifest says, before anything is written."""
    size = sum(run.bytes for run in manifest.runs)
    if size > limits.bytes:
        raise UsageProblem(f"{where} unpacks to {size_text(size)}, above {size_text(limits.bytes)}", _larger(size))
    if size > (free := shutil.disk_usage(into.path).free):
        what = f"{where} unpacks to {size_text(size)}, and {into.path} has room for {size_text(free)}"
        raise UsageProblem(what, "madlite prune makes room")


def _larger(size: int) -> str:
    return f"--max-size {(size >> 30) + 1}G where you trust who packed it"


@contextmanager
def _opened(file: Path) -> Iterator[BinaryIO]:
    try:
        raw = os.fdopen(open_given(file), "rb")
    except (OSError, ValueError) as error:
        why = (error.strerror if isinstance(error, OSError) else "") or str(error)
        raise UsageProblem(f"{shown(file)} cannot be read: {why}", "name a file that madlite archive wrote") from None
    with raw, gzip.GzipFile(fileobj=raw) as stream:
        yield stream  # type: ignore[misc]  # all that is used of it is read, seek and tell


@contextmanager
def _as_problem(where: str) -> Iterator[None]:
    """Turn what reading a broken archive raises into a sentence."""
    try:
        yield
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, ValueError, OverflowError) as error:
        raise UsageProblem(f"{where} is no whole archive of runs: {error}", _HINT) from None


class _Bounded(io.RawIOBase):
    """An unpacked stream that gives no more than the limit in all, and no more at once than any header needs.

    tarfile reads the size that a header names, of a file's long name say, into memory.
    """

    def __init__(self, stream: BinaryIO, limits: Limits, where: str) -> None:
        super().__init__()
        self._stream, self._where = stream, where
        self._most = limits.bytes + LIMIT_BYTES + 2048 * (limits.files + 2)  # with the headers

    def readable(self) -> bool:
        """Return that it can be read."""
        return True

    def seekable(self) -> bool:
        """Return that it can be sought."""
        return True

    def read(self, size: int = -1) -> bytes:
        """Return up to `size` bytes."""
        if not 0 <= size <= LIMIT_BYTES:
            raise UsageProblem(f"{self._where} has a header that none of an archive of runs has", _HINT)
        self._check(self._stream.tell() + size)
        return self._stream.read(size)

    def tell(self) -> int:
        """Return where it is read from."""
        return self._stream.tell()

    def seek(self, offset: int, whence: int = 0) -> int:
        """Go to a place from the beginning."""
        self._check(offset)
        return self._stream.seek(offset, whence)

    def _check(self, place: int) -> None:
        if place > self._most:
            raise UsageProblem(f"{self._where} unpacks to more than {size_text(self._most)}", _HINT)
