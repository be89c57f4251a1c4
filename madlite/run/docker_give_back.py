"""Let the caller own what a container wrote as root into the caller's folders."""

from __future__ import annotations

import logging

from madlite.run.docker_client import Client, said
from madlite.run.docker_container import Container

STAMP = ".started"  # in the run folder; what changed after it is the run's
_LOG = logging.getLogger(__name__)
# -cnewer compares with the last change of the file's status, so that what was there before keeps its owner even where
# its content is newer; busybox has -newer alone.  -h changes a link, not what it points to.
_FIND = """
own() { find "$1" -xdev "$4" "$2" -user root -exec chown -h "$3" {} +; }
own "$@" -cnewer 2> /dev/null || own "$@" -newer
"""


def give_back(client: Client, container: Container) -> None:
    """Change the owner of files below the workspace that root made or changed since the start of the run.

    What cannot be changed is logged: it never decides how a run ended.
    """
    import docker.errors

    if container.give_back is None or container.folder is None or is_remapped(client):
        return
    owner = "{}:{}".format(*container.give_back)
    command = ["/bin/sh", "-c", _FIND, "sh", container.inside, f"{container.folder_inside}/{STAMP}", owner]
    try:
        exec_id = client.exec_create(container.id, command, user="0")["Id"]
        words = client.exec_start(exec_id).decode("utf-8", "replace").strip()
        if client.exec_inspect(exec_id)["ExitCode"] != 0:
            _LOG.warning("some files of the run may still belong to root: %s", words[-300:])
    except docker.errors.APIError as error:
        _LOG.warning("files of the run may still belong to root: %s", said(error))


def is_remapped(client: Client) -> bool:
    """Say whether root in a container is somebody else outside (rootless engine, user namespaces)."""
    options = client.info().get("SecurityOptions") or []
    return any(option.startswith(("name=rootless", "name=userns")) for option in options)
