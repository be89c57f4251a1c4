"""What MAD's runs have around the script: data, scripts before and after, credentials, logs, files handed up."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.checkout import IN_CONTAINERS, Checkout
from tests.engine.guarded_repository import Repository, guarded_repository
from tests.engine.own_python import USUAL

# on the host they differ little: make test takes containers alone

LOGS = Path(__file__).parents[1] / "data/logs"
RESULT = 'echo "performance: 5 x"\n'


def write(folder: Path, name: str, text: str) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)


def data_json(checkout: Checkout, table: object) -> None:
    write(checkout.folder, "data.json", json.dumps(table))


@IN_CONTAINERS
def test_local_data(checkout: Checkout) -> None:
    write(checkout.folder, "sets/wiki/n.txt", "77\n")
    data_json(checkout, {"wiki": {"local": {"path": "sets/wiki"}}})
    checkout.card("m", 'touch "$MAD_DATAHOME/own"; echo "performance: $(cat "$MAD_DATAHOME/n.txt") x"\n', data="wiki")
    done = checkout.run("--tags", "m")
    (row,) = checkout.rows
    assert (done.returncode, row["performance"]) == (0, "77"), done.stderr
    names = ("dataname", "data_provider_type", "data_size", "data_download_duration")
    assert [row[name] for name in names] == ["wiki", "local", "", "0"]
    if checkout.runtime == "docker":
        assert not (checkout.folder / "sets/wiki/own").exists(), "it is mounted read-only"


@IN_CONTAINERS
def test_custom_data_is_fetched_before_the_script(checkout: Checkout) -> None:
    write(checkout.folder, "fetch.sh", 'head -c 3000000 /dev/zero > big; echo "$1" > n.txt\n')
    data_json(checkout, {"wiki": {"custom": {"path": "fetch.sh", "args": "42"}}})
    checkout.card("m", 'echo "performance: $(cat "$MAD_DATAHOME/n.txt") x"\n', data="wiki")
    done = checkout.run("--tags", "m")
    (row,) = checkout.rows
    assert (done.returncode, row["performance"]) == (0, "42"), done.stderr
    assert (row["data_provider_type"], row["data_download_duration"]) == ("custom", "0")
    assert row["data_size"] in ("2.9M", "3.0M")
    checkout.assert_nothing_left()


@IN_CONTAINERS
def test_a_fetch_that_fails_is_the_reason(checkout: Checkout) -> None:
    write(checkout.folder, "fetch.sh", "echo no such bucket >&2; exit 7\n")
    data_json(checkout, {"wiki": {"custom": {"path": "fetch.sh"}}})
    checkout.card("m", "echo ran > ../ran\n" + RESULT, data="wiki")
    done = checkout.run("--tags", "m")
    (row,) = checkout.rows
    assert (done.returncode, row["status"], row["performance"]) == (3, "FAILURE", "")
    (record,) = checkout.records()
    assert "'data' failed (exit code 7)" in record["reason"] and record["evidence"] == "no such bucket"
    assert not (checkout.folder / "ran").exists()


def test_a_set_nobody_knows_is_a_row_and_a_missing_folder_is_a_note(on_host: Checkout) -> None:
    data_json(on_host, {"gone": {"local": {"path": "/nowhere"}}})
    on_host.card("unknown", RESULT, data="other")
    on_host.card("without", RESULT, data="gone")
    done = on_host.run("--tags", "unknown", "without")
    unknown, without = on_host.rows
    assert (unknown["status"], without["status"], without["dataname"]) == ("FAILURE", "SUCCESS", "")
    assert done.returncode == 3 and "data set 'other'" in done.stderr + done.stdout
    assert "/nowhere is not on this machine" in done.stderr + done.stdout


def test_of_several_data_sets_the_row_tells_of_the_last(on_host: Checkout) -> None:
    write(on_host.folder, "fetch.sh", "head -c 3000000 /dev/zero > big\n")
    write(on_host.folder, "here/n.txt", "1\n")
    data_json(on_host, {"far": {"custom": {"path": "fetch.sh"}}, "near": {"local": {"path": "here"}}})
    on_host.card("m", 'echo "$MAD_DATAHOME"\n' + RESULT, data="far,near")
    done = on_host.run("--tags", "m", "-c", '{"multi_node_args": {"NNODES": 2, "NODE_RANK": 1}}')
    (row,) = on_host.rows
    assert [row["dataname"], row["data_size"], row["data_download_duration"]] == ["near", "", "0"]
    assert (done.returncode, row["nnodes"]) == (0, "2"), "a node of several says so in its row"


@IN_CONTAINERS
def test_scripts_before_and_after_the_model(checkout: Checkout) -> None:
    write(checkout.folder, "own/say.sh", 'echo "$1 in $(basename "$PWD")" >> ../order; ls run.sh 2>/dev/null; true\n')
    checkout.card("m", "echo model >> ../order\n" + RESULT)
    scripts = [{"path": "own/say.sh", "args": name} for name in ("first", "second")]
    context = {"pre_scripts": scripts, "post_scripts": scripts, "encapsulate_script": "nice -n 3"}
    done = checkout.run("--tags", "m", "-c", json.dumps(context))
    assert done.returncode == 0, done.stderr
    around = ["first in run_directory", "second in run_directory"]
    assert (checkout.folder / "order").read_text().splitlines() == [*around, "model", *around]
    assert not (checkout.folder / "run_directory").exists()


def test_a_script_that_fails_fails_the_run_and_one_that_is_not_there_is_refused(on_host: Checkout) -> None:
    write(on_host.folder, "bad.sh", "echo went wrong; exit 9\n")
    on_host.card("m", RESULT)
    for key in ("pre_scripts", "post_scripts"):
        assert on_host.run("--tags", "m", "-c", json.dumps({key: [{"path": "bad.sh"}]})).returncode == 3
    assert [(row["status"], row["performance"]) for row in on_host.rows] == [("FAILURE", "")] * 2
    for record, kind in zip(on_host.records(), ("pre", "post"), strict=True):
        assert f"'{kind}' failed (exit code 9)" in record["reason"] and record["evidence"] == "went wrong"
    done = on_host.run("--tags", "m", "-c", '{"pre_scripts": [{"path": "own/nowhere.sh"}]}')
    assert done.returncode == 4 and "pre_scripts names own/nowhere.sh" in done.stderr


@IN_CONTAINERS
def test_logs_have_the_names_of_both_madengines_and_files_for_the_workspace_are_handed_up(checkout: Checkout) -> None:
    script = "for name in a_profiler_output b_output c_trace library_trace other; do echo 1 > $name.csv; done\n"
    checkout.card("m", f"echo hello\n{script}{RESULT}")
    assert checkout.run("--tags", "m", "--timeout", "120").returncode == 0
    base = "m_base" if checkout.runtime == "docker" else "m_host"
    for end in (".live.log", ".run.live.log"):
        text = (checkout.folder / f"{base}{end}").read_text()
        assert "⏰ Setting timeout to 120 seconds." in text and "hello" in text
        commands = re.findall(r"^> docker (run|exec) .*", text, re.MULTILINE)
        assert commands[:2] == (["run", "exec"] if checkout.runtime == "docker" else [])
        assert text.index("\nRunning model...\n") < text.index("hello\n")
    if checkout.runtime == "docker":
        build = (checkout.folder / f"{base}.build.live.log").read_text()
        assert "ARG BASE_DOCKER=" in build and "hello" not in build
        assert re.search(r"^> docker build .*-t ci-m_base .*-f docker/base\S*Dockerfile", build, re.MULTILINE)
    left = {path.name for path in checkout.folder.glob("*.csv")} - {"perf.csv", "perf_entry.csv"}
    wanted = {"a_profiler_output.csv", "b_output.csv", "c_trace.csv", "library_trace.csv"}
    assert {name for name in left if not name.startswith("perf_")} == wanted


@IN_CONTAINERS
def test_live_logs_have_what_scripts_grep_and_read_as_the_run_did(checkout: Checkout) -> None:
    """A real torchtitan log; a live log that is read again says no more than what the workload printed."""
    (log,) = LOGS.glob("torchtitan-0.2.2-debugmodel-cpu-1rank.log")
    checkout.card("m", "cat log\n" + RESULT)
    (checkout.folder / "scripts/m/log").write_bytes(log.read_bytes())
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@example.com"]
    for command in (["init", "-q"], ["add", "scripts"], ["commit", "-qm", "x"]):
        subprocess.run([*git, *command], cwd=checkout.folder, check=True)
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=checkout.folder, capture_output=True, text=True).stdout
    assert checkout.run("--tags", "m").returncode == 0
    (row,) = checkout.rows
    on_docker = checkout.runtime == "docker"
    live = checkout.folder / f"m_{'base' if on_docker else 'host'}.run.live.log"
    told = [
        "⏰ Setting timeout to 7200 seconds.",
        f"MODEL REPO COMMIT:  {head.strip()}",
        f"Test Duration: {row['test_duration']} seconds",
        "Status: SUCCESS (performance metrics found, no errors)",
        f"m performance is {row['performance']} {row['metric']}",
    ]
    if on_docker:
        image = ["🏷️  MAD_CONTAINER_IMAGE is ci-m_base", f"BASE DOCKER is {row['base_docker']}"]
        told = [*image, f"BASE DOCKER SHA is {row['docker_sha']}", *told]
    lines = live.read_text().splitlines()
    assert [line for line in lines if line in told] == told
    run_log = next(checkout.folder.glob("madlite_runs/*/run.log"))
    assert set(told).isdisjoint(run_log.read_text().splitlines())
    of_run, *of_live = [
        json.loads(checkout.madlite("parse", str(path), "--json").stdout) for path in (run_log, live, live)
    ]
    assert of_run.pop("log") != of_live[0]["log"] and [one.pop("log") for one in of_live]
    assert of_live[0] == of_live[1] and of_live[0]["steps"] == of_run["steps"] and of_run["steps"]
    if not on_docker:  # whose run.log has the image's build too
        assert of_live[0] == of_run


def test_a_script_that_failed_has_no_result_in_its_live_log(on_host: Checkout) -> None:
    on_host.card("m", RESULT + "exit 5\n")
    on_host.card("none", "true\n")
    assert on_host.run("--tags", "m", "none").returncode == 3
    failed, empty = ((on_host.folder / f"{card}_host.run.live.log").read_text() for card in ("m", "none"))
    assert "Test Duration" not in failed and "Status: " not in failed and "performance is" not in failed
    assert "Status: FAILURE (no performance metrics)\nnone performance is None None\n" in empty


@IN_CONTAINERS
def test_a_profiler_wraps_the_model_and_its_result_is_in_the_working_folder(checkout: Checkout) -> None:
    """With a stand-in for rocprofv3 that a pre-script puts into the image's path."""
    stub = (
        "#!/bin/bash\nwhile [ $1 != -- ]; do [ $1 = -d ] && mkdir -p $2 && echo $0 > $2/1_results.db; shift; done\n"
        'shift; echo profiled; exec "$@"\n'
    )
    write(checkout.folder, "bin/rocprofv3", stub)
    (checkout.folder / "bin/rocprofv3").chmod(0o755)
    checkout.card("m", RESULT, args="--a 'b c'")
    asked: dict[str, object] = {"tools": [{"name": "rocprofv3_lightweight"}]}
    missing = checkout.run("--tags", "m", "-c", json.dumps(asked))
    (row,) = checkout.rows
    assert (missing.returncode, row["status"], row["performance"]) == (3, "FAILURE", "")
    assert "profiler: error: rocprofv3 is not in this image" in missing.stdout
    log = next(checkout.folder.glob("madlite_runs/*/run.log")).read_text()
    assert "performance: 5" not in log, "the model's own step did not begin"
    where = "/myworkspace" if checkout.runtime == "docker" else str(checkout.folder)
    asked["docker_env_vars"] = {"PATH": f"{where}/bin:{USUAL}"}
    done = checkout.run("--tags", "m", "-c", json.dumps(asked))
    assert done.returncode == 0 and checkout.rows[1]["performance"] == "5", done.stdout
    assert (checkout.folder / "rocprof_output/1_results.db").stat().st_uid == os.getuid()
    assert not (checkout.folder / "run_directory").exists()


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Repository]:
    with guarded_repository(tmp_path, "l0velace-pw") as repository:
        yield repository


