"""`reproduce`: the same run again, with all pinned that can be, and what cannot be in words."""

from __future__ import annotations

import hashlib
import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from madlite.backends.loader import Plugins, load_plugins
from madlite.cli.main import call, main
from madlite.cli.plan import explain as explain
from madlite.cli.planning import planner
from madlite.cli.run import command as run_command
from madlite.cli.setup import make_options
from madlite.cli.show import command_options
from madlite.cli.show import reproduce as command
from madlite.errors import UsageProblem
from madlite.model import ImageUsed, Provenance, Result, Status, Study, Traits, Variant
from madlite.plan.recipe_file import recipe_text
from madlite.reports.reproduce import CommandOptions, reproduce
from madlite.run.state import context_file
from madlite.secrets import Redactor
from madlite.store.folder import CONTEXT, RECORD, RunStart
from madlite.store.record import make_record, record_json
from tests.cli.stored_runs import good, store
from tests.factories import HOST, make_plan
from tests.rows import each_row


@pytest.fixture(scope="module")
def plugins() -> Plugins:
    return load_plugins(only_built_in=True)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def plans(plugins: Plugins, *words: str):
    given = dict(explain.make_context("explain", [*words, "--machine", "8xMI300X"]).params)
    options = make_options(given)
    return [one.plan for one in planner(plugins, options, given)(options)]


def command_of(plan, *words: str, **changes: object) -> list[str]:
    record = make_record(plan, Result(plan_id=plan.id, status=Status.SUCCESS, **changes), None)
    return list(reproduce(record, command_options(("run", *words)), {}, Path("nowhere")).words)


@each_row(
    "words",
    [
        ["--tags", "pyt_train_llama-3.1-8b"],
        ["--tags", "pyt_train_llama-3.1-8b", "--precision", "FP8", "--steps", "7", "--set", "env.NCCL_DEBUG=INFO"],
        ["--tags", "primus_pyt_train_llama-3.1-8b:seq_len=4096", "--timeout", "0", "--set", "stop_grace_s=3"],
        ["--tags", "demo_hf_lora_tiny", "--runtime", "host", "--batch-size", "3"],
    ],
)
def test_every_run_of_a_tag_comes_back_as_it_was(plugins, words):
    found = plans(plugins, *words)
    assert found
    for plan in found:
        (again,) = plans(plugins, *command_of(plan, *words)[1:])
        for field in ("variant", "settings", "env", "backend", "runtime", "timeout_s", "stop_grace_s", "image"):
            assert getattr(again, field) == getattr(plan, field), field


def test_another_version_is_given_every_value_of_the_recipe(plugins):
    (plan,) = plans(plugins, "--tags", "demo_hf_lora_tiny")
    record = make_record(plan, Result(plan_id="x", status=Status.SUCCESS), None)
    old = reproduce(replace(record, madlite="0.0.1"), CommandOptions(), {}, Path("nowhere"))
    assert len(old.words) > len(reproduce(record, CommandOptions(), {}, Path("nowhere")).words)
    assert any("madlite 0.0.1, this is" in note for note in old.notes)
    (again,) = plans(plugins, *old.words[1:])
    assert again.variant == plan.variant and again.settings == plan.settings


@each_row(
    ("image", "word", "notes"),
    [
        (ImageUsed(ref="a/b:1", pinned="a/b@sha256:1", id="sha256:9"), "a/b@sha256:1", []),
        (ImageUsed(ref="ci-x", id="sha256:9", base_digest="sha256:7"), "sha256:9", ["no registry", "base sha256:7"]),
        (ImageUsed(ref="ci-x", id="sha256:9"), "sha256:9", ["no registry", "base of unknown digest"]),
        (ImageUsed(ref="a/b:1"), "", ["a/b:1 has no known digest"]),
        (ImageUsed(), "", ["came to none"]),
    ],
)
def test_an_image_is_pinned_by_its_digest_or_it_is_said_why_not(tmp_path, image, word, notes):
    plan = make_plan(tmp_path)
    record = make_record(plan, Result(plan_id="x", status=Status.SUCCESS, image=image), None)
    found = reproduce(record, CommandOptions(), {}, Path("nowhere"))
    words = dict(zip(found.words, found.words[1:], strict=False))
    assert words.get("--image", "") == word
    assert len(found.notes) == len(notes) and all(part in said for part, said in zip(notes, found.notes, strict=True))


