"""The runtime `docker`: a plan runs in a container of the Docker Engine on this machine."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from madlite.cancellation import Interrupted, interruptible
from madlite.errors import RuntimeProblem
from madlite.images.client import ANSWER_LIMIT_S, Client, connect, connected, explained, why_unavailable
from madlite.images.image import prepare_image
from madlite.model import Cause, ImageUsed, JobOutcome, Json, Place, Problem, RunPlan, Say, Traits
from madlite.runtimes.docker.container import Labelled, labelled, outcome_of, state_of
from madlite.runtimes.docker.give_back import give_back
from madlite.runtimes.docker.request import sent, shown
from madlite.runtimes.docker.session import DockerSession
from madlite.runtimes.docker.start import (
    attached,
    remove_container,
    remove_containers_of,
    remove_late_container,
    start_container,
)

_LOG = logging.getLogger(__name__)


class DockerRuntime:
    """Runs plans in containers; `environ` says where the engine is and what options may refer to."""

    name = "docker"
    traits = Traits(containerised=True)

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._answer: tuple[Problem | None] | None = None

    def supports(self, place: Place) -> bool:
        """Say whether plans for this place can run here."""
        return place.where == "local"

    def available(self) -> Problem | None:
        """Return why the engine cannot be used, or None; asked once, for one that is silent costs seconds each time."""
        if self._answer is None:
            self._answer = (why_unavailable(self._environ),)
        return self._answer[0]

    def request(self, plan: RunPlan) -> Mapping[str, Json]:
        """Return what the engine would be asked for, secrets as `***`; touches nothing.

        Raises:
            UsageProblem: the card's `docker run` options cannot be read.
        """
        return shown(plan, self._environ)

    def prepare(self, plan: RunPlan, say: Say) -> ImageUsed:
        """Build, find or pull the image.

        Raises:
            RuntimeProblem: the engine, the image or the disk does not allow it.
            UsageProblem: the card's `docker run` options cannot be read: told before a build, not after it.
        """
        if plan.image is None:
            raise RuntimeProblem(f"card '{plan.card.name}' names no image", "--image REF names one", cause=Cause.IMAGE)
        sent(plan, self._environ)
        with connected(self._environ) as client:
            return prepare_image(client, plan.image, self._environ, say)

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

    def attach(self, handle: str) -> DockerSession:
        """Return the session of a container that is there, for clean and resume.

        Raises:
            RuntimeProblem: it is gone, or was not started by madlite.
        """
        with explained(self._environ):
            client = connect(self._environ)
            container = attached(client, handle)
        return DockerSession(client, self._environ, container, grace_s=10.0)

    def cancel(self, handle: str) -> None:
        """Give a container's files back, stop and remove it; one that is gone is fine.

        Raises:
            RuntimeProblem: the engine does not do it, or the container was not started by madlite.
        """
        with connected(self._environ) as client:
            if state_of(client, handle) is None:
                return
            container = attached(client, handle)
            give_back(client, container)
            remove_container(client, container.id)

    def containers(self) -> list[Labelled]:
        """Return the containers of runs that the engine has, for whoever looks for what was left.

        Raises:
            RuntimeProblem: the engine does not answer.
        """
        with connected(self._environ) as client:
            return labelled(client)

    def outcome(self, handle: str) -> JobOutcome | None:
        """Return what the engine says of a container; None of one that is gone.

        Raises:
            RuntimeProblem: the engine does not answer.
        """
        with connected(self._environ, ANSWER_LIMIT_S) as client:
            state = state_of(client, handle)
        return None if state is None else outcome_of(state)
