"""Cards → images to build: one per Dockerfile and architecture, or what a card uses instead."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from itertools import chain, count
from pathlib import Path

from msgspec.structs import replace

from madlite.cancellation import Interrupted, check
from madlite.errors import ExitCode, RuntimeProblem, UsageProblem
from madlite.files import is_file, read_text
from madlite.images.build import build_command_text
from madlite.images.image import BuildImage, archive_file, opened_builder
from madlite.measure.lines import command_line, image_lines
from madlite.model import Card, Image, ImageUsed, Login, Machine, Request, Value
from madlite.plan.context import Options
from madlite.plan.images import (
    ARCHITECTURE,
    BatchEntry,
    BuildTarget,
    Dockerfile,
    FoundDockerfiles,
    built_image,
    find_dockerfiles,
    flat,
    image_name,
)
from madlite.plan.manifest import NO_DOCKERFILE, BuiltImage, FailedBuild
from madlite.run.executor import BUILD_LOG_END
from madlite.run.log import RunLog
from madlite.run.planning import dockerfile_context, missing_image
from madlite.run.screen import ActivityScreen
from madlite.run.stop import Signals
from madlite.secrets import Redactor, collect, spelled_out
from madlite.text import duration, printable

# Build images one after another and push them where asked; a failed one does not stop the others.


MakeBuilder = Callable[[Mapping[str, str], Iterable[Login]], AbstractContextManager[BuildImage]]


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
    screen: ActivityScreen,
    make_builder: MakeBuilder = opened_builder,
    clock: Callable[[], float] = time.monotonic,
) -> Built:
    """Build all of them; after INT, TERM or HUP the running build is ended and the rest is not started.

    Raises:
        NoEngine: nothing can be built; nothing was.
    """
    begun = clock()
    batch = _Batch(workspace, secrets_of_jobs(jobs, environ), screen)

    def build() -> None:
        with _opened(jobs, environ, make_builder) as builder:
            for position, job in enumerate(jobs, 1):
                check()
                screen.begin(_heading(job, position, len(jobs)))
                screen.end([f"      {line}" for line in _ending(job, batch.build(job, builder))])

    with Signals() as signals:
        try:
            signals.watch_calls(build)
        except Interrupted:
            return batch.result(clock() - begun, signals.exit_code)
        except RuntimeProblem as problem:
            raise NoEngine(batch.mask(problem.message), problem.hint, cause=problem.cause) from problem
        return batch.result(clock() - begun, signals.exit_code)


def _heading(job: BuildJob, position: int, total: int) -> list[str]:
    entry = job.entry
    what = (entry.request.card.name, entry.dockerfile or entry.docker_image or "no image", entry.gpu_architecture)
    title = f"[{position}/{total}] " + " · ".join(filter(None, what))
    return [title, f"      log: {entry.log_file}"] if job.image is not None else [title]


def _ending(job: BuildJob, done: Done) -> list[str]:
    entry = done.entry
    if entry is None:
        hint = [f"  hint: {printable(done.hint)}"] if done.hint else []
        return [f"FAILURE {job.entry.request.card.name} {printable(done.error)}", *hint]
    if job.image is None:
        where = entry.registry_image or entry.docker_image or "each variant's own image"
        return [f"not built: {where} is used"]
    where = entry.registry_image or entry.image_archive
    lines = [f"BUILT {entry.docker_image}" + (f" as {where}" if where else "")]
    lines += [f"  note: {printable(note)}" for note in done.notes]
    lines += [f"  FAILURE of the push: {printable(entry.push_error)}"] if entry.push_error else []
    took_s = entry.build_duration_s
    return [*lines, *([] if took_s is None else [f"  took {duration(took_s)}"])]


def secrets_of_jobs(jobs: Iterable[BuildJob], environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return every secret text that builds must not show."""
    jobs = tuple(jobs)
    images = [job.image for job in jobs if job.image is not None]
    arguments = [value for image in images for value in image.build_args.values()]
    known = collect(environ, arguments, [image.login.password for image in images if image.login is not None])
    return tuple(dict.fromkeys((*known, *spelled_out([job.entry.request for job in jobs]), *spelled_out(images))))


def _opened(
    jobs: Iterable[BuildJob], environ: Mapping[str, str], make_builder: MakeBuilder
) -> AbstractContextManager[BuildImage | None]:
    """Return the builder, none where nothing is to be built: such a machine needs no engine."""
    images = [job.image for job in jobs if job.image is not None]
    logins = {image.login.host: image.login for image in images if image.login is not None}
    return make_builder(environ, tuple(logins.values())) if images else nullcontext(None)


