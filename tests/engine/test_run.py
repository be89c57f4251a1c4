"""Whole runs of MAD cards, on the host and in real containers: rows, logs, exit codes, and nothing left."""

from __future__ import annotations

import re
import stat
import subprocess

import pytest

from tests.engine.checkout import IN_CONTAINERS, Checkout

GOOD = 'echo "performance: 12.5 tokens_per_second"\n'
COLUMNS_29 = (
    "model,n_gpus,nnodes,gpus_per_node,training_precision,pipeline,args,tags,docker_file,base_docker,docker_sha,"
    "docker_image,git_commit,machine_name,deployment_type,launcher,gpu_architecture,performance,metric,relative_change,"
    "status,build_duration,test_duration,dataname,data_provider_type,data_size,data_download_duration,build_number,"
    "additional_docker_run_options"
)


def test_a_success(checkout: Checkout):
    checkout.card("good", 'echo "args: $*"; pwd; ls ..\n' + GOOD, args="--base 1", training_precision="bf16")
    done = checkout.run("--tags", "good:foo=3:bar")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (checkout.folder / "perf.csv").read_text().splitlines()[0] == COLUMNS_29
    (row,) = checkout.rows
    expected = {
        "model": "good",
        "n_gpus": "0",
        "training_precision": "bf16",
        "args": "--base 1 --foo 3 --bar",
        "tags": "t",
        "gpu_architecture": "cpu",
        "performance": "12.5",
        "metric": "tokens_per_second",
        "status": "SUCCESS",
        "deployment_type": "local",
        "build_number": "0",
    }
    assert {name: row[name] for name in expected} == expected
    assert 0 < float(row["test_duration"]) < 240
    (log,) = checkout.folder.glob("madlite_runs/*/run.log")
    assert "args: --base 1 --foo 3 --bar" in log.read_text()
    assert "run_directory" in log.read_text()
    base = "good_base" if checkout.runtime == "docker" else "good_host"
    legacy, of_run = checkout.folder / f"{base}.live.log", checkout.folder / f"{base}.run.live.log"
    assert "args: --base 1" in legacy.read_text() and (checkout.runtime == "docker") != legacy.samefile(of_run)
    assert "args: --base 1" in of_run.read_text() and "ARG BASE_DOCKER" not in of_run.read_text()
    assert not (checkout.folder / "run_directory").exists()
    if checkout.runtime == "docker":  # whose base image comes from no registry
        assert row["docker_image"] == "ci-good_base" and row["base_docker"] == "madlite-test/base:latest"
        assert re.fullmatch(r"sha256:[0-9a-f]{64}", row["docker_sha"]) and float(row["build_duration"]) > 0
        assert "the base image was not refreshed" in done.stdout
    checkout.assert_nothing_left()


@IN_CONTAINERS
def test_an_image_of_the_context_is_named_as_mad_names_it(checkout: Checkout):
    checkout.card("good", GOOD)
    done = checkout.run("--tags", "good", "-c", '{"MAD_CONTAINER_IMAGE": "madlite-test/base:latest"}')
    assert done.returncode == 0, done.stdout
    (row,) = checkout.rows
    on_docker = checkout.runtime == "docker"
    assert row["docker_file"] == ("N/A (local image mode)" if on_docker else "")
    assert row["docker_image"] == ("madlite-test/base:latest" if on_docker else "") and row["build_duration"] == ""


def test_a_failing_script_has_a_blank_row_and_a_reason(on_host: Checkout):
    on_host.card("bad", GOOD + "echo 'ValueError: no such flavor' >&2; exit 3\n")
    done = on_host.run("--tags", "bad")
    assert done.returncode == 3
    (row,) = on_host.rows
    assert (row["status"], row["performance"], row["metric"]) == ("FAILURE", "", "")
    assert "exit code 3" in done.stdout and "ValueError: no such flavor" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    on_host.assert_nothing_left()


def test_exit_0_without_a_result_is_a_failure(on_host: Checkout):
    for name, script in (
        ("none", "true"),
        ("nan", 'echo "performance: nan tok/s"'),
        ("zero", 'echo "performance: 0 tok/s"'),
    ):
        on_host.card(name, f"{script}\n")
    assert on_host.run("--tags", "none,nan,zero").returncode == 3
    assert [(row["status"], row["performance"]) for row in on_host.rows] == [("FAILURE", "")] * 3
    causes = {record["card"]: record["cause"] for record in on_host.records()}
    assert causes == {"none": "no_metric", "nan": "bad_number", "zero": "bad_number"}


