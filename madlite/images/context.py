"""The context of an image build: measured, and packed for the engine's own builder.

It is packed as docker's command line does it: plain files, folders, and links as links, less what .dockerignore names,
and less madlite's own results, which a `COPY .` would take into the image.
Pipes, sockets and devices are left out, and nothing opens them.  What is packed lies in a file without a name, which
no end of madlite leaves behind.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, NamedTuple

from msgspec.structs import replace

from madlite.errors import RuntimeProblem
from madlite.files import NO_SPACE, kind_of, read_as_spelled, read_plain, spells
from madlite.model import Cause, Image, Say, Value
from madlite.plan.inputs import RUNS
from madlite.text import size_text

_IGNORE = ".dockerignore"
_LIMIT_BYTES = 16 << 20  # of a Dockerfile, or of what .dockerignore has
_MOST_NAMES = 3


# what of a working folder is left out as if its .dockerignore began with it: what runs and builds write there
_OWN_FILES = (
    *(RUNS, ".venv", "build_manifest.json", "common_info.json", "perf.csv", "*.live.log"),
    *(f"perf_{kind}.{end}" for kind in ("entry", "super", "entry_super") for end in ("csv", "json")),
)


class Packed(NamedTuple):
    """A context as a tar, and the name of the Dockerfile in it."""

    file: IO[bytes]
    dockerfile: str


class _Content(Value, frozen=True):
    """What of a folder belongs to a context: all names below it, how many are files, and their bytes."""

    names: tuple[str, ...]
    files: int
    bytes: int
    left_out: tuple[str, ...]  # each with what it is


def dockerfile_text(image: Image) -> str:
    """Return the text of an image's Dockerfile; one of its checkout is no link out of it.

    Raises:
        RuntimeProblem: it cannot be read, or is a pipe or the like, or such a link.
    """
    return _dockerfile(image).decode("utf-8", "replace")


def _dockerfile(image: Image) -> bytes:
    path = Path(str(image.dockerfile))
    try:
        root = image.root
        if root is None:
            return read_plain(path, limit_bytes=_LIMIT_BYTES)
        return read_as_spelled(path, root, limit_bytes=_LIMIT_BYTES)
    except OSError as error:
        raise RuntimeProblem(f"{path} cannot be read: {error.strerror}", cause=Cause.BUILD) from error


def report_context_size(image: Image, say: Say) -> None:
    """Say how large a context is that docker's command line sends; what cannot be read it says itself."""
    dockerfile, context = _places(image)
    with suppress(OSError):
        patterns = [*_own_patterns(image), *_patterns(_ignore_file(image))]
        _report_context(image, context, _content(context, patterns, dockerfile.name), say)


def _ignore_file(image: Image) -> Path:
    """Return the .dockerignore that docker's command line takes: that of the Dockerfile goes before the context's."""
    dockerfile, context = _places(image)
    own = dockerfile.with_name(f"{dockerfile.name}{_IGNORE}")
    return own if own.is_file() else context / _IGNORE


def _own_patterns(image: Image) -> list[str]:
    """Return what a .dockerignore would have to name to leave madlite's own files out of a context."""
    context = os.path.realpath(_places(image)[1])
    home = Path(os.path.realpath(image.root or context))
    if not home.is_relative_to(context):
        return []
    return [str(home.relative_to(context) / name) for name in _OWN_FILES]


@contextmanager
def without_own_files(image: Image) -> Iterator[Image]:
    """Yield the image as docker's command line is to build it, without madlite's own files in its context.

    Where there are some, its Dockerfile is a copy with a .dockerignore of its own, the only one that docker then reads.

    Raises:
        RuntimeProblem: Dockerfile or .dockerignore cannot be read, or no copy can be made.
    """
    dockerfile, context = _places(image)
    own = _own_patterns(image)
    if not any(True for pattern in own for _ in context.glob(pattern)):
        yield image
        return
    with ExitStack() as opened:
        try:
            folder = opened.enter_context(tempfile.TemporaryDirectory(prefix="madlite-build-"))
            copy = Path(folder, dockerfile.name)
            copy.write_bytes(_dockerfile(image))
            ignored = "\n".join([*own, *_patterns(_ignore_file(image)), ""])
            copy.with_name(f"{copy.name}{_IGNORE}").write_text(ignored, "utf-8", "surrogateescape")
        except OSError as error:
            raise _unreadable(image, context, error) from error
        yield replace(image, dockerfile=copy, context=context)


