"""The runtime `docker`: a plan runs in a container of the Docker Engine on this machine."""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from msgspec.structs import replace

from madlite.cancellation import Interrupted, check, interruptible
from madlite.errors import RuntimeProblem
from madlite.files import Folder
from madlite.images.client import (
    ANSWER_LIMIT_S,
    Client,
    connect,
    connected,
    error_text,
    explained,
    refused,
    translate_gpu_requests,
    unless_refused,
    why_unavailable,
)
from madlite.images.image import prepare_image
from madlite.model import Cause, ImageUsed, JobOutcome, Json, Place, Problem, RunPlan, Say, Traits
from madlite.plan.inputs import CACHES_INSIDE
from madlite.platforms.docker.container import (
    STAMP,
    Container,
    Labelled,
    labelled,
    last_output,
    outcome_of,
    restore_ownership,
    state_of,
    stays_alive,
)
from madlite.platforms.docker.request import container_name, full_request, masked_request
from madlite.platforms.docker.session import DockerSession
from madlite.platforms.sessions import make_mounts, writing
from madlite.store.folder import FOLDER_LABEL, RUN_LABEL, WORK

# Create and start a plan's container, and leave nothing of it behind.

_LOCK_S = 0.2  # between two looks at whether the wait for another run is to end
EXIT_CHECK_S = 0.2  # an entry point that ends at once has ended by then
LATE_S = 2.0  # what an engine needs to create a container that nobody waits for any more
GIVE_UP_S = 10.0  # for one call to an engine that was too slow to wait for
_NO_DEVICE = re.compile(r'(?:custom device|adding device|\bstat) "?(?P<device>/dev/[^":]+)"?')
_NO_IMAGE = re.compile(r"no such image", re.IGNORECASE)
_NAME_TAKEN = re.compile(r"\bname\b.*\bis already in use")
_NO_GPUS = re.compile(r"could not select device driver", re.IGNORECASE)
_TOOLKIT = "https://docs.nvidia.com/datacenter/cloud-native/container-toolkit"


def start_container(client: Client, plan: RunPlan, environ: Mapping[str, str]) -> Container:
    """Create and start the plan's container; a stop may cut in. Where it fails the caller removes what is there.

    Raises:
        RuntimeProblem: the engine refused, or the container ended at once.
        Interrupted: a stop came; the engine may still be creating the container.
    """
    request = full_request(plan, environ)
    _make_folders(plan)
    with refused(lambda text: _not_started(text, plan)):
        made = interruptible(lambda: _started(client, request, plan))
    return replace(attached(client, made), give_back=plan.give_back)


def _started(client: Client, request: dict[str, Json], plan: RunPlan) -> str:
    request["Env"] += _rocm_path(client, plan)
    translate_gpu_requests(client, request["HostConfig"])
    check()
    made = _create(client, request, plan)
    check()  # who left this removes what was created meanwhile
    client.start(made)
    _check_lives(client, made, plan)
    return made


def _make_folders(plan: RunPlan) -> None:
    """Make the host's folders that mounts want: the engine would make them root's."""
    make_mounts(plan)
    with writing(f"the run's folder {plan.folder}"), Folder.open(plan.folder) as home, home.below(WORK) as work:
        os.close(work.create(STAMP))  # what changes after it is the run's


def _rocm_path(client: Client, plan: RunPlan) -> list[str]:
    """Return ROCM_PATH as MAD's scripts look for it, where neither the plan nor the image states where ROCm is."""
    if plan.machine.vendor != "AMD" or "ROCM_PATH" in plan.env:
        return []
    own = client.inspect_image(_image(plan))["Config"].get("Env") or []
    return [] if any(name.startswith("ROCM_PATH=") for name in own) else ["ROCM_PATH=/opt/rocm"]


def remove_containers_of(client: Client, run_id: str) -> bool:
    """Remove what was created for a run, by its label: an interrupt can hide the id. Return whether there was any."""
    found = client.containers(all=True, filters={"label": f"{RUN_LABEL}={run_id}"})
    for container in found:
        remove_container(client, container["Id"])
    return bool(found)


def remove_late_container(client: Client, run_id: str) -> bool:
    """Remove a container whose creation was interrupted and may finish a little later; return whether it did."""
    client.timeout = GIVE_UP_S
    deadline = time.monotonic() + LATE_S
    while not remove_containers_of(client, run_id):
        if time.monotonic() > deadline:
            return False
        time.sleep(EXIT_CHECK_S)
    return True


