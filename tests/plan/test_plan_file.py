"""Plan files: what is written is read again the same, secrets as names, and a bad field is named by its place."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from madlite.errors import UsageProblem
from madlite.model import Action, Image, Login, Secret
from madlite.plan.plan_file import (
    VERSION,
    PlannedFile,
    SavedPlan,
    is_plan_file,
    name_secrets,
    plan_text,
    read_plan_file,
    secret_sources,
    secrets_in,
)
from tests.factories import make_plan
from tests.rows import each_row

TOKEN, PASSWORD = "hf_abcdefghijkl", "pass word"  # noqa: S105
ENVIRON = {"MY_TOKEN": TOKEN, "LANG": "C"}
CREDENTIALS = {"GIT": {"username": "me", "password": PASSWORD}}


@pytest.fixture
def plan(tmp_path):
    login = Login(host="", username="me", password=Secret("docker hub"))
    return make_plan(
        tmp_path,
        env={"HF_TOKEN": Secret(TOKEN), "X": "1", "EMPTY": Secret("")},
        image=Image(ref="image", build_args={"ARG": Secret("own text")}, login=login),
        actions=(Action(kind="clone", argv=("git",), env={"MADLITE_GIT_PASSWORD": Secret(PASSWORD)}),),
    )


@pytest.fixture
def file(tmp_path, plan):
    names = name_secrets(plan, secret_sources(ENVIRON, CREDENTIALS, {}))
    files = (PlannedFile.of("run.sh", tmp_path, b"echo \xc3\xa4\n"), PlannedFile.of("bin", tmp_path, b"\xff\0"))
    path = tmp_path / "plan.json"
    path.write_text(plan_text(SavedPlan(version=VERSION, plan=plan, files=files), names, KNOWN))
    return path


KNOWN = {**ENVIRON, "GIT_PASSWORD": PASSWORD, "MAD_DOCKERHUB_PASSWORD": "docker hub", "ARG": "own text"}


def test_a_plan_is_read_as_it_was_written_and_its_file_has_no_secret(file, plan):
    text = file.read_text()
    assert not [one for one in (TOKEN, PASSWORD, "docker hub", "own text") if one in text]
    saved = read_plan_file(file, KNOWN)
    assert saved.plan == plan and [one.content() for one in saved.files] == [b"echo \xc3\xa4\n", b"\xff\0"]
    assert is_plan_file(file)
    # secrets are read by name and may be others than those of planning
    other = read_plan_file(file, {**KNOWN, "MY_TOKEN": "another"}).plan
    assert other.env["HF_TOKEN"] == Secret("another") and other.env["EMPTY"] == Secret("")
    # every secret that is not known is named with its place
    with pytest.raises(UsageProblem) as problem:
        read_plan_file(file, {"GIT_PASSWORD": PASSWORD, "ARG": "x"})
    told = sorted([problem.value.message, *(message for message, _ in problem.value.more)])
    assert len(told) == 2 and "needs the secret MY_TOKEN (plan.env.HF_TOKEN)" in told[1]
    assert "MAD_DOCKERHUB_PASSWORD (plan.image.login.password)" in told[0] and problem.value.hint.startswith("export ")


def test_names_are_those_that_the_environment_and_credential_json_know(plan):
    known = secret_sources(ENVIRON, CREDENTIALS, {"NAS_NODES": ({"PASSWORD": "a"}, {"PASSWORD": "b"})})
    assert (known["GIT_PASSWORD"], known["NAS_NODES_PASSWORD"], known["NAS_NODES_2_PASSWORD"]) == (PASSWORD, "a", "b")
    names = name_secrets(plan, known)
    assert [names[one.secret.reveal()] for one in secrets_in(plan)] == [
        *("MY_TOKEN", "", "ARG", "GIT_PASSWORD", "MAD_DOCKERHUB_PASSWORD")
    ]
    fetch = Action(
        kind="data", argv=("aws",), env={"AWS_ACCESS_KEY_ID": Secret("me"), "AWS_SECRET_ACCESS_KEY": Secret("k")}
    )
    of_service = name_secrets(
        replace(plan, actions=(fetch,)), secret_sources({}, None, {"MAD_MINIO": ({"USERNAME": "me", "PASSWORD": "k"},)})
    )
    assert (of_service["me"], of_service["k"]) == ("MAD_MINIO_USERNAME", "MAD_MINIO_PASSWORD")
    taken = name_secrets(plan, {"HF_TOKEN": "of another", "ARG": "also"})
    assert taken[TOKEN] == "MADLITE_SECRET_HF_TOKEN" and taken["own text"] == "MADLITE_SECRET_ARG"


@each_row(
    ("change", "said"),
    [
        ({"plan": {"silence": 3}}, "key 'plan.silence' is unknown"),
        ({"plan": {"silence_s": "soon"}}, "key 'plan.silence_s' is wrong: expected `float`, got `str`"),
        ({"plan": {"env": {"X": 3}}}, "key 'plan.env.X' is wrong"),
        ({"plan": {"card": {"root": 3}}}, "key 'plan.card.root' is wrong: expected `Path`"),
        ({"plan": {"image": {"login": {"password": "open"}}}}, "key 'plan.image.login.password' is wrong"),
        ({"plan": {"id": "../x"}}, "key 'plan.id' is wrong"),
        ({"plan": {"id": "a\n"}}, "key 'plan.id' is wrong: 'a\\n' is no id of a run"),
        ({"plan": {"log_name": "../x"}}, "key 'plan.log_name' is wrong: '../x' is no name of a file"),
        ({"plan": {"log_name": ".."}}, "key 'plan.log_name' is wrong: '..' is no name of a file"),
        ({"plan": {"model_dir": "/home"}}, "key 'plan.model_dir' is wrong: '/home' is no name of a file"),
        ({"plan": {"batch": "a/b"}}, "key 'plan.batch' is wrong: 'a/b' is no name of a file"),
        ({"plan": {"study": {"id": "../x", "kind": "sweep"}}}, "key 'plan.study.id' is wrong: '../x' is no name"),
        ({"plan": {"result_rule": {"file": "a/../../x"}}}, "'plan.result_rule.file' is wrong: 'a/../../x' is no path"),
        ({"plan": {"outputs": ["*", "/etc/*"]}}, "key 'plan.outputs[1]' is wrong: '/etc/*' is no path"),
        ({"plan": {"templates": [{"path": "..", "template": "x"}]}}, "key 'plan.templates[0].path' is wrong: '..' is"),
        ({"files": [{"path": "a/..", "template": "b", "data": ""}]}, "key 'files[0].path' is wrong: 'a/..' is no path"),
        ({"inputs": {"a/b": "", "../../etc/passwd": ""}}, "key 'inputs' is wrong: '../../etc/passwd' is no path below"),
        ({"plan": {"folder": "/etc"}}, "key 'plan.folder' is wrong: /etc is not "),
        ({"version": 3, "madlite": "9.9"}, "is of version 3, of a newer madlite (9.9); this one reads version 2"),
        ({"version": "one"}, "is no plan of madlite"),
        ({"files": [{"path": "a", "template": "b", "data": "!", "encoding": "base64"}]}, "is no base64"),
        ({"pipelines": ""}, "key 'pipelines' is unknown"),
    ],
)
def test_a_wrong_field_is_one_sentence_with_its_place(file, change, said):
    def merged(under, over):
        both = isinstance(under, dict) and isinstance(over, dict)
        return {**under, **{key: merged(under.get(key), value) for key, value in over.items()}} if both else over

    changed = file.with_name("changed.json")
    changed.write_text(json.dumps(merged(json.loads(file.read_text()), change)))
    with pytest.raises(UsageProblem) as problem:
        read_plan_file(changed, KNOWN)
    assert said in problem.value.message and str(changed) in problem.value.message and problem.value.hint


@each_row("text", ["", "{", "[]", "{}", '{"version": 2}', '{"version": true, "plan": {}}', "\0", "\xff"])
def test_what_is_no_plan_file_is_told_so(file, text):
    file.write_text(text, encoding="latin-1")
    with pytest.raises(UsageProblem):
        read_plan_file(file, KNOWN)
    assert not is_plan_file(file)


@each_row(
    "change",
    [
        {"args": "--hf_token hf_zzzzzzzz"},
        {"args": f"--name {TOKEN}"},
        {"model_args": "--password=hushhush"},
        {"settings": {"wandb_api_key": "hushhush"}},
        {"actions": (Action(kind="pre", argv=("bash", "pre.sh", "--hf_token hf_zzzzzzzz")),)},
        {"actions": (Action(kind="pre", argv=("bash", "-c", f"login {TOKEN}")),)},
        {"env": {"DB": Secret("hushhush")}, "log_name": "run_hushhush"},
    ],
)
def test_a_secret_that_somebody_typed_into_a_plan_is_refused(tmp_path, change):
    plan = make_plan(tmp_path, **change)
    with pytest.raises(UsageProblem, match="spells out a secret") as problem:
        plan_text(SavedPlan(version=VERSION, plan=plan), {"hushhush": "DB"}, {"HF_TOKEN": TOKEN})
    assert "hush" not in problem.value.message and TOKEN not in problem.value.message


def test_a_secret_in_a_rendered_file_is_refused_and_a_variable_s_name_is_none(tmp_path):
    plan = make_plan(tmp_path, args="--max_tokens 8 --password=$HUSH")
    plan_text(SavedPlan(version=VERSION, plan=plan), {}, {"DB_PASSWORD": "8"})
    files = (PlannedFile.of("run.sh", tmp_path, f"export X={TOKEN}\n".encode()),)
    with pytest.raises(UsageProblem, match=r"files\[0\].data spells out a secret"):
        plan_text(SavedPlan(version=VERSION, plan=plan, files=files), {}, {"HF_TOKEN": TOKEN})
