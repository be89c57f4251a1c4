"""A running container of ours: where its folders are, whether it lives, and how its end is told."""

from __future__ import annotations

import re
import time
from pathlib import Path

from madlite.errors import RuntimeProblem
from madlite.run.docker_client import Client
from madlite.types import Action, Cause, Value

# what runc, crun, docker and podman put around the reason
_RUNTIMES_TALK = re.compile(
    r"^(?:Error: |OCI runtime [a-z ]+: |c?runc?: |(?:failed to exec|exec failed|unable to start container process): )+"
    r"|: unknown$|: OCI (?:runtime|permission)\b[^:]*$"
)


class Container(Value, frozen=True):
    """A container; `shares_processes` where it sees the process table of the host."""

    id: str
    image: str
    workspace: Path
    inside: str
    folder: Path | None = None  # the run folder on the host
    give_back: tuple[int, int] | None = None
    shares_processes: bool = False

    @property
    def folder_inside(self) -> str:
        """The run folder as the actions see it."""
        return f"{self.inside}/{self.folder.relative_to(self.workspace)}" if self.folder else self.inside


def is_alive(client: Client, container: str) -> bool:
    """Say whether a container is there and running."""
    import docker.errors

    try:
        return bool(client.inspect_container(container)["State"]["Running"])
    except docker.errors.NotFound:
        return False


def stays_alive(client: Client, container: str, limit_s: float) -> bool:
    """Say whether a container is still running after `limit_s`."""
    deadline = time.monotonic() + limit_s
    while is_alive(client, container):
        if time.monotonic() > deadline:
            return True
        time.sleep(limit_s / 4)
    return False


def kill(client: Client, container: str) -> None:
    """Kill a container; one that is gone or has ended is fine."""
    import docker.errors

    try:
        client.kill(container)
    except docker.errors.APIError as error:
        if error.status_code not in (404, 409):
            raise


def last_words(client: Client, container: str) -> str:
    """Return the last lines of a container's own output, "" where they cannot be had."""
    import docker.errors

    try:
        text = client.logs(container, tail=3).decode("utf-8", "replace").strip()
    except docker.errors.APIError:  # it is gone
        return ""
    return " | ".join(text.split("\r\n"))


def gone(client: Client, container: Container, action: Action) -> RuntimeProblem:
    """Return the problem that a container ended under an action."""
    words = last_words(client, container.id)
    return RuntimeProblem(
        f"container {container.id[:12]} of {container.image} ended or was removed while '{action.argv[0]}' "
        f"({action.kind}) ran in it" + (f": {words}" if words else ""),
        "docker events --since 10m   shows who stopped it",
        cause=Cause.INTERRUPTED,
    )


def cannot_start(container: Container, action: Action, words: str) -> RuntimeProblem:
    """Return the problem that an action's command cannot be started in this image."""
    reason = _RUNTIMES_TALK.sub("", words.partition("\n")[0])
    hint = "" if "chdir" in reason else "the image has to hold what the action calls, bash in most cases"
    what = f"'{action.argv[0]}' ({action.kind}) cannot be started in image {container.image}: {reason}"
    return RuntimeProblem(what, hint, cause=Cause.PREPARE)
