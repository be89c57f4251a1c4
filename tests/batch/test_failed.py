"""`run --resume --failed`: what failed in the last batch is run again, as the next attempt, and nothing else is."""

from __future__ import annotations

import json
import signal
from itertools import starmap

import pytest

from tests.engine.checkout import Checkout, end
from tests.engine.test_resume import batch_files
from tests.engine.test_retry import checkout, failing  # noqa: F401
from tests.killing import KILL_AT
from tests.tiers import every, first_of

pytestmark = pytest.mark.host
OK = 'echo "performance: 1 x"\n'
AGAIN = ("run", "--resume", "--failed")


def ends(checkout: Checkout) -> list[tuple[str, str]]:  # noqa: F811
    return [(row["model"], row["status"]) for row in checkout.rows]


def attempts(checkout: Checkout, card: str) -> list[tuple[int, list[str]]]:  # noqa: F811
    """Return the attempts of a card's run: the number of each, and the runs before it."""
    found = [record["attempt"] or {} for record in checkout.records() if record["card"] == card]
    return sorted((one.get("number", 1), [run["run"] for run in one.get("earlier", [])]) for one in found)


@pytest.mark.parametrize("words", first_of([("--parallel", "2"), ()], 1))
def test_what_failed_is_run_again_until_it_has_succeeded(checkout, words):  # noqa: F811
    checkout.card("a", OK)
    checkout.card("b", failing(2, "no such thing"))
    checkout.card("c", OK, skip_gpu_arch="MI300X")
    first = checkout.run("--tags", "a,b,c", *words)
    assert first.returncode == 3, first.stdout + first.stderr
    second = checkout.madlite(*AGAIN)
    assert second.returncode == 3 and "2 of 3 runs are finished and not repeated" in second.stdout, second.stdout
    third = checkout.madlite(*AGAIN)
    assert third.returncode == 0 and "note: attempt 3, after " in third.stdout, third.stdout + third.stderr
    again = checkout.madlite(*AGAIN)
    assert again.returncode == 0 and "nothing to run again: the 3 runs of the batch of" in again.stdout
    assert len(again.stdout.splitlines()) == 1 and again.stderr == ""
    assert [status for model, status in ends(checkout) if model == "b"] == ["FAILURE", "FAILURE", "SUCCESS"]
    assert (sorted if words else list)(model for model, _ in ends(checkout) if model != "b") == ["a", "c"]
    (one, none), (two, before), (three, both) = attempts(checkout, "b")
    assert (one, two, three) == (1, 2, 3) and not none and both[0] == before[0]
    digests = {run["digest"] for run in requested(checkout) if run["card"] == "b"}
    assert len(digests) == 1, "each attempt has the plan of the first"
    listed = checkout.madlite("runs").stdout
    assert "FAILURE [exit_code], attempt 2" in listed and "SUCCESS, attempt 3" in listed
    shown = checkout.madlite("show", both[1]).stdout
    assert f"2, after {both[0]} [exit_code]" in shown
    assert batch_files(checkout) == []


def requested(checkout: Checkout) -> list[dict[str, str]]:  # noqa: F811
    events = map(json.loads, (checkout.folder / "madlite_runs/events.jsonl").read_text().splitlines())
    return [run for event in events if event["event"] == "requested" for run in event["runs"]]


FAILED, RESUME = ("--resume", "--failed"), ("--resume",)


