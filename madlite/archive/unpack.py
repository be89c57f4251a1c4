"""An archive → files in a folder: plain ones that its manifest names, within limits, and nothing else.

Archives are hostile input: links, devices, absolute paths and `..` are refused, and so is more than the manifest and
the limits allow, before it is written.  The headers are read here and not by tarfile, which takes any, by regular
expressions and recursion: of ustar, and of PAX the two records that a long name and a large file need.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from madlite.archive.manifest import LIMIT_BYTES, MANIFEST, MAX_FILES, Manifest, PackedFile, read_manifest
from madlite.assets.cache import size_text
from madlite.errors import UsageProblem
from madlite.files import Folder, open_given, shown, write_all
from madlite.model import Value

MAX_BYTES = 16 << 30
_CHUNK_BYTES = 1 << 20
_BLOCK_BYTES = 512  # of a tar file
_LONGEST_RECORDS_BYTES = 8 << 10  # of PAX: a path, of 1000 characters at most, and a size
_PADDING_BYTES = 64 << 10  # after the end of an archive
_MOST_DIGITS = 20  # of a size
_KIND = slice(156, 157)  # of a header: what its member is
_PLAIN, _RECORDS = (b"0", b"\0"), b"x"
_KINDS = {
    **dict.fromkeys((b"1", b"2"), "a link"),
    **dict.fromkeys((b"3", b"4", b"6"), "a device, a pipe or the like"),
    **{b"5": "a folder", b"S": "sparse"},
}
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
        tar = _Tar(source, where)
        first = tar.next()
        if first is None or first.name != MANIFEST or first.bytes > LIMIT_BYTES:
            raise UsageProblem(f"{where} is no archive of runs: it does not begin with {MANIFEST}", _HINT)
        manifest = read_manifest(b"".join(tar.content()), where, limits.files)
        _check_size(manifest, into, limits, where)
        tar.limit(manifest)
        mismatches = tuple(_extract(tar, manifest, into))
        tar.finish()
        return Unpacked(manifest=manifest, mismatches=mismatches)


def _extract(tar: _Tar, manifest: Manifest, into: Folder) -> Iterator[Mismatch]:
    """Extract the files that the manifest names, and yield what is not as it has it."""
    left, seen = manifest.sizes(), {MANIFEST}
    while (member := tar.next()) is not None:
        if member.name in seen:
            raise UsageProblem(f"{tar.where}: {member.name[:200]!r} is in it twice", _HINT)
        seen.add(member.name)
        named = left.pop(member.name, None)
        if named is None:
            yield Mismatch(name=member.name, recorded="no such file", found=f"{member.bytes} bytes")
        elif member.bytes > named.bytes:  # as much as it claims is not written
            yield Mismatch(name=member.name, recorded=f"{named.bytes} bytes", found=f"{member.bytes} bytes")
        else:
            yield from _compare(named, member, _write(tar, member.name, into))
    yield from (Mismatch(name=name, recorded=f"{one.bytes} bytes", found="no such file") for name, one in left.items())


def _compare(named: PackedFile, member: _Member, digest: str) -> Iterator[Mismatch]:
    if digest != named.sha256:
        yield Mismatch(name=member.name, recorded=f"sha256 {named.sha256}", found=f"sha256 {digest}")


def _write(tar: _Tar, name: str, into: Folder) -> str:
    """Write a file below the folder and return its SHA-256."""
    digest = hashlib.sha256()
    with into.parent_of(name, make=True) as (folder, last):
        fd = os.open(last, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644, dir_fd=folder.fd)
        try:
            for piece in tar.content():
                digest.update(piece)
                write_all(fd, piece)
        finally:
            os.close(fd)
    return digest.hexdigest()


def _check_size(manifest: Manifest, into: Folder, limits: Limits, where: str) -> None:
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
        yield stream  # type: ignore[misc]  # all that is used of it is read


@contextmanager
def _as_problem(where: str) -> Iterator[None]:
    """Turn what reading a broken archive raises into a sentence."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile, ValueError) as error:
        raise UsageProblem(f"{where} is no whole archive of runs: {error}", _HINT) from None


