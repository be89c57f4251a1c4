"""`--resume`: batches that were killed or interrupted go on, and each run has its row once."""

from __future__ import annotations

import json
import signal
from itertools import product, starmap

import pytest

from tests.engine.checkout import Checkout, end
from tests.engine.test_retry import HUB, LONG, checkout, is_set_aside, kill, rows_of, superset_of  # noqa: F401
from tests.killing import KILL_AT
from tests.tiers import every, first_of
from tests.waiting import wait_until

pytestmark = pytest.mark.host

# the second run of the folder waits the first time
SECOND_WAITS = """echo x >> ../count
if [ "$(wc -l < ../count)" = 2 ]; then echo begun; sleep 300; fi
echo "performance: $(wc -l < ../count) samples/s"
"""


def models(checkout: Checkout) -> list[str]:  # noqa: F811
    return [row["model"] for row in checkout.rows]


def cut_off_and_done(checkout: Checkout) -> tuple[list[str], list[str]]:  # noqa: F811
    """Return the models of the FAILURE rows and of the others, in their order."""
    failed = [row["model"] for row in checkout.rows if row["status"] == "FAILURE"]
    return failed, [row["model"] for row in checkout.rows if row["status"] == "SUCCESS"]


def batch_files(checkout: Checkout) -> list[str]:  # noqa: F811
    """Return what the folder of runs has beside the runs and the event log."""
    names = {path.name for path in (checkout.folder / "madlite_runs").iterdir() if path.is_file()}
    return sorted(names - {"events.jsonl", ".gitignore"})


@pytest.fixture
def three(checkout: Checkout) -> Checkout:  # noqa: F811
    for name in ("a", "b", "c"):
        checkout.card(name, SECOND_WAITS)
    return checkout


def test_a_batch_that_was_killed_goes_on(three):
    started = three.start("--tags", "a,b,c", "--add-column", "run")
    three.wait_for("begun")
    kill(started)
    warned = three.madlite("runs").stderr
    assert "never started: c" in warned and "madlite run --resume goes on" in warned, warned
    done = three.madlite("run", "--resume")
    assert done.returncode == 0, done.stdout + done.stderr
    assert cut_off_and_done(three) == (["b"], ["a", "b", "c"])
    assert [model for model, _ in superset_of(three)] == ["a", "b", "b", "c"]
    assert "1 of 3 runs is finished and not repeated" in done.stdout and "3 SUCCESS" in done.stdout
    first, again = (one for one in three.records() if one["card"] == "b")
    assert (first["cause"], first["attempt"], first["rows"]["appended"]) == ("interrupted", None, True)
    assert (again["attempt"]["number"], again["attempt"]["next"]) == (2, "")
    assert again["attempt"]["earlier"] == [{"run": first["id"], "cause": "interrupted", "micro_batch": None}]
    assert "earlier run was cut off: " not in done.stdout and "never started" not in done.stdout
    assert batch_files(three) == [] and "cut off" not in three.madlite("runs").stderr
    assert "4 rows of 4 runs" in three.madlite("report", "rebuild", "-o", "again.csv").stdout
    done = three.madlite("run", "--resume")
    assert done.returncode == 4 and "no batch of this folder was killed or interrupted" in done.stderr
    three.assert_nothing_left()


def test_a_batch_that_was_interrupted_goes_on(three):
    started = three.start("--tags", "a,b,c")
    three.wait_for("begun")
    code, out = end(started, signal.SIGTERM)
    assert code == 143 and "never started: c" in out and batch_files(three) == []
    assert "madlite run --resume goes on with what was interrupted or never started" in out
    assert [status for _, _, status in rows_of(three)] == ["SUCCESS", "FAILURE"]
    done = three.madlite("run", "--resume")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [(m, s) for m, _, s in rows_of(three)] == [
        ("a", "SUCCESS"), ("b", "FAILURE"), ("b", "SUCCESS"), ("c", "SUCCESS")
    ], "the row of an interrupted run stays"  # fmt: skip
    assert batch_files(three) == []


@pytest.mark.full
def test_a_run_that_failed_by_itself_is_finished(three):
    three.card("bad", "exit 7\n")
    three.cards.insert(0, three.cards.pop())
    (three.folder / "models.json").write_text(json.dumps(three.cards))
    started = three.start("--tags", "bad,a,b,c")
    three.wait_for("begun")
    kill(started)
    done = three.madlite("run", "--resume")
    assert done.returncode == 3 and "2 of 4 runs are finished" in done.stdout, done.stdout + done.stderr
    assert cut_off_and_done(three) == (["bad", "b"], ["a", "b", "c"]) and "1 FAILURE" in done.stdout


