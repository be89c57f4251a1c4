"""Runtime `slurm` in allocations of a real Slurm: one step on each node, whose output and end are told apart."""

from __future__ import annotations

import json
import os
import re
import shlex
import stat
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import docker
import psutil
import pytest
from msgspec.structs import replace

from madlite.model import Image, Machine, Place
from madlite.platforms.slurm.containers import container_of
from tests import commands
from tests.csv_rows import csv_rows
from tests.engine.podman_fixture import command_line, podman
from tests.factories import BASE_IMAGE, make_plan
from tests.machine.elsewhere import ELSEWHERE
from tests.machine.stand_in import Bench, amd_list, amd_static
from tests.slurm_fixture import SlurmCluster
from tests.tiers import first_of
from tests.waiting import start_session, wait_until

__all__ = ["podman"]
pytestmark = pytest.mark.engine
SECRET = "hf_thisIsNoRealTokenButLooksLikeOne5678"
SCRIPT = """
NODE_RANK=${NODE_RANK:-0}
echo "rank $NODE_RANK of $NNODES meets at $MASTER_ADDR on $SLURMD_NODENAME"
echo "warning of $NODE_RANK" >&2
if [ "$NODE_RANK" = "${FAILS:-none}" ]; then python3 -c 'raise RuntimeError("lost on purpose")'; exit 7; fi
if [ -n "${SLEEP:-}" ]; then touch "begun.$NODE_RANK"; sleep "$SLEEP" & wait; fi
if [ "$NODE_RANK" = 0 ]; then echo "performance: 12.5 tok"; fi
"""


class Site:
    """A working folder on a cluster, with a card whose script says where it runs."""

    def __init__(self, folder: Path, slurm: SlurmCluster) -> None:
        self.folder, self.slurm = folder, slurm
        (folder / "scripts/a").mkdir(parents=True)
        (folder / "scripts/a/run.sh").write_text(SCRIPT)
        card = {
            "name": "a",
            "scripts": "scripts/a/run.sh",
            "args": "",
            "tags": ["t"],
            "runtimes": ["host"],
            "n_gpus": "0",
        }
        (folder / "models.json").write_text(json.dumps([card]))
        self.environ = {**slurm.environ, "USER": "root", "HF_TOKEN": SECRET}

    def start(self, nodes: int, *words: str, named: str = "") -> subprocess.Popen[str]:
        """Start a run in an allocation of so many nodes; which those are is Slurm's choice, unless they are named."""
        command = [sys.executable, "-m", "madlite", "run", "--tags", "a", *words]
        which = [f"-w{named}"] if named else []
        return start_session(["salloc", "--quiet", f"-N{nodes}", *which, *command], self.folder, self.environ)

    def call(self, nodes: int, *words: str, named: str = "") -> tuple[int, str]:
        started = self.start(nodes, *words, named=named)
        out, _ = started.communicate(timeout=280)
        return started.returncode, out

    @property
    def run(self) -> Path:
        (found,) = [file.parent for file in self.folder.glob("madlite_runs/*/record.json")]
        return found

    def record(self) -> dict:
        return json.loads((self.run / "record.json").read_text())

    def log(self) -> str:
        return (self.run / "run.log").read_text()


@pytest.fixture
def site(tmp_path, slurm):
    return Site(tmp_path, slurm)


def test_a_run_is_on_every_node_of_its_allocation_and_has_one_row(site):
    code, out = site.call(2)
    assert code == 0, out
    (row,) = csv_rows(site.folder / "perf.csv")
    assert (row["performance"], row["nnodes"], row["deployment_type"]) == ("12.5", "2", "slurm")
    assert "on its 2 nodes" in out
    log = site.log()
    for rank, name in ((0, "n1"), (1, "n2")):
        assert any(f"rank {rank} of 2 meets at 127.0.0.1" in line for line in log.splitlines()), log
        assert f"warning of {rank}" in log and name
    assert "srun:" not in log + out, "Slurm has something to say of each step"
    record = site.record()
    assert record["runtime"] == "slurm" and record["node_codes"] == [0, 0]
    assert record["place"]["nodes"] == 2


def nnodes(count: int) -> tuple[str, str]:
    return "-c", json.dumps({"distributed": {"nnodes": count}})


