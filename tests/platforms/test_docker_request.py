"""The request for a container, as `run --dry-run` shows it and as it is sent."""

from __future__ import annotations

import json

import pytest

from madlite.errors import UsageProblem
from madlite.model import EngineOptions, Image, Machine, Mount, Place, Secret
from madlite.platforms.docker.request import full_request, masked_request, request_secrets
from tests.factories import make_plan
from tests.rows import each_row

AMD_OPTIONS = EngineOptions(
    group_add=("video",),
    cap_add=("SYS_PTRACE", "SYS_ADMIN"),
    security_opt=("seccomp=unconfined", "apparmor=unconfined"),
)


def test_an_amd_plan_asks_for_what_madengine_asks_docker_run_for(tmp_path):
    plan = make_plan(
        tmp_path,
        machine=Machine(vendor="AMD"),
        place=Place(gpu_ids=(0, 3)),
        devices=("/dev/fuse", "/dev/kfd", "/dev/dri/renderD128", "/dev/dri/renderD152"),
        engine_options=AMD_OPTIONS,
        env={"MAD_RUNTIME_NGPUS": "2"},
        name="container_ci-tiny",
        image=Image(ref="rocm/pytorch:latest"),
    )
    body = masked_request(plan, {})
    host = body["HostConfig"]
    assert (body["Name"], body["Image"], body["Cmd"], body["User"], body["Tty"]) == (
        "container_ci-tiny", "rocm/pytorch:latest", ["cat"], "root", True,
    )  # fmt: skip
    assert body["WorkingDir"] == "/myworkspace/"
    assert body["Env"] == ["MAD_RUNTIME_NGPUS=2", f"MADLITE_RUN_ID={plan.id}"]
    assert body["Labels"] == {"madlite.run": plan.id, "madlite.folder": str(plan.folder)}
    assert (host["NetworkMode"], host["IpcMode"], host["Init"]) == ("host", "host", True)
    assert host["GroupAdd"] == ["video"] and host["CapAdd"] == ["SYS_PTRACE", "SYS_ADMIN"]
    assert host["SecurityOpt"] == ["seccomp=unconfined", "apparmor=unconfined"]
    assert [device["PathOnHost"] for device in host["Devices"]] == list(plan.devices)
    assert host["Binds"] == [
        f"{tmp_path}:/myworkspace/",
        f"{plan.folder}/.view:/myworkspace/madlite_runs:ro",
        f"{plan.folder}/work:/myworkspace/madlite_runs/{plan.id}",
    ], "of the folder of runs a container has its own run's alone"
    assert "DeviceRequests" not in host and "Privileged" not in host and "ShmSize" not in host


def test_limits_of_the_plan_come_before_those_of_the_options(tmp_path):
    options = EngineOptions(ulimits=("memlock=-1",), extra="--ulimit nofile=8:9")
    assert masked_request(make_plan(tmp_path, engine_options=options), {})["HostConfig"]["Ulimits"] == [
        {"Name": "memlock", "Soft": -1, "Hard": -1},
        {"Name": "nofile", "Soft": 8, "Hard": 9},
    ]
    assert "Ulimits" not in masked_request(make_plan(tmp_path), {})["HostConfig"]


def test_an_nvidia_plan_asks_for_its_gpus_by_number(tmp_path):
    plan = make_plan(tmp_path, machine=Machine(vendor="NVIDIA"), place=Place(gpu_ids=(1, 4)), devices=("/dev/fuse",))
    host = masked_request(plan, {})["HostConfig"]
    assert host["DeviceRequests"] == [{"Driver": "", "DeviceIDs": ["1", "4"], "Capabilities": [["gpu"]]}]
    assert [device["PathOnHost"] for device in host["Devices"]] == ["/dev/fuse"]


def test_a_cpu_plan_asks_for_no_device(tmp_path):
    host = masked_request(make_plan(tmp_path), {})["HostConfig"]
    assert not {"Devices", "DeviceRequests", "CapAdd", "SecurityOpt", "CpusetCpus"} & set(host)