class _Batch:
    """What was built so far; cards whose images are the same in all that makes them share one build."""

    def __init__(self, workspace: Path, secrets: tuple[str, ...], screen: ActivityScreen) -> None:
        self._workspace, self._secrets, self._screen = workspace, secrets, screen
        self.mask = Redactor(secrets).text
        self._by_image: list[tuple[Image, Done]] = []
        self._done: list[tuple[BuildJob, Done]] = []
        self._logs: set[Path] = set()

    def build(self, job: BuildJob, builder: BuildImage | None) -> Done:
        """Have one image, and return how it came out."""
        if job.problem:
            done = Done(error=job.problem)
        elif job.image is None or builder is None:
            done = Done(entry=job.entry)
        elif (before := next((done for built, done in self._by_image if built == job.image), None)) is not None:
            done = _shared(job, before)
        else:
            done = self._build(job, job.image, builder)
            self._by_image.append((job.image, done))
        self._done.append((job, done))
        return done

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

    def _build(self, job: BuildJob, image: Image, builder: BuildImage) -> Done:
        path = self._workspace / job.entry.log_file
        if path not in self._logs:  # images of one Dockerfile share it, what an earlier command left of it goes
            with suppress(OSError):
                path.unlink()
        self._logs.add(path)
        log = RunLog(path, self._secrets, ())
        entry = replace(job.entry, log_file="") if log.problem else job.entry

        def say(text: str) -> None:
            check()  # a call that was left prints nothing any more
            log.say(text)
            self._screen.phase(self.mask(text))

        try:
            log.say(command_line(build_command_text(image, self._workspace)))
            used = builder(image, say)
            log.say("\n".join(image_lines(image, used)))
            return self._finished(entry, image, used)
        except RuntimeProblem as problem:
            say(problem.message)
            return Done(error=self.mask(problem.message), hint=self.mask(problem.hint))
        finally:
            log.close()

    def _finished(self, entry: BuiltImage, image: Image, used: ImageUsed) -> Done:
        notes, unpushed = tuple(map(self.mask, used.notes)), ""
        if (image.registry or image.archive) and not used.registry:
            notes, unpushed = notes[:-1], notes[-1]
        done = replace(
            entry,
            docker_sha=used.base_digest or used.digest,
            build_duration_s=used.build_duration_s,
            registry_image=used.registry if image.registry else "",
            image_archive="" if image.registry else used.registry,
            push_error=unpushed,
        )
        return Done(entry=done, notes=notes)


def _shared(job: BuildJob, before: Done) -> Done:
    """Return how a card came out whose image another one had built."""
    if before.entry is None:
        return before
    entry = replace(before.entry, request=job.entry.request)
    return replace(before, entry=entry)


AUTO = "auto"
_AMD = re.compile(r"\bamd\b|rocm", re.IGNORECASE)
_NVIDIA = re.compile(r"\bnvidia\b|\bcuda\b", re.IGNORECASE)


class BuildInputs(Value, frozen=True):
    """What builds are planned in; `use_image` is used instead of building, images are saved to `image_folder`."""

    options: Options
    target: BuildTarget
    machine: Machine
    credentials: dict[str, dict[str, str]] = {}
    use_image: str = ""
    image_folder: str = ""


class BuildJob(Value, frozen=True):
    """One image to have: to build where there is an `image`, and what the manifest says of it so far.

    `problem` says why it cannot be built.
    """

    entry: BuiltImage
    image: Image | None = None
    problem: str = ""


Names = dict[str, object]
"""The images of one command by their names: what each is made of, or where one is that was built before."""


def plan_builds(
    request: Request, inputs: BuildInputs, batch: BatchEntry | None = None, names: Names | None = None
) -> list[BuildJob]:
    """Return the images of a card; `batch` is its entry of a batch manifest.

    Cards `A` and `a`, or `a/b` and `a_b`, have the same name in MAD: an image whose name is among `names` for another
    one ends with `-2`.

    Raises:
        UsageProblem: `--use-image auto`, and the card names no image.
    """
    card = request.card
    given_image = _image_in_use(card, inputs.use_image) or inputs.target.context.typed.MAD_CONTAINER_IMAGE or ""
    if given_image or not card.dockerfile:
        by_context = NO_DOCKERFILE if given_image and not inputs.use_image else ""
        entry = BuiltImage(
            request=request, docker_image=given_image or card.image, dockerfile=by_context, local_image=True
        )
        return [BuildJob(entry=entry)]
    names = {} if names is None else names
    workspace = inputs.options.workspace
    found = find_dockerfiles(card, dockerfile_context(inputs.machine, inputs.target.context, workspace))
    if batch is not None and not batch.build_new:
        return [BuildJob(entry=_prebuilt_entry(request, found, batch, inputs, names))]
    if not found.fitting:
        return [BuildJob(entry=BuiltImage(request=request, docker_image=""), problem=missing_image(card, found))]
    registry = (batch.registry if batch is not None else "") or inputs.options.registry
    architectures = inputs.target.architectures or ("",)
    return [
        _job(request, dockerfile, arch, registry, inputs, names)
        for dockerfile in found.fitting
        for arch in architectures
    ]