@pytest.mark.parametrize("words", first_of([nnodes(2), ("--nodes", "2", *nnodes(3))], 1))
def test_a_run_takes_the_first_nodes_of_its_allocation_where_it_asks_for_fewer(site, words):
    code, out = site.call(3, *words)
    assert code == 0, out
    assert "on the first 2 of its 3 nodes" in out
    ran_on = re.findall(r"rank (\d) of 2 meets at 127.0.0.1 on (n\d)", site.log())
    (job,) = re.findall(r"in allocation (\d+)", out)
    first = site.slurm.checked("scontrol", "show", "hostnames", site.slurm.job(job)["NodeList"]).split()[:2]
    assert sorted(ran_on) == [("0", first[0]), ("1", first[1])]
    assert (csv_rows(site.folder / "perf.csv")[0]["nnodes"], site.record()["node_codes"]) == ("2", [0, 0])


def test_nodes_that_a_run_cannot_have_are_refused(site, allocation):
    for words, said in (
        (("--nodes", "3"), "has 2 nodes"),
        (("--nodes", "2", "--runtime", "host"), "it would run on this node alone"),
        (nnodes(3), "distributed.nnodes 3: allocation"),
        ((*nnodes(2), "--runtime", "host"), "distributed.nnodes 2 beside --runtime host: it would run on this node"),
        (("--parallel", "2"), "each run has all of their GPUs"),
    ):
        done = commands.run(("run", "--tags", "a", *words), site.folder, {**site.environ, **allocation})
        assert done.returncode == 4 and said in done.stderr, done.stdout + done.stderr
    assert not [*site.folder.glob("madlite_runs/*/record.json")]


def test_in_an_allocation_of_one_node_a_run_is_as_on_any_machine(site):
    code, out = site.call(1)
    assert code == 0, out
    assert "its one node alone" in out
    assert site.record()["runtime"] == "host"


def test_the_node_that_fails_is_named_and_the_others_are_ended(site):
    code, out = site.call(3, "--set", "env.FAILS=1", "--set", "env.SLEEP=600", "--set", "stop_grace_s=2")
    assert code == 3, out
    (row,) = csv_rows(site.folder / "perf.csv")
    record = site.record()
    assert row["status"] == "FAILURE" and "node 1 (n" in record["reason"] and record["node_codes"][1] == 7
    assert "lost on purpose" in record["evidence"]


def test_an_interrupt_ends_the_run_on_every_node(site):
    started = site.start(2, "--set", "env.SLEEP=600", "--set", "stop_grace_s=2")
    try:
        wait_until(lambda: len([*site.folder.glob("**/begun.*")]) == 2, "both nodes have begun")
        _madlite_of(site.folder).terminate()
        out, _ = started.communicate(timeout=240)
    finally:
        started.kill()
    (row,) = csv_rows(site.folder / "perf.csv")
    assert row["status"] == "FAILURE" and site.record()["ended_by"] == "interrupted", out
    assert b"sleep\x00600" not in b"".join(_cmdline(path) for path in _processes_in(site.folder))


def _madlite_of(folder: Path) -> psutil.Process:
    """Return the madlite that runs there: the oldest, as a child is like it until it has become another program."""
    words = [b"-m", b"madlite", b"run"]
    found = []
    for path in _processes_in(folder):
        with suppress(psutil.NoSuchProcess):
            if _cmdline(path).split(b"\0")[1:4] == words:
                found.append(psutil.Process(int(path.name)))
    return min(found, key=psutil.Process.create_time)


def _processes_in(folder: Path) -> list[Path]:
    return [path for path in Path("/proc").iterdir() if path.name.isdigit() and _has_cwd(path, folder)]


def _has_cwd(process: Path, folder: Path) -> bool:
    try:
        return Path(os.readlink(process / "cwd")).is_relative_to(folder)
    except OSError:
        return False


HANGS = """import os, time
rank = os.environ["RANK"]
def next_batch():
    while True:
        time.sleep(0.5)
def all_reduce():
    while True:
        time.sleep(0.5)
for n in range(1, 6):
    time.sleep(0.1)
    print(f"[rank{rank}] step: {n} loss: {9 - n / 10:.3f} tps: {1000 + n}", flush=True)
next_batch() if rank == "1" else all_reduce()
"""
METRIC = """[ "$SLURMD_NODENAME" = n1 ] && mhz=2100 || mhz=2000
printf '[{"gpu": 0, "clock": {"gfx_0": {"clk": %s}}}]' $mhz
"""


