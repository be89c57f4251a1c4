"""What a card opens of the machine is told in one line, and what every card of MAD's has is not."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from madlite.model import EngineOptions, Image
from madlite.runtimes.docker.request import host_access
from tests.factories import make_plan

SAID = "the run opens this machine to its container: "


def told(workspace: Path, options: str, **environ: str) -> str:
    plan = make_plan(workspace, engine_options=EngineOptions(extra=options))
    text = host_access(plan, environ)
    assert not text or text.startswith(SAID)
    return text.removeprefix(SAID)


@pytest.mark.parametrize(
    "options",
    [
        "",
        "--shm-size=64G --ulimit memlock=-1 --ulimit stack=67108864 --group-add render -u root",
        "--network=host --ipc=host --cap-add=SYS_PTRACE --cap-add CAP_SYS_ADMIN --gpus all",
        "--security-opt seccomp=unconfined --security-opt apparmor=unconfined --security-opt no-new-privileges",
        "--device=/dev/kfd --device /dev/dri --device /dev/dri/renderD128 --device /dev/nvidia0 --device /dev/fuse",
        "-v ./data:/data -v cache:/cache --mount type=volume,source=v,target=/v --tmpfs /t -e A=1 --privileged=false",
        "--no-such-option",  # told where the container is asked for
        "'",
    ],
)
def test_what_is_usual_is_not_told(tmp_path, options):
    assert told(tmp_path, options) == ""


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ("--privileged", "--privileged"),
        ("--privileged=true --pid=host", "--pid=host, --privileged"),
        (
            "--pid host --uts=host --userns=host --cgroupns host",
            "--pid=host, --uts=host, --userns=host, --cgroupns=host",
        ),
        ("--pid=container:other --ipc container:other", "--ipc=container:other, --pid=container:other"),
        ("-v /etc:/host:ro", "mount of /etc at /host"),
        ("--volume=/:/", "mount of /"),
        ("--volume ../x:/x", "mount of {up}/x at /x"),
        ("-v $PWD_UP/x:/x", "mount of {up}/x at /x"),
        ("-v ~/.ssh:/root/.ssh", "mount of {up}/.ssh at /root/.ssh"),
        ("--mount type=bind,source=/srv,target=/srv,readonly", "mount of /srv"),
        ("-v linked:/x -v ./linked:/x", "mount of {up} at /x"),
        ("--device /dev/sda --device=/dev/dri/../mem:/dev/x", "--device /dev/sda, --device /dev/dri/../mem"),
        ("--device-cgroup-rule 'b *:* rwm'", "--device-cgroup-rule b *:* rwm"),
        ("--cap-add ALL --cap-add=net_admin", "--cap-add ALL, --cap-add net_admin"),
        (
            "--security-opt label=disable --security-opt seccomp=p.json",
            "--security-opt label=disable, --security-opt seccomp=p.json",
        ),
        ("--env-file env.list", "--env-file env.list"),
        ("--volumes-from other", "--volumes-from other"),
    ],
)
def test_what_is_beyond_is_named(tmp_path, options, text):
    workspace = tmp_path / "mad"
    workspace.mkdir()
    (workspace / "linked").symlink_to("..")
    assert told(workspace, options, HOME=str(tmp_path), PWD_UP=str(tmp_path)) == text.format(up=tmp_path)


@pytest.mark.parametrize(
    "sock", ["/var/run/docker.sock", "/run/docker.sock", "/run/podman/podman.sock", "/run/user/0/docker.sock"]
)
def test_the_engines_socket_is_called_what_it_is(tmp_path, sock):
    for options in (f"-v {sock}:/var/run/docker.sock", f"--mount type=bind,src={sock},dst=/s"):
        assert "the engine's socket: who has it is root on this machine" in told(tmp_path, options)


def test_one_line_holds_much_and_no_secret(tmp_path):
    many = " ".join(f"-v /x{n}:/x{n}" for n in range(40))
    text = told(tmp_path, many)
    assert text.endswith(" and 28 more") and len(text) < 600
    assert "hush" not in told(tmp_path, "-v /$HF_TOKEN:/x", HF_TOKEN="hf_hush_hush_hush")


@pytest.mark.parametrize("prebuilt", [False, True])
def test_a_build_from_elsewhere_is_told_unless_it_was_built_before(tmp_path, prebuilt):
    root = tmp_path / "mad"
    root.mkdir()
    (root / "linked").symlink_to("..")
    image = Image(ref="x", dockerfile=root / "docker/x.Dockerfile", context=root, root=root, prebuilt=prebuilt)
    plan = make_plan(root, image=image)
    assert host_access(plan, {}) == ""
    for context in (root / "..", tmp_path, root / "linked"):
        found = host_access(replace(plan, image=replace(image, context=context)), {})
        assert found == ("" if prebuilt else f"{SAID}build context {tmp_path}")
        named = replace(image, contexts={"tools": context})
        assert host_access(replace(plan, image=named), {}) == found
    found = host_access(replace(plan, image=replace(image, dockerfile=root / "../y.Dockerfile")), {})
    assert found == ("" if prebuilt else f"{SAID}Dockerfile {tmp_path}/y.Dockerfile")
