"""Images on a real engine: built, found, pulled from a registry, and what goes wrong with each."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from madlite.errors import RuntimeProblem
from madlite.images import image as docker_pull
from madlite.model import Cause, Image, Secret
from tests.engine.registry import Registry
from tests.factories import BASE_IMAGE, make_plan
from tests.waiting import WAIT_S, wait_until

pytestmark = pytest.mark.engine
LONG = f"283.{os.getpid()}"  # seconds that no other test sleeps


class Interrupted(BaseException):
    """What a signal raises in the main thread."""


@pytest.fixture
def registry():
    registry = Registry()
    yield registry
    registry.close()


@pytest.fixture
def dockerfile(tmp_path, client):
    """Write a Dockerfile and return the image it makes; the image goes afterwards."""
    import docker.errors

    ref = f"madlite-test/{tmp_path.name.lower()}:latest"

    def write(text: str, **changes: object) -> Image:
        path = tmp_path / "docker/tiny.Dockerfile"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return Image(ref=ref, dockerfile=path, context=path.parent, **changes)  # type: ignore[arg-type]

    yield write
    try:
        client.remove_image(ref, force=True)
    except docker.errors.ImageNotFound:
        return


def interrupt_when(ready) -> None:
    """Send this process an alarm from another thread once `ready()` is true."""

    def watch() -> None:
        while not ready():
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGUSR1)

    threading.Thread(target=watch, daemon=True).start()


@pytest.fixture
def interruptible():
    def interrupt(number: int, frame: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGUSR1, interrupt)
    yield
    signal.signal(signal.SIGUSR1, before)


def test_a_local_image_is_used_as_it_is(runtime, client, tmp_path):
    said: list[str] = []
    used = runtime.prepare(make_plan(tmp_path), said.append)
    assert used.ref == BASE_IMAGE and used.digest == client.inspect_image(BASE_IMAGE)["Id"]
    assert used.build_duration_s is None and not said


def test_a_dockerfile_is_built_on_a_base_that_is_only_here(runtime, client, tmp_path, dockerfile):
    """The base's registry does not know it: the local one is taken, and that is said."""
    image = dockerfile(
        "# CONTEXT {'guest_os': 'UBUNTU'}\nARG BASE_DOCKER=madlite-test.invalid/other\nFROM $BASE_DOCKER\n"
        "ARG ARCH\nARG MAD_SECRETS_X\nRUN echo arch is $ARCH, ${#MAD_SECRETS_X} long > /built\nCOPY note /note\n",
        build_args={"BASE_DOCKER": BASE_IMAGE, "ARCH": "gfx942", "MAD_SECRETS_X": Secret("12345678")},
        base=BASE_IMAGE,
    )
    (tmp_path / "docker/note").write_text("from the context")
    said: list[str] = []
    used = runtime.prepare(make_plan(tmp_path, image=image), said.append)
    assert any(BASE_IMAGE in line and "trying the one that is here" in line for line in said), said
    assert any(line.startswith("Step ") and "RUN echo arch" in line for line in said)
    assert used.digest == client.inspect_image(image.ref)["Id"] and (used.build_duration_s or 0) > 0
    output: list[bytes] = []
    from madlite.model import Action

    with runtime.open(make_plan(tmp_path, image=image, id=f"{tmp_path.name}-b")) as session:
        session.run(Action(kind="run", argv=("cat", "/built", "/note")), lambda chunk: output.append(chunk.data))
    assert b"".join(output) == b"arch is gfx942, 8 long\nfrom the context"


def test_a_step_that_fails_is_told_with_its_last_line(runtime, tmp_path, dockerfile):
    image = dockerfile(f"FROM {BASE_IMAGE}\nRUN echo fine\nRUN echo no compiler found >&2; exit 9\n")
    with pytest.raises(RuntimeProblem) as caught:
        runtime.prepare(make_plan(tmp_path, image=image), lambda line: None)
    message = caught.value.message
    assert caught.value.cause == Cause.BUILD
    assert (
        "RUN echo no compiler found" in message and "code: 9" in message and "last line: no compiler found" in message
    )
    assert str(image.dockerfile) in message


def test_a_base_that_is_nowhere_is_told(runtime, tmp_path, registry, dockerfile):
    image = dockerfile(f"FROM {registry.name}/absent:1\n")
    with pytest.raises(RuntimeProblem, match=f"{registry.name}/absent:1") as caught:
        runtime.prepare(make_plan(tmp_path, image=image), lambda line: None)
    assert caught.value.cause == Cause.IMAGE


def test_a_dockerfile_that_is_not_there_is_told(runtime, tmp_path):
    image = Image(ref="madlite-test/x", dockerfile=tmp_path / "absent.Dockerfile")
    with pytest.raises(RuntimeProblem, match=r"absent\.Dockerfile cannot be read"):
        runtime.prepare(make_plan(tmp_path, image=image), lambda line: None)


