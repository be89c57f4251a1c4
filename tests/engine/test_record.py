"""Records of real runs: their schema, the rows that come back, and what a killed batch is told as."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import jsonschema
import pytest

from madlite.store import record
from tests.engine.checkout import Checkout

GOOD = 'echo "performance: 12.5 tokens_per_second"\n'
MULTI = "printf 'model,performance,metric,heat\\na,5,x,61\\nb,,x,62\\n' > ../r.csv\n"
WAITS = "trap 'exit 9' INT\necho begun\nwhile :; do sleep 0.05; done\n"
SCHEMA = json.loads(Path(record.__file__).with_name(record.SCHEMA).read_text())


def test_every_kind_of_run_has_a_record_that_fits_the_schema_and_perf_csv_can_be_made_again(on_host: Checkout):
    on_host.card("good", GOOD)
    on_host.card("failing", GOOD + "exit 3\n")
    on_host.card("multi", MULTI, multiple_results="r.csv")
    on_host.card("old", GOOD, is_deprecated=True)
    on_host.card("hungry", GOOD, n_gpus="8")
    on_host.run("--tags", "t", "--set", "env.HF_TOKEN=hf_hush_hush")
    on_host.run("--tags", "good", "--timeout", "60", "-c", '{"docker_env_vars": {"X": "1"}}')
    records = on_host.records()
    for one in records:
        jsonschema.validate(one, SCHEMA, jsonschema.Draft202012Validator)
        assert one["version"] == 2 and one["rows"]["appended"] and one["command"][0] == "run"
        assert "hush" not in json.dumps(one)
    assert len(records) == 6 and {one["status"] for one in records} == {"SUCCESS", "FAILURE", "SKIPPED"}
    assert on_host.madlite("report", "rebuild", "-o", "again.csv").returncode == 0
    assert (on_host.folder / "again.csv").read_bytes() == (on_host.folder / "perf.csv").read_bytes()
    assert len(on_host.madlite("runs").stdout.splitlines()) == 7
    shown = on_host.madlite("show", "last").stdout
    assert "12.5 tokens_per_second" in shown and "row             1 row in perf.csv" in shown


def test_a_run_is_done_again_with_the_same_context(on_host: Checkout):
    on_host.card("args", 'echo "performance: $X args_$*"\n')
    first = on_host.run("--tags", "args:n=5", "-c", '{"docker_env_vars": {"X": "7", "HF_TOKEN": "hf_hush_hush"}}')
    assert first.returncode == 0, first.stdout
    printed = on_host.madlite("reproduce", "last").stdout
    assert "left out of the context, for it is secret: docker_env_vars.HF_TOKEN" in printed and "hush" not in printed
    refused = on_host.madlite("reproduce", "last", "--run")
    assert refused.returncode == 4 and "not known here: docker_env_vars.HF_TOKEN" in refused.stderr
    again = on_host.madlite("reproduce", "last", "--run", "--without-secrets")
    assert again.returncode == 0, again.stdout + again.stderr
    assert sorted(one["context_left_out"] for one in on_host.records()) == [[], ["docker_env_vars.HF_TOKEN"]]
    rows = [{name: text for name, text in row.items() if "duration" not in name} for row in on_host.rows]
    assert rows[0]["performance"] == "7" and len(rows) == 2
    # pinned by its id, the image was not built
    for name in ("docker_file", "base_docker", "docker_image", "docker_sha"):
        rows[0].pop(name), rows[1].pop(name)
    assert rows[0] == rows[1]


def test_a_batch_that_was_killed_names_what_never_started(on_host: Checkout):
    for n in (1, 2, 3, 4):
        on_host.card(f"m{n}", WAITS if n == 2 else GOOD)
    started = on_host.start("--tags", "t")
    log = on_host.wait_for("begun")
    os.kill(started.pid, signal.SIGKILL)
    started.communicate(timeout=240)
    listed = on_host.madlite("runs")
    assert "CUT OFF" in listed.stdout and "2 runs of an earlier batch never started: m3, m4" in listed.stderr
    assert "(no row)" in listed.stderr and [row["model"] for row in on_host.rows] == ["m1"]
    cleaned = on_host.madlite("clean", "--yes")
    assert "m2" in cleaned.stdout and cleaned.returncode == 0
    assert "nothing is left" in on_host.madlite("clean").stdout
    after = on_host.madlite("runs")
    assert "FAILURE [interrupted]" in after.stdout and "(no row)" not in after.stderr
    assert "never started: m3, m4. madlite run --resume goes on with it" in after.stderr
    assert [(row["model"], row["status"]) for row in on_host.rows] == [("m1", "SUCCESS"), ("m2", "FAILURE")]
    assert log.parent.name in after.stdout
    on_host.assert_nothing_left()


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
    assert monitor.wait(240) == 0
    started.communicate(timeout=240)