def test_a_hang_of_the_second_node_is_noticed_and_the_stacks_and_clocks_of_both_are_kept(site, tmp_path):
    bench = made_up_machine(tmp_path / "machine", 1)
    tool = bench.bin / "amd-smi"
    tool.write_text(tool.read_text().replace("\n", f'\nif [ "$1" = metric ]; then\n{METRIC}exit\nfi\n', 1))
    launcher = tmp_path / "launcher"  # in place of torchrun: one rank of the script
    launcher.write_text(
        f"#!/bin/bash\nexport RANK=$NODE_RANK LOCAL_RANK=0\nexec {sys.executable} -u {tmp_path}/train.py\n"
    )
    launcher.chmod(0o755)
    (tmp_path / "train.py").write_text(HANGS)
    step = r"\[rank\d+\] step:\s+(?P<n>\d+)\s+loss:\s+(?P<loss>\S+)\s+tps:\s+(?P<tokens_per_s_per_gpu>\S+)"
    card = {"name": "a", "backend": "torchrun", "n_gpus": "1", "tags": [], "runtimes": ["host"]}
    recipe = {"script": "train.py", "step": step, "steps": 20, "nproc_per_node": 1}
    (site.folder / "models.json").write_text(json.dumps([{**card, "recipe": recipe}]))
    site.environ |= {"PATH": f"{bench.bin}:{site.environ['PATH']}", "PYTHONPATH": os.getcwd()}
    limits = ("--silence-limit", "4", "--start-silence-limit", "120", "--set", "stop_grace_s=2")
    command = [sys.executable, "-c", ELSEWHERE, str(bench.root), "run", "--tags", "a", *limits]
    given = ["--set", f"env.MADLITE_PYTHON={launcher}"]
    started = start_session(["salloc", "--quiet", "-wn1,n2", "-N2", *command, *given], site.folder, site.environ)
    out, _ = started.communicate(timeout=200)
    record = site.record()
    assert started.returncode == 3 and record["ended_by"] == "hang", out
    assert "rank 1 in next_batch (train.py:5); rank 0 in all_reduce (train.py:8)" in out
    stacks = (site.run / "hang/stacks.txt").read_text()
    assert {re.search(r"node (\d)", part)[1] for part in stacks.split("===") if "train.py" in part} == {"0", "1"}
    assert [(one["name"], one["clock_mhz"]) for one in record["nodes"]] == [("n1", 2100), ("n2", 2000)]


def made_up_machine(folder: Path, gpus: int) -> Bench:
    """Return a made-up machine with so many MI300X, whose KFD has their render nodes from 128 on."""
    bench = Bench(folder)
    bench.node(0)
    bench.mi300x(gpus)
    bench.file("dev/kfd")
    bench.file("opt/rocm/.info/version", "6.4.1-83\n")
    bench.tool("amd-smi", ("*static*", amd_static([*range(gpus)])), ("*list*", amd_list([*range(1, gpus + 1)])))
    return bench


def test_secrets_reach_the_nodes_by_a_file_of_their_owner_alone(site):
    started = site.start(2, "--set", "env.SLEEP=600", "--set", "stop_grace_s=1")
    try:
        wait_until(lambda: len([*site.folder.glob("**/begun.*")]) == 2, "both nodes have begun")
        (environment,) = site.folder.glob("madlite_runs/*/nodes/environment")
        assert stat.S_IMODE(environment.stat().st_mode) == 0o600 and SECRET in environment.read_text()
        said = site.slurm.checked("scontrol", "show", "job") + site.slurm.checked("scontrol", "show", "step")
        words = b"".join(_cmdline(path) for path in Path("/proc").iterdir() if path.name.isdigit())
        assert SECRET not in said and SECRET.encode() not in words
        _madlite_of(site.folder).terminate()
        started.communicate(timeout=240)
    finally:
        started.kill()
    assert not environment.exists()
    assert site.record()["ended_by"] == "interrupted"
    assert SECRET not in site.log() + (site.run / "plan.json").read_text()


