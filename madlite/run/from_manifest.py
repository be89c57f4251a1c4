"""A manifest of built images → plans: each card with the images of it that fit this machine."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from madlite.errors import MadliteError, UsageProblem
from madlite.files import is_file, write_named
from madlite.images.build import build_command_text
from madlite.model import Blocked, Cause, Image, Machine, Request, Result, RunPlan, Secret, Status
from madlite.perfcsv.rows import docker_file
from madlite.plan.context import Context, Options
from madlite.plan.images import ARCHITECTURE, login_to, registry_of
from madlite.plan.manifest import NO_DOCKERFILE, BuiltImage, FailedBuild, Manifest, manifest_text, read_manifest
from madlite.plan.place import own_table
from madlite.plan.submission import PlannedRun
from madlite.run.build import content_of, vendor_of
from madlite.run.executor import BUILD_LOG_END, secrets_for
from madlite.run.planning import BatchInputs, image_of_command, plan_card, plan_each
from madlite.run.screen import pair

_log = logging.getLogger(__name__)
_REPLACED = "its image was made anew for another card of that name: madlite build gives each its own"


def plan_manifest(manifest: Manifest, inputs: BatchInputs) -> list[PlannedRun]:
    """Return startable plans of what a manifest names, without building; its context joins the plan context.

    An image for other GPUs is left out where another one of its card fits; where none does the plan reports so and
    becomes a FAILURE row.  So does a build that failed, if its card is known.

    Raises:
        UsageProblem: there is nothing to run, for no card of the manifest is known.
        MadliteError: a card or an option cannot be used; nothing has been touched.
    """
    unknown = [item for item in manifest.failed if item.request is None]
    for item in unknown:
        _log.warning("%s has no card of '%s', whose build failed: %s", manifest.file.name, item.model, item.error)
    requests = [image.request for image in manifest.images]
    requests += [build.request for build in manifest.failed if build.request is not None]
    if not requests:
        names = ", ".join(dict.fromkeys(item.model for item in unknown))
        raise UsageProblem(f"{manifest.file} has no image: no build succeeded", f"madlite build --tags {names}")
    # other args make it another card
    each = [request for at, request in enumerate(requests) if request not in requests[:at]]
    return plan_each([(request, partial(_plan_found, manifest=manifest)) for request in each], inputs)


def _plan_found(request: Request, inputs: BatchInputs, manifest: Manifest) -> list[PlannedRun]:
    """Return the plans of one card: of its images and of its failed builds that are for this machine."""
    if image_of_command(inputs):
        return plan_card(request, (), "", inputs)
    images = [image for image in manifest.images if image.request == request]
    failed = [build for build in manifest.failed if build.request == request]
    machine = inputs.machine
    refused = {
        image.docker_image: why
        for image in images
        if (why := misfit(image.gpu_vendor, image.gpu_architecture, machine))
    }
    fitting = [image for image in images if image.docker_image not in refused]
    missed = [build for build in failed if not misfit("", build.architecture, machine)]
    if not fitting and not missed:
        reasons = [f"{ref}: {why}" for ref, why in refused.items()]
        reasons += [f"the one for {build.architecture} was not built: {build.error}" for build in failed]
        missing = f"no image of card '{request.card.name}' in {manifest.file.name} fits: {'; '.join(reasons)}"
        return plan_card(request, (), missing, inputs)
    notes = tuple(f"left out: image {ref}: {why}" for ref, why in refused.items())
    planned = []
    for image in fitting:
        planned += [_with_manifest_notes(plan, notes, manifest) for plan in _plan(request, image, inputs)]
        notes = ()
    return planned + [_not_built(plan, item) for item in missed for plan in plan_card(request, (), item.error, inputs)]


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


def _plan(request: Request, image: BuiltImage, inputs: BatchInputs) -> Sequence[PlannedRun]:
    if not image.docker_image:  # a card whose backend names the image of each variant
        return plan_card(request, (), f"card '{request.card.name}' names neither a Dockerfile nor an image", inputs)
    if own_table(card := request.card, "distributed"):  # its script starts the containers
        named = own_table(card, "env_vars") | {"DOCKER_IMAGE_NAME": image.registry_image or image.docker_image}
        request = replace(request, card=replace(card, extra={**card.extra, "env_vars": named}))
    return plan_card(request, (_image(image, inputs),), "", inputs)


def _image(image: BuiltImage, inputs: BatchInputs) -> Image:
    if image.local_image:
        return Image(ref=image.docker_image, from_context=image.dockerfile == NO_DOCKERFILE)
    root = inputs.options.workspace
    environ, credentials = inputs.options.environ, inputs.credentials or {}
    registry = image.registry_image
    return Image(
        ref=image.docker_image,
        dockerfile=root / image.dockerfile if image.dockerfile else None,
        base=image.base_docker,
        prebuilt=True,
        registry=registry,
        login=login_to(registry_of(registry), credentials, environ) if registry else None,
        archive=Path(image.image_archive) if image.image_archive and not registry else None,
        base_digest=image.docker_sha,
        build_duration_s=image.build_duration_s,
    )


def _with_manifest_notes(run: PlannedRun, notes: tuple[str, ...], manifest: Manifest) -> PlannedRun:
    """Return the plan with what it owes to the manifest."""
    plan = run.plan
    if plan.image is None:
        return run
    origins = {**plan.origins, "image": manifest.file.name}
    return replace(run, plan=replace(plan, origins=origins, notes=(*plan.notes, *notes)))


def _not_built(run: PlannedRun, failed: FailedBuild) -> PlannedRun:
    """Return the plan kept from starting, unless it needs no image or is to be skipped here."""
    plan = run.plan
    if not plan.traits.containerised or (plan.blocked is not None and plan.blocked.status is Status.SKIPPED):
        return run
    hint = f"madlite build --tags {failed.model}"
    blocked = Blocked.failure(Cause.BUILD, failed.error or "it did not build", hint)
    return replace(run, plan=replace(plan, image=None, blocked=blocked))


# What a batch of runs from tags built → build_manifest.json.


def manifest_of_runs(
    planned: Sequence[PlannedRun], results: Sequence[Result], context: Context, secrets: Iterable[str]
) -> str:
    """Return the manifest of what runs from tags built or used, as `madlite build` would have written it.

    `results` are those of the runs that ended.
    """
    images, failed, took_s = builds_of(planned, results)
    vendor = next((run.plan.machine.vendor for run in planned), "")
    return manifest_text(images, failed, context, secrets, gpu_vendor=vendor, took_s=took_s)


def save_manifest(
    file: Path, planned: Sequence[PlannedRun], results: Sequence[Result], options: Options, context: Context
) -> str:
    """Write the manifest of what a batch of runs from tags built; return what kept it from being written.

    `results` are those of the runs that ended.  A run from a manifest leaves that one as it is, and runs that had
    no image (on the host, not started, not built) leave one that names images.
    """
    secrets = [text for run in planned for text in secrets_for(run, options.environ)]
    if is_file(file) and not builds_of(planned, results)[0]:
        with suppress(MadliteError):
            if read_manifest(file, options.workspace).images:
                return ""
    text = manifest_of_runs(planned, results, context, secrets)
    try:
        write_named(file, text)
    except UsageProblem as problem:
        return problem.message
    return ""


def builds_of(
    planned: Sequence[PlannedRun], results: Sequence[Result]
) -> tuple[list[BuiltImage], list[FailedBuild], float]:
    """Return what runs from tags built or used, what did not build, and the seconds of all builds.

    Of images of one name that cards make of different things, the last one is there, and the others failed.
    """
    ended = pair(planned, results)
    done = [(item.plan, image, result) for item, result in ended if result is not None and (image := item.plan.image)]
    last = {image.ref: content_of(image) for _, image, result in done if result.image.ref}
    images, failed = list[BuiltImage](), list[FailedBuild]()
    for plan, image, result in done:
        if result.image.ref and content_of(image) != last[image.ref]:
            failed.append(_failed(plan, _REPLACED))
        elif result.image.ref:
            images.append(_built_image(plan, result))
        if result.cause is Cause.BUILD:
            failed.append(_failed(plan, result.reason))
    return images, failed, sum(result.image.build_duration_s or 0.0 for _, _, result in done)


def _failed(plan: RunPlan, why: str) -> FailedBuild:
    return FailedBuild(model=plan.card.name, error=why, request=_request(plan))


def _request(plan: RunPlan) -> Request:
    return Request(card=plan.card, tag=plan.card.name, overrides=plan.overrides)


def _built_image(plan: RunPlan, result: Result) -> BuiltImage:
    image = plan.image or Image(ref="")
    if image.dockerfile is None:
        named = docker_file(plan)
        return BuiltImage(request=_request(plan), docker_image=image.ref, dockerfile=named, local_image=True)
    architecture = image.build_args.get(ARCHITECTURE, "")
    return BuiltImage(
        request=_request(plan),
        docker_image=image.ref,
        dockerfile=docker_file(plan),
        base_docker=image.base,
        docker_sha=result.image.base_digest or result.image.digest,
        build_duration_s=result.image.build_duration_s,
        build_command=build_command_text(image, plan.workspace),
        log_file=f"{plan.log_name}{BUILD_LOG_END}",
        gpu_vendor=vendor_of(image.dockerfile),
        gpu_architecture="" if isinstance(architecture, Secret) else architecture,
        registry_image=result.image.registry,
    )
