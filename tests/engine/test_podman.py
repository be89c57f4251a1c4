"""Runs in podman's containers through its docker API: what works with docker works here, or says why not."""

from __future__ import annotations

import re
import signal

import pytest

from madlite.errors import RuntimeProblem
from madlite.images.client import GPUS_SINCE, podman_version
from madlite.machine.processes import process_table
from madlite.model import Action, Cause, EngineOptions, Image, Machine, Place
from madlite.platforms.docker.runtime import DockerRuntime
from tests.engine.checkout import Checkout
from tests.engine.podman_fixture import podman
from tests.engine.registry import Registry
from tests.factories import BASE_IMAGE, make_plan
from tests.run.output import Output
from tests.tiers import first_of

__all__ = ["podman"]
pytestmark = pytest.mark.engine
GOOD = 'echo "performance: 12.5 tokens_per_second"\n'


@pytest.fixture
def checkout(podman, tmp_path) -> Checkout:
    return Checkout(tmp_path / "mad", "docker", podman)


@pytest.fixture
def runtime(podman) -> DockerRuntime:
    return DockerRuntime({"DOCKER_HOST": podman})


def bash(script: str, **fields) -> Action:
    return Action(kind="run", argv=("bash", "-c", script), **fields)


def test_a_card_is_built_and_run_with_its_options_and_secrets(checkout: Checkout):
    options = "--shm-size=64m --env MODE=a_b --device /dev/null:/dev/odd -l me=x"
    script = 'echo "$MODE $MAD_SECRETS_T $(test -c /dev/odd && echo odd)" | tee ../said; touch ../made\n'
    checkout.card("good", script + GOOD, additional_docker_run_options=options)
    done = checkout.run("--tags", "good", env={"MAD_SECRETS_T": "hush-hush-1"})
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = checkout.rows
    assert (row["status"], row["performance"], row["docker_image"]) == ("SUCCESS", "12.5", "ci-good_base")
    assert re.fullmatch(r"sha256:[0-9a-f]{64}", row["docker_sha"]) and float(row["build_duration"]) > 0
    assert "the base image was not refreshed" in done.stdout
    assert (checkout.folder / "said").read_text() == "a_b hush-hush-1 odd\n"
    (log,) = checkout.folder.glob("madlite_runs/*/run.log")
    assert "a_b *** odd" in log.read_text() and "hush-hush-1" not in log.read_text() + done.stdout
    checkout.assert_nothing_left()


@pytest.mark.full
def test_a_foreign_image_runs_and_a_failing_script_tells_its_exit_code(checkout: Checkout):
    checkout.card("bad", GOOD + "echo 'ValueError: no such flavor' >&2; exit 3\n")
    done = checkout.run("--tags", "bad", "--image", BASE_IMAGE)
    assert done.returncode == 3 and "exit code 3" in done.stdout and "ValueError: no such flavor" in done.stdout
    assert (checkout.rows[0]["status"], checkout.rows[0]["docker_image"]) == ("FAILURE", BASE_IMAGE)
    checkout.assert_nothing_left()


@pytest.mark.parametrize(
    ("trap", "said"),
    first_of([("trap 'echo got INT; exit 9' INT", "got INT"), pytest.param("trap 'echo no' INT TERM", "no")], 1),
)
def test_a_time_out_reaches_the_workload_inside(checkout: Checkout, trap, said):
    script = f"{trap}\necho begun\nwhile :; do sleep 0.05; done\n"
    checkout.card("slow", script, timeout=10)  # on a busy machine podman takes seconds to begin
    done = checkout.run("--tags", "slow", "--image", BASE_IMAGE, "--set", "stop_grace_s=0.5")
    assert done.returncode == 3 and "timed out after 10 s" in done.stdout
    (log,) = checkout.folder.glob("madlite_runs/*/run.log")
    assert f"begun\n{said}" in log.read_text().replace("\r", "")
    checkout.assert_nothing_left()


