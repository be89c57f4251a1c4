"""A manifest of built images → plans: each card with the images of it that fit this machine."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from msgspec.structs import replace

from madlite.errors import UsageProblem
from madlite.model import Blocked, Cause, Image, Machine, Request, Status
from madlite.plan.manifest import NO_DOCKERFILE, BuiltImage, FailedBuild, Manifest
from madlite.plan.registries import login_to, registry_of
from madlite.run.gather import PlanCard, Surroundings, foreign_image, plan_card, plan_each
from madlite.run.screen import Planned

_log = logging.getLogger(__name__)


def gather_manifest(manifest: Manifest, around: Surroundings) -> list[Planned]:
    """Return startable plans of what a manifest names, without building; its context is part of the surroundings.

    An image for other GPUs is left out where another one of its card fits; where none does the plan says so and
    becomes a FAILURE row.  So does a build that failed, if its card is known.

    Raises:
        UsageProblem: there is nothing to run, for no card of the manifest is known.
        MadliteError: a card or an option cannot be used; nothing has been touched.
    """
    unknown = [one for one in manifest.failed if one.request is None]
    for one in unknown:
        _log.warning("%s has no card of '%s', whose build failed: %s", manifest.file.name, one.model, one.error)
    cards = _by_request(manifest)
    if not cards:
        names = ", ".join(dict.fromkeys(one.model for one in unknown))
        raise UsageProblem(f"{manifest.file} has no image: no build succeeded", f"madlite build --tags {names}")
    return plan_each([(request, _planner(images, failed, manifest)) for request, images, failed in cards], around)


def _planner(images: Sequence[BuiltImage], failed: Sequence[FailedBuild], manifest: Manifest) -> PlanCard:
    return lambda request, around: _plan_found(request, images, failed, manifest, around)


def _plan_found(
    request: Request,
    images: Sequence[BuiltImage],
    failed: Sequence[FailedBuild],
    manifest: Manifest,
    around: Surroundings,
) -> list[Planned]:
    """Return the plans of one card: of its images and of its failed builds that are for this machine."""
    if foreign_image(around):
        return plan_card(request, (), "", around)
    machine = around.machine
    refused = {
        image.docker_image: why
        for image in images
        if (why := misfit(image.gpu_vendor, image.gpu_architecture, machine))
    }
    fitting = [image for image in images if image.docker_image not in refused]
    missed = [one for one in failed if not misfit("", one.architecture, machine)]
    if not fitting and not missed:
        reasons = [f"{ref}: {why}" for ref, why in refused.items()]
        reasons += [f"the one for {one.architecture} was not built: {one.error}" for one in failed]
        missing = f"no image of card '{request.card.name}' in {manifest.file.name} fits: {'; '.join(reasons)}"
        return plan_card(request, (), missing, around)
    notes = tuple(f"left out: image {ref}: {why}" for ref, why in refused.items())
    planned = []
    for image in fitting:
        planned += [_told(plan, notes, manifest) for plan in _plan(request, image, around)]
        notes = ()
    return planned + [_not_built(plan, one) for one in missed for plan in plan_card(request, (), one.error, around)]


def misfit(vendor: str, architecture: str, machine: Machine) -> str:
    """Return why an image is not for this machine's GPUs, or nothing; a CPU has nothing to differ from.

    Upper and lower case are the same: madengine 2 writes an architecture in lower case.
    """
    if not machine.gpus:
        return ""
    if vendor and vendor.upper() != machine.vendor:
        return f"it is for {vendor}, here is {machine.vendor}"
    if architecture and _plain(architecture) != _plain(machine.architecture):
        return f"it is for {architecture}, here is {machine.architecture}"
    return ""


def _plain(architecture: str) -> str:
    """Return an architecture without what AMD's tools add to it (`gfx90a:sramecc+:xnack-`)."""
    return " ".join(architecture.partition(":")[0].lower().split())


def _by_request(manifest: Manifest) -> list[tuple[Request, list[BuiltImage], list[FailedBuild]]]:
    """Return what was built of each card and what was not, in the manifest's order; other args make it another card."""
    grouped: list[tuple[Request, list[BuiltImage], list[FailedBuild]]] = []

    def of(request: Request) -> tuple[Request, list[BuiltImage], list[FailedBuild]]:
        if (same := next((group for group in grouped if group[0] == request), None)) is None:
            grouped.append(same := (request, [], []))
        return same

    for image in manifest.images:
        of(image.request)[1].append(image)
    for one in manifest.failed:
        if one.request is not None:
            of(one.request)[2].append(one)
    return grouped


def _plan(request: Request, image: BuiltImage, around: Surroundings) -> Sequence[Planned]:
    if not image.docker_image:  # a card whose backend names the image of each variant
        return plan_card(request, (), f"card '{request.card.name}' names neither a Dockerfile nor an image", around)
    return plan_card(request, (_image(image, around),), "", around)


def _image(image: BuiltImage, around: Surroundings) -> Image:
    if image.local_image:
        return Image(ref=image.docker_image, from_context=image.dockerfile == NO_DOCKERFILE)
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


def _told(one: Planned, notes: tuple[str, ...], manifest: Manifest) -> Planned:
    """Return the plan with what it owes to the manifest."""
    plan = one.plan
    if plan.image is None:
        return one
    origins = {**plan.origins, "image": manifest.file.name}
    return replace(one, plan=replace(plan, origins=origins, notes=(*plan.notes, *notes)))


def _not_built(one: Planned, failed: FailedBuild) -> Planned:
    """Return the plan kept from starting, unless it needs no image or is to be skipped here."""
    plan = one.plan
    if not plan.traits.containerised or (plan.blocked is not None and plan.blocked.status is Status.SKIPPED):
        return one
    hint = f"madlite build --tags {failed.model}"
    blocked = Blocked(status=Status.FAILURE, cause=Cause.BUILD, reason=failed.error or "it did not build", hint=hint)
    return replace(one, plan=replace(plan, image=None, blocked=blocked))
