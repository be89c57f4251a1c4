"""Reach the Docker Engine: at which address, and in plain words why not."""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from madlite.errors import RuntimeProblem
from madlite.files import read_plain
from madlite.model import Cause, EnvValue, Json, Problem, Secret

# Podman behind docker's API: where its socket is, and which requests differ.

SYSTEM_SOCKET = Path("/run/podman/podman.sock")
GPUS_SINCE = (5, 4)  # before, its docker API takes requests for GPUs and gives none (podman pull request 25171)


def found_socket(environ: Mapping[str, str]) -> Path | None:
    """Return podman's socket, the caller's own before the machine's; None where neither is there."""
    own = environ.get("XDG_RUNTIME_DIR", "")
    places = [Path(own, "podman/podman.sock")] if own else []
    return next(filter(os.path.exists, [*places, SYSTEM_SOCKET]), None)  # Path.exists raises where it may not be seen


def podman_version(client: Any) -> str:
    """Return the version of the podman that answers, "" for another engine."""
    if ping_headers(client).get("Server", "").startswith("Docker/"):
        return ""
    parts = client.version().get("Components") or []
    return next((str(part.get("Version", "")) for part in parts if part.get("Name") == "Podman Engine"), "")


def ping_headers(client: Any) -> Mapping[str, str]:
    """Return the headers with which an engine answers that it is there; none where it refuses to.

    They name the engine and its version of the API.  Docker starts three programs to answer `/version`, and more for
    `/info`: with many short runs that is most of what the engine does.
    """
    answer = client.get(f"{client.base_url}/_ping", timeout=client.timeout)
    found: Mapping[str, str] = answer.headers if answer.ok else {}
    return found


def translate_gpu_requests(client: Any, host: dict[str, Json]) -> None:
    """Format a request's GPUs as the engine understands them: podman knows NVIDIA's by their CDI names alone.

    Raises:
        RuntimeProblem: this podman would start the container without them.
    """
    requests = host.get("DeviceRequests") or []
    version = podman_version(client) if requests else ""
    if not version:
        return
    if tuple(map(int, re.findall(r"\d+", version)[:2])) < GPUS_SINCE:
        raise RuntimeProblem(
            f"podman {version} gives no NVIDIA GPUs to containers that are asked for by docker's API",
            f"podman {'.'.join(map(str, GPUS_SINCE))} or later does, and so does docker",
            cause=Cause.PREPARE,
        )
    host["DeviceRequests"] = [_by_cdi(request) for request in requests]


def _by_cdi(request: Mapping[str, Json]) -> dict[str, Json]:
    """Return a request for GPUs by the names that NVIDIA's toolkit gives them (Container Device Interface)."""
    if request.get("Driver") == "cdi":
        return dict(request)
    count = int(request.get("Count") or -1)
    ids = request.get("DeviceIDs") or (["all"] if count < 0 else [str(gpu) for gpu in range(count)])
    return {"Driver": "cdi", "DeviceIDs": [f"nvidia.com/gpu={gpu}" for gpu in ids]}


Client: TypeAlias = Any  # docker.APIClient, which carries no types
_T = TypeVar("_T")

SOCKET = Path("/var/run/docker.sock")
DEFAULT_ADDRESS = f"unix://{SOCKET}"
ANSWER_LIMIT_S = 2.0  # for asking whether an engine is there
API_LIMIT_S = 120.0  # for one call; removing a big container can take a minute
_ANY_VERSION = "1.24"  # of the API, for a client that asks which one it is to use
RESTART = "does docker version hang as well? sudo systemctl restart docker"
START = "is docker running? sudo systemctl start docker; podman: systemctl --user start podman.socket"
JOIN_GROUP = "sudo usermod -aG docker $USER, then log in again"


def docker_address(environ: Mapping[str, str]) -> str:
    """Return where the engine is queried: DOCKER_HOST, else the current docker context, else the usual socket.

    Where docker's socket is missing and podman's is there, podman's: it implements docker's API.
    """
    if environ.get("DOCKER_HOST"):
        return environ["DOCKER_HOST"]
    name = environ.get("DOCKER_CONTEXT") or _docker_config(environ).get("currentContext", "default")
    if name == "default":
        socket = None if os.path.exists(SOCKET) else found_socket(environ)  # noqa: PTH110 - Path.exists raises where it may not be seen
        return f"unix://{socket}" if socket else DEFAULT_ADDRESS
    from docker.context import ContextAPI

    context = ContextAPI.get_context(name)
    return str(context.Host) if context and context.Host else DEFAULT_ADDRESS


def podman_note(environ: Mapping[str, str]) -> str:
    """Return a sentence where nobody requested podman and it is used all the same, else ""."""
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
    import requests

    address = docker_address(environ)
    try:
        settings = docker.utils.kwargs_from_env(environment={**environ, "DOCKER_HOST": address})
        with docker.APIClient(**settings, version=_ANY_VERSION, timeout=limit_s) as client:
            version = ping_headers(client).get("Api-Version", "auto")
        client = docker.APIClient(**settings, version=version, timeout=limit_s)
    except (docker.errors.DockerException, requests.RequestException) as error:
        raise unreachable(address, error) from error
    except ValueError as error:
        hint = "check DOCKER_HOST: unix:///path/to/docker.sock or tcp://host:2375"
        raise RuntimeProblem(f"no Docker Engine answers at {address}: {error}", hint, cause=Cause.ENGINE) from error
    client.trust_env = not address.startswith("unix://")  # no proxy is on the way to a socket
    return client


