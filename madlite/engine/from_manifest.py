"""A manifest of built images → plans: each card with the images of it that fit this machine."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from madlite.engine.gather import Surroundings, foreign_image, plan_card
from madlite.engine.screen import Planned
from madlite.plan.manifest import NO_DOCKERFILE, BuiltImage, Manifest
from madlite.plan.registries import login_to, registry_of
from madlite.types import Image, Machine, Request


def gather_manifest(manifest: Manifest, around: Surroundings) -> list[Planned]:
    """Return startable plans of what a manifest names, without building; its context is part of the surroundings.

    An image for other GPUs is left out where another one of its card fits; where none does the plan says so and
    becomes a FAILURE row.

    Raises:
        MadliteError: a card or an option cannot be used; nothing has been touched.
    """
    planned: list[Planned] = []
    for request, images in _by_request(manifest):
        if foreign_image(around):
            planned += plan_card(request, (), "", around)
            continue
        refused = {image.docker_image: why for image in images if (why := misfit(image, around.machine))}
        fitting = [image for image in images if image.docker_image not in refused]
        notes = tuple(f"left out: image {ref}: {why}" for ref, why in refused.items())
        missing = f"no image of card '{request.card.name}' in {manifest.file.name} fits: "
        missing += "; ".join(f"{ref}: {why}" for ref, why in refused.items())
        if not fitting:
            planned += plan_card(request, (), missing, around)
        for image in fitting:
            planned += [_told(one, image, notes, manifest) for one in _plan(request, image, around)]
            notes = ()
    return planned


def misfit(image: BuiltImage, machine: Machine) -> str:
    """Return why an image is not for this machine's GPUs, or nothing; a CPU has nothing to differ from.

    Upper and lower case are the same: madengine 2 writes an architecture in lower case.
    """
    if not machine.gpus:
        return ""
    if image.gpu_vendor and image.gpu_vendor.upper() != machine.vendor:
        return f"it is for {image.gpu_vendor}, here is {machine.vendor}"
    if image.gpu_architecture and _plain(image.gpu_architecture) != _plain(machine.architecture):
        return f"it is for {image.gpu_architecture}, here is {machine.architecture}"
    return ""


def _plain(architecture: str) -> str:
    """Return an architecture without what AMD's tools add to it (`gfx90a:sramecc+:xnack-`)."""
    return " ".join(architecture.partition(":")[0].lower().split())


def _by_request(manifest: Manifest) -> list[tuple[Request, list[BuiltImage]]]:
    """Return the images of each card, in the manifest's order; other args make it another card."""
    grouped: list[tuple[Request, list[BuiltImage]]] = []
    for image in manifest.images:
        same = next((images for request, images in grouped if request == image.request), None)
        if same is None:
            grouped.append((image.request, [image]))
        else:
            same.append(image)
    return grouped


def _plan(request: Request, image: BuiltImage, around: Surroundings) -> Sequence[Planned]:
    if not image.docker_image:  # a card whose backend names the image of each variant
        return plan_card(request, (), f"card '{request.card.name}' names neither a Dockerfile nor an image", around)
    return plan_card(request, (_image(image, around),), "", around)


def _image(image: BuiltImage, around: Surroundings) -> Image:
    if image.local_image:
        return Image(ref=image.docker_image)
    root = around.options.workspace
    environ, credentials = around.options.environ, around.credentials or {}
    registry = image.registry_image
    return Image(
        ref=image.docker_image,
        dockerfile=root / image.dockerfile if image.dockerfile else None,
        base=image.base_docker,
        prebuilt=True,
        registry=registry,
        login=login_to(registry_of(registry), credentials, environ) if registry else None,
        base_digest=image.docker_sha,
        build_duration_s=image.build_duration_s,
    )


def _told(one: Planned, image: BuiltImage, notes: tuple[str, ...], manifest: Manifest) -> Planned:
    """Return the plan with what it owes to the manifest."""
    plan = one.plan
    if plan.image is None:
        return one
    by = "context of " if image.dockerfile == NO_DOCKERFILE else ""
    origins = {**plan.origins, "image": f"{by}{manifest.file.name}"}
    return replace(one, plan=replace(plan, origins=origins, notes=(*plan.notes, *notes)))
