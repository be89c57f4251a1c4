"""Files that users, cards and workloads name: opened without waiting, plain ones alone, and none without a limit.

Three sorts, by who named the file.  What the user named on the command line may be a pipe too (`<(…)`, `/dev/stdin`).
What is found by its name in a folder is a plain file, links followed.  What a card, its repository or a workload names
is a plain file inside of a folder, wherever links lead; in the folder of a run no link is followed at all.

Nothing is opened before it is known to be such a file: opening a device or a pipe is an act of its own.
"""

from __future__ import annotations

import errno
import logging
import os
import select
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from madlite.safe_files import Folder, folder_of, kind_of, read_limited, size_words, write_all

LIMIT_BYTES = 64 << 20
"""More than this is no settings file, and no table of results."""
LONGEST_LINE = 1 << 20
_COPY_LIMIT_BYTES = 1 << 30
_LINES_LIMIT_BYTES = 1 << 30
_PATH = os.O_PATH | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_WRITER_S = 5.0  # until somebody writes into a pipe that has a name
_CHUNK_BYTES = 1 << 20
_log = logging.getLogger(__name__)


def open_named(path: Path) -> int:
    """Return a descriptor of a plain file, links followed.

    Raises:
        OSError: it is not there or cannot be read, or is a pipe, a device or the like.
    """
    return _open(path, _PATH, lambda held: None)


def read_named(path: Path, limit_bytes: int = LIMIT_BYTES) -> bytes:
    """Return what a plain file holds, links followed.

    Raises:
        OSError: as `open_named`, or it is larger than the limit.
    """
    return _read(open_named(path), path, limit_bytes)


def read_end(path: Path, most_bytes: int) -> bytes:
    """Return the last bytes of a plain file.

    Raises:
        OSError: as `open_regular`, or it cannot be read.
    """
    fd = open_regular(path)
    try:
        return os.pread(fd, most_bytes, max(0, os.fstat(fd).st_size - most_bytes))
    finally:
        os.close(fd)


def open_regular(path: Path) -> int:
    """Return a descriptor of a plain file that is no link.

    Raises:
        OSError: it is not there or cannot be read, or is a link, a pipe or the like.
    """
    return _open(path, _PATH | os.O_NOFOLLOW, lambda held: None)


def read_regular(path: Path, limit_bytes: int) -> bytes:
    """Return what a plain file holds that is no link.

    Raises:
        OSError: as `open_regular`, or it is larger than the limit.
    """
    return _read(open_regular(path), path, limit_bytes)


def open_inside(path: Path, *roots: Path) -> int:
    """Return a descriptor of a plain file that lies below one of `roots`, links followed; of the one that was opened.

    Raises:
        OSError: it is not there or cannot be read, is a pipe, a device or the like, or lies elsewhere.
    """
    return _open(path, _PATH, lambda held: _check_place(held, path, roots))


def read_inside(path: Path, *roots: Path, limit_bytes: int = LIMIT_BYTES) -> bytes:
    """Return what a plain file below one of the folders `roots` holds, links followed as long as they stay inside.

    Raises:
        OSError: it is not there or cannot be read, is a pipe, a device or the like, lies elsewhere, or is larger than
            the limit.
    """
    return _read(open_inside(path, *roots), path, limit_bytes)


def read_as_spelled(path: Path, root: Path, limit_bytes: int = LIMIT_BYTES) -> bytes:
    """Return what a plain file holds that a card names: one elsewhere by its path, not by a link below `root`.

    Raises:
        OSError: it cannot be read as `read_inside` has it, or as `read_named` where its path spells another place.
    """
    return read_inside(path, root, limit_bytes=limit_bytes) if spells(path, root) else read_named(path, limit_bytes)


def spells(path: Path, root: Path) -> bool:
    """Return whether a path is one below a folder as it is written, whatever links there are."""
    return Path(os.path.abspath(path)).is_relative_to(os.path.abspath(root))  # noqa: PTH100 - links stay as they are


def copy_inside(path: Path, root: Path, to: Path, limit_bytes: int = _COPY_LIMIT_BYTES) -> None:
    """Copy a plain file below `root` so that a reader sees the old one or the new one.

    Raises:
        OSError: as `read_inside`, or it cannot be written; nothing half made is left.
    """
    fd = open_inside(path, root)
    try:
        copy_to(fd, path, to, limit_bytes)
    finally:
        os.close(fd)


