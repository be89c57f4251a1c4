"""A running container of ours: where its folders are, whether it lives, and how its end is told."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from madlite.errors import RuntimeProblem
from madlite.images.client import Client, error_text, unless_refused
from madlite.model import Action, Cause, JobOutcome, Value
from madlite.store.folder import FOLDER_LABEL, KEPT_LABEL, RUN_LABEL

# what runc, crun, docker and podman put around the reason
_RUNTIMES_TALK = re.compile(
    r"^(?:Error: |OCI runtime [a-z ]+: |c?runc?: |(?:failed to exec|exec failed|unable to start container process): )+"
    r"|: unknown$|: OCI (?:runtime|permission)\b[^:]*$"
)


_CANNOT_START = (
    *(b"OCI runtime exec failed", b"OCI runtime error", b"failed to exec", b"exec failed"),
    *(b"Error: runc: ", b"Error: crun: "),  # podman
)
_START_CODES = (126, 127)


class Container(Value, frozen=True):
    """A container; `shares_processes` where it sees the process table of the host."""

    id: str
    image: str
    workspace: Path
    inside: str
    folder: Path | None = None  # the run folder on the host
    give_back: tuple[int, int] | None = None
    shares_processes: bool = False
    caches: str = ""  # where it sees the caches of its study

    @property
    def folder_inside(self) -> str:
        """The run folder as the actions see it."""
        return f"{self.inside}/{self.folder.relative_to(self.workspace)}" if self.folder else self.inside


def is_alive(client: Client, container: str) -> bool:
    """Return whether a container is there and running."""
    return bool((state_of(client, container) or {}).get("Running"))


def stays_alive(client: Client, container: str, limit_s: float) -> bool:
    """Return whether a container is still running after `limit_s`."""
    deadline = time.monotonic() + limit_s
    while is_alive(client, container):
        if time.monotonic() > deadline:
            return True
        time.sleep(limit_s / 4)
    return False


def kill(client: Client, container: str) -> None:
    """Kill a container; one that is gone or has ended is fine."""
    unless_refused(lambda: client.kill(container), 404, 409)


def last_output(client: Client, container: str) -> str:
    """Return the last lines of a container's own output, "" where they cannot be had."""
    said = unless_refused(lambda: client.logs(container, tail=3)) or b""
    return " | ".join(said.decode("utf-8", "replace").strip().split("\r\n"))


def gone(client: Client, container: Container, action: Action) -> RuntimeProblem:
    """Return the problem that a container ended under an action."""
    output = last_output(client, container.id)
    return RuntimeProblem(
        f"container {container.id[:12]} of {container.image} ended or was removed while '{action.argv[0]}' "
        f"({action.kind}) ran in it" + (f": {output}" if output else ""),
        "docker events --since 10m   shows who stopped it",
        cause=Cause.INTERRUPTED,
    )


class Labelled(Value, frozen=True):
    """A container of a run as its labels tell, of any state; `folder` is the run's, `kept` one that is to stay."""

    id: str
    run_id: str
    folder: str
    name: str
    image: str
    status: str
    kept: bool


def labelled(client: Client) -> list[Labelled]:
    """Return the containers that carry a run's label, whoever's run it is."""
    return [
        Labelled(
            id=container["Id"],
            run_id=container["Labels"][RUN_LABEL],
            folder=container["Labels"].get(FOLDER_LABEL, ""),
            name=container["Names"][0].lstrip("/"),
            image=container["Image"],
            status=container["Status"],
            kept=KEPT_LABEL in container["Labels"],
        )
        for container in client.containers(all=True, filters={"label": RUN_LABEL})
    ]


def start_failure(code: int | None, head: bytes) -> str:
    """Return why the engine could not start a command, which it writes where the output goes; "" where it could."""
    failed = code in _START_CODES and head.startswith(_CANNOT_START)
    return head.decode("utf-8", "replace").strip() if failed else ""


def state_of(client: Client, container: str) -> dict[str, Any] | None:
    """Return what the engine reports about a container's state; None of one that is gone.

    Format: https://docs.docker.com/reference/api/engine (ContainerInspect, State).
    """
    found = unless_refused(lambda: client.inspect_container(container), 404)
    return dict(found["State"]) if found is not None else None


def outcome_of(state: Mapping[str, Any]) -> JobOutcome:
    """Return a container's state as the outcome of its session."""
    running = bool(state.get("Running"))
    never = "0001-01-01"  # of Go's time that was never set
    began, ended = (str(state.get(name) or "") for name in ("StartedAt", "FinishedAt"))
    return JobOutcome(
        state=str(state.get("Status") or ("running" if running else "exited")),
        ended=not running,
        code=None if running else int(state.get("ExitCode") or 0),
        out_of_memory=bool(state.get("OOMKilled")),
        reason=" ".join(str(state.get("Error") or "").split()),
        began_at="" if began.startswith(never) else began,
        ended_at="" if running or ended.startswith(never) else ended,
    )


def cannot_start(container: Container, action: Action, output: str) -> RuntimeProblem:
    """Return the problem that an action's command cannot be started in this image."""
    reason = _RUNTIMES_TALK.sub("", output.partition("\n")[0])
    hint = "" if "chdir" in reason else "the image has to hold what the action calls, bash in most cases"
    what = f"'{action.argv[0]}' ({action.kind}) cannot be started in image {container.image}: {reason}"
    return RuntimeProblem(what, hint, cause=Cause.PREPARE)


# Let the caller own what a container wrote as root into the caller's folders.

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


def run_as_root(client: Client, container: str, command: Sequence[str]) -> tuple[int, str]:
    """Run a short command in a container as its root; return its exit code, 0 where none is known, and its output."""
    exec_id = client.exec_create(container, command, user="0")["Id"]
    output = client.exec_start(exec_id).decode("utf-8", "replace").strip()
    return int(client.exec_inspect(exec_id)["ExitCode"] or 0), output


def restore_ownership(client: Client, container: Container) -> None:
    """Change the owner of files of the workspace and of caches that root made or changed since the start of the run.

    What cannot be changed is logged: it never decides how a run ended.
    """
    import docker.errors

    if container.give_back is None or container.folder is None:
        return
    for place in filter(None, (container.inside, container.caches)):
        command = ownership_command(place, f"{container.folder_inside}/{STAMP}", container.give_back)
        try:
            code, output = run_as_root(client, container.id, command)
            if code != 0:
                _LOG.warning("some files of the run may still belong to root: %s", output[-300:])
        except docker.errors.APIError as error:
            _LOG.warning("files of the run may still belong to root: %s", error_text(error))


def ownership_command(place: str, stamp: str, owner: tuple[int, int]) -> list[str]:
    """Return what changes the owner of a folder's files inside; `stamp` is older than those that are the run's."""
    return ["/bin/sh", "-c", _FIND, "sh", place, stamp, "{}:{}".format(*owner), _uid_map()]


def _uid_map() -> str:
    """Return how users of this namespace are numbered outside (user_namespaces(7)), in the words of the script."""
    try:
        return " ".join(Path("/proc/self/uid_map").read_text().split()[:3])
    except OSError:  # a kernel without user namespaces: the container has no such file either
        return ""
