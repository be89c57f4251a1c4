from __future__ import annotations

import pytest

from madlite.platforms.docker.runtime import DockerRuntime
from tests.engine.checkout import Checkout
from tests.engine_fixture import remove_built


@pytest.fixture(params=[pytest.param("host", marks=pytest.mark.host), pytest.param("docker", marks=pytest.mark.engine)])
def checkout(request, tmp_path):
    """A checkout whose cards run on the host, and again in real containers."""
    if request.param == "docker":
        docker_host = request.getfixturevalue("engine")
        request.getfixturevalue("base_image")
    else:
        docker_host = "unix:///nonexistent/docker.sock"
    yield Checkout(tmp_path / "mad", request.param, docker_host)
    if request.param == "docker":
        remove_built(docker_host, tmp_path)


@pytest.fixture
def runtime(docker_environ, base_image) -> DockerRuntime:
    return DockerRuntime(docker_environ)


@pytest.fixture
def client(engine):
    import docker

    with docker.APIClient(engine) as client:
        yield client