def remove_container(client: Client, container: str) -> None:
    """Kill and remove a container with its volumes; one that is gone already is fine.

    Its own process only waits, and stopping it would kill what else is there as well.
    """
    unless_refused(lambda: client.remove_container(container, v=True, force=True), 404, 409)


_OWN_PIDS = (None, "", "private")  # of a container with a process table of its own: as docker says it, and as podman


def attached(client: Client, handle: str) -> Container:
    """Return the container a handle names, as far as the engine knows it.

    Raises:
        RuntimeProblem: there is no such container of ours.
    """
    found = unless_refused(lambda: client.inspect_container(handle), 404)
    if found is None:
        raise RuntimeProblem(f"container {handle[:12]} is gone", cause=Cause.PREPARE)
    config = found["Config"]
    if RUN_LABEL not in (config.get("Labels") or {}):
        raise RuntimeProblem(f"container {handle[:12]} was not started by madlite", cause=Cause.PREPARE)
    folder = Path(config["Labels"][FOLDER_LABEL])
    return Container(
        id=found["Id"],
        image=config["Image"],
        workspace=folder.parent.parent,
        inside=config["WorkingDir"].rstrip("/"),
        folder=folder,
        give_back=_folder_owner(folder),
        shares_processes=found["HostConfig"].get("PidMode") not in _OWN_PIDS,
        caches=CACHES_INSIDE if CACHES_INSIDE in [m["Destination"] for m in found["Mounts"]] else "",
    )


def _create(client: Client, request: dict[str, Json], plan: RunPlan) -> str:
    """Create the container under the plan's name, or under a longer one where somebody has it."""
    import docker.errors

    try:
        made = client.create_container_from_config(request, container_name(plan))
    except docker.errors.APIError as error:
        if error.status_code != 409 and not _NAME_TAKEN.search(error_text(error)):  # podman: 500
            raise
        made = client.create_container_from_config(request, f"{container_name(plan)}-{plan.id[-8:]}")
    return str(made["Id"])


def _check_lives(client: Client, made: str, plan: RunPlan) -> None:
    """Wait for an entry point of the image to show whether it ends at once; `cat` alone never does."""
    if not client.inspect_container(made)["Config"]["Entrypoint"] or stays_alive(client, made, EXIT_CHECK_S):
        return
    message = last_output(client, made)
    raise RuntimeProblem(
        f"the container of image {_image(plan)} ended at once; its entry point did not run 'cat'"
        + (f": {message}" if message else ""),
        'an image that starts a program of its own needs "additional_docker_run_options": "--entrypoint=\'\'"',
        cause=Cause.PREPARE,
    )


def _not_started(message: str, plan: RunPlan) -> RuntimeProblem:
    """Return why the engine did not start the container, with what is missing by name."""
    if found := _NO_DEVICE.search(message):
        what = f"the container cannot have {found['device']}: there is no such device on this machine ({message})"
        hint = "ls -l /dev/kfd /dev/dri /dev/fuse   shows what is there"
        return RuntimeProblem(what, hint, cause=Cause.PREPARE)
    if _NO_IMAGE.search(message):
        return RuntimeProblem(f"image {_image(plan)} is not on this machine", cause=Cause.IMAGE)
    if _NO_GPUS.search(message):
        what = f"docker cannot give NVIDIA GPUs to a container: {message}"
        return RuntimeProblem(what, f"install its container toolkit, restart docker: {_TOOLKIT}", cause=Cause.PREPARE)
    return RuntimeProblem(f"docker did not start a container of {_image(plan)}: {message}", cause=Cause.PREPARE)


def _image(plan: RunPlan) -> str:
    return plan.image.ref if plan.image else ""


def _folder_owner(folder: Path) -> tuple[int, int] | None:
    """Return who owns a run folder, and with it what the run wrote; None for root."""
    try:
        facts = folder.stat()
    except OSError:
        return None
    return (facts.st_uid, facts.st_gid) if facts.st_uid else None


_LOG = logging.getLogger(__name__)


