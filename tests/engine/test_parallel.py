"""Whole commands on eight GPUs that tools make up: each run has its own, also among processes and users."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections import defaultdict
from contextlib import closing
from pathlib import Path

import pytest

from madlite.perfcsv.append import locked
from madlite.store.gpu_leases import LeaseFolder
from tests.engine.checkout import Checkout
from tests.tiers import ALL
from tests.waiting import wait_until

STATIC = json.dumps(
    {
        "gpu_data": [
            {
                "gpu": n,
                "asic": {
                    "market_name": "AMD Instinct MI300X",
                    "device_id": "0x74a1",
                    "target_graphics_version": "gfx942",
                },
                "bus": {"bdf": f"0000:0{n + 1}:00.0"},
                "vram": {"size": {"value": 196592, "unit": "MB"}},
            }
            for n in range(8)
        ]
    }
)
LIST = json.dumps([{"gpu": n, "bdf": f"0000:0{n + 1}:00.0"} for n in range(8)])
AMD_SMI = f"""#!/bin/sh
case "$1" in
static) echo '{STATIC}' ;;
list) echo '{LIST}' ;;
*) exit 2 ;;
esac
"""
# which GPUs a workload sees, from its first to its last moment
SEEN = """
say() {
  echo "$(date +%s.%N) $1 ${HIP_VISIBLE_DEVICES:-0,1,2,3,4,5,6,7} ${MASTER_PORT:-none}" > "$SEEN/$1.$MADLITE_RUN_ID"
}
say begin
"""
DONE = "\nsay end\necho 'performance: 5 x'\n"
QUICK = ("--set", "telemetry_s=0", "--set", "probe=false")


class Machine(Checkout):
    """A checkout on a machine of eight GPUs."""

    def __init__(self, folder: Path, seen: Path) -> None:
        folder.mkdir()
        super().__init__(folder, "host", "unix:///nonexistent")
        self.seen = seen
        seen.mkdir(exist_ok=True, mode=0o777)
        seen.chmod(0o777)
        tools = folder / "bin"
        tools.mkdir()
        (tools / "amd-smi").write_text(AMD_SMI)
        (tools / "amd-smi").chmod(0o755)
        self.env |= {
            "PATH": f"{tools}:{os.environ['PATH']}",
            "SEEN": str(seen),
            "MADLITE_GPU_LEASES": str(seen.parent / "leases"),
            "XDG_CACHE_HOME": str(seen.parent / "cache"),
            "XDG_RUNTIME_DIR": "",
        }
        for name in ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "MASTER_PORT"):
            self.env.pop(name, None)

    def gpu_card(self, name: str, gpus: int, script: str = "sleep 0.3", **fields: object) -> None:
        self.card(name, SEEN + script + DONE, n_gpus=str(gpus), **fields)

    def free(self, name: str) -> Path:
        """Return the file that a script of `until` waits for."""
        return self.seen / name

    def events(self, when: str) -> dict[str, list[str]]:
        """Return time, GPUs and port of each run."""
        return {path.name.partition(".")[2]: path.read_text().split() for path in self.seen.glob(f"{when}.*")}


def until(name: str) -> str:
    return f'until [ -e "$SEEN/{name}" ]; do sleep 0.05; done'


def gpus_of(words: list[str]) -> list[int]:
    return [int(word) for word in words[2].split(",")]


def assert_none_shared(*machines: Machine) -> None:
    """Check by the clocks of the workloads that each GPU had one of them at a time."""
    uses = defaultdict(list)
    for machine in machines[:1]:  # they have one folder
        ends = machine.events("end")
        for run, words in machine.events("begin").items():
            for gpu in gpus_of(words):
                uses[gpu].append((float(words[0]), float(ends[run][0])))
    assert uses
    for gpu, spans in uses.items():
        spans.sort()
        for (_, ended), (begun, _) in zip(spans, spans[1:], strict=False):
            assert ended <= begun, f"GPU {gpu} had two runs at a time"


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path / "w", tmp_path / "seen")


def succeeded(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.host
def test_runs_of_one_to_eight_gpus_are_packed_and_share_none(machine):
    count = 40 if ALL else 15
    for n in range(count):
        machine.gpu_card(f"c{n}", (1, 1, 2, 4, 8)[n % 5], "sleep 0.1")
    said = succeeded(machine.run("--tags", "t", "--parallel", "auto", *QUICK, limit_s=500))
    assert f"{count} SUCCESS" in said and len(machine.rows) == count
    assert {row["n_gpus"] for row in machine.rows} == {"1", "2", "4", "8"}
    begun = machine.events("begin")
    assert len(begun) == count
    for record in machine.records():
        assert gpus_of(begun[record["id"]]) == record["place"]["gpu_ids"], "the record has those that it ran on"
    assert_none_shared(machine)
    assert any(record["beside"] for record in machine.records())
    assert {row["n_gpus"] for row in machine.rows if row["model"] in ("c4", "c9")} == {"8"}
    machine.assert_nothing_left()


@pytest.mark.host
def test_runs_beside_each_other_have_ports_and_marks_of_their_own(machine):
    for name in ("a", "b"):
        other = "b" if name == "a" else "a"
        machine.gpu_card(name, 1, f': > "$SEEN/{name}"; {until(other)}')
    said = succeeded(machine.run("--tags", "t", "--parallel", "2", *QUICK))
    assert "[1/2]" in said and "beside 1 other run" in said
    one, two = machine.events("begin").values()
    assert one[3] != two[3] and "none" not in (one[3], two[3])
    ids = [record["id"] for record in machine.records()]
    assert [record["beside"] for record in machine.records()] == [ids[1:], ids[:1]]
    shown = machine.madlite("show", ids[0]).stdout
    assert f"1 in its course: {ids[1]}" in shown


@pytest.mark.host
def test_a_script_with_a_port_of_its_own_runs_alone_among_such(machine):
    check = '[ "$(ls "$SEEN" | grep -c "^port")" = 0 ] || exit 9; : > "$SEEN/port"; sleep 0.4; rm "$SEEN/port"'
    for name in ("a", "b", "c"):
        machine.gpu_card(name, 1, f"{check} # --master_port 29511")
    assert "3 SUCCESS" in succeeded(machine.run("--tags", "t", "--parallel", "auto", *QUICK))


@pytest.mark.host
def test_too_many_failures_start_no_other_run_and_the_summary_names_those(machine):
    machine.gpu_card("bad", 8, "exit 7")
    for name in ("x", "y"):
        machine.gpu_card(name, 8)
    done = machine.run("--tags", "bad,x,y", "--fail-fast", "--summary-output", "s.json", *QUICK)
    assert done.returncode == 3 and "never started: x, y" in done.stdout
    assert [row["model"] for row in machine.rows] == ["bad"]
    failed = json.loads((machine.folder / "s.json").read_text())["run_phase"]["failed_runs"]
    assert [(one["model"], one["status"]) for one in failed] == [
        ("bad", "FAILURE"), ("x", "NOT_STARTED"), ("y", "NOT_STARTED"),
    ]  # fmt: skip


@pytest.mark.host
def test_no_run_gets_the_gpus_of_one_that_failed_too_much_however_long_its_row_takes(machine):
    machine.gpu_card("bad", 8, f"{until('go')}; exit 7")
    machine.gpu_card("x", 8)
    perf = machine.folder / "perf.csv"
    perf.write_text("model,performance,metric,status\n")

    def is_decided() -> bool:
        """Whether the GPUs of the first are free again, or the second has them."""
        with closing(LeaseFolder(machine.seen.parent / "leases")) as leases:
            return not any(one.locked for one in leases.states(leases.names())) or len(machine.events("begin")) > 1

    with machine.start("--tags", "bad,x", "--parallel", "auto", "--fail-fast", *QUICK) as one:
        wait_until(lambda: machine.events("begin"), "the first run")
        with locked(perf):
            (machine.seen / "go").touch()
            wait_until(is_decided, "the end of the first run")
        said = one.stdout.read()
    assert one.returncode == 3 and "never started: x" in said, said
    assert [row["model"] for row in machine.rows] == ["bad"]


@pytest.mark.host
@pytest.mark.parametrize(
    ("hiding", "expected"),
    [({"ROCR_VISIBLE_DEVICES": "4,5,6,7", "HIP_VISIBLE_DEVICES": "2,3"}, {6, 7}), ({"CUDA_VISIBLE_DEVICES": "5"}, {5})],
)
def test_gpus_that_the_caller_hides_are_not_used(machine, hiding, expected):
    say = 'echo "ROCR=${ROCR_VISIBLE_DEVICES-} HIP=${HIP_VISIBLE_DEVICES-} CUDA=${CUDA_VISIBLE_DEVICES-}"'
    for name in ("a", "b"):
        machine.card(name, f"{say}\necho 'performance: 5 x'", n_gpus="1")
    said = succeeded(machine.run("--tags", "t", "--parallel", "auto", "-l", *QUICK, env=hiding))
    used = [record["place"]["gpu_ids"] for record in machine.records()]
    assert {gpu for ids in used for gpu in ids} <= expected and all(len(ids) == 1 for ids in used)
    for line in (line for line in said.splitlines() if "ROCR=" in line and "echo" not in line):
        rocr, hip, cuda = (word.partition("=")[2] for word in line.split()[-3:])
        assert (rocr in ("6", "7") and hip == "0") if "ROCR_VISIBLE_DEVICES" in hiding else (hip, cuda) == ("5", "5")


@pytest.mark.host
def test_a_caller_that_hides_all_gpus_gets_a_row_that_says_so(machine):
    machine.gpu_card("a", 1)
    done = machine.run("--tags", "t", env={"HIP_VISIBLE_DEVICES": ""})
    assert done.returncode == 3 and "HIP_VISIBLE_DEVICES= of the environment leaves 0" in done.stdout


@pytest.mark.host
def test_two_commands_share_no_gpu_and_the_wait_is_told(machine, tmp_path):
    other = Machine(tmp_path / "other", machine.seen)
    machine.gpu_card("first", 8, until("go"))
    other.gpu_card("second", 8)
    with machine.start("--tags", "t", *QUICK) as one:
        wait_until(lambda: machine.events("begin"), "the first run")
        gpus = other.madlite("doctor", "--gpus").stdout
        assert gpus.count("held by run") == 8
        with other.start("--tags", "t", *QUICK) as two:
            line = next(line for line in two.stdout if "waiting for GPUs" in line)
            assert "GPU 0, 1, 2, 3, 4, 5, 6, 7: run" in line and f"(pid {one.pid})" in line and not other.events("end")
            (machine.seen / "go").touch()
            assert "SUCCESS" in two.stdout.read()
        assert "SUCCESS" in one.stdout.read()
    assert (one.returncode, two.returncode) == (0, 0)
    assert_none_shared(machine)
    (record,) = other.records()
    assert record["durations_s"]["total"] < 60


HUB = "echo 'huggingface_hub.errors.HfHubHTTPError: 503 Server Error: Service Temporarily Unavailable for url: h' >&2"


@pytest.mark.host
def test_the_next_attempt_gets_gpus_of_its_own(machine):
    once = f'if [ ! -e "$SEEN/failed" ]; then : > "$SEEN/failed"; {HUB}; exit 1; fi; : > "$SEEN/again"'
    machine.gpu_card("first", 1, once)
    machine.gpu_card("second", 1, until("again"))
    options = ("--parallel", "auto", "--retry", "1", "--retry-wait", "1", *QUICK)
    succeeded(machine.run("--tags", "first,second", *options, env={"HIP_VISIBLE_DEVICES": "4,5"}))
    failed, *_ = sorted(machine.records(), key=lambda one: one["status"])
    assert failed["status"] == "FAILURE" and len(machine.records()) == 3
    for record in machine.records():
        begun = machine.events("begin")[record["id"]]
        assert gpus_of(begun) == record["place"]["gpu_ids"] and set(gpus_of(begun)) <= {4, 5}
    assert [(row["model"], row["status"]) for row in machine.rows].count(("first", "SUCCESS")) == 1


@pytest.mark.host
def test_the_wait_for_gpus_ends_with_a_signal_and_has_no_row(machine, tmp_path):
    other = Machine(tmp_path / "other", machine.seen)
    machine.gpu_card("first", 8, until("go"))
    other.gpu_card("second", 8)
    with machine.start("--tags", "t", *QUICK) as one:
        wait_until(lambda: machine.events("begin"), "the first run")
        with other.start("--tags", "t", *QUICK) as two:
            next(line for line in two.stdout if "waiting for GPUs" in line)
            two.send_signal(signal.SIGINT)
            said = two.stdout.read()
        (machine.seen / "go").touch()
        one.stdout.read()
    assert two.returncode == 130 and "never started: second" in said
    assert not (other.folder / "perf.csv").exists()


@pytest.mark.host
def test_what_a_killed_madlite_left_keeps_its_gpus_until_clean_ends_it(machine, tmp_path):
    other = Machine(tmp_path / "other", machine.seen)
    machine.gpu_card("first", 2, "sleep 600")
    for name in ("all", "six"):
        other.gpu_card(name, 8 if name == "all" else 6)
    with machine.start("--tags", "t", *QUICK) as one:
        wait_until(lambda: machine.events("begin"), "the first run")
        one.kill()
    (run,) = machine.events("begin")
    gpus = other.madlite("doctor", "--gpus").stdout
    assert (
        gpus.count(f"left by run {run} of user") == gpus.count("; madlite clean --everywhere --yes ends it") == 2
        and gpus.count("free") == 6
    )
    assert "SUCCESS" in succeeded(other.run("--tags", "six", *QUICK)), "the others are free"
    with other.start("--tags", "all", *QUICK) as two:
        line = next(line for line in two.stdout if "waiting for GPUs" in line)
        assert f"left by run {run} of user" in line and "(madlite doctor --gpus)" in line
        assert "removed process" in machine.madlite("clean", "--yes").stdout
        assert "SUCCESS" in two.stdout.read()
    assert two.returncode == 0
    assert other.madlite("doctor", "--gpus").stdout.count("free") == 8
    machine.assert_nothing_left()


IN_A_CONTAINER = ("unshare", "--pid", "--fork", "--mount-proc")


@pytest.mark.host
@pytest.mark.skipif(
    subprocess.run([*IN_A_CONTAINER, "true"], capture_output=True).returncode != 0,
    reason="makes a namespace of processes",
)
def test_who_cannot_see_what_a_killed_madlite_left_leaves_its_gpus_alone_until_told(machine, tmp_path):
    other = Machine(tmp_path / "other", machine.seen)
    other.before = IN_A_CONTAINER
    machine.gpu_card("first", 2, "sleep 600")
    other.gpu_card("all", 8)
    with machine.start("--tags", "t", *QUICK) as one:
        wait_until(lambda: machine.events("begin"), "the first run")
        assert "it is held by run" in other.madlite("doctor", "--gpus", "--clear", "0").stderr
        one.kill()
    gpus = other.madlite("doctor", "--gpus").stdout
    assert gpus.count("held by perhaps processes that cannot be seen from here, left by run") == 2, gpus
    assert "--clear 0: it is held by pid" in machine.madlite("doctor", "--gpus", "--clear", "0").stderr, (
        "it is seen there"
    )
    assert "there is no GPU 8 here" in other.madlite("doctor", "--gpus", "--clear", "8").stderr
    assert other.madlite("doctor", "--gpus", "--clear", "0").stdout.count("perhaps") == 1, (
        "whoever says so answers for it"
    )
    with other.start("--tags", "all", *QUICK) as two:
        line = next(line for line in two.stdout if "waiting for GPUs" in line)
        assert "GPU 1: perhaps processes that cannot be seen from here" in line
        assert "removed process" in machine.madlite("clean", "--yes").stdout
        assert "SUCCESS" in two.stdout.read()
    assert two.returncode == 0


def python_for_all(become: tuple[str, ...]) -> tuple[str, str]:
    """Return an interpreter that another user can start, and where it finds madlite and what that needs."""
    checkout = Path(__file__).parents[2]
    path = os.pathsep.join(map(str, (checkout, checkout / "plugins", sysconfig.get_path("purelib"))))
    for python in (sys.executable, "/usr/bin/python3"):
        # by a shell: what setpriv starts itself has root's rights while it is opened
        asks = f'exec "{python}" -c "import madlite.cli.main, msgspec"'
        done = subprocess.run(
            [*become, "sh", "-c", asks], env={**os.environ, "PYTHONPATH": path}, cwd="/", capture_output=True
        )
        if done.returncode == 0:
            return python, path
    pytest.skip("there is no interpreter for other users")


@pytest.mark.host
@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("setpriv") is None, reason="becomes another user")
def test_two_users_share_no_gpu(machine, tmp_path):
    become = ("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups")
    python, path = python_for_all(become)
    for place in (tmp_path, *tmp_path.parents[:3]):
        if place != Path("/tmp"):
            place.chmod(place.stat().st_mode | 0o055)
    tmp_path.chmod(0o777)
    other = Machine(tmp_path / "other", machine.seen)
    other.before = (*become, "sh", "-c", f'shift; exec "{python}" "$@"', "sh")
    other.env |= {"HOME": str(other.folder), "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": path}
    other.env["PATH"] = f"{other.folder}/bin:/usr/bin:/bin"
    for n in range(6):
        machine.gpu_card(f"mine{n}", (1, 2, 4)[n % 3])
        other.gpu_card(f"yours{n}", (4, 2, 1)[n % 3])
    subprocess.run(["chown", "-R", "65534:65534", str(other.folder)], check=True)
    with machine.start("--tags", "t", "--parallel", "auto", *QUICK) as one:
        with other.start("--tags", "t", "--parallel", "auto", *QUICK) as two:
            said = two.stdout.read()
        mine = one.stdout.read()
    assert (one.returncode, two.returncode) == (0, 0), mine + said
    assert len(machine.events("end")) == 12
    assert_none_shared(machine)


@pytest.mark.host
def test_a_lease_that_is_no_plain_file_keeps_runs_from_its_gpu_and_costs_the_running_one_nothing(machine):
    machine.gpu_card("first", 1, until("go"))
    machine.gpu_card("eight", 8)
    with machine.start("--tags", "first,eight", "--summary-output", "s.json", *QUICK) as one:
        wait_until(lambda: machine.events("begin"), "the first run")
        broken = machine.seen.parent / "leases" / "gpu-0000:01:00.0"
        broken.unlink()
        os.mkfifo(broken)
        (machine.seen / "go").touch()
        said = one.stdout.read()
    assert one.returncode == 3 and "Traceback" not in said, said
    unusable = f"the leases of GPUs cannot be used: {broken}: it is a pipe, no plain file"
    assert f"FAILURE eight [prepare_failed] {unusable}" in said, said
    assert {run["card"]: run["status"] for run in machine.records()} == {"first": "SUCCESS", "eight": "FAILURE"}
    assert [name.split("-")[1] for name in machine.events("begin")] == ["first"]
    assert "0000:01:00.0  the leases of GPUs cannot be used" in machine.madlite("doctor", "--gpus").stdout


@pytest.mark.host
def test_options_that_do_not_go_together_and_a_bad_folder_of_leases_are_sentences(machine):
    machine.gpu_card("a", 1)
    for words, said in (
        (("--parallel", "2", "--repeat", "3"), "--parallel beside --repeat: the runs of a series would disturb"),
        (("--parallel", "2", "--exclusive"), "--parallel beside --exclusive"),
        (("--parallel", "auto", "--keep-alive"), "--parallel beside --keep-alive"),
        (("--parallel", "none"), "'none' is no number of runs: write 4 or auto"),
        (("--fail-fast", "--max-failures", "2"), "--fail-fast beside --max-failures"),
    ):
        done = machine.run("--tags", "t", *words)
        assert done.returncode == 4 and said in done.stderr, done.stderr


@pytest.mark.host
@pytest.mark.skipif(os.geteuid() != 0, reason="makes a folder of another user")
def test_a_folder_of_leases_that_another_user_made_for_himself_blocks_nobody(machine):
    machine.gpu_card("a", 1)
    machine.gpu_card("b", 1)
    leases = machine.seen.parent / "leases"
    leases.symlink_to(machine.folder)
    os.chown(leases, 65534, 65534, follow_symlinks=False)
    done = machine.run("--tags", "t", *QUICK)
    said = succeeded(done)
    assert said.count("another user may share the GPUs, and numbers are suspect: the leases of GPUs cannot be") == 1
    assert [len(one["suspect"]) for one in machine.records()] == [1, 1] and "2 SUCCESS (suspect)" in said
    own = machine.seen.parent / "cache/madlite/leases"
    assert sorted(path.name for path in own.iterdir()) == ["gpu-0000:01:00.0", "turn"]
    assert own.stat().st_mode & 0o777 == 0o700