def copy_to(fd: int, path: Path, to: Path, limit_bytes: int) -> None:
    """Copy what an open file holds, its rights and its time, so that a reader of `to` sees the old file or the new one.

    Raises:
        OSError: it is larger than the limit, or cannot be read or written; nothing half made is left.
    """
    with folder_of(to) as (folder, name), folder.atomic(name) as beside:
        write_copy(fd, path, folder, beside, limit_bytes)


def write_copy(fd: int, path: Path, folder: Folder, name: str, limit_bytes: int) -> None:
    """Write what an open file holds into a new file of a folder, with its rights and its time.

    `path` is the open file's, for messages.

    Raises:
        OSError: it is larger than the limit, or cannot be read or written; nothing half made is left.
    """
    facts = os.fstat(fd)
    folder.remove(name)
    new = folder.create(name)
    try:
        try:
            for piece in _pieces(fd, limit_bytes, path):
                write_all(new, piece)
            os.fchmod(new, stat.S_IMODE(facts.st_mode) & 0o777)
            os.utime(new, ns=(facts.st_atime_ns, facts.st_mtime_ns))
        finally:
            os.close(new)
    except BaseException:
        folder.remove(name)
        raise


def read_output(path: Path, outputs: Path, limit_bytes: int = LIMIT_BYTES) -> bytes:
    """Return what a file holds that a workload left below the folder `outputs`.

    Empty, with a warning that states why, for one that is no plain file, that a link leads out to, that is larger than
    the limit or cannot be read.
    """
    try:
        return read_inside(path, outputs, limit_bytes=limit_bytes)
    except (OSError, ValueError) as error:
        _tell_unread(path, outputs, error)
        return b""


def output_lines(path: Path, outputs: Path, limit_bytes: int = _LINES_LIMIT_BYTES) -> Iterator[bytes]:
    """Yield the lines of a file that a workload left below the folder `outputs`, without their ends.

    A line of more than 1 MiB comes in pieces.  Ends, with a warning that states why, at a file that is
    none for `read_output`.
    """
    try:
        fd = open_inside(path, outputs)
        try:
            rest = b""
            for piece in _pieces(fd, limit_bytes, path):
                *lines, rest = (rest + piece).split(b"\n")
                yield from lines
                if len(rest) >= LONGEST_LINE:
                    yield rest
                    rest = b""
            if rest:
                yield rest
        finally:
            os.close(fd)
    except (OSError, ValueError) as error:
        _tell_unread(path, outputs, error)


def open_given(path: Path) -> int:
    """Return a descriptor of what the user named on the command line: a plain file, or a pipe or terminal.

    Of a pipe that has a name in a folder, somebody has to write into it within seconds.

    Raises:
        OSError: it is not there, cannot be read, is a device or a folder, or nobody writes into it.
    """
    held = os.open(path, _PATH)
    try:
        facts = os.fstat(held)
        if stat.S_ISREG(facts.st_mode):
            return _reopen(held, path)
        if not (stat.S_ISFIFO(facts.st_mode) or stat.S_ISCHR(facts.st_mode)):
            raise _no_plain_file(facts, path)
        fd = _reopen(held, path)
    finally:
        os.close(held)
    try:
        if stat.S_ISFIFO(facts.st_mode):
            _await_writer(fd, path)
        elif not (os.isatty(fd) or _is_null(facts)):
            raise _no_plain_file(facts, path)
        os.set_blocking(fd, True)
    except BaseException:
        os.close(fd)
        raise
    return fd


