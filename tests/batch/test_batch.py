"""The batch's file: what never started is known after a kill, and nothing of it stays after an orderly end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from madlite.batch.recovery.leftovers import find_leftovers, remove
from madlite.batch.recovery.unfinished import recovery_report
from madlite.cli.batches import unfinished
from madlite.errors import UsageProblem
from madlite.store import batch_journal as batches
from madlite.store.batch_journal import (
    BatchJournal,
    RequestedRun,
    dead_files,
    interrupted_batches,
    open_unfinished,
    requested_cards,
)
from madlite.store.folder import PLAN
from madlite.store.locks import acquire

THREE = [RequestedRun(id="r1", card="m1"), RequestedRun(id="r2", card="m2"), RequestedRun(id="r3", card="m3")]
KILLED = """
import os, sys
from pathlib import Path
from madlite.store import batch_journal as batches
from madlite.store.batch_journal import BatchJournal, RequestedRun
batch = BatchJournal(Path(sys.argv[1]), ("run", "--tags", "t"))
if sys.argv[2] == "unnamed":
    batches.Folder.rename = lambda *args: os.kill(os.getpid(), 9)
    BatchJournal(Path(sys.argv[1]), ("run", "--tags", "u"))
if sys.argv[2] != "unplanned":
    batch.request([RequestedRun(id=f"r{n}", card=f"m{n}") for n in (1, 2, 3)])
    batch.begin("r1"), batch.end("r1"), batch.begin("r2")
