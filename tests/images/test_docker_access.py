"""What a card opens of the machine is told in one line, and what every card of MAD's has is not."""

from __future__ import annotations

import os
from pathlib import Path

from msgspec.structs import replace

from madlite.model import Action, EngineOptions, Image, Mount
from madlite.platforms.docker.request import host_access, plan_file_notes
from tests.factories import HOST, make_plan
from tests.rows import each_row

SAID = "the run opens this machine to its container: "


def told(workspace: Path, options: str, **environ: str) -> str:
    plan = make_plan(workspace, engine_options=EngineOptions(extra=options))
    before = Path.cwd()
    os.chdir(workspace)  # from which relative folders are named
    text = host_access(plan, environ)
    os.chdir(before)
    assert not text or text.startswith(SAID)
    return text.removeprefix(SAID)


@each_row(
    "options",
    [
        "",
        "--shm-size=64G --ulimit memlock=-1 --ulimit stack=67108864 --group-add render -u root",
        "--network=host --ipc=host --cap-add=SYS_PTRACE --cap-add CAP_SYS_ADMIN --gpus all",
        "--security-opt seccomp=unconfined --security-opt apparmor=unconfined --security-opt no-new-privileges",
        "--device=/dev/kfd --device /dev/dri --device /dev/dri/renderD128 --device /dev/nvidia0 --device /dev/fuse",
        "-v ./data:/data -v cache:/cache --mount type=volume,source=v,target=/v --tmpfs /t -e A=1 --privileged=false",
        "-e 'ARGS=--env-file x'",
        "--no-such-option",  # told where the container is asked for
        "'",
    ],
)
def test_what_is_usual_is_not_told(tmp_path, options):
    assert told(tmp_path, options) == ""


@each_row(
    ("options", "text"),
    [
        ("--privileged", "--privileged"),
        ("--privileged=true --pid=host", "--pid=host, --privileged"),
        (
            "--pid host --uts=host --userns=host --cgroupns host",
            "--pid=host, --uts=host, --userns=host, --cgroupns=host",
        ),
        (
            "--pid=container:other --ipc container:other --network=container:other",
            "--net=container:other, --ipc=container:other, --pid=container:other",
        ),
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
        ("--env-file env.list --env-file=missing", "--env-file env.list, --env-file missing"),
        ("--volumes-from other", "--volumes-from other"),
    ],
)
def test_what_is_beyond_is_named(tmp_path, options, text):
    workspace = tmp_path / "mad"
    workspace.mkdir()
    (workspace / "linked").symlink_to("..")
    (workspace / "p.json").write_text("{}")
    (workspace / "env.list").touch()
    assert told(workspace, options, HOME=str(tmp_path), PWD_UP=str(tmp_path)) == text.format(up=tmp_path)


@each_row("sock", ["/var/run/docker.sock", "/run/docker.sock", "/run/podman/podman.sock", "/run/user/0/docker.sock"])
def test_the_engines_socket_is_called_what_it_is(tmp_path, sock):
    for options in (f"-v {sock}:/var/run/docker.sock", f"--mount type=bind,src={sock},dst=/s"):
        assert "the engine's socket: who has it is root on this machine" in told(tmp_path, options)


def test_one_line_holds_much_and_no_secret(tmp_path):
    many = " ".join(f"-v /x{n}:/x{n}" for n in range(40))
    text = told(tmp_path, many)
    assert text.endswith(" and 28 more") and len(text) < 600
    assert "hush" not in told(tmp_path, "-v /$HF_TOKEN:/x", HF_TOKEN="hf_hush_hush_hush")


@each_row("prebuilt", [False, True])
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


@each_row(
    ("changes", "text"),
    [
        ({"mounts": (Mount(source="/etc", target="/host"),)}, "mount of /etc at /host"),
        ({"mounts": (Mount(source="{up}/new/x", target="/x", create=True),)}, "mount of {up}/new/x at /x"),
        ({"mounts": (Mount(source="/run/docker.sock", target="/s"),)}, "the engine's socket"),
        ({"devices": ("/dev/fuse", "/dev/kfd", "/dev/infiniband", "/dev/sda")}, "--device /dev/sda"),
        ({"engine_options": EngineOptions(cap_add=("SYS_ADMIN", "IPC_LOCK", "ALL"))}, "--cap-add ALL"),
        ({"engine_options": EngineOptions(security_opt=("seccomp=unconfined", "label=disable"))}, "label=disable"),
        ({"engine_options": EngineOptions(network="container:x", ipc="container:x")}, "--net=container:x, --ipc="),
        ({"engine_options": EngineOptions(extra="--privileged")}, "--privileged"),
        ({"image": Image(ref="x", dockerfile=Path("{up}/y.Dockerfile"), context=Path("{up}"))}, "Dockerfile {up}/y."),
        ({"image": Image(ref="x", dockerfile=Path("{up}/y.Dockerfile"), root=Path("/"))}, "Dockerfile {up}/y."),
    ],
)
def test_whatever_field_of_a_plan_file_opens_this_machine_is_told_as_of_a_card(tmp_path, changes, text):
    def placed(value):
        if isinstance(value, (Mount, Image)):
            return replace(value, **{name: placed(getattr(value, name)) for name in value.__struct_fields__})
        if isinstance(value, tuple):
            return tuple(map(placed, value))
        return type(value)(str(value).format(up=tmp_path)) if isinstance(value, (str, Path)) else value

    workspace = tmp_path / "mad"
    workspace.mkdir()
    ordinary = make_plan(
        workspace, devices=("/dev/fuse", "/dev/kfd"), mounts=(Mount(source=str(workspace), target="/x"),)
    )
    assert list(plan_file_notes(ordinary, (), {})) == []
    (line,) = plan_file_notes(replace(ordinary, **{name: placed(one) for name, one in changes.items()}), (), {})
    assert line.startswith(SAID) and text.format(up=tmp_path) in line


def test_a_plan_file_for_the_host_tells_its_commands_and_every_one_the_variables_it_reads(tmp_path):
    actions = (
        Action(kind="pre", argv=("curl", "http://x y", "hf_hush_hush_hush")),
        Action(kind="run", argv=("bash", "r")),
    )
    plan = make_plan(tmp_path, traits=HOST, image=None, actions=actions)
    environ = {"HF_TOKEN": "hf_hush_hush_hush", "B": "b", "C": "c"}
    assert list(plan_file_notes(plan, ("AWS_KEY",), environ)) == [
        "the plan runs on this machine, outside of any container: curl 'http://x y' ***, bash r",
        "the plan reads from your environment or credential.json: AWS_KEY",
    ]
    options = EngineOptions(extra="-e HF_TOKEN -e A=1 --env=B -e X=$C '-e' 'D=$NOT'")
    assert list(plan_file_notes(make_plan(tmp_path, engine_options=options), ("AWS_KEY",), environ)) == [
        "the plan reads from your environment or credential.json: AWS_KEY, C, HF_TOKEN, B"
    ]
