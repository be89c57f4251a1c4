"""A session that is interrupted, or does not come about, before its container is there."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from madlite.cancellation import Cancellation, Interrupted
from madlite.errors import RuntimeProblem, UsageProblem
from madlite.model import EngineOptions
from madlite.platforms.docker import runtime as docker_runtime
from madlite.platforms.docker import runtime as docker_start
from madlite.platforms.docker.runtime import DockerRuntime
from tests.factories import make_plan
from tests.rows import each_row


class FakeEngine:
    """A client of an engine that is asked for one container."""

    timeout: float | None = 120.0

    def __init__(self, create: Callable[[FakeEngine], None], *, late: int = 0) -> None:
        self.create = create
        self.late = late  # so many listings do not hold the container yet
        self.there: list[str] = []
        self.closed = False
        self.run = Cancellation()

    def version(self) -> dict[str, str]:
        return {"Version": "28.0"}

    def create_container_from_config(self, request: Any, name: str) -> dict[str, str]:
        self.there.append("made")
        self.create(self)
        return {"Id": "made"}

    def start(self, made: str) -> None:
        raise AssertionError("not reached")

    def containers(self, **filters: Any) -> list[dict[str, str]]:
        self.late -= 1
        return [{"Id": one} for one in self.there] if self.late < 0 else []

    def stop(self, container: str, timeout: int) -> None:
        self.run.cancel()  # an impatient user: what removes must not be cut short

    def remove_container(self, container: str, **options: Any) -> None:
        self.there.remove(container)

    def close(self) -> None:
        self.closed = True


def interrupt(engine: FakeEngine) -> None:
    engine.run.cancel()
    threading.Event().wait()  # an engine that never answers


def refuse(engine: FakeEngine) -> None:
    import docker.errors

    raise docker.errors.APIError("no such device")


@pytest.mark.host
@each_row("late", [0, 3])
@each_row("kept", [True, False])
def test_a_stop_ends_the_creation_and_its_container_is_removed(tmp_path, monkeypatch, late, kept):
    engine = FakeEngine(interrupt, late=late)
    monkeypatch.setattr(docker_runtime, "connect", lambda environ: engine)
    monkeypatch.setattr(docker_start, "EXIT_CHECK_S", 0.0)
    plan = make_plan(tmp_path, keep_alive=kept)
    with engine.run.scope(), pytest.raises(Interrupted), DockerRuntime({}).open(plan):
        raise AssertionError("not reached")
    assert engine.there == [] and engine.closed


@pytest.mark.host
def test_a_container_that_comes_too_late_is_announced(tmp_path, monkeypatch, caplog):
    engine = FakeEngine(interrupt, late=10**9)
    monkeypatch.setattr(docker_runtime, "connect", lambda environ: engine)
    monkeypatch.setattr(docker_start, "LATE_S", 0.0)
    with engine.run.scope(), pytest.raises(Interrupted), DockerRuntime({}).open(make_plan(tmp_path)):
        raise AssertionError("not reached")
    assert "madlite clean" in caplog.text and engine.closed


def test_a_container_that_was_refused_is_removed_and_told(tmp_path, monkeypatch):
    engine = FakeEngine(refuse)
    monkeypatch.setattr(docker_runtime, "connect", lambda environ: engine)
    refused = pytest.raises(RuntimeProblem, match="no such device")
    with engine.run.scope(), refused, DockerRuntime({}).open(make_plan(tmp_path)):
        raise AssertionError("not reached")
    assert engine.there == [] and engine.closed


def test_options_that_cannot_be_read_are_told_before_the_image_is_made(tmp_path):
    plan = make_plan(tmp_path, engine_options=EngineOptions(extra="-e A=$UNSET"))
    with pytest.raises(UsageProblem, match="UNSET"):  # and not that there is no engine
        DockerRuntime({"DOCKER_HOST": "unix:///nonexistent/docker.sock"}).prepare(plan, print)
