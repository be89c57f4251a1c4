"""Where the engine is asked, and what is said when it does not answer."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import threading

import docker
import pytest
import requests
import urllib3

from madlite.errors import RuntimeProblem
from madlite.images.client import connect, docker_address, explained, translate_gpu_requests
from madlite.model import Cause, Problem
from madlite.platforms.docker.runtime import DockerRuntime
from tests.platforms.fake_engine import FakeEngine
from tests.rows import each_row


@pytest.fixture
def socket_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a socket's path must be short
    return "docker.sock"


def problem(**environ: str) -> str:
    found = DockerRuntime(environ).available()
    assert found is not None
    return found.what


def test_docker_host_wins_over_the_context(tmp_path):
    (tmp_path / "config.json").write_text('{"currentContext": "other"}')
    environ = {"DOCKER_CONFIG": str(tmp_path), "DOCKER_HOST": "tcp://127.0.0.1:2375"}
    assert docker_address(environ) == "tcp://127.0.0.1:2375"


def test_the_current_context_is_followed(tmp_path, monkeypatch):
    meta = tmp_path / "contexts/meta" / hashlib.sha256(b"rootless").hexdigest()
    meta.mkdir(parents=True)
    address = "unix:///run/user/1000/docker.sock"
    meta.joinpath("meta.json").write_text(
        json.dumps({"Name": "rootless", "Metadata": {}, "Endpoints": {"docker": {"Host": address}}})
    )
    (tmp_path / "config.json").write_text('{"currentContext": "rootless"}')
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    assert docker_address({"DOCKER_CONFIG": str(tmp_path)}) == address


def test_a_missing_socket_is_told_with_its_address():
    words = problem(DOCKER_HOST="unix:///nonexistent/docker.sock")
    assert "unix:///nonexistent/docker.sock" in words and "no such socket" in words


def test_a_socket_nobody_listens_at_is_told(socket_path):
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(socket_path)
    assert "refused" in problem(DOCKER_HOST=f"unix://{os.path.abspath(socket_path)}")


def test_permission_denied_is_told_with_the_cure(monkeypatch):
    def refuse(*args, **kwargs):
        raise docker.errors.DockerException("no") from PermissionError(13, "Permission denied")

    monkeypatch.setattr(docker, "APIClient", refuse)
    words = problem(DOCKER_HOST="unix:///x.sock")
    assert "permission denied" in words and "usermod -aG docker" in words


def test_an_engine_that_closes_the_connection_is_told_with_where_its_log_is(socket_path):
    with socket.socket(socket.AF_UNIX) as closing:
        closing.bind(socket_path)
        closing.listen()

        def close_at_once():
            while True:
                try:
                    closing.accept()[0].close()
                except OSError:
                    return

        threading.Thread(target=close_at_once, daemon=True).start()
        words = problem(DOCKER_HOST=f"unix://{os.path.abspath(socket_path)}")
        closing.shutdown(socket.SHUT_RDWR)
    assert "the connection was closed" in words and "journalctl -u docker" in words


def test_a_host_name_nobody_knows_is_told(monkeypatch):
    def unknown(*args, **kwargs):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    words = problem(DOCKER_HOST="tcp://no-such-host:2375")
    assert "its host name is not known" in words and "docker context ls" in words


def test_an_engine_that_hangs_is_given_up_soon(socket_path, monkeypatch):
    monkeypatch.setattr("madlite.images.client.ANSWER_LIMIT_S", 0.2)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(socket_path)
        silent.listen()
        words = problem(DOCKER_HOST=f"unix://{os.path.abspath(socket_path)}")
    assert "does not answer in time" in words


@each_row(
    ("address", "reason"),
    [("nonsense://x", "protocol"), ("tcp://127.0.0.1:99999", "Port out of range"), ("tcp://bad host:1", "bad host")],
)
def test_an_address_that_is_none_is_told(address, reason):
    words = problem(DOCKER_HOST=address)
    assert f"no Docker Engine answers at {address}: " in words and reason in words


def test_a_silent_engine_is_asked_once_by_a_runtime(monkeypatch):
    answers = [Problem(where="docker", what="it does not answer in time"), None]
    monkeypatch.setattr("madlite.platforms.docker.runtime.why_unavailable", lambda environ: answers.pop(0))
    silent, working = DockerRuntime({}), DockerRuntime({})
    for runtime, expected in ((silent, "it does not answer in time"), (working, None)):
        for _ in range(2):
            found = runtime.available()
            assert (found and found.what) == expected


@each_row(
    ("raised", "cause"),
    [
        (docker.errors.DockerException("invalid tag 'a (v2)': invalid reference format"), Cause.PREPARE),
        (docker.errors.APIError("refused"), Cause.PREPARE),
        (requests.exceptions.InvalidHeader("not a header"), Cause.PREPARE),
        (requests.exceptions.ConnectionError("gone"), Cause.ENGINE),
        (requests.exceptions.ReadTimeout("slow"), Cause.ENGINE),
        (requests.exceptions.ChunkedEncodingError("cut off"), Cause.ENGINE),
        (urllib3.exceptions.ProtocolError("cut off"), Cause.ENGINE),
    ],
)
def test_only_an_engine_that_went_away_is_called_unreachable(raised, cause):
    with pytest.raises(RuntimeProblem) as told, explained({}):
        raise raised
    assert told.value.cause is cause
    expected = f"docker: {raised}" if cause is Cause.PREPARE else "no Docker Engine answers"
    assert told.value.message.startswith(expected)


def test_dockers_slow_answers_are_not_asked_for_what_its_headers_tell():
    """Docker starts programs to tell its version, for each connection of each run."""
    engine = FakeEngine({"GET /_ping": (200, b"OK")}, {"Api-Version": "1.41", "Server": "Docker/28.0.1 (linux)"})
    try:
        with connect(engine.environ) as client:
            assert client.api_version == "1.41"
            translate_gpu_requests(client, {"DeviceRequests": [{"Driver": "", "Count": -1}]})
        assert set(engine.asked) == {"GET /_ping"}
    finally:
        engine.close()


def test_an_engine_whose_headers_do_not_tell_is_asked_for_its_version():
    """A proxy before its socket may refuse a request, or pass no header on."""
    engine = FakeEngine({"GET /version": (200, {"ApiVersion": "1.43"})})
    try:
        with connect(engine.environ) as client:
            assert client.api_version == "1.43"
    finally:
        engine.close()
