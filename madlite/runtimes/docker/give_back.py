"""Let the caller own what a container wrote as root into the caller's folders."""

from __future__ import annotations

import logging
from pathlib import Path

from madlite.images.client import Client, said
from madlite.runtimes.docker.container import Container

STAMP = ".started"  # in the run folder; what changed after it is the run's
_LOG = logging.getLogger(__name__)
# -cnewer compares with the last change of the file's status, so that what was there before keeps its owner even where
# its content is newer; busybox has -newer alone.  -h changes a link, not what it points to.
# Where root inside is somebody else outside (a rootless engine, user namespaces) the files are somebody's already.
_FIND = """
read -r first outside length < /proc/self/uid_map && [ "$first $outside $length" != "$4" ] && exit 0
own() { find "$1" -xdev "$5" "$2" -user root -exec chown -h "$3" {} +; }
own "$@" -cnewer 2> /dev/null || own "$@" -newer
"""


def give_back(client: Client, container: Container) -> None:
    """Change the owner of files below the workspace that root made or changed since the start of the run.

    What cannot be changed is logged: it never decides how a run ended.
    """
    import docker.errors

    if container.give_back is None or container.folder is None:
        return
    command = give_back_command(container.inside, f"{container.folder_inside}/{STAMP}", container.give_back)
    try:
        exec_id = client.exec_create(container.id, command, user="0")["Id"]
        words = client.exec_start(exec_id).decode("utf-8", "replace").strip()
        if client.exec_inspect(exec_id)["ExitCode"] != 0:
            _LOG.warning("some files of the run may still belong to root: %s", words[-300:])
    except docker.errors.APIError as error:
        _LOG.warning("files of the run may still belong to root: %s", said(error))


def give_back_command(place: str, stamp: str, owner: tuple[int, int]) -> list[str]:
    """Return what changes the owner of a folder's files inside; `stamp` is older than those that are the run's."""
    return ["/bin/sh", "-c", _FIND, "sh", place, stamp, "{}:{}".format(*owner), _users_here()]


def _users_here() -> str:
    """Return how users of this namespace are numbered outside (user_namespaces(7)), in the words of the script."""
    try:
        return " ".join(Path("/proc/self/uid_map").read_text().split()[:3])
    except OSError:  # a kernel without user namespaces: the container has no such file either
        return ""
