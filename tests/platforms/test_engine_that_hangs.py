"""An engine that takes requests and answers none: a run that is to end does not wait for it as for one that works."""

from __future__ import annotations

import threading
import time

import pytest
import requests

from madlite.images.client import API_LIMIT_S, connect
from madlite.platforms.docker import session as docker_session
from madlite.platforms.docker.container import Container
from madlite.platforms.docker.session import KILLED, DockerSession
from tests.platforms.fake_engine import HANDED_OVER, FakeEngine
from tests.run.output import Output, bash

pytestmark = pytest.mark.host  # against a server of this machine
CREATED, RUNNING = (201, {"Id": "e"}), (200, {"Running": True, "Pid": 0, "ExitCode": None})
STOP_S, HURRY_S = 0.4, 0.3
LONG_S = 60.0  # far below API_LIMIT_S, and far above all that is waited for here


class Hanging:
    """An engine, a session in its container `c`, and when it answers."""

    def __init__(self, tmp_path) -> None:
        self.answers = threading.Event()  # while it is not set the engine answers nothing
        self.answers.set()
        self.begun = threading.Event()  # the engine was asked to start the action
        self._over = threading.Event()
        self.engine = FakeEngine(
            {
                "POST /containers/c/exec": self._slowly(CREATED),
                "POST /exec/e/start": self._start,
                "GET /exec/e/json": self._slowly(RUNNING),
                "GET /containers/c/json": self._slowly((200, {"State": {"Running": True}})),
                "POST /containers/c/kill": self._slowly((204, b"")),
                "GET /containers/json": self._slowly((200, [])),
            }
        )
        self.client = connect(self.engine.environ)
        box = Container(id="c", image="rocm/x", workspace=tmp_path, inside="/w", folder=tmp_path, give_back=(1, 1))
        self.session = DockerSession(self.client, self.engine.environ, box, grace_s=0.0)

    def asked(self, what: str) -> None:
        """Wait until the engine has been asked for something."""
        until_s = time.monotonic() + 30
        while what not in self.engine.asked:
            assert time.monotonic() < until_s, self.engine.asked
            time.sleep(0.005)

    def close(self) -> None:
        self._over.set()
        self.answers.set()
        self.engine.close()

    def _slowly(self, answer):
        return lambda: (self.answers.wait(API_LIMIT_S), answer)[1]

    def _start(self):
        self.begun.set()
        return HANDED_OVER, self._over


@pytest.fixture
def hanging(tmp_path, monkeypatch):
    for name, limit_s in {"STOP_LIMIT_S": STOP_S, "HURRY_LIMIT_S": HURRY_S}.items():
        monkeypatch.setattr(docker_session, name, limit_s)
    monkeypatch.setattr(docker_session.DockerSession, "return_limit_s", 0.1)
    monkeypatch.setattr(docker_session, "POLL_S", 0.02)
    made = Hanging(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize("grace_s", [5.0, 0.0])
def test_a_run_ends_soon_and_what_is_left_is_told_to_be_clean_s(hanging, grace_s, caplog):
    def stop() -> None:
        assert hanging.begun.wait(30)
        hanging.answers.clear()
        hanging.session.stop(grace_s)

    stopper = threading.Thread(target=stop)
    stopper.start()
    began_s = time.monotonic()
    assert hanging.session.run(bash("sleep inf"), Output()).code == KILLED
    stopper.join()
    assert "the run cannot be stopped: no Docker Engine answers" in caplog.text
    with pytest.raises(requests.Timeout):  # the runtime words it; what it then asks is cut short too
        hanging.session.close()
    assert hanging.client.timeout == (STOP_S if grace_s else HURRY_S) and time.monotonic() - began_s < LONG_S


@pytest.mark.parametrize(("grace_s", "name", "limit_s"), [(5.0, "STOP_LIMIT_S", 40.0), (0.0, "HURRY_LIMIT_S", 30.0)])
def test_once_it_answers_again_it_may_take_its_time(hanging, monkeypatch, grace_s, name, limit_s):
    monkeypatch.setattr(docker_session, name, limit_s)  # room to answer on a machine that is loaded
    limits = []
    real = DockerSession._stop
    monkeypatch.setattr(DockerSession, "_stop", lambda *args: (limits.append(hanging.client.timeout), real(*args)))
    hanging.session.stop(grace_s)
    assert limits == [limit_s] == [hanging.client.timeout]
    monkeypatch.setattr(docker_session, "restore_ownership", lambda client, box: limits.append(hanging.client.timeout))
    hanging.session.close()
    assert "GET /containers/c/json" in hanging.engine.asked, "it was asked whether it answers"
    assert limits[1:] == [API_LIMIT_S] == [hanging.client.timeout]
