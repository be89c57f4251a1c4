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
import stat
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple

from msgspec.structs import replace

from madlite.assets.cache import existing
from madlite.errors import RuntimeProblem
from madlite.files import NO_SPACE, kind_of, open_regular, read_as_spelled, read_named, spells
from madlite.images.client import Client
from madlite.model import Cause, Image, Say, Value
from madlite.plan.inputs import RUNS
from madlite.store.events import EventLog, RebuildStarted, Started
from madlite.text import size_text

_IGNORE = ".dockerignore"
_LIMIT_BYTES = 16 << 20  # of a Dockerfile, or of what .dockerignore has
_BLOCK_BYTES = 512  # of a tar
_ENTRY_BYTES = 3 * _BLOCK_BYTES  # beside a file's content, at most for a name of usual length
_MOST_NAMES = 3
_SMALL_BYTES = 1 << 20  # of a context: less than what the engine itself writes of a build, and not worth a question


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

    @property
    def packed_bytes(self) -> int:
        """How long the tar is at most."""
        return self.bytes + self.files * _BLOCK_BYTES + len(self.names) * _ENTRY_BYTES + 20 * _BLOCK_BYTES


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
        return read_named(path, _LIMIT_BYTES) if root is None else read_as_spelled(path, root, _LIMIT_BYTES)
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
    return [str(home.relative_to(context) / name) for name in (*_OWN_FILES, *sorted(_results_files(home)))]


def _results_files(home: Path) -> set[str]:
    """Return the results files below a working folder that its event log has, as of `-o`; none that is a pattern."""
    log = EventLog.read(home / RUNS)
    named = (*(one.file for one in log.of(Started)), *(one.file for one in log.of(RebuildStarted)))
    found = {name for name in named if name and name.isprintable()}
    plain = (name for name in found if not name.startswith(("/", "!", "#")) and not {*name} & {*"*?[\\"})
    return {name for name in plain if ".." not in PurePosixPath(name).parts}


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
def packed_context(client: Client, image: Image, say: Say) -> Iterator[Packed]:
    """Hold an image's context packed; `say` gets how large it is.

    Raises:
        RuntimeProblem: it cannot be read, or there is no room for it.
    """
    dockerfile, context = _places(image)
    inside = dockerfile.is_relative_to(context)
    name = str(dockerfile.relative_to(context)) if inside else f".{dockerfile.name}.{secrets.token_hex(8)}"
    patterns: list[str] = []
    try:
        patterns = _patterns(context / _IGNORE)
        content = _content(context, [*_own_patterns(image), *patterns], name)
    except OSError as error:
        raise _unreadable(image, context, error) from error
    _report_context(image, context, content, say)
    _check_room(client, image, context, content)
    added = {} if inside else _beside(name, patterns, dockerfile_text(image))
    file: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closing one on a full disk fails a second time
    try:
        try:
            _pack(context, content, added, file)
            file.seek(0)
        except OSError as error:
            raise (_no_room(image) if error.errno in NO_SPACE else _unreadable(image, context, error)) from error
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
        lines = read_named(ignore, _LIMIT_BYTES).decode("utf-8", "replace").splitlines()
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


def _check_room(client: Client, image: Image, context: Path, content: _Content) -> None:
    """Refuse what the disks cannot hold: the temporary folder, and the engine's own if it is on this machine.

    Raises:
        RuntimeProblem: there is too little room.
    """
    wanted: dict[int, tuple[int, str]] = {}
    of_engine = _engine_folder(client) if content.bytes > _SMALL_BYTES else ""
    for folder, size in ((tempfile.gettempdir(), content.packed_bytes), (of_engine, content.bytes)):
        place = Path(folder)
        if folder and place.is_dir():
            before, first = wanted.get(place.stat().st_dev, (0, folder))
            wanted[place.stat().st_dev] = before + size, first
    for size, folder in wanted.values():
        disk = os.statvfs(existing(Path(folder)))
        free = disk.f_bavail * disk.f_frsize
        if size > free:
            raise RuntimeProblem(
                f"the build context {context} of {image.dockerfile} does not fit: {size_text(size)} are needed in "
                f"{folder}, {size_text(free)} are free",
                f"name what the image does not need in {context / _IGNORE}   or TMPDIR=/another/disk",
                cause=Cause.DISK,
            )


def _engine_folder(client: Client) -> str:
    """Return where the engine keeps what it is sent, "" where it does not report."""
    import docker.errors

    try:
        return str(client.info().get("DockerRootDir") or "")
    except docker.errors.APIError:
        return ""


def _beside(name: str, patterns: list[str], text: str) -> dict[str, bytes]:
    """Return what a context gets with a Dockerfile from elsewhere: that, and what keeps it out of the image.

    The docker library packs it in the same way, but sends its text as a second name, and that is the one podman takes.
    """
    ignored = "\n".join([*(patterns or [_IGNORE]), name])
    return {_IGNORE: ignored.encode("utf-8", "surrogateescape"), name: text.encode("utf-8", "surrogateescape")}


def _pack(context: Path, content: _Content, added: dict[str, bytes], file: IO[bytes]) -> None:
    with tarfile.open(fileobj=file, mode="w") as packed:
        for name in content.names:
            if name not in added:
                _add(packed, context / name, name)
        for name, data in added.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            packed.addfile(info, BytesIO(data))


def _add(packed: tarfile.TarFile, path: Path, name: str) -> None:
    facts = path.lstat()
    if not stat.S_ISREG(facts.st_mode):
        info = _info(name, facts)
        if stat.S_ISLNK(facts.st_mode):
            info.type, info.linkname = tarfile.SYMTYPE, str(path.readlink())
        elif stat.S_ISDIR(facts.st_mode):
            info.type = tarfile.DIRTYPE
        else:  # it was a file when the context was measured
            return
        packed.addfile(info)
        return
    with os.fdopen(open_regular(path), "rb") as file:
        info = packed.gettarinfo(arcname=name, fileobj=file)  # knows the second name of a file that is packed
        info.uname, info.gname, info.mtime = "", "", int(info.mtime)
        packed.addfile(info, file if info.isreg() else None)


def _info(name: str, facts: os.stat_result) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.mode, info.uid, info.gid = stat.S_IMODE(facts.st_mode), facts.st_uid, facts.st_gid
    info.mtime = int(facts.st_mtime)
    return info


def _unreadable(image: Image, context: Path, error: OSError) -> RuntimeProblem:
    what = os.fsdecode(error.filename) if error.filename else f"the build context {context}"
    why = error.strerror or "it was changed while it was packed"
    hint = f"name what the image does not need in {context / _IGNORE}"
    return RuntimeProblem(f"{image.dockerfile} does not build: {what} cannot be read: {why}", hint, cause=Cause.BUILD)


def _no_room(image: Image) -> RuntimeProblem:
    folder = tempfile.gettempdir()
    what = f"{image.dockerfile} does not build: no space left in {folder}, where its build context is packed"
    return RuntimeProblem(what, f"df -h {folder}", cause=Cause.DISK)
