"""The image that a built one is based on, and its digest."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from madlite.errors import RuntimeProblem
from madlite.images.client import Client
from madlite.images.context import dockerfile_text
from madlite.model import Image

_FROM = re.compile(r"^\s*FROM\s+(?:--\S+\s+)*(?P<ref>\S+)(?:\s+AS\s+(?P<stage>\S+))?\s*$", re.IGNORECASE | re.MULTILINE)


def base_digest(client: Client, image: Image) -> str:
    """Return the digest of the image that a built one is based on, as `digest` has it; empty where nobody knows it.

    The engine is asked first: it has the base that was used, unless BuildKit kept it to itself; then its registry.
    """
    import docker.errors
    import requests

    base = base_of(image)
    if not base:
        return ""
    try:
        return digest(client.inspect_image(base), base)
    except docker.errors.APIError:
        pass
    try:
        return str(client.inspect_distribution(base)["Descriptor"]["digest"])
    except (docker.errors.APIError, requests.RequestException, KeyError):
        return ""


def base_of(image: Image) -> str:
    """Return the image that a Dockerfile's result is based on: its BASE_DOCKER, else what its last FROM spells out."""
    if image.base or image.dockerfile is None:
        return image.base
    try:
        found = list(_FROM.finditer(dockerfile_text(image)))
    except RuntimeProblem:
        return ""
    stages = {match["stage"]: match["ref"] for match in found if match["stage"]}
    ref = found[-1]["ref"] if found else ""
    for _ in stages:  # a stage may be based on another
        ref = stages.get(ref, ref)
    return "" if "$" in ref or ref == "scratch" else ref


def digest(found: Mapping[str, Any], ref: str = "") -> str:
    """Return an image's repository digest (`sha256:…`), of `ref`'s own repository where it has one there.

    An image that came from no repository has its id instead.
    """
    digests = [name.split("@", 1) for name in found.get("RepoDigests") or [] if "@" in name]
    own = [value for repository, value in digests if repository == _repository(ref)]
    return str((own or [value for _, value in digests] or [found["Id"]])[0])


def pinned(found: Mapping[str, Any], ref: str = "") -> str:
    """Return an image's name by its digest, `repository@sha256:…`, of `ref`'s own repository where it has one there.

    Empty for one that came from no repository.
    """
    names = [name for name in found.get("RepoDigests") or [] if "@" in name]
    own = [name for name in names if name.partition("@")[0] == _repository(ref)]
    return str((own or names or [""])[0])


def _repository(ref: str) -> str:
    """Return a reference without its tag or digest."""
    return re.sub(r":[^:/]+$", "", ref.split("@", 1)[0])