@pytest.mark.parametrize(
    ("tags", "left_out", "again"),
    first_of([("a,b,c", "--set env.L=1", "a b c"), pytest.param("a", "--sweep env.L=1,1e0,1.0", "--tags a")], 1),
)
def test_options_that_are_left_out_are_those_of_the_batch(three, tags, left_out, again):
    started = three.start("--tags", tags, *left_out.split())
    three.wait_for("begun")
    kill(started)
    done = three.madlite("run", *again.split(), "--resume")
    assert done.returncode == 0 and "1 of 3 runs is finished" in done.stdout, done.stdout + done.stderr
    assert {record["runtime"] for record in three.records()} == {"host"}
    assert all(float(record["env"]["L"]) == 1 for record in three.records()) and len(three.records()) == 4


def test_what_changed_since_is_said_and_other_plans_are_run(three):
    started = three.start("--tags", "a,b,c")
    three.wait_for("begun")
    kill(started)
    script = three.folder / "scripts/a/run.sh"
    script.write_text(script.read_text() + "# changed\n")
    done = three.run("--tags", "a,b,c", "--resume", "--set", "env.OTHER=1")
    assert done.returncode == 0 and "0 of 3 runs are finished" in done.stdout, done.stdout + done.stderr
    assert "scripts/a/run.sh has changed since the batch began" in done.stdout
    assert cut_off_and_done(three) == (["b"], ["a", "a", "b", "c"])


def test_a_kill_of_the_resumed_batch_is_resumed_too(three):
    started = three.start("--tags", "a,b,c")
    three.wait_for("begun")
    kill(started)
    waits = "echo y >> ../again; [ $(wc -l < ../again) = 1 ] && echo third && sleep 300\necho 'performance: 3 x'\n"
    (three.folder / "scripts/c/run.sh").write_text(waits)
    started = three.start("--tags", "a,b,c", "--resume")
    three.wait_for("third")
    other = three.madlite("run", "--resume")
    assert other.returncode == 4 and "no batch" in other.stderr, "two commands do not resume one batch"
    kill(started)
    done = three.madlite("run", "--resume")
    assert done.returncode == 0 and "2 of 3 runs are finished" in done.stdout, done.stdout + done.stderr
    assert cut_off_and_done(three) == (["b", "c"], ["a", "b", "c"])
    assert models(three) == [model for model, _ in superset_of(three)]


def test_a_study_goes_on_with_its_other_samples(three):
    del three.cards[1:]
    (three.folder / "models.json").write_text(json.dumps(three.cards))
    script = SECOND_WAITS.replace("= 2", "= 3").replace("echo x", 'touch "$TRITON_CACHE_DIR/kernel"; echo x')
    (three.folder / "scripts/a/run.sh").write_text("#!/bin/bash\n" + script)
    started = three.start("--tags", "a", "--repeat", "3")  # a warm-up, and the second sample waits
    three.wait_for("begun")
    kill(started)
    done = three.madlite("run", "--resume")
    assert done.returncode == 0, done.stdout + done.stderr
    records = three.records()
    assert len({one["study"]["id"] for one in records}) == 1
    samples = [one["study"]["index"] for one in records if not one["study"]["warm_up"]]
    assert sorted(samples) == [1, 2, 2, 3] and len(records) == 5, "the warm-up's caches are still there"
    assert "3 of 3 runs, caches warm" in done.stdout and cut_off_and_done(three) == (["a"], ["a"] * 3)
    assert "caches are left" not in done.stdout + done.stderr, "they are this study's"
    assert not [path for path in three.folder.glob("madlite_runs/study-*/*") if path.name != "study.json"]


@pytest.mark.parametrize(
    ("study", "others"),
    first_of(
        [
            (
                ("--tags", "a", "--sweep", "env.L=1,2,3"),
                [("--tags", "a", "--sweep", "env.L=5,6,7"), ("--tags", "a", "--sweep", "env.L=1,2")],
            ),
            pytest.param(("--tags", "a", "--repeat", "3"), [("--tags", "b", "--repeat", "2")]),
        ],
        1,
    ),
)
def test_a_study_takes_in_no_runs_of_another_configuration(three, study, others):
    started = three.start(*study)
    three.wait_for("begun")
    kill(started)
    before = three.records()
    for other in others:
        done = three.run(*other, "--resume")
        assert done.returncode == 4, done.stdout + done.stderr
        assert "was begun with other cards or options" in done.stderr and three.records() == before
    done = three.madlite("run", "--resume")
    assert done.returncode == 0 and "3 runs" in done.stdout, done.stdout + done.stderr