class _Member(Value, frozen=True):
    """A plain file of a tar file; its owner, mode and times are not looked at."""

    name: str
    bytes: int


class _Tar:
    """An unpacked tar file, read once from its beginning to its end, and no further than its manifest allows."""

    def __init__(self, stream: BinaryIO, where: str) -> None:
        self.where = where
        self._stream = stream
        self._left = 2 * LIMIT_BYTES  # bytes that may still be read: until the manifest is known, it and its headers
        self._content = self._padding = 0  # bytes of the member that were not read yet

    def limit(self, manifest: Manifest) -> None:
        """Allow what the manifest names to be read, with its headers; and some more, so that a difference is named."""
        files = manifest.sizes()
        self._left = sum(one.bytes for one in files.values()) + 8 * _BLOCK_BYTES * (len(files) + 2) + LIMIT_BYTES

    def next(self) -> _Member | None:
        """Return the next member, None at the end; what was not read of the one before is passed over."""
        for _ in self.content():
            pass
        self._exactly(self._padding)
        header, records = self._exactly(_BLOCK_BYTES), {}
        if not any(header):
            return None
        if header[_KIND] == _RECORDS:
            size = _size_in(header)
            if size > _LONGEST_RECORDS_BYTES:
                raise self._strange()
            records = self._records(self._exactly(size + -size % _BLOCK_BYTES)[:size])
            header = self._exactly(_BLOCK_BYTES)
        size = _size_in(header)
        name = records.get(b"path", header[:100].partition(b"\0")[0]).decode()
        if header[_KIND] in _KINDS:
            raise UsageProblem(f"{self.where}: {name[:200]!r} is {_KINDS[header[_KIND]]}, no plain file", _HINT)
        if header[_KIND] not in _PLAIN:
            raise self._strange()
        size = _number(records[b"size"], 10) if b"size" in records else size
        self._content, self._padding = size, -size % _BLOCK_BYTES
        return _Member(name=name, bytes=size)

    def content(self) -> Iterator[bytes]:
        """Yield what is left of the member's content."""
        while self._content:
            piece = self._read(min(self._content, _CHUNK_BYTES))
            self._content -= len(piece)
            yield piece

    def finish(self) -> None:
        """Read to the end, where the checksum of all of it is."""
        if len(self._stream.read(_PADDING_BYTES + 1)) > _PADDING_BYTES:
            raise UsageProblem(f"{self.where} goes on after its last file", _HINT)

    def _records(self, data: bytes) -> dict[bytes, bytes]:
        """Return the records of a PAX header: `<length> <key>=<value>`, each with a line end."""
        found = {}
        while data:
            digits = data.partition(b" ")[0]
            length = _number(digits, 10)
            record, data = data[:length], data[length:]
            key, _, value = record[len(digits) + 1 : -1].partition(b"=")
            if key not in (b"path", b"size") or record[-1:] != b"\n":
                raise self._strange()
            found[key] = value
        return found

    def _exactly(self, size: int) -> bytes:
        pieces = []
        while size:
            pieces.append(self._read(size))
            size -= len(pieces[-1])
        return b"".join(pieces)

    def _read(self, size: int) -> bytes:
        """Return up to so many bytes, one at least."""
        if size > self._left:
            raise UsageProblem(f"{self.where} unpacks to more than its {MANIFEST} names", _HINT)
        if not (piece := self._stream.read(size)):
            raise EOFError("it ends early")
        self._left -= len(piece)
        return piece

    def _strange(self) -> UsageProblem:
        return UsageProblem(f"{self.where} has a header that none of an archive of runs has", _HINT)


def _size_in(header: bytes) -> int:
    """Return the size that a header has, once its checksum was found to be right."""
    if _number(header[148:156], 8) != sum(header[:148]) + sum(b" " * 8) + sum(header[156:]):
        raise ValueError("a header has a wrong checksum")
    return _number(header[124:136], 8)


def _number(text: bytes, base: int) -> int:
    digits = text.strip(b" \0")
    if not digits.isdigit() or len(digits) > _MOST_DIGITS:
        raise ValueError("a header has no number in the place of one")
    return int(digits, base)
