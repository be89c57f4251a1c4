"""Build images one after another and push them where asked; a failed one does not stop the others."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Protocol

from msgspec.structs import replace

from madlite.cancellation import Interrupted, check
from madlite.errors import ExitCode, RuntimeProblem
from madlite.images.image import docker_builder
from madlite.measure.lines import image_lines
from madlite.model import Image, ImageUsed, Login, Say, Value
from madlite.plan.manifest import BuiltImage, FailedBuild
from madlite.run.build_jobs import BuildJob, make_names_unique
from madlite.run.log import RunLog
from madlite.run.stop import Signals
from madlite.secrets import Redactor, collect, spelled_out

_log = logging.getLogger(__name__)


class Builder(Protocol):
    """What builds an image and pushes it to its registry."""

    def build(self, image: Image, say: Say) -> ImageUsed:
        """Build an image, or raise a RuntimeProblem; where it was not pushed the last note says why."""


MakeBuilder = Callable[[Mapping[str, str], Iterable[Login]], AbstractContextManager[Builder]]


class BuildScreen(Protocol):
    """Shows builds to people; never blocks one and never raises."""

    def build_started(self, job: BuildJob, position: int, total: int) -> None:
        """A build starts, the `position`th of `total`."""

    def build_line(self, text: str) -> None:
        """The build printed a line, secrets masked."""

    def build_finished(self, job: BuildJob, done: Done) -> None:
        """The build ended."""


class Done(Value, frozen=True):
    """How one image came out: its entry of the manifest, or why it could not be built."""

    entry: BuiltImage | None = None
    error: str = ""
    hint: str = ""
    notes: tuple[str, ...] = ()


class Built(Value, frozen=True):
    """What a batch of builds came to."""

    images: tuple[BuiltImage, ...]
    failed: tuple[FailedBuild, ...]
    took_s: float
    exit_code: ExitCode
    interrupted: bool = False


class NoEngine(RuntimeProblem):
    """No image can be built: no engine answers, or the registry does not let us in."""

    exit_code = ExitCode.BUILD_FAILED


def build_all(
    jobs: Sequence[BuildJob],
    workspace: Path,
    environ: Mapping[str, str],
    screen: BuildScreen,
    make_builder: MakeBuilder = docker_builder,
    clock: Callable[[], float] = time.monotonic,
) -> Built:
    """Build all of them; after INT, TERM or HUP the running build is ended and the rest is not started.

    Raises:
        NoEngine: nothing can be built; nothing was.
    """
    begun = clock()
    jobs = make_names_unique(jobs, workspace)
    batch = _Batch(workspace, secrets_of_jobs(jobs, environ), screen)

    def build() -> None:
        with _opened(jobs, environ, make_builder) as builder:
            for position, job in enumerate(jobs, 1):
                check()
                screen.build_started(job, position, len(jobs))
                screen.build_finished(job, batch.build(job, builder))

    with Signals() as signals:
        try:
            signals.watch_calls(build)
        except Interrupted:
            return batch.result(clock() - begun, signals.exit_code)
        except RuntimeProblem as problem:
            raise NoEngine(batch.mask(problem.message), problem.hint, cause=problem.cause) from problem
        return batch.result(clock() - begun, signals.exit_code)


def secrets_of_jobs(jobs: Iterable[BuildJob], environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return every secret text that builds must not show."""
    jobs = tuple(jobs)
    images = [job.image for job in jobs if job.image is not None]
    arguments = [value for image in images for value in image.build_args.values()]
    known = collect(environ, arguments, [image.login.password for image in images if image.login is not None])
    return tuple(dict.fromkeys((*known, *spelled_out([job.entry.request for job in jobs]), *spelled_out(images))))