def test_after_kill_9_clean_finds_and_removes_what_is_left(checkout: Checkout):
    checkout.card("cut", "echo begun; sleep 300\n")
    started = checkout.start("--tags", "cut", "--image", BASE_IMAGE)
    checkout.wait_for("begun")
    started.send_signal(signal.SIGKILL)
    started.communicate(timeout=240)
    assert len(checkout.left_containers()) == 1
    done = checkout.madlite("clean", "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    checkout.assert_nothing_left()


def test_files_are_given_back_and_one_name_serves_two_runs(runtime, tmp_path):
    def plan(name: str):
        return make_plan(tmp_path, id=name, name="container_madlite_twice", give_back=(1234, 1235))

    with runtime.open(plan("one-aaaaaaaa")) as first, runtime.open(plan("two-bbbbbbbb")) as second:
        assert first.run(bash("mkdir deep; touch deep/file"), Output()).code == 0
        assert second.run(bash("exit 7"), Output()).code == 7
    facts = (tmp_path / "deep/file").stat()
    assert (facts.st_uid, facts.st_gid) == (1234, 1235)


@pytest.mark.full
@pytest.mark.parametrize(
    ("changes", "cause", "told"),
    [
        ({"devices": ("/dev/no-such-device",)}, Cause.PREPARE, "/dev/no-such-device: there is no such device"),
        ({"image": Image(ref="madlite-test/absent:1")}, Cause.IMAGE, "madlite-test/absent:1 is not on this machine"),
    ],
)
def test_what_keeps_a_container_from_starting_is_named(runtime, tmp_path, changes, cause, told):
    with pytest.raises(RuntimeProblem, match=told) as caught, runtime.open(make_plan(tmp_path, **changes)):
        pass
    assert caught.value.cause == cause


@pytest.mark.full
def test_a_command_that_is_not_in_the_image_is_named(runtime, tmp_path):
    with pytest.raises(RuntimeProblem) as caught, runtime.open(make_plan(tmp_path)) as session:
        session.run(Action(kind="run", argv=("no-such",)), Output())
    assert "'no-such' (run) cannot be started in image" in caught.value.message
    assert caught.value.message.endswith('exec: "no-such": executable file not found in $PATH')


def test_a_container_that_shares_the_hosts_processes_is_stopped_alone(runtime, tmp_path):
    plan = make_plan(tmp_path, engine_options=EngineOptions(extra="--pid=host"))
    output = Output()
    with runtime.open(plan) as session:
        assert session.run(bash("kill -0 1 && echo sees 1"), output).code == 0
    assert output.streams[1] == b"sees 1\n"


@pytest.mark.full
def test_what_leaves_its_session_among_the_hosts_processes_ends_with_the_container(runtime, tmp_path):
    plan = make_plan(tmp_path, engine_options=EngineOptions(extra="--pid=host"))
    output = Output()
    with runtime.open(plan) as session:
        daemon = "(env -i setsid sh -c 'echo $$ > /tmp/pid; exec sleep 287' > /dev/null 2>&1 &)"
        session.run(bash(f"mkfifo /tmp/pid; {daemon}; cat /tmp/pid"), output)
        pid = int(output.streams[1])
        assert pid in process_table(), "as long as the session"
    assert pid not in process_table() or not process_table()[pid].lives


def test_gpus_that_this_podman_would_leave_out_are_refused(runtime, podman, tmp_path):
    """None is here: a podman that can give them says that it does not know the device."""
    import docker

    with docker.APIClient(podman) as client:
        version = podman_version(client)
    can = tuple(map(int, version.split(".")[:2])) >= GPUS_SINCE
    plan = make_plan(tmp_path, machine=Machine(vendor="NVIDIA"), place=Place(gpu_ids=(0,)))
    told = "nvidia.com/gpu=0" if can else f"podman {re.escape(version)} gives no NVIDIA GPUs"
    with pytest.raises(RuntimeProblem, match=told), runtime.open(plan):
        pass


def test_a_dockerfile_outside_its_context_and_buildkits_words_are_built(runtime, tmp_path):
    dockerfile, context = tmp_path / "docker/x.Dockerfile", tmp_path / "context"
    dockerfile.parent.mkdir()
    context.mkdir()
    dockerfile.write_text(f"FROM {BASE_IMAGE}\nRUN --mount=type=cache,target=/c touch /c/x\nCOPY . /got\n")
    (context / "kept").touch()
    (context / "left").touch()
    (context / ".dockerignore").write_text("# not for the image\nleft\n")
    plan = make_plan(tmp_path, image=Image(ref="madlite-test/outside", dockerfile=dockerfile, context=context))
    assert runtime.prepare(plan, lambda line: None).build_duration_s
    output = Output()
    with runtime.open(plan) as session:
        session.run(bash("ls /got"), output)
    assert output.streams[1] == b"kept\n"


@pytest.mark.full
def test_a_step_that_fails_is_told_with_its_last_line(runtime, tmp_path):
    dockerfile = tmp_path / "x.Dockerfile"
    dockerfile.write_text(f"FROM {BASE_IMAGE}\nRUN echo fine\nRUN echo no compiler found >&2; exit 9\n")
    plan = make_plan(tmp_path, image=Image(ref="madlite-test/fails", dockerfile=dockerfile, context=tmp_path))
    with pytest.raises(RuntimeProblem) as caught:
        runtime.prepare(plan, lambda line: None)
    assert caught.value.cause == Cause.BUILD
    for text in ("at step 'RUN echo no compiler found", "exit status 9", "last line: no compiler found"):
        assert text in caught.value.message


@pytest.mark.full
def test_an_image_is_pulled_and_what_a_registry_refuses_is_told(runtime, tmp_path):
    registry = Registry()
    try:
        used = runtime.prepare(make_plan(tmp_path, image=Image(ref=f"{registry.name}/tiny:1")), lambda line: None)
        assert used.digest == registry.digest("tiny")
        for name, told in (("absent:1", "no such tag"), ("private:1", "needs a login")):
            with pytest.raises(RuntimeProblem, match=told):
                runtime.prepare(make_plan(tmp_path, image=Image(ref=f"{registry.name}/{name}")), lambda line: None)
    finally:
        registry.close()


def test_its_socket_is_found_where_no_docker_is(checkout: Checkout, podman, tmp_path):
    hide_sockets = 'mount -t tmpfs none "$(readlink -f /var/run)" && exec "$@"'
    checkout.before = ("unshare", "--mount", "--propagation", "private", "sh", "-c", hide_sockets, "sh")
    (tmp_path / "own/podman").mkdir(parents=True)
    (tmp_path / "own/podman/podman.sock").symlink_to(podman.removeprefix("unix://"))
    checkout.card("good", GOOD)
    checkout.env |= {"XDG_RUNTIME_DIR": str(tmp_path / "own"), "DOCKER_CONFIG": str(tmp_path)}
    del checkout.env["DOCKER_HOST"]
    done = checkout.run("--tags", "good", "--image", BASE_IMAGE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"podman runs the container (unix://{tmp_path}/own/podman/podman.sock)" in done.stdout
    assert "note: podman runs the container" in checkout.madlite("explain", "good").stdout
