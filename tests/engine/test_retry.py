"""`--retry` and `--oom-fallback`: whole commands whose scripts fail with real messages, and kills between attempts."""

from __future__ import annotations

import json
import signal
from datetime import datetime

import pytest

from tests.chaos.cards import STAND_IN
from tests.engine.checkout import Checkout
from tests.tiers import first_of
from tests.waiting import wait_until

pytestmark = pytest.mark.host

HUB = "huggingface_hub.errors.HfHubHTTPError: 503 Server Error: Service Temporarily Unavailable for url: https://h.example/a/b"
PORT = "RuntimeError: The server socket has failed to listen on any local network address. EADDRINUSE, port 29500"
MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.00 GiB. GPU 0 has a total capacity of 79 GiB"
PREEMPTED = "slurmstepd: error: *** STEP 9.0 ON n1 CANCELLED AT 2026-01-01T00:00:00 DUE TO PREEMPTION ***"
LONG = ("--retry", "3", "--retry-wait", "3600")
SHORT = ("--retry", "3", "--retry-wait", "0.05")

TRAININGS = """
trained() {
  for n in $(seq 1 $1); do
    printf ' iteration %8d/%8d | elapsed time per iteration (ms): 9.0 | ' $n $1
    printf 'tokens per GPU (tokens/s/GPU): %d.0 | lm loss: 9.0E+00 |\\n' $2
  done
  echo '[after training is done] datetime: 2026-01-01 00:00:00'
}
trained 40 1000; trained 30 500
"""


def failing(times: int, *lines: str, then: str = 'echo "performance: 7 samples/s"') -> str:
    """Return a script that fails so often with these lines, and then does something else."""
    said = "".join(f"  echo '{line}' >&2\n" for line in lines)
    count = "../count-$MAD_MODEL_NAME"
    return f'echo x >> {count}\nif [ "$(wc -l < {count})" -le {times} ]; then\n{said}  exit 1\nfi\n{then}\n'


@pytest.fixture
def checkout(tmp_path) -> Checkout:
    return Checkout(tmp_path / "mad", "host", "unix:///nonexistent/docker.sock")


def rows_of(checkout: Checkout) -> list[tuple[str, str, str]]:
    return [(row["model"], row["performance"], row["status"]) for row in checkout.rows]


def superset_of(checkout: Checkout) -> list[tuple[str, str]]:
    text = (checkout.folder / "perf_super.json").read_text()
    return [(one["model"], one["status"]) for one in json.loads(text)]


def folders_of(checkout: Checkout) -> list[str]:
    return [path.parent.name for path in sorted(checkout.folder.glob("madlite_runs/*/plan.json"))]


NEXT = '"next":"2'  # and the rest of an id, in a journal


def is_set_aside(checkout: Checkout) -> bool:
    """Whether a run is waiting for its next attempt: its journal has that one's id."""
    return any(NEXT in path.read_text() for path in checkout.folder.glob("madlite_runs/*/journal.jsonl"))


def kill(started) -> str:
    started.kill()
    return started.communicate(timeout=240)[0]


