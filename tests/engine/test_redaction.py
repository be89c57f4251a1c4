"""A secret goes to the workload and to nobody else: to no file, to no screen, under no name and in no spelling."""

from __future__ import annotations

import json
from collections.abc import Iterable

import pytest

from tests.engine.checkout import Checkout

GOOD = 'echo "performance: 12.5 tokens_per_second"\n'
TOKEN = "hf_AbCd/Ef+01 23xyz"
HALVES = (TOKEN[:7], TOKEN[7:])
ENGINE = [pytest.param("docker", marks=pytest.mark.engine)]
in_containers = pytest.mark.parametrize("checkout", ENGINE, indirect=True)


def assert_hidden(checkout: Checkout, secrets: Iterable[str], *runs, but: Iterable[str] = ()) -> None:
    """The secrets are in no output of the runs and in no file of the checkout, apart from those named in `but`."""
    texts = {f"{run.args} {name}": getattr(run, name) for run in runs for name in ("stdout", "stderr")}
    for path in checkout.folder.rglob("*"):
        if path.is_file() and path.name not in but:
            texts[str(path)] = path.read_bytes().decode(errors="replace")
    for secret in secrets:
        assert [where for where, text in texts.items() if secret in text] == []


def every_command(checkout: Checkout, *args: str):
    """Run a card in every way that shows its plan, and for real."""
    yield checkout.run(*args, "-v", "--live-output")
    yield checkout.run(*args, "--dry-run", "-v")
    yield checkout.madlite("explain", "--runtime", checkout.runtime, *args, "-v")
    yield checkout.madlite("explain", "--runtime", checkout.runtime, "--all", *args)
    yield checkout.madlite("explain", "--runtime", checkout.runtime, "--json", *args)


def test_a_token_under_another_name_and_in_a_tag(checkout: Checkout):
    checkout.card("shown", 'echo "$OTHER"; echo "$URL"; echo "args: $*"; env\n' + GOOD)
    checkout.env["HF_TOKEN"] = TOKEN
    asked = {"OTHER": TOKEN, "URL": f"https://u:{TOKEN}@h"}
    runs = list(
        every_command(checkout, "--tags", f"shown:token='{TOKEN}'", "-c", json.dumps({"docker_env_vars": asked}))
    )
    assert [run.returncode for run in runs] == [0] * 5, [run.stderr for run in runs]
    assert_hidden(checkout, [TOKEN], *runs)
    assert "args: --token ***" in runs[0].stdout and "https://u:***@h" in runs[0].stdout
    (plan,) = json.loads(runs[4].stdout)
    assert plan["env"]["URL"] == "https://u:***@h" and plan["args"].strip() == "--token '***'"


def test_a_token_that_is_no_text(on_host: Checkout):
    on_host.card("odd", 'printf "%s\\n" "$HF_TOKEN"\n' + GOOD)
    on_host.env["HF_TOKEN"] = "hf_\udcff\udcfehush"
    runs = list(every_command(on_host, "--tags", "odd"))
    assert [run.returncode for run in runs] == [0] * 5, [run.stderr for run in runs]
    assert_hidden(on_host, ["hush"], *runs)


def test_a_number_of_the_environment_is_not_masked_out_of_a_result(on_host: Checkout):
    on_host.card("fast", 'echo "performance: 131072 tok/s"\n')
    done = on_host.run("--tags", "fast", env={"MAX_NUM_BATCHED_TOKENS": "131072", "MAX_TOKEN": "131072"})
    assert done.returncode == 0 and on_host.rows[0]["performance"] == "131072"


def test_a_user_name_is_shown_and_a_password_is_not(on_host: Checkout):
    (on_host.folder / "credential.json").write_text('{"MINI": {"username": "step", "password": "/hush/hush"}}')
    on_host.card("login", 'echo "$MINI_USERNAME 1: $MINI_PASSWORD"\n' + GOOD, cred="MINI")
    runs = list(every_command(on_host, "--tags", "login"))
    assert "step 1: ***" in runs[0].stdout
    assert_hidden(on_host, ["/hush/hush"], *runs, but=["credential.json"])


