"""Which submissions a command means, where their rows go, and what becomes of jobs that nobody waits for."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from madlite.cli import jobs, submit
from madlite.cli.main import call
from madlite.jobs import follow, job
from madlite.jobs.outcomes import Over
from madlite.jobs.submission import note, submitting
from madlite.run.stop import Signals
from madlite.store.events import EVENTS, JobEvent
from madlite.store.folder import RunFolder
from tests import commands
from tests.csv_rows import csv_rows
from tests.rows import each_row
from tests.waiting import wait_until

pytestmark = pytest.mark.host
QUICK = {  # pauses; what is in no queue is asked about twice
    "madlite.jobs.job.GRACE_S": 0.1,
    "madlite.jobs.job.POLL_S": 0.3,
    "madlite.jobs.follow.SUBMIT_S": 0.1,
    "madlite.jobs.follow.TICK_S": 0.1,
    "madlite.platforms.slurm.allocation.PAUSE_S": 0.01,
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch) -> Path:
    """A working folder beside a Slurm that is stand-ins of its commands: its queue is empty, each job has failed."""
    (tmp_path / "bin").mkdir()
    for name in ("scontrol", "squeue", "scancel", "sinfo", "sacct"):
        command(tmp_path, name, "exit 0")
    command(tmp_path, "sbatch", f"echo sbatch >>{tmp_path}/submitted; echo $((4000 + $(wc -l <{tmp_path}/submitted)))")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    for name, pause_s in QUICK.items():
        monkeypatch.setattr(name, pause_s)
    (tmp_path / "run.sh").write_text("echo performance: 1 tok\n")
    card = {"name": "a", "scripts": "run.sh", "tags": [], "runtimes": ["host"], "n_gpus": "0"}
    (tmp_path / "models.json").write_text(json.dumps([card]))
    (tmp_path / "cluster.toml").write_text("[clusters.lab.slurm]\nexclusive = false\n")
    return tmp_path


def command(folder: Path, name: str, script: str) -> None:
    file = folder / "bin" / name
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)


def run(*words: str) -> int:
    return call(["run", "--cluster", "lab", "--tags", "a", *words])


def unreachable(folder: Path) -> None:
    for name in ("sbatch", "squeue"):
        command(folder, name, "echo 'Unable to contact slurm controller (connect failure)' >&2; exit 1")


def submissions(folder: Path) -> list[str]:
    """Return the ids of submissions, the oldest first: those of one second sort by chance."""
    made = [one.name.removeprefix("jobs-") for one in folder.glob("madlite_runs/jobs-*")]
    events = (folder / "madlite_runs" / EVENTS).read_text() if made else ""
    return sorted(made, key=lambda own: events.find(own) if own in events else len(events))


def test_rows_go_to_the_file_of_the_command_that_submitted_them(folder: Path):
    for name in ("a.csv", "b.csv"):
        assert run("--detach", "-o", name) == 0
    assert call(["cluster", "attach"]) == 3
    assert [len(csv_rows(folder / name)) for name in ("a.csv", "b.csv")] == [1, 1]


def test_what_has_its_rows_is_told_again_with_the_exit_code_of_its_outcome(folder: Path, capfd):
    assert run("--detach", "--repeat", "2") == 0
    assert call(["cluster", "attach"]) == 3
    first = capfd.readouterr().out
    assert "2 FAILURE" in first and f"results: {folder}/perf.csv" in first
    (own,) = submissions(folder)
    assert call(["cluster", "attach", own]) == 3
    again = capfd.readouterr().out
    ends = [line for line in first.splitlines() if "FAILURE a [" in line or "try:" in line or "results:" in line]
    assert len(ends) >= 3 and all(line in again for line in ends)
    assert len(csv_rows(folder / "perf.csv")) == 2
    shutil.rmtree(next(folder.glob("madlite_runs/2*-a-*")))
    assert call(["cluster", "attach", own]) == 3
    assert "its record is gone" in capfd.readouterr().err


@pytest.mark.parametrize(("words", "files"), [((), {"a.csv"}), (("-o", "all.csv"), {"all.csv"})])
def test_collect_has_a_file_of_its_own_only_where_one_is_named(folder: Path, words, files):
    assert run("--detach", "-o", "a.csv") == 0
    assert call(["runs", "collect", *words]) == 3
    assert {one.name for one in folder.glob("*.csv") if not one.name.startswith("perf_entry")} == files


PLUGIN = """apiVersion: v1
kind: Config
current-context: c
contexts: [{{name: c, context: {{cluster: c, user: u}}}}]
clusters: [{{name: c, cluster: {{server: "http://127.0.0.1:9"}}}}]
users:
- name: u
  user:
    exec: {{apiVersion: client.authentication.k8s.io/v1, command: touch, args: ["{marker}"], interactiveMode: Never}}
