"""Whatever a run starts on this machine is found: ended with the run, or named."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import madlite
from madlite.batch.dead_processes import end_listed, find_dead_runs
from madlite.machine.processes import Process, descendants, lives, process_table, run_processes
from madlite.model import Chunk, Traits
from madlite.platforms.host import runtime as host_session
from madlite.platforms.host import supervisor as host_supervisor
from madlite.platforms.host.runtime import HostRuntime
from tests.factories import make_plan
from tests.run.output import Output, bash, once_it_said, stop_once_it_said
from tests.waiting import wait_until

pytestmark = pytest.mark.host
NOBODY = 65534
# a process in another session, and a daemon with two children, all with an empty environment
GONE_ASTRAY = """
mkfifo ready
env -i setsid sleep 300 > /dev/null 2>&1 & echo $!
(env -i setsid sh -c 'sleep 300 & sleep 300 & echo $$ > ready; exec sleep 300' > /dev/null 2>&1 &)
cat ready
echo done
"""


def astray(output: Output) -> list[Process]:
    """Return what the script above left."""
    named = {int(word) for word in output.streams[1].split() if word.isdigit()}
    return [one for one in process_table().values() if one.lives and (one.pid in named or one.parent in named)]


def test_what_left_its_session_with_an_empty_environment_lives_as_long_as_the_run(plan, runtime):
    output = Output()
    with runtime.open(plan) as session:
        assert session.run(bash(GONE_ASTRAY), output).code == 0
        left = astray(output)
        assert len(left) == 4
        assert session.run(bash("true"), Output()).code == 0
        assert all(map(lives, left)), "an action may leave a server for the next one"
    assert not any(map(lives, left)) and session.notes == ()


def test_a_stop_ends_what_left_its_session_with_an_empty_environment(plan, runtime):
    output = Output()
    with runtime.open(plan) as session:
        thread = stop_once_it_said(session, output, b"done", grace_s=0.2)
        session.run(bash(GONE_ASTRAY + "sleep 300"), output)
        thread.join()
        assert astray(output) == []


def test_what_begins_anew_all_the_time_is_ended_or_named(plan, runtime, tmp_path):
    """No look at the processes is sure to see the one of the moment; its forebears are gone, and it has no marks."""
    (tmp_path / "hops.py").write_text(
        "import os, signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "hops, end = 0, time.monotonic() + 60\n"
        "while not os.path.exists('enough') and time.monotonic() < end:\n"
        "    os.fork() and os._exit(0)\n"
        "    hops += 1\n"
        "    if hops == 100:\n"
        "        open('hopped', 'w').close()\n"
    )
    before = {one.pid for one in descendants(os.getpid())}
    try:
        with runtime.open(plan) as session:
            session.run(bash(f"env -i setsid {sys.executable} -S hops.py > /dev/null &"), Output())
            wait_until((tmp_path / "hopped").exists)
        left = {one.pid for one in descendants(os.getpid())} - before
        assert not left or any(note.startswith("not ended: ") for note in session.notes)
    finally:
        (tmp_path / "enough").touch()


def test_a_command_has_the_state_of_one_that_was_started_without_a_supervisor(plan):
    """Signals, users, descriptors, session and environment, to the letter."""
    look = (
        "cat -A /proc/$$/environ; echo; grep -E '^(Sig[^Q]|Shd|Uid|Gid|Groups|Umask|Cap|NoNewPrivs)' /proc/$$/status; "
        "ls /proc/$$/fd; readlink /proc/$$/fd/0; pwd"
    )
    env = {"PATH": os.environ["PATH"], "ODD": "a=b\n\udcff", "EMPTY": "", "LC_ALL": "C"}
    output = Output()
    with HostRuntime(env).open(plan) as session:
        session.run(bash(f"{look}; cut -d' ' -f5-6 /proc/$$/stat; echo $$ $$"), output)
    marks = {"MADLITE_RUN_ID": plan.id, "MADLITE_RUN_FOLDER": str(plan.folder)}
    options = {"env": {**env, **marks}, "cwd": plan.workspace, "stdin": subprocess.DEVNULL, "start_new_session": True}
    direct = subprocess.run(["bash", "-c", f"{look}; echo"], capture_output=True, **options)
    *seen, group_and_session, own = output.streams[1].splitlines()
    assert [*seen, b""] == direct.stdout.splitlines() and group_and_session == own


def test_what_ended_is_nobodys_zombie(plan, runtime):
    output = Output()
    with runtime.open(plan) as session:
        session.run(bash("(sleep 300 > /dev/null 2>&1 &); mkfifo f; (env -i sh -c 'echo $$ > f' &); cat f"), output)
        wait_until(lambda: int(output.streams[1]) not in process_table())


def test_where_what_keeps_a_run_together_is_killed_that_is_told(plan, runtime):
    output = Output()
    with runtime.open(plan) as session:

        def kill_the_supervisor() -> None:
            os.kill(process_table()[int(output.streams[1].split()[0])].parent, signal.SIGKILL)

        thread = once_it_said(output, b"ready", kill_the_supervisor)
        ended = session.run(bash("sleep 300 & echo $$ ready; wait"), output)
        thread.join()
    assert ended.code == -signal.SIGKILL and session.notes == (host_session.LOST,)
    assert not run_processes(plan.id, plan.folder)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGPIPE])
def test_what_keeps_a_run_together_outlives_what_is_meant_for_the_run(plan, runtime, number):
    output = Output()
    with runtime.open(plan) as session:
        assert session.run(bash(f"kill -{int(number)} $PPID; echo $PPID; exit 3"), output).code == 3
    assert session.notes == ()


def test_decoys_with_the_marks_of_a_living_run_are_not_signalled(plan, runtime, tmp_path):
    run, folder = {"MADLITE_RUN_ID": plan.id}, {"MADLITE_RUN_FOLDER": str(plan.folder)}
    elsewhere = {"MADLITE_RUN_FOLDER": str(tmp_path / "elsewhere")}
    decoys = [
        subprocess.Popen(["sleep", "300"], env=env, user=user)
        for env, user in ((run | folder, NOBODY), (run | elsewhere, None), (run, None), (folder, None))
    ]
    try:
        output = Output()
        with runtime.open(plan) as session:
            thread = stop_once_it_said(session, output, b"ready", grace_s=0.2)
            session.run(bash("echo ready; sleep 300"), output)
            thread.join()
        assert [decoy.poll() for decoy in decoys] == [None] * 4
    finally:
        for decoy in decoys:
            decoy.kill()
            decoy.wait()


def test_a_workload_of_another_user_is_ended_by_root(plan, runtime):
    output = Output()
    with runtime.open(plan) as session:
        session.run(bash("env -i setpriv --reuid 65534 --clear-groups setsid sleep 300 > /dev/null & echo $!"), output)
        pid = int(output.streams[1])
        wait_until(lambda: process_table()[pid].name == "sleep")
    assert pid not in process_table() and session.notes == ()


AS_A_USER = """
import json, os, sys
from pathlib import Path
from madlite.platforms.host import supervisor as host_supervisor
from madlite.platforms.host.runtime import HostRuntime
from madlite.model import Action, Traits
from tests.factories import make_plan

