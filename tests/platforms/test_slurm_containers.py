"""What runtime `slurm` starts on nodes, by flavour of container, and what it reads of the allocation."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from msgspec.structs import replace

from madlite.errors import UsageProblem
from madlite.model import EngineOptions, Gpu, Image, Machine, Place
from madlite.platforms.registry import preemption_here
from madlite.platforms.slurm import containers
from madlite.platforms.slurm.allocation import allocation_of
from madlite.platforms.slurm.containers import VARIABLE, Container, container_of
from madlite.platforms.slurm.runtime import SlurmRuntime
from madlite.platforms.slurm.session import SlurmSession
from tests.factories import make_plan
from tests.rows import each_row
from tests.run.output import Output, bash, stop_once_it_said
from tests.waiting import wait_until

JOB = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_JOB_NUM_NODES": "2", "PATH": "/none"}


@pytest.fixture
def plan(tmp_path: Path):
    asked = EngineOptions(cap_add=("SYS_PTRACE",), group_add=("video",), cpuset="0-3", extra="--shm-size 16G")
    return replace(
        make_plan(tmp_path, id="r1", image=Image(ref="rocm/train:v1")),
        machine=Machine(vendor="AMD"),
        devices=("/dev/kfd", "/dev/dri/renderD128"),
        engine_options=asked,
        place=Place(where="slurm", nodes=2, gpus_per_node=1, gpu_ids=(0,)),
    )


def test_docker_on_a_node_is_asked_for_what_the_engine_would_be(plan) -> None:
    container = container_of("docker", plan, {"MADLITE_CONTAINER_OPTIONS": "--log-driver none"})
    words = [*container.start]
    assert words[:3] == ["docker", "run", "--detach"] and words[-2:] == ["rocm/train:v1", "infinity"]
    text = " ".join(words)
    for part in (
        "--device=/dev/kfd --device=/dev/dri/renderD128",
        "--cap-add=SYS_PTRACE",
        "--group-add=video",
        "--cpuset-cpus=0-3",
        "--shm-size 16G",
        "--log-driver none",
        "--network host --ipc host",
        f"--volume {plan.workspace}:{plan.inside}/",
    ):
        assert part in text, part
    assert container.enter == ("docker", "exec", "madlite-r1-{rank}")
    assert container.remove == ("docker", "rm", "--force", "--volumes", "madlite-r1-{rank}")


@pytest.mark.host
def test_nvidia_gpus_have_each_engine_s_own_words(plan) -> None:
    plan = replace(plan, machine=Machine(vendor="NVIDIA"), place=replace(plan.place, gpus_per_node=2, gpu_ids=(0, 3)))
    of_docker, of_podman = '--gpus="device={}"', "--device=nvidia.com/gpu={}"
    for given, ids in (({}, "03"), ({"SLURM_STEP_GPUS": "0,3,5"}, "03"), ({"SLURM_STEP_GPUS": "2,6,7"}, "26")):
        assert started_with(container_of("docker", plan, {}), given, "--gpus") == [of_docker.format(",".join(ids))]
        assert started_with(container_of("podman", plan, {}), given, "gpu=") == [of_podman.format(n) for n in ids]


def started_with(container, given: dict[str, str], part: str) -> list[str]:
    """Return the words with a part of them by which a node starts a container, on the GPUs that Slurm gives it."""
    return [word for word in said_of(container, given).removeprefix("1 1 ").strip().split("; ") if part in word]


def said_of(container, given: dict[str, str]) -> str:
    """Return what node 1 prints where the start of a container prints its words, and fails."""
    words = ["keep", "0", "--", "true", "--", "bash", "-c", 'printf "%s\n" "$@"; exit 1', "x", *container.start]
    return agent("/none", "1", *words, environ={"PATH": os.environ["PATH"], **given}).stdout


@pytest.mark.host
def test_each_node_s_container_has_the_gpus_that_slurm_gives_it_there(plan) -> None:
    machine = Machine(vendor="AMD", gpus=tuple(Gpu(index=n, render_minor=128 + n) for n in range(8)))
    devices = ("/dev/fuse", "/dev/kfd", "/dev/dri/renderD130", "/dev/dri/renderD131")
    place = replace(plan.place, gpus_per_node=2, gpu_ids=(2, 3))
    container = container_of("docker", replace(plan, machine=machine, devices=devices, place=place), {})
    assert "--device=/dev/kfd" in container.start
    for given, minors in (
        ({}, (130, 131)),
        ({"ROCR_VISIBLE_DEVICES": "0,1,2,3"}, (130, 131)),
        ({"ROCR_VISIBLE_DEVICES": "5,7,6"}, (133, 135)),
        ({"ROCR_VISIBLE_DEVICES": "", "SLURM_STEP_GPUS": "0,2"}, (128, 130)),
        ({"SLURM_JOB_GPUS": "6,7"}, (134, 135)),
    ):
        found = started_with(container, given, "renderD")
        assert found == [f"--device=/dev/dri/renderD{minor}" for minor in minors], given
    said = said_of(container, {"ROCR_VISIBLE_DEVICES": "5"})
    assert said == "1 1 Slurm gives it GPU 5 alone, the run has 2 on each node\n"
    said = said_of(container, {"ROCR_VISIBLE_DEVICES": "8,9"})
    assert said == "1 1 GPU 8, which Slurm gives it, has no render node here\n"


COMMAND = ("run", "/", "true")
BOTH = {"SLURM_STEP_GPUS": "4,6", "ROCR_VISIBLE_DEVICES": "4,6"}
FIRST = {"SLURM_STEP_GPUS": "4,6", "ROCR_VISIBLE_DEVICES": "0,1"}  # where a step may open no others
ALL = {"SLURM_STEP_GPUS": "0,1,2,3", "ROCR_VISIBLE_DEVICES": "0,1,2,3"}


@pytest.mark.host
@pytest.mark.parametrize(
    ("given", "of_plan", "in_container", "by_command"),
    [
        (BOTH, "", (4, 6), (4, 6)),
        (FIRST, "HIP_VISIBLE_DEVICES=0,1", (4, 6), (4, 6)),
        (ALL, "", (2, 3), (0, 1)),  # nothing hides the first ones from a command of the node itself
        (ALL, "HIP_VISIBLE_DEVICES=2,3", (2, 3), (2, 3)),
        ({**ALL, "SLURM_STEP_GPUS": "4,5,6,7"}, "", None, None),  # the tool may count all four of them from 0
        ({"SLURM_STEP_GPUS": "4,6", "CUDA_VISIBLE_DEVICES": "GPU-5e1,GPU-07a"}, "", (4, 6), None),
        ({"SLURM_STEP_GPUS": "4", "ROCR_VISIBLE_DEVICES": "4"}, "", None, None),
        ({"ROCR_VISIBLE_DEVICES": "0,1"}, "", None, None),
        ({}, "HIP_VISIBLE_DEVICES=2,3", (2, 3), (2, 3)),
    ],
)
def test_a_session_names_the_gpus_that_the_run_has_on_a_node(plan, given, of_plan, in_container, by_command) -> None:
    machine = Machine(vendor="AMD", gpus=tuple(Gpu(index=n, render_minor=128 + n) for n in range(8)))
    plan = replace(plan, machine=machine, place=replace(plan.place, gpus_per_node=2, gpu_ids=(2, 3)))
    nodes, allocation = plan.folder / "nodes", allocation_of(JOB)
    (nodes / "state").mkdir(parents=True)
    assert allocation is not None
    session = SlurmSession(plan, allocation, ("n1", "n2"), Container(), {})
    environ = {"PATH": os.environ["PATH"], **given}
    assert session.gpu_ids(1) is None
    start = ["keep", "0", "--", "true", "--", "false", *container_of("docker", plan, {}).start]
    agent(str(nodes), "1", *start, environ=environ)
    assert session.gpu_ids(1) == in_container
    (nodes / "environment").write_text(f"export {of_plan}\n" if of_plan else "")
    agent(str(nodes), "1", *COMMAND, environ=environ)  # as in the container: nothing of Slurm's is there
    assert session.gpu_ids(1) == in_container
    agent(str(nodes), "1", *COMMAND, environ={**environ, "SLURM_JOB_ID": "7"})
    assert session.gpu_ids(1) == by_command
    assert session.gpu_ids(0) is None


@pytest.mark.host
def test_apptainer_hands_on_what_hides_the_gpus_of_others(plan, tmp_path) -> None:
    tool = tmp_path / "apptainer"
    tool.write_text('#!/bin/sh\nenv | grep ENV_\necho "$1 $2"\n')
    tool.chmod(0o755)
    environ = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "ROCR_VISIBLE_DEVICES": "4,5", "CUDA_VISIBLE_DEVICES": ""}
    words = [*container_of("apptainer", plan, {}, "/images/x.sif").enter, "true"]
    done = subprocess.run(words, env=environ, capture_output=True, text=True, check=True)
    assert done.stdout == "APPTAINERENV_ROCR_VISIBLE_DEVICES=4,5\nexec --no-home\n"


@pytest.mark.parametrize(
    ("engine", "user", "group"), [("podman", 1000, "keep-groups"), ("podman", 0, "video"), ("docker", 1000, "video")]
)
def test_a_rootless_podman_keeps_the_caller_s_groups(plan, monkeypatch, engine, user, group) -> None:
    monkeypatch.setattr("os.geteuid", lambda: user)
    words = [*container_of(engine, plan, {}).start]
    assert [word for word in words if word.startswith("--group-add")] == [f"--group-add={group}"]


@pytest.mark.host
def test_a_command_that_ends_as_a_signal_comes_keeps_its_exit_code(tmp_path) -> None:
    script = tmp_path / "save.py"
    script.write_text(
        "import os, signal, sys\n"
        "signal.signal(signal.SIGUSR1, lambda *_: os._exit(3))\n"
        "open(sys.argv[1], 'x').close()\n"
        "while True: signal.pause()\n"
    )
    for turn in range(6):
        folders = [tmp_path / f"{turn}-{n}" for n in range(12)]
        for folder in folders:
            (folder / "state").mkdir(parents=True)
            (folder / "environment").touch()
        text = Path(containers.__file__).with_name("agent.sh")
        words = [["bash", str(text), str(folder), "0", "run", str(folder)] for folder in folders]
        started = [
            subprocess.Popen([*line, sys.executable, "-S", str(script), "ready"], start_new_session=True)
            for line in words
        ]
        for folder in folders:
            wait_until((folder / "ready").exists, "it waits for the signal")
        for process in started:  # as Slurm tells all processes of a step; some of them twice, since the agent tells too
            for told in [process.pid, *(child.pid for child in psutil.Process(process.pid).children(recursive=True))]:
                with suppress(ProcessLookupError):
                    os.kill(told, signal.SIGUSR1)
        assert [process.wait(60) for process in started] == [3] * len(started)


def agent(*words: str, environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    text = Path(containers.__file__).with_name("agent.sh")
    return subprocess.run(["bash", str(text), *words], env=environ, capture_output=True, text=True, check=False)


@pytest.fixture
def enroot(tmp_path: Path) -> dict[str, str]:
    """Return an environment whose enroot notes its words, and lists containers of three runs."""
    tool = tmp_path / "bin/enroot"
    tool.parent.mkdir()
    listed = "printf '%s\\n' pyxis_madlite-r1 pyxis_77_madlite-r1 pyxis_madlite-r10 other"
    tool.write_text(
        f'#!/bin/sh\necho "$@" >>{tmp_path}/said\n[ "$1" != list ] || {listed}\n[ "$1" != import ] || touch "$3"\n'
    )
    tool.chmod(0o755)
    return {"PATH": f"{tool.parent}:{os.environ['PATH']}"}


@pytest.mark.host
@pytest.mark.parametrize(
    ("image", "uri"),
    [
        ("rocm/train:v1", "rocm/train:v1"),
        ("ghcr.io/rocm/train:v1", "ghcr.io#rocm/train:v1"),
        ("localhost:5000/train", "localhost:5000#train"),
        ("train:v1", "train:v1"),
    ],
)
def test_enroot_is_told_the_registry_of_an_image(tmp_path, enroot, image, uri) -> None:
    done = agent("/none", "-", "image-file", "pyxis", image, str(tmp_path / "x.sqsh"), environ=enroot)
    assert done.stdout.startswith("0 0 sha256:"), done.stderr
    assert (tmp_path / "said").read_text().split()[-1] == f"docker://{uri}"


@pytest.mark.host
def test_an_archive_is_imported_by_apptainer_and_not_by_enroot(tmp_path, enroot) -> None:
    tool = tmp_path / "bin/apptainer"
    tool.write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/said\ntouch "$2"\n')
    tool.chmod(0o755)
    words = ("image:1", str(tmp_path / "x.img"), "/shared/image_1.tar")
    done = agent("/none", "-", "image-file", "pyxis", *words, environ=enroot)
    assert done.stdout == "0 1 enroot imports no /shared/image_1.tar: push the image to a registry\n"
    done = agent("/none", "-", "image-file", "apptainer", *words, environ=enroot)
    assert (tmp_path / "said").read_text().split()[-1] == "docker-archive:/shared/image_1.tar", done.stderr


@pytest.mark.host
def test_an_image_file_of_the_site_needs_no_lock_beside_it(tmp_path, enroot) -> None:
    """The folder is one in which users cannot write; here not even root can: it is none."""
    (tmp_path / "x.sqsh").write_text("image")
    (tmp_path / "x.sqsh.lock").mkdir()
    done = agent("/none", "-", "image-file", "pyxis", "train:v1", str(tmp_path / "x.sqsh"), environ=enroot)
    assert done.stdout.startswith("0 0 sha256:") and not (tmp_path / "said").exists()


def test_images_spelled_alike_have_files_of_their_own(plan) -> None:
    runtime = SlurmRuntime({VARIABLE: "pyxis"})
    refs = ("rocm/pytorch:training_v1", "rocm/pytorch_training:v1")
    assert len({runtime._image_path(replace(plan, image=Image(ref=ref)), ".sqsh") for ref in refs}) == 2


@pytest.mark.host
def test_what_pyxis_unpacked_for_a_run_is_removed_and_nothing_else(plan, tmp_path, enroot) -> None:
    remove = [*container_of("pyxis", plan, {}, "/images/x.sqsh").remove]
    done = agent("/none", "-", "call", *remove, environ=enroot)
    assert done.stdout == "0 0 \n"
    assert (tmp_path / "said").read_text().splitlines()[-1] == "remove --force pyxis_madlite-r1 pyxis_77_madlite-r1"


def test_a_container_of_several_nodes_has_the_network_cards_of_its_node(plan) -> None:
    several = [word for word in container_of("docker", plan, {}).start if word.startswith("{rdma}")]
    assert several == ["{rdma}--device=/dev/infiniband", "{rdma}--cap-add=IPC_LOCK", "{rdma}--ulimit=memlock=-1"]
    alone = replace(plan, place=replace(plan.place, nodes=1))
    assert "{rdma}" not in " ".join(container_of("docker", alone, {}).start)


@pytest.mark.host
def test_a_node_without_network_cards_starts_without_them(tmp_path) -> None:
    here = ["{rdma}--cap-add=IPC_LOCK"] if Path("/dev/infiniband").is_dir() else []
    words = ["keep", "0", "--", "true", "--", "bash", "-c", 'echo "$*"; exit 1', "x", "{rdma}--cap-add=IPC_LOCK", "end"]
    done = agent("/none", "-", *words, environ={**os.environ})
    assert done.stdout == f"0 1 {' '.join([*(word[6:] for word in here), 'end'])}\n"


def test_pyxis_is_options_of_srun_and_apptainer_a_command(plan) -> None:
    pyxis = container_of("pyxis", plan, {}, "/images/x.sqsh")
    assert pyxis.enter == ()
    assert {"--container-image=/images/x.sqsh", "--container-name=madlite-r1", "--container-remap-root"} <= {
        *pyxis.step_options
    }
    apptainer = [*container_of("apptainer", plan, {}, "/images/x.sif").enter]
    assert "apptainer exec" in " ".join(apptainer) and "--rocm" in apptainer and apptainer[-1] == "/images/x.sif"
    assert f"{plan.workspace}:{plan.inside}/" in apptainer


def test_an_unknown_flavour_names_those_there_are(plan) -> None:
    with pytest.raises(UsageProblem, match="'singularity'") as refused:
        container_of("singularity", plan, {})
    assert "apptainer" in refused.value.hint
    problem = SlurmRuntime({**JOB, "MADLITE_CONTAINER": "singularity"}).available()
    assert problem is not None and "'singularity'" in problem.what


def test_an_allocation_is_that_of_slurm_s_or_spur_s_variables() -> None:
    assert allocation_of({}) is None and allocation_of({"SLURM_JOB_ID": "7"}) is None
    slurm = allocation_of(JOB)
    assert slurm is not None and (slurm.job_id, slurm.count) == ("7", 2)
    spur = allocation_of({"SPUR_JOB_ID": "9", "SPUR_PEER_NODES": "a:1,b:1,c:1", "PATH": "/none"})
    assert spur is not None and (spur.job_id, spur.count, spur.nodes) == ("9", 3, ("a", "b", "c"))


def test_a_step_has_no_variable_of_the_caller_but_those_of_the_job() -> None:
    here = allocation_of({**JOB, "HF_TOKEN": "s3cr3t", "SLURM_NTASKS": "16", "SLURM_CONF": "/etc/slurm.conf"})
    assert here is not None
    more = {"https_proxy": "http://p:1", "NO_PROXY": "x", "ENROOT_CACHE_PATH": "/c", "XDG_RUNTIME_DIR": "/run/user/7"}
    dropped = {"APPTAINER_DOCKER_PASSWORD": "s3cr3t", "ENROOT_TOKEN": "s3cr3t"}
    reached = allocation_of({**JOB, **more, **dropped})
    assert reached is not None and reached.environment() == {**JOB, **more}
    assert here.environment() == {
        **{"PATH": "/none", "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_JOB_NUM_NODES": "2"},
        "SLURM_CONF": "/etc/slurm.conf",
    }
    step = here.step(["n2"])
    assert step[0] == "srun" and {"--jobid=7", "--nodes=1", "--nodelist=n2", "--overlap"} <= {*step}


def test_spur_gets_only_options_that_it_has(tmp_path) -> None:
    spur = tmp_path / "spur"
    spur.write_text("#!/bin/sh\necho spur 0.8\n")
    spur.chmod(0o755)
    here = allocation_of({**JOB, "PATH": f"{tmp_path}:/usr/bin:/bin"})
    assert here is not None
    names = {word.partition("=")[0] for word in here.step(["n1"])}
    assert names == {"srun", "--jobid", "--nodes", "--ntasks", "--ntasks-per-node", "--nodelist", "--overlap"}


@pytest.mark.host
@each_row(
    ("plugin", "binds"), [("task/none", False), ("(null)", False), ("task/affinity,task/cgroup", True), ("", False)]
)
def test_binding_is_left_out_where_slurm_has_no_plugin_for_it(tmp_path, plugin, binds) -> None:
    """Each srun would say so in the run's log."""
    scontrol = tmp_path / "scontrol"
    scontrol.write_text(f"#!/bin/sh\necho 'TaskPlugin              = {plugin}'\necho 'TaskPluginParam = (null type)'\n")
    scontrol.chmod(0o755)
    here = allocation_of({**JOB, "PATH": f"{tmp_path}:/usr/bin:/bin"})
    assert here is not None and ("--cpu-bind=none" in here.step(["n1"])) is binds
    silent = allocation_of(JOB)
    assert silent is not None and "--cpu-bind=none" in silent.step(["n1"])


