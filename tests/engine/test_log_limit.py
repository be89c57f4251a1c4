"""A run's log of limited size: its two ends stay, row and record say so, the number is read all the same."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from pathlib import Path

import pytest

from .checkout import Checkout, end

# ten megabytes of numbered lines, the result in the middle of what is not kept
TALKS = """
numbers() { seq -f 'line %07.0f of a log that goes on and on' "$1" "$2"; }
numbers 1 100000
echo 'performance: 42 tokens/s'
numbers 100001 210000
"""
LEFT_OUT = re.compile(r"^\[madlite: (\d+) bytes left out here\]$", re.MULTILINE)


def log_of(checkout: Checkout) -> Path:
    (log,) = checkout.folder.glob("madlite_runs/*/run.log")
    return log


def test_ten_megabytes_leave_64_kib_and_the_number(on_host: Checkout) -> None:
    on_host.card("talks", TALKS)
    done = on_host.run("--tags", "talks", "--log-limit", "64K", "--add-column", "notes")
    assert done.returncode == 0, done.stdout + done.stderr
    log = log_of(on_host)
    text = log.read_text()
    assert log.stat().st_size <= 64 << 10 and "line 0000001 of" in text and "line 0210000 of" in text
    (left_out,) = LEFT_OUT.findall(text)
    whole = 210_000 * len("line 0000001 of a log that goes on and on\n")
    assert whole < log.stat().st_size + int(left_out) < whole + 10_000, "madlite's own lines are in the log too"
    note = f"{int(left_out):,} bytes between them are left out (--log-limit 64K)"
    assert note in done.stdout
    (record,) = on_host.records()
    assert any(note in finding for finding in record["findings"])
    assert record["log_limit_bytes"] == 64 << 10 and record["origins"]["log_limit"] == "--log-limit"
    assert json.loads((log.parent / "plan.json").read_text())["log_limit_bytes"] == 64 << 10
    (row,) = on_host.rows
    assert (row["performance"], row["metric"], row["status"]) == ("42", "tokens/s", "SUCCESS")
    assert note in row["notes"]
    (live,) = on_host.folder.glob("*.run.live.log")
    assert live.stat().st_size <= 64 << 10 and len(LEFT_OUT.findall(live.read_text())) == 1
    assert live.read_text().endswith("\ntalks performance is 42 tokens/s\n") and "performance is" not in text
    assert not list(on_host.folder.glob("**/.*tail-*"))
    words = on_host.madlite("reproduce", "last").stdout
    assert "--log-limit 64K" in words
    assert on_host.madlite("log", "last", "--raw").stdout == text


@pytest.mark.host
def test_a_killed_run_leaves_its_beginning_and_its_end_and_a_follower_sees_both(tmp_path: Path) -> None:
    checkout = Checkout(tmp_path / "mad", "host", "")
    checkout.card("talks", TALKS + "echo the very last line; exec sleep 300\n")
    with (tmp_path / "screen").open("w") as screen:
        started = checkout.start("--tags", "talks", "--log-limit", "64K", "--live-output", stdout=screen)
        checkout.wait_for("line 0000001")
        follow = subprocess.Popen(
            checkout.command("log", "last", "--follow"), cwd=checkout.folder, env=checkout.env, stdout=subprocess.PIPE
        )
        assert follow.stdout is not None
        shown = b""
        while b"the very last line" not in shown:  # of a run that goes on
            piece = follow.stdout.readline()
            assert piece, shown[-300:]
            shown += piece
        end(started, signal.SIGKILL)
        shown += follow.communicate(timeout=240)[0]
    assert follow.returncode == 0 and b"line 0000001 of" in shown and shown.count(b"the very last line") == 1
    log = log_of(checkout)
    assert log.read_text().count("\n") > 700 and "line 0000001 of" in log.read_text()
    sizes = [path.stat().st_size for path in log.parent.iterdir() if "run.log" in path.name]
    assert len(sizes) > 1 and sum(sizes) <= 64 << 10
    said = checkout.madlite("log", "last").stdout
    assert "line 0000001 of" in said and said.endswith("the very last line\n") and len(LEFT_OUT.findall(said)) == 1
    assert checkout.madlite("log", "last", "--tail", "2").stdout.endswith(
        "line 0210000 of a log that goes on and on\nthe very last line\n"
    )
    checkout.madlite("clean", "--yes")
    checkout.assert_nothing_left()
    assert checkout.madlite("log", "last").stdout == said


@pytest.mark.host
def test_a_limit_that_is_none_starts_nothing(tmp_path: Path) -> None:
    checkout = Checkout(tmp_path / "mad", "host", "")
    checkout.card("talks", "echo 'performance: 1 x'\n")
    for size in ("much", "-1", "1K", ""):
        done = checkout.run("--tags", "talks", f"--log-limit={size}")
        assert done.returncode == 4 and "--log-limit" in done.stderr and not (checkout.folder / "perf.csv").exists()
