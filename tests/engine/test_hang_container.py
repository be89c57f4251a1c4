"""What a run's container shows of it from inside: for engines elsewhere, whose processes this machine does not have."""

from __future__ import annotations

import threading
import time
from contextlib import suppress

import pytest

from madlite.errors import RuntimeProblem
from madlite.images.client import connect
from madlite.platforms.docker.runtime import DockerRuntime, attached
from madlite.platforms.docker.session import DockerSession
from madlite.run.hang import locate_ranks, main_frames, own_ranks, probe_nodes
from madlite.store.folder import FOLDER_LABEL, RUN_LABEL
from tests.factories import BASE_IMAGE, make_plan
from tests.waiting import wait_until

pytestmark = pytest.mark.engine
PY_SPY = """#!/bin/sh
[ "$1 $2" = "dump --pid" ] || exit 1
echo "Process $3: python3"
echo
echo 'Thread 1 (idle): "MainThread"'
echo "    waits_for_$3 (train.py:3)"
echo "    main (train.py:9)"
"""
AMD_SMI = '#!/bin/sh\necho "GPU 0 100 % ($1)"\n'
# with a helper that is no rank
TRAIN = "import os, time\nprint(os.getpid(), flush=True)\nos.fork() or open('/forked', 'w')\ntime.sleep(300)"


def left_s() -> float:
    return 60.0


@pytest.fixture
def container(engine, base_image, tmp_path):
    """A container of a run, in which a rank of it sleeps."""
    import docker

    client = docker.DockerClient(engine)
    labels = {RUN_LABEL: "test-look-inside", FOLDER_LABEL: str(tmp_path / "madlite_runs/x")}
    made = client.containers.run(
        BASE_IMAGE, "cat", stdin_open=True, detach=True, network_mode="none", working_dir="/w", labels=labels
    )
    yield made
    with suppress(docker.errors.NotFound):  # a test may have removed it
        made.remove(force=True)


@pytest.fixture
def look(container, docker_environ, tmp_path):
    """Look into the container."""
    client = connect(docker_environ)
    session = DockerSession(client, docker_environ, attached(client, container.id), grace_s=10.0)
    plan = make_plan(tmp_path)

    def inside(left_s=left_s, cancelled: threading.Event | None = None):
        return probe_nodes(session, plan, "", left_s, cancelled or threading.Event())

    return inside


def put(container, name: str, text: str) -> None:
    path = f"/usr/local/bin/{name}"
    code, said = container.exec_run(["sh", "-c", 'printf %s "$1" > "$2"; chmod 755 "$2"', "sh", text, path])
    assert code == 0, said


def test_processes_stacks_and_gpus_are_seen_from_inside(container, look):
    environment = {"RANK": "3", "LOCAL_RANK": "1"}
    container.exec_run(["python3", "-c", TRAIN], environment=environment, detach=True)
    wait_until(lambda: container.exec_run(["test", "-e", "/forked"])[0] == 0, "the helper")
    (nothing,) = look()
    assert (nothing.shown["stacks"].split(" (")[0], nothing.notes) == ("py-spy is not installed", ())
    put(container, "py-spy", PY_SPY)
    put(container, "amd-smi", AMD_SMI)
    (seen,) = look()
    line = next(line for line in seen.shown["processes"].splitlines() if "rank 3" in line)
    assert "local_rank 1 state S" in line and "command python3 -c" in line
    dumps = seen.processes("stacks")
    assert [(one.rank, one.local_rank) for one in dumps] == [("3", "1")] * 2
    assert all(main_frames(one.text) for one in dumps)
    ((own, rank),) = own_ranks(dumps).items()
    assert rank == "3" and [one.parent for one in dumps if one.pid != own] == [own]
    assert locate_ranks(dumps).text.startswith(f"rank 3 in waits_for_{own} (train.py:3) < main")
    assert seen.shown["gpus"] == "GPU 0 100 % (monitor)\nGPU 0 100 % (process)\n"


def test_a_tool_that_hangs_inside_is_not_waited_for(container, look):
    put(container, "amd-smi", "#!/bin/sh\necho begun\nsleep 300\n")
    begun = time.monotonic()
    (seen,) = look()
    assert seen.shown["gpus"] == "begun\n" and time.monotonic() - begun < 240
    running = ["sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"]
    wait_until(lambda: b"sleep 300" not in container.exec_run(running)[1], "the end of the tool in the container")
    called_off = threading.Event()
    called_off.set()
    assert look(cancelled=called_off) == []


def test_a_container_that_is_paused_ended_or_gone_is_said_to_be(container, look, docker_environ):
    def notes() -> tuple[str, ...]:
        (found,) = look()
        return found.notes

    runtime = DockerRuntime(docker_environ)
    container.pause()
    assert notes() == ("its container is paused",)
    container.unpause()
    assert runtime.outcome(container.id).state == "running"
    container.kill()
    assert notes() == ("its container is not running",)
    outcome = runtime.outcome(container.id)
    assert (outcome.state, outcome.ended, outcome.code) == ("exited", True, 137) and outcome.ended_at > outcome.began_at
    runtime.cancel(container.id)
    assert notes() == ("its container is gone",) and runtime.outcome(container.id) is None
    runtime.cancel(container.id)  # of what is gone nothing is to be ended


def test_a_container_of_somebody_else_is_not_cancelled(engine, base_image, docker_environ):
    import docker

    made = docker.DockerClient(engine).containers.run(BASE_IMAGE, "cat", stdin_open=True, detach=True)
    try:
        with pytest.raises(RuntimeProblem, match="was not started by madlite"):
            DockerRuntime(docker_environ).cancel(made.id)
        made.reload()
        assert made.status == "running"
    finally:
        made.remove(force=True)