@pytest.mark.parametrize("line", first_of([HUB, PORT, PREEMPTED], 1))
def test_a_run_that_fails_twice_for_what_passes_has_one_row(checkout, line):
    checkout.card("a", failing(2, line))
    done = checkout.run("--tags", "a", *SHORT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert rows_of(checkout) == [("a", "7", "SUCCESS")] == [(m, "7", s) for m, s in superset_of(checkout)]
    first, second, last = sorted(checkout.records(), key=lambda one: one["attempt"]["number"])
    assert [one["attempt"]["next"] for one in (first, second, last)] == [second["id"], last["id"], ""]
    assert [one["run"] for one in last["attempt"]["earlier"]] == [first["id"], second["id"]]
    assert first["rows"] is None and second["rows"] is None and len(last["rows"]["cells"]) == 1
    assert f"attempt 3, after {first['id']} [{first['cause']}], {second['id']}" in done.stdout
    assert "retry 1 of 3" in done.stdout and "retry 2 of 3" in done.stdout
    assert "tried again" in checkout.madlite("runs").stdout
    listed = json.loads(checkout.madlite("runs", "--status", "tried-again", "--json").stdout)
    assert sorted(one["id"] for one in listed) == sorted((first["id"], second["id"]))
    assert f"tried again as {second['id']}" in checkout.madlite("show", first["id"]).stdout
    rebuilt = checkout.madlite("report", "rebuild", "-o", "again.csv")
    assert "1 row of 1 run" in rebuilt.stdout, rebuilt.stdout + rebuilt.stderr
    checkout.assert_nothing_left()


def test_an_attempt_ended_when_it_did_and_not_after_its_successor(checkout):
    checkout.card("a", failing(1, HUB))
    assert checkout.run("--tags", "a", "--retry", "1", "--retry-wait", "4").returncode == 0
    first, last = sorted(checkout.records(), key=lambda one: one["attempt"]["number"])
    lasted_s = [
        (datetime.fromisoformat(one["ended"]) - datetime.fromisoformat(one["started"])).total_seconds()
        for one in (first, last)
    ]
    assert lasted_s == [int(one["durations_s"]["total"]) for one in (first, last)]
    assert first["ended"] < last["started"]


def test_what_does_not_pass_is_not_tried_again(checkout):
    for name, line in (("key", "KeyError: 'x'"), ("memory", MEMORY), ("nan", "loss is nan")):
        checkout.card(name, failing(9, "Traceback (most recent call last):", '  File "t.py", line 1, in f', line))
    done = checkout.run("--tags", "key,memory,nan", *SHORT)
    assert done.returncode == 3 and len(folders_of(checkout)) == 3
    assert rows_of(checkout) == [("key", "", "FAILURE"), ("memory", "", "FAILURE"), ("nan", "", "FAILURE")]


def test_the_last_attempt_that_fails_is_the_row(checkout):
    checkout.card("a", failing(9, HUB))
    done = checkout.run("--tags", "a", "--retry", "1", "--retry-wait", "0", "--add-column", "cause")
    assert done.returncode == 3 and len(folders_of(checkout)) == 2
    assert rows_of(checkout) == [("a", "", "FAILURE")] and checkout.rows[0]["cause"] == "network"


def test_ctrl_c_ends_the_wait_and_the_failed_attempt_has_its_row(checkout):
    checkout.card("a", failing(9, HUB))
    checkout.card("b", failing(0))
    started = checkout.start("--tags", "a,b", *LONG)
    wait_until(lambda: is_set_aside(checkout))
    started.send_signal(signal.SIGINT)
    out = started.communicate(timeout=240)[0]
    assert started.returncode == 130 and "never started: b" in out and "not tried again" in out, out
    assert rows_of(checkout) == [("a", "", "FAILURE")] and [m for m, _ in superset_of(checkout)] == ["a"]
    (record,) = checkout.records()
    assert record["attempt"]["next"] == "" and record["rows"]["appended"]


def test_a_failure_that_ends_the_batch_leaves_no_other_run_to_be_tried_again(checkout):
    checkout.card("a", failing(9, HUB))
    checkout.card("b", f"while ! grep -q '{NEXT}' ../madlite_runs/*-a-*/journal.jsonl; do sleep 0.1; done\nexit 7\n")
    done = checkout.run("--tags", "a,b", "--parallel", "2", "--fail-fast", *LONG)
    assert done.returncode == 3, done.stdout + done.stderr
    assert rows_of(checkout) == [("b", "", "FAILURE"), ("a", "", "FAILURE")]
    assert "not tried again: no run starts any more" in done.stdout
    (checkout.folder / "count-a").write_text("x\n" * 9)
    again = checkout.madlite("run", "--resume")
    assert rows_of(checkout)[2:] == [("a", "7", "SUCCESS")], again.stdout + again.stderr


def test_a_failed_attempt_has_its_row_as_soon_as_it_is_given_up(checkout):
    checkout.card("a", failing(9, HUB))
    checkout.card("b", f"while ! grep -q '{NEXT}' ../madlite_runs/*-a-*/journal.jsonl; do sleep 0.1; done\nexit 7\n")
    checkout.card("c", 'while [ "$(wc -l < ../perf.csv)" != 3 ]; do sleep 0.1; done\necho "performance: 1 x"\n')
    done = checkout.run("--tags", "a,b,c", "--parallel", "3", "--fail-fast", *LONG)
    assert done.returncode == 3, done.stdout + done.stderr
    assert [model for model, _, _ in rows_of(checkout)] == ["b", "a", "c"], "the last one waits for their rows"


def test_a_run_whose_wait_was_ended_is_run_again_by_resume(checkout):
    checkout.card("a", failing(1, HUB))
    checkout.card("b", failing(0))
    started = checkout.start("--tags", "a,b", *LONG)
    wait_until(lambda: is_set_aside(checkout))
    started.send_signal(signal.SIGINT)
    assert started.wait(timeout=240) == 130
    done = checkout.madlite("run", "--resume")
    assert done.returncode == 0, done.stdout + done.stderr
    assert rows_of(checkout) == [("a", "", "FAILURE"), ("a", "7", "SUCCESS"), ("b", "7", "SUCCESS")]


def test_a_kill_during_the_wait_loses_no_row(checkout):
    checkout.card("a", failing(9, HUB))
    checkout.card("b", failing(0))
    started = checkout.start("--tags", "a", *LONG)
    wait_until(lambda: is_set_aside(checkout))
    other = checkout.run("--tags", "b")
    assert other.returncode == 0 and rows_of(checkout) == [("b", "7", "SUCCESS")], "the first one goes on"
    (listed,) = (line for line in checkout.madlite("runs").stdout.splitlines() if " a " in line)
    assert "FAILURE" in listed and ", tried again" in listed and "collected" not in listed, "it does not run"
    name = listed.split()[0]
    assert f"tried again as {name[:8]}" in checkout.madlite("show", name).stdout
    packed = checkout.madlite("archive", name, "-o", "x.tar.gz")
    assert packed.returncode == 4 and "not collected" in packed.stderr, packed.stdout + packed.stderr
    pruned = checkout.madlite("clean", "--old", "--all", "--keep-last", "1", "--yes")
    assert (checkout.folder / "madlite_runs" / name / "result.json").exists(), pruned.stdout + pruned.stderr
    (waiting,) = (line for line in checkout.madlite("runs", "--watch", "--once").stdout.splitlines() if " a " in line)
    assert "ended: tried again" in waiting
    kill(started)
    assert rows_of(checkout) == [("b", "7", "SUCCESS")]
    done = checkout.run("--tags", "b")
    assert done.returncode == 0, done.stdout + done.stderr
    expected = [("b", "7", "SUCCESS"), ("a", "", "FAILURE"), ("b", "7", "SUCCESS")]
    assert rows_of(checkout) == expected and [m for m, _ in superset_of(checkout)] == ["b", "a", "b"]
    assert "its row was added to perf.csv" in done.stdout + done.stderr
    checkout.run("--tags", "b")
    assert rows_of(checkout) == [*expected, ("b", "7", "SUCCESS")]
    rebuilt = checkout.madlite("report", "rebuild", "-o", "again.csv")
    assert "4 rows of 4 runs" in rebuilt.stdout, rebuilt.stdout + rebuilt.stderr


@pytest.mark.full
def test_a_kill_during_the_next_attempt_leaves_the_row_of_the_one_before(checkout):
    second = 'if [ ! -e ../second ]; then touch ../second; echo begun; sleep 300; fi; echo "performance: 7 samples/s"'
    checkout.card("a", failing(1, HUB, then=second))
    checkout.card("b", failing(0))
    started = checkout.start("--tags", "a", *SHORT)
    checkout.wait_for("begun")
    kill(started)
    done = checkout.run("--tags", "b")
    assert done.returncode == 0, done.stdout + done.stderr
    assert rows_of(checkout) == [("a", "", "FAILURE"), ("b", "7", "SUCCESS")]
    assert "FAILURE [interrupted], it was cut off; its row was added to perf.csv" in done.stdout
    assert "no row: it was tried again as" in done.stdout, "of the attempt before"
    both = [one for one in checkout.records() if one["card"] == "a"]
    first, second = sorted(both, key=lambda one: one["attempt"]["number"])
    assert (first["rows"], first["attempt"]["next"], second["attempt"]["number"]) == (None, second["id"], 2)
    assert checkout.madlite("run", "--resume").returncode == 0
    assert rows_of(checkout)[2:] == [("a", "7", "SUCCESS")], "the run that was cut off is not finished"
    checkout.assert_nothing_left()


TRAINING = """echo "micro batch $MADLITE_MICRO_BATCH, global batch $MADLITE_GLOBAL_BATCH"
if [ "$MADLITE_MICRO_BATCH" -gt 2 ]; then echo '%s' >&2; exit 1; fi
for n in $(seq 1 24); do echo "step $n loss 2.$n tps 100.$n"; done
"""
PATTERN = r"step (?P<n>\d+) loss (?P<loss>\S+) tps (?P<tokens_per_s_per_gpu>[\d.]+)"


@pytest.fixture
def training(checkout) -> Checkout:
    recipe = {"script": "scripts/trained/run.sh", "steps": 24, "step": PATTERN, "nproc_per_node": 1}
    recipe |= {"micro_batch": 8, "global_batch": 16}
    checkout.card("trained", TRAINING % MEMORY, backend="torchrun", runtimes=["host"], recipe=recipe)
    del checkout.cards[-1]["scripts"], checkout.cards[-1]["dockerfile"]
    (checkout.folder / "models.json").write_text(json.dumps(checkout.cards))
    (checkout.folder / "python.sh").write_text(STAND_IN)
    (checkout.folder / "python.sh").chmod(0o755)
    return checkout


def test_the_steps_that_are_kept_are_those_of_the_training_that_has_the_number(checkout):
    """Its log has two trainings one after another: the last one counts."""
    recipe = {"script": "scripts/a/run.sh", "steps": 30, "reader": "megatron_lm", "nproc_per_node": 1}
    checkout.card("a", TRAININGS, backend="torchrun", runtimes=["host"], recipe=recipe)
    del checkout.cards[-1]["scripts"], checkout.cards[-1]["dockerfile"]
    (checkout.folder / "models.json").write_text(json.dumps(checkout.cards))
    (checkout.folder / "python.sh").write_text(STAND_IN)
    (checkout.folder / "python.sh").chmod(0o755)
    done = checkout.run("--tags", "a", "--set", f"env.MADLITE_PYTHON={checkout.folder}/python.sh")
    assert [row["performance"] for row in checkout.rows] == ["500"], done.stdout + done.stderr
    (kept,) = checkout.folder.glob("madlite_runs/*/steps.jsonl")
    steps = [json.loads(line) for line in kept.read_text().splitlines()]
    assert (len(steps), {one["values"]["tokens/s/GPU"] for one in steps}) == (30, {500.0})


def test_out_of_memory_is_followed_by_smaller_micro_batches(training):
    words = ("--set", f"env.MADLITE_PYTHON={training.folder}/python.sh", "--oom-fallback")
    done = training.run("--tags", "trained", *words, "--repeat", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [row["status"] for row in training.rows] == ["SUCCESS", "SUCCESS"]
    assert {row["batch_size"] for row in training.rows} == {"2"}
    records = training.records()
    tried = [(one["variant"]["micro_batch"], one["variant"]["global_batch"]) for one in records]
    assert sorted(tried) == [(2, 16)] * 3 + [(4, 16), (8, 16)], "known after the warm-up"
    ran = [one for one in records if one["status"] == "SUCCESS"]
    assert {one["origins"]["variant.micro_batch"] for one in ran} == {"--oom-fallback"}
    assert all(any("did not fit" in text and "ran with 2" in text for text in one["findings"]) for one in ran)
    assert "(ran with micro batch 2)  (2 of 2 runs, caches warm)" in done.stdout
    assert {one["attempt"]["micro_batch"] for one in ran} == {2}
    again = training.madlite("runs", "--of", ran[0]["study"]["id"])
    assert "(ran with micro batch 2)  (2 of 2 runs, caches warm)" in again.stdout


def test_a_script_of_the_cards_own_is_refused_alone_and_noted_beside_others(training):
    training.card("own", 'echo "performance: 1 x"')
    done = training.run("--tags", "own", "--oom-fallback")
    assert done.returncode == 4 and "--oom-fallback has no effect" in done.stderr and not training.records()
    words = ("--set", f"env.MADLITE_PYTHON={training.folder}/python.sh", "--oom-fallback")
    done = training.run("--tags", "own,trained", *words)
    assert done.returncode == 0 and "own: --oom-fallback has no effect" in done.stdout, done.stdout + done.stderr


def test_options_that_do_not_go_together_are_refused(checkout):
    checkout.card("a", failing(0))
    for words, said in (
        (("--retry-wait", "3"), "--retry-wait without --retry"),
        (("--retry", "-1"), "--retry"),
        (("--sweep", "batch_size=2,8", "--oom-fallback"), "--oom-fallback beside --sweep micro_batch"),
    ):
        done = checkout.run("--tags", "a", *words)
        assert done.returncode == 4 and said in done.stderr
