"""What a batch of runs from tags built → build_manifest.json."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from madlite.model import Cause, Image, Request, Result, RunPlan, Secret
from madlite.plan.context import Context
from madlite.plan.images import ARCHITECTURE
from madlite.plan.manifest import BuiltImage, FailedBuild
from madlite.plan.manifest_text import manifest_text
from madlite.results.rows import docker_file
from madlite.run.build_jobs import build_words, vendor_of
from madlite.run.build_names import same_content
from madlite.run.one import BUILD_LOG_END
from madlite.run.screen import Planned


def manifest_of_runs(
    planned: Sequence[Planned], results: Sequence[Result], context: Context, secrets: Iterable[str]
) -> str:
    """Return the manifest of what runs from tags built or used, as `madlite build` would have written it.

    `results` are those of the first of the planned, in their order.
    """
    ended = list(zip(planned, results, strict=False))
    gone = [(one.plan, by) for one, result in ended if (by := _overwritten_by(one.plan, result, ended))]
    kept = [(one, result) for one, result in ended if all(one.plan is not plan for plan, _ in gone)]
    images, failed, took_s = builds_of([one for one, _ in kept], [result for _, result in kept])
    failed += [
        _failed(plan, f"its image was made anew for {by}: madlite build gives each its own") for plan, by in gone
    ]
    vendor = next((one.plan.machine.vendor for one in planned), "")
    return manifest_text(images, failed, context, secrets, gpu_vendor=vendor, took_s=took_s)


def builds_of(
    planned: Sequence[Planned], results: Sequence[Result]
) -> tuple[list[BuiltImage], list[FailedBuild], float]:
    """Return what runs from tags built or used, what did not build, and the seconds of all builds."""
    done = [(one.plan, result) for one, result in zip(planned, results, strict=False) if one.plan.image is not None]
    images = [_image(plan, result) for plan, result in done if result.image.ref]
    failed = [_failed(plan, result.reason) for plan, result in done if result.cause is Cause.BUILD]
    return images, failed, sum(result.image.build_duration_s or 0.0 for _, result in done)


def _overwritten_by(plan: RunPlan, result: Result, ended: Sequence[tuple[Planned, Result]]) -> str:
    """Return the card for which a later run made another image of the same name, or nothing."""
    if plan.image is None or not result.image.ref:
        return ""
    of_name = [
        one.plan
        for one, other in ended
        if one.plan.image is not None and one.plan.image.ref == plan.image.ref and other.image.ref
    ]
    last = of_name[-1]
    return "" if last.image is not None and same_content(last.image, plan.image) else f"card '{last.card.name}'"


def _failed(plan: RunPlan, why: str) -> FailedBuild:
    return FailedBuild(model=plan.card.name, error=why, request=_request(plan))


def _request(plan: RunPlan) -> Request:
    return Request(card=plan.card, tag=plan.card.name, overrides=plan.overrides)


def _image(plan: RunPlan, result: Result) -> BuiltImage:
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
        build_command=build_words(image, plan.workspace),
        log_file=f"{plan.log_name}{BUILD_LOG_END}",
        gpu_vendor=vendor_of(image.dockerfile),
        gpu_architecture="" if isinstance(architecture, Secret) else architecture,
        registry_image=result.image.registry,
    )
