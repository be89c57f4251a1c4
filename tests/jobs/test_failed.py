"""`run --resume --failed --cluster NAME`, and runs of one command on several clusters."""

from __future__ import annotations

import json
import os
import signal
from itertools import starmap
from pathlib import Path

import pytest

from madlite.cli.main import call
from madlite.jobs.submission import submitting
from tests import commands
from tests.csv_rows import csv_rows
from tests.jobs.test_attach import QUICK, command, folder, run, submissions  # noqa: F401
from tests.killing import KILL_AT
from tests.rows import each_row
from tests.tiers import every, first_of

pytestmark = pytest.mark.host
AGAIN = ("run", "--resume", "--failed", "--cluster", "lab")


def submitted(folder: Path) -> int:  # noqa: F811
    """Return how many jobs the cluster got."""
    file = folder / "submitted"
    return len(file.read_text().splitlines()) if file.exists() else 0


def submission(folder: Path, own: str) -> dict:  # noqa: F811
    return json.loads((folder / f"madlite_runs/jobs-{own}/submission.json").read_text())


def followed(folder: Path) -> dict[str, str]:  # noqa: F811
    """Return the runs that failed by the ids of their next attempts, of submissions that were made whole."""
    events = map(json.loads, (folder / "madlite_runs/events.jsonl").read_text().splitlines())
    made = {*submissions(folder)}
    of_runs = [event for event in events if event["event"] == "submitted" and event["submission"] in made]
    whole = [one for one in of_runs if (folder / f"madlite_runs/jobs-{one['submission']}/submission.json").exists()]
    return {run: earlier for event in whole for run, earlier in event.get("after", {}).items()}


def numbers(folder: Path) -> list[int]:  # noqa: F811
    """Return the numbers of attempts that the records have."""
    records = [json.loads(file.read_text()) for file in folder.glob("madlite_runs/2*/record.json")]
    return sorted((record["attempt"] or {"number": 1})["number"] for record in records)


def test_failed_runs_of_the_last_submission_are_submitted_once_more_by_their_plan_files(folder: Path, capfd):  # noqa: F811
    assert call([*AGAIN]) == 4
    assert "--resume: nothing was submitted to cluster 'lab'" in capfd.readouterr().err
    assert run("--detach", "--exclude", "n7", "--set", "env.MARK=here") == 0
    (folder / "models.json").write_text("[]")  # the plan file has it all
    capfd.readouterr()
    assert call([*AGAIN, "--exclude", "n8"]) == 3, "what is over gets its row, and is submitted again"
    out = capfd.readouterr().out
    first, second = submissions(folder)
    assert f"submission {first}: 1 failed run to run again, 0 not over" in out and "note: attempt 2, after" not in out
    assert submitted(folder) == 2 and len(csv_rows(folder / "perf.csv")) == 2 and numbers(folder) == [1, 2]
    old, new = (submission(folder, own) for own in (first, second))
    assert (old["goes_on"], new["goes_on"]) == ("", first)
    assert new["description"]["slurm"]["exclude"] == ["n7", "n8"]
    assert new["command"] == old["command"] and new["retry"] == old["retry"]
    files = [folder / f"madlite_runs/jobs-{own}/plans/1.json" for own in (first, second)]
    plans = [json.loads(file.read_text())["plan"] for file in files]
    texts = [json.dumps(plan).replace(plan["id"], "RUN") for plan in plans]
    assert texts[0] == texts[1] and "MARK" in texts[0]
    assert "--exclude=n7,n8" in (folder / f"madlite_runs/jobs-{second}/scripts/1.sh").read_text()
    assert call([*AGAIN]) == 3
    assert submitted(folder) == 3 and numbers(folder) == [1, 2, 3], "the last attempt is followed, and no other"
    assert len(set(followed(folder).values())) == len(followed(folder)) == 2


def test_what_goes_on_is_followed_and_not_submitted_again(folder: Path, capfd):  # noqa: F811
    assert run("--detach") == 0
    command(folder, "squeue", "case \"$*\" in *%T*) echo '4001|RUNNING|None|N/A|n1';; esac")
    assert call([*AGAIN, "--detach"]) == 0
    assert "0 failed runs to run again, 1 not over" in capfd.readouterr().out
    assert submitted(folder) == 1 and len(submissions(folder)) == 1
    command(folder, "squeue", "exit 0")
    with submitting(folder / f"madlite_runs/jobs-{submissions(folder)[0]}"):
        capfd.readouterr()
        assert call([*AGAIN]) == 4
    assert "another command is submitting runs of submission" in capfd.readouterr().err
    assert submitted(folder) == 1


def test_what_was_cancelled_before_it_had_a_job_is_submitted(folder: Path):  # noqa: F811
    command(folder, "sbatch", "echo 'Unable to contact slurm controller (connect failure)' >&2; exit 1")
    assert run() == 3
    assert call(["cluster", "cancel", submissions(folder)[0]]) == 0
    assert [row["status"] for row in csv_rows(folder / "perf.csv")] == ["FAILURE"]
    command(folder, "sbatch", f"echo sbatch >>{folder}/submitted; echo 4001")
    assert call([*AGAIN]) == 3
    assert submitted(folder) == 1 and len(csv_rows(folder / "perf.csv")) == 2