@contextmanager
def explained(environ: Mapping[str, str]) -> Iterator[None]:
    """Turn what the docker library raises into a RuntimeProblem."""
    import docker.errors
    import requests
    from requests.exceptions import ChunkedEncodingError
    from urllib3.exceptions import HTTPError  # in the middle of an answer, where requests wraps nothing

    try:
        yield
    except docker.errors.APIError as error:
        raise RuntimeProblem(f"docker: {error_text(error)}", cause=Cause.PREPARE) from error
    except (requests.ConnectionError, requests.Timeout, ChunkedEncodingError, HTTPError) as error:
        raise unreachable(docker_address(environ), error) from error
    except (docker.errors.DockerException, requests.RequestException) as error:
        raise RuntimeProblem(f"docker: {' '.join(str(error).split())}", cause=Cause.PREPARE) from error


def unless_refused(call: Callable[[], _T], *codes: int) -> _T | None:
    """Return what a call of the engine returns; None where it refuses, with one of the codes if there are any.

    404 is of what is not there, 409 also of what has ended, or is being removed.
    """
    import docker.errors

    try:
        return call()
    except docker.errors.APIError as error:
        if codes and error.status_code not in codes:
            raise
        return None


@contextmanager
def refused(problem: Callable[[str], RuntimeProblem]) -> Iterator[None]:
    """Raise a problem that is made of the engine's own words where it refuses what is asked inside."""
    import docker.errors

    try:
        yield
    except docker.errors.APIError as error:
        raise problem(error_text(error)) from error


def error_text(error: Exception) -> str:
    """Return the engine's own words in a refusal."""
    return str(getattr(error, "explanation", None) or error).strip()


def unreachable(address: str, error: Exception) -> RuntimeProblem:
    """Return the problem that no engine answers at an address."""
    reason, hint = _reason(error)
    return RuntimeProblem(f"no Docker Engine answers at {address}: {reason}", hint, cause=Cause.ENGINE)


def _reason(error: Exception) -> tuple[str, str]:
    """Say in plain words why a connection failed, and what to do about it."""
    import requests

    reasons: tuple[tuple[type[BaseException] | tuple[type[BaseException], ...], str, str], ...] = (
        (FileNotFoundError, "there is no such socket", START),
        (ConnectionRefusedError, "the connection was refused", "is docker running? sudo systemctl start docker"),
        (PermissionError, "permission denied", JOIN_GROUP),
        (socket.gaierror, "its host name is not known", "check DOCKER_HOST and docker context ls"),
        (ConnectionResetError, "the connection was closed", "journalctl -u docker -n 20   shows what docker says"),
        ((TimeoutError, requests.Timeout), "it does not answer in time", RESTART),
    )
    found = ((text, hint) for cause in _causes(error) for kind, text, hint in reasons if isinstance(cause, kind))
    return next(found, (str(error), ""))


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and what led to it; requests and urllib3 hide the first cause in arguments."""
    pending, visited = [error], set[int]()
    while pending:
        current = pending.pop(0)
        if id(current) in visited:
            continue
        visited.add(id(current))
        yield current
        linked = [current.__cause__, current.__context__, getattr(current, "reason", None), *current.args]
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
    """Return docker's configuration file; one that is missing or broken reports nothing."""
    folder = environ.get("DOCKER_CONFIG") or f"{environ.get('HOME', '')}/.docker"
    try:
        found = json.loads(read_plain(Path(folder, "config.json")))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


# Follow a long answer of the engine (a build, a pull), and explain what can go wrong in both.

_FULL = re.compile(r"no space left on device|disk quota exceeded|not enough inodes", re.IGNORECASE)
_DENIED = re.compile(r"pull access denied|unauthorized|authentication required|\bdenied\b", re.IGNORECASE)
_ABSENT = re.compile(r"manifest unknown|not found|does not exist", re.IGNORECASE)
_LIMITED = re.compile(r"toomanyrequests|rate limit", re.IGNORECASE)
_PLATFORM = re.compile(r"no matching manifest for", re.IGNORECASE)
_OFFLINE = re.compile(
    r"no such host|connection refused|i/o timeout|network is unreachable|no route to host|Client\.Timeout|"
    r"TLS handshake|temporary failure|server misbehaving|context deadline exceeded|connection reset|\bEOF\b",
    re.IGNORECASE,
)


@contextmanager
def closing_answers(client: Client) -> Iterator[None]:
    """Close every answer that was begun inside, also when an interrupt cuts in: the engine then ends its work.

    No limit bounds the wait for them: the docker library sets none for a pull or a build, and forgets it for a push.
    """
    begun: list[Any] = []
    limit_s, client.timeout = client.timeout, None

    def remember(response: Any, *_args: Any, **_kwargs: Any) -> None:
        begun.append(response)

    client.hooks["response"].append(remember)
    try:
        yield
    finally:
        client.timeout = limit_s
        client.hooks["response"].remove(remember)
        for response in begun:
            response.close()


def pull_problem(ref: str, message: str) -> RuntimeProblem | None:
    """Return why an image cannot be had, in one sentence; None where the engine's message does not show it."""
    login = f"docker login, then docker pull {ref}"
    if _FULL.search(message):
        return RuntimeProblem(
            f"the disk is full while getting image {ref}: {message}",
            "docker system df, docker image prune",
            cause=Cause.DISK,
        )
    for pattern, reason, hint in (
        (_LIMITED, "the registry's pull limit is reached", login),
        (_PLATFORM, "the registry has it for other processors only", f"docker manifest inspect {ref}"),
        (_OFFLINE, f"the registry cannot be reached ({message})", f"check network and proxy: docker pull {ref}"),
        (_DENIED, "there is no such repository, or it needs a login", login),
        (_ABSENT, "the registry has no such tag", "check the name: the card's image, --image, or the FROM line"),
    ):
        if pattern.search(message):
            return RuntimeProblem(f"image {ref} cannot be pulled: {reason}", hint, cause=Cause.IMAGE)
    return None
