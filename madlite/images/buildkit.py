"""Build an image whose Dockerfile only BuildKit understands, by docker's command line."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from madlite.cancellation import check, when_stopped
from madlite.errors import RuntimeProblem
from madlite.images.build import by_hand
from madlite.images.context import dockerfile_text, report_context_size, without_own_files
from madlite.model import Cause, Image, Say, Secret
from madlite.process import kill_group, start
from madlite.secrets import reveal

# https://docs.docker.com/reference/dockerfile: what the engine's own builder refuses
_BUILDKIT = re.compile(
    r"^\s*(?:#\s*syntax\s*=|(?:RUN|COPY|ADD)\s+--(?:mount|network|security|link|parents|exclude|checksum|keep-git-dir)\b"
    r"|(?:RUN|COPY|ADD)\b[^#]*(?<!<)<<-?[\"']?[a-z_]\w*)",
    re.IGNORECASE,
)
_NO_BUILDX = re.compile(r"buildx component is missing|unknown flag: --progress|unknown command: docker buildx")
_NO_CONTEXT = "unknown flag: --build-context"  # of a docker before 23 without buildx, which has a BuildKit of its own
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
    stale = ""
    report_context_size(image, say)
    with without_own_files(image) as sent:
        problem = _build(image, build_command(sent), env, say)
        if problem is not None and _lacks_base(problem.message):
            stale = problem.message
            say(f"{stale}; trying the image that is here")
            problem = _build(image, build_command(sent, pull=False), env, say)
    if problem is not None:
        raise problem
    return f"the base image was not refreshed: {stale}" if stale else ""


def build_command(image: Image, *, pull: bool = True, buildkit: bool = True) -> list[str]:
    """Return the command that builds an image, in madengine's order; a secret argument is named without its value."""
    dockerfile = Path(str(image.dockerfile)).absolute()
    contexts = [f"--build-context={name}={path}" for name, path in image.contexts.items()] if buildkit else []
    arguments = [
        f"--build-arg={name}" if isinstance(value, Secret) else f"--build-arg={name}={value}"
        for name, value in image.build_args.items()
    ]
    return [
        *("docker", "build", *(["--no-cache"] if image.no_cache else []), "--network=host", *contexts),
        *("-t", image.ref, *(["--pull"] if pull else []), "-f", str(dockerfile), *arguments),
        str(image.context or dockerfile.parent),
    ]


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
    if any(_NO_CONTEXT in line for line in lines):
        named = [line.strip() for line in dockerfile_text(image).splitlines() if _names_context(line, image)]
        return _no_buildkit(image, f"{_WITHOUT}, without which docker takes no --build-context", *named[:1])
    reasons = [line for line in lines if line.startswith("ERROR")] or lines[-1:] or ["docker build printed nothing"]
    step = next((line for line in reversed(lines) if re.match(r"#\d+ ERROR|\s*>\s*\[", line)), "")
    text = f"{image.dockerfile} does not build: {reasons[-1]}" + (f" ({step.strip()})" if step else "")
    cause = Cause.DISK if "no space left on device" in text else Cause.BUILD
    return RuntimeProblem(text, by_hand(image), cause=cause)


def _no_buildkit(image: Image, reason: str, line: str = "") -> RuntimeProblem:
    line = line or needs_buildkit(image)
    return RuntimeProblem(
        f"{image.dockerfile} needs BuildKit ('{line}'), and {reason}",
        "install docker-buildx (https://docs.docker.com/go/buildx)",
        cause=Cause.BUILD,
    )


def _lacks_base(message: str) -> bool:
    return bool(re.search(r"failed to resolve source metadata|failed to do request|pull access denied", message))
