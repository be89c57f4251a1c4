"""The container of a plan: image, devices, mounts, options and names, as MAD asks for them."""

from __future__ import annotations

import re

from madlite.plan.context import Context
from madlite.plan.environment import credential_env, secret_args
from madlite.plan.given import Given
from madlite.plan.values import Resolved
from madlite.secrets import collect, guard
from madlite.types import (
    Card,
    EngineOptions,
    EnvValue,
    Image,
    Machine,
    Mount,
)


def make_image(given: Given, asked: str) -> Image | None:
    """Return the image a run uses: the one asked for, its Dockerfile's, or the one its backend or card names."""
    foreign = given.options.image or asked or given.context.known.MAD_CONTAINER_IMAGE
    if foreign:
        return Image(ref=foreign)
    if given.dockerfile is None:
        return Image(ref=given.draft.image) if given.draft.image else None
    card = given.request.card
    args = _build_args(given)
    return Image(
        ref=image_name(card.name, given.dockerfile.path.name),
        dockerfile=given.dockerfile.path,
        context=given.dockerfile.context,
        build_args=args,
        base=str(given.context.known.docker_build_arg.get("BASE_DOCKER", "")) or given.dockerfile.base,
        no_cache=given.options.clean_docker_cache,
    )


def image_name(card_name: str, dockerfile: str) -> str:
    """Return MAD's name for a card's image, `ci-<card>_<Dockerfile>`; what a registry refuses becomes `_`.

    Grammar: a repository name of the OCI distribution specification.
    """
    name = f"ci-{_flat(card_name).lower()}_{dockerfile.removesuffix('.Dockerfile')}"
    if re.fullmatch(r"[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*", name):
        return name
    return re.sub(r"[._-]{2,}", "_", re.sub(r"[^a-z0-9._-]", "_", name.lower())).strip("._-")


def _build_args(given: Given) -> dict[str, EnvValue]:
    arch = {"MAD_SYSTEM_GPU_ARCHITECTURE": given.machine.architecture} if given.machine.gpus else {}
    asked = {key: str(value) for key, value in given.context.known.docker_build_arg.items()}
    credential = credential_env(given.request.card, given.credentials or {})
    known = collect(given.options.environ, credential.values())
    return {**secret_args(given.options.environ), **arch, **guard(asked, known), **credential}


def image_origin(given: Given, resolved: Resolved) -> str:
    """Return who decided the image."""
    if given.options.image:
        return "--image"
    if "image" in resolved.plan:
        return resolved.origins["image"]
    if given.context.known.MAD_CONTAINER_IMAGE:
        return given.context.origins.get("MAD_CONTAINER_IMAGE", "context")
    return "card's Dockerfile" if given.dockerfile else resolved.origins.get("image", "card")


def make_mounts(context: Context) -> tuple[Mount, ...]:
    """Return the context's mounts."""
    return tuple(Mount(source=host, target=inside) for inside, host in context.known.docker_mounts.items())


def make_devices(machine: Machine, gpu_ids: tuple[int, ...]) -> tuple[str, ...]:
    """Return device files: /dev/fuse as MAD asks for, and AMD's /dev/kfd and render nodes."""
    if machine.vendor == "CPU":
        return ()
    if machine.vendor == "NVIDIA":
        return ("/dev/fuse",)
    minors = [gpu.render_minor for gpu in machine.gpus if gpu.index in gpu_ids and gpu.render_minor is not None]
    return ("/dev/fuse", "/dev/kfd", *(f"/dev/dri/renderD{minor}" for minor in minors))


def make_engine_options(given: Given) -> EngineOptions:
    """Return how the container is started: the privileges MAD gives to each vendor's tools, none on a CPU."""
    vendor = given.machine.vendor
    caps = {"AMD": ("SYS_PTRACE", "SYS_ADMIN"), "NVIDIA": ("SYS_PTRACE", "SYS_ADMIN", "SYS_NICE"), "CPU": ()}[vendor]
    return EngineOptions(
        group_add=("video",) if vendor == "AMD" else (),
        cap_add=caps,
        security_opt=("seccomp=unconfined", "apparmor=unconfined") if vendor != "CPU" else (),
        cpuset=(given.context.known.docker_cpus or "").replace(" ", ""),
        extra=given.request.card.additional_docker_run_options,
    )


def container_name(image: Image | None) -> str:
    """Return the container's name as MAD's tooling looks for it."""
    return f"container_{_flat(image.ref)}" if image else ""


def log_name(card: Card, image: Image | None) -> str:
    """Return the log's name in the workspace as MAD's tooling looks for it."""
    if image is None:
        part = "host"
    else:
        part = image.dockerfile.name.removesuffix(".Dockerfile") if image.dockerfile else _flat(image.ref)
    return f"{_flat(card.name)}_{part}.live.log"


def _flat(name: str) -> str:
    return re.sub(r"[/:]", "_", name)
