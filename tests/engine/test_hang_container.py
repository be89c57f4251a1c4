"""What a run's container shows of it from inside: for engines elsewhere, whose processes this machine does not have."""

from __future__ import annotations

import threading
import time

import pytest

from madlite.run.hang_container import look_inside
from madlite.run.hang_places import own_ranks, standing
from madlite.run.marks import RUN_LABEL
from tests.factories import BASE_IMAGE

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
def container(engine, base_image):
    """A container of a run, in which a rank of it sleeps."""
    import docker

    client = docker.DockerClient(engine)
    made = client.containers.run(
        BASE_IMAGE, "cat", stdin_open=True, detach=True, network_mode="none", labels={RUN_LABEL: "test-look-inside"}
    )
    yield made
    made.remove(force=True)


def put(container, name: str, text: str) -> None:
    path = f"/usr/local/bin/{name}"
    code, said = container.exec_run(["sh", "-c", 'printf %s "$1" > "$2"; chmod 755 "$2"', "sh", text, path])
    assert code == 0, said


def test_processes_stacks_and_gpus_are_seen_from_inside(container, docker_environ):
    environment = {"RANK": "3", "LOCAL_RANK": "1"}
    container.exec_run(["python3", "-c", TRAIN], environment=environment, detach=True)
    limit = time.monotonic() + 60
    while container.exec_run(["test", "-e", "/forked"])[0] and time.monotonic() < limit:
        time.sleep(0.1)
    look = threading.Event()
    nothing = look_inside(docker_environ, "test-look-inside", ["stacks", "gpus"], left_s, look)
    assert (nothing.dumps, nothing.gpus, nothing.notes) == ((), "", ()), "no tool is there"
    put(container, "py-spy", PY_SPY)
    put(container, "amd-smi", AMD_SMI)
    seen = look_inside(docker_environ, "test-look-inside", ["processes", "stacks", "gpus"], left_s, look)
    line = next(
        line for line in seen.processes.splitlines() if "time.sleep(300)" in seen.processes and "rank 3" in line
    )
    assert "local_rank 1 state S" in line and "command python3 -c" in line
    assert [(one.rank, one.local_rank, one.problem) for one in seen.dumps] == [("3", "1", "")] * 2
    ((own, rank),) = own_ranks(seen.dumps).items()
    assert rank == "3" and [one.parent for one in seen.dumps if one.pid != own] == [own]
    assert standing(seen.dumps).words.startswith(f"rank 3 in waits_for_{own} (train.py:3) < main")
    assert seen.gpus == "GPU 0 100 % (monitor)\nGPU 0 100 % (process)\n"


def test_a_tool_that_hangs_inside_is_not_waited_for(container, docker_environ):
    put(container, "amd-smi", "#!/bin/sh\necho begun\nsleep 300\n")
    begun = time.monotonic()
    seen = look_inside(docker_environ, "test-look-inside", ["gpus"], lambda: 5.0, threading.Event())
    assert seen.gpus == "begun\n" and time.monotonic() - begun < 30
    called_off = threading.Event()
    called_off.set()
    assert look_inside(docker_environ, "test-look-inside", ["gpus"], left_s, called_off).gpus == ""


def test_a_container_that_is_paused_ended_or_gone_is_said_to_be(container, docker_environ):
    def notes(run_id: str = "test-look-inside") -> tuple[str, ...]:
        return look_inside(docker_environ, run_id, ["stacks"], left_s, threading.Event()).notes

    container.pause()
    assert notes() == ("its container is paused",)
    container.unpause()
    container.kill()
    assert notes() == ("its container is not running",)
    assert notes("another") == ("its container is gone",)
