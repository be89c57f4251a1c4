from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from madlite.platforms.docker.runtime import DockerRuntime
from tests.engine.checkout import NO_ENGINE, Checkout
from tests.engine_fixture import OF_THE_RUN, spare_given


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
        spare_given(docker_host, tmp_path)


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


@pytest.fixture
def gpus_of_nodes(slurm):
    """Have all GPUs of the shared Slurm's nodes for one test: which of them a job gets is what others have left."""
    with Path(os.environ[OF_THE_RUN], "slurm-gpus").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