def test_a_sweep_goes_on_with_more_points(three):
    started = three.start("--tags", "a", "--sweep", "env.L=1,2")
    three.wait_for("begun")
    kill(started)
    done = three.run("--tags", "a", "--sweep", "env.L=1,2,3", "--resume")
    assert done.returncode == 0 and "1 of 3 runs is finished" in done.stdout, done.stdout + done.stderr
    records = three.records()
    assert len({one["study"]["id"] for one in records}) == 1
    assert sorted((one["study"]["series"], one["study"]["varied"]["env.L"], one["status"]) for one in records) == [
        (1, "1", "SUCCESS"), (2, "2", "FAILURE"), (2, "2", "SUCCESS"), (3, "3", "SUCCESS")
    ]  # fmt: skip


def test_a_retry_that_was_killed_in_its_wait_goes_on(checkout):  # noqa: F811
    checkout.card(
        "a",
        f"echo x >> ../count\nif [ $(wc -l < ../count) = 1 ]; then echo '{HUB}'; exit 1; fi\necho 'performance: 7 x'\n",
    )
    started = checkout.start("--tags", "a", *LONG)
    wait_until(lambda: is_set_aside(checkout))
    kill(started)
    done = checkout.madlite("run", "--resume")
    assert done.returncode == 0, done.stdout + done.stderr
    assert rows_of(checkout) == [("a", "7", "SUCCESS")] and [m for m, _ in superset_of(checkout)] == ["a"]
    first, last = sorted(checkout.records(), key=lambda one: one["attempt"]["number"])
    assert first["attempt"]["next"] == last["id"] and last["attempt"]["earlier"][0]["run"] == first["id"]
    assert "1 row of 1 run" in checkout.madlite("report", "rebuild", "-o", "again.csv").stdout


def test_a_secret_of_the_command_is_not_known_any_more(checkout):  # noqa: F811
    checkout.card("a", "echo begun; sleep 300\n")
    started = checkout.start("--tags", "a", "--set", "env.MAD_SECRETS_X=hf_abcdefghijklmnopqrstuvwxyzabcdefgh")
    checkout.wait_for("begun")
    kill(started)
    done = checkout.madlite("run", "--resume")
    assert done.returncode == 4 and "had a secret" in done.stderr, done.stdout + done.stderr


KILLED_AT = (
    "madlite.batch.runner.Batch._run",
    "madlite.store.folder.RunFolder.create",
    "madlite.perfcsv.append.append_runs",
    "madlite.perfcsv.append._append",
    "madlite.run.result_writer.ResultWriter._write_side_files",
    "madlite.run.result_writer.make_record",
    "madlite.store.folder.RunFolder.end_journal",
    "madlite.store.batches.BatchLog.end",
    "madlite.store.batches.BatchLog.close",
)


RETRY = ("--retry=1", "--retry-wait", "0")
# each sixth; tests/crash has points of all of a batch that is resumed
KILLS = every(starmap(pytest.param, product(KILLED_AT, ("before", "after"), ((), RETRY))), 6)


@pytest.mark.parametrize(("target", "moment", "words"), KILLS)
def test_after_a_kill_at_any_point_each_run_has_its_row_once(checkout, target, moment, words):  # noqa: F811
    for name in ("a", "b", "c"):
        checkout.card(name, 'echo "performance: 1 x"\n')
    count = "1" if target.endswith("close") else "2"
    done = checkout.run("--tags", "a,b,c", "--add-column", "run", *words, first=(KILL_AT, target, moment, count))
    assert done.returncode == -signal.SIGKILL, done.stdout + done.stderr
    again = checkout.run("--tags", "a,b,c", "--add-column", "run", *words, "--resume")
    if target.endswith("close") and moment == "after":
        assert again.returncode == 4, "all of it was done"
    else:
        assert again.returncode == 0, again.stdout + again.stderr
    cut_off, done = cut_off_and_done(checkout)
    assert done == ["a", "b", "c"] and cut_off in ([], ["b"]), again.stdout
    assert len({row["run"] for row in checkout.rows}) == len(checkout.rows), "no attempt has two rows"
    assert [model for model, status in superset_of(checkout) if status == "SUCCESS"] == ["a", "b", "c"]
    rebuilt = checkout.madlite("report", "rebuild", "-o", "again.csv")
    count = len(checkout.rows)
    assert f"{count} rows of {count} runs" in rebuilt.stdout, rebuilt.stdout + rebuilt.stderr