def test_args_of_a_script_its_repository_context_and_secrets(tmp_path):
    plan = make_plan(
        tmp_path, args="--a 1 --t 5", overrides=(("t", "5"), ("flag", None)), runtime="host", traits=HOST, timeout_s=1.5
    )
    plan = replace(plan, card=replace(plan.card, url="https://example.org/r"))
    (plan.folder / CONTEXT).write_text("{}")
    outcome = Result(plan_id="x", status=Status.SUCCESS, git_commit="abc")
    record = make_record(plan, outcome, None, RunStart(left_out=("docker_env_vars.HF_TOKEN",)))
    kept = CommandOptions(
        words=("--strict-header",), sets=(("env.T", "***"), ("image", "x"), ("n_gpus", "2"), ("unknown", "1"))
    )
    found = reproduce(record, kept, {}, plan.folder)
    assert found.words == (
        *("run", "--tags", "tiny:t=5:flag", "--backend", "script", "--runtime", "host", "--set", "timeout_s=1.5"),
        *("--set", "env.T=***", "--set", "n_gpus=2", "--additional-context-file"),
        *(f"madlite_runs/{plan.id}/context.json", "--additional-context", json.dumps({"model_args": "--a 1 --t 5"})),
        "--strict-header",
    )
    said = " ".join(found.notes)
    assert "at commit abc" in said and "docker_env_vars.HF_TOKEN" in said and "env.T=***" in said


def test_a_script_that_changed_is_told(tmp_path):
    (tmp_path / "run.sh").write_text("echo 1\n")
    then = Provenance(script="run.sh", script_sha256=hashlib.sha256(b"echo 1\n").hexdigest())
    record = make_record(
        make_plan(tmp_path, runtime="host", traits=HOST), Result(plan_id="x", status=Status.SUCCESS), None
    )
    record = replace(record, provenance=then)

    def said() -> list[str]:
        return [
            note
            for note in reproduce(record, CommandOptions(), {}, tmp_path / "madlite_runs/x").notes
            if "run.sh" in note
        ]

    assert said() == []
    (tmp_path / "run.sh").write_text("echo 2\n")
    assert said() == ["run.sh has changed since: another script would run"]
    (tmp_path / "run.sh").unlink()
    assert said() == ["run.sh is not there any more: another script would run"]


def test_the_args_of_a_rendered_run_are_pinned(tmp_path):
    plan = make_plan(tmp_path, args="--mode ok", settings={"lr": 0.1}, runtime="host", traits=HOST)
    words = reproduce(
        make_record(plan, Result(plan_id="x", status=Status.SUCCESS), None), CommandOptions(), {}, tmp_path
    ).words
    assert words[-2:] == ("--additional-context", json.dumps({"model_args": "--mode ok"}))


def test_what_of_the_environment_differs_is_told(tmp_path):
    then = {"A": "1", "B": "2", "SAME": "x", "S": "***", "URL": "http://***@h", "LONG": "y" * 500}
    then |= {"PYTORCH_ALLOC_CONF": "p", "MAD_GPU_VENDOR": "AMD", "IN_CONTEXT": "c", "SET": "s"}
    origins = {"env.PYTORCH_ALLOC_CONF": "recipe", "env.MAD_GPU_VENDOR": "madlite", "env.SET": "--set"}
    origins |= {"env.IN_CONTEXT": "--additional-context", "env.B": "environment"}
    outcome = Result(plan_id="x", status=Status.SUCCESS, provenance=Provenance(environment=then))

    def notes(traits: Traits) -> list[str]:
        record = make_record(make_plan(tmp_path, traits=traits, origins=origins), outcome, None)
        now = {"B": "3", "SAME": "x", "LONG": "y" * 600}
        return [note for note in reproduce(record, CommandOptions(), now, tmp_path).notes if "environment" in note]

    changed = "environment: B was '2', and is '3' now"
    assert notes(HOST) == ["environment: A was '1', and is not set now", changed]
    assert notes(Traits()) == [changed], "a container has of the caller's environment what the plan passes on"


def test_of_the_own_command_line_only_what_goes_on_is_kept():
    words = "run --tag a,b --live -o x.csv --strict-header --data-config d.json --set a=b=c".split()
    kept = command_options(
        (*words, "--steps", "3", "--no-sys-env-details", "--cards-from", "A", "--cards-from", "B", "--no-lint")
    )
    assert kept.sets == (("a", "b=c"),)
    pairs = " ".join(kept.words)
    assert "--ignore-deprecated" not in pairs and "telemetry" not in pairs
    options = "--output x.csv,--strict-header,--data-config d.json,--no-sys-env-details,--cards-from A,--cards-from B"
    for part in (*options.split(","), "--no-lint"):
        assert part in pairs, (part, pairs)
    assert not command_options(("run", "--tags", "a", "--parallel", "auto")).words, "one run has nothing beside it"
    assert "generate" not in pairs and "steps" not in pairs and "live" not in pairs and "tags" not in pairs
    assert (
        command_options(())
        == command_options(("explain", "x"))
        == command_options(("run", "--no-such-option"))
        == CommandOptions()
    )