@IN_CONTAINERS
def test_a_private_repository_is_cloned_with_the_cards_credential(checkout: Checkout, guarded: Repository) -> None:
    checkout.card("m", 'echo "performance: $(cat data.txt) x"\n', url=guarded.url, cred="GIT")
    table = {"GIT": {"username": "ada", "password": "l0velace-pw"}}
    write(checkout.folder, "credential.json", json.dumps(table))
    done = checkout.run("--tags", "m")
    (row,) = checkout.rows
    log = next(checkout.folder.glob("madlite_runs/*/run.log")).read_text()
    assert (done.returncode, row["performance"], row["git_commit"]) == (0, "13", guarded.commit), log
    assert "l0velace-pw" not in log + done.stdout + done.stderr
    table["GIT"]["password"] = "wrong-password"
    write(checkout.folder, "credential.json", json.dumps(table))
    done = checkout.run("--tags", "m")
    assert done.returncode == 3 and "'clone' failed" in done.stdout + done.stderr
    (failed,) = [record for record in checkout.records() if record["status"] == "FAILURE"]
    assert "Authentication failed" in failed["evidence"]


def test_model_dir_brings_a_checkout_into_the_working_folder(on_host: Checkout, tmp_path: Path) -> None:
    on_host.card("m", RESULT)
    here = tmp_path / "here"
    here.mkdir()
    command = [*on_host.command("run", "--runtime", on_host.runtime, "--tags", "m")]
    env = {**on_host.env, "MODEL_DIR": os.path.relpath(on_host.folder, here)}
    dry = subprocess.run([*command, "--dry-run"], cwd=here, env=env, capture_output=True, text=True)
    assert dry.returncode == 0 and list(here.iterdir()) == [], dry.stderr
    done = subprocess.run(command, cwd=here, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (here / "perf.csv").exists() and not (on_host.folder / "perf.csv").exists()


@IN_CONTAINERS
def test_what_a_killed_run_left_running_is_no_result_of_the_next(checkout: Checkout) -> None:
    late = (
        "echo training begun; until [ -e ../second ]; do sleep 0.1; done\n"
        "printf 'model,performance,metric\\na,111,x\\n' > ../perf_m.csv\n"
    )
    checkout.card("first", late, multiple_results="perf_m.csv")
    checkout.card("second", "touch ../second; sleep 3; rm ../second\n", multiple_results="perf_m.csv")
    started = checkout.start("--tags", "first")
    checkout.wait_for("training begun")
    os.kill(started.pid, signal.SIGKILL)
    started.communicate(timeout=240)
    done = checkout.run("--tags", "second")
    found = [(row["model"], row["status"], row["performance"]) for row in checkout.rows]
    assert (done.returncode, found) == (3, [("first", "FAILURE", ""), ("second", "FAILURE", "")]), done.stdout
    assert "was still running, ended" in done.stdout + done.stderr
    assert not (checkout.folder / "perf_m.csv").exists()
    checkout.assert_nothing_left()


def test_a_results_file_cannot_have_another_files_name(on_host: Checkout) -> None:
    on_host.card("good", RESULT)
    names = ("perf.csv", "perf_super.csv", "models.json", "../up.csv")
    for n, name in enumerate(names):
        script = "printf 'model,performance,metric\\na,1,x\\n' > perf.csv\n"
        on_host.card(f"m{n}", script, multiple_results=name)
    before = (on_host.folder / "models.json").read_bytes()
    done = on_host.run("--tags", "t")
    assert done.returncode == 3 and [row["status"] for row in on_host.rows] == ["SUCCESS", *["FAILURE"] * len(names)]
    assert [name for name in names if f"leaves its results in {name}" not in done.stdout] == []
    assert (on_host.folder / "models.json").read_bytes() == before


@IN_CONTAINERS
def test_a_snapshot_of_the_environment_shows_no_secret(checkout: Checkout) -> None:
    write(checkout.folder, "credential.json", json.dumps({"PIN": {"user": "ada", "number": "4711-8899"}}))
    checkout.card("m", 'echo "$PIN_NUMBER" | wc -c\n' + RESULT, cred="PIN")
    done = checkout.run("--tags", "m", "--sys-env-details")
    assert done.returncode == 0, done.stderr
    text = (checkout.folder / "m_env.csv").read_text()
    assert 'env,"PIN_USER","ada"' in text and 'env,"PIN_NUMBER"' in text and "4711-8899" not in text
    kept = [path for path in (checkout.folder / ".m_env").rglob("*") if path.is_file()]
    assert kept and not [path for path in kept if b"4711-8899" in path.read_bytes()]


def test_a_token_among_the_args_is_masked_everywhere(on_host: Checkout) -> None:
    on_host.card("m", 'echo "args $*"\n' + RESULT, args="--moe-token-dispatcher-type alltoall --hf_token hf_TOPSECRET1")
    done = on_host.run("--tags", "m:api_key=another-secret")
    (row,) = on_host.rows
    assert row["args"] == "--moe-token-dispatcher-type alltoall --hf_token *** --api_key ***"
    texts = [path.read_bytes() for path in on_host.folder.rglob("*") if path.is_file() and path.name != "models.json"]
    for secret in (b"hf_TOPSECRET1", b"another-secret"):
        assert not [text for text in texts if secret in text] and secret.decode() not in done.stdout + done.stderr


def test_what_is_meant_for_other_machines_is_not_run_here(on_host: Checkout) -> None:
    on_host.card("m", RESULT)
    for context, said, hint in (
        ('{"deploy": {"namespace": "a"}}', "asks for other machines", "--cluster NAME"),
        ('{"deploy": "elsewhere"}', "asks for other machines", "--cluster NAME sends runs to those"),
        (
            '{"distributed": {"nnodes": 2}}',
            "--additional-context: distributed.nnodes 2 without --cluster, and this is no allocation of Slurm",
            "add --cluster NAME, or salloc -N2 madlite run",
        ),
    ):
        done = on_host.run("--tags", "m", "-c", context)
        assert done.returncode == 4 and said in done.stderr and hint in done.stderr and "warning" not in done.stderr
    assert not (on_host.folder / "perf.csv").exists()