@contextmanager
def packed_context(image: Image, say: Say) -> Iterator[Packed]:
    """Hold an image's context packed; `say` gets how large it is.

    Raises:
        RuntimeProblem: it cannot be read, or there is no room for it.
    """
    from docker.utils.build import create_archive

    dockerfile, context = _places(image)
    inside = dockerfile.is_relative_to(context)
    name = str(dockerfile.relative_to(context)) if inside else f".dockerfile.{secrets.token_hex(8)}"
    patterns: list[str] = []
    try:
        patterns = _patterns(context / _IGNORE)
        content = _content(context, [*_own_patterns(image), *patterns], name)
    except OSError as error:
        raise _unreadable(image, context, error) from error
    _report_context(image, context, content, say)
    if content.bytes > shutil.disk_usage(tempfile.gettempdir()).free:
        raise _no_room(image, context)
    added = [] if inside else _beside(name, patterns, dockerfile_text(image))
    file: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closing one on a full disk fails a second time
    try:
        try:
            create_archive(str(context), content.names, file, extra_files=added)
        except OSError as error:
            cause = error.__cause__ if isinstance(error.__cause__, OSError) else error
            full = cause.errno in NO_SPACE
            raise (_no_room(image, context) if full else _unreadable(image, context, cause)) from error
        yield Packed(file, name)
    finally:
        with suppress(OSError):
            file.close()


def _places(image: Image) -> tuple[Path, Path]:
    dockerfile = Path(str(image.dockerfile)).absolute()
    return dockerfile, Path(image.context or dockerfile.parent).absolute()


def _patterns(ignore: Path) -> list[str]:
    """Return the patterns of a .dockerignore as docker's library takes them."""
    try:
        lines = read_plain(ignore, limit_bytes=_LIMIT_BYTES).decode("utf-8", "replace").splitlines()
    except FileNotFoundError:
        return []
    return [line for line in map(str.strip, lines) if line and not line.startswith("#")]


def _content(context: Path, patterns: list[str], dockerfile: str) -> _Content:
    """Return what belongs to a context; a sparse file is as long as it says, for so long it is packed."""
    from docker.utils.build import exclude_paths

    if not context.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR if context.exists() else errno.ENOENT))
    names, files, size, left_out = [], 0, 0, []
    for name in sorted(exclude_paths(str(context), list(patterns), dockerfile=dockerfile)):
        facts = (context / name).lstat()
        if stat.S_IFMT(facts.st_mode) not in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK):
            left_out.append(f"{name}, {kind_of(facts)}")
            continue
        names.append(name)
        if stat.S_ISREG(facts.st_mode):
            files += 1
            size += facts.st_size
    return _Content(names=tuple(names), files=files, bytes=size, left_out=tuple(left_out))


def _report_context(image: Image, context: Path, content: _Content, say: Say) -> None:
    real = Path(os.path.realpath(context))
    outside = image.root is not None and not spells(real, Path(os.path.realpath(image.root)))
    where = f" of {real}, outside of {image.root}" if outside else ""
    say(f"build context: {size_text(content.bytes)} in {content.files:,} file{'s' * (content.files != 1)}{where}")
    if left_out := content.left_out:
        more = f" and {len(left_out) - _MOST_NAMES} more" if len(left_out) > _MOST_NAMES else ""
        say(f"left out of the build context: {'; '.join(left_out[:_MOST_NAMES])}{more}")


def _beside(name: str, patterns: list[str], text: str) -> list[tuple[str, str]]:
    """Return what a context gets with a Dockerfile from elsewhere: that, and what keeps it out of the image.

    The docker library packs it in the same way, but sends its text as a second name, and that is the one podman takes.
    """
    return [(_IGNORE, "\n".join([*(patterns or [_IGNORE]), name])), (name, text)]


def _unreadable(image: Image, context: Path, error: OSError) -> RuntimeProblem:
    what = os.fsdecode(error.filename) if error.filename else f"the build context {context}"
    why = error.strerror or "it was changed while it was packed"
    hint = f"name what the image does not need in {context / _IGNORE}"
    return RuntimeProblem(f"{image.dockerfile} does not build: {what} cannot be read: {why}", hint, cause=Cause.BUILD)


def _no_room(image: Image, context: Path) -> RuntimeProblem:
    folder = tempfile.gettempdir()
    what = f"{image.dockerfile} does not build: no space left in {folder}, where its build context is packed"
    hint = f"name what the image does not need in {context / _IGNORE}   or TMPDIR=/another/disk"
    return RuntimeProblem(what, hint, cause=Cause.DISK)