"""


NO_JOB = {"event": "job", "at": "", "submission": "", "script": 1, "job": "--me"}


def keep_events(folder: Path, is_kept: Callable[[str], bool]) -> None:
    """Take lines out of the event log."""
    log = folder / "madlite_runs" / EVENTS
    log.write_text("".join(line for line in log.read_text().splitlines(keepends=True) if is_kept(line)))


@pytest.fixture
def planted(folder: Path, monkeypatch) -> Path:
    """The file of a submission that lies in another folder than it was made in, where every command leaves a mark."""
    assert run("--detach") == 0
    (own,) = submissions(folder)
    here = folder / "elsewhere"
    shutil.copytree(folder / f"madlite_runs/jobs-{own}", here / f"madlite_runs/jobs-{own}")
    (here / "madlite_runs" / EVENTS).write_text(json.dumps(NO_JOB | {"submission": own}) + "\n")
    (folder / "config").write_text(PLUGIN.format(marker=folder / "executed"))
    for name in ("scontrol", "squeue", "scancel", "sinfo", "sacct", "sbatch"):
        command(folder, name, f"touch {folder / 'executed'}")
    monkeypatch.chdir(here)
    return here / f"madlite_runs/jobs-{own}/submission.json"


@each_row("scheduler", ["slurm", "kubernetes"])
@each_row("words", ["cluster jobs", "runs collect", "cluster attach", "cluster cancel {id}", "cluster jobs {id}"])
def test_a_submission_that_was_not_made_here_is_named_and_starts_nothing(
    folder: Path, planted: Path, caplog, scheduler, words
):
    submission = json.loads(planted.read_text()) | {"scheduler": scheduler}
    if scheduler == "kubernetes":
        submission["description"]["kubernetes"]["kubeconfig"] = str(folder / "config")
    planted.write_text(json.dumps(submission))
    caplog.clear()
    code = call(words.format(id=planted.parent.name.removeprefix("jobs-")).split())
    (told,) = [record.getMessage() for record in caplog.records]
    assert f"madlite_runs/{planted.parent.name}: did not begin in this folder" in told and "so left alone" in told
    assert code == (4 if "{id}" in words else 0) and not (folder / "executed").exists()


def test_a_submission_is_in_the_event_log_before_the_cluster_has_it(folder: Path):
    command(folder, "sbatch", 'grep -q \'"event":"submitted"\' madlite_runs/events.jsonl && echo 4001')
    assert run("--detach") == 0
    assert call(["cluster", "attach"]) == 3 and len(csv_rows(folder / "perf.csv")) == 1


def test_what_is_no_id_of_a_job_is_no_argument_of_a_command(folder: Path):
    assert run("--detach") == 0
    (own,) = submissions(folder)
    for name in ("scontrol", "squeue", "scancel", "sinfo", "sacct"):
        command(folder, name, f'echo {name} "$@" >>{folder}/asked')
    with (folder / "madlite_runs" / EVENTS).open("a") as log:
        log.write(json.dumps(NO_JOB | {"submission": own}, separators=(",", ":")) + "\n")
    for words in (["cluster", "jobs"], ["cluster", "cancel", own]):
        call(words)
    asked = (folder / "asked").read_text()
    assert "--me" not in asked and "scancel -- 4001" in asked


def test_no_secret_of_the_cluster_file_is_in_the_files_of_a_submission(folder: Path):
    secret = "hf_thisIsNoRealTokenButLooksLikeOne9012"
    with (folder / "cluster.toml").open("a") as file:
        file.write(f'[clusters.lab.env]\nHF_TOKEN = "{secret}"\n')
    assert run("--detach") == 0
    files = [file for file in folder.glob("madlite_runs/jobs-*/**/*") if file.is_file()]
    assert [file.name for file in files if secret in file.read_text()] == ["environment"]


def test_in_an_allocation_the_variable_of_a_cluster_submits_nothing(folder: Path, monkeypatch):
    monkeypatch.setenv("MADLITE_CLUSTER", "lab")
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n1")
    assert call(["run", "--tags", "a"]) == 0
    assert submissions(folder) == [] and len(csv_rows(folder / "perf.csv")) == 1


def test_detach_fails_where_nothing_was_submitted(folder: Path, capfd):
    unreachable(folder)
    assert run("--detach") == 3
    assert "is not submitted" in capfd.readouterr().err


def test_a_job_of_a_cluster_that_does_not_answer_is_not_over(folder: Path, capfd):
    assert run("--detach") == 0
    unreachable(folder)
    assert call(["cluster", "jobs"]) == 0
    out = capfd.readouterr().out
    assert "job 4001 unknown" in out and "over" not in out


def test_what_was_cancelled_before_it_was_submitted_never_is(folder: Path):
    unreachable(folder)
    assert run("--detach") == 3
    for name in ("sbatch", "squeue"):
        command(folder, name, f"echo {name} >>{folder}/asked")
    assert call(["cluster", "cancel", *submissions(folder)]) == 0
    (row,) = csv_rows(folder / "perf.csv")
    assert row["status"] == "FAILURE"
    (record,) = (json.loads(one.read_text()) for one in folder.glob("madlite_runs/*/record.json"))
    assert record["cause"] == "interrupted" and "cancelled before it was submitted" in record["reason"]
    assert call(["cluster", "attach"]) == 0 and "sbatch" not in (folder / "asked").read_text()


def test_a_run_that_has_ended_is_not_submitted_again(folder: Path):
    """The command was killed between sbatch and its note, and the job has ended since."""
    assert run("--detach") == 0
    keep_events(folder, lambda line: '"event":"job"' not in line or '"job":"' not in line)
    plan = next(folder.glob("madlite_runs/jobs-*/plans/1.json"))
    assert call(["run", "--plan", str(plan), "--no-rows"]) == 0
    assert call(["cluster", "attach"]) == 0
    assert len(csv_rows(folder / "perf.csv")) == 1 and (folder / "submitted").read_text() == "sbatch\n"


def test_a_job_that_is_started_twice_measures_once(folder: Path, capfd):
    """As of an sbatch whose answer did not come, or of a scheduler that queues it again and does not tell the job."""
    assert run("--detach") == 0
    (script,) = folder.glob("madlite_runs/jobs-*/scripts/1.sh")
    for code in (0, 4):
        assert subprocess.run(["bash", script], check=False).returncode == code
    assert "a run of this plan has begun" in capfd.readouterr().err
    assert call(["runs", "collect"]) == 0 and call(["runs", "collect"]) == 0
    assert len(csv_rows(folder / "perf.csv")) == 1


def test_a_run_that_another_command_is_about_to_collect_is_no_failure(folder: Path, monkeypatch):
    assert run("--detach") == 0
    (script,) = folder.glob("madlite_runs/jobs-*/scripts/1.sh")
    subprocess.run(["bash", script], check=True)
    real, done = job.collect_all, []

    def busy_at_first(folders, *rest):
        with ExitStack() as other:
            if not done:
                other.callback(RunFolder.reopen(folders[0]).close)
            done.extend(real(folders, *rest))
        return done[-1:]

    monkeypatch.setattr(job, "collect_all", busy_at_first)
    assert call(["cluster", "attach"]) == 0
    assert [one.failed for one in done] == [True, False] and len(csv_rows(folder / "perf.csv")) == 1


def test_accounting_that_stays_down_costs_a_run_its_cause_and_not_its_row(folder: Path):
    command(folder, "sacct", "echo 'sacct: error: Connection refused' >&2; exit 1")
    assert run("--detach") == 0 and call(["runs", "collect"]) == 3
    (record,) = (json.loads(one.read_text()) for one in folder.glob("madlite_runs/*/record.json"))
    assert "the cluster does not know job 4001 any more (sacct: Connection refused)" in record["reason"]


def test_what_another_command_submits_meanwhile_is_not_submitted_twice(folder: Path, monkeypatch):
    sbatch = (folder / "bin/sbatch").read_bytes()
    unreachable(folder)
    assert run("--detach") == 3
    for name, text in (("sbatch", sbatch), ("squeue", b"#!/bin/sh\n")):
        (folder / "bin" / name).write_bytes(text)
    read = jobs.open_submissions

    def and_another_begins(wanted):
        stored = read(wanted)
        keep_events(folder, lambda line: '"event":"job"' not in line)  # as it was before that command
        stored = read(wanted)
        commands.start(("cluster", "attach"), folder, os.environ, constants=QUICK).communicate()
        return stored

    monkeypatch.setattr(jobs, "open_submissions", and_another_begins)
    assert call(["cluster", "attach"]) in (0, 3)
    assert (folder / "submitted").read_text() == "sbatch\n"


def test_what_another_command_is_submitting_is_followed(folder: Path, monkeypatch):
    unreachable(folder)
    assert run("--detach") == 3
    command(folder, "squeue", "exit 0")
    (own,) = folder.glob("madlite_runs/jobs-*")

    def and_it_is_submitted(signals: Signals, limit_s: float) -> None:
        note(own, JobEvent(script=1, job="4001"))
        other.close()

    monkeypatch.setattr(job, "POLL_S", 0.0)
    monkeypatch.setattr(Signals, "wait", and_it_is_submitted)
    with ExitStack() as other:
        other.enter_context(submitting(own))
        assert call(["cluster", "attach"]) == 3
    assert [row["status"] for row in csv_rows(folder / "perf.csv")] == ["FAILURE"]


def test_who_waits_fails_with_the_run_that_another_command_collected(folder: Path, monkeypatch):
    assert run("--detach") == 0
    assert call(["runs", "collect"]) == 3
    keep_events(folder, lambda line: '"event":"job_ended"' not in line)  # not noted yet
    assert call(["cluster", "attach"]) == 3


@pytest.mark.parametrize("words", [(), ("--retry", "1", "--retry-wait", "0")])
def test_the_runs_of_a_submission_have_their_rows_and_no_job_writes_the_event_log(folder: Path, words):
    (folder / "run.sh").write_text("echo 'HTTPError: 429 Client Error: Too Many Requests for url: x'; exit 1\n")
    assert run("--detach", *words) == 0
    (plan,) = folder.glob("madlite_runs/jobs-*/plans/1.json")
    assert call(["run", "--plan", str(plan), "--no-rows", *words]) == 3
    assert '"event":"started"' not in (folder / "madlite_runs" / EVENTS).read_text()
    assert call(["runs", "collect"]) == 3
    (row,) = csv_rows(folder / "perf.csv")
    records = [json.loads(one.read_text()) for one in folder.glob("madlite_runs/*/record.json")]
    assert row["status"] == "FAILURE" and len(records) == 1 + bool(words)
    assert [one["cause"] for one in records if one["rows"]] == ["network"]
    assert call(["report", "rebuild", "-o", "again.csv"]) == 0 and len(csv_rows(folder / "again.csv")) == 1


def test_rows_wait_for_room_on_the_disk_and_one_sentence_says_so(folder: Path, small_disk, monkeypatch, capfd):
    for name in ("run.sh", "models.json", "cluster.toml"):
        shutil.move(folder / name, small_disk.path / name)
    monkeypatch.chdir(small_disk.path)
    assert run("--detach", "--repeat", "3") == 0
    small_disk.fill()
    assert call(["runs", "collect"]) == 3
    told = capfd.readouterr().err
    assert told.count("warning") == 1 and "No space left on device; rows wait for room on the disk (df -h .)" in told
    assert len(told) < 300 and "did not begin" not in told
    tried: list[Path] = []
    write = job.write_end

    def and_room_after_a_while(over: Over, *others):
        tried.extend(over.folders)
        if len(tried) == 12:
            small_disk.free()
        return write(over, *others)

    monkeypatch.setattr(job, "write_end", and_room_after_a_while)
    monkeypatch.setattr(follow, "TICK_S", 0.01)
    assert call(["cluster", "attach"]) == 3
    told = capfd.readouterr().err
    assert told.count("warning") == 1 and told.count("rows wait for room") == 1
    assert len(csv_rows(small_disk.path / "perf.csv")) == 3


def test_a_disk_that_is_full_once_sbatch_has_the_job_is_one_sentence_and_the_job_is_found_again(
    folder: Path, monkeypatch, capfd
):
    def full(home: Path, *events: JobEvent) -> None:
        if any(event.job for event in events):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        note(home, *events)

    with monkeypatch.context() as patched:
        patched.setattr(job, "note", full)
        assert run() == 3
    told = capfd.readouterr().err
    assert "madlite_runs/events.jsonl takes nothing of submission" in told and "Traceback" not in told, told
    assert "of job 4001, which goes on: No space left on device" in told
    (own,) = folder.glob("madlite_runs/jobs-*")
    command(folder, "squeue", f"echo '4001|madlite-{own.name[5:]}-1'")
    assert call(["cluster", "jobs"]) == 0
    assert "job 4001" in capfd.readouterr().out
    command(folder, "squeue", "exit 0")
    assert call(["cluster", "attach"]) == 3
    assert (folder / "submitted").read_text() == "sbatch\n", "it was submitted once"
    assert len(csv_rows(folder / "perf.csv")) == 1


def test_resume_goes_on_with_the_last_submission_to_the_cluster_and_with_no_other_runs(folder: Path, capfd):
    assert call(["run", "--resume", "--cluster", "lab"]) == 4
    assert "nothing was submitted to cluster 'lab'" in capfd.readouterr().err
    assert run("--detach") == 0
    assert run("--resume") == 4
    assert (
        "--tags beside --resume --cluster lab: it goes on with the runs of the last submission"
        in capfd.readouterr().err
    )
    assert call(["run", "--resume", "--cluster", "lab"]) == 3
    assert len(csv_rows(folder / "perf.csv")) == 1 and (folder / "submitted").read_text() == "sbatch\n"
    assert call(["run", "--resume", "--cluster", "lab"]) == 4
    assert "the last submission to cluster 'lab' has ended" in capfd.readouterr().err


def test_the_last_submission_is_the_one_that_was_made_last_within_the_same_second_too(folder: Path, monkeypatch, capfd):
    for last in ("ffffff", "000000"):
        monkeypatch.setattr(submit, "new_submission_id", lambda last=last: f"20261201T120000-{last}")
        assert run("--detach") == 0
    capfd.readouterr()
    assert call(["run", "--resume", "--cluster", "lab"]) == 3
    assert "submission 20261201T120000-000000: 1 run, job 4002" in capfd.readouterr().out
    assert submissions(folder) == ["20261201T120000-ffffff", "20261201T120000-000000"]


def test_resume_says_which_cluster_has_the_runs_and_names_one_that_is_unknown(folder: Path, capfd, monkeypatch):
    monkeypatch.setenv("MADLITE_CLUSTER", "lab")
    assert run("--detach") == 0
    capfd.readouterr()
    assert call(["run", "--resume"]) == 4
    assert "madlite run --resume --cluster lab" in capfd.readouterr().err
    assert call(["run", "--resume", "--cluster", "lap"]) == 4
    assert "has no cluster 'lap'" in capfd.readouterr().err
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n1")
    assert call(["run", "--resume"]) == 4
    assert "--cluster lab" not in capfd.readouterr().err, "in an allocation the variable counts for nothing"


def test_arrays_together_have_no_more_runs_at_once_than_may_go_on(folder: Path, monkeypatch):
    (folder / "cluster.toml").write_text("[clusters.lab.slurm]\nexclusive = false\nmax_array_size = 4\n")
    command(folder, "squeue", f"echo asked >>{folder}/asked; echo '4001_3|RUNNING|||'")  # the other two are over
    monkeypatch.setattr(follow, "TICK_S", 0.01)
    monkeypatch.setattr(job, "POLL_S", 0.05)
    words = ("run", "--cluster", "lab", "--tags", "a", "--at-most", "2", "--repeat", "6", "--on-interrupt", "leave")
    started = commands.start(words, folder, dict(os.environ), constants={**QUICK, "madlite.jobs.job.POLL_S": 0.1})
    wait_until((folder / "perf.csv").exists, "the rows of two runs")
    asked = (folder / "asked").read_text()
    wait_until(lambda: len((folder / "asked").read_text()) > len(asked) + 30, "five further looks")
    started.terminate()
    started.communicate(timeout=240)
    assert len(csv_rows(folder / "perf.csv")) == 2
    assert (folder / "submitted").read_text() == "sbatch\n", "two of three elements would go on beside the one"
    assert "%2\n" in next(folder.glob("madlite_runs/jobs-*/scripts/1.sh")).read_text()
    command(folder, "squeue", "exit 0")
    assert call(["cluster", "attach"]) == 3
    assert (folder / "submitted").read_text() == "sbatch\n" * 2 and len(csv_rows(folder / "perf.csv")) == 6


HEALTH = """
import os, sys
from pathlib import Path
from madlite.platforms.node_check import Examination, check_node
environ = {**os.environ, "SLURMD_NODENAME": "n1"}
check_node(Path(sys.argv[1]), environ, lambda health: Examination(problems=("gemm 12",)), 1)
"""


def test_a_run_that_begins_elsewhere_is_submitted_once_and_waits_for_nothing_that_is_over(folder: Path):
    (folder / "cluster.toml").write_text("[clusters.lab]\nhealth = true\n[clusters.lab.slurm]\nexclusive = false\n")
    command(folder, "sacct", "echo '4001|FAILED|1:0|n1|1:0|2026-01-02T03:04:05'")
    assert run("--detach", "--begin", "now+2hours", "--dependency", "afterok:12", "--exclude", "n3") == 0
    (own,) = folder.glob("madlite_runs/jobs-*")
    subprocess.run([sys.executable, "-c", HEALTH, str(own / "health")], check=True)
    command(folder, "sbatch", f"echo $@ >>{folder}/submitted; echo $((4000 + $(wc -l <{folder}/submitted)))")
    with submitting(own):  # by another command
        call(["runs", "collect"])
    assert (folder / "submitted").read_text() == "sbatch\n" and not (folder / "perf.csv").exists()
    call(["runs", "collect"])
    (_, again) = (folder / "submitted").read_text().splitlines()
    assert {*again.split()[1:-1]} == {"--exclude=n3,n1", "--begin=now", "--dependency="}


def test_a_number_is_that_of_a_job_and_no_part_of_an_id(folder: Path, capfd):
    assert run("--detach", "--repeat", "2") == 0
    (own,) = submissions(folder)
    for nonsense in (own[2:6], own[9:12], "2", ""):
        assert call(["cluster", "cancel", nonsense]) == 4
        assert f"'{nonsense}' is none of the submissions" in capfd.readouterr().err
    shutil.copytree(folder / "madlite_runs", folder / "kept")
    for name in ("4001", "4001_2", own[-6:], own[:11], own):
        shutil.copytree(folder / "kept", folder / "madlite_runs", dirs_exist_ok=True)  # it stays the same folder
        assert call(["cluster", "cancel", name]) == 0, name


def test_a_submission_that_is_ended_has_the_signal_s_code_and_is_given_up(folder: Path):
    command(
        folder, "sbatch", "echo 'Unable to contact slurm controller (connect failure)' >&2; kill -TERM $PPID; exit 1"
    )
    started = commands.run(("run", "--cluster", "lab", "--tags", "a"), folder, os.environ)
    assert started.returncode == 143, started.stderr
    assert call(["cluster", "attach"]) == 0 and len(csv_rows(folder / "perf.csv")) == 1


@each_row(
    ("words", "message"),
    [
        (
            ("--nodes", "2", "--runtime", "host"),
            "--runtime host beside --nodes 2: it would run on the first node alone",
        ),
        (("--nodes", "2", "--image", "i:1"), "--image i:1: the nodes run commands without a container"),
        (("--machine", "8xMI300X", "--dry-run"), "--machine beside --cluster"),
        (("--cluster", ""), "--cluster has no name"),
    ],
)
def test_what_would_run_elsewhere_than_asked_is_refused(folder: Path, capfd, words, message):
    assert run(*words) == 4
    assert message in capfd.readouterr().err and not (folder / "submitted").exists()


def test_a_card_with_an_image_is_no_job_on_nodes_without_containers(folder: Path, capfd):
    (folder / "a.Dockerfile").write_text("FROM scratch\n")
    card = {"name": "a", "scripts": "run.sh", "dockerfile": "a", "tags": [], "n_gpus": "0"}
    (folder / "models.json").write_text(json.dumps([card]))
    assert run("--nodes", "2", "--detach") == 3
    assert "card 'a' runs in an image (a), and the nodes have no container for it" in capfd.readouterr().out
    assert not (folder / "submitted").exists() and csv_rows(folder / "perf.csv")[0]["status"] == "FAILURE"
    assert run("--nodes", "2", "--detach", "--runtime", "slurm") == 0 and (folder / "submitted").exists()


def test_what_bash_said_of_a_job_that_never_began_is_the_reason(folder: Path):
    assert run("--detach") == 0
    (output,) = folder.glob("madlite_runs/jobs-*/output")
    (output / "1.out").write_text(
        "/var/spool/job4001/slurm_script: line 19: /nope/madlite: No such file or directory\n"
    )
    command(folder, "sacct", "echo '4001|FAILED|127:0|n1|127:0|2026-01-02T03:04:05'")
    assert call(["runs", "collect"]) == 3
    (record,) = (json.loads(one.read_text()) for one in folder.glob("madlite_runs/*/record.json"))
    assert "/nope/madlite: No such file or directory" in record["reason"]


def test_a_check_that_is_interrupted_leaves_no_job(folder: Path):
    cleaned = f"{sys.executable} -m madlite clean --yes >{folder}/cleaned 2>&1"
    command(folder, "squeue", f"cd {folder} && {cleaned}; kill -INT $PPID; sleep 0.5")
    command(folder, "scancel", f"echo $@ >>{folder}/cancelled")
    checked = commands.run(("cluster", "check", "lab", "--nodes", "1"), folder, os.environ)
    assert checked.returncode == 130, checked.stderr
    assert "4001" in (folder / "cancelled").read_text() and "Traceback" not in checked.stderr
    (left,) = folder.glob("madlite_runs/check-*")  # clean has left it, for it was in use
    assert f"the check's files stay: {left}" in checked.stderr
    assert "nothing is left behind" in (folder / "cleaned").read_text()
