"""Registries: what an image is called there, and how to log in.

Names and tables of credential.json: madengine 2's.  `dockerhub`, or a registry's host, has `repository`, `username` and
`password`; MAD_DOCKERHUB_USER, _PASSWORD and _REPO come before the table `dockerhub`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from madlite.model import Login, Secret

Credentials = Mapping[str, Mapping[str, str]]
HUB = "dockerhub"
_HUB_HOSTS = ("docker.io", "index.docker.io", "registry-1.docker.io", "hub.docker.com", HUB)
_FROM_ENVIRONMENT = {
    "username": "MAD_DOCKERHUB_USER",
    "password": "MAD_DOCKERHUB_PASSWORD",
    "repository": "MAD_DOCKERHUB_REPO",
}


def name_in_registry(image: str, registry: str, credentials: Credentials, environ: Mapping[str, str]) -> str:
    """Return what a local image is called in a registry.

    On Docker Hub `<repository>:<image>` where the credential names a repository, else `<image>`; elsewhere
    `<registry>/<repository>:<image>` or `<registry>/<image>`.
    """
    host = _host(registry)
    repository = _table(host, credentials, environ).get("repository", "")
    where = registry.strip("/")
    prefix = "" if where in _HUB_HOSTS else f"{where}/"
    return f"{prefix}{repository}:{image}" if repository else f"{prefix}{image}"


def login_to(registry: str, credentials: Credentials, environ: Mapping[str, str]) -> Login | None:
    """Return the login for a registry, None where none is known: docker's own logins are used then."""
    host = _host(registry)
    table = _table(host, credentials, environ)
    if not table.get("username") or not table.get("password"):
        return None
    return Login(host="" if host == HUB else host, username=table["username"], password=Secret(table["password"]))


def registry_of(ref: str) -> str:
    """Return the registry that an image's name leads to: what has no host is on Docker Hub, as docker has it."""
    first, slash, _ = ref.partition("/")
    return first if slash and (re.search(r"[.:]", first) or first == "localhost") else HUB


def _host(registry: str) -> str:
    host = registry.strip("/").partition("/")[0]
    return HUB if host in _HUB_HOSTS else host


def _table(host: str, credentials: Credentials, environ: Mapping[str, str]) -> dict[str, str]:
    table = dict(credentials.get(host) or {})
    if host == HUB:
        table |= {key: environ[name] for key, name in _FROM_ENVIRONMENT.items() if environ.get(name)}
    return table
