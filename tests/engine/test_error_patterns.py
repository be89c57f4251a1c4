"""Runs of scripts that print an error and a number, on the host: the row keeps the number, the screen tells why."""

from __future__ import annotations

import subprocess

import pytest

from tests.engine.checkout import Checkout

pytestmark = pytest.mark.host

CAUGHT = """python3 - <<'EOF'
import traceback
try:
    raise RuntimeError("first try")
except RuntimeError:
    traceback.print_exc()
EOF
"""
GOOD = 'echo "performance: 12.5 tokens_per_second"\n'


@pytest.fixture
def checkout(tmp_path) -> Checkout:
    return Checkout(tmp_path / "mad", "host", "unix:///nonexistent/docker.sock")


def test_a_caught_traceback_is_a_failure_that_keeps_its_number(checkout: Checkout):
    checkout.card("caught", CAUGHT + GOOD)
    done = checkout.run("--tags", "caught")
    assert done.returncode == 3
    (row,) = checkout.rows
    assert (row["status"], row["performance"], row["metric"]) == ("FAILURE", "12.5", "tokens_per_second")
    assert float(row["test_duration"]) > 0
    (record,) = checkout.records()
    pattern = "Traceback (most recent call last)"
    assert record["cause"] == "error_pattern" and f"'{pattern}'" in record["reason"]
    for text in (
        "[error_pattern]",
        f"'{pattern}'",
        "RuntimeError: first try",
        '"log_error_pattern_scan"',
        "log_error_benign",
    ):
        assert text in done.stdout


def test_what_is_harmless_is_said_on_the_card_or_in_the_context(checkout: Checkout):
    checkout.card("off", CAUGHT + GOOD, log_error_pattern_scan=False)
    checkout.card("known", CAUGHT + GOOD, log_error_benign_patterns=["first try", "Traceback"])
    checkout.card("caught", CAUGHT + GOOD)
    assert checkout.run("--tags", "off,known").returncode == 0
    assert checkout.run("--tags", "caught", "-c", '{"log_error_patterns": ["Segmentation fault"]}').returncode == 0
    assert [row["status"] for row in checkout.rows] == ["SUCCESS"] * 3
    shown = checkout.madlite("explain", "off", "--runtime", "host").stdout
    assert "error_scan" in shown and "off   <- card" in shown
    assert "error_scan" not in checkout.madlite("explain", "caught", "--runtime", "host").stdout


def test_only_the_models_own_step_is_scanned(checkout: Checkout, tmp_path):
    repository = tmp_path / "FAILED"
    subprocess.run(["git", "init", "-q", repository], check=True)
    who = ["-c", "user.name=t", "-c", "user.email=t@localhost"]
    subprocess.run(["git", "-C", repository, *who, "commit", "-q", "--allow-empty", "-m", "x"], check=True)
    checkout.card("cloned", GOOD, url=f"file://{repository}")
    assert checkout.run("--tags", "cloned").returncode == 0
    (log,) = checkout.folder.glob("madlite_runs/*/run.log")
    assert "FAILED" in log.read_text()  # git says where it clones to


def test_several_results_beside_an_error_are_one_failure(checkout: Checkout):
    results = "model,performance,metric\\na,10.5,tokens/s\\nb,11,tokens/s\\n"
    checkout.card("multi", f"{CAUGHT}printf '{results}' > r.csv\n", multiple_results="r.csv")
    assert checkout.run("--tags", "multi").returncode == 3
    (row,) = checkout.rows
    assert (row["model"], row["status"], row["performance"]) == ("multi", "FAILURE", "")


def test_a_wrong_key_of_a_card_keeps_it_from_starting(checkout: Checkout):
    checkout.card("odd", GOOD, log_error_patterns="OOM")
    done = checkout.run("--tags", "odd")
    assert done.returncode == 3 and "card 'odd'" in done.stdout and "'log_error_patterns'" in done.stdout
    (row,) = checkout.rows
    assert (row["model"], row["status"], row["performance"]) == ("odd", "FAILURE", "")
