"""Podman in docker's place: where it is looked for, and how GPUs are asked for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from madlite.errors import RuntimeProblem
from madlite.images import client
from madlite.images import client as docker_client
from madlite.images.client import DEFAULT_ADDRESS, Client, docker_address, podman_note
from tests.platforms.fake_engine import FakeEngine
from tests.rows import each_row

NVIDIA = {"Driver": "", "DeviceIDs": ["0", "3"], "Capabilities": [["gpu"]]}


@contextmanager
def engine(name: str, version: str) -> Iterator[Client]:
    """Yield a client of an engine that answers what it is, as podman and docker do."""
    parts = [{"Name": name, "Version": version}, {"Name": "Conmon", "Version": "conmon version 2.1.6"}]
    server = f"Libpod/{version} (linux)" if name.startswith("Podman") else f"Docker/{version} (linux)"
    headers = {"Api-Version": "1.41", "Server": server}
    answers = {"GET /version": (200, {"ApiVersion": "1.41", "Components": parts}), "GET /_ping": (200, b"OK")}
    answering = FakeEngine(answers, headers)
    try:
        with client.connect(answering.environ) as connected:
            yield connected
    finally:
        answering.close()


@pytest.fixture
def sockets(tmp_path, monkeypatch):
    """Where the three sockets would be; none is there yet."""
    docker, system = tmp_path / "docker.sock", tmp_path / "system.sock"
    own = tmp_path / "runtime/podman/podman.sock"
    own.parent.mkdir(parents=True)
    monkeypatch.setattr(docker_client, "SOCKET", docker)
    monkeypatch.setattr(client, "SYSTEM_SOCKET", system)
    return docker, own, system


def test_dockers_socket_comes_before_podmans_and_the_callers_before_the_machines(sockets, tmp_path):
    docker, own, system = sockets
    environ = {"XDG_RUNTIME_DIR": str(tmp_path / "runtime")}
    assert docker_address(environ) == DEFAULT_ADDRESS
    for socket in (system, own):
        socket.touch()
        assert docker_address(environ) == f"unix://{socket}"
    assert docker_address({}) == f"unix://{system}"
    docker.touch()
    assert docker_address(environ) == DEFAULT_ADDRESS


def test_what_was_asked_for_is_used_whatever_sockets_there_are(sockets, tmp_path):
    sockets[1].touch()
    environ = {"XDG_RUNTIME_DIR": str(tmp_path / "runtime"), "DOCKER_HOST": "tcp://127.0.0.1:2375"}
    assert docker_address(environ) == "tcp://127.0.0.1:2375" and podman_note(environ) == ""


def test_podman_is_named_where_it_was_found_unasked(sockets, tmp_path):
    environ = {"XDG_RUNTIME_DIR": str(tmp_path / "runtime")}
    assert podman_note(environ) == ""
    sockets[1].touch()
    assert podman_note(environ).startswith(f"podman runs the container (unix://{sockets[1]})")


@each_row(
    ("asked", "names"),
    [
        (NVIDIA, ["nvidia.com/gpu=0", "nvidia.com/gpu=3"]),
        ({"Driver": "", "Count": -1, "Capabilities": [["gpu"]]}, ["nvidia.com/gpu=all"]),
        ({"Driver": "", "Count": 2, "Capabilities": [["gpu"]]}, ["nvidia.com/gpu=0", "nvidia.com/gpu=1"]),
        ({"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=7"]}, ["nvidia.com/gpu=7"]),
    ],
)
def test_podman_is_asked_for_gpus_by_their_cdi_names(asked, names):
    host = {"DeviceRequests": [asked]}
    with engine("Podman Engine", "5.10.1") as podman:
        client.translate_gpu_requests(podman, host)
    assert host == {"DeviceRequests": [{"Driver": "cdi", "DeviceIDs": names}]}


def test_docker_is_asked_in_its_own_words():
    host = {"DeviceRequests": [NVIDIA]}
    with engine("Engine", "20.10.24") as docker:
        client.translate_gpu_requests(docker, host)
    assert host == {"DeviceRequests": [NVIDIA]}


@each_row("version", ["4.3.1", "5.3.2", "3.4"])
def test_a_podman_that_would_leave_gpus_out_is_refused(version):
    with engine("Podman Engine", version) as podman:
        with pytest.raises(RuntimeProblem, match=f"podman {version} gives no NVIDIA GPUs"):
            client.translate_gpu_requests(podman, {"DeviceRequests": [NVIDIA]})
        client.translate_gpu_requests(podman, {})
