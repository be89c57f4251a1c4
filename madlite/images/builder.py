"""One connection to the engine for a batch of builds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from madlite.images.client import Client, connected, explained
from madlite.images.image import prepare_image
from madlite.images.login import log_in
from madlite.model import Image, ImageUsed, Login, Say


class DockerBuilder:
    """Builds images, and pushes those that have a name in a registry."""

    def __init__(self, client: Client, environ: Mapping[str, str]) -> None:
        self._client, self._environ = client, environ

    def build(self, image: Image, say: Say) -> ImageUsed:
        """Build the image, and push it; where that fails the last note says why.

        Raises:
            RuntimeProblem: the engine, the Dockerfile or the disk does not allow it.
        """
        with explained(self._environ):
            return prepare_image(self._client, image, self._environ, say)


@contextmanager
def docker_builder(environ: Mapping[str, str], logins: Iterable[Login] = ()) -> Iterator[DockerBuilder]:
    """Yield a builder that is logged in: a wrong password is found out before the first build.

    Raises:
        RuntimeProblem: no engine answers, or a registry does not let us in.
    """
    with connected(environ) as client:
        for login in logins:
            log_in(client, login)
        yield DockerBuilder(client, environ)