def _cmdline(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""


def test_outside_of_an_allocation_the_runtime_says_what_is_missing(site):
    done = commands.run(("run", "--tags", "a", "--runtime", "slurm"), site.folder, site.environ)
    assert done.returncode == 3
    assert "this is no allocation of Slurm" in done.stdout and "Traceback" not in done.stderr


def test_containers_of_docker_hold_the_run_on_each_node(site, engine, base_image):
    site.environ |= {"DOCKER_HOST": engine, "MADLITE_CONTAINER": "docker"}
    card = json.loads((site.folder / "models.json").read_text())[0]
    (site.folder / "models.json").write_text(json.dumps([{**card, "runtimes": []}]))
    script = SCRIPT + 'test -e /.dockerenv && echo "in a container"\n'
    (site.folder / "scripts/a/run.sh").write_text(script)
    code, out = site.call(2, "--image", base_image)
    assert code == 0, out + site.log()
    record, log = site.record(), site.log()
    assert log.count("in a container") == 2 and record["image"]["id"].startswith("sha256:")
    assert record["node_codes"] == [0, 0]
    assert not containers(engine, record["id"]), "a container is left"


@pytest.fixture
def archived(site, engine, base_image):
    """An archive of the base image as lab/serve:1, beside another image of that name; what the engine has of it."""
    file = site.folder / "images/lab_serve_1.tar"
    file.parent.mkdir()
    with docker.APIClient(engine) as client:
        client.tag(base_image, "lab/serve", "1")
        with file.open("wb") as out:
            out.writelines(client.get_image("lab/serve:1"))
        client.import_image_from_data(b"\0" * 1024, repository="lab/serve", tag="1")
        wanted = client.inspect_image(base_image)["Id"]
        assert client.inspect_image("lab/serve:1")["Id"] != wanted
        yield lambda: client.inspect_image("lab/serve:1")["Id"] == wanted
        client.remove_image("lab/serve:1", force=True)


def test_an_archive_of_the_image_folder_is_loaded_for_scripts_that_start_their_containers(site, engine, archived):
    """Also where the nodes have another image of that name."""
    site.environ |= {"DOCKER_HOST": engine, "MADLITE_IMAGE_FOLDER": str(site.folder / "images")}
    own = {"distributed": {"launcher": "slurm_multi", "nnodes": 2}, "env_vars": {"DOCKER_IMAGE_NAME": "lab/serve:1"}}
    card = json.loads((site.folder / "models.json").read_text())[0]
    (site.folder / "models.json").write_text(json.dumps([{**card, **own}]))
    (site.folder / "scripts/a/run.sh").write_text("echo performance: 3 tok\n")
    code, out = site.call(2)
    assert code == 0 and archived(), out + site.log()


@pytest.mark.full
def test_the_archive_of_a_manifest_is_loaded_on_every_node(site, engine, archived):
    site.environ |= {"DOCKER_HOST": engine, "MADLITE_CONTAINER": "docker"}
    card = {**json.loads((site.folder / "models.json").read_text())[0], "runtimes": []}
    (site.folder / "scripts/a/run.sh").write_text(SCRIPT + 'test -e /.dockerenv && echo "in a container"\n')
    entry = {"docker_image": "lab/serve:1", "dockerfile": "docker/x.Dockerfile", "build_duration": 3}
    entry["image_archive"] = str(site.folder / "images/lab_serve_1.tar")
    manifest = {"built_images": {"i": entry}, "built_models": {"i": card}}
    (site.folder / "build_manifest.json").write_text(json.dumps(manifest))
    code, out = site.call(2, "--manifest-file", "build_manifest.json")
    assert code == 0 and archived(), out + site.log()
    assert site.log().count("in a container") == 2


@pytest.mark.parametrize("end", first_of(["scancel {job}", "scontrol update JobId={job} EndTime=now"], 1))
def test_a_job_that_slurm_ends_ends_its_training_in_time_and_leaves_no_container(site, engine, base_image, end):
    saves = 'trap \'echo TERM >>"told.$NODE_RANK"; sleep 1; echo done >>"told.$NODE_RANK"; exit 1\' TERM\n'
    (site.folder / "scripts/a/run.sh").write_text(saves + SCRIPT)
    site.environ |= {"DOCKER_HOST": engine, "MADLITE_CONTAINER": "docker"}
    card = json.loads((site.folder / "models.json").read_text())[0]
    (site.folder / "models.json").write_text(json.dumps([{**card, "runtimes": []}]))
    command = [sys.executable, "-m", "madlite", "run", "--tags", "a", "--image", base_image, "--set", "env.SLEEP=600"]
    script = site.folder / "job.sh"
    script.write_text(f"#!/bin/bash\nexec {shlex.join(command)}\n")
    output = site.folder / "job.out"
    exported = ",".join(f"{name}={site.environ[name]}" for name in ("DOCKER_HOST", "MADLITE_CONTAINER"))
    job = site.slurm.batch(
        script, "-N2", f"--chdir={site.folder}", f"--output={output}", "--time=10", f"--export=ALL,{exported}"
    )
    wait_until(lambda: len([*site.folder.glob("**/begun.*")]) == 2, "both nodes have begun")
    (run,) = [file.parent.name for file in site.folder.glob("madlite_runs/*/plan.json")]
    assert len(containers(engine, run)) == 2
    site.slurm.checked(*end.format(job=job).split())
    site.slurm.wait_for(job, "CANCELLED", "TIMEOUT")
    wait_until(lambda: not containers(engine, run), "the containers' end")
    told = [file.read_text() for file in sorted(site.folder.glob("**/told.*"))]
    assert told == ["TERM\ndone\n"] * 2, output.read_text()


@pytest.mark.parametrize("steps_too", first_of([True, False], 1), ids=["and its steps", "madlite"])
def test_a_madlite_that_is_killed_leaves_nothing_on_the_nodes_after_its_job(site, engine, base_image, steps_too):
    site.environ |= {"DOCKER_HOST": engine, "MADLITE_CONTAINER": "docker"}
    card = json.loads((site.folder / "models.json").read_text())[0]
    (site.folder / "models.json").write_text(json.dumps([{**card, "runtimes": []}]))
    words = [sys.executable, "-m", "madlite", "run", "--tags", "a", "--image", base_image, "--set", "env.SLEEP=600"]
    ends = f"until [ -e {site.folder}/end ]; do sleep 0.1; done"
    shell = ["bash", "-c", f"{shlex.join(words)}; {ends}"]
    started = start_session(["salloc", "--quiet", "-N2", *shell], site.folder, site.environ)
    try:
        wait_until(lambda: len([*site.folder.glob("**/begun.*")]) == 2, "both nodes have begun")
        (run,) = [file.parent.name for file in site.folder.glob("madlite_runs/*/plan.json")]
        found = _madlite_of(site.folder)
        below = found.children(recursive=True)
        found.kill()
        for one in reversed(below) if steps_too else ():  # each srun has a child that kills its step where it dies
            with suppress(psutil.NoSuchProcess):
                one.kill()
        (site.folder / "end").touch()
        started.communicate(timeout=240)
        wait_until(lambda: not containers(engine, run), "the containers' end")
        listed = [sys.executable, "-m", "madlite", "runs"]
        told = subprocess.run(listed, cwd=site.folder, env=site.environ, capture_output=True, text=True, check=True)
        assert "CUT OFF" in told.stdout and f"1 earlier run was cut off: {run} (no row)" in told.stderr
    finally:
        started.kill()


def test_docker_takes_several_gpus_of_nvidia(engine, base_image, tmp_path):
    plan = replace(
        make_plan(tmp_path, id=f"gpus-{os.getpid()}", image=Image(ref=base_image)),
        machine=Machine(vendor="NVIDIA"),
        place=Place(where="slurm", nodes=2, gpus_per_node=2, gpu_ids=(0, 3)),
        mounts=(),
    )
    container = container_of("docker", plan, {})
    environ = {**os.environ, "DOCKER_HOST": engine}
    words = ["docker", "create", *(word.replace("{rank}", "0") for word in container.start[3:])]
    words = [word for word in words if not word.startswith("{rdma}")]
    words = [word.replace("{gpus 0,3 }", "").replace("{ids}", "0,3") for word in words]  # as agent.sh has it
    started = subprocess.run(words, env=environ, capture_output=True, text=True, check=False)
    try:
        assert started.returncode == 0, started.stderr
        words = ["docker", "inspect", "--format", "{{json .HostConfig.DeviceRequests}}", started.stdout.strip()]
        asked = json.loads(subprocess.run(words, env=environ, capture_output=True, text=True, check=True).stdout)
    finally:
        subprocess.run(
            ["docker", "rm", "--force", f"madlite-{plan.id}-0"], env=environ, capture_output=True, check=False
        )
    assert [one["DeviceIDs"] for one in asked] == [["0", "3"]]


def containers(engine: str, run: str) -> list[str]:
    listed = subprocess.run(
        ["docker", "ps", "--all", "--quiet", "--filter", f"label=madlite.run={run}"],
        env={**os.environ, "DOCKER_HOST": engine},
        capture_output=True,
        text=True,
        check=True,
    )
    return listed.stdout.split()


@pytest.fixture
def in_podman(site, podman, tmp_path) -> Path:
    """The podman of all nodes, in whose containers the site's runs are; a card names no runtime then."""
    program = tmp_path / "bin/podman"  # with the folders of the one that the test has
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {command_line(podman)} "$@"\n')
    program.chmod(0o755)
    site.environ |= {"PATH": f"{program.parent}:{site.environ['PATH']}", "MADLITE_CONTAINER": "podman"}
    card = json.loads((site.folder / "models.json").read_text())[0]
    (site.folder / "models.json").write_text(json.dumps([{**card, "runtimes": []}]))
    return program


def containers_of(program: Path) -> str:
    done = subprocess.run([program, "ps", "--all", "--quiet"], capture_output=True, text=True, check=True)
    return done.stdout


@pytest.mark.full
def test_containers_of_podman_hold_the_run_on_each_node(site, in_podman):
    (site.folder / "scripts/a/run.sh").write_text(SCRIPT + 'test -e /run/.containerenv && echo "in a container"\n')
    code, out = site.call(2, "--image", BASE_IMAGE)
    assert code == 0, out + site.log()
    record = site.record()
    assert site.log().count("in a container") == 2 and record["image"]["id"], record["image"]
    assert record["node_codes"] == [0, 0] and csv_rows(site.folder / "perf.csv")[0]["performance"] == "12.5"
    assert containers_of(in_podman) == "", "a container is left"


@pytest.mark.full
def test_what_fails_in_a_container_of_podman_ends_the_others(site, in_podman):
    script = SCRIPT.replace("python3 -c 'raise RuntimeError(\"lost on purpose\")'; ", "")
    (site.folder / "scripts/a/run.sh").write_text(script)
    fails = ["--set", "env.FAILS=1", "--set", "env.SLEEP=600", "--set", "stop_grace_s=2"]
    code, out = site.call(2, "--image", BASE_IMAGE, *fails)
    assert code == 3 and "exit code 7 on node 1 (n" in out, out
    assert containers_of(in_podman) == "", "a container is left"


@pytest.mark.full
@pytest.mark.parametrize("early", [False, True])
def test_a_node_that_dies_is_named_by_the_one_row_and_nothing_hangs(tmp_path, own_slurm, early):
    """Slurm notices it first; or, `early`, another node's training does, which loses its connection to it."""
    site = Site(tmp_path, own_slurm)
    waits = f'until [ -e {tmp_path}/die ]; do sleep 0.1; done; echo "RuntimeError: Connection closed by peer"; exit 1'
    script = SCRIPT.replace('sleep "$SLEEP" & wait;', f"if [ $NODE_RANK = 0 ]; then {waits}; fi; sleep $SLEEP & wait;")
    (site.folder / "scripts/a/run.sh").write_text(script)
    started = site.start(3, "--set", "env.SLEEP=600", "--set", "stop_grace_s=2")
    try:
        wait_until(lambda: len([*site.folder.glob("**/begun.*")]) == 3, "the nodes have begun")
        own_slurm.kill_node("n2")
        if early:
            (tmp_path / "die").touch()
        out, _ = started.communicate(timeout=200)
    finally:
        started.kill()
    assert started.returncode == 3 and "Traceback" not in out, out
    (row,) = csv_rows(site.folder / "perf.csv")
    record = site.record()
    assert (row["status"], record["cause"]) == ("FAILURE", "node_failed"), out
    assert "node 1 (n2) failed: it does not answer Slurm any more" in record["reason"]
    assert ("node 0 ended with exit code 1" in record["reason"]) is early
    assert "n1" not in record["reason"] and "n3" not in record["reason"]


def test_an_image_that_a_node_cannot_have_is_one_sentence(site, engine):
    site.environ |= {"DOCKER_HOST": engine, "MADLITE_CONTAINER": "docker"}
    card = json.loads((site.folder / "models.json").read_text())[0]
    (site.folder / "models.json").write_text(json.dumps([{**card, "runtimes": []}]))
    code, out = site.call(2, "--image", "localhost:1/absent:v1")
    assert code == 3, out
    assert "no image localhost:1/absent:v1" in out and "node n" in out
