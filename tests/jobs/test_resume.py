"""`run --cluster … --resume`: jobs that go on are attached to, what was cut off is submitted anew."""

from __future__ import annotations

import json
import os
import re
import signal

import pytest

from tests.jobs.test_real_slurm import Site
from tests.waiting import wait_until

pytestmark = pytest.mark.engine
GOING = ("run", "--cluster", "lab", "--resume")


@pytest.fixture
def site(tmp_path, slurm):
    return Site(tmp_path, slurm)


def submissions(site: Site) -> list[str]:
    return sorted(one.name.removeprefix("jobs-") for one in site.folder.glob("madlite_runs/jobs-*"))


def ends(site: Site) -> list[tuple[str, str]]:
    return sorted((row["model"], row["status"]) for row in site.rows())


def begun(site: Site, count: int) -> None:
    wait_until(lambda: len([*site.folder.glob("madlite_runs/2*/progress.json")]) >= count, f"{count} runs have begun")


@pytest.mark.parametrize(
    ("target", "when", "words"),
    [
        ("madlite.jobs.submit.append", "before", GOING),
        ("madlite.platforms.slurm.scheduler.Slurm.submit", "before", (*GOING, "--tags", "t")),
        ("madlite.platforms.slurm.scheduler.Slurm.submit", "after", ("run", "--resume")),
        ("madlite.jobs.job.collect_all", "before", GOING),
    ],
)
def test_a_submitter_that_is_killed_is_gone_on_with(site, target, when, words):
    killed = site.start_killed(target, when, "run", "--cluster", "lab", "--tags", "t")
    killed.communicate(timeout=280)
    assert killed.returncode == -signal.SIGKILL
    code, out = site.call(*words)
    assert code == 0, out
    assert "2 SUCCESS" in out and ends(site) == [("a", "SUCCESS"), ("b", "SUCCESS")], out
    code, out = site.call(*words)
    assert code == 4 and "was killed or interrupted" in out, out
    assert len(site.rows()) == 2 and "removed" not in site.call("clean", "--yes")[1]


def test_what_was_cancelled_is_submitted_anew_beside_what_goes_on(site):
    """Of three points one has its row, one goes on, and one was cancelled while nobody followed."""
    words = ("run", "--cluster", "lab", "--tags", "a", "--sweep", "env.NAME=done,cancelled,long")
    script = (
        f'[ "$NAME" = done ] || for i in $(seq 900); do [ -e {site.folder}/$NAME ] && break; sleep 0.1; done\n'
        "echo performance: 5 tok\n"
    )
    (site.folder / "scripts/a/run.sh").write_text(script)
    left = site.start(*words)
    begun(site, 2)
    wait_until(lambda: len(site.rows()) == 1, "the first row")
    os.kill(left.pid, signal.SIGHUP)
    out, _ = left.communicate(timeout=280)
    assert left.returncode == 129 and "madlite run --resume goes on with what is open" in out, out
    (first,) = submissions(site)
    array = site.jobs()[0].partition("_")[0]
    site.slurm.checked("scancel", f"{array}_2")
    wait_until(lambda: f"{array}_2" not in site.slurm.checked("squeue", "-h", "-r", "-o", "%i"), "it is over")
    (site.folder / "cancelled").touch()
    again = site.start(*words, "--resume")
    wait_until(lambda: len(submissions(site)) == 2, "the second submission")
    wait_until(lambda: len(site.rows()) == 3, "the rows of the two that are over")
    (site.folder / "long").touch()
    out, _ = again.communicate(timeout=280)
    assert again.returncode == 0, out
    assert "1 of 3 runs is finished and not repeated, jobs that go on: 1" in out and "3 SUCCESS" in out, out
    assert sorted(row["status"] for row in site.rows()) == ["FAILURE", "SUCCESS", "SUCCESS", "SUCCESS"]
    assert [one["cause"] for one in site.records() if one["status"] == "FAILURE"] == ["interrupted"]
    assert {one["study"]["id"] for one in site.records()} == {first}
    counts = {one["varied"]["env.NAME"]: (one["succeeded"], one["requested"]) for one in study(site, first)}
    assert counts == {"done": (1, 1), "cancelled": (1, 1), "long": (1, 1)}
    assert site.call(*words, "--resume")[0] == 4


def study(site: Site, name: str) -> list[dict[str, object]]:
    return json.loads((site.folder / f"madlite_runs/study-{name}/study.json").read_text())["series"]


def test_the_answer_of_a_repeat_spans_the_commands(site):
    """The first run ends, the others are cancelled, gone on with by a command that is killed, and by one more."""
    go = site.folder / "go"
    script = f"mkdir {site.folder}/first 2>/dev/null || [ -e {go} ] || sleep 300\nsleep 1\necho performance: 12.5 tok\n"
    (site.folder / "scripts/a/run.sh").write_text(script)
    words = ("run", "--cluster", "lab", "--tags", "a", "--repeat", "4")
    cancelled = site.start(*words, "--on-interrupt", "cancel")
    wait_until(lambda: len(site.rows()) == 1, "the first row")
    os.kill(cancelled.pid, signal.SIGINT)
    out, _ = cancelled.communicate(timeout=280)
    assert cancelled.returncode == 130 and len(site.rows()) == 4, out
    (first,) = submissions(site)
    go.touch()
    killed = site.start_killed("madlite.jobs.job.JobTracker.poll", "after", *GOING)
    killed.communicate(timeout=280)
    assert killed.returncode == -signal.SIGKILL
    code, out = site.call(*words, "--resume", "--summary-output", "summary.json")
    assert code == 0, out
    assert "4 SUCCESS" in out and "(4 of 4 runs, caches user)" in out, out
    assert [row["status"] for row in site.rows()].count("SUCCESS") == 4 and len(site.rows()) == 7
    (series,) = study(site, first)
    assert (series["succeeded"], series["requested"], series["failed"]) == (4, 4, {})
    assert json.loads((site.folder / "summary.json").read_text())["study"]["id"] == first
    (line,) = re.findall(r"^ .*4 of 4 runs.*$", site.call("runs", "--of", first)[1], re.MULTILINE)
    assert line in out
    assert [*site.folder.glob("madlite_runs/.batch-*")] == []
