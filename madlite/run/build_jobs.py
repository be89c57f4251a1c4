"""Cards → images to build: one per Dockerfile and architecture, or what a card uses instead."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from itertools import chain, count
from pathlib import Path

from msgspec.structs import replace

from madlite.errors import UsageProblem
from madlite.files import is_file, read_text
from madlite.images.buildkit import build_command
from madlite.model import Card, Image, Machine, Request, Value
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
from madlite.plan.manifest import NO_DOCKERFILE, BuiltImage
from madlite.run.one import BUILD_LOG_END
from madlite.run.planning import dockerfile_context, missing_image

AUTO = "auto"
_AMD = re.compile(r"\bamd\b|rocm", re.IGNORECASE)
_NVIDIA = re.compile(r"\bnvidia\b|\bcuda\b", re.IGNORECASE)


class BuildInputs(Value, frozen=True):
    """What builds are planned in; `registry` is where images go, `use_image` what is used instead of building."""

    options: Options
    target: BuildTarget
    machine: Machine
    credentials: dict[str, dict[str, str]] = {}
    registry: str = ""
    use_image: str = ""


class BuildJob(Value, frozen=True):
    """One image to have: to build where there is an `image`, and what the manifest says of it so far.

    `problem` says why it cannot be built.
    """

    entry: BuiltImage
    image: Image | None = None
    problem: str = ""


def plan_builds(request: Request, inputs: BuildInputs, batch: BatchEntry | None = None) -> list[BuildJob]:
    """Return the images of a card; `batch` is its entry of a batch manifest.

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
    workspace = inputs.options.workspace
    found = find_dockerfiles(card, dockerfile_context(inputs.machine, inputs.target.context, workspace))
    if batch is not None and not batch.build_new:
        return [BuildJob(entry=_prebuilt_entry(request, found, batch, inputs))]
    if not found.fitting:
        return [BuildJob(entry=BuiltImage(request=request, docker_image=""), problem=missing_image(card, found))]
    registry = (batch.registry if batch is not None else "") or inputs.registry
    architectures = inputs.target.architectures or ("",)
    return [_job(request, dockerfile, arch, registry, inputs) for dockerfile in found.fitting for arch in architectures]


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


def _job(request: Request, dockerfile: Dockerfile, architecture: str, registry: str, inputs: BuildInputs) -> BuildJob:
    options, context = replace(inputs.options, registry=registry), inputs.target.context
    image = built_image(
        request.card,
        dockerfile,
        options,
        context,
        inputs.credentials,
        architecture=architecture,
        suffix=f"_{architecture}" if architecture else "",
    )
    entry = replace(
        _entry(request, dockerfile.path, image.ref, options.workspace),
        base_docker=image.base,
        build_command=build_command_text(image, options.workspace),
        gpu_architecture=architecture or str(context.typed.docker_build_arg.get(ARCHITECTURE, "")),
        registry=registry,
    )
    return BuildJob(entry=entry, image=image)


def _prebuilt_entry(request: Request, found: FoundDockerfiles, batch: BatchEntry, inputs: BuildInputs) -> BuiltImage:
    """Return the entry of an image that was built before, as madengine 2 makes it up."""
    card = request.card
    path = found.fitting[0].path if found.fitting else card.root / f"{card.dockerfile}.Dockerfile"
    entry = _entry(request, path, image_name(card.name, path.name), inputs.options.workspace)
    return replace(
        entry,
        base_docker=found.fitting[0].base if found.fitting else "",
        registry=batch.registry or inputs.registry,
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


def build_command_text(image: Image, workspace: Path) -> str:
    """Return the command that builds an image, paths from the working folder on."""
    return shlex.join(word.replace(f"{workspace}/", "") for word in build_command(image))


# Names of the images of one command: MAD's, which can be the same for two cards, distinguished.


def make_names_unique(jobs: Iterable[BuildJob], workspace: Path) -> list[BuildJob]:
    """Return the jobs, each image under a name of its own.

    Cards `A` and `a`, or `a/b` and `a_b`, have the same name in MAD: the image of the later one ends with `-2`, unless
    what is built is the same.
    """
    made: dict[str, BuildJob] = {}
    named = []
    for job in jobs:
        wanted = job.entry.docker_image
        is_ours = wanted and not job.entry.local_image
        names = chain([wanted], (f"{wanted}-{n}" for n in count(2))) if is_ours else [wanted]
        name = next(name for name in names if not is_ours or _same(made.setdefault(name, job), job))
        named.append(_renamed(job, name, workspace))
    return named


def same_content(one: Image, other: Image) -> bool:
    """Return whether two images are made of the same, wherever they are pushed, and with or without a cache."""
    first, second = (replace(image, registry="", login=None, no_cache=False) for image in (one, other))
    return first == second


def _same(one: BuildJob, other: BuildJob) -> bool:
    if one.image is None or other.image is None:  # built before
        return one.image is other.image and one.entry.registry_image == other.entry.registry_image
    return same_content(one.image, other.image)


def _renamed(job: BuildJob, name: str, workspace: Path) -> BuildJob:
    before = job.entry.docker_image
    if name == before:
        return job
    entry = replace(job.entry, docker_image=name)
    if job.image is None:
        return replace(job, entry=entry)
    registry = job.image.registry and job.image.registry.removesuffix(before) + name
    image = replace(job.image, ref=name, registry=registry)
    return replace(job, image=image, entry=replace(entry, build_command=build_command_text(image, workspace)))