def _opened(
    jobs: Iterable[BuildJob], environ: Mapping[str, str], make_builder: MakeBuilder
) -> AbstractContextManager[Builder | None]:
    """Return the builder, none where nothing is to be built: such a machine needs no engine."""
    images = [job.image for job in jobs if job.image is not None]
    logins = {image.login.host: image.login for image in images if image.login is not None}
    return make_builder(environ, tuple(logins.values())) if images else nullcontext(None)


class _Batch:
    """What was built so far; cards whose images are the same in all that makes them share one build."""

    def __init__(self, workspace: Path, secrets: tuple[str, ...], screen: BuildScreen) -> None:
        self._workspace, self._secrets, self._screen = workspace, secrets, screen
        self.mask = Redactor(secrets).text
        self._by_image: list[tuple[Image, Done]] = []
        self._done: list[tuple[BuildJob, Done]] = []
        self._logs: set[str] = set()

    def build(self, job: BuildJob, builder: Builder | None) -> Done:
        """Have one image, and return how it came out."""
        if job.problem:
            done = Done(error=job.problem)
        elif job.image is None or builder is None:
            done = Done(entry=job.entry)
        elif (before := self._before(job.image)) is not None:
            done = _shared(job, before)
        else:
            done = self._build(job, job.image, builder)
            self._by_image.append((job.image, done))
        self._done.append((job, done))
        return done

    def _before(self, image: Image) -> Done | None:
        return next((done for built, done in self._by_image if built == image), None)

    def result(self, took_s: float, signal: ExitCode | None) -> Built:
        """Return what the batch came to."""
        images = tuple(done.entry for _, done in self._done if done.entry is not None)
        failed = tuple(
            FailedBuild(
                model=job.entry.request.card.name,
                error=done.error,
                architecture=job.entry.gpu_architecture,
                request=job.entry.request,
            )
            for job, done in self._done
            if done.entry is None
        )
        broken = failed or any(image.push_error for image in images)
        code = signal or (ExitCode.BUILD_FAILED if broken else ExitCode.OK)
        return Built(images=images, failed=failed, took_s=took_s, exit_code=code, interrupted=signal is not None)

    def _build(self, job: BuildJob, image: Image, builder: Builder) -> Done:
        log = self._open_log(job.entry.log_file)
        entry = job.entry if log is not None else replace(job.entry, log_file="")

        def say(text: str) -> None:
            check()  # a call that was left prints nothing any more
            if log is not None:
                log.say(text)
            self._screen.build_line(self.mask(text))

        try:
            used = builder.build(image, say)
            if log is not None:
                log.say("\n".join(image_lines(image, used)))
            return self._finished(entry, image, used)
        except RuntimeProblem as problem:
            say(problem.message)
            return Done(error=self.mask(problem.message), hint=self.mask(problem.hint))
        finally:
            if log is not None:
                log.close()

    def _finished(self, entry: BuiltImage, image: Image, used: ImageUsed) -> Done:
        notes, unpushed = tuple(map(self.mask, used.notes)), ""
        if image.registry and not used.registry:
            notes, unpushed = notes[:-1], notes[-1]
        done = replace(
            entry,
            docker_sha=used.base_digest or used.digest,
            build_duration_s=used.build_duration_s,
            registry_image=used.registry,
            push_error=unpushed,
        )
        return Done(entry=done, notes=notes)

    def _open_log(self, name: str) -> RunLog | None:
        """Open a build's log; images of one Dockerfile share it, what an earlier command left of it goes.

        What keeps it from being written is reported and costs no build.
        """
        path = self._workspace / name
        try:
            if name not in self._logs:
                path.unlink(missing_ok=True)
            self._logs.add(name)
            return RunLog(path, self._secrets, ())
        except OSError as error:
            _log.warning("no %s: %s", name, error.strerror)
            return None


def _shared(job: BuildJob, before: Done) -> Done:
    """Return how a card came out whose image another one had built."""
    if before.entry is None:
        return before
    entry = replace(before.entry, request=job.entry.request)
    return replace(before, entry=entry)