def test_multiple_results(on_host: Checkout):
    csv = "model,performance,metric,tp\\na,10.5,tokens/s,8\\nb,,tokens/s,4\\n"
    on_host.card("multi", f"printf '{csv}' > r.csv\n", multiple_results="r.csv")
    done = on_host.run("--tags", "multi")
    assert done.returncode == 0
    assert [(row["model"], row["performance"], row["status"], row["tp"]) for row in on_host.rows] == [
        ("multi_a", "10.5", "SUCCESS", "8"),
        ("multi_b", "", "FAILURE", "4"),
    ]
    assert (on_host.folder / "r.csv").is_file()


def test_a_left_over_results_file_is_not_a_result(on_host: Checkout):
    on_host.card("stale", "true\n", multiple_results="r.csv")
    (on_host.folder / "r.csv").write_text("model,performance,metric\nold,99,tokens/s\n")
    assert on_host.run("--tags", "stale").returncode == 3
    (row,) = on_host.rows
    assert (row["model"], row["status"], row["performance"]) == ("stale", "FAILURE", "")


def test_rows_that_an_earlier_run_left_in_the_results_file_are_not_taken_again(on_host: Checkout):
    script = "[ -f ../r.csv ] || echo model,performance,metric > ../r.csv\necho m,$RANDOM.5,tokens/s >> ../r.csv\n"
    on_host.card("more", script, multiple_results="r.csv")
    assert [on_host.run("--tags", "more").returncode for _ in range(2)] == [0, 0]
    written = [line.split(",")[1] for line in (on_host.folder / "r.csv").read_text().splitlines()[1:]]
    assert [row["performance"] for row in on_host.rows] == written


def test_a_result_that_an_earlier_run_left_in_the_script_s_log_is_not_taken_again(on_host: Checkout):
    speed = '"performance: $(( 100 * $(wc -l < ../count) )) tok/s"'
    on_host.card("log", f"echo x >> ../count\necho {speed} >> ../train.log\ncat ../train.log\n")
    for count in (1, 2, 3):
        assert on_host.run("--tags", "log").returncode == 0
        assert [row["performance"] for row in on_host.rows] == [str(100 * n) for n in range(1, count + 1)]


def test_a_time_out(on_host: Checkout):
    script = "trap 'echo got INT; exit 9' INT\necho begun\nwhile :; do sleep 0.05; done\n"
    on_host.card("slow", script, timeout=5)  # a busy machine takes seconds to begin
    done = on_host.run("--tags", "slow")
    assert done.returncode == 3
    (row,) = on_host.rows
    assert row["status"] == "FAILURE" and row["performance"] == ""
    assert "timed out after 5 s" in done.stdout
    assert "got INT" in on_host.wait_for("begun").read_text()
    on_host.assert_nothing_left()


def test_a_stubborn_workload_is_killed(on_host: Checkout):
    script = "trap '' INT TERM\n(trap '' INT TERM; exec setsid sleep 300) &\necho begun\nsleep 300\nsleep 300\n"
    on_host.card("stubborn", script, timeout=2)
    done = on_host.run("--tags", "stubborn", "--set", "stop_grace_s=0.5")
    assert done.returncode == 3 and "timed out" in done.stdout
    on_host.assert_nothing_left()


def test_skip_model_run_keeps_everything_but_the_row(on_host: Checkout):
    on_host.card("good", "touch ../ran\n" + GOOD)
    assert on_host.run("--tags", "good", "--skip-model-run").returncode == 0
    assert not (on_host.folder / "perf.csv").exists() and not (on_host.folder / "ran").exists()
    on_host.assert_nothing_left()


