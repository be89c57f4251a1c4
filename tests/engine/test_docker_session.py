"""Actions in containers of a real engine."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from madlite.cancellation import STOPPED
from madlite.errors import RuntimeProblem
from madlite.model import Action, Cause, Chunk, EngineOptions, Image, Machine, Mount, Place, Secret, Study
from madlite.plan.caches import with_caches
from madlite.platforms.docker.runtime import DockerRuntime
from madlite.store.folder import WORK
from tests.engine_fixture import give_up
from tests.factories import id_of, make_plan
from tests.run.output import Output, bash, once_it_said, stop_once_it_said
from tests.waiting import wait_until

pytestmark = pytest.mark.engine
KILLED = 137
LONG = f"sleep 286.{os.getpid()}"  # a command line that no other test has


@pytest.fixture(autouse=True)
def nothing_is_left(client, request, tmp_path) -> Iterator[None]:
    """Every test of this file ends without a container of its run."""
    yield
    assert left(client, tmp_path) == []


def left(client, workspace: Path) -> list[str]:
    labels = {"label": f"madlite.run={id_of(workspace)}"}
    return [found["Id"] for found in client.containers(all=True, filters=labels) if found["State"] != "removing"]


def test_another_user_of_a_container_writes_its_work_folder_below_runs_that_are_the_owner_s_alone(runtime, tmp_path):
    plan = make_plan(tmp_path, engine_options=EngineOptions(user="1000:1000"))
    runtime.prepare(plan, lambda text: None)
    plan.folder.parent.chmod(0o700)
    (plan.folder / WORK).mkdir()
    (plan.folder / WORK).chmod(0o777)
    output = Output()
    with runtime.open(plan) as session:
        ended = session.run(replace(bash("id -u; echo own > own.txt; cat own.txt"), cwd="{folder}"), output)
    assert (ended.code, output.streams[1]) == (0, b"1000\nown\n")
    assert (plan.folder / WORK / "own.txt").stat().st_uid == 1000


def test_a_workload_sees_the_plans_environment_folders_and_mounts(runtime, tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "helpers").mkdir()
    plan = make_plan(
        tmp_path,
        env={"A": "two words", "HF_TOKEN": Secret("hf_secret")},
        mounts=(Mount(source=str(tmp_path / "helpers"), target="/helpers", read_only=True),),
    )
    output = Output()
    with runtime.open(plan) as session:
        session.run(bash('echo "$A $HF_TOKEN $MADLITE_RUN_ID"; id -u; pwd; touch here', cwd="model"), output)
        session.run(bash("pwd; touch /helpers/x 2> /dev/null || echo read-only", cwd="{folder}"), output)
    assert output.streams[1].decode().splitlines() == [
        f"two words hf_secret {plan.id}", "0", "/myworkspace/model",
        f"/myworkspace/madlite_runs/{plan.id}", "read-only",
    ]  # fmt: skip
    assert (tmp_path / "model/here").exists()


def test_an_nvidia_plan_is_taken_by_the_engine_with_its_gpus(runtime, client, tmp_path):
    plan = make_plan(tmp_path, machine=Machine(vendor="NVIDIA"), place=Place(gpu_ids=(0, 3)), devices=("/dev/fuse",))
    try:
        with runtime.open(plan) as session:
            asked = client.inspect_container(session.handle)["HostConfig"]["DeviceRequests"]
            assert session.run(bash("test -c /dev/fuse"), Output()).code == 0
    except RuntimeProblem as problem:
        if "NVIDIA" in problem.message:
            give_up("the engine that was given takes no requests for NVIDIA GPUs")
        raise
    assert asked[0]["DeviceIDs"] == ["0", "3"]


def test_an_amd_plan_has_its_devices_and_rights_inside(runtime, tmp_path):
    plan = make_plan(
        tmp_path,
        machine=Machine(vendor="AMD"),
        place=Place(gpu_ids=(0,)),
        devices=("/dev/fuse",),
        engine_options=EngineOptions(
            group_add=("video",),
            cap_add=("SYS_PTRACE", "SYS_ADMIN"),
            security_opt=("seccomp=unconfined", "apparmor=unconfined"),
            extra="--device /dev/null:/dev/kfd --device /dev/null:/dev/dri/renderD128",  # they need not be here
        ),
    )
    output = Output()
    with runtime.open(plan) as session:
        session.run(bash("ls /dev/kfd /dev/fuse /dev/dri; id -G; grep CapEff /proc/self/status"), output)
    words = output.streams[1].decode()
    assert "/dev/kfd" in words and "renderD128" in words and "/dev/fuse" in words
    assert "44" in words.split("CapEff")[0].split(), "group video"
    rights = int(words.split("CapEff:")[1], 16)
    assert rights >> 19 & 1 and rights >> 21 & 1, "SYS_PTRACE and SYS_ADMIN"


def test_host_ipc_and_a_shm_size_go_together_as_in_docker_run(runtime, tmp_path):
    shared = os.statvfs("/dev/shm")
    output = Output()
    plan = make_plan(tmp_path, engine_options=EngineOptions(extra="--shm-size=64m"))
    with runtime.open(plan) as session:
        session.run(bash("df -B1 --output=size /dev/shm | tail -1"), output)
    assert int(output.streams[1]) == shared.f_blocks * shared.f_frsize, "docker lets the host's win"


def test_int_reaches_a_workload_in_a_process_group_of_its_own(runtime, tmp_path):
    output = Output()
    script = (
        "timeout 300 bash -c \"trap 'echo got INT; exit 7' INT; echo ready; while :; do sleep 0.05; done\"; exit $?"
    )
    with runtime.open(make_plan(tmp_path)) as session:
        thread = stop_once_it_said(session, output, b"ready", grace_s=30)
        session.run(bash(script), output)
        thread.join()
    assert output.streams[1].endswith(b"got INT\n")


STUBBORN = "trap '' INT TERM; {child} echo ready; while :; do sleep 0.05; done"


def test_the_container_and_its_later_actions_outlive_a_killed_action(runtime, tmp_path):
    output = Output()
    plan = make_plan(tmp_path, stop_grace_s=0.2)
    with runtime.open(plan) as session:
        # time enough for a busy engine to begin it: before its trap any signal ends it
        ended = session.run(bash(STUBBORN.format(child=f"setsid {LONG} &"), timeout_s=6.0), output)
        assert ended.code == KILLED and ended.timed_out
        assert not processes(LONG)
        assert session.run(bash("exit 4"), output).code == 4


def test_a_second_stop_without_grace_cuts_the_first_ones_short(runtime, tmp_path):
    output = Output()
    with runtime.open(make_plan(tmp_path)) as session:
        threads = [stop_once_it_said(session, output, b"ready", grace_s) for grace_s in (3600, 0)]
        assert session.run(bash(STUBBORN.format(child="")), output).code == KILLED
        for thread in threads:
            thread.join()
        assert session.run(bash("touch started"), Output()).code == STOPPED, "nothing starts after a stop"
    assert not (tmp_path / "started").exists()


def test_stopping_a_container_that_shares_the_hosts_processes_touches_nothing_else(runtime, tmp_path):
    bystander = subprocess.Popen(["sleep", "300"], start_new_session=True)
    try:
        output = Output()
        plan = make_plan(tmp_path, engine_options=EngineOptions(extra="--pid=host"))
        with runtime.open(plan) as session:
            thread = stop_once_it_said(session, output, b"ready", grace_s=0.3)
            assert session.run(bash(STUBBORN.format(child=f"setsid {LONG} &")), output).code == KILLED
            thread.join()
        assert not processes(LONG) and bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_what_leaves_its_session_among_the_hosts_processes_ends_with_the_container(runtime, tmp_path):
    plan = make_plan(tmp_path, engine_options=EngineOptions(extra="--pid=host"))
    with runtime.open(plan) as session:
        assert session.run(bash(f"(env -i setsid {LONG} > /dev/null 2>&1 &)"), Output()).code == 0
        wait_until(lambda: processes(LONG), "a process beside the session")
    assert not processes(LONG)


def test_leaving_by_an_exception_ends_the_workload_gently_and_removes_the_container(runtime, tmp_path):
    def interrupt(chunk: Chunk) -> None:
        raise KeyboardInterrupt

    script = "trap 'echo ended > ended; exit' INT; echo ready; while :; do sleep 0.05; done"
    with pytest.raises(KeyboardInterrupt), runtime.open(make_plan(tmp_path)) as session:
        session.run(bash(script), interrupt)
    assert (tmp_path / "ended").exists()


def test_a_container_that_is_removed_under_the_run_is_told(runtime, client, tmp_path):
    output = Output()
    with pytest.raises(RuntimeProblem, match="ended or was removed") as caught:  # noqa: SIM117
        with runtime.open(make_plan(tmp_path)) as session:
            thread = once_it_said(output, b"ready", lambda: client.remove_container(session.handle, force=True))
            try:
                session.run(bash("echo ready; sleep 300"), output)
            finally:
                thread.join()
    assert caught.value.cause == Cause.INTERRUPTED


def test_an_exit_code_is_the_command_s_and_what_cannot_be_started_is_named_with_the_image(
    runtime, base_image, tmp_path
):
    with runtime.open(make_plan(tmp_path)) as session:
        for script, code in (("kill -KILL $$", KILLED), ("no-such-command", 127)):
            assert session.run(bash(script), Output()).code == code
        for argv, cwd, told in (
            (("no-such-command",), "", "no-such-command"),
            (("true",), "nowhere", "/myworkspace/nowhere"),
        ):
            with pytest.raises(RuntimeProblem, match=told) as caught:
                session.run(Action(kind="run", argv=argv, cwd=cwd), Output())
            assert base_image in caught.value.message


def test_a_missing_device_is_named(runtime, tmp_path):
    plan = make_plan(tmp_path, devices=("/dev/no-such-device",))
    with pytest.raises(RuntimeProblem, match="/dev/no-such-device: there is no such device"), runtime.open(plan):
        pass


def test_an_image_that_is_not_there_is_named(runtime, tmp_path):
    plan = make_plan(tmp_path, image=Image(ref="madlite-test/absent:1"))
    with pytest.raises(RuntimeProblem, match="madlite-test/absent:1") as caught, runtime.open(plan):
        pass
    assert caught.value.cause == Cause.IMAGE


def test_an_image_whose_entry_point_ends_at_once_is_told_with_its_last_words(runtime, tmp_path):
    plan = make_plan(tmp_path, engine_options=EngineOptions(extra="--entrypoint=whoami"))
    with pytest.raises(RuntimeProblem, match=r"ended at once.*: whoami: extra operand"), runtime.open(plan):
        pass


def test_a_name_that_a_strangers_container_has_is_left_to_it(runtime, client, base_image, tmp_path):
    plan = make_plan(tmp_path)
    stranger = client.create_container(base_image, ["true"], name=plan.name)["Id"]
    try:
        with runtime.open(plan) as session:
            name = client.inspect_container(session.handle)["Name"]
        assert name.startswith(f"/{plan.name}-")
        assert client.inspect_container(stranger)["Name"] == f"/{plan.name}"
    finally:
        client.remove_container(stranger)


def test_two_sessions_of_one_name_do_not_hurt_each_other(runtime, tmp_path):
    (tmp_path / "a").mkdir()
    one = make_plan(tmp_path / "a", id=id_of(tmp_path), name=f"shared-{tmp_path.name}")
    other = make_plan(tmp_path, id=f"{id_of(tmp_path)}-other", name=one.name)
    with runtime.open(one) as first:
        with runtime.open(other) as second:
            assert second.run(bash("exit 5"), Output()).code == 5
        assert first.run(bash("exit 6"), Output()).code == 6


def test_a_container_is_kept_alive_on_request(runtime, client, tmp_path):
    plan = make_plan(tmp_path, keep_alive=True)
    with runtime.open(plan) as session:
        handle = session.handle
    try:
        labels = client.inspect_container(handle)["Config"]["Labels"]
        assert labels["madlite.kept"] == "1" and labels["madlite.folder"] == str(plan.folder)
        assert client.inspect_container(handle)["State"]["Running"]
    finally:
        client.remove_container(handle, force=True)


def test_files_that_root_wrote_are_given_back_and_nothing_else(runtime, tmp_path):
    outside = tmp_path.parent / f"{tmp_path.name}-outside"
    outside.write_text("root's")
    (tmp_path / "old").write_text("root's")
    other = tmp_path / "others"
    other.write_text("somebody's")
    os.chown(other, 4321, 4321)
    plan = make_plan(tmp_path, give_back=(65534, 65533))
    script = (
        f"mkdir made; echo x > made/file; ln -s {outside} made/link; echo more >> others; chmod 600 made/file; exit 1"
    )

    def owner(path: Path) -> tuple[int, int]:
        return path.lstat().st_uid, path.lstat().st_gid

    with runtime.open(plan) as session:
        session.run(bash(script), Output())
        session.collect(["made/f*"], tmp_path.parent / f"{tmp_path.name}-into")
        assert owner(tmp_path / "made/file") == (65534, 65533), "before they are collected"
    assert (tmp_path.parent / f"{tmp_path.name}-into/file").read_text() == "x\n"

    assert owner(tmp_path / "made") == owner(tmp_path / "made/file") == (65534, 65533)
    assert owner(tmp_path / "made/link") == (65534, 65533)
    assert owner(tmp_path / "old") == owner(outside) == (0, 0)
    assert owner(other) == (4321, 4321)


def test_the_caches_of_a_study_are_given_back_and_another_study_does_not_see_them(runtime, tmp_path):
    study = Study(id="s", kind="repeat", series=1, index=1, count=2, caches="warm")
    places = [tmp_path.parent / f"{tmp_path.name}-caches-{n}" for n in (1, 2)]
    for place in places:
        (place / "triton").mkdir(parents=True)
    plan = make_plan(tmp_path, give_back=(65534, 65533), study=study)
    seen = []
    for place in (places[0], places[0], places[1]):
        output = Output()
        with runtime.open(with_caches(plan, place)) as session:
            session.run(bash('ls "$TRITON_CACHE_DIR"; touch "$TRITON_CACHE_DIR/kernel"'), output)
        seen.append(output.streams[1].decode())
    assert [text.strip() for text in seen] == ["", "kernel", ""]
    for place in places:
        assert ((place / "triton/kernel").stat().st_uid, (place / "triton/kernel").stat().st_gid) == (65534, 65533)


def test_files_are_given_back_after_an_interrupt_too(runtime, tmp_path):
    def interrupt(chunk: Chunk) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), runtime.open(make_plan(tmp_path, give_back=(65534, 65534))) as session:
        session.run(bash("touch made; echo ready; sleep 300"), interrupt)
    assert (tmp_path / "made").stat().st_uid == 65534


def test_an_engine_that_is_down_is_told_with_its_address(tmp_path):
    down = DockerRuntime({"DOCKER_HOST": f"unix://{tmp_path}/none.sock"})
    for use in (lambda: down.prepare(make_plan(tmp_path), print), lambda: down.open(make_plan(tmp_path)).__enter__()):
        with pytest.raises(RuntimeProblem, match=f"{tmp_path}/none.sock") as caught:
            use()
        assert caught.value.cause == Cause.ENGINE


def test_a_stop_while_the_container_hangs_in_a_signal_storm_returns(runtime, tmp_path):
    """Stops from several threads at once end in bounded time, and so does the run."""
    output, before = Output(), threading.active_count()
    with runtime.open(make_plan(tmp_path)) as session:
        threads = [stop_once_it_said(session, output, b"ready", 0.2) for _ in range(4)]
        assert session.run(bash(STUBBORN.format(child=f"setsid {LONG} &")), output).code == KILLED
        for thread in threads:
            thread.join(240)
            assert not thread.is_alive()
    assert not processes(LONG), "nor its child in another session"
    assert threading.active_count() < before + 20, "of this test; others before it may have left some"


def processes(command: str) -> list[str]:
    """Return what runs on this machine, containers included, under a command line."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = entry.read_bytes().replace(b"\0", b" ").decode().strip()
        except OSError:
            continue
        if words == command:
            found.append(words)
    return found
