"""Records of real runs: their schema, the rows that come back, and what a killed batch is told as."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import jsonschema
import pytest

from madlite.store import record
from tests.engine.checkout import ON_THE_HOST, Checkout

GOOD = 'echo "performance: 12.5 tokens_per_second"\n'
MULTI = "printf 'model,performance,metric,heat\\na,5,x,61\\nb,,x,62\\n' > ../r.csv\n"
WAITS = "trap 'exit 9' INT\necho begun\nwhile :; do sleep 0.05; done\n"
SCHEMA = json.loads(Path(record.__file__).with_name(record.SCHEMA).read_text())


def test_every_kind_of_run_has_a_record_that_fits_the_schema_and_perf_csv_can_be_made_again(checkout: Checkout):
    checkout.card("good", GOOD)
    checkout.card("failing", GOOD + "exit 3\n")
    checkout.card("multi", MULTI, multiple_results="r.csv")
    checkout.card("old", GOOD, is_deprecated=True)
    checkout.card("hungry", GOOD, n_gpus="8")
    checkout.run("--tags", "t", "--set", "env.HF_TOKEN=hf_hush_hush")
    checkout.run("--tags", "good", "--timeout", "60", "-c", '{"docker_env_vars": {"X": "1"}}')
    records = checkout.records()
    for one in records:
        jsonschema.validate(one, SCHEMA, jsonschema.Draft202012Validator)
        assert one["version"] == 2 and one["rows"]["appended"] and one["command"][0] == "run"
        assert "hush" not in json.dumps(one)
    assert len(records) == 6 and {one["status"] for one in records} == {"SUCCESS", "FAILURE", "SKIPPED"}
    assert checkout.madlite("report", "rebuild", "-o", "again.csv").returncode == 0
    assert (checkout.folder / "again.csv").read_bytes() == (checkout.folder / "perf.csv").read_bytes()
    assert len(checkout.madlite("runs").stdout.splitlines()) == 7
    shown = checkout.madlite("show", "last").stdout
    assert "12.5 tokens_per_second" in shown and "row             1 row in perf.csv" in shown


def test_a_run_is_done_again_with_the_same_context(checkout: Checkout):
    checkout.card("args", 'echo "performance: $X args_$*"\n')
    first = checkout.run("--tags", "args:n=5", "-c", '{"docker_env_vars": {"X": "7", "HF_TOKEN": "hf_hush_hush"}}')
    assert first.returncode == 0, first.stdout
    printed = checkout.madlite("reproduce", "last").stdout
    assert "left out of the context, for it is secret: docker_env_vars.HF_TOKEN" in printed and "hush" not in printed
    refused = checkout.madlite("reproduce", "last", "--run")
    assert refused.returncode == 4 and "not known here: docker_env_vars.HF_TOKEN" in refused.stderr
    again = checkout.madlite("reproduce", "last", "--run", "--without-secrets")
    assert again.returncode == 0, again.stdout + again.stderr
    assert sorted(one["context_left_out"] for one in checkout.records()) == [[], ["docker_env_vars.HF_TOKEN"]]
    rows = [{name: text for name, text in row.items() if "duration" not in name} for row in checkout.rows]
    assert rows[0]["performance"] == "7" and len(rows) == 2
    # pinned by its id, the image was not built
    for name in ("docker_file", "base_docker", "docker_image", "docker_sha"):
        rows[0].pop(name), rows[1].pop(name)
    assert rows[0] == rows[1]


@ON_THE_HOST
def test_a_batch_that_was_killed_names_what_never_started(checkout: Checkout):
    for n in (1, 2, 3, 4):
        checkout.card(f"m{n}", WAITS if n == 2 else GOOD)
    started = checkout.start("--tags", "t")
    log = checkout.wait_for("begun")
    os.kill(started.pid, signal.SIGKILL)
    started.communicate(timeout=240)
    listed = checkout.madlite("runs")
    assert "CUT OFF" in listed.stdout and "2 runs of an earlier batch never started: m3, m4" in listed.stderr
    assert "(no row)" in listed.stderr and [row["model"] for row in checkout.rows] == ["m1"]
    cleaned = checkout.madlite("clean", "--yes")
    assert "m2" in cleaned.stdout and cleaned.returncode == 0
    assert "nothing is left" in checkout.madlite("clean").stdout
    after = checkout.madlite("runs")
    assert "FAILURE [interrupted]" in after.stdout and "(no row)" not in after.stderr
    assert "never started: m3, m4. madlite run --resume goes on with it" in after.stderr
    assert [(row["model"], row["status"]) for row in checkout.rows] == [("m1", "SUCCESS"), ("m2", "FAILURE")]
    assert log.parent.name in after.stdout
    checkout.assert_nothing_left()


@pytest.mark.host
def test_a_log_is_followed_while_its_run_goes_on(tmp_path):
    import subprocess

    checkout = Checkout(tmp_path / "mad", "host", "unix:///nonexistent/docker.sock")
    checkout.card("waits", "echo begun\nwhile [ ! -e ../go ]; do sleep 0.05; done\n" + GOOD)
    started = checkout.start("--tags", "waits")
    checkout.wait_for("begun")
    monitor = subprocess.Popen(
        checkout.command("log", "last", "--follow"), cwd=checkout.folder, stdout=subprocess.PIPE, text=True
    )
    lines = iter(monitor.stdout.readline, "")
    assert any(line == "begun\n" for line in lines)
    (checkout.folder / "go").touch()
    assert any("performance: 12.5" in line for line in lines)
    assert monitor.wait(40) == 0
    started.communicate(timeout=240)
