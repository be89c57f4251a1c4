"""An engine that refuses, breaks off or knows nothing more: what the user is told, and that no call waits for it."""

from __future__ import annotations

import threading

import docker
import pytest

from madlite.errors import RuntimeProblem
from madlite.images.build import build
from madlite.images.client import connect, explained
from madlite.images.image import base_digest, prepare_image, push
from madlite.model import Cause, Image, Mount
from madlite.platforms.docker import container as docker_container
from madlite.platforms.docker import runtime as docker_start
from madlite.platforms.docker import session as docker_session
from madlite.platforms.docker.container import Container, restore_ownership
from madlite.platforms.docker.runtime import DockerRuntime, remove_container
from madlite.platforms.docker.session import KILLED, DockerSession, Exec, send
from tests.factories import make_plan
from tests.platforms.fake_engine import HANDED_OVER, FakeEngine, Lines, break_off, frame, in_a_row
from tests.rows import each_row
from tests.run.output import Output, bash

pytestmark = pytest.mark.host  # against a server of this machine

BUSY = (500, {"message": "the engine is busy"})
CONFLICT = (409, {"message": "container c is not running"})
RUNNING = (200, {"Running": True, "Pid": 0, "ExitCode": None})


def ended(code: int) -> tuple[int, dict[str, object]]:
    return 200, {"Running": False, "Pid": 0, "ExitCode": code}


@pytest.fixture
def engine():
    made: list[FakeEngine] = []

    def make(answers=()):
        """Make an engine of answers, in which an exec `e` can be started."""
        usual = {"POST /containers/c/exec": (201, {"Id": "e"}), "POST /exec/e/start": (HANDED_OVER, b"")}
        made.append(FakeEngine({**usual, **dict(answers)}))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def session(engine, tmp_path):
    """Make a session in container `c` of an engine."""

    def make(answers):
        at = engine(answers=answers)
        box = Container(id="c", image="rocm/x", workspace=tmp_path, inside="/w")
        return at, DockerSession(connect(at.environ), at.environ, box, grace_s=0.0)

    return make


def told(problem: pytest.ExceptionInfo[RuntimeProblem]) -> str:
    return f"{problem.value.message} | {problem.value.hint}"


def test_output_that_comes_together_with_the_answer_s_head_is_not_lost(session):
    output = Output()
    _, made = session(answers={"POST /exec/e/start": (HANDED_OVER, frame(b"first\n")), "GET /exec/e/json": ended(3)})
    assert made.run(bash("true"), output).code == 3
    assert output.streams[1] == b"first\n"


@each_row("status", [404, 409])
def test_a_container_that_is_gone_before_an_action_starts_is_told(session, status):
    _, made = session(answers={"POST /containers/c/exec": (status, {"message": "no"})})
    with pytest.raises(RuntimeProblem, match="container c of rocm/x ended or was removed while 'bash'") as problem:
        made.run(bash("true"), Output())
    assert problem.value.cause is Cause.INTERRUPTED and "docker events" in problem.value.hint


def test_an_engine_that_refuses_an_action_is_quoted(session):
    _, made = session(answers={"POST /containers/c/exec": BUSY})
    with pytest.raises(RuntimeProblem, match="docker: the engine is busy"):
        made.run(bash("true"), Output())


@pytest.fixture
def hung(session, monkeypatch):
    """Make a session whose process the engine tells as running for ever; it is stopped once it runs."""
    monkeypatch.setattr(docker_session.DockerSession, "return_limit_s", 0.05)
    monkeypatch.setattr(docker_session, "POLL_S", 0.02)
    over = threading.Event()
    stoppers = []

    def make(kill):
        at, made = session(
            answers={
                "POST /containers/c/exec": in_a_row((201, {"Id": "e"}), (201, {"Id": "signal"})),
                "POST /exec/signal/start": (HANDED_OVER, b""),
                "GET /exec/signal/json": ended(1),
                "GET /exec/e/json": RUNNING,
                "POST /containers/c/kill": kill,
            }
        )

        def start():
            stoppers.append(threading.Thread(target=made.stop, args=(0.0,)))
            stoppers[0].start()
            return HANDED_OVER, over

        at.answers["POST /exec/e/start"] = start
        return at, made

    yield make
    over.set()
    for stopper in stoppers:
        stopper.join(10)


def test_a_process_that_nothing_ends_costs_its_container_and_not_our_end(hung):
    at, made = hung((204, b""))
    assert made.run(bash("sleep inf"), Output()).code == KILLED
    assert "POST /containers/c/kill" in at.asked


def test_a_run_that_cannot_be_stopped_is_given_up_with_a_warning(hung, caplog):
    _, made = hung(BUSY)
    assert made.run(bash("sleep inf"), Output()).code == KILLED
    assert "the run cannot be stopped: docker: the engine is busy" in caplog.text