def test_the_command_is_printed_for_the_shell_and_from_elsewhere_with_its_folder(tmp_path, monkeypatch, capsys):
    store(tmp_path, "r1", good("r1"), settings={"x": "a b"}, variant=Variant(model="m", mode="train"))
    assert call(["reproduce", "last"]) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    assert shlex.split(line)[:4] == ["madlite", "run", "--tags", "tiny"] and "x=a b" in shlex.split(line)
    other = tmp_path / "other place"
    other.mkdir()
    monkeypatch.chdir(other)
    assert call(["reproduce", "r1", "--dir", ".."]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("cd .. && madlite run")
    (tmp_path / "madlite_runs/r1/plan.json").unlink()
    (tmp_path / "madlite_runs/r1/record.json").write_text("{")
    assert call(["reproduce", "r1", "--dir", ".."]) == 4


@each_row("value", ["a\nb", "\x1b]0;T\x07", "it's \t\\n", "\u202eab", "x\x011", "plain $HOME `id`"])
def test_what_cannot_be_printed_reaches_bash_as_it_was(tmp_path, monkeypatch, capsys, value):
    monkeypatch.chdir(tmp_path)
    record = store(tmp_path, "r-000001", good("r"))
    words = ("run", "--tags", "tiny", "--set", f"env.X={value}")
    (tmp_path / "madlite_runs/r-000001" / RECORD).write_text(record_json(replace(record, command=words)))
    assert call(["reproduce", "last"]) == 0
    line = capsys.readouterr().out.rstrip("\n").splitlines()[-1]
    assert line.isprintable()
    told = subprocess.run(["bash", "-c", f"madlite() {{ printf '%s\\0' \"$@\"; }}; {line}"], capture_output=True)
    assert f"env.X={value}" in told.stdout.decode().split("\0")


def test_run_does_it_again_in_the_folder_of_the_run(tmp_path, monkeypatch, capsys):
    store(tmp_path, "r1", good("r1"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert call(["reproduce", "last", "--run", "--dir", ".."]) == 4
    said = capsys.readouterr()
    assert "no model matches tag 'tiny'" in said.err and "madlite run --tags tiny" in said.err and said.out == ""
    assert Path.cwd() == tmp_path


def test_a_context_is_kept_without_what_is_secret():
    def mask(text: str) -> str:
        return text.replace("hush", "***")

    values = {
        "docker_env_vars": {"HF_TOKEN": "abcd1234", "A": "x hush", "B": 1},
        "tools": [{"name": "t", "env_vars": {"WANDB_API_KEY": "k3y00000"}}],
        "docker_gpus": "0,1",
        "model_args": "--x",
        "list": ["a", "hush"],
    }
    kept = context_file(values, mask)
    assert kept.values == {"docker_env_vars": {"B": 1}, "docker_gpus": "0,1", "model_args": "--x"}
    assert kept.left_out == ("docker_env_vars.HF_TOKEN", "docker_env_vars.A", "tools", "list")
    assert json.loads(kept.data) == kept.values and context_file({}, mask).data == b""


def test_a_context_is_kept_without_what_is_secret_by_its_shape():
    token = "ghp_" + "aB3" * 12
    values = {
        "docker_env_vars": {"MIRROR": "https://me:p4ssword@host", "CLONE": "git@github.com:a/b", token: "1"},
        "notes": {f"of {token}": {"a": 1}},
        "tools": [{"name": "t", "args": ["-H", "Authorization: Bearer abcd1234"]}],
    }
    kept = context_file(values, Redactor().text)
    assert kept.values == {"docker_env_vars": {"CLONE": "git@github.com:a/b"}, "notes": {}}
    assert kept.left_out == ("docker_env_vars.MIRROR", "docker_env_vars.***", "notes.of ***", "tools")


@each_row("name", ["ignore-deprecated", "telemetry", "sys-env-details"])
@each_row("no", ["", "no-"])
def test_a_switch_comes_back_as_it_was_given(name, no):
    given = run_command.make_context("run", ["--tags", "t", f"--{no}{name}"])
    kept = command_options(("run", "--tags", "t", f"--{no}{name}"))
    assert kept.words == (f"--{no}{name}",)
    again = run_command.make_context("run", ["--tags", "t", *kept.words])
    assert again.params == given.params


@each_row("words", [("--ignore-deprecated-flag",), ("--generate-sys-env-details", "no"), ("--no-lint",)])
def test_a_switch_under_another_name_comes_back_with_its_value(words):
    given = run_command.make_context("run", ["--tags", "t", *words])
    again = run_command.make_context("run", ["--tags", "t", *command_options(("run", "--tags", "t", *words)).words])
    assert again.params == given.params


@pytest.fixture
def with_secrets(tmp_path):
    """A run whose context had secrets that nobody kept, and whose command set one."""
    plan = make_plan(tmp_path, id="r1")
    outcome = good("r1")
    left_out = ("docker_env_vars.HF_TOKEN", "tools")
    words = ("run", "--tags", "tiny", "--set", "env.API_KEY=***")
    record = make_record(plan, outcome, None, RunStart(command=words, left_out=left_out))
    (plan.folder / "record.json").write_text(record_json(record))
    return plan.folder


def test_a_run_whose_secrets_are_not_known_is_not_done_again(with_secrets, monkeypatch, capsys):
    ran = []
    monkeypatch.setattr(main, "main", lambda args, obj, **named: ran.append((args, obj)) or 0)
    for name in ("HF_TOKEN", "API_KEY"):
        monkeypatch.delenv(name, raising=False)
    assert reproduced("r1", "--run") == 4
    said = capsys.readouterr().err
    assert "secrets of run r1 are not known here: docker_env_vars.HF_TOKEN, tools, env.API_KEY=***" in said
    assert "--without-secrets" in said and ran == []
    monkeypatch.setenv("HF_TOKEN", "hf_hush_hush")
    monkeypatch.setenv("API_KEY", "k3y-hush-hush")
    assert reproduced("r1", "--run") == 4, "the tools are still not known"
    assert "not known here: tools\n" in capsys.readouterr().err and ran == []
    assert reproduced("r1", "--run", "--without-secrets") == 0
    ((args, obj),) = ran
    assert args[-4:] == ["--set", "env.HF_TOKEN=hf_hush_hush", "--set", "env.API_KEY=k3y-hush-hush"]
    shown = capsys.readouterr()
    assert "hush" not in " ".join(obj) + shown.out + shown.err, "neither the record nor the screen has them"


def reproduced(*words: str) -> int:
    """Call the command as `madlite` would, but for what it starts then."""
    try:
        return command.main(args=list(words), standalone_mode=False) or 0
    except UsageProblem as problem:
        print(problem.message, problem.hint, sep="\n", file=sys.stderr)
        return 4


def test_a_run_of_a_recipe_file_is_pinned_by_its_values_also_once_the_file_is_gone(plugins: Plugins) -> None:
    values = {"micro_batch": 3, "stop_grace_s": 4, "env.NCCL_DEBUG": "INFO"}
    file = Path("best.toml")
    file.write_text(recipe_text("pyt_train_llama-3.1-8b", "torchtitan", values))
    plan = plans(plugins, "--recipe-file", "best.toml")[0]
    words = command_of(plan, "--recipe-file", "best.toml", "--add-column", "run")
    assert {"micro_batch=3", "stop_grace_s=4", "env.NCCL_DEBUG=INFO"} <= set(words)
    assert "--recipe-file" not in words
    file.unlink()
    words = command_of(plan, "--recipe-file", "best.toml", "--add-column", "run")
    assert "micro_batch=3" in words
    assert "--add-column" in words


def test_a_run_of_a_sweep_is_pinned_by_its_own_values_alone(plugins: Plugins) -> None:
    words = ("--tags", "pyt_train_llama-3.1-8b")
    plan = plans(plugins, *words, "--set", "micro_batch=4", "--set", "stop_grace_s=4")[0]
    study = Study(id="s", kind="sweep", varied={"micro_batch": "4", "stop_grace_s": "4"}, series=2, index=1, count=1)
    swept = ("--sweep", "micro_batch=2,4", "--sweep", "stop_grace_s=1,4", "--zip")
    again = command_of(replace(plan, study=study), *words, *swept)
    assert {"micro_batch=4", "stop_grace_s=4"} <= set(again)
    assert not {"--sweep", "--zip"} & set(again)
