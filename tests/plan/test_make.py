"""What a plan holds: the contract's environment, devices, names and limits."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from madlite.errors import UsageProblem
from madlite.images.build import build_command
from madlite.model import Action, Card, Cause, Gpu, Image, Machine, Secret, Status, Traits, to_json
from madlite.plan.actions import bind_model_dir, model_dir
from madlite.plan.context import Context, Options, read_context
from madlite.plan.images import Dockerfile, image_name
from madlite.plan.make import make_plan
from madlite.plan.place import RuntimeChoice, allocate_gpus, expand_ids
from tests.plan.conftest import eight_mi300x, rendered_draft
from tests.rows import each_row

HOST = Traits(containerised=False)
CARD = Card(name="tiny", root=Path(), source="models.json", n_gpus="2")


def card(tmp_path: Path, **changes: object) -> Card:
    return Card(name="team/Llama", root=tmp_path, source="models.json", **{"n_gpus": "2", **changes})  # type: ignore


def test_a_plan_is_the_same_for_the_same_input_and_goes_to_json_and_back(given):
    assert make_plan(given()) == make_plan(given())
    text = to_json(make_plan(given()))
    assert msgspec.json.decode(text.encode())["card"]["name"] == "tiny"


def test_devices_are_those_of_the_granted_gpus_and_none_of_a_cpu(given, tmp_path):
    context = read_context(None, '{"docker_gpus": "3,5-6"}')
    plan = make_plan(given(card=card(tmp_path), context=context))
    assert plan.place.gpu_ids == (3, 5)
    assert plan.devices == ("/dev/fuse", "/dev/kfd", "/dev/dri/renderD131", "/dev/dri/renderD133")
    assert plan.engine_options.group_add == ("video",)
    assert plan.engine_options.cap_add == ("SYS_PTRACE", "SYS_ADMIN")
    # a cpu machine gets neither devices nor privileges
    plan = make_plan(given(card=card(tmp_path), machine=Machine()))
    assert plan.place.gpu_ids == () and plan.devices == () and plan.engine_options.cap_add == ()
    assert "runs on the CPU" in plan.notes[0]
    assert plan.blocked is None or plan.blocked.cause is Cause.IMAGE


def test_nvidia_gets_no_device_files_but_its_capabilities(given, tmp_path):
    name = "NVIDIA H100 80GB HBM3"
    gpus = tuple(Gpu(index=n, arch=name, product=name) for n in range(8))
    machine = Machine(vendor="NVIDIA", gpus=gpus, architecture=name, product=name, device="H100", cuda_version="13.0")
    plan = make_plan(given(card=card(tmp_path, n_gpus="4"), machine=machine))
    assert plan.place.gpu_ids == (0, 1, 2, 3)
    assert plan.devices == ("/dev/fuse",)
    assert plan.engine_options.cap_add == ("SYS_PTRACE", "SYS_ADMIN", "SYS_NICE")
    assert plan.env["MAD_SYSTEM_HIP_VERSION"] == "13.0"


def test_the_environment_is_mads(given, tmp_path):
    options = Options(
        workspace=tmp_path,
        output=tmp_path / "perf.csv",
        environ={"BUILD_NUMBER": "17", "NCCL_DEBUG": "WARN", "MAD_SECRETS_HFTOKEN": "hf_hush_hush", "HOME": "/root"},
    )
    context = read_context(None, '{"docker_env_vars": {"NCCL_DEBUG": "INFO", "ON": true, "N": 3}}')
    plan = make_plan(given(card=card(tmp_path, multiple_results="r.csv"), options=options, context=context))
    expected = {
        "MAD_MODEL_NAME": "team/Llama",
        "MAD_OUTPUT_CSV": "r.csv",
        "JENKINS_BUILD_NUMBER": "17",
        "MAD_GPU_VENDOR": "AMD",
        "MAD_SYSTEM_NGPUS": "8",
        "MAD_RUNTIME_NGPUS": "2",
        "MAD_SYSTEM_GPU_ARCHITECTURE": "gfx942",
        "MAD_SYSTEM_GPU_PRODUCT_NAME": "AMD Instinct MI300X",
        "MAD_SYSTEM_HIP_VERSION": "7.0",
        "MAD_MULTI_NODE_RUNNER": "torchrun --standalone --nproc_per_node=2",
        "NCCL_DEBUG": "INFO",
        "ON": "True",
        "N": "3",
        "FROM_RECIPE": "1",
    }
    assert {name: plan.env[name] for name in expected} == expected
    assert plan.env["MAD_SECRETS_HFTOKEN"] == Secret("hf_hush_hush")
    assert "HOME" not in plan.env
    assert "hf_hush_hush" not in to_json(plan) and "hf_hush_hush" not in repr(plan)
    # every models runner has its own gpu count
    counts = [make_plan(given(card=card(tmp_path, n_gpus=n))).env["MAD_MULTI_NODE_RUNNER"] for n in ("1", "4")]
    assert [text[-1] for text in counts] == ["1", "4"]
    # truth values and null arrive as madengine gives them
    asked = '{"docker_env_vars": {"ON": true, "OFF": false, "NONE": null, "ROCM_PATH": null, "F": 1.5}}'
    env = make_plan(given(context=read_context(None, asked))).env
    assert [env[name] for name in ("ON", "OFF", "NONE", "F")] == ["True", "False", "None", "1.5"]
    assert "ROCM_PATH" not in env, "the image's own counts"
    # the guest os follows the context
    assert make_plan(given()).env["MAD_GUEST_OS"] == "UBUNTU"
    plan = make_plan(given(context=read_context(None, '{"guest_os": "CENTOS"}')))
    assert (plan.env["MAD_GUEST_OS"], plan.origins["env.MAD_GUEST_OS"]) == ("CENTOS", "--additional-context")
    # a card with data gets their names
    assert make_plan(given(card=card(tmp_path, data=("squad", "wiki")))).env["MAD_DATANAME"] == "squad,wiki"
    assert "MAD_DATANAME" not in make_plan(given()).env


@each_row(
    ("option", "of_card", "limit", "origin"),
    [
        (None, None, 7200.0, "default"),
        (None, 360, 360.0, "card"),
        (None, 0, None, "card"),
        (7200, 360, 7200.0, "--timeout"),
        (0, 360, None, "--timeout"),
    ],
)
def test_the_time_limit(given, tmp_path, option, of_card, limit, origin):
    options = Options(workspace=tmp_path, output=tmp_path / "perf.csv", timeout_s=option)
    plan = make_plan(given(card=card(tmp_path, timeout_s=of_card), options=options))
    assert (plan.timeout_s, plan.origins["timeout_s"]) == (limit, origin)


def test_names_of_image_container_and_log(given, tmp_path):
    file = Dockerfile(path=tmp_path / "docker/x.ubuntu.amd.Dockerfile", context=tmp_path / "docker", base="rocm/base")
    plan = make_plan(given(card=card(tmp_path), dockerfile=file))
    assert plan.image.ref == "ci-team_llama_x.ubuntu.amd"
    assert plan.name == "container_ci-team_llama_x.ubuntu.amd"
    assert plan.log_name == "team_Llama_x.ubuntu.amd"
    assert plan.image.build_args["MAD_SYSTEM_GPU_ARCHITECTURE"] == "gfx942"
    built = Image(ref="ci-team_llama_/../../x", dockerfile=file.path, prebuilt=True)  # as a manifest may have it
    assert make_plan(given(card=card(tmp_path), built=built)).log_name == "team_Llama__.._.._x"
    foreign = make_plan(given(card=card(tmp_path), context=read_context(None, '{"MAD_CONTAINER_IMAGE": "rocm/x:1"}')))
    assert foreign.name == "container_rocm_x_1" and foreign.log_name == "team_Llama_rocm_x_1"


def test_on_the_host_runtime_paths_are_the_hosts(given, tmp_path):
    options = Options(workspace=tmp_path, output=tmp_path / "p.csv", python="/opt/py/bin/python")
    plan = make_plan(
        given(card=card(tmp_path), options=options, runtime=RuntimeChoice(runtime="host", origin="card", traits=HOST))
    )
    assert plan.image is None and plan.inside == str(tmp_path) and plan.mounts == ()
    assert plan.env["MADLITE_PYTHON"] == "/opt/py/bin/python"
    assert plan.env["HIP_VISIBLE_DEVICES"] == "0,1"
    origins = {name: plan.origins[f"env.{name}"] for name in ("MADLITE_PYTHON", "HIP_VISIBLE_DEVICES", "FROM_RECIPE")}
    assert origins == {
        "MADLITE_PYTHON": "runtime host", "HIP_VISIBLE_DEVICES": "runtime host", "FROM_RECIPE": "recipe",
    }  # fmt: skip


def test_the_python_that_the_shell_exports_is_the_hosts_and_no_container_s(given, tmp_path):
    def planned(runtime, exported):
        environ = {"MADLITE_PYTHON": exported}
        options = Options(workspace=tmp_path, output=tmp_path / "p.csv", python="/opt/py/bin/python", environ=environ)
        chosen = RuntimeChoice(runtime=runtime, origin="card", traits=HOST if runtime == "host" else Traits())
        return make_plan(given(card=card(tmp_path), options=options, runtime=chosen))

    plan = planned("host", "/opt/torch/bin/python")
    assert (plan.env["MADLITE_PYTHON"], plan.origins["env.MADLITE_PYTHON"]) == ("/opt/torch/bin/python", "environment")
    assert planned("host", "torch/bin/python").env["MADLITE_PYTHON"] == str(tmp_path / "torch/bin/python")
    assert planned("host", "python3.12").env["MADLITE_PYTHON"] == "python3.12"
    assert planned("host", "").env["MADLITE_PYTHON"] == "/opt/py/bin/python"
    assert "MADLITE_PYTHON" not in planned("docker", "/opt/torch/bin/python").env


@each_row(
    ("changes", "status", "cause"),
    [
        ({"n_gpus": "64"}, Status.FAILURE, Cause.GPUS),
        ({"is_deprecated": True}, Status.SKIPPED, Cause.DEPRECATED),
        ({"skip_gpu_arch": ("gfx90a", "gfx942")}, Status.SKIPPED, Cause.SKIPPED_ARCH),
        ({}, Status.FAILURE, Cause.IMAGE),
    ],
)
def test_what_keeps_a_plan_from_starting(given, tmp_path, changes, status, cause):
    plan = make_plan(given(card=card(tmp_path, **changes)))
    assert (plan.blocked.status, plan.blocked.cause) == (status, cause)
    assert plan.blocked.reason


def test_a_skipped_architecture_can_be_run_all_the_same(given, tmp_path):
    options = Options(workspace=tmp_path, output=tmp_path / "p", disable_skip_gpu_arch=True, image="x")
    plan = make_plan(given(card=card(tmp_path, skip_gpu_arch=("gfx942",)), options=options))
    assert plan.blocked is None


@each_row("arch", ["H100", "NVIDIA H100 80GB HBM3"])
def test_nvidia_is_skipped_by_its_short_name(given, tmp_path, arch):
    name = "NVIDIA H100 80GB HBM3"
    machine = Machine(vendor="NVIDIA", gpus=(Gpu(index=0, arch=name),), architecture=name)
    plan = make_plan(given(card=card(tmp_path, n_gpus="1", skip_gpu_arch=(arch,)), machine=machine))
    assert plan.blocked.cause is Cause.SKIPPED_ARCH


def test_gpus_that_are_not_there_are_refused(tmp_path, given):
    # gpu lists
    assert expand_ids("0,2-4") == (0, 2, 3, 4)
    assert expand_ids("") == ()
    assert expand_ids("65535") == (65535,)
    for bad in ("a", "1-", "-1", "0;1", "²", "٣", "5-1", "65536", "0-9999999999", "9" * 5000):
        with pytest.raises(UsageProblem):
            expand_ids(bad)
    context = read_context(None, '{"docker_gpus": "7-9"}')
    with pytest.raises(UsageProblem, match="docker_gpus 7-9 names GPU 8, 9, this machine has 0 to 7"):
        make_plan(given(card=card(tmp_path), context=context))
    # gpus of a context are named where there is none
    note = allocate_gpus(CARD, Machine(), read_context(None, '{"docker_gpus": "0,1"}'), None).note
    assert note == "no GPU here: runs on the CPU, though 2 are asked for; docker_gpus 0,1 has no effect"
    # a refused run still says how many gpus it wanted
    all_there = allocate_gpus(CARD, eight_mi300x(), Context(), None)
    assert (all_there.wanted, all_there.gpu_ids) == (2, (0, 1))
    assert allocate_gpus(CARD, eight_mi300x(), Context(), -1).wanted == 8
    refused = allocate_gpus(CARD, eight_mi300x(), Context(), 64)
    assert (refused.wanted, refused.gpu_ids) == (64, ()) and refused.blocked is not None
    assert allocate_gpus(CARD, Machine(), Context(), None).wanted == 0, "a CPU run uses none"


@each_row(
    ("text", "machine", "message", "hint"),
    [
        ("4", Machine(), "--gpus 4 names GPU 4, this machine has none", "it takes ids; 4 GPUs are 0-3; --set"),
        ("8", None, "--gpus 8 names GPU 8, this machine has 0 to 7", "it takes ids; 8 GPUs are 0-7; --set"),
        ("6-9", None, "--gpus 6-9 names GPU 8, 9, this machine has 0 to 7", "it takes ids; --set n_gpus=N"),
        ("0", Machine(), "--gpus 0 names GPU 0, this machine has none", "it takes ids; --set n_gpus=N"),
    ],
)
def test_gpus_of_the_option_that_are_not_there_refuse_the_command(text, machine, message, hint):
    context = read_context(None, "", {"docker_gpus": ("--gpus", text)})
    with pytest.raises(UsageProblem) as refused:
        allocate_gpus(CARD, machine or eight_mi300x(), context, None)
    assert refused.value.message == message and refused.value.hint.startswith(hint)


@each_row(
    ("environ", "ids"),
    [
        ({"CUDA_VISIBLE_DEVICES": "1"}, None),
        ({"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, None),
        ({"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, (1,)),
        ({"CUDA_VISIBLE_DEVICES": "GPU-b"}, (1,)),
        ({"CUDA_VISIBLE_DEVICES": "1,0"}, (0, 1)),
    ],
)
def test_numbers_of_gpus_that_only_cuda_can_order_are_refused(environ, ids):
    gpus = (
        Gpu(index=0, product="NVIDIA L4", unique_id="GPU-a"),
        Gpu(index=1, product="NVIDIA H100", unique_id="GPU-b"),
    )

    def allocated(found: tuple[Gpu, ...]) -> tuple[int, ...]:
        return allocate_gpus(CARD, Machine(vendor="NVIDIA", gpus=found), Context(), -1, environ).gpu_ids

    if ids is None:
        with pytest.raises(UsageProblem, match="CUDA_VISIBLE_DEVICES=1 of the environment counts") as no:
            allocated(gpus)
        assert "export CUDA_DEVICE_ORDER=PCI_BUS_ID" in no.value.hint
    else:
        assert allocated(gpus) == ids
    assert allocated(tuple(replace(gpu, product="NVIDIA H100") for gpu in gpus)) == (ids or (1,)), "alike in any order"


def test_a_count_below_minus_one_is_refused():
    with pytest.raises(UsageProblem, match="n_gpus -5 is less than -1"):
        allocate_gpus(CARD, eight_mi300x(), Context(), -5)
    with pytest.raises(UsageProblem, match="n_gpus -2 is less than -1"):
        allocate_gpus(CARD, Machine(), read_context(None, '{"n_gpus": -2}'), None)


@each_row(
    ("url", "folder"),
    [
        ("", "run_directory"),
        ("https://github.com/x/repo.git", "repo"),
        ("git@host:team/repo", "repo"),
        ("https://h/x/repo/", "repo"),
        ("https://h/..", "run_directory"),
    ],
)
def test_the_models_folder(tmp_path, url, folder):
    assert model_dir(card(tmp_path, url=url)) == folder


def test_build_args_are_guarded_by_name_and_by_value(given, tmp_path):
    options = Options(workspace=tmp_path, output=tmp_path / "p", environ={"HF_TOKEN": "hf_hush_hush"})
    asked = {"WANDB_API_KEY": "key_hush", "URL": "https://u:hf_hush_hush@h", "NAME": "cred_hush", "BASE_DOCKER": "b:1"}
    plan = make_plan(
        given(
            card=card(tmp_path, cred="MINI"),
            options=options,
            context=read_context(None, msgspec.json.encode({"docker_build_arg": asked}).decode()),
            credentials={"MINI": {"user": "someone", "token": "cred_hush"}},
            dockerfile=Dockerfile(path=tmp_path / "x.Dockerfile", context=tmp_path, base="b:1"),
        )
    )
    args = plan.image.build_args
    assert [name for name in (*asked, "MINI_TOKEN", "MINI_USER") if isinstance(args[name], Secret)] == [
        "WANDB_API_KEY", "URL", "NAME", "MINI_TOKEN",
    ]  # fmt: skip
    assert "hush" not in to_json(plan)


def test_a_value_is_guarded_for_its_shape(given, tmp_path):
    token = "ghp_" + "aB3" * 12
    asked = {
        "INDEX": "https://me:p4ssword@host",
        "CLONE": token,
        "MIRROR": "https://host/simple",
        "WHO": "git@host:a/b",
    }
    context = {"docker_build_arg": asked, "docker_env_vars": asked}
    plan = make_plan(
        given(
            context=read_context(None, msgspec.json.encode(context).decode()),
            dockerfile=Dockerfile(path=tmp_path / "x.Dockerfile", context=tmp_path, base="b:1"),
        )
    )
    for values in (plan.image.build_args, plan.env):
        assert [name for name in asked if isinstance(values[name], Secret)] == ["INDEX", "CLONE"]
    command = build_command(plan.image)
    assert "--build-arg=INDEX" in command and not any("p4ssword" in word or token in word for word in command)
    # a credentials user name is no secret
    of_card = card(tmp_path, cred="MINI")
    plan = make_plan(given(card=of_card, credentials={"MINI": {"username": "step", "password": "hush_hush"}}))
    assert plan.env["MINI_USERNAME"] == "step" and plan.env["MINI_PASSWORD"] == Secret("hush_hush")


@each_row(("credentials", "blocked"), [(None, False), ({}, True), ({"C": {"token": "t0ken"}}, False)])
def test_a_credential_that_is_missing_keeps_the_plan_from_starting(given, tmp_path, credentials, blocked):
    options = Options(workspace=tmp_path, output=tmp_path / "p", image="x")
    plan = make_plan(given(card=card(tmp_path, cred="C"), options=options, credentials=credentials))
    assert (plan.blocked is not None) is blocked
    assert not blocked or "'C'" in plan.blocked.reason


@each_row(
    ("name", "image"),
    [
        ("team/Llama", "ci-team_llama_x.ubuntu.amd"),
        ("my model (v2)", "ci-my_model_v2_x.ubuntu.amd"),
        ("a__b", "ci-a__b_x.ubuntu.amd"),
        ("ü", "ci_x.ubuntu.amd"),
    ],
)
def test_image_names_are_mads_where_a_registry_takes_them(name, image):
    assert image_name(name, "x.ubuntu.amd.Dockerfile") == image
    assert re.fullmatch(r"[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*", image), "the OCI distribution specification's grammar"


PLANNED = {"training.steps": "steps", "training.dtype": "precision", "MBS": "micro_batch", "p": "precision"}


@each_row(
    ("args", "named", "hint"),
    [
        ("--training.steps 9", "--training.steps=9, and the plan decides steps", "--set steps=9 instead"),
        ("--lr 1 --training.steps=9", "--training.steps=9,", "--set steps=9 instead"),
        ("++training.steps=9", "++training.steps=9,", "--set steps=9 instead"),
        ("--training.dtype=float32", "decides precision:", "--set precision=… instead"),
        ("MBS=4 -p TF32", "MBS=4, -p=TF32, and", "--set micro_batch=4 --set precision=… instead"),
        ("--training.steps", "set --training.steps, and", "--set steps=… instead"),
        ("'--training.steps' '9'", "--training.steps=9,", "--set steps=9 instead"),
    ],
)
def test_args_that_set_what_the_plan_decides_are_refused(given, args, named, hint):
    spec = rendered_draft(planned_options=PLANNED)
    with pytest.raises(UsageProblem) as caught:
        make_plan(given(spec=spec, args=args))
    assert caught.value.message.startswith("card 'tiny': args set ") and named in caught.value.message
    assert caught.value.hint == hint


@each_row("args", ["", "--lr 9 training.steps", "--training.steps_more 9", "MBSX=4 mbs=4", "'open"])
def test_other_args_reach_the_run(given, args):
    assert make_plan(given(spec=rendered_draft(planned_options=PLANNED), args=args)).run_args == args


def test_the_args_of_a_card_s_own_script_are_never_refused_and_travel_as_they_are(given, tmp_path):
    own = card(tmp_path, scripts="run.sh", args="--training.steps 9")
    assert make_plan(given(card=own, spec=rendered_draft(planned_options=PLANNED))).args == "--training.steps 9"
    script = rendered_draft(templates=(), actions=(Action(kind="run", argv=("bash", "-c", "x {args}")),))
    assert make_plan(given(card=own, spec=script)).actions[0].argv[2] == "x --training.steps 9"
    # what sets args is named where they are refused
    context = read_context(None, '{"model_args": "--training.steps 9"}')
    with pytest.raises(UsageProblem, match="^--additional-context: args set --training.steps=9"):
        make_plan(given(spec=rendered_draft(planned_options=PLANNED), context=context))
    # shell signs in args do nothing but travel
    args = "--note '$(touch /tmp/x)' {model_dir} `id` ; {encapsulate}"
    draft = rendered_draft(templates=(), actions=(Action(kind="run", argv=("bash", "-c", "x {args}")),))
    plan = make_plan(given(spec=draft, args=args, machine=eight_mi300x()))
    assert plan.actions[0].argv[2] == f"x {args}"
    assert bind_model_dir(plan, "run_directory").actions[0].argv[2] == f"x {args}"
