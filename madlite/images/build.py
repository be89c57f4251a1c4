"""Build an image by the engine's own builder."""

from __future__ import annotations

import errno
import os
import re
import secrets
import shlex
import shutil
import signal
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO, NamedTuple

from msgspec.structs import replace

from madlite.cancellation import check, when_stopped
from madlite.errors import RuntimeProblem
from madlite.files import NO_SPACE, kind_of, read_as_spelled, read_plain, spells
from madlite.images.client import Client, closing_answers, error_text, pull_problem
from madlite.model import Cause, Image, Say, Secret, Value
from madlite.plan.inputs import RUNS
from madlite.process import kill_group, start
from madlite.secrets import reveal
from madlite.text import size_text

# The context of an image build: measured, and packed for the engine's own builder.
#
# It is packed as docker's command line does it: plain files, folders, and links as links, less what .dockerignore
# names, and less madlite's own results, which a `COPY .` would take into the image. Pipes, sockets and devices are left
# out, and nothing opens them.  What is packed lies in a file without a name, which no end of madlite leaves behind.


_IGNORE = ".dockerignore"
_LIMIT_BYTES = 16 << 20  # of a Dockerfile, or of what .dockerignore has
_MOST_NAMES = 3


# what of a working folder is left out as if its .dockerignore began with it: what runs and builds write there
_OWN_FILES = (
    *(RUNS, ".venv", "build_manifest.json", "common_info.json", "perf.csv", "*.live.log"),
    *("perf_entry.csv", "perf_entry.json", "perf_super.csv", "perf_super.json"),
    *("perf_entry_super.csv", "perf_entry_super.json"),
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
        return read_as_spelled(path, image.root, limit_bytes=_LIMIT_BYTES)
    except OSError as error:
        raise RuntimeProblem(f"{path} cannot be read: {error.strerror}", cause=Cause.BUILD) from error


def _ignore_file(image: Image) -> Path:
    """Return the .dockerignore as docker takes it: that of the Dockerfile goes before the context's."""
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
def _with_own_ignore_file(image: Image, say: Say) -> Iterator[Image]:
    """Yield an image whose Dockerfile is a copy beside a .dockerignore, which leaves madlite's own files out as well.

    BuildKit itself fetches of the context what the Dockerfile needs, whatever else there cannot be read; `say` gets
    how large it is if that is known.

    Raises:
        RuntimeProblem: Dockerfile or .dockerignore cannot be read, or no copy can be made.
    """
    dockerfile, context = _places(image)
    patterns = _patterns(image)
    with suppress(OSError):
        _report_context(image, context, _content(image, patterns, dockerfile.name), say)
    text = _dockerfile(image)
    with ExitStack() as opened:
        try:
            folder = opened.enter_context(tempfile.TemporaryDirectory(prefix="madlite-build-"))
            copy = Path(folder, dockerfile.name)
            copy.write_bytes(text)
            ignored = "\n".join([*_own_patterns(image), *patterns, ""])
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
    patterns = _patterns(image)
    try:
        content = _content(image, patterns, name)
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


def _patterns(image: Image) -> list[str]:
    """Return the patterns of an image's .dockerignore as docker's library takes them.

    Raises:
        RuntimeProblem: it cannot be read.
    """
    try:
        lines = read_plain(_ignore_file(image), limit_bytes=_LIMIT_BYTES).decode("utf-8", "replace").splitlines()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise _unreadable(image, _places(image)[1], error) from error
    return [line for line in map(str.strip, lines) if line and not line.startswith("#")]


def _content(image: Image, patterns: list[str], dockerfile: str) -> _Content:
    """Return what belongs to an image's context; a sparse file is as long as it says, for so long it is packed.

    Raises:
        OSError: it is no folder, or something in it cannot be read.
    """
    from docker.utils.build import exclude_paths

    context = _places(image)[1]
    if not context.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR if context.exists() else errno.ENOENT))
    names, files, size, left_out = [], 0, 0, []
    for name in sorted(exclude_paths(str(context), [*_own_patterns(image), *patterns], dockerfile=dockerfile)):
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


# Build an image whose Dockerfile only BuildKit understands, by docker's command line.

# https://docs.docker.com/reference/dockerfile: what the engine's own builder refuses
_BUILDKIT = re.compile(
    r"^\s*(?:#\s*syntax\s*=|(?:RUN|COPY|ADD)\s+--(?:mount|network|security|link|parents|exclude|checksum|keep-git-dir)\b"
    r"|(?:RUN|COPY|ADD)\b[^#]*(?<!<)<<-?[\"']?[a-z_]\w*)",
    re.IGNORECASE,
)
# the last one of a docker before 23 without buildx, which has a BuildKit of its own
_NO_BUILDX = re.compile(
    r"buildx component is missing|unknown flag: --(?:progress|build-context)|unknown command: docker buildx"
)
_NO_BASE = re.compile(r"failed to resolve source metadata|failed to do request|pull access denied")
_WITHOUT = "docker's buildx plugin is not installed"


