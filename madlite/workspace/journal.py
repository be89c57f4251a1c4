"""What madlite made and wrote in a working folder, noted where no container can write: `.journal.jsonl` of its runs.

Lines are JSON, in their order: `run` with the inode of its folder once that was made, and with the hash of its record
before that is written; `file` with what was written to a results file.  What later looks like madlite's and is not in
here was made by something else.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path

import msgspec

from madlite.model import Value
from madlite.safe_files import Folder

JOURNAL, RECORD = ".journal.jsonl", "record.json"
_LARGEST_RECORD = 256 << 20


class Stamp(Value, frozen=True):
    """By what a file that nobody touched is known again: any write changes the time of its last change."""

    inode: int
    size: int
    changed_ns: int

    @classmethod
    def of(cls, facts: os.stat_result) -> Stamp:
        """Return a file's stamp."""
        return cls(inode=facts.st_ino, size=facts.st_size, changed_ns=facts.st_ctime_ns)


class Entry(Value, frozen=True, omit_defaults=True):
    """One line.

    Of a run: `inode` and `uid` of its folder, or the SHA-256 of its `record`, with its `size` once it was written, or
    that of its `result` before it is written.  Of
    a results `file`: the SHA-256 of the bytes that stand from `start` on, `size` of them, before they are written; then
    its `stamp`.  From `start` 0 on it is all of the file, `rebuilt` where it was made from the records.  `changed` says
    in words what something else did to it since the entry before; `known`, that the user has acknowledged all of that.
    """

    at: str
    run: str = ""
    inode: int = 0
    uid: int = -1
    record: str = ""
    result: str = ""
    file: str = ""
    start: int = 0
    size: int = -1
    sha256: str = ""
    stamp: Stamp | None = None
    changed: str = ""
    rebuilt: bool = False
    known: bool = False


def add(runs: Folder, entry: Entry) -> None:
    """Add a line; a new journal begins with the records that are there already, of an older madlite or copied.

    Raises:
        OSError: it cannot be written.
    """
    fd = runs.open_file(JOURNAL, os.O_RDWR | os.O_APPEND)
    try:
        with suppress(OSError):  # machines that share the folder append at once, and NFS alone loses a line then
            fcntl.flock(fd, fcntl.LOCK_EX)
        size = os.fstat(fd).st_size
        torn = bool(size) and os.pread(fd, 1, size - 1) != b"\n"  # by a kill, or a full disk
        lines = [entry] if size else [*_found(runs), entry]
        data = b"\n" * torn + b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
        if os.write(fd, data) < len(data):
            raise OSError(28, os.strerror(28), JOURNAL)
    finally:
        os.close(fd)


def read(runs: Path, tail_bytes: int = 0) -> tuple[Entry, ...]:
    """Return the lines of the journal in a folder of runs, of its last `tail_bytes` if not 0; none without one."""
    try:
        with Folder.open(runs) as folder:
            fd = folder.open_file(JOURNAL, os.O_RDONLY, make=False)
    except OSError:
        return ()
    with os.fdopen(fd, "rb") as file:
        begin = max(0, os.fstat(fd).st_size - tail_bytes) if tail_bytes else 0
        file.seek(begin)
        data = file.read()
    return tuple(_entries(data.splitlines()[1 if begin else 0 :]))


def now() -> str:
    """Return the time as lines have it, UTC."""
    return datetime.now(timezone.utc).isoformat(timespec="microseconds")


def made(home: Folder, run_id: str) -> Entry:
    """Return the line of a run's folder that was just made."""
    facts = os.fstat(home.fd)
    return Entry(at=now(), run=run_id, inode=facts.st_ino, uid=facts.st_uid)


def recorded(run_id: str, record: bytes, *, written: bool = False) -> Entry:
    """Return the line of a run's record that is about to be written, or was."""
    return Entry(at=now(), run=run_id, record=hashlib.sha256(record).hexdigest(), size=len(record) if written else -1)


def with_result(run_id: str, result: bytes) -> Entry:
    """Return the line of a run's result file that is about to be written."""
    return Entry(at=now(), run=run_id, result=hashlib.sha256(result).hexdigest())


def own_folders(runs: Path, entries: Iterable[Entry] | None = None) -> frozenset[str]:
    """Return the names of the folders in a folder of runs that madlite made: of the noted inode and owner."""
    own = set()
    for entry in read(runs) if entries is None else entries:
        if entry.run and entry.inode and "/" not in entry.run:
            with suppress(OSError):
                facts = (runs / entry.run).lstat()
                if (facts.st_ino, facts.st_uid) == (entry.inode, entry.uid):
                    own.add(entry.run)
    return frozenset(own)


def _found(runs: Folder) -> Iterator[Entry]:
    for name in sorted(os.listdir(runs.fd)):  # noqa: PTH208 - of the open folder
        with suppress(OSError):
            yield recorded(name, runs.read(f"{name}/{RECORD}", _LARGEST_RECORD))


def _entries(lines: Iterable[bytes]) -> Iterator[Entry]:
    decode = msgspec.json.Decoder(Entry).decode
    for line in lines:
        with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            yield decode(line)
