"""`madlite clean --old`: which runs go, what of them stays, and which never go."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from madlite.archive.prune import Prunable, Rules, prune
from madlite.cli.main import call
from madlite.files import Folder
from madlite.model import Status
from madlite.reports.baselines import save_baseline
from madlite.reports.runs import open_run
from madlite.store.folder import LOCK, LOG, PLAN, RECORD, WORK
from madlite.store.record import load_record
from tests.archive.test_verify import SCRIPT, TRAINING, run_of
from tests.cli.stored_runs import good, store
from tests.rows import each_row

OLD, NEW = "20260102T030405-a-000001", "20260102T030500-b-000002"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    monkeypatch.chdir(tmp_path)
    for run, when in ((OLD, "2026-01-02T03:04:05+00:00"), (NEW, "2026-01-02T03:05:00+00:00")):
        store(tmp_path, run, good(run, when), log=b"x" * 100_000)
        outputs = tmp_path / "madlite_runs" / run / WORK / "outputs"
        outputs.mkdir(parents=True)
        (outputs / "weights.bin").write_bytes(b"w" * 500_000)
    monkeypatch.setattr(
        "madlite.archive.prune._age_s", lambda run, now: 40 * 86400.0 if run.folder.name == OLD else 5.0
    )
    return tmp_path


def said(capsys: pytest.CaptureFixture[str], *args: str, code: int = 0) -> str:
    capsys.readouterr()
    found = call(["clean", "--old", *args] if args[:1] != ("report",) else args)
    captured = capsys.readouterr()
    assert found == code, captured.out + captured.err
    assert "Traceback" not in captured.err and "internal error" not in captured.err
    return captured.out + captured.err


def names(place: Path, run: str) -> set[str]:
    return {one.name for one in (place / "madlite_runs" / run).iterdir()}


def test_the_bulk_of_an_old_run_goes_and_its_record_stays(place, capsys):
    before = (place / "madlite_runs" / OLD / RECORD).read_bytes()
    text = said(capsys, "--older-than", "30d")
    assert f"files    {OLD}  tiny  40 days old" in text and NEW not in text
    assert "1 run, 596 KiB: the same command with --yes removes these files; the records stay" in text.replace(
        "592", "596"
    )
    assert LOG in names(place, OLD)
    assert f"removed {OLD}" in said(capsys, "--older-than", "30d", "--yes")
    assert {RECORD, PLAN, LOCK} <= names(place, OLD) and not {LOG, WORK} & names(place, OLD)
    assert {LOG, WORK} <= names(place, NEW)
    assert (place / "madlite_runs" / OLD / RECORD).read_bytes() == before
    assert "nothing to remove" in said(capsys, "--older-than", "30d", "--yes")
    assert call(["runs"]) == 0 and "SUCCESS, pruned" in capsys.readouterr().out
    assert call(["show", OLD]) == 0 and "its log and other files were removed" in capsys.readouterr().out
    assert call(["verify", OLD]) == 0 and "it was pruned" in capsys.readouterr().out


@each_row(
    ("args", "going"),
    [
        (["--keep-last", "1"], {OLD}),
        (["--keep-last", "2"], set()),
        (["--keep-last", "0"], {OLD, NEW}),
        (["--older-than", "30d", "--keep-last", "2"], set()),
        (["--max-size", "1M"], {OLD}),
        (["--max-size", "100K"], {OLD, NEW}),
        (["--max-size", "10M"], set()),
        (["--max-size", "100K", "--older-than", "1h"], {OLD}),
    ],
)
def test_all_rules_that_are_given_apply(place, capsys, args, going):
    text = said(capsys, *args)
    assert {run for run in (OLD, NEW) if f"files    {run}" in text} == going


@each_row(
    ("args", "words"),
    [
        ([], "no age and no size is given"),
        (["--older-than", "30"], "'30' is no age: write 90m, 12h, 30d or 4w"),
        (["--max-size", "many"], "'many' is no size"),
        (["--older-than", "1d", "--dir", "nowhere"], "nowhere is no folder"),
    ],
)
def test_wrong_usage_is_a_sentence(place, capsys, args, words):
    assert words in (said(capsys, *args, code=4) if args else _plain(capsys))


def _plain(capsys: pytest.CaptureFixture[str]) -> str:
    assert call(["clean", "--old"]) == 4
    return capsys.readouterr().err


def test_a_run_that_is_needed_stays_and_the_reason_is_said(place, capsys):
    runs = place / "madlite_runs"
    store(place, "20260101T000000-c-000003", log=b"x")  # cut off
    (runs / "20260101T000000-d-000004").mkdir()
    store(place, "20260101T000000-d-000004", good("20260101T000000-d-000004"), log=b"x")
    (runs / "20260101T000000-d-000004" / RECORD).write_text("{")
    save_baseline(runs, "nightly", "last", (), (NEW,))
    store(place, "20260101T000000-e-000005", log=b"x")
    with (runs / "20260101T000000-e-000005" / LOCK).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        text = said(capsys, "--keep-last", "0", "--yes")
    lines = {line.split()[1][-6:]: line for line in text.splitlines() if line.startswith("stays")}
    assert "a baseline names it" in lines["000002"]
    assert "it was cut off: madlite clean --yes comes first" in lines["000003"]
    assert "record.json" in lines["000004"] and "it is still running" in lines["000005"]
    assert f"removed {OLD}" in text and {LOG, WORK} <= names(place, NEW)


def test_a_baseline_that_cannot_be_read_keeps_everything(place, capsys):
    (place / "madlite_runs/baselines").mkdir()
    (place / "madlite_runs/baselines/x.json").write_text('{"runs": 7}')
    assert "x.json is no baseline" in said(capsys, "--keep-last", "0", "--yes", code=4)
    assert {LOG, WORK} <= names(place, OLD)


def test_a_run_that_was_locked_since_it_was_listed_stays(place, monkeypatch):
    folder = place / "madlite_runs" / OLD
    found, before = open_run(folder), names(place, OLD)
    monkeypatch.setattr("madlite.store.folder.open_locked.__defaults__", (0.0,))
    with (folder / LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert prune(Prunable(run=found, bytes=1, age_s=0.0), Rules()) == "a madlite process has locked the run by now"
    assert names(place, OLD) == {*before, LOCK}


def test_what_a_workload_left_is_removed_however_it_is_made(place, capsys):
    work = place / "madlite_runs" / OLD / WORK
    kept = place / "precious"
    kept.mkdir()
    (kept / "file").write_text("x")
    (work / "link").symlink_to(kept)
    os.link(kept / "file", work / "hard")
    for name in (b"\xff\xfe", b"-rf", b"a\nb", b"x" * 255, b"\x1b[2J"):
        (Path(os.fsdecode(bytes(work) + b"/" + name))).mkdir()
    os.mkfifo(work / "pipe")
    (work / "shut").mkdir()
    (work / "shut/inner").mkdir()
    (work / "shut/inner").chmod(0)
    (work / "shut").chmod(0)
    said(capsys, "--older-than", "30d", "--yes")
    assert not work.exists() and (kept / "file").read_text() == "x"
    assert not [one for one in names(place, OLD) if one.startswith(".removed-")]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to mount")
def test_a_folder_in_which_something_is_mounted_stays_until_it_is_not(place, capsys):
    work = place / "madlite_runs" / OLD / WORK
    mounted = work / "of two words"
    mounted.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", mounted], check=False).returncode:
        pytest.skip("this container may not mount")
    try:
        (mounted / "precious").write_text("x")
        text = said(capsys, "--older-than", "30d", "--yes", code=3)
        assert f"a file system is mounted at {mounted}: umount it first" in text
        assert (mounted / "precious").exists() and (work / "outputs/weights.bin").exists()
    finally:
        subprocess.run(["umount", "-l", mounted], check=True)
    said(capsys, "--older-than", "30d", "--yes")
    assert not work.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs two users")
def test_what_root_left_for_another_user_is_said_and_the_rest_goes():
    folder = Path(tempfile.mkdtemp(dir="/tmp"))  # pytest's own folders are shut to other users
    try:
        (folder / "work/of_root").mkdir(parents=True)
        (folder / "work/of_root/file").write_text("x")
        (folder / "work/own").write_text("x")
        for place in (folder, folder / "work", folder / "work/own"):
            os.chown(place, 65534, 65534)
        assert as_nobody(folder) == "Permission denied"
        left = {one.name for one in folder.rglob("*")}
        assert "file" in left and "own" not in left
    finally:
        shutil.rmtree(folder)


def as_nobody(folder: Path) -> str:
    """Return what the removal of `work` says to a user who is not root."""
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            Folder.open(folder).remove_tree("work")
        except OSError as error:
            os.write(writing, str(error.strerror).encode())
        finally:
            os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with os.fdopen(reading) as said:
        return said.read()


class TestRealRuns:
    """Runs with rows, and what `report rebuild` makes of them afterwards."""

    pytestmark = pytest.mark.host

    @pytest.fixture
    def work(self, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        shutil.copytree(made, tmp_path / "work")
        monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
        monkeypatch.chdir(tmp_path / "work")
        return tmp_path / "work"

    def test_a_rebuilt_file_has_the_rows_of_pruned_runs(self, work, capsys):
        before = (work / "perf.csv").read_bytes()
        assert "removed" in said(capsys, "--keep-last", "0", "--yes")
        text = said(capsys, "report", "rebuild", "-o", "again.csv")
        assert (work / "again.csv").read_bytes() == before and "cannot be rebuilt" not in text
        assert (run_of(work, TRAINING) / "run.sh").exists()

    def test_runs_whose_folders_are_gone_are_counted_by_rebuild(self, work, capfd):
        name = run_of(work, SCRIPT).name
        assert f"removed {name}" in said(capfd, "--keep-last", "0", "--all", "--yes")
        assert [one for one in (work / "madlite_runs").iterdir() if one.is_dir()] == []
        text = said(capfd, "report", "rebuild", "-o", "again.csv", code=4)
        assert "no run has a record with rows" in text
        assert call(["run", "--tags", "a"]) == 0
        text = said(capfd, "report", "rebuild", "-o", "again.csv")
        assert "2 pruned runs cannot be rebuilt: 2 rows of perf.csv had no other copy" in text
        before = (work / "perf.csv").read_bytes()
        text = said(capfd, "report", "rebuild", "--force")
        assert "the old perf.csv was saved as perf.csv.before-" in text
        (copy,) = work.glob("perf.csv.before-*")
        assert copy.read_bytes() == before

    def test_a_record_that_is_the_only_copy_of_its_rows_stays_whatever_is_asked(self, work, capsys):
        rows = (work / "perf.csv").read_text().splitlines()
        (work / "perf.csv").write_text("\n".join([*rows[:2], rows[1]]) + "\n")
        text = said(capsys, "--keep-last", "0", "--all", "--yes")
        assert f"stays    {run_of(work, SCRIPT).name}" in text and "is the only copy of its rows" in text
        assert not list((work / "madlite_runs").glob(f"2*{TRAINING}*"))
        (work / "perf.csv").unlink()
        assert "there is no such file" in said(capsys, "--keep-last", "0", "--all")
        assert load_record(run_of(work, SCRIPT)).status is Status.SUCCESS
