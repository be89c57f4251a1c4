"""The actions of a run, in MAD's order."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from madlite.catalog.datasets import Provider
from madlite.model import Card, Machine, Request, Secret, to_json
from madlite.plan import container
from madlite.plan.context import read_context
from madlite.plan.inputs import ScriptCall, Toolset
from madlite.plan.make import make_plan
from madlite.plan.plan_file import secrets_in
from madlite_plugins.script import Script
from tests.rows import each_row


@pytest.fixture
def planned(given, tmp_path: Path):
    def make(context: str = "", **changes: object):
        (tmp_path / "scripts/toy").mkdir(parents=True, exist_ok=True)
        (tmp_path / "scripts/toy/run.sh").touch()
        fields = {"args": "--n 3", **changes.pop("card", {})}
        card = Card(name="toy", root=tmp_path, source="a test", scripts="scripts/toy/run.sh", **fields)
        (draft,) = Script().expand(Request(card=card, tag="toy"), Machine())
        return make_plan(given(card=card, spec=draft, context=read_context(None, context), args=card.args, **changes))

    return make


def kinds(plan) -> list[str]:
    return [action.kind for action in plan.actions]


def test_scripts_and_data_have_mads_places(planned) -> None:
    tools = Toolset(
        pre=(ScriptCall(path="scripts/b.sh", args="B 1"), ScriptCall(path="pre/a.sh", bundled=True)),
        post=(ScriptCall(path="scripts/post.sh"),),
        command="echo cmd_B && python3 {tools}/a.py",
    )
    sets = {"wiki": {"minio": Provider(path="b/k")}}
    services = {"MAD_MINIO": ({"USERNAME": "u", "PASSWORD": "hush", "MINIO_ENDPOINT": "http://s"},)}
    plan = planned(
        '{"encapsulate_script": "numactl -N 0"}',
        card={"data": ("wiki",)},
        tools=tools,
        tool_files=("pre/a.sh", "a.py"),
        data_sets=sets,
        services=services,
    )
    assert kinds(plan) == ["prepare", "pre", "pre", "prepare", "data", "run", "post", "clean"]
    fresh, first, second, copy, data, run, post, _ = plan.actions
    assert "mkdir" in fresh.argv[2] and "cp -aL" in copy.argv[2]
    assert first.argv[2].endswith(" B 1") and first.argv[-1] == "/myworkspace/scripts/b.sh"
    tools_folder = f"{plan.folder_inside}/tools"
    assert second.argv[-1] == f"{tools_folder}/pre/a.sh"
    assert run.argv[2] == f"echo cmd_B && python3 {tools_folder}/a.py numactl -N 0 bash run.sh --n 3"
    assert {one.cwd for one in (first, second, run, post)} == {"{model_dir}"}
    assert (first.timeout_s, data.timeout_s) == (600.0, 3600.0)
    assert [file.path for file in plan.templates] == ["tools/pre/a.sh", "tools/a.py"]
    assert Secret("hush") in [item.secret for item in secrets_in(plan)]


def test_a_scripts_args_are_its_own_text_and_without_scripts_and_data_one_preparation_is_enough(planned) -> None:
    plan = planned(tools=Toolset(pre=(ScriptCall(path="s.sh", args="{args} $HOME"),)))
    assert plan.actions[1].argv[2].endswith("{args} $HOME")
    plan = planned()
    assert kinds(plan) == ["prepare", "run", "clean"]
    assert "mkdir" in plan.actions[0].argv[2] and "cp -aL" in plan.actions[0].argv[2]
    # the snapshot of the environment is off unless asked for
    assert "pre" not in kinds(planned())
    plan = planned('{"gen_sys_env_details": true, "rocenv_mode": "full"}', tool_files=("env_snapshot.sh",))
    assert plan.actions[1].argv[-1].endswith("tools/env_snapshot.sh")
    assert plan.actions[1].argv[2].endswith("toy_env full UBUNTU ..")


def test_a_rendered_run_has_its_scripts_in_its_folder(given) -> None:
    tools = Toolset(pre=(ScriptCall(path="a.sh"),), post=(ScriptCall(path="b.sh"),), command="wrap")
    plan = make_plan(given(tools=tools))
    assert kinds(plan) == ["pre", "run", "post"]
    assert plan.actions[0].cwd == plan.actions[1].cwd == "{folder}"
    assert plan.actions[1].argv == ("bash", "-c", "wrap bash run.sh")
    assert make_plan(given()).actions[0].argv == ("bash", "run.sh")


@each_row(
    ("more", "contract", "form"),
    [
        ("", 0, ""),
        ("", 2, " sections"),
        (', "rocenv_format": "sections"', 0, " sections"),
        (', "rocenv_format": "facts"', 1, ""),
    ],
)
def test_the_snapshot_has_madengines_sections_where_they_are_asked_for(planned, given, more, contract, form) -> None:
    options = replace(given().options, contract=contract)
    context = f'{{"gen_sys_env_details": true{more}}}'
    plan = planned(context, tool_files=("env_snapshot.sh",), options=options)
    assert plan.actions[1].argv[2].endswith(f"toy_env lite UBUNTU ..{form}")


def test_a_clone_gets_the_cards_credential_by_its_own_environment(planned, tmp_path: Path) -> None:
    table = {"GIT": {"username": "ada", "password": "hush"}}
    plan = planned(card={"url": "https://git.example/x.git", "cred": "GIT"}, credentials=table)
    clone = plan.actions[1]
    assert clone.kind == "clone" and "hush" not in " ".join(clone.argv)
    assert clone.env["MADLITE_GIT_PASSWORD"] == Secret("hush") and clone.env["GIT_TERMINAL_PROMPT"] == "0"
    assert "MADLITE_GIT_PASSWORD" not in plan.env
    # a clone by ssh gets its key file
    key = tmp_path / "my key"
    key.touch()
    table = {"GIT": {"username": "ada", "ssh_key_file": str(key)}}
    plan = planned(card={"url": "ssh://git.example/x.git", "cred": "GIT"}, credentials=table)
    command = plan.actions[1].env["GIT_SSH_COMMAND"]
    assert "-l ada" in command and f"'{key}'" in command and "StrictHostKeyChecking=no" in command
    assert [(mount.source, mount.read_only) for mount in plan.mounts] == [(str(key), True)]
    # a password is for the host of the cards repository alone
    table = {"GIT": {"username": "ada", "password": "hush"}}
    url = "https://someone@git.example:8443/x.git"
    env = planned(card={"url": url, "cred": "GIT"}, credentials=table).actions[1].env
    assert env["GIT_CONFIG_KEY_1"] == "credential.https://git.example:8443.helper"


def test_docker_options_of_the_context_come_after_the_cards(planned) -> None:
    context = '{"additional_docker_run_options": "--device=/dev/a"}'
    plan = planned(context, card={"additional_docker_run_options": "--pids-limit 9"})
    assert plan.engine_options.extra == "--pids-limit 9 --device=/dev/a"
    assert plan.origins["engine_options.extra"].endswith("and --additional-context")
    assert planned(context).engine_options.extra == "--device=/dev/a"
    # shared memory of the context replaces the hosts
    plan = planned('{"SHM_SIZE": "64G"}', card={"additional_docker_run_options": "--pids-limit 9"})
    assert plan.engine_options.ipc == "" and plan.engine_options.extra == "--pids-limit 9 --shm-size=64G"
    assert plan.origins["engine_options.extra"].endswith(" and --additional-context")
    assert planned('{"SHM_SIZE": "64 apples"}').origins["engine_options.extra"] == "--additional-context"
    # tools have the last word on variables but for set
    context = '{"docker_env_vars": {"A": "user", "B": "user"}}'
    env = planned(context, tools=Toolset(env={"A": "tool"})).env
    assert (env["A"], env["B"]) == ("tool", "user")


TWO_NODES = '{"multi_node_args": {"NNODES": 2, "NODE_RANK": 1, "MASTER_ADDR": "n0"}}'


def test_one_of_several_nodes_gets_its_network_cards(planned, tmp_path: Path, monkeypatch) -> None:
    cards = tmp_path / "infiniband"
    cards.mkdir()
    monkeypatch.setattr(container, "RDMA", cards)
    plan = planned(TWO_NODES, card={"n_gpus": "8"})
    assert plan.devices[-1] == str(cards) and plan.engine_options.cap_add[-1] == "IPC_LOCK"
    assert plan.engine_options.ulimits == ("memlock=-1",) and not any(str(cards) in note for note in plan.notes)
    assert str(cards) not in planned(card={"n_gpus": "8"}).devices, "one node alone"
    own = f"--device={cards} --ulimit memlock=64"
    plan = planned(TWO_NODES, card={"n_gpus": "8", "additional_docker_run_options": own})
    assert str(cards) not in plan.devices and plan.engine_options.ulimits == (), "the card's own count"


def test_one_of_several_nodes_without_network_cards_is_told(planned, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(container, "RDMA", tmp_path / "none")
    plan = planned(TWO_NODES, card={"n_gpus": "8"})
    assert "IPC_LOCK" not in plan.engine_options.cap_add and plan.engine_options.ulimits == ()
    assert plan.notes[-1] == (
        f"one of 2 nodes, and {tmp_path}/none is not here: between nodes RCCL and NCCL use sockets alone"
    )


def test_the_launcher_comes_from_context_card_or_environment(planned) -> None:
    assert (
        planned('{"distributed": {"launcher": "deepspeed"}}', card={"n_gpus": "2"}).env["MAD_MULTI_NODE_RUNNER"]
        == "deepspeed --num_gpus=2"
    )
    # madengine 1s launcher of a node
    context = '{"multi_node_args": {"NNODES": 2, "NODE_RANK": 1, "MASTER_ADDR": "n0", "NCCL_SOCKET_IFNAME": "eth0"}}'
    assert planned(context, card={"n_gpus": "8"}).env["MAD_MULTI_NODE_RUNNER"] == (
        "NCCL_SOCKET_IFNAME=eth0 GLOO_SOCKET_IFNAME= torchrun --nproc_per_node 8 --nnodes 2 --node_rank 1 "
        "--master_addr n0 --master_port 6006"
    )
    context = '{"multi_node_args": {"RUNNER": "mpirun", "NNODES": 2, "HOST_LIST": "a:4,b:4"}}'
    assert planned(context, card={"n_gpus": "4"}).env["MAD_MULTI_NODE_RUNNER"] == "mpirun -np 8 --host a:4,b:4"


def test_who_names_a_launcher_of_serving_is_told_that_nothing_starts_its_servers(planned) -> None:
    def notes(context: dict, of_card: dict) -> str:
        card = {"extra": {"distributed": of_card}}
        return " ".join(planned(to_json({"distributed": context}), card=card).notes)

    assert "launcher 'sglang-disagg' starts no servers" in notes({}, {"launcher": "sglang-disagg"})
    assert "launcher 'vllm_disagg' starts no servers" in notes({"launcher": "vllm_disagg"}, {})
    assert "starts no servers" not in notes({"launcher": "torchrun"}, {"launcher": "sglang-disagg"})
    assert "starts no servers" not in notes({}, {"launcher": "vllm"})


@each_row("user", ["bot", "gl-0123456789abcdefghij"])
def test_the_password_of_a_url_leaves_it_and_reaches_git_alone(planned, user: str) -> None:
    url = f"https://{user}:p%40ss%2Fw\u00f6rd@git.example:8443/org/x.git"
    plan = planned(card={"url": url})
    clone = plan.actions[1]
    assert "https://git.example:8443/org/x.git" in clone.argv and plan.model_dir == "x"
    assert not any("@" in word for action in plan.actions for word in action.argv)
    assert clone.env["MADLITE_GIT_PASSWORD"] == Secret("p@ss/w\u00f6rd")
    assert clone.env["MADLITE_GIT_USERNAME"] == (user if user == "bot" else Secret(user))
    settings = [(clone.env[f"GIT_CONFIG_KEY_{n}"], clone.env[f"GIT_CONFIG_VALUE_{n}"]) for n in range(3)]
    assert clone.env["GIT_CONFIG_COUNT"] == "3" and settings[0] == ("safe.directory", "*")
    assert settings[1] == ("credential.https://git.example:8443.helper", ""), "no other helper is asked before"
    assert "password=" in settings[2][1] and "p@ss" not in to_json(plan.actions)


def test_a_token_for_a_user_is_one_and_a_name_is_none(planned) -> None:
    clone = planned(card={"url": "https://gl0123456789@git.example/x.git"}).actions[1]
    assert clone.env["MADLITE_GIT_USERNAME"] == Secret("gl0123456789") == clone.env["GIT_CONFIG_VALUE_1"]
    clone = planned(card={"url": "https://someone@git.example/x.git"}).actions[1]
    assert (clone.env["GIT_CONFIG_KEY_1"], clone.env["GIT_CONFIG_VALUE_1"]) == (
        "credential.https://git.example.username",
        "someone",
    )
    for url in ("git@git.example:org/x.git", "ssh://git@git.example/x.git", "https://git.example/x@1.git"):
        clone = planned(card={"url": url}).actions[1]
        assert url in clone.argv and clone.env == {}
    # a password of the url comes before the credential
    table = {"GIT": {"username": "ada", "password": "hush"}}
    clone = planned(card={"url": "https://me:own-hush@git.example/x.git", "cred": "GIT"}, credentials=table).actions[1]
    assert (clone.env["MADLITE_GIT_USERNAME"], clone.env["MADLITE_GIT_PASSWORD"]) == ("me", Secret("own-hush"))
    # a url without a path names no folder after its password
    assert "hush" not in planned(card={"url": "https://me:hush@git.example"}).model_dir


def test_a_relative_mount_is_below_the_workspace(planned, tmp_path: Path) -> None:
    (mount,) = planned('{"docker_mounts": {"/x": "dataset"}}').mounts
    assert mount.source == str(tmp_path / "dataset")