@each_row("kill", [(204, b""), (404, {"message": "gone"}), CONFLICT])
def test_what_an_interrupt_left_running_is_killed_with_its_container(session, kill):
    at, made = session(
        answers={
            "POST /containers/c/exec": in_a_row((201, {"Id": "e"}), (201, {"Id": "signal"})),
            "POST /exec/signal/start": (HANDED_OVER, b""),
            "GET /exec/signal/json": ended(1),
            "GET /exec/e/json": in_a_row(ended(0), ended(0), RUNNING),
            "POST /containers/c/kill": kill,
        }
    )
    made.run(bash("true"), Output())
    made.close()
    assert at.asked[-1] == "POST /containers/c/kill"


def test_a_signal_whose_fate_the_engine_does_not_know_may_have_been_got(engine):
    at = engine(answers={"GET /exec/e/json": RUNNING})
    assert send(connect(at.environ), "c", "INT") == 0


def test_an_exec_that_goes_on_has_no_exit_code_yet(engine):
    running = Exec(connect(engine(answers={"GET /exec/e/json": RUNNING}).environ), "c", ["true"], "/", {})
    assert running.exit_code(0.0) is None and not running.has_surely_ended()


def test_an_engine_that_does_not_answer_tells_of_no_end(engine):
    at = engine()
    running = Exec(connect(at.environ), "c", ["true"], "/", {})
    assert running.has_surely_ended()  # 404: it is gone with its container
    at.answers["GET /exec/e/json"] = break_off
    assert not running.has_surely_ended()


def test_a_container_that_cannot_be_killed_is_told(engine):
    at = engine(answers={"POST /containers/c/kill": BUSY})
    with pytest.raises(RuntimeProblem, match="busy"), explained(at.environ):
        docker_container.kill(connect(at.environ), "c")


def test_a_container_nobody_knows_is_not_alive(engine):
    assert docker_container.is_alive(connect(engine().environ), "c") is False


def test_a_signal_to_a_container_that_ended_has_nobody_left_to_get_it(engine):
    at = engine(answers={"POST /containers/c/exec": CONFLICT})
    assert send(connect(at.environ), "c", "INT") == 1


@pytest.mark.parametrize("code", [126, 127])
def test_an_image_without_a_shell_is_told_where_a_signal_cannot_be_sent(engine, caplog, code):
    at = engine(answers={"GET /exec/e/json": ended(code)})
    assert send(connect(at.environ), "c", "INT") == code
    assert "INT cannot be sent inside container c (no /bin/sh?): it will be killed" in caplog.text


def test_files_that_cannot_be_given_back_are_a_warning(engine, tmp_path, caplog):
    box = Container(id="c", image="i", workspace=tmp_path, inside="/w", folder=tmp_path / "r", give_back=(1000, 1000))
    restore_ownership(connect(engine(answers={"POST /containers/c/exec": CONFLICT}).environ), box)
    assert "files of the run may still belong to root: container c is not running" in caplog.text


def test_a_removal_that_is_refused_is_told_and_one_under_way_is_fine(engine):
    for status in (404, 409):
        at = engine(answers={"DELETE /containers/c": (status, {"message": "gone"})})
        remove_container(connect(at.environ), "c")
    at = engine(answers={"DELETE /containers/c": BUSY})
    with pytest.raises(docker.errors.APIError, match="busy"):
        remove_container(connect(at.environ), "c")


def test_a_container_that_may_be_left_is_announced_and_hides_no_reason(engine, tmp_path, caplog):
    """The engine refuses the container, and then what would look for it."""
    at = engine(answers={"POST /containers/create": BUSY, "GET /containers/json": BUSY})
    with pytest.raises(RuntimeProblem) as problem, DockerRuntime(at.environ).open(make_plan(tmp_path)):
        raise AssertionError("not reached")
    assert "docker did not start a container of madlite-test/base:latest: the engine is busy" in told(problem)
    assert "the container may be left (madlite clean removes it)" in caplog.text


@each_row(
    ("words", "message", "hint", "cause"),
    [
        ("unknown or invalid runtime name: nvidia", "unknown or invalid runtime name: nvidia", "", Cause.PREPARE),
        ("No such image: madlite-test/base:latest", "is not on this machine", "", Cause.IMAGE),
        ('could not select device driver "" with capabilities', "NVIDIA GPUs", "container-toolkit", Cause.PREPARE),
    ],
)
def test_a_container_that_does_not_start_is_told_with_what_is_missing(engine, tmp_path, words, message, hint, cause):
    at = engine(answers={"POST /containers/create": (500, {"message": words}), "GET /containers/json": (200, [])})
    with pytest.raises(RuntimeProblem) as problem, DockerRuntime(at.environ).open(make_plan(tmp_path)):
        raise AssertionError("not reached")
    assert message in problem.value.message and hint in problem.value.hint and problem.value.cause is cause


def test_a_folder_for_a_mount_that_cannot_be_made_is_told(engine, tmp_path):
    (tmp_path / "file").touch()
    plan = make_plan(tmp_path, mounts=(Mount(source=str(tmp_path / "file/cache"), target="/cache", create=True),))
    at = engine(answers={"GET /containers/json": (200, [])})
    with pytest.raises(RuntimeProblem) as problem, DockerRuntime(at.environ).open(plan):
        raise AssertionError("not reached")
    assert "/file/cache (for /cache) cannot be made: Not a directory" in problem.value.message
    assert "POST /containers/create" not in at.asked


