"""Verbatim `docker run` options of a card, as changes of the API's request."""

from __future__ import annotations

import pytest

from madlite.errors import UsageProblem
from madlite.model import Secret
from madlite.platforms.docker.request import add_options
from tests.rows import each_row

GIB = 1 << 30


def changed(text: str, **environ: str) -> dict:
    body = {
        "Env": {"KEPT": "1"},
        "Labels": {},
        "User": "root",
        "HostConfig": {"Init": True, "IpcMode": "host", "CapAdd": ["SYS_PTRACE"], "Binds": ["/w:/myworkspace/"]},
    }
    add_options(body, text, environ, "card 'tiny'")
    return body


@each_row(
    ("text", "field", "value"),
    [
        ("--shm-size=2g", "ShmSize", 2 * GIB),
        ("--shm-size 64G", "ShmSize", 64 * GIB),
        ("--shm-size 512mb", "ShmSize", 512 << 20),
        ("--ipc=private", "IpcMode", "private"),
        ("--network none", "NetworkMode", "none"),
        ("--net=bridge", "NetworkMode", "bridge"),
        ("-m8g", "Memory", 8 * GIB),
        ("--memory-swap -1", "MemorySwap", -1),
        ("--cpus 1.5", "NanoCpus", 1_500_000_000),
        ("--cpuset-cpus=0-3,8", "CpusetCpus", "0-3,8"),
        ("--privileged", "Privileged", True),
        ("--init=false", "Init", False),
        ("--pids-limit -1", "PidsLimit", -1),
        ("--runtime=nvidia", "Runtime", "nvidia"),
        ("--cap-add=SYS_ADMIN --cap-add NET_RAW", "CapAdd", ["SYS_PTRACE", "SYS_ADMIN", "NET_RAW"]),
        ("--group-add video --group-add render", "GroupAdd", ["video", "render"]),
        ("-v /data:/data:ro --volume=/x:/y", "Binds", ["/w:/myworkspace/", "/data:/data:ro", "/x:/y"]),
        (
            "--ulimit memlock=-1 --ulimit nofile=1024:2048",
            "Ulimits",
            [{"Name": "memlock", "Soft": -1, "Hard": -1}, {"Name": "nofile", "Soft": 1024, "Hard": 2048}],
        ),
        (
            "--device /dev/infiniband --device=/dev/a:/dev/b:rw",
            "Devices",
            [
                {"PathOnHost": "/dev/infiniband", "PathInContainer": "/dev/infiniband", "CgroupPermissions": "rwm"},
                {"PathOnHost": "/dev/a", "PathInContainer": "/dev/b", "CgroupPermissions": "rw"},
            ],
        ),
        ("--gpus all", "DeviceRequests", [{"Driver": "", "Capabilities": [["gpu"]], "Count": -1}]),
        (
            """--gpus '"device=0,2"'""",
            "DeviceRequests",
            [{"Driver": "", "Capabilities": [["gpu"]], "DeviceIDs": ["0", "2"]}],
        ),
        (
            """--gpus 'count=2,driver=nvidia,"capabilities=compute,utility"'""",
            "DeviceRequests",
            [{"Driver": "nvidia", "Capabilities": [["gpu", "compute", "utility"]], "Count": 2}],
        ),
        ("--gpus device=0,2", "DeviceRequests", [{"Driver": "", "Capabilities": [["gpu"]], "DeviceIDs": ["0", "2"]}]),
        (
            "--mount type=bind,src=/a,dst=/b,ro=false,bind-propagation=rslave",
            "Mounts",
            [
                {
                    "Type": "bind",
                    "Source": "/a",
                    "Target": "/b",
                    "ReadOnly": False,
                    "BindOptions": {"Propagation": "rslave"},
                }
            ],
        ),
        (
            "--mount type=tmpfs,dst=/scratch,tmpfs-size=1g,tmpfs-mode=1770",
            "Mounts",
            [{"Type": "tmpfs", "Target": "/scratch", "TmpfsOptions": {"SizeBytes": GIB, "Mode": 0o1770}}],
        ),
        (
            "--mount type=bind,src=/a,dst=/b,readonly",
            "Mounts",
            [{"Type": "bind", "Source": "/a", "Target": "/b", "ReadOnly": True}],
        ),
        ("--tmpfs /run:size=64m --tmpfs /tmp", "Tmpfs", {"/run": "size=64m", "/tmp": ""}),
        ("--sysctl net.core.somaxconn=1024", "Sysctls", {"net.core.somaxconn": "1024"}),
        (
            "--log-driver json-file --log-opt max-size=3m",
            "LogConfig",
            {"Type": "json-file", "Config": {"max-size": "3m"}},
        ),
        ("--add-host a:10.0.0.1", "ExtraHosts", ["a:10.0.0.1"]),
        ("--security-opt seccomp=unconfined", "SecurityOpt", ["seccomp=unconfined"]),
        ("--security-opt seccomp=", "SecurityOpt", ["seccomp="]),  # the engine's own profile
    ],
)
def test_an_option_becomes_the_field_docker_makes_of_it(text, field, value):
    assert changed(text)["HostConfig"][field] == value


def test_options_outside_of_the_host_configuration():
    body = changed("-u 1000:1000 -h node1 --entrypoint /bin/sh -l team=perf --label bare --stop-signal INT")
    assert (body["User"], body["Hostname"], body["Entrypoint"]) == ("1000:1000", "node1", ["/bin/sh"])
    assert body["Labels"] == {"team": "perf", "bare": ""} and body["StopSignal"] == "INT"