def needs_buildkit(image: Image) -> str:
    """Return the line of an image's Dockerfile that needs BuildKit, or ""; one that uses a named context does.

    Raises:
        RuntimeProblem: it cannot be read.
    """
    lines = dockerfile_text(image).splitlines()
    found = [line.strip() for line in lines if _BUILDKIT.match(line) or _names_context(line, image)]
    return next(iter(found), "")


def _names_context(line: str, image: Image) -> bool:
    names = "|".join(map(re.escape, image.contexts))
    named = rf"\s*(?:FROM\s+|.*--(?:from|mount)=(?:\S*from=)?)(?:{names})(?:[\s,]|$)"
    return bool(names and re.match(named, line, re.IGNORECASE))


def build_with_buildkit(image: Image, environ: Mapping[str, str], say: Say) -> str:
    """Build the image by `docker build`; report whether its base could not be refreshed.

    A secret argument's value goes through the environment, never the argv.

    Raises:
        RuntimeProblem: docker's command line or its BuildKit part is missing, or a step failed.
    """
    secrets = {name: value for name, value in image.build_args.items() if isinstance(value, Secret)}
    env = {**environ, **reveal(secrets), "DOCKER_BUILDKIT": "1", "BUILDKIT_PROGRESS": "plain"}
    with _with_own_ignore_file(image, say) as sent:

        def attempt(pull: bool) -> tuple[RuntimeProblem | None, bool]:
            problem = _build(image, build_command(sent, pull=pull), env, say)
            return problem, problem is not None and _NO_BASE.search(problem.message) is not None

        return _with_base(attempt, say)


def _with_base(attempt: Callable[[bool], tuple[RuntimeProblem | None, bool]], say: Say) -> str:
    """Build with a fresh base, or with the local one where it cannot be pulled; return a note if so.

    `attempt` returns the problem of a build that pulls or not, and whether it is the base's.

    Raises:
        RuntimeProblem: the image does not build.
    """
    problem, of_base = attempt(True)
    if problem is None:
        return ""
    if not of_base:
        raise problem
    stale = problem.message.splitlines()[0]
    say(f"{stale}; trying the one that is here")
    again, of_base = attempt(False)
    if again is None:
        return f"the base image was not refreshed: {stale}"
    raise problem if of_base else again


def build_command(image: Image, *, pull: bool = True) -> list[str]:
    """Return the command that builds an image, in madengine's order; a secret argument is named without its value."""
    dockerfile = Path(str(image.dockerfile)).absolute()
    contexts = [f"--build-context={name}={path}" for name, path in image.contexts.items()]
    arguments = [
        f"--build-arg={name}" if isinstance(value, Secret) else f"--build-arg={name}={value}"
        for name, value in image.build_args.items()
    ]
    return [
        *("docker", "build", *(["--no-cache"] if image.no_cache else []), "--network=host", *contexts),
        *("-t", image.ref, *(["--pull"] if pull else []), "-f", str(dockerfile), *arguments),
        str(image.context or dockerfile.parent),
    ]


def build_command_text(image: Image, workspace: Path) -> str:
    """Return the command that builds an image, paths from the working folder on."""
    return shlex.join(word.replace(f"{workspace}/", "") for word in build_command(image))


def _build(image: Image, command: list[str], env: Mapping[str, str], say: Say) -> RuntimeProblem | None:
    try:
        started = start(command, env=env, stderr=subprocess.STDOUT)
    except OSError as error:
        return _no_buildkit(image, f"docker's command line cannot be started ({error.strerror})")
    lines: list[str] = []
    end = partial(kill_group, started.pid, signal.SIGTERM)
    try:
        with when_stopped(end):  # that ends docker's command line, and that its build
            for raw in started.stdout or ():
                if line := raw.decode("utf-8", "replace").rstrip():
                    lines = [*lines[-20:], line]
                    say(line)
            code = started.wait()
    finally:
        if started.returncode is None:
            end()
    check()
    return None if code == 0 else _problem(image, lines)


def _problem(image: Image, lines: list[str]) -> RuntimeProblem:
    if any(map(_NO_BUILDX.search, lines)):
        return _no_buildkit(image, _WITHOUT)
    reasons = [line for line in lines if line.startswith("ERROR")] or lines[-1:] or ["docker build printed nothing"]
    step = next((line for line in reversed(lines) if re.match(r"#\d+ ERROR|\s*>\s*\[", line)), "")
    how = f": {reasons[-1]}" + (f" ({step.strip()})" if step else "")
    return _failed(image, how, how)