def _image_in_use(card: Card, use_image: str) -> str:
    """Return the image to use instead of building, or nothing."""
    if use_image != AUTO:
        return use_image
    variables = card.extra.get("env_vars")
    named = variables.get("DOCKER_IMAGE_NAME", "") if isinstance(variables, dict) else ""
    if not named and not card.image:
        raise UsageProblem(
            f"--use-image auto: card '{card.name}' has no env_vars.DOCKER_IMAGE_NAME", "--use-image IMAGE names one"
        )
    return str(named or card.image)


def _job(
    request: Request, dockerfile: Dockerfile, architecture: str, registry: str, inputs: BuildInputs, names: Names
) -> BuildJob:
    options, context = replace(inputs.options, registry=registry), inputs.target.context
    images = (
        built_image(
            request.card,
            dockerfile,
            options,
            context,
            inputs.credentials,
            architecture=architecture,
            suffix=(f"_{architecture}" if architecture else "") + suffix,
        )
        for suffix in _suffixes()
    )
    image = next(image for image in images if names.setdefault(image.ref, content_of(image)) == content_of(image))
    if inputs.image_folder and not registry:
        image = replace(image, archive=archive_file(inputs.image_folder, image.ref))
    entry = replace(
        _entry(request, dockerfile.path, image.ref, options.workspace),
        base_docker=image.base,
        build_command=build_command_text(image, options.workspace),
        gpu_architecture=architecture or str(context.typed.docker_build_arg.get(ARCHITECTURE, "")),
        registry=registry,
    )
    return BuildJob(entry=entry, image=image)


def _suffixes() -> Iterable[str]:
    return chain([""], (f"-{number}" for number in count(2)))


def content_of(image: Image) -> Image:
    """Return what an image is made of, wherever it is pushed, and with or without a cache."""
    return replace(image, registry="", login=None, archive=None, no_cache=False)


def _prebuilt_entry(
    request: Request, found: FoundDockerfiles, batch: BatchEntry, inputs: BuildInputs, names: Names
) -> BuiltImage:
    """Return the entry of an image that was built before, as madengine 2 makes it up."""
    card = request.card
    path = found.fitting[0].path if found.fitting else card.root / f"{card.dockerfile}.Dockerfile"
    refs = (image_name(card.name, path.name, suffix) for suffix in _suffixes())
    ref = next(ref for ref in refs if names.setdefault(ref, batch.registry_image) == batch.registry_image)
    entry = _entry(request, path, ref, inputs.options.workspace)
    return replace(
        entry,
        base_docker=found.fitting[0].base if found.fitting else "",
        registry=batch.registry or inputs.options.registry,
        registry_image=batch.registry_image,
    )


def _entry(request: Request, dockerfile: Path, ref: str, workspace: Path) -> BuiltImage:
    stem = dockerfile.name.removesuffix(".Dockerfile")
    return BuiltImage(
        request=request,
        docker_image=ref,
        dockerfile=str(dockerfile.relative_to(workspace) if dockerfile.is_relative_to(workspace) else dockerfile),
        log_file=f"{flat(request.card.name)}_{stem}{BUILD_LOG_END}",
        gpu_vendor=vendor_of(dockerfile),
    )


def vendor_of(dockerfile: Path) -> str:
    """Return whose GPUs a Dockerfile is for, by its name, else by what only one of them is called in it."""
    for vendor in ("AMD", "NVIDIA"):
        if f".{vendor.lower()}." in dockerfile.name:
            return vendor
    text = read_text(dockerfile, errors="replace") if is_file(dockerfile) else ""
    amd, nvidia = _AMD.search(text), _NVIDIA.search(text)
    return "" if bool(amd) == bool(nvidia) else "AMD" if amd else "NVIDIA"
