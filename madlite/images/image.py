"""Have a plan's image on the engine: built from its Dockerfile, found, or pulled."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from madlite.errors import RuntimeProblem
from madlite.images.base import base_digest, digest, pinned
from madlite.images.build import build
from madlite.images.buildkit import build_with_buildkit, needs_buildkit
from madlite.images.client import Client, connected, explained
from madlite.images.login import log_in
from madlite.images.podman import podman_version
from madlite.images.pull import name_and_tag, pull
from madlite.images.push import push
from madlite.model import Cause, Image, ImageUsed, Say


def prepare_image(client: Client, image: Image, environ: Mapping[str, str], say: Say) -> ImageUsed:
    """Return the image to use, present on the engine; `say` gets what it is doing, a line at a time.

    Raises:
        RuntimeProblem: it cannot be built, found or pulled, or the disk is too full.
    """
    if image.dockerfile is not None and not image.prebuilt:
        return _built(client, image, environ, say)
    note = _fetched(client, image, environ, say)
    found = _present(client, image.ref)
    return ImageUsed(
        ref=image.ref,
        digest=digest(found, image.ref),
        pinned=pinned(found, image.ref),
        id=str(found["Id"]),
        labels=labels(found),
        base_digest=image.base_digest,
        registry="" if note else image.registry,
        build_duration_s=image.build_duration_s,
        notes=(note,) if note else (),
    )


def is_here(image: Image, environ: Mapping[str, str]) -> bool:
    """Say whether the engine has an image; it asks no registry.

    Raises:
        RuntimeProblem: the engine does not answer.
    """
    with connected(environ) as client:
        return inspect(client, image.ref) is not None


def inspect(client: Client, ref: str) -> dict[str, Any] | None:
    """Return what the engine knows of a local image, or None."""
    import docker.errors

    try:
        return dict(client.inspect_image(ref))
    except docker.errors.ImageNotFound:
        return None


def labels(found: Mapping[str, Any]) -> dict[str, str]:
    """Return an image's labels as text."""
    told = (found.get("Config") or {}).get("Labels") or {}
    return {str(name): str(text) for name, text in told.items()}


def _built(client: Client, image: Image, environ: Mapping[str, str], say: Say) -> ImageUsed:
    begun = time.monotonic()
    buildkit = needs_buildkit(image) and not podman_version(client)  # podman's builder knows most of it
    stale = build_with_buildkit(image, environ, say) if buildkit else build(client, image, say)
    took_s = time.monotonic() - begun
    unpushed = _pushed(client, image, environ, say) if image.registry else ""
    found = _present(client, image.ref)
    return ImageUsed(
        ref=image.ref,
        digest=digest(found, image.ref),
        pinned=pinned(found, image.ref),
        id=str(found["Id"]),
        labels=labels(found),
        base_digest=base_digest(client, image),
        registry="" if unpushed else image.registry,
        build_duration_s=took_s,
        notes=tuple(note for note in (stale, unpushed) if note),
    )


def _pushed(client: Client, image: Image, environ: Mapping[str, str], say: Say) -> str:
    """Push the image; return what a reader of the result should know of it: the run needs the image alone."""
    try:
        with explained(environ):
            if image.login is not None:
                log_in(client, image.login)
            push(client, image.ref, image.registry, say)
    except RuntimeProblem as problem:
        say(problem.message)
        return f"the image was not pushed: {problem.message}"
    return ""


def _fetched(client: Client, image: Image, environ: Mapping[str, str], say: Say) -> str:
    """Pull the image from its registry, else use what is here; return what a reader of the result should know of it."""
    if not image.registry:
        if inspect(client, image.ref) is None:
            pull(client, image.ref, say)
        return ""
    try:
        with explained(environ):
            if image.login is not None:
                log_in(client, image.login)
            pull(client, image.registry, say)
    except RuntimeProblem as problem:
        # what this manifest's build did not make may be any image of that name
        if inspect(client, image.ref) is None or not image.build_duration_s:
            raise
        say(f"{problem.message}; using {image.ref}, which is here")
        return f"the image was not pulled, the one that was here ran: {problem.message}"
    client.tag(image.registry, *name_and_tag(image.ref), force=True)
    return ""


def _present(client: Client, ref: str) -> dict[str, Any]:
    found = inspect(client, ref)
    if found is None:
        raise RuntimeProblem(f"image {ref} is not there after it was made", cause=Cause.IMAGE)
    return found