def _failed(image: Image, how: str, message: str) -> RuntimeProblem:
    """Return the problem that an image does not build, by the builder's message; the hint builds it without madlite."""
    dockerfile = Path(image.dockerfile or "Dockerfile")
    contexts = [f"--build-context={name}={path}" for name, path in image.contexts.items()]
    by_hand = ["docker", "build", *contexts, "-f", str(dockerfile), str(image.context or dockerfile.parent)]
    cause = Cause.DISK if "no space left on device" in message else Cause.BUILD
    return RuntimeProblem(f"{image.dockerfile} does not build{how}", shlex.join(by_hand), cause=cause)


def _no_buildkit(image: Image, reason: str) -> RuntimeProblem:
    return RuntimeProblem(
        f"{image.dockerfile} needs BuildKit ('{needs_buildkit(image)}'), and {reason}",
        "install docker-buildx (https://docs.docker.com/go/buildx)",
        cause=Cause.BUILD,
    )


# docker's `Step 1/2 : FROM x`; podman's `STEP 1/2: FROM x`, with `[1/2] ` before it where there are stages
_STEP = re.compile(r"^(?:\[\d+/\d+\] )?step \d+/\d+ ?: (?P<instruction>.+)$", re.IGNORECASE)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")  # the builder prints a step's stderr in red
_BUILDERS_OWN = ("--->", "Removing intermediate container")
_FROM = re.compile(r"FROM\b", re.IGNORECASE)


def build(client: Client, image: Image, say: Say) -> str:
    """Build the image with a fresh base, or with the local one where the base cannot be pulled; return a note if so.

    Raises:
        RuntimeProblem: the context cannot be packed, or a step failed; the message holds the step and its last line.
    """
    with packed_context(image, say) as context:

        def attempt(pull: bool) -> tuple[RuntimeProblem | None, bool]:
            begun = _Attempt(client, image, context, say)
            return begun.build(pull=pull), begun.failed_at_base

        return _with_base(attempt, say)


class _Attempt:
    """One build, and how far it came."""

    def __init__(self, client: Client, image: Image, context: Packed, say: Say) -> None:
        self._client = client
        self._image = image
        self._context = context
        self._say = say
        self._step = ""
        self._last_line = ""
        self._begun = ""  # the start of a line that the builder has not finished

    @property
    def failed_at_base(self) -> bool:
        return bool(_FROM.match(self._step))

    @property
    def failed_base(self) -> str:
        """What the FROM of the last step names; "" where that is an argument, or it is none."""
        words = [word for word in self._step.split()[1:] if not word.startswith("--")]
        return words[0] if self.failed_at_base and words and "$" not in words[0] else ""

    def build(self, *, pull: bool) -> RuntimeProblem | None:
        """Return None when the image is built, else why not."""
        import docker.errors

        image, context = self._image, self._context
        context.file.seek(0)
        try:
            with closing_answers(self._client):
                for item in self._client.build(
                    fileobj=context.file,
                    custom_context=True,
                    dockerfile=context.dockerfile,
                    tag=image.ref,
                    buildargs=reveal(image.build_args),
                    nocache=image.no_cache,
                    network_mode="host",
                    rm=True,
                    forcerm=True,
                    pull=pull,
                    decode=True,
                ):
                    if "error" in item:
                        return self._problem(str(item["error"]).strip())
                    self._take(str(item.get("stream", "")))
                self._take("\n")
        except docker.errors.APIError as error:
            return self._problem(error_text(error))
        except (OSError, TypeError) as error:
            return self._problem(str(error))
        return None

    def _take(self, text: str) -> None:
        """Pass the output on in whole lines: half a line may hold half a secret, which nobody would know."""
        text = _COLOUR.sub("", text)
        if _STEP.match(text) or text.lstrip().startswith(_BUILDERS_OWN):
            self._begun += "\n"
        lines = (self._begun + text).splitlines(keepends=True)
        self._begun = "" if text.endswith(("\n", "\r")) or not lines else lines.pop()
        for line in filter(None, map(str.strip, lines)):
            if found := _STEP.match(line):
                self._step, self._last_line = found["instruction"], ""
            elif not line.startswith(_BUILDERS_OWN):
                self._last_line = line
            self._say(line)

    def _problem(self, message: str) -> RuntimeProblem:
        self._take("\n")
        if self.failed_at_base:
            problem = pull_problem(self.failed_base or self._image.base or self._step.split()[-1], message)
            if problem is not None:
                return problem
        step = f" at step '{self._step}'" if self._step else ""
        last = f" (last line: {self._last_line})" if self._last_line else ""
        return _failed(self._image, f"{step}: {message}{last}", message)