def test_cpuset_mounts_and_keep_alive(tmp_path):
    mounts = (Mount(source="/nfs", target="/data", read_only=True), Mount(source="/odd:name", target="/odd"))
    plan = make_plan(tmp_path, engine_options=EngineOptions(cpuset="0-3"), mounts=mounts, keep_alive=True)
    body = masked_request(plan, {})
    assert body["HostConfig"]["CpusetCpus"] == "0-3"
    assert "/nfs:/data:ro" in body["HostConfig"]["Binds"]
    assert body["HostConfig"]["Mounts"] == [
        {"Type": "bind", "Source": "/odd:name", "Target": "/odd", "ReadOnly": False}
    ]
    assert body["Labels"]["madlite.kept"] == "1"


def test_secrets_are_sent_and_never_shown(tmp_path):
    plan = make_plan(
        tmp_path,
        env={"HF_TOKEN": Secret("hf_verysecret")},
        engine_options=EngineOptions(extra="-e WANDB_API_KEY=wandbsecret"),
    )
    text = json.dumps(masked_request(plan, {}))
    assert "verysecret" not in text and "wandbsecret" not in text and "HF_TOKEN=***" in text
    assert {"HF_TOKEN=hf_verysecret", "WANDB_API_KEY=wandbsecret"} <= set(full_request(plan, {})["Env"])


def test_what_is_shown_is_what_is_sent(tmp_path):
    plan = make_plan(tmp_path, engine_options=EngineOptions(extra="--shm-size=2g -e A=b --ipc=private"))
    request = masked_request(plan, {})
    assert {name: value for name, value in request.items() if name != "Name"} == full_request(plan, {})
    assert request["HostConfig"]["IpcMode"] == "private"


def test_what_docker_ignores_and_podman_refuses_is_left_out(tmp_path):
    def host(extra: str):
        return masked_request(make_plan(tmp_path, engine_options=EngineOptions(extra=extra)), {})["HostConfig"]

    assert "ShmSize" not in host("--shm-size=2g") and host("--shm-size=2g --ipc=private")["ShmSize"] == 2 << 30
    assert "Init" not in host("--pid=host --init") and host("")["Init"] is True


def test_options_cannot_take_away_the_marks_of_the_run(tmp_path):
    plan = make_plan(tmp_path, engine_options=EngineOptions(extra="-l madlite.run=x -e MADLITE_RUN_ID=x -w /x"))
    body = masked_request(plan, {})
    assert body["Labels"]["madlite.run"] == plan.id and f"MADLITE_RUN_ID={plan.id}" in body["Env"]
    assert body["WorkingDir"] == "/myworkspace/"


@each_row(
    ("label", "shown_as"),
    [
        ("who=https://me:p4ssword@host", "https://me:***@host"),
        ("token=of_the_card", "***"),
        ("who=$WHO", "***"),
        ("who=of_the_variable", "***"),
        ("team=perf", "perf"),
    ],
)
def test_a_label_has_no_secret(tmp_path, label, shown_as):
    plan = make_plan(tmp_path, engine_options=EngineOptions(extra=f"-l {label} -e WANDB_API_KEY=of_the_variable"))
    for request in (masked_request, full_request):
        labels = request(plan, {"WHO": "0f_the_caller", "HF_TOKEN": "0f_the_caller"})["Labels"]
        assert labels[label.partition("=")[0]] == shown_as


def test_the_proxy_of_dockers_configuration_reaches_the_container_unless_the_plan_has_one(tmp_path):
    (tmp_path / ".docker").mkdir()
    proxies = {"default": {"httpProxy": "http://user:pass@proxy:3128", "noProxy": "localhost"}}
    (tmp_path / ".docker/config.json").write_text(json.dumps({"proxies": proxies}))
    plan = make_plan(tmp_path, env={"no_proxy": "mine"})
    environ = {"HOME": str(tmp_path)}
    env = full_request(plan, environ)["Env"]
    assert "HTTP_PROXY=http://user:pass@proxy:3128" in env and "http_proxy=http://user:pass@proxy:3128" in env
    assert "no_proxy=mine" in env and "NO_PROXY=localhost" in env
    assert "pass@proxy" not in json.dumps(masked_request(plan, environ))