def read_given(path: Path, limit_bytes: int = LIMIT_BYTES) -> bytes:
    """Return what the user named on the command line holds; a pipe is read to its end.

    Raises:
        OSError: as `open_given`, or it is larger than the limit.
    """
    return _read(open_given(path), path, limit_bytes)


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a plain file in hexadecimal digits; "" of one that cannot be read."""
    import hashlib

    try:
        return hashlib.sha256(read_named(path)).hexdigest()
    except (OSError, ValueError):
        return ""


def way_out(path: Path, *roots: Path) -> str:
    """Return, as the end of a sentence, how a path that is there leads out of the folders `roots`; "" for inside.

    Raises:
        OSError: it cannot be resolved; links go in a circle, say.
    """
    return _way_out(path, Path(os.path.realpath(path, strict=True)), roots)


def _open(path: Path, flags: int, check: Callable[[int], None]) -> int:
    held = os.open(path, flags)
    try:
        facts = os.fstat(held)
        if not (stat.S_ISREG(facts.st_mode) or _is_null(facts)):
            raise _no_plain_file(facts, path)
        check(held)
        return _reopen(held, path)
    finally:
        os.close(held)


def _reopen(held: int, path: Path) -> int:
    """Open for reading what is held, whatever its path names by now."""
    try:
        return os.open(f"/proc/self/fd/{held}", _READ)
    except FileNotFoundError:  # no /proc
        fd = os.open(path, _READ)
        if os.path.samestat(os.fstat(fd), os.fstat(held)):
            return fd
        os.close(fd)
        raise OSError(errno.ESTALE, "it was replaced meanwhile", str(path)) from None
    except OSError as error:
        raise OSError(error.errno, os.strerror(error.errno or 0), str(path)) from None


def _read(fd: int, path: Path, limit_bytes: int) -> bytes:
    try:
        return read_limited(fd, limit_bytes, str(path))
    finally:
        os.close(fd)


def _pieces(fd: int, limit_bytes: int, path: Path) -> Iterator[bytes]:
    """Yield what a descriptor holds; no more than the limit of a file that grows."""
    left = limit_bytes - os.fstat(fd).st_size
    if left >= 0:
        left = limit_bytes
        while left >= 0 and (piece := os.read(fd, _CHUNK_BYTES)):
            left -= len(piece)
            if left >= 0:
                yield piece
    if left < 0:
        raise OSError(errno.EFBIG, f"it is larger than {size_words(limit_bytes)}", str(path))


def _check_place(held: int, path: Path, roots: tuple[Path, ...]) -> None:
    """Check that a file that is held lies below one of `roots`.

    Raises:
        OSError: it does not; the text names the link that leads out, and where to.
    """
    if why := _way_out(path, _place(held, path), roots):
        raise OSError(errno.EXDEV, why, str(path))


def _way_out(path: Path, place: Path, roots: tuple[Path, ...]) -> str:
    real = tuple(Path(os.path.realpath(root)) for root in roots)
    if any(place.is_relative_to(root) for root in real):
        return ""
    link = _link_in(path, real)
    if link is None:
        return f"it lies outside of {roots[0]}"
    what = "it is a link" if link == path else f"the link {link} leads"
    return f"{what} to {place}, outside of {roots[0]}"


def _link_in(path: Path, roots: tuple[Path, ...]) -> Path | None:
    """Return the first link of a path that leads from inside of the folders out of them."""
    for one in (*reversed(path.parents), path):
        with suppress(OSError):
            inside = any(Path(os.path.realpath(one.parent)).is_relative_to(root) for root in roots)
            if inside and one.is_symlink():
                target = Path(os.path.realpath(one))
                if not any(target.is_relative_to(root) for root in roots):
                    return one
    return None


def _place(fd: int, path: Path) -> Path:
    """Return where an open file lies, whatever its path names by now."""
    try:
        return Path(f"/proc/self/fd/{fd}").readlink()
    except OSError:  # no /proc
        return Path(os.path.realpath(path))


def _await_writer(fd: int, path: Path) -> None:
    """Wait until a pipe has something to read, or its end; of one without a name the writer is there already."""
    has_name = not str(_place(fd, path)).startswith("pipe:")
    waiting = select.poll()
    waiting.register(fd, select.POLLIN)
    if not waiting.poll(_WRITER_S * 1000 if has_name else None):
        raise OSError(errno.ETIMEDOUT, f"it is a pipe, and nothing was written to it for {_WRITER_S:.0f} s", str(path))


def _is_null(facts: os.stat_result) -> bool:
    """Return whether it is /dev/null, which is as good as an empty file."""
    return stat.S_ISCHR(facts.st_mode) and facts.st_rdev == os.makedev(1, 3)


def _no_plain_file(facts: os.stat_result, path: Path) -> OSError:
    if stat.S_ISDIR(facts.st_mode):
        return IsADirectoryError(errno.EISDIR, "it is a folder", str(path))
    return OSError(errno.EINVAL, f"it is {kind_of(facts)}, no plain file", str(path))


def _tell_unread(path: Path, outputs: Path, error: Exception) -> None:
    if isinstance(error, FileNotFoundError):
        return
    name = path.relative_to(outputs) if path.is_relative_to(outputs) else path
    why = error.strerror if isinstance(error, OSError) else str(error)
    _log.warning("%s, which the run left, is not read: %s", name, why)
