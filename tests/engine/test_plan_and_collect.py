"""A plan, its run elsewhere and its rows afterwards, on the host and in real containers."""

from __future__ import annotations

import json
import shutil
import signal
import socket

import pytest

from tests import commands
from tests.csv_rows import csv_rows
from tests.engine.checkout import Checkout
from tests.factories import BASE_IMAGE
from tests.waiting import wait_until

TIMES = ("test_duration", "build_duration")
TOKEN = "hf_abcdefghijklmn"  # noqa: S105
GOOD = 'echo "token ${HF_TOKEN:-none} of $X"; echo "performance: 12.5 tok"\n'
WRITES = (
    "for place in $(ls -d ../madlite_runs/* ../madlite_runs/*/work 2>/dev/null); do\n"
    '  for name in result.json record.json journal.jsonl; do echo forged > "$place/$name" || true; done\n'
    "done\n" + GOOD
)


def madlite(checkout: Checkout, *args: str, **env: str) -> str:
    done = checkout.madlite(*args, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_a_plan_that_runs_in_another_folder_gives_the_row_of_a_direct_run_once_it_is_collected(checkout: Checkout):
    checkout.card("good", GOOD)
    asked = ("--tags", "good", "--runtime", checkout.runtime, "-c", '{"docker_env_vars": {"X": "context"}}')
    madlite(checkout, "run", *asked, "-o", "direct.csv", HF_TOKEN=TOKEN)
    madlite(checkout, "plan", *asked, HF_TOKEN=TOKEN)
    (direct,) = csv_rows(checkout.folder / "direct.csv")
    elsewhere = checkout.folder.with_name("other")
    shutil.copytree(checkout.folder, elsewhere, ignore=shutil.ignore_patterns("madlite_runs", "perf*", "direct.csv"))
    checkout.folder = elsewhere
    dry = madlite(checkout, "run", "--plan", "plan.json", "--dry-run", HF_TOKEN=TOKEN)
    assert str(elsewhere) in dry and f"{elsewhere.with_name('mad')}/" not in dry and TOKEN not in dry
    said = madlite(checkout, "run", "--plan", "plan.json", "--no-rows", HF_TOKEN=TOKEN)
    assert not list(elsewhere.glob("perf*")) and TOKEN not in said
    (log,) = elsewhere.glob("madlite_runs/*/run.log")
    assert "token *** of context" in log.read_text()
    madlite(checkout, "collect")
    (row,) = checkout.rows
    assert {name: text for name, text in row.items() if name not in TIMES} == {
        name: text for name, text in direct.items() if name not in TIMES
    }
    (record,) = checkout.records()
    assert record["id"] == json.loads((elsewhere / "plan.json").read_text())["plan"]["id"]
    checkout.assert_nothing_left()


def test_a_job_that_is_queued_again_goes_on_after_a_stop_and_not_after_a_success(checkout: Checkout):
    checkout.card("good", 'echo began; [ -e ../stopped ] || sleep 100\necho "performance: 7 tok"\n')
    madlite(checkout, "plan", "--tags", "good", "--runtime", checkout.runtime)
    words = ("--plan", "plan.json", "--no-rows", "--retry", "1")
    started = commands.start(("run", *words), checkout.folder, checkout.env, checkout.before)
    wait_until(
        lambda: any("began" in log.read_text() for log in checkout.folder.glob("madlite_runs/*/run.log")), "began"
    )
    started.send_signal(signal.SIGTERM)
    started.wait()
    (checkout.folder / "stopped").touch()
    madlite(checkout, "run", *words, "--again")
    refused = checkout.madlite("run", *words, "--again")
    assert refused.returncode == 4 and "has its result: it is not tried again" in refused.stderr
    files = sorted(checkout.folder.glob("madlite_runs/2*/result.json"))
    first, second = (json.loads(file.read_text())["record"] for file in files)
    assert [(one["status"], one["cause"]) for one in (first, second)] == [("FAILURE", "preempted"), ("SUCCESS", "")]
    assert first["reason"].startswith("the job was queued again") and first["reason"].endswith("; terminated")
    assert second["attempt"]["number"] == 2 and second["attempt"]["earlier"][0]["cause"] == "preempted"


@pytest.mark.engine
def test_an_image_that_is_another_by_now_is_named(engine, base_image, tmp_path):
    checkout = Checkout(tmp_path / "mad", "docker", engine)
    checkout.card("good", GOOD)
    madlite(checkout, "plan", "--tags", "good", "--image", BASE_IMAGE)
    file = checkout.folder / "plan.json"
    saved = json.loads(file.read_text())
    assert saved["image_digest"].startswith("sha256:") or "@sha256:" in saved["image_digest"]
    assert "image" not in madlite(checkout, "run", "--plan", "plan.json", "--dry-run").partition("warning")[2]
    file.write_text(json.dumps({**saved, "image_digest": "sha256:0123"}))
    said = madlite(checkout, "run", "--plan", "plan.json", "--dry-run")
    assert f"image {BASE_IMAGE}: sha256:0123 when the plan was made, here {saved['image_digest']}" in said
    saved["plan"]["mounts"] = [{"source": "/nonexistent/data", "target": "/data", "read_only": True, "create": False}]
    file.write_text(json.dumps(saved))
    refused = checkout.madlite("run", "--plan", "plan.json")
    missing = f"mount of /nonexistent/data at /data: it is not on machine {socket.gethostname()}"
    assert refused.returncode == 4 and missing in refused.stderr


def test_a_workload_that_writes_results_of_its_own_changes_none_that_is_collected(checkout: Checkout):
    checkout.card("m", WRITES)
    words = ("run", "--tags", "m", "--runtime", checkout.runtime, "--no-rows")
    for _ in range(2):
        checkout.madlite(*words)
    done = checkout.madlite("runs", "collect")
    assert "Traceback" not in done.stdout + done.stderr
    rows = checkout.rows if (checkout.folder / "perf.csv").exists() else []
    assert all(row["performance"] == "12.5" for row in rows), "what is forged is no row"
    if checkout.runtime == "docker":  # whose container has nothing but its own run's work/
        assert len(rows) == 2 and done.returncode == 0