def test_a_build_ends_when_it_is_interrupted(runtime, tmp_path, dockerfile, interruptible):
    image = dockerfile(f"FROM {BASE_IMAGE}\nRUN sleep {LONG}\n")
    interrupt_when(lambda: sleeping(LONG))
    with pytest.raises(Interrupted):
        runtime.prepare(make_plan(tmp_path, image=image), lambda line: None)
    wait_until(lambda: not sleeping(LONG), "the end of the build, whose answer was closed,")


def test_an_image_is_pulled_with_progress_and_its_digest_recorded(runtime, client, tmp_path, registry):
    ref = f"{registry.name}/tiny:1"
    said: list[str] = []
    used = runtime.prepare(make_plan(tmp_path, image=Image(ref=ref)), said.append)
    client.remove_image(ref, force=True)
    assert used.digest == registry.digest("tiny")
    assert said[0] == f"pulling {ref}"


@pytest.mark.parametrize("form", ["{}/tiny", "{}/tiny@{}"])
def test_an_image_without_tag_or_by_digest_is_pulled_alone(runtime, client, tmp_path, registry, form):
    ref = form.format(registry.name, registry.digest("tiny"))
    used = runtime.prepare(make_plan(tmp_path, image=Image(ref=ref)), lambda line: None)
    client.remove_image(ref, force=True)
    assert used.digest == registry.digest("tiny")


@pytest.mark.parametrize(
    ("name", "told"), [("absent:1", "no such tag"), ("tiny:2", "no such tag"), ("private:1", "needs a login")]
)
def test_what_a_registry_refuses_is_told_in_one_sentence(runtime, tmp_path, registry, name, told):
    with pytest.raises(RuntimeProblem, match=told) as caught:
        runtime.prepare(make_plan(tmp_path, image=Image(ref=f"{registry.name}/{name}")), lambda line: None)
    assert caught.value.cause == Cause.IMAGE and name in caught.value.message and caught.value.hint


def test_a_registry_that_cannot_be_reached_is_told(runtime, tmp_path, registry):
    registry.close()
    with pytest.raises(RuntimeProblem, match="cannot be reached") as caught:
        runtime.prepare(make_plan(tmp_path, image=Image(ref=f"{registry.name}/tiny:1")), lambda line: None)
    assert caught.value.cause == Cause.IMAGE


def test_a_pull_ends_when_it_is_interrupted(runtime, tmp_path, registry, interruptible):
    interrupt_when(registry.begun.is_set)
    with pytest.raises(Interrupted):
        runtime.prepare(make_plan(tmp_path, image=Image(ref=f"{registry.name}/slow:1")), lambda line: None)
    assert registry.given_up.wait(WAIT_S), "the engine ends the pull when the answer is closed"


def test_a_pull_is_refused_before_it_starts_where_the_disk_is_full(runtime, tmp_path, registry, monkeypatch):
    monkeypatch.setattr(docker_pull, "FREE_BYTES", 1 << 60)
    with pytest.raises(RuntimeProblem, match="GiB left") as caught:
        runtime.prepare(make_plan(tmp_path, image=Image(ref=f"{registry.name}/slow:1")), lambda line: None)
    assert caught.value.cause == Cause.DISK and not registry.begun.is_set()


def sleeping(seconds: str) -> bool:
    """Say whether a process sleeps for so long, in a container or outside."""
    return any(
        b"\0".join((b"sleep", seconds.encode())) in _command_line(entry)
        for entry in Path("/proc").glob("[0-9]*/cmdline")
    )


def _command_line(entry: Path) -> bytes:
    try:
        return entry.read_bytes()
    except OSError:
        return b""


@pytest.mark.parametrize("built", [True, False])
def test_a_name_that_no_image_can_have_is_not_called_an_unreachable_engine(runtime, dockerfile, tmp_path, built):
    image = Image(ref="ci-my model (v2)_x")
    if built:
        image = replace(dockerfile("FROM scratch\n"), ref=image.ref)
    with pytest.raises(RuntimeProblem, match="invalid reference format") as told:
        runtime.prepare(make_plan(tmp_path, image=image), lambda text: None)
    assert told.value.cause is not Cause.ENGINE


def test_a_dockerfile_may_lie_outside_its_context(runtime, tmp_path, dockerfile):
    image = dockerfile(f"FROM {BASE_IMAGE}\nCOPY . /got\nRUN test -e /got/kept && test ! -e /got/left\n")
    context = tmp_path / "context"
    context.mkdir()
    (context / "kept").touch()
    (context / "left").touch()
    (context / ".dockerignore").write_text("# not for the image\n\nleft\n")
    plan = make_plan(tmp_path, image=replace(image, context=context))
    assert runtime.prepare(plan, lambda line: None).build_duration_s