place = Path(sys.argv[1])
plan = make_plan(place / "w", traits=Traits(containerised=False), inside=str(place / "w"), stop_grace_s=0.2)
os.setgroups([])
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
sys.executable, host_supervisor.__file__ = sys.argv[2], str(place / "supervisor.py")
script = f"env -i {place}/become --reuid 0 --clear-groups setsid sleep 300 > /dev/null 2>&1 & echo $!"
said = []
with HostRuntime({"PATH": os.environ["PATH"]}).open(plan) as session:
    session.run(Action(kind="run", argv=("bash", "-c", script)), lambda chunk: said.append(chunk.data))
print(json.dumps([int(b"".join(said)), session.notes]))
"""


def test_what_another_users_rights_keep_from_being_ended_is_named(tmp_path):
    """As a workload that goes on with the help of sudo."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        place = Path(name)
        place.chmod(0o755)
        shutil.copy(shutil.which("setpriv") or "", place / "become")
        (place / "become").chmod(0o4755)
        shutil.copy(host_supervisor.__file__, place / "supervisor.py")
        python = shutil.which("python3", path="/usr/bin:/usr/local/bin") or sys.executable
        path = str(Path(madlite.__file__).parents[1])
        told = subprocess.run(
            [sys.executable, "-c", AS_A_USER, name, python],
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
        )
    pid, (note,) = json.loads(told.stdout or told.stderr)
    try:
        assert note.startswith(f"not ended: pid {pid} (sleep, of user root), started by the run and below pid ")
    finally:
        os.kill(pid, signal.SIGKILL)


def test_what_was_asked_to_stay_stays_together(tmp_path, runtime):
    plan = make_plan(tmp_path, traits=Traits(containerised=False), inside=str(tmp_path), keep_alive=True)
    output = Output()
    with runtime.open(plan) as session:
        session.run(bash(GONE_ASTRAY), output)
    left = astray(output)
    assert len(left) == 4
    (run,) = [run for run in find_dead_runs().runs if run.run_id == plan.id]
    assert run.kept and {one.identity for one in left} <= {one.process.identity for one in run.members}
    assert end_listed(run, 20.0) is None and not any(map(lives, left))


MADLITE = """
import os, sys
from pathlib import Path
from madlite.store.folder import RunFolder
from madlite.platforms.host.runtime import HostRuntime
from madlite.model import Action, Traits
from tests.factories import make_plan

plan = make_plan(Path(sys.argv[1]), traits=Traits(containerised=False), inside=sys.argv[1])
plan.folder.rmdir()
RunFolder.create(plan, [])
with HostRuntime(dict(os.environ)).open(plan) as session:
    session.run(Action(kind="run", argv=("bash", "-c", sys.argv[2])), lambda chunk: os.write(1, chunk.data))
"""


def test_after_a_kill_of_madlite_all_of_it_is_listed_and_ended(tmp_path):
    env = {**os.environ, "PYTHONPATH": str(Path(madlite.__file__).parents[1])}
    command = [sys.executable, "-c", MADLITE, str(tmp_path), GONE_ASTRAY + "sleep 300"]
    output = Output()
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, start_new_session=True) as started:
        while b"done" not in output.streams[1]:
            output(Chunk(data=started.stdout.readline()))
        assert [run for run in find_dead_runs().runs if run.folder.startswith(f"{tmp_path}/")] == []
        os.killpg(started.pid, signal.SIGKILL)
    left = astray(output)
    (run,) = [run for run in find_dead_runs().runs if run.folder.startswith(f"{tmp_path}/")]
    assert len(left) == 4 and {one.identity for one in left} <= {one.process.identity for one in run.members}
    assert end_listed(run, 20.0) is None
    assert not any(lives(one.process) for one in run.members)
    assert [run for run in find_dead_runs().runs if run.folder.startswith(f"{tmp_path}/")] == []


def test_a_command_that_kills_its_supervisor_at_once_has_begun_all_the_same(plan, runtime):
    """The one or the other may be the quicker."""
    for _ in range(5):
        with runtime.open(plan) as session:
            code = session.run(bash("kill -KILL $PPID; exec sleep 300"), Output()).code
        assert (code, session.notes) == (-signal.SIGKILL, (host_session.LOST,))
        assert not run_processes(plan.id, plan.folder)