def test_a_name_docker_refuses_is_mended(tmp_path):
    assert (
        masked_request(make_plan(tmp_path, name="container_rocm_x@sha256:ab"), {})["Name"]
        == "container_rocm_x_sha256_ab"
    )


def test_the_secrets_of_a_request_are_known_to_who_masks_its_output(tmp_path):
    (tmp_path / "env").write_text("DB_PASSWORD=of_the_file\nNAME=plain\n")
    (tmp_path / ".docker").mkdir()
    proxies = {"default": {"httpProxy": "http://user:pass@proxy:3128", "noProxy": "localhost"}}
    (tmp_path / ".docker/config.json").write_text(json.dumps({"proxies": proxies}))
    options = f"--env-file {tmp_path}/env -e HF_TOKEN=of_the_card -e WANDB_API_KEY -e MAX_TOKENS=4096"
    plan = make_plan(tmp_path, engine_options=EngineOptions(extra=options))
    found = request_secrets(plan, {"HOME": str(tmp_path), "WANDB_API_KEY": "of_the_caller"})
    assert {secret.reveal() for secret in found} == {
        "of_the_file", "of_the_card", "of_the_caller", "http://user:pass@proxy:3128",
    }  # fmt: skip


@each_row("broken", ["--shm-sze=2g", "--env-file /nonexistent/env", "'"])
def test_options_that_cannot_be_read_still_name_their_secrets(tmp_path, broken):
    plan = make_plan(tmp_path, engine_options=EngineOptions(extra=f"-e HF_TOKEN=of_the_card {broken}"))
    assert "of_the_card" in {secret.reveal() for secret in request_secrets(plan, {})}


@each_row(
    ("options", "secret"),
    [
        ("--label token=of_the_card", "of_the_card"),
        ("-l org.api_key='of the card'", "of the card"),
        ("--label token=$NAMED", "of_the_caller"),
        ("--log-driver splunk --log-opt splunk-token=of_the_card", "of_the_card"),
        ("""-e 'SETTINGS={"HF_TOKEN": "of_the_card"}'""", "of_the_card"),
        (r"-e HF_TOKEN=of\$the_card", "of$the_card"),
        (r"-e HF_TOKEN=of\$the_card", r"of\$the_card"),  # as the options stand in a row
        ("-e HF_TOKEN=of' the 'card", "of' the 'card"),
        ("-e PASSWORD=of' the card'", "of' the card'"),
        ("""-e HF_TOKEN="of"the_card""", '"of"the_card'),
        ("""--env=HF_TOKEN='of'the"_card" --net host""", """'of'the"_card\""""),
    ],
)
def test_a_secret_of_the_options_is_known_wherever_it_stands(tmp_path, options, secret):
    plan = make_plan(tmp_path, engine_options=EngineOptions(extra=options))
    assert secret in {found.reveal() for found in request_secrets(plan, {"NAMED": "of_the_caller"})}


@each_row(
    "options",
    [
        "--label team=perf -l tokenizer=llama3 --label token=8192",
        "-v /run/secrets:/run/secrets:ro --tmpfs /secret:size=64m -v /home/me/token:/token",
        '-e ARGS="--moe-token-dispatcher-type alltoall --max_tokens=4096"',
        "--env-file {folder}/env --shm-size 64G --ulimit memlock=-1",
        "-e HF_TOKEN=$NOTHING -e HF_TOKEN -e WANDB_API_KEY_FILE=/run/key",
        "--add-host credential:10.0.0.1",
    ],
)
def test_nothing_ordinary_of_the_options_is_a_secret(tmp_path, options):
    (tmp_path / "env").write_text("NAME=plain\n")
    plan = make_plan(tmp_path, engine_options=EngineOptions(extra=options.replace("{folder}", str(tmp_path))))
    assert [found.reveal() for found in request_secrets(plan, {"NOTHING": ""})] == []


def test_a_plan_without_an_image_is_refused(tmp_path):
    with pytest.raises(UsageProblem, match="card 'tiny' names no image to run in") as problem:
        full_request(make_plan(tmp_path, image=None), {})
    assert problem.value.hint == "--image REF names one"
