"""An engine that takes requests and answers none: a run that is to end does not wait for it as for one that works."""

from __future__ import annotations

import threading
import time

import pytest
import requests

from madlite.run import docker_session
from madlite.run.docker_client import API_LIMIT_S, connect
from madlite.run.docker_container import Container
from madlite.run.docker_session import KILLED, DockerSession
from tests.run.fake_engine import HANDED_OVER, FakeEngine
from tests.run.output import Output, bash

pytestmark = pytest.mark.host  # against a server of this machine
CREATED, RUNNING = (201, {"Id": "e"}), (200, {"Running": True, "Pid": 0, "ExitCode": None})


@pytest.fixture
def hangs():
    """While it is not set the engine answers nothing."""
    event = threading.Event()
    event.set()
    yield event
    event.set()


@pytest.fixture
def begun():
    """Is set when the engine has started the action."""
    return threading.Event()


@pytest.fixture
def session(hangs, begun, tmp_path, monkeypatch):
    def slowly(answer):
        return lambda: (hangs.wait(90), answer)[1]

    def start():
        begun.set()
        return HANDED_OVER, over

    for name in ("STOP_LIMIT_S", "HURRY_LIMIT_S"):
        monkeypatch.setattr(docker_session, name, 0.3)
    monkeypatch.setattr(docker_session, "POLL_S", 0.02)
    over = threading.Event()
    answers = {"POST /containers/c/exec": slowly(CREATED), "POST /exec/e/start": start}
    engine = FakeEngine({**answers, "GET /exec/e/json": slowly(RUNNING)})
    box = Container(id="c", image="rocm/x", workspace=tmp_path, inside="/w")
    yield DockerSession(connect(engine.environ), engine.environ, box, grace_s=0.0)
    over.set()
    hangs.set()
    engine.close()


@pytest.mark.parametrize("grace_s", [5.0, 0.0])
def test_a_run_ends_soon_and_what_is_left_is_told_to_be_clean_s(session, hangs, begun, grace_s, caplog):
    def stop() -> None:
        assert begun.wait(30)
        hangs.clear()
        session.stop(grace_s)

    stopper = threading.Thread(target=stop)
    stopper.start()
    began_s = time.monotonic()
    assert session.run(bash("sleep inf"), Output()).code == KILLED
    stopper.join()
    assert "the run cannot be stopped: no Docker Engine answers" in caplog.text
    with pytest.raises(requests.Timeout):  # the runtime words it; what it then asks is cut short too
        session.close()
    assert session._client.timeout < 1 and time.monotonic() - began_s < 60


def test_once_it_answers_again_it_may_take_its_time(session, hangs, monkeypatch):
    monkeypatch.setattr(DockerSession, "_stop", lambda *args: None)
    session.stop(5.0)
    assert session._client.timeout == 0.3
    session.close()
    assert session._client.timeout == API_LIMIT_S