@each_row("words", ["--tags a", "--repeat 2", "a"])
def test_other_runs_than_those_of_the_submission_are_refused(folder: Path, capfd, words):  # noqa: F811
    assert run("--detach") == 0
    assert call([*AGAIN, *words.split()]) == 4
    assert "beside --resume --cluster lab" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("target", "when"),
    every(
        starmap(
            pytest.param,
            [
                ("madlite.jobs.submit.append", "before"),
                ("madlite.jobs.submit.append", "after"),  # asked for, and not made whole
                ("madlite.jobs.submit.write", "after"),
                ("madlite.platforms.slurm.scheduler.Slurm.submit", "before"),
                ("madlite.platforms.slurm.scheduler.Slurm.submit", "after"),
                ("madlite.jobs.job.collect_all", "before"),
            ],
        ),
        2,
    ),
)
def test_a_kill_loses_and_doubles_no_attempt(folder: Path, target, when):  # noqa: F811
    assert run() == 3
    killed = commands.start(AGAIN, folder, os.environ, first=(KILL_AT, target, when), constants=QUICK)
    out, _ = killed.communicate(timeout=120)
    assert killed.returncode == -signal.SIGKILL, out
    # what sbatch took, and nobody noted, is in the queue under its name
    name = f"madlite-{submissions(folder)[-1]}-1"
    taken = submitted(folder) == 2
    command(folder, "squeue", f"case \"$*\" in *%j*) echo '4002|{name}';; esac" if taken else "exit 0")
    done = commands.start(AGAIN, folder, os.environ, constants=QUICK)
    out, _ = done.communicate(timeout=120)
    assert done.returncode == 3, out
    rows = csv_rows(folder / "perf.csv")
    own = followed(folder)
    assert len(set(own.values())) == len(own), "no failed run has two next attempts"
    assert len(rows) == 1 + len(own) == submitted(folder) and numbers(folder) == [*range(1, len(rows) + 1)]


CLUSTERS = """
[clusters.lab.slurm]
exclusive = false
[clusters.big]
gpu = "MI300X"
gpus_per_node = 8
[clusters.big.slurm]
exclusive = false
"""


@pytest.fixture
def two(folder: Path) -> Path:  # noqa: F811
    (folder / "cluster.toml").write_text(CLUSTERS)
    (card,) = json.loads((folder / "models.json").read_text())
    (folder / "models.json").write_text(json.dumps([{**card, "name": name, "tags": ["t"]} for name in "abcde"]))
    return folder


@pytest.mark.parametrize("clusters", first_of([("--cluster", "lab,big"), ("--cluster", "lab", "--cluster", "big")], 1))
def test_clusters_get_the_runs_in_turns_and_are_followed_together(two: Path, capfd, clusters):
    assert call(["run", *clusters, "--tags", "t", "--at-most", "2"]) == 3
    out, err = capfd.readouterr()
    made = {one["cluster"]: one for one in (submission(two, own) for own in submissions(two))}
    assert {name: [run["card"] for run in one["runs"]] for name, one in made.items()} == {
        "lab": ["a", "c", "e"], "big": ["b", "d"]
    }  # fmt: skip
    assert {one["at_most"] for one in made.values()} == {2}
    plans = [json.loads(file.read_text())["plan"] for file in two.glob("madlite_runs/jobs-*/plans/*.json")]
    assert sorted(plan["machine"]["device"] for plan in plans) == ["MI300X", "MI300X", "cpu", "cpu", "cpu"]
    assert "different GPUs, so that their numbers are not comparable: lab no GPU, big MI300X" in err
    assert all(f" to {name}: " in out for name in made) and "5 FAILURE" in out
    assert sorted(row["model"] for row in csv_rows(two / "perf.csv")) == [*"abcde"]
    capfd.readouterr()
    assert call(["run", "--resume", "--failed", "--cluster", "big,lab"]) == 3
    assert "5 FAILURE" in capfd.readouterr().out and len(csv_rows(two / "perf.csv")) == 10
    assert call(["run", "--resume", "--failed", "--cluster", "big"]) == 3
    assert len(csv_rows(two / "perf.csv")) == 12, "those of the one cluster"


def test_a_dry_run_shows_the_scripts_of_each_cluster_and_detached_jobs_of_all_are_attached(two: Path, capfd):
    assert call(["run", "--cluster", "lab,big", "--tags", "t", "--dry-run"]) == 0
    out = capfd.readouterr().out
    assert out.index("# === cluster lab") < out.index("# --- 3 runs") < out.index("# === cluster big")
    assert not (two / "madlite_runs").exists()
    assert call(["run", "--cluster", "lab,big", "--tags", "t", "--detach"]) == 0
    assert call(["cluster", "jobs"]) == 0
    assert "cluster lab: 3 runs" in (out := capfd.readouterr().out) and "cluster big: 2 runs" in out
    assert call(["run", "--resume", "--cluster", "lab,big"]) == 3
    assert len(csv_rows(two / "perf.csv")) == 5


@each_row(
    ("words", "message"),
    [
        ("--cluster lab,big --sweep env.X=1,2", "runs that are compared are on one cluster"),
        ("--cluster lab,big --each-node", "runs that are compared are on one cluster"),
        ("--cluster lab,", "--cluster has no name: 'lab,'"),
        ("--cluster lab,bog", "has no cluster 'bog'"),
        ("--cluster ,", "--cluster has no name: ','"),
    ],
)
def test_clusters_that_say_nothing_together_are_refused(two: Path, capfd, words, message):
    assert call(["run", "--tags", "t", *words.split()]) == 4
    assert message in capfd.readouterr().err and not submissions(two)


@each_row("words", ["--resume --cluster ,", "--resume --cluster lab,", "--resume --failed --cluster ,"])
def test_what_is_resumed_needs_the_name_of_a_cluster(two: Path, capfd, words):
    assert call(["run", *words.split()]) == 4
    assert "--cluster has no name" in capfd.readouterr().err
