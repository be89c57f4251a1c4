from __future__ import annotations

import pytest

from madlite.platforms.docker.runtime import DockerRuntime
from tests.engine.checkout import NO_ENGINE, Checkout
from tests.engine_fixture import remove_built


@pytest.fixture(params=[pytest.param("host", marks=pytest.mark.host), pytest.param("docker", marks=pytest.mark.engine)])
def checkout(request, tmp_path):
    """A checkout whose cards run on the host, and again in real containers."""
    if request.param == "docker":
        docker_host = request.getfixturevalue("engine")
        request.getfixturevalue("base_image")
    else:
        docker_host = NO_ENGINE
    yield Checkout(tmp_path / "mad", request.param, docker_host)
    if request.param == "docker":
        remove_built(docker_host, tmp_path)


@pytest.fixture(params=[pytest.param("host", marks=pytest.mark.host)])
def on_host(tmp_path):
    """A checkout whose cards run on the host: where the runtime has no part, or tests/platforms has it."""
    return Checkout(tmp_path / "mad", "host", NO_ENGINE)


@pytest.fixture
def runtime(docker_environ, base_image) -> DockerRuntime:
    return DockerRuntime(docker_environ)


@pytest.fixture
def client(engine):
    import docker

    with docker.APIClient(engine) as client:
        yield client