class DockerRuntime:
    """Runs plans in containers; `environ` states where the engine is and what options may refer to."""

    name = "docker"
    traits = Traits(containerised=True)

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._answer: tuple[Problem | None] | None = None
        self._lock = threading.Lock()
        self._preparing: dict[str, threading.Lock] = {}  # of each image

    def supports(self, place: Place) -> bool:
        """Return whether plans for this place can run here."""
        return place.where == "local"

    def available(self) -> Problem | None:
        """Return why the engine cannot be used, or None; asked once, for one that is silent costs seconds each time."""
        if self._answer is None:
            self._answer = (why_unavailable(self._environ),)
        return self._answer[0]

    def request(self, plan: RunPlan) -> Mapping[str, Json]:
        """Return the request that the engine would get, secrets as `***`; touches nothing.

        Raises:
            UsageProblem: the card's `docker run` options cannot be read.
        """
        return masked_request(plan, self._environ)

    def prepare(self, plan: RunPlan, say: Say) -> ImageUsed:
        """Build, find or pull the image.

        Raises:
            RuntimeProblem: the engine, the image or the disk does not allow it.
            UsageProblem: the card's `docker run` options cannot be read: reported before a build, not after it.
        """
        if plan.image is None:
            raise RuntimeProblem(f"card '{plan.card.name}' names no image", "--image REF names one", cause=Cause.IMAGE)
        full_request(plan, self._environ)
        with self._alone(plan.image.ref, say), connected(self._environ) as client:
            return prepare_image(client, plan.image, self._environ, say)

    @contextmanager
    def _alone(self, ref: str, say: Say) -> Iterator[None]:
        """Let one run at a time build or pull an image: the others find what it made."""
        with self._lock:
            lock = self._preparing.setdefault(ref, threading.Lock())
        if not lock.acquire(blocking=False):
            say(f"waiting for another run that prepares {ref}")
            while not lock.acquire(timeout=_LOCK_S):
                check()
        try:
            yield
        finally:
            lock.release()

    @contextmanager
    def open(self, plan: RunPlan) -> Iterator[DockerSession]:
        """Hold a container open; leaving gives the files back and removes it, unless the plan keeps it alive.

        Until it is there a stop may cut in; from then on whoever has the session ends it.

        Raises:
            RuntimeProblem: the container cannot be started.
            Interrupted: a stop came before it was.
        """
        with explained(self._environ):
            client = interruptible(lambda: connect(self._environ))
        try:
            with explained(self._environ):
                container = start_container(client, plan, self._environ)
            session = DockerSession(client, self._environ, container, plan.stop_grace_s)
        except BaseException as error:
            with self._leaving(client):
                self._remove_unopened(client, plan, error)
            raise
        try:
            yield session
        finally:
            with self._leaving(client):
                try:
                    session.close()
                finally:
                    if not plan.keep_alive:
                        remove_containers_of(client, plan.id)

    def _remove_unopened(self, client: Client, plan: RunPlan, error: BaseException) -> None:
        """Remove the container of a session that did not open; one that the engine makes too late is `clean`'s."""
        if not isinstance(error, Interrupted):
            remove_containers_of(client, plan.id)
        elif not remove_late_container(client, plan.id):
            _LOG.warning("the engine may still create the container it was asked for; madlite clean then removes it")

    @contextmanager
    def _leaving(self, client: Client) -> Iterator[None]:
        """End a session; a problem inside is logged, for it must not hide why the session ended."""
        try:
            with explained(self._environ):
                yield
        except RuntimeProblem as problem:
            _LOG.warning("the container may be left (madlite clean removes it): %s", problem.message)
        finally:
            client.close()

    def cancel(self, handle: str) -> None:
        """Give a container's files back, stop and remove it; one that is gone is fine.

        Raises:
            RuntimeProblem: the engine does not do it, or the container was not started by madlite.
        """
        with connected(self._environ) as client:
            if state_of(client, handle) is None:
                return
            container = attached(client, handle)
            restore_ownership(client, container)
            remove_container(client, container.id)

    def containers(self) -> list[Labelled]:
        """Return the containers of runs that the engine has, for whoever searches for what was left.

        Raises:
            RuntimeProblem: the engine does not answer.
        """
        with connected(self._environ) as client:
            return labelled(client)

    def outcome(self, handle: str) -> JobOutcome | None:
        """Return what the engine reports about a container; None of one that is gone.

        Raises:
            RuntimeProblem: the engine does not answer.
        """
        with connected(self._environ, ANSWER_LIMIT_S) as client:
            state = state_of(client, handle)
        return None if state is None else outcome_of(state)
