"""Reach the Docker Engine: at which address, and in plain words why not."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

from madlite.errors import RuntimeProblem
from madlite.images.podman import found_socket, is_there
from madlite.model import Cause, EnvValue, Problem, Secret
from madlite.safe_read import read_named

Client: TypeAlias = Any  # docker.APIClient, which carries no types

SOCKET = Path("/var/run/docker.sock")
DEFAULT_ADDRESS = f"unix://{SOCKET}"
ANSWER_LIMIT_S = 2.0  # for asking whether an engine is there
API_LIMIT_S = 120.0  # for one call; removing a big container can take a minute
START = "is docker running? sudo systemctl start docker; podman: systemctl --user start podman.socket"
JOIN_GROUP = "sudo usermod -aG docker $USER, then log in again"


def docker_address(environ: Mapping[str, str]) -> str:
    """Return where the engine is asked: DOCKER_HOST, else the current docker context, else the usual socket.

    Where docker's socket is missing and podman's is there, podman's: it speaks docker's language.
    """
    if environ.get("DOCKER_HOST"):
        return environ["DOCKER_HOST"]
    name = environ.get("DOCKER_CONTEXT") or _docker_config(environ).get("currentContext", "default")
    if name == "default":
        socket = None if is_there(SOCKET) else found_socket(environ)
        return f"unix://{socket}" if socket else DEFAULT_ADDRESS
    from docker.context import ContextAPI

    context = ContextAPI.get_context(name)
    return str(context.Host) if context and context.Host else DEFAULT_ADDRESS


def podman_note(environ: Mapping[str, str]) -> str:
    """Return a sentence where nobody asked for podman and it is used all the same, else ""."""
    address = docker_address(environ)
    found = not environ.get("DOCKER_HOST") and address.endswith("/podman/podman.sock")
    return f"podman runs the container ({address}): there is no Docker Engine here" if found else ""


def why_unavailable(environ: Mapping[str, str]) -> Problem | None:
    """Return why the engine cannot be used now, or None; within a few seconds."""
    try:
        with connected(environ, ANSWER_LIMIT_S) as client:
            client.ping()
    except RuntimeProblem as problem:
        hint = f" ({problem.hint})" if problem.hint else ""
        return Problem(where="docker", what=problem.message + hint)
    return None


@contextmanager
def connected(environ: Mapping[str, str], limit_s: float = API_LIMIT_S) -> Iterator[Client]:
    """Yield a client of the engine; `limit_s` bounds each wait for its answer.

    Raises:
        RuntimeProblem: the engine cannot be reached, or refused a call made inside.
    """
    with explained(environ):
        client = connect(environ, limit_s)
        try:
            yield client
        finally:
            client.close()


def connect(environ: Mapping[str, str], limit_s: float = API_LIMIT_S) -> Client:
    """Return a client of the engine. The caller closes it, and wraps this and what it asks in `explained`.

    Raises:
        RuntimeProblem: no engine answers at the address, or it is no address.
    """
    import docker

    address = docker_address(environ)
    try:
        given = docker.utils.kwargs_from_env(environment={**environ, "DOCKER_HOST": address})
        return docker.APIClient(**given, version="auto", timeout=limit_s)
    except docker.errors.DockerException as error:
        raise unreachable(address, error) from error
    except ValueError as error:
        hint = "check DOCKER_HOST: unix:///path/to/docker.sock or tcp://host:2375"
        raise RuntimeProblem(f"no Docker Engine answers at {address}: {error}", hint, cause=Cause.ENGINE) from error


@contextmanager
def explained(environ: Mapping[str, str]) -> Iterator[None]:
    """Turn what the docker library raises into a RuntimeProblem."""
    import docker.errors
    import requests

    try:
        yield
    except docker.errors.APIError as error:
        raise RuntimeProblem(f"docker: {said(error)}", cause=Cause.PREPARE) from error
    except _broken_off() as error:
        raise unreachable(docker_address(environ), error) from error
    except (docker.errors.DockerException, requests.RequestException) as error:
        raise RuntimeProblem(f"docker: {' '.join(str(error).split())}", cause=Cause.PREPARE) from error


def _broken_off() -> tuple[type[Exception], ...]:
    """Return the errors which say that an engine went away."""
    from requests.exceptions import ChunkedEncodingError, ConnectionError, Timeout
    from urllib3.exceptions import HTTPError  # in the middle of an answer, where requests wraps nothing

    return (ConnectionError, Timeout, ChunkedEncodingError, HTTPError)


def said(error: Exception) -> str:
    """Return the engine's own words in a refusal."""
    return str(getattr(error, "explanation", None) or error).strip()


def unreachable(address: str, error: Exception) -> RuntimeProblem:
    """Return the problem that no engine answers at an address."""
    reason, hint = _reason(error)
    return RuntimeProblem(f"no Docker Engine answers at {address}: {reason}", hint, cause=Cause.ENGINE)


def _reason(error: Exception) -> tuple[str, str]:
    """Say in plain words why a connection failed, and what to do about it."""
    import requests

    for cause in _causes(error):
        if isinstance(cause, FileNotFoundError):
            return "there is no such socket", START
        if isinstance(cause, ConnectionRefusedError):
            return "the connection was refused", "is docker running? sudo systemctl start docker"
        if isinstance(cause, PermissionError):
            return "permission denied", JOIN_GROUP
        if isinstance(cause, socket.gaierror):
            return "its host name is not known", "check DOCKER_HOST and docker context ls"
        if isinstance(cause, ConnectionResetError):
            return "the connection was closed", "journalctl -u docker -n 20   shows what docker says"
        if isinstance(cause, (TimeoutError, requests.Timeout)):
            return "it does not answer in time", "does docker version hang as well? sudo systemctl restart docker"
    return str(error), ""


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and what led to it; requests and urllib3 hide the first cause in arguments."""
    pending, seen = [error], set[int]()
    while pending:
        here = pending.pop(0)
        if id(here) in seen:
            continue
        seen.add(id(here))
        yield here
        linked = [here.__cause__, here.__context__, getattr(here, "reason", None), *here.args]
        pending += [link for link in linked if isinstance(link, BaseException)]


def proxy_environment(environ: Mapping[str, str]) -> dict[str, EnvValue]:
    """Return the proxy variables that `docker run` would give a container, from docker's configuration file.

    Format: https://docs.docker.com/engine/cli/proxy. An address may hold a password, so each is a secret.
    """
    proxies = _docker_config(environ).get("proxies") or {}
    chosen = proxies.get(docker_address(environ)) or proxies.get("default") or {}
    found: dict[str, EnvValue] = {}
    for key in ("httpProxy", "httpsProxy", "ftpProxy", "noProxy", "allProxy"):
        if isinstance(chosen.get(key), str):
            name = key.replace("Proxy", "_proxy")
            found |= {name.upper(): Secret(chosen[key]), name: Secret(chosen[key])}
    return found


def _docker_config(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return docker's configuration file; one that is missing or broken says nothing."""
    folder = environ.get("DOCKER_CONFIG") or f"{environ.get('HOME', '')}/.docker"
    try:
        found = json.loads(read_named(Path(folder, "config.json")))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