def test_a_plan_without_an_image_is_told_before_the_engine_is_asked(tmp_path):
    with pytest.raises(RuntimeProblem, match="card 'tiny' names no image") as problem:
        DockerRuntime({"DOCKER_HOST": "unix:///nonexistent"}).prepare(make_plan(tmp_path, image=None), print)
    assert problem.value.hint == "--image REF names one"


def test_a_session_of_a_container_whose_run_folder_is_gone_can_still_be_ended(engine, tmp_path):
    labels = {docker_start.RUN_LABEL: "r", docker_start.FOLDER_LABEL: f"{tmp_path}/madlite_runs/r"}
    config = {"Image": "rocm/x", "WorkingDir": "/w/", "Labels": labels}
    found = {"Id": "c", "Config": config, "Mounts": [], "HostConfig": {}}
    at = engine(answers={"GET /containers/c/json": (200, found)})
    box = docker_start.attached(connect(at.environ), "c")
    assert box.workspace == tmp_path and box.give_back is None


class TestImages:
    """Builds, pushes and what an image is based on."""

    @pytest.mark.parametrize(
        ("answers", "digest"),
        [
            ({"GET /distribution/rocm/x/json": (200, {"Descriptor": {"digest": "sha256:1"}})}, "sha256:1"),
            ({"GET /distribution/rocm/x/json": BUSY}, ""),
            ({"GET /distribution/rocm/x/json": (200, {})}, ""),
        ],
    )
    def test_a_base_the_engine_lacks_is_asked_of_its_registry(self, engine, answers, digest):
        client = connect(engine(answers=answers).environ)
        assert base_digest(client, Image(ref="ci-x", base="rocm/x")) == digest

    def test_a_dockerfile_that_is_gone_has_no_base(self, engine, tmp_path):
        client = connect(engine().environ)
        assert base_digest(client, Image(ref="ci-x", dockerfile=tmp_path / "gone")) == ""

    def test_a_build_that_the_engine_refuses_is_told_in_its_words(self, engine, tmp_path):
        (tmp_path / "Dockerfile").write_text("FROM rocm/x\n")
        at = engine(answers={"POST /build": (500, {"message": "write /x: no space left on device"})})
        with pytest.raises(RuntimeProblem, match="does not build: write /x: no space left") as problem:
            build(connect(at.environ), Image(ref="ci-x", dockerfile=tmp_path / "Dockerfile"), print)
        assert problem.value.cause is Cause.DISK
        assert problem.value.hint == f"docker build -f {tmp_path}/Dockerfile {tmp_path}"

    def test_a_build_whose_folder_is_gone_is_told(self, engine, tmp_path):
        image = Image(ref="ci-x", dockerfile=tmp_path / "gone/Dockerfile", context=tmp_path / "other")
        with pytest.raises(RuntimeProblem, match="gone/Dockerfile does not build: .*No such file") as problem:
            build(connect(engine().environ), image, print)
        assert problem.value.cause is Cause.BUILD

    def test_a_base_that_fails_for_another_reason_than_its_pull_is_told_with_the_step(self, engine, tmp_path):
        (tmp_path / "Dockerfile").write_text("FROM rocm/x\n")
        said = Lines([{"stream": "Step 1/1 : FROM rocm/x\n"}, {"error": "layer does not unpack"}])
        at = engine(answers={"POST /build": (200, said)})
        with pytest.raises(RuntimeProblem, match="does not build at step 'FROM rocm/x': layer does not unpack"):
            build(connect(at.environ), Image(ref="ci-x", dockerfile=tmp_path / "Dockerfile"), lambda line: None)

    def test_a_push_that_is_refused_is_told_with_the_command(self, engine):
        at = engine(answers={"POST /images/ci-x/tag": (201, b""), "POST /images/host/x/push": BUSY})
        with pytest.raises(RuntimeProblem, match="host/x:1 cannot be pushed: the engine is busy") as problem:
            push(connect(at.environ), "ci-x", "host/x:1", lambda line: None)
        assert problem.value.hint == "docker push host/x:1"

    def test_an_image_that_vanished_after_it_was_pulled_is_told(self, engine, monkeypatch):
        monkeypatch.setattr("madlite.images.image.pull", lambda *args: None)
        missing = (404, {"message": "No such image: rocm/x"})
        client = connect(engine(answers={"GET /images/rocm/x/json": missing}).environ)
        with pytest.raises(RuntimeProblem, match="image rocm/x is not there after it was made"):
            prepare_image(client, Image(ref="rocm/x"), {}, print)


def test_an_engine_that_is_still_starting_is_quoted(engine):
    at = engine(answers={"GET /version": (500, {"message": "starting up"})})
    problem = DockerRuntime(at.environ).available()
    assert problem is not None and at.environ["DOCKER_HOST"] in problem.what and "starting up" in problem.what