@pytest.mark.parametrize("checkout", [pytest.param("docker", marks=pytest.mark.engine)], indirect=True)
def test_a_kept_container_of_contract_1_has_that_name_and_the_told_command_opens_a_shell_in_it(checkout: Checkout):
    checkout.name_dockerfile("kept")
    checkout.card("good", "touch made\n" + GOOD)
    done = checkout.run("--tags", "good", "--keep-alive", "--contract", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    try:
        assert checkout.left_containers() == ["container_good_kept"]
        (told,) = re.findall(r"docker exec -it (\w+) bash", done.stdout)
        inside = ["docker", "exec", told, "ls", "/myworkspace/run_directory"]
        assert "made" in subprocess.run(inside, env=checkout.env, capture_output=True, text=True).stdout
        options = re.search(r"^Docker options: .*", done.stdout, re.MULTILINE)
        assert options and "--network host -u root" in options[0] and "--env MAD_MODEL_NAME=good" in options[0]
        assert done.stdout.endswith("All models ran successfully.\n")
    finally:
        assert checkout.madlite("clean", "--kept", "--yes").returncode == 0
    checkout.assert_nothing_left()


@IN_CONTAINERS
def test_keep_model_dir(checkout: Checkout):
    checkout.card("good", "touch made\n" + GOOD)
    assert checkout.run("--tags", "good", "--keep-model-dir").returncode == 0
    assert (checkout.folder / "run_directory/made").exists()


def test_several_cards_and_an_old_header(on_host: Checkout):
    on_host.card("a", GOOD)
    on_host.card("b", "exit 1\n")
    on_host.card("c", GOOD)
    header = "model, n_gpus, performance, metric, status, mine"
    (on_host.folder / "perf.csv").write_text(header + "\nold,0012,1.5e+03,x,SUCCESS,None\n")
    done = on_host.run("--tags", "a", "b", "c")
    assert done.returncode == 3
    lines = (on_host.folder / "perf.csv").read_text().splitlines()
    assert lines[:2] == [header, "old,0012,1.5e+03,x,SUCCESS,None"]
    assert [line.split(",")[0] for line in lines[2:]] == ["a", "b", "c"]
    assert "2 SUCCESS, 1 FAILURE" in done.stdout


def test_a_missing_script_is_a_row(on_host: Checkout):
    on_host.card("gone", GOOD)
    (on_host.folder / "scripts/gone/run.sh").unlink()
    done = on_host.run("--tags", "gone")
    assert done.returncode == 3 and on_host.rows[0]["status"] == "FAILURE"
    assert "scripts/gone/run.sh" in done.stdout + done.stderr


def test_tokens_are_seen_by_the_workload_and_by_nobody_else(checkout: Checkout):
    token, other = "hf_AbCdEf0123456789", "tok-98765-zyx"
    (checkout.folder / "credential.json").write_text(f'{{"MINI": {{"user": "u1", "token": "{other}"}}}}')
    script = (
        '[ "${#MAD_SECRETS_HFTOKEN}" = 19 ] && [ "${#MINI_TOKEN}" = 13 ] || exit 7\n'
        'echo "token $MAD_SECRETS_HFTOKEN in a line"\n'
        'printf "hf_AbCd"; sleep 0.3; printf "Ef0123456789 split\\n"\n'
        'echo "$MINI_TOKEN" >&2\necho "{\\"t\\": \\"$HF_TOKEN\\"}"\n' + GOOD
    )
    checkout.card("secret", script, cred="MINI")
    done = checkout.run("--tags", "secret", "--live-output", env={"MAD_SECRETS_HFTOKEN": token, "HF_TOKEN": token})
    assert done.returncode == 0, done.stdout + done.stderr
    assert "token *** in a line" in done.stdout and "*** split" in done.stdout
    credential = checkout.folder / "credential.json"
    files = [path for path in checkout.folder.rglob("*") if path.is_file() and path != credential]
    for text in [done.stdout, done.stderr, *(path.read_text(errors="replace") for path in files)]:
        assert token not in text and other not in text
    for command in ("explain", "run --dry-run --runtime " + checkout.runtime):
        shown = checkout.madlite(*command.split(), "--tags", "secret")
        assert other not in shown.stdout + shown.stderr and shown.returncode == 0


def test_noise_and_hundreds_of_thousands_of_lines_are_kept_byte_for_byte(on_host: Checkout):
    noise = bytes(range(256)) * 200
    on_host.card("loud", "cat noise\necho\nseq 300000\n" + GOOD)
    (on_host.folder / "scripts/loud/noise").write_bytes(noise)
    done = on_host.run("--tags", "loud", "--live-output")
    assert done.returncode == 0 and on_host.rows[0]["status"] == "SUCCESS", done.stderr
    (log,) = on_host.folder.glob("madlite_runs/*/run.log")
    _, found, after = log.read_bytes().partition(noise)
    assert found and [line for line in after.splitlines() if line.isdigit()] == [b"%d" % n for n in range(1, 300_001)]


def test_a_dry_run_touches_nothing_and_shows_everything(on_host: Checkout):
    on_host.card("good", GOOD)
    before = sorted(on_host.folder.rglob("*"))
    done = on_host.run("--tags", "good", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "run.sh" in done.stdout and "MAD_MODEL_NAME" in done.stdout
    assert sorted(on_host.folder.rglob("*")) == before


@IN_CONTAINERS
def test_a_script_is_run_as_it_is_with_its_permissions_and_neighbours(checkout: Checkout):
    checkout.card("whole", "./helper && source part.inc\n")
    helper = checkout.folder / "scripts/whole/helper"
    helper.write_text("#!/bin/bash\necho helped\n")
    helper.chmod(helper.stat().st_mode | stat.S_IXUSR)
    (checkout.folder / "scripts/whole/part.inc").write_text(GOOD)
    assert checkout.run("--tags", "whole").returncode == 0
    assert "helped" in checkout.wait_for("performance").read_text()


@IN_CONTAINERS
def test_a_clone_is_recorded_with_its_commit(checkout: Checkout):
    repo = checkout.folder / "upstream" / "toy.git"
    repo.mkdir(parents=True)
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@example.com", "-C", str(repo)]
    subprocess.run([*git, "init", "-q"], check=True)
    (repo / "data.txt").write_text("5\n")
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-qm", "x"], check=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()
    where = "/myworkspace" if checkout.runtime == "docker" else str(checkout.folder)
    checkout.card("cloned", 'echo "performance: $(cat data.txt) x"\n', url=f"file://{where}/upstream/toy.git")
    done = checkout.run("--tags", "cloned")
    assert done.returncode == 0, done.stdout
    assert checkout.rows[0]["git_commit"] == commit and checkout.rows[0]["performance"] == "5"
    assert not (checkout.folder / "toy").exists()


def test_the_folder_of_the_results_file_is_made(on_host: Checkout):
    on_host.card("good", GOOD)
    done = on_host.run("--tags", "good", "-o", "res/deep/out.csv", "--dry-run")
    assert done.returncode == 0 and not (on_host.folder / "res").exists()
    done = on_host.run("--tags", "good", "-o", "res/deep/out.csv")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "good" in (on_host.folder / "res/deep/out.csv").read_text()


def test_a_perf_csv_that_cannot_be_used_is_found_out_before_anything_runs(on_host: Checkout):
    on_host.card("good", "touch ../ran\n" + GOOD)
    (on_host.folder / "folder.perf.csv").mkdir()
    (on_host.folder / "out").write_text("a file")
    foreign = on_host.folder / "foreign.perf.csv"
    foreign.write_text("date,amount\n2026-01-01,5\n")
    for name in ("folder.perf.csv", "out/perf.csv", "foreign.perf.csv"):
        done = on_host.run("--tags", "good", "-o", name)
        assert done.returncode == 4 and done.stderr.startswith("error: ") and "perf.csv" in done.stderr
        assert not (on_host.folder / "ran").exists() and "Traceback" not in done.stderr
    assert foreign.read_text() == "date,amount\n2026-01-01,5\n"


def test_a_row_that_cannot_be_appended_is_kept(on_host: Checkout):
    """The script replaces perf.csv by a folder while the run goes on."""
    on_host.card("good", "mkdir ../perf.csv\n" + GOOD)
    done = on_host.run("--tags", "good")
    assert done.returncode == 3
    (kept,) = on_host.folder.glob("madlite_runs/*/result.json")
    assert "12.5" in kept.read_text() and f"saved in madlite_runs/{kept.parent.name}" in done.stdout


def test_a_template_with_an_unknown_variable(on_host: Checkout):
    folder = on_host.folder / "templates" / "hf"
    folder.mkdir(parents=True)
    (folder / "run.sh.j2").write_text("#!/bin/bash\n{{ variant.stepz }}\n")
    done = on_host.madlite("run", "--runtime", "host", "--tags", "demo_hf_lora_tiny")
    assert done.returncode == 3 and "stepz" in done.stdout and "line 2" in done.stdout
    assert "Traceback" not in done.stderr
