"""build_manifest.json on its way to the disk, after a build or after runs."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

from madlite.engine.build_jobs import vendor_of
from madlite.engine.one import BUILD_LOG_END
from madlite.engine.screen import Planned
from madlite.errors import UsageProblem
from madlite.plan.context import Context
from madlite.plan.images import ARCHITECTURE
from madlite.plan.manifest import BuiltImage, FailedBuild
from madlite.plan.manifest_text import manifest_text
from madlite.record.rows import docker_file
from madlite.run.docker_buildkit import build_command
from madlite.types import Cause, Image, Request, Result, RunPlan, Secret


def check_writable(file: Path) -> None:
    """Find out before hours of building that a file cannot be written.

    Raises:
        UsageProblem: its folder is not there, or not ours to write in.
    """
    if file.is_dir():
        raise UsageProblem(f"{file} is a folder, not a file to write to")
    if not file.parent.is_dir() or not os.access(file.parent, os.W_OK | os.X_OK):
        raise UsageProblem(f"{file} cannot be written: {file.parent} is no folder that this user may write in")


def write_file(file: Path, text: str) -> None:
    """Replace a file: a reader sees the old one or the new one; of two writers the last one wins.

    Raises:
        OSError: it cannot be written.
    """
    beside = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(file)
    except OSError:
        beside.unlink(missing_ok=True)
        raise


def manifest_of_runs(
    planned: Sequence[Planned], results: Sequence[Result], context: Context, secrets: Iterable[str]
) -> str:
    """Return the manifest of what runs from tags built or used, as `madlite build` would have written it.

    `results` are those of the first of the planned, in their order.
    """
    images, failed, took_s = builds_of(planned, results)
    vendor = next((one.plan.machine.vendor for one in planned), "")
    return manifest_text(images, failed, context, secrets, gpu_vendor=vendor, took_s=took_s)


def builds_of(
    planned: Sequence[Planned], results: Sequence[Result]
) -> tuple[list[BuiltImage], list[FailedBuild], float]:
    """Return what runs from tags built or used, what did not build, and the seconds of all builds."""
    done = [(one.plan, result) for one, result in zip(planned, results, strict=False) if one.plan.image is not None]
    images = [_image(plan, result) for plan, result in done if result.image.ref]
    failed = [
        FailedBuild(model=plan.card.name, error=result.reason) for plan, result in done if result.cause is Cause.BUILD
    ]
    return images, failed, sum(result.image.build_duration_s or 0.0 for _, result in done)


def _image(plan: RunPlan, result: Result) -> BuiltImage:
    image = plan.image or Image(ref="")
    request = Request(card=plan.card, tag=plan.card.name, overrides=plan.overrides)
    if image.dockerfile is None:
        named = docker_file(plan)
        return BuiltImage(request=request, docker_image=image.ref, dockerfile=named, local_image=True)
    architecture = image.build_args.get(ARCHITECTURE, "")
    return BuiltImage(
        request=request,
        docker_image=image.ref,
        dockerfile=docker_file(plan),
        base_docker=image.base,
        docker_sha=result.image.base_digest or result.image.digest,
        build_duration_s=result.image.build_duration_s,
        build_command=shlex.join(build_command(image)).replace(f"{plan.workspace}/", ""),
        log_file=f"{plan.log_name}{BUILD_LOG_END}",
        gpu_vendor=vendor_of(image.dockerfile),
        gpu_architecture="" if isinstance(architecture, Secret) else architecture,
        registry_image=result.image.registry,
    )