@pytest.mark.host
@each_row(
    ("words", "expected"),
    [
        ("EligibleTime=Unknown PreemptTime=2026-11-30T23:58:47 Suspend", "job 7 was preempted at 2026-11-30T23:58:47"),
        ("PreemptEligibleTime=2026-11-30T23:58:43 PreemptTime=None", ""),
        ("PreemptEligibleTime=2026-11-30T23:58:43 JobState=RUNNING", ""),
    ],
)
def test_a_preemption_is_what_scontrol_says_of_the_job(tmp_path, words, expected) -> None:
    scontrol = tmp_path / "scontrol"
    scontrol.write_text(f"#!/bin/sh\n[ \"$*\" = 'show job 7' ] && echo '   {words}'\n")
    scontrol.chmod(0o755)
    assert preemption_here({**JOB, "PATH": f"{tmp_path}:/usr/bin:/bin"}) == expected
    assert preemption_here({**JOB, "PATH": "/none"}) == "" and preemption_here({}) == ""


def test_a_runtime_with_containers_says_so_before_a_plan_is_made(plan) -> None:
    bare, boxed = SlurmRuntime(JOB), SlurmRuntime({**JOB, "MADLITE_CONTAINER": "podman"})
    assert not bare.traits.containerised and boxed.traits.containerised and not boxed.traits.local
    assert bare.supports(plan.place) and not bare.supports(replace(plan.place, nodes=3))
    request = boxed.request(plan)
    assert request["container"] == "podman" and "rocm/train:v1" in str(request["start"])