@pytest.mark.parametrize(
    ("target", "when", "count", "then"),
    every(
        starmap(
            pytest.param,
            [
                ("madlite.store.batches.BatchLog.request", "before", "1", FAILED),
                ("madlite.store.batches.append", "after", "1", RESUME),  # requested, and the batch before has not ended
                ("madlite.store.batches.BatchLog.request", "after", "1", RESUME),
                ("madlite.store.batches.BatchLog.request", "after", "1", FAILED),
                ("madlite.batch.runner.Batch._run", "before", "2", RESUME),
                ("madlite.run.result_writer.append_runs", "before", "2", FAILED),
                ("madlite.run.result_writer.append_runs", "after", "1", FAILED),
                ("madlite.store.batches.BatchLog.close", "before", "1", FAILED),
            ],
        ),
        2,
    ),
)
def test_a_kill_loses_and_doubles_no_run(checkout, target, when, count, then):  # noqa: F811
    checkout.card("a", OK)
    for name in ("b", "c"):
        checkout.card(name, failing(1, "no such thing"))
    assert checkout.run("--tags", "a,b,c", "--add-column", "run").returncode == 3
    whole = ("--tags", "a,b,c", "--add-column", "run")
    killed = checkout.run(*whole, "--resume", "--failed", first=(KILL_AT, target, when, count))
    assert killed.returncode == -signal.SIGKILL, killed.stdout + killed.stderr
    done = checkout.madlite("run", *then)
    assert done.returncode == 0, done.stdout + done.stderr
    for name in "abc":
        assert ends(checkout).count((name, "SUCCESS")) == 1, done.stdout
    assert ends(checkout)[:3] == [("a", "SUCCESS"), ("b", "FAILURE"), ("c", "FAILURE")], "the first rows stay"
    assert len({row["run"] for row in checkout.rows}) == len(checkout.rows)
    for name in "bc":
        first = next(row["run"] for row in checkout.rows if row["model"] == name)
        assert all(before[0] == first for number, before in attempts(checkout, name) if number > 1)
        assert len(attempts(checkout, name)) == max(number for number, _ in attempts(checkout, name))
    assert "nothing to run again" in checkout.madlite(*AGAIN).stdout


def test_other_plans_are_refused_and_the_failures_stay_to_be_run(checkout):  # noqa: F811
    checkout.card("a", failing(1, "no such thing"))
    assert checkout.run("--tags", "a").returncode == 3
    other = checkout.run("--tags", "a", "--set", "env.OTHER=1", "--resume", "--failed")
    assert other.returncode == 4 and "a is planned otherwise now than in the batch of" in other.stderr
    assert batch_files(checkout) == [] and len(checkout.rows) == 1
    assert checkout.run("--tags", "a", "--resume", "--failed").returncode == 0


def test_what_was_kept_from_starting_is_planned_anew(checkout):  # noqa: F811
    checkout.card("a", OK)
    checkout.card("b", OK)
    script = checkout.folder / "scripts/b/run.sh"
    script.rename(checkout.folder / "away.sh")
    assert checkout.run("--tags", "a,b").returncode == 3
    (checkout.folder / "away.sh").rename(script)
    done = checkout.madlite(*AGAIN)
    assert done.returncode == 0, done.stdout + done.stderr
    assert ends(checkout) == [("a", "SUCCESS"), ("b", "FAILURE"), ("b", "SUCCESS")]
    assert [number for number, _ in attempts(checkout, "b")] == [1, 2]


def test_what_cannot_be_run_again_is_refused_in_one_sentence(checkout):  # noqa: F811
    checkout.card("a", "echo begun\nsleep 300\n")
    none = checkout.madlite(*AGAIN)
    assert none.returncode == 4 and "no batch of this machine began in this folder" in none.stderr
    alone = checkout.run("--tags", "a", "--failed")
    assert alone.returncode == 4 and "--failed without --resume" in alone.stderr and "add --resume" in alone.stderr
    going = checkout.start("--tags", "a")
    checkout.wait_for("begun")
    busy = checkout.madlite(*AGAIN)
    assert busy.returncode == 4 and "the last batch goes on in another madlite" in busy.stderr
    assert end(going, signal.SIGTERM)[0] == 143
    assert len(checkout.rows) == 1


def test_a_series_gets_the_sample_that_failed(checkout):  # noqa: F811
    checkout.card("a", failing(0, "").replace("le 0", "eq 2").replace('echo ""', "echo no"))
    first = checkout.run("--tags", "a", "--repeat", "3", "--cold")
    assert first.returncode == 3 and "2 of 3 runs, 1 failed" in first.stdout, first.stdout
    again = checkout.madlite(*AGAIN)
    assert again.returncode == 0 and "(3 of 3 runs, caches cold)" in again.stdout, again.stdout
    (study,) = {record["study"]["id"] for record in checkout.records()}
    assert "(3 of 3 runs, caches cold)" in checkout.madlite("runs", "--of", study).stdout
