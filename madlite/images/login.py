"""Log in to a registry for the time of one connection to the engine: nothing of it is written to a file."""

from __future__ import annotations

from madlite.errors import RuntimeProblem
from madlite.images.client import Client, said
from madlite.model import Cause, Login

HUB = "https://index.docker.io/v1/"  # what the engine calls Docker Hub


def log_in(client: Client, login: Login) -> None:
    """Let what the client pulls, pushes and builds from now on use the login.

    Raises:
        RuntimeProblem: the registry does not take it, or cannot be asked.
    """
    import docker.errors

    try:
        client.login(login.username, login.password.reveal(), registry=login.host or HUB, reauth=True)
    except docker.errors.APIError as error:
        where = login.host or "Docker Hub"
        raise RuntimeProblem(
            f"{where} does not let user '{login.username}' in: {said(error)}",
            f"check the table '{login.host or 'dockerhub'}' of credential.json",
            cause=Cause.IMAGE,
        ) from error
