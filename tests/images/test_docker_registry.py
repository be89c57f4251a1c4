"""What becomes of a run whose image cannot be given to or taken from its registry in time."""

from __future__ import annotations

import json
from typing import Any

import docker
import pytest
import requests
from msgspec.structs import replace
from requests.adapters import BaseAdapter

from madlite.errors import RuntimeProblem
from madlite.images import image as docker_image
from madlite.images.image import prepare_image
from madlite.model import Image, Login, Secret
from tests.rows import each_row

TARGET = "localhost:5999/ci-tiny:1"


class SlowRegistry(BaseAdapter):
    """An engine that answers everything at once but what waits for a registry: for that the wait never ends well."""

    def __init__(self, slow: str) -> None:
        super().__init__()
        self.slow = slow
        self.limits: list[object] = []

    def send(self, request: Any, *args: Any, timeout: object = None, **options: Any) -> requests.Response:
        if self.slow in request.url:
            self.limits.append(timeout)
            raise requests.ReadTimeout("read timed out")
        answer = requests.Response()
        answer.status_code = 200
        answer._content = json.dumps({"Id": "sha256:1", "DockerRootDir": "/nonexistent"}).encode()
        return answer

    def close(self) -> None:
        return


def engine(slow: str) -> tuple[docker.APIClient, SlowRegistry]:
    client = docker.APIClient("tcp://127.0.0.1:1", version="1.41", timeout=120)
    registry = SlowRegistry(slow)
    client.mount("http://", registry)
    return client, registry


@pytest.fixture
def built(tmp_path, monkeypatch) -> Image:
    """An image that is built at once."""
    (tmp_path / "Dockerfile").write_text("FROM scratch\n")
    monkeypatch.setattr(docker_image, "build", lambda client, image, say: "")
    return Image(ref="ci-tiny", dockerfile=tmp_path / "Dockerfile", registry=TARGET)


def test_a_push_has_all_the_time_it_needs_and_what_it_does_not_do_is_a_note(built):
    client, registry = engine("/push")
    used = prepare_image(client, built, {}, lambda line: None)
    assert registry.limits == [None] and client.timeout == 120
    assert used.registry == "" and used.digest == "sha256:1" and "the image was not pushed" in used.notes[0]


def test_a_login_that_takes_too_long_is_a_note(built):
    client, registry = engine("/auth")
    login = Login(host="localhost:5999", username="me", password=Secret("hush-hush"))
    used = prepare_image(client, replace(built, login=login), {}, lambda line: None)
    assert registry.limits == [120] and "the image was not pushed" in used.notes[0]


def test_a_pull_that_breaks_off_leaves_the_image_that_the_manifests_build_made():
    client, registry = engine("/images/create")
    made = Image(ref="ci-tiny", registry=TARGET, build_duration_s=2.5)
    used = prepare_image(client, made, {}, lambda line: None)
    assert registry.limits == [None]
    assert used.registry == "" and "the one that was here ran" in used.notes[0]


@each_row("build_duration_s", [None, 0.0])
def test_an_image_of_the_same_name_that_somebody_else_made_does_not_stand_in(build_duration_s: float | None):
    client, _ = engine("/images/create")
    asked = Image(ref="ci-tiny", registry=TARGET, build_duration_s=build_duration_s)
    with pytest.raises(RuntimeProblem):
        prepare_image(client, asked, {}, lambda line: None)
