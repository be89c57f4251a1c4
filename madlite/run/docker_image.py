"""Have a plan's image on the engine: built from its Dockerfile, found, or pulled."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from madlite.errors import RuntimeProblem
from madlite.run.docker_build import build
from madlite.run.docker_buildkit import build_with_buildkit, needs_buildkit
from madlite.run.docker_client import Client
from madlite.run.docker_pull import pull
from madlite.types import Cause, Image, ImageUsed, Say


def prepare_image(client: Client, image: Image, environ: Mapping[str, str], say: Say) -> ImageUsed:
    """Return the image to use, present on the engine; `say` gets what it is doing, a line at a time.

    Raises:
        RuntimeProblem: it cannot be built, found or pulled, or the disk is too full.
    """
    took_s, note = None, ""
    if image.dockerfile is not None:
        begun = time.monotonic()
        if needs_buildkit(image.dockerfile):
            note = build_with_buildkit(image, environ, say)
        else:
            note = build(client, image, say)
        took_s = time.monotonic() - begun
    elif inspect(client, image.ref) is None:
        pull(client, image.ref, say)
    found = inspect(client, image.ref)
    if found is None:
        raise RuntimeProblem(f"image {image.ref} is not there after it was made", cause=Cause.IMAGE)
    return ImageUsed(ref=image.ref, digest=digest(found), build_duration_s=took_s, notes=(note,) if note else ())


def inspect(client: Client, ref: str) -> dict[str, Any] | None:
    """Return what the engine knows of a local image, or None."""
    import docker.errors

    try:
        return dict(client.inspect_image(ref))
    except docker.errors.ImageNotFound:
        return None


def digest(found: Mapping[str, Any]) -> str:
    """Return an image's repository digest (`sha256:…`), or its id where it came from no repository."""
    for name in found.get("RepoDigests") or []:
        if "@" in name:
            return str(name.split("@", 1)[1])
    return str(found["Id"])