os.kill(os.getpid(), 9)
"""


def kill(workspace: Path, when: str = "") -> None:
    path = os.pathsep.join(filter(None, (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH"))))
    subprocess.run([sys.executable, "-c", KILLED, str(workspace), when], env={**os.environ, "PYTHONPATH": path})


def words(workspace: Path) -> list[str]:
    return [text for batch in interrupted_batches(workspace) for text in batch.messages]


def test_a_killed_batch_names_what_never_started_and_what_has_no_folder(tmp_path):
    kill(tmp_path)
    assert words(tmp_path) == [
        "1 run of an earlier batch never started: m3",
        "cut off without a row, of an earlier batch: m2",
    ]
    (tmp_path / "madlite_runs/r2").mkdir()
    (tmp_path / "madlite_runs/r2" / PLAN).touch()
    assert words(tmp_path) == ["1 run of an earlier batch never started: m3"], "its folder tells of the other"


def test_a_command_that_was_killed_while_it_planned_is_told_by_its_words(tmp_path):
    kill(tmp_path, "unplanned")
    assert words(tmp_path) == ["an earlier command was cut off before it began: madlite run --tags t"]


def test_a_command_that_was_killed_before_its_file_had_its_name_is_told_too(tmp_path):
    kill(tmp_path, "unnamed")
    told = [f"an earlier command was cut off before it began: madlite run --tags {tag}" for tag in "tu"]
    assert sorted(words(tmp_path)) == told
    left = [
        one for one in find_leftovers(tmp_path, {"DOCKER_HOST": "unix:///nonexistent"}).leftovers if one.run_id == "-"
    ]
    assert sorted((one.kind, one.text) for one in left) == [("batch", text) for text in told], "each once"
    assert [remove(one, {}) for one in left] == [None, None]
    assert [path.name for path in (tmp_path / "madlite_runs").iterdir()] == [".gitignore"]


def test_a_batch_that_goes_on_or_ended_leaves_nothing_to_tell(tmp_path):
    batch = BatchJournal(tmp_path, ("run",))
    batch.request(THREE)
    assert words(tmp_path) == [] and dead_files(tmp_path) == ()
    batch.close()
    batch.close()
    assert list(tmp_path.iterdir()) == [], "nothing ran: the folder is as it was"


def test_no_line_is_lost_where_runs_begin_and_end_in_many_threads(tmp_path):
    ids = [f"r{n}" for n in range(800)]
    with BatchJournal(tmp_path, ("run",)) as journal:
        journal.request(RequestedRun(id=one, card="a") for one in ids)

        def run(some):
            for one in some:
                journal.begin(one)
                journal.end(one)

        threads = [threading.Thread(target=run, args=(ids[n::8],)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        (file,) = tmp_path.glob("madlite_runs/batch-*.jsonl")
        lines = [json.loads(line) for line in file.read_text().splitlines() if line.strip()]
        journal.close()
    for key in ("began", "ended"):
        assert sorted(line[key] for line in lines if line.get(key)) == sorted(ids)


def test_a_folder_with_runs_stays(tmp_path):
    with BatchJournal(tmp_path, ()) as batch:
        (tmp_path / "madlite_runs/r1").mkdir()
        batch.close()
    assert sorted(path.name for path in (tmp_path / "madlite_runs").iterdir()) == [".gitignore", "r1"]


def test_a_bug_in_the_middle_leaves_the_file_and_one_before_the_runs_does_not(tmp_path):
    with pytest.raises(ZeroDivisionError), BatchJournal(tmp_path, ()) as batch:
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ZeroDivisionError), BatchJournal(tmp_path, ()) as batch:
        batch.request(THREE)
        batch.end("r1")
        raise ZeroDivisionError
    assert words(tmp_path) == ["2 runs of an earlier batch never started: m2, m3"]
    with BatchJournal(tmp_path, ()) as batch:
        batch.request(())
        batch.close()


def test_a_folder_that_cannot_be_written_to_costs_nothing(tmp_path):
    (tmp_path / "madlite_runs").write_text("a file")
    with BatchJournal(tmp_path, ("run",)) as batch:
        batch.request(THREE)
        batch.begin("r1")
        batch.end("r1")
    with BatchJournal() as batch:
        batch.request(THREE)
    assert (tmp_path / "madlite_runs").read_text() == "a file"


def test_a_full_disk_costs_lines_alone(tmp_path, monkeypatch):
    real = os.pwrite
    batch = BatchJournal(tmp_path, ("run",))
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: (_ for _ in ()).throw(OSError(28, "full")))
    batch.request(THREE)
    monkeypatch.setattr(os, "pwrite", real)
    os.close(batch._fd)
    assert words(tmp_path) == ["an earlier command was cut off before it began: madlite run"]


def test_lines_and_files_that_are_none_are_left_alone(tmp_path):
    runs = tmp_path / "madlite_runs"
    runs.mkdir()
    asked = json.dumps({"asked": [{"id": "../r1", "card": "m\udcff"}]}, ensure_ascii=True)
    (runs / "batch-a.jsonl").write_text("\n{\n5\n" + asked.replace("\\udcff", "x") + "\n" + '{"began": "../r')
    (runs / "batch-b.jsonl").symlink_to("/etc/passwd")
    os.mkfifo(runs / "batch-c.jsonl")
    (runs / "batch-d.jsonl").write_text("")
    assert words(tmp_path) == [
        "1 run of an earlier batch never started: mx",
        "an earlier command was cut off before it began: madlite",
    ]
    assert [path.name for path in dead_files(tmp_path)] == ["batch-a.jsonl", "batch-c.jsonl", "batch-d.jsonl"]


def test_words_that_are_no_text_are_spelled_out(tmp_path):
    with BatchJournal(tmp_path, ("run", "\udcff")) as batch:
        batch.request([RequestedRun(id="r", card="\udcff")])
        (file,) = (tmp_path / "madlite_runs").glob("batch-*.jsonl")
        assert "udcff" in file.read_text()
        batch.close()


def test_on_a_disk_that_became_full_it_still_says_how_far_it_is(tmp_path, monkeypatch):
    real = os.pwrite
    with BatchJournal(tmp_path, ("run",)) as batch:
        batch.request(THREE)
        size = next((tmp_path / "madlite_runs").glob("batch-*")).stat().st_size

        def full(fd: int, data: bytes, at: int) -> int:
            return real(fd, data[: max(0, size - at)], at)  # over what is there, and no further

        monkeypatch.setattr(os, "pwrite", full)
        for run in THREE[:2]:
            batch.begin(run.id)
        batch.end("r1")
    assert words(tmp_path) == [
        "1 run of an earlier batch never started: m3",
        "cut off without a row, of an earlier batch: m2",
    ]
    assert requested_cards(tmp_path / "madlite_runs") == {"r1": "m1", "r2": "m2", "r3": "m3"}


def test_a_run_that_the_disk_took_nothing_of_is_told_after_an_orderly_end_too(tmp_path):
    with BatchJournal(tmp_path, ("run",)) as batch:
        batch.request(THREE)
        for run in THREE[:2]:
            batch.begin(run.id)
        batch.end("r1")
        batch.close()
    assert words(tmp_path) == ["cut off without a row, of an earlier batch: m2"]
    (tmp_path / "madlite_runs/r2").mkdir()
    (tmp_path / "madlite_runs/r2" / PLAN).touch()
    assert words(tmp_path) == [], "its folder tells of it"


def test_the_file_is_held_before_anybody_can_see_it(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(
        batches, "acquire", lambda fd: seen.append((words(tmp_path), dead_files(tmp_path))) or acquire(fd)
    )
    with BatchJournal(tmp_path, ("run",)) as batch:
        assert seen == [([], ())] and dead_files(tmp_path) == ()
        assert len(list((tmp_path / "madlite_runs").glob("batch-*"))) == 1
        batch.close()
    assert list(tmp_path.iterdir()) == []


def test_a_batch_that_ends_while_it_is_asked_about_left_nothing(tmp_path, monkeypatch):
    with BatchJournal(tmp_path, ("run",)) as batch:
        monkeypatch.setattr(batches, "is_locked", lambda path, **unknown: bool(batch.close()))
        assert dead_files(tmp_path) == ()


def interrupt(workspace: Path, *command: str) -> None:
    with BatchJournal(workspace, command) as batch:
        batch.request(THREE)
        batch.begin("r1")
        batch.end("r1")
        batch.close(interrupted=True)


def test_the_interrupted_batch_of_run_outlives_the_studies_of_other_commands(tmp_path):
    interrupt(tmp_path, "run", "--tags", "demo")
    for command in ("bisect", "scaling"):
        interrupt(tmp_path, command, "demo")
    with BatchJournal(tmp_path, ("tune", "demo")) as tune:
        tune.request(THREE)  # and is killed: the file stays, and nobody holds it
    found, _ = open_unfinished(tmp_path)
    assert found is not None and found.command == ("run", "--tags", "demo")
    found.close()
    again, _ = open_unfinished(tmp_path)
    assert again is not None, "the locks of those that are not resumed are released"


def test_a_study_of_another_command_is_not_resumed_and_named(tmp_path):
    with BatchJournal(tmp_path, ("tune", "demo")) as tune:
        tune.request(THREE)
    with pytest.raises(UsageProblem, match="only madlite tune demo") as refused:
        unfinished(tmp_path)
    assert "madlite tune --help" in refused.value.hint
    (text,) = recovery_report(tmp_path)
    assert "3 runs of an earlier batch never started" in text and "run --resume" not in text


def test_a_batch_that_was_not_made_here_is_named_and_not_resumed(tmp_path, caplog):
    """Its command would be run: files that were copied here, or that an archive brought, begin nothing."""
    there, here = tmp_path / "there", tmp_path / "here"
    for place in (there, here):
        place.mkdir()
    interrupt(there, "run", "--tags", "demo")
    kill(there)
    (here / "madlite_runs").mkdir()
    names = [".interrupted.jsonl", *(file.name for file in dead_files(there))]
    assert len(names) == 2
    for name in names:
        (here / "madlite_runs" / name).write_bytes((there / "madlite_runs" / name).read_bytes())
    found, foreign = open_unfinished(here)
    assert found is None and [one.path.name for one in foreign] == names
    assert not any("--resume" in text for text in recovery_report(here))
    with pytest.raises(UsageProblem, match=f"--resume: madlite_runs/{names[-1]} is not in the journal of") as refused:
        unfinished(here)
    assert refused.value.hint.startswith("madlite run --tags t ")
    assert not caplog.records, "it is said once, by the error"
    interrupt(here, "run", "--tags", "own")
    unfinished(here).close()
    (told,) = [record.getMessage() for record in caplog.records]
    assert names[-1] in told and "so not resumed" in told
    own, _ = open_unfinished(there)
    assert own is not None
    own.close()


def acknowledge_all(workspace: Path) -> None:
    """Do what `madlite clean --yes` does."""
    for one in find_leftovers(workspace, {"DOCKER_HOST": "unix:///nonexistent"}).leftovers:
        assert remove(one, {}) is None


def test_clean_keeps_no_batch_for_resume_that_was_not_made_here(tmp_path):
    interrupt(tmp_path, "run", "--tags", "own")
    foreign = tmp_path / "madlite_runs/batch-99990101T000000-ffffff.jsonl"
    text = (tmp_path / "madlite_runs/.interrupted.jsonl").read_text()
    started = json.loads(text.splitlines()[0])
    text = text.replace(started["id"], "99990101T000000-ffffff").replace(started["started"], "9999-01-01T00:00:00")
    foreign.write_text(text.replace("own", "foreign"))
    acknowledge_all(tmp_path)
    assert not foreign.exists()
    found, _ = open_unfinished(tmp_path)
    assert found is not None and found.command == ("run", "--tags", "own")
    found.close()


def test_a_kept_batch_that_was_not_made_here_does_not_keep_an_own_one_from_being_resumed(tmp_path):
    kill(tmp_path)
    (own,) = dead_files(tmp_path)
    line = {"id": "99990101T000000-ffffff", "started": "9999-01-01T00:00:00", "command": ["run", "--tags", "foreign"]}
    own.with_name(".interrupted.jsonl").write_text(
        json.dumps(line) + "\n" + json.dumps({"asked": [{"id": "x", "card": "x"}]})
    )
    acknowledge_all(tmp_path)
    found, _ = open_unfinished(tmp_path)
    assert found is not None and found.command == ("run", "--tags", "t")
    found.close()