@pytest.mark.host
def test_all_nodes_unpack_an_image_at_the_same_time(plan, tmp_path) -> None:
    srun = tmp_path / "bin/srun"  # ends well once both nodes are asked
    srun.parent.mkdir()
    srun.write_text(
        f"""#!/bin/bash
for word; do case $word in --nodelist=*) touch "{tmp_path}/asked.${{word#*=}}" ;; esac; done
for _ in {{1..600}}; do
  [ -e "{tmp_path}/asked.a" ] && [ -e "{tmp_path}/asked.b" ] && exit 0
  sleep 0.1
done
echo "the other node was not asked" >&2
exit 1
"""
    )
    srun.chmod(0o755)
    plan.folder.mkdir(parents=True, exist_ok=True)
    here = allocation_of({**JOB, "SPUR_PEER_NODES": "a:1,b:1", "PATH": f"{srun.parent}:{os.environ['PATH']}"})
    assert here is not None
    session = SlurmSession(plan, here, ["a", "b"], container_of("apptainer", plan, {}, "/images/x.sif"), {})
    session.open()
    session.close()


@pytest.mark.host
def test_a_stop_that_one_node_comes_to_before_the_others_is_waited_for_by_nobody_else(plan, tmp_path) -> None:
    srun = tmp_path / "bin/srun"  # a node's command ends once it is told, that of b first
    srun.parent.mkdir()
    srun.write_text(
        f"""#!/bin/bash
case " $* " in
  *" signal "*) touch "{tmp_path}/told.b"; sleep 1; touch "{tmp_path}/told.a"; exit 0 ;;
esac
echo begun
for word; do case $word in --nodelist=*) node=${{word#*=}} ;; esac; done
until [ -e "{tmp_path}/told.$node" ]; do sleep 0.05; done
exit 130
"""
    )
    srun.chmod(0o755)
    plan.folder.mkdir(parents=True, exist_ok=True)
    here = allocation_of({**JOB, "SPUR_PEER_NODES": "a:1,b:1", "PATH": f"{srun.parent}:{os.environ['PATH']}"})
    assert here is not None
    session, output = SlurmSession(plan, here, ["a", "b"], Container(), {}), Output()
    session.open()
    stopper = stop_once_it_said(session, output, b"begun\nbegun\n", grace_s=60.0)
    assert session.run(bash("true"), output).codes == (130, 130)
    stopper.join()
    assert not session._gate.abandoned.is_set(), "it was waited for until it was given up"
    session.close()


@pytest.mark.host
@each_row(
    ("lost", "steps"),
    [("", ["a,b"]), ("Task launch for StepId=7.0 failed on node b: Communication error", ["a,b", "a"])],
)
def test_one_step_signals_all_nodes_and_where_one_is_lost_each_of_the_others_has_its_own(
    plan, tmp_path, lost, steps
) -> None:
    srun = tmp_path / "bin/srun"
    srun.parent.mkdir()
    srun.write_text(
        f"""#!/bin/bash
for word; do case $word in --nodelist=*) echo "${{word#*=}}" >>"{tmp_path}/steps"; nodes=${{word#*=}} ;; esac; done
[ "$nodes" != a,b ] || [ -z "{lost}" ] || {{ echo "srun: error: {lost}" >&2; exit 1; }}
"""
    )
    srun.chmod(0o755)
    here = allocation_of({**JOB, "SPUR_PEER_NODES": "a:1,b:1", "PATH": f"{srun.parent}:{os.environ['PATH']}"})
    assert here is not None
    SlurmSession(plan, here, ["a", "b"], Container(), {})._signal("INT")
    assert (tmp_path / "steps").read_text().split() == steps