def test_what_the_plan_decides_is_accepted_and_changes_nothing():
    assert changed("-it -d --rm --name mine -w /elsewhere") == changed("")


def test_variables_come_from_the_text_a_file_or_the_caller(tmp_path):
    listed = tmp_path / "env"
    listed.write_text("# comment\n\nFROM_FILE=a b\nFROM_CALLER\nBOTH=file\n")
    env = changed(
        f"-e A=1 --env 'B=x y' -e HF_HOME -e UNSET -e BOTH=text --env-file {listed}", HF_HOME="/hf", FROM_CALLER="c"
    )
    assert env["Env"] == {
        "KEPT": "1", "FROM_FILE": "a b", "FROM_CALLER": "c", "BOTH": "text", "A": "1", "B": "x y", "HF_HOME": "/hf",
    }  # fmt: skip


def test_a_secret_variable_is_wrapped_wherever_it_comes_from():
    env = changed("-e HF_TOKEN=hf_abcdef -e WANDB_API_KEY", WANDB_API_KEY="k" * 20)["Env"]
    assert env["HF_TOKEN"] == Secret("hf_abcdef") and env["WANDB_API_KEY"] == Secret("k" * 20)


def test_variables_of_the_caller_and_the_home_folder_are_expanded():
    body = changed("-v $DATA/set:/data -v ${DATA}:/all --env-file=/dev/null -v ~/x:/x", DATA="/nfs", HOME="/home/me")
    assert body["HostConfig"]["Binds"][1:] == ["/nfs/set:/data", "/nfs:/all", "/home/me/x:/x"]


@each_row(
    ("written", "value"),
    [
        ("'^a$X'", "^a$X"),
        ("'^a${X}`id`$(id)'", "^a${X}`id`$(id)"),
        (r"^a\$X", "^a$X"),
        (r'"^a\$X"', "^a$X"),
        (r'"\`id\`"', "`id`"),
        (r'"\\$X"', r"\x's"),
        (r'"a\"$X"', "a\"x's"),
        ('"$X"', "x's"),
        ("$X", "x's"),
        ("a'$X'${X}\"$X\"", "a$Xx'sx's"),
    ],
)
def test_quotes_and_backslashes_keep_a_dollar_as_in_a_shell(written, value):
    """Each value was compared with what bash makes of the word."""
    assert changed(f"-e P={written} --shm-size 2g", X="x's")["Env"]["P"] == value


def test_a_quoted_tilde_is_no_home_folder():
    assert changed(r"-e '~/a' -e \~/b -e ~/c", **{"~/a": "1", "~/b": "2", "/home/c": "3"}, HOME="/home")["Env"] == {
        "KEPT": "1", "~/a": "1", "~/b": "2", "/home/c": "3",
    }  # fmt: skip


@each_row(
    ("text", "words"),
    [
        ("--shm-sze=2g", "--shm-sze"),
        ("--publish-everything", "--publish-everything"),
        ("ubuntu:22.04", "ubuntu:22.04"),
        ("--shm-size", "--shm-size"),
        ("--shm-size=lots", "lots"),
        ("--ulimit memlock=", "--ulimit"),
        ("-v /only", "/only"),
        ("-v $(pwd):/x", "no shell"),
        ("-v $UNSET:/x", "UNSET"),
        ("-e 'A=1", "quotation"),
        ("--env-file /nonexistent/env", "/nonexistent/env"),
        ("--mount type=bind,colour=red,dst=/x", "colour"),
        ("--mount type=bind,src=/a", "names no target"),
        ("--mount type=tmpfs,dst=/x,tmpfs-mode=rwx", "rwx"),
        ("--gpus many", "many"),
        ("--mount 'type=bind\rsrc=/a'", "--mount"),
        ("--security-opt seccomp=/nonexistent/profile.json", "/nonexistent/profile.json cannot be read"),
    ],
)
def test_what_cannot_be_read_is_named_with_where_it_stands(text, words):
    with pytest.raises(UsageProblem) as caught:
        changed(text)
    assert words in caught.value.message and "card 'tiny'" in caught.value.message


@each_row("text", ['-e "HF_TOKEN=hf_hush$UNSET"', '-e "HF_TOKEN=hf_hush`id`"'])
def test_what_cannot_be_read_is_named_without_its_secret(text):
    with pytest.raises(UsageProblem) as caught:
        changed(text)
    assert "HF_TOKEN" in caught.value.message and "hush" not in caught.value.message


def test_an_env_file_that_is_no_text_is_told(tmp_path):
    (tmp_path / "env").write_bytes(b"A=\xff\n")
    with pytest.raises(UsageProblem, match="no UTF-8 text"):
        changed(f"--env-file {tmp_path}/env")


def test_a_seccomp_profile_is_sent_by_its_content(tmp_path):
    profile = tmp_path / "profile.json"
    profile.write_text('{\n  "defaultAction": "SCMP_ACT_ALLOW"\n}\n')
    sent = changed(f"--security-opt seccomp={profile}")["HostConfig"]["SecurityOpt"]
    assert sent == ['seccomp={"defaultAction": "SCMP_ACT_ALLOW"}']
    profile.write_bytes(b"\xff{")
    with pytest.raises(UsageProblem, match="profile.json is no JSON"):
        changed(f"--security-opt seccomp={profile}")
