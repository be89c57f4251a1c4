"""Actions as processes of this machine."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from madlite.cancellation import STOPPED
from madlite.errors import RuntimeProblem
from madlite.machine.processes import run_processes, send
from madlite.model import PROBE_BYTES, Action, Cause, Chunk, Completed, JobOutcome, Secret
from madlite.platforms.host import runtime as host_session
from madlite.platforms.host.runtime import HostAction
from tests.factories import make_plan
from tests.rows import each_row
from tests.run.output import Output, bash, once_it_said, stop_once_it_said

pytestmark = pytest.mark.host


def python(script: str) -> Action:
    return Action(kind="run", argv=(sys.executable, "-c", script))


def test_a_million_short_lines_arrive(plan, runtime):
    output = Output()
    with runtime.open(plan) as session:
        session.run(python("print('\\n'.join(map(str, range(1000000))))"), output)
    assert output.streams[1].split() == [b"%d" % n for n in range(1000000)]


def test_environment_and_folders_are_the_plans(tmp_path, runtime):
    plan = make_plan(tmp_path, inside=str(tmp_path), env={"A": "plain", "HF_TOKEN": Secret("hf_secret")})
    (tmp_path / "model").mkdir()
    output = Output()
    with runtime.open(plan) as session:
        session.run(bash('echo "$A $HF_TOKEN $MADLITE_RUN_ID"; pwd', cwd="model"), output)
        session.run(bash("pwd", cwd="{folder}"), output)
    assert output.streams[1].decode().splitlines() == [
        f"plain hf_secret {plan.id}", f"{tmp_path}/model", str(plan.folder),
    ]  # fmt: skip


def test_the_request_shows_folders_and_no_secret(tmp_path, runtime):
    plan = make_plan(tmp_path, env={"HF_TOKEN": Secret("hf_secret")}, actions=(bash("true", cwd="model"),))
    request = runtime.request(plan)
    assert request["env"]["HF_TOKEN"] == "***" and "hf_secret" not in repr(request)
    assert request["actions"] == [{"argv": ["bash", "-c", "true"], "cwd": f"{tmp_path}/model"}]


def test_a_signal_that_ends_the_process_is_a_negative_code(plan, runtime):
    with runtime.open(plan) as session:
        assert session.run(bash("kill -SEGV $$"), Output()).code == -signal.SIGSEGV


STUBBORN = "trap '' INT TERM; {child} echo $! ready; while :; do sleep 0.05; done"


@pytest.mark.skipif(not shutil.which("setsid"), reason="needs setsid")
def test_kill_reaches_a_workload_and_its_child_in_another_session(plan, runtime):
    output = Output()
    with runtime.open(plan) as session:
        thread = stop_once_it_said(session, output, b"ready", grace_s=0.2)
        ended = session.run(bash(STUBBORN.format(child="setsid sleep 300 &")), output)
        thread.join()
        assert ended.code == -signal.SIGKILL
        assert not run_processes(plan.id, plan.folder)


def test_a_second_stop_without_grace_cuts_the_first_ones_short(plan, runtime):
    output = Output()
    with runtime.open(plan) as session:
        thread = stop_once_it_said(session, output, b"ready", grace_s=3600)
        hurry = stop_once_it_said(session, output, b"ready", grace_s=0)
        assert session.run(bash(STUBBORN.format(child="")), output).code == -signal.SIGKILL
        thread.join()
        hurry.join()


def test_nothing_starts_after_a_stop(plan, runtime):
    with runtime.open(plan) as session:
        session.stop(0)
        assert session.run(bash("touch started"), Output()).code == STOPPED
    assert not (plan.workspace / "started").exists()


def test_an_action_past_its_own_limit_is_ended_and_the_next_one_runs(plan, runtime):
    with runtime.open(replace(plan, stop_grace_s=60.0)) as session:  # of which a busy machine may need some
        ended = session.run(bash("exec sleep 300", timeout_s=0.2), Output())
        assert ended.timed_out and ended.code in (-signal.SIGINT, -signal.SIGTERM)
        assert session.run(bash("exit 4"), Output()).code == 4


def test_a_child_that_keeps_the_pipe_open_does_not_hold_the_run(plan, runtime, monkeypatch):
    monkeypatch.setattr(host_session, "DRAIN_QUIET_S", 0.2)
    output = Output()
    with runtime.open(plan) as session:
        ended = session.run(bash("sleep 300 & echo done"), output)
        assert ended.code == 0 and ended.duration_s < 60 and output.streams[1] == b"done\n"
        assert run_processes(plan.id, plan.folder), "a helper left running on purpose lives as long as the session"
    assert not run_processes(plan.id, plan.folder)


def test_a_child_that_writes_for_ever_does_not_hold_the_run(plan, runtime, monkeypatch):
    monkeypatch.setattr(host_session, "DRAIN_LIMIT_S", 0.5)
    with runtime.open(plan) as session:
        assert session.run(bash("while :; do echo x; sleep 0.01; done & exit 0"), Output()).duration_s < 60


def test_what_a_child_still_writes_after_the_process_ended_is_kept(plan, runtime, monkeypatch):
    monkeypatch.setattr(host_session, "DRAIN_QUIET_S", 30.0)  # a busy machine may be late
    monkeypatch.setattr(host_session, "DRAIN_LIMIT_S", 30.0)
    output = Output()
    with runtime.open(plan) as session:
        session.run(bash("(sleep 0.3; echo late) & echo early"), output)
    assert output.streams[1] == b"early\nlate\n"


def test_leaving_by_an_exception_ends_every_process(plan, runtime):
    output = Output()

    def interrupt(chunk: Chunk) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), runtime.open(plan) as session:
        session.run(bash("sleep 300 & echo begun; wait"), interrupt)
    assert not run_processes(plan.id, plan.folder) and output.streams[1] == b""


@pytest.mark.parametrize(
    ("action", "told"),
    [
        (Action(kind="run", argv=("no-such-command",)), "no-such-command"),
        (Action(kind="run", argv=("true",), cwd="nowhere"), "nowhere"),
    ],
)
def test_what_cannot_be_started_is_named(plan, runtime, action, told):
    with pytest.raises(RuntimeProblem, match=told), runtime.open(plan) as session:
        session.run(action, Output())


def test_a_run_left_by_a_killed_madlite_is_ended_by_its_handle(plan, runtime):
    env = {**os.environ, "MADLITE_RUN_ID": plan.id, "MADLITE_RUN_FOLDER": str(plan.folder)}
    left = subprocess.Popen(["sleep", "300"], env=env, start_new_session=True)
    runtime.cancel(str(plan.folder))
    assert left.wait(timeout=240) == -signal.SIGTERM


def test_a_stop_that_comes_while_the_process_is_being_started_still_ends_it(plan, runtime, monkeypatch):
    """The stop looks once more, for its first look can come before there is a process."""
    begun, go_on = threading.Event(), threading.Event()
    start = HostAction._begin

    def slow_start(*args: object, **kwargs: object):
        begun.set()
        go_on.wait(30)
        return start(*args, **kwargs)

    monkeypatch.setattr(HostAction, "_begin", slow_start)
    monkeypatch.setattr(host_session.HostSession, "_end", _then(host_session.HostSession._end, go_on.set))
    with runtime.open(plan) as session:
        thread = threading.Thread(target=lambda: (begun.wait(30), session.stop(0.2)))
        thread.start()
        assert session.run(bash("exec sleep 300"), Output()).code < 0
        thread.join()


def _then(first, second):
    def both(*args: object) -> None:
        first(*args)
        second()

    return both


def test_time_is_not_spent_waiting_for_what_is_gone(plan, runtime):
    begun = time.monotonic()
    with runtime.open(plan) as session:
        session.run(bash("true"), Output())
        session.stop(3600)
    assert time.monotonic() - begun < 60


@each_row(
    ("env", "argv"),
    [
        ({}, ("bash", "-c", "echo a\0b")),
        ({"A": "x\0y"}, ("true",)),
        ({"A=B": "x"}, ("true",)),
        ({"TOKEN": Secret("hush\0hush")}, ("true",)),
    ],
)
def test_what_no_process_can_be_given_is_told_in_one_sentence(tmp_path, runtime, env, argv):
    plan = make_plan(tmp_path, inside=str(tmp_path), env=env)
    with runtime.open(plan) as session, pytest.raises(RuntimeProblem) as told:
        session.run(Action(kind="run", argv=argv), Output())
    assert told.value.cause is Cause.PREPARE
    assert told.value.message == f"the run action cannot be started: command '{argv[0]}': Invalid argument"


def test_a_process_that_closed_its_output_is_waited_for(plan, runtime):
    with runtime.open(plan) as session:
        ended = session.run(bash("exec >&- 2>&-; sleep 1; exit 5"), Output())
    assert ended.code == 5


def test_a_process_that_no_signal_ends_is_given_up(plan, runtime, monkeypatch):
    """As one that waits for a dead GPU: the run ends all the same, and is told as killed."""
    ended = []
    monkeypatch.setattr(host_session, "end_processes", lambda find, *args: ended.extend(find()))
    monkeypatch.setattr(host_session.HostSession, "return_limit_s", 0.1)
    output = Output()
    with runtime.open(plan) as session:
        stopper = stop_once_it_said(session, output, b"ready", grace_s=0.0)
        code = session.run(bash("trap '' INT; echo ready; exec sleep 300"), output).code
        stopper.join()
        for process in ended:
            send(process, signal.SIGKILL)
    assert code == -signal.SIGKILL and ended


def test_a_probe_runs_beside_the_action_and_is_none_of_its_processes(runtime, plan):
    output = Output()
    with runtime.open(plan) as session:
        seen: list[object] = []

        def look() -> None:
            seen.append(session.probe(("sh", "-c", "echo out; echo err >&2; env | grep -c MADLITE_RUN; exit 3"), 0, 20))
            seen.append({one.pid for one in run_processes(plan.id, plan.folder)})
            (plan.workspace / "seen").touch()

        once_it_said(output, b"ready", look)
        script = "echo ready; until [ -e seen ]; do sleep 0.05; done; exit 4"
        assert session.run(bash(script), output).code == 4
    assert seen[0] == Completed(code=3, stdout=b"out\n0\n", stderr=b"err\n")
    assert seen[1], "the action itself was there meanwhile"


def test_a_probe_that_goes_on_ends_at_its_limit_with_what_it_printed(runtime, plan):
    with runtime.open(plan) as session:
        begun = time.monotonic()
        said = session.probe(("sh", "-c", "echo begun; sleep 300 & echo $!; wait"), 0, 5.0)
        assert said.code is None and said.stdout.startswith(b"begun\n") and time.monotonic() - begun < 60
        started = Path(f"/proc/{said.stdout.split()[1].decode()}/cmdline")  # of a zombie it is empty
        assert not started.exists() or not started.read_bytes(), "what it started has ended, too"
        much = session.probe(("sh", "-c", "head -c 5000000 /dev/zero"), 0, 20.0)
        assert len(much.stdout) <= PROBE_BYTES
        with pytest.raises(RuntimeProblem, match="'no-such-command' cannot be started"):
            session.probe(("no-such-command",), 0, 1.0)
    assert not run_processes(plan.id, plan.folder)


def test_what_a_killed_madlite_left_is_cancelled_by_its_handle_and_told_of_until_then(runtime, plan):
    output = Output()
    session = runtime.open(plan).__enter__()
    runner = threading.Thread(target=lambda: session.run(bash("echo ready; sleep 300"), output), daemon=True)
    runner.start()
    output.wait_for(b"ready")
    assert runtime.outcome(session.handle) == JobOutcome(state="running", ended=False)
    runtime.cancel(session.handle)
    runner.join(60)
    assert runtime.outcome(session.handle) is None and not run_processes(plan.id, plan.folder)
    runtime.cancel(session.handle)  # of what is gone nothing is to be ended
    session.close()