def test_a_result_that_quotes_a_secret(on_host: Checkout):
    on_host.env["HF_TOKEN"] = TOKEN
    script = 'printf "model,performance,metric,note\\n$HF_TOKEN,5,tok/s,x $HF_TOKEN\\n" > ../r.csv\n'
    on_host.card("quoting", script, multiple_results="r.csv")
    done = on_host.run("--tags", "quoting")
    assert_hidden(on_host, [TOKEN], done, but=["r.csv"])
    assert on_host.rows[0]["model"] == "quoting_***" and on_host.rows[0]["performance"] == "5"


def test_a_failure_that_quotes_a_secret(on_host: Checkout):
    on_host.env["HF_TOKEN"] = TOKEN
    on_host.card("failing", 'echo "ValueError: bad token $HF_TOKEN" >&2\nexit 1\n')
    done = on_host.run("--tags", "failing")
    assert done.returncode == 3 and "bad token ***" in done.stdout
    assert_hidden(on_host, [TOKEN], done)


@in_containers
def test_build_arguments_of_a_build_that_fails(checkout: Checkout):
    """The token comes in two pieces too: a builder passes on what a step wrote so far, not whole lines."""
    (checkout.folder / "docker/base.Dockerfile").write_text(
        "# CONTEXT {'guest_os': 'UBUNTU'}\nARG BASE_DOCKER=madlite-test/base:latest\nFROM $BASE_DOCKER\n"
        "ARG MAD_SECRETS_HF\nARG WANDB_API_KEY\nARG OTHER\n"
        f"RUN printf '{HALVES[0]}'; sleep 0.5; echo '{HALVES[1]}'\n"
        'RUN echo "$MAD_SECRETS_HF $WANDB_API_KEY $OTHER" >&2; exit 9\n'
    )
    checkout.card("unbuilt", GOOD)
    checkout.env["MAD_SECRETS_HF"] = TOKEN
    asked = {"WANDB_API_KEY": "wandb/hush", "OTHER": f"x {TOKEN}"}
    context = json.dumps({"docker_build_arg": asked})
    runs = list(every_command(checkout, "--tags", "unbuilt", "-c", context, "--clean-docker-cache"))
    assert runs[0].returncode == 2 and "last line: *** *** ***" in runs[0].stdout
    assert "urllib3" not in runs[0].stderr
    assert_hidden(checkout, [TOKEN, "wandb/hush"], *runs, but=["base.Dockerfile"])
    (log,) = checkout.folder.glob("madlite_runs/*/run.log")
    assert "\n***\n" in log.read_text(), "the two halves are one line of the log"


@in_containers
def test_secrets_of_docker_options(checkout: Checkout):
    (checkout.folder / "env.list").write_text("DB_PASSWORD=of_the_file\nPLAIN=shown\n")
    options = "--env-file env.list -e WANDB_API_KEY -e AWS_SECRET_ACCESS_KEY=of_the_card"
    script = 'echo "$DB_PASSWORD $WANDB_API_KEY $AWS_SECRET_ACCESS_KEY $PLAIN"\n' + GOOD
    checkout.card("options", script, additional_docker_run_options=options)
    checkout.env["WANDB_API_KEY"] = "of_the_caller"
    runs = list(every_command(checkout, "--tags", "options"))
    assert runs[0].returncode == 0 and "*** *** *** shown" in runs[0].stdout, runs[0].stdout + runs[0].stderr
    secrets = ["of_the_file", "of_the_caller", "of_the_card"]
    assert_hidden(checkout, secrets, *runs, but=["env.list", "models.json"])


def test_a_result_that_holds_the_text_of_a_secret_is_read_as_it_is(on_host: Checkout):
    on_host.card("plain", 'echo "performance: 14164 tok/s"\n', training_precision="bf16")
    secrets = {
        "POSTGRES_PASSWORD": "14164",
        "MAD_SECRETS_A": "SUCCESS",
        "MAD_SECRETS_B": "plain",
        "MAD_SECRETS_C": "bf16",
    }
    done = on_host.run("--tags", "plain", env=secrets)
    (row,) = on_host.rows
    assert done.returncode == 0
    assert [row[name] for name in ("model", "performance", "status", "training_precision")] == [
        "plain",
        "14164",
        "SUCCESS",
        "bf16",
    ]
    assert "14164" not in next(on_host.folder.glob("madlite_runs/*/run.log")).read_text()
