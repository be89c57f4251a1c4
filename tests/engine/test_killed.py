"""A run whose madlite was killed gets its row by the next command, once, and `--resume` runs it again."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
from itertools import product, starmap
from pathlib import Path
from pkgutil import resolve_name

import pytest

from madlite.batch.collect import collect_all, cut_off_runs, recover
from madlite.batch.leftovers import Leftover, Leftovers, end_journals
from madlite.batch.runner import Batch
from madlite.store.folder import RunFolder
from tests.csv_rows import csv_rows
from tests.engine.checkout import Checkout
from tests.engine.test_batch import Quiet, planned  # noqa: F401 - a fixture
from tests.engine.test_retry import checkout, kill  # noqa: F401 - a fixture
from tests.engine.test_unfinished import Killed, kill_at, rows_of
from tests.killing import KILL_AT
from tests.tiers import every

pytestmark = pytest.mark.host
WAITS = """echo x >> ../count
if [ "$(wc -l < ../count)" = 1 ]; then sleep 300 & echo begun; wait; fi
echo "performance: 7 x"
"""


@pytest.fixture
def killed(checkout: Checkout) -> Checkout:  # noqa: F811
    """A checkout in which a run of the card `a` was killed, and its script goes on."""
    checkout.card("a", WAITS)
    checkout.card("b", 'echo "performance: 1 x"\n')
    started = checkout.start("--tags", "a", "--add-column", "cause", "-o", "nightly.csv")
    checkout.wait_for("begun")
    kill(started)
    return checkout


def table(checkout: Checkout, name: str) -> list[tuple[str, str]]:  # noqa: F811
    path = checkout.folder / name
    return [(row["model"], row["status"]) for row in csv_rows(path)] if path.exists() else []


def test_the_next_run_writes_the_row_into_the_file_that_it_was_for(killed):
    done = killed.run("--tags", "b")
    (record,) = (one for one in killed.records() if one["card"] == "a")
    said = f"{record['id']}: FAILURE [interrupted], it was cut off; its row was added to nightly.csv"
    assert done.returncode == 0 and done.stdout.count(said) == 1, done.stdout + done.stderr
    (row,) = csv_rows(killed.folder / "nightly.csv")
    assert (row["model"], row["status"], row["cause"], row["performance"]) == ("a", "FAILURE", "interrupted", "")
    assert table(killed, "perf.csv") == [("b", "SUCCESS")]
    assert record["reason"] == "madlite was killed before the run had ended (last seen: running)"
    assert record["command"][0] == "run" and record["durations_s"]["total"] >= record["durations_s"]["run"] >= 0
    assert "cut off" not in killed.run("--tags", "b").stdout, "it is said once"
    killed.assert_nothing_left()
    done = killed.madlite("run", "--resume")
    assert done.returncode == 0 and f"attempt 2, after {record['id']} [interrupted]" in done.stdout, done.stdout
    assert table(killed, "nightly.csv") == [("a", "FAILURE"), ("a", "SUCCESS")]


def test_collect_writes_it_while_its_script_goes_on_and_clean_ends_that(killed):
    done = killed.madlite("runs", "collect")
    assert done.returncode == 3 and table(killed, "nightly.csv") == [("a", "FAILURE")]
    assert "its row was added to nightly.csv; 2 of its processes are still running" in done.stdout, done.stdout
    assert killed.left_processes() and (killed.folder / "run_directory").exists()
    assert "process" in killed.madlite("clean").stdout
    done = killed.madlite("clean", "--yes")
    assert done.returncode == 0 and not (killed.folder / "run_directory").exists(), done.stdout + done.stderr
    killed.assert_nothing_left()
    assert table(killed, "nightly.csv") == [("a", "FAILURE")] and not list(
        killed.folder.glob("madlite_runs/*/journal.jsonl")
    )


def test_the_next_run_ends_what_goes_on_of_a_run_that_has_its_row_by_then(killed):
    killed.madlite("runs", "collect", "-o", "other.csv")
    assert table(killed, "other.csv") == [("a", "FAILURE")] and not table(killed, "nightly.csv")
    done = killed.run("--tags", "b")
    assert "was still running, ended" in done.stdout, done.stdout
    killed.assert_nothing_left()


def test_clean_writes_it_and_the_batch_can_still_be_resumed(killed):
    listed = killed.madlite("clean").stdout
    assert "unfinished, no row" in listed and table(killed, "nightly.csv") == []
    assert "madlite clean --yes removes this, and adds the row of a run that was cut off" in listed, listed
    done = killed.madlite("clean", "--yes")
    assert "FAILURE [interrupted], it was cut off; its row was added to nightly.csv" in done.stdout, done.stdout
    assert table(killed, "nightly.csv") == [("a", "FAILURE")] and "nothing is left" in killed.madlite("clean").stdout
    assert "cut off" not in killed.madlite("runs").stderr
    assert killed.madlite("run", "--resume").returncode == 0
    assert table(killed, "nightly.csv") == [("a", "FAILURE"), ("a", "SUCCESS")]


def test_clean_removes_an_empty_journal_and_the_batch_is_resumed_all_the_same(killed):
    killed.run("--tags", "b")  # writes the row, and has no more to say of the batch
    (record,) = (one for one in killed.records() if one["card"] == "a")
    left = killed.folder / "madlite_runs" / record["id"] / "journal.jsonl"
    left.touch()
    done = killed.madlite("clean", "--yes")
    assert done.returncode == 0 and not left.exists(), done.stdout + done.stderr
    done = killed.madlite("run", "--resume")
    assert done.returncode == 0 and table(killed, "nightly.csv")[-1] == ("a", "SUCCESS"), done.stdout


def test_a_run_without_rows_gets_one_by_collect_alone(checkout):  # noqa: F811
    checkout.card("a", WAITS)
    checkout.card("b", 'echo "performance: 1 x"\n')
    started = checkout.start("--tags", "a", "--no-rows")
    checkout.wait_for("begun")
    kill(started)
    assert checkout.run("--tags", "b").returncode == 0 and table(checkout, "perf.csv") == [("b", "SUCCESS")]
    done = checkout.madlite("runs", "collect")
    assert "FAILURE [interrupted], it was cut off" in done.stdout and done.returncode == 3, done.stdout + done.stderr
    assert table(checkout, "perf.csv") == [("b", "SUCCESS"), ("a", "FAILURE")]


KILLED_AT = (
    "madlite.perfcsv.append._append",
    "madlite.batch.collect.leave_entries",
    "madlite.store.folder.RunFolder.write_record",
    "madlite.store.folder.RunFolder.end_journal",
    "madlite.batch.collect.remove_run_files",
)


# before one and after the next: what is between two of them is one moment
@pytest.mark.parametrize(("target", "moment"), every(starmap(pytest.param, product(KILLED_AT, ["before", "after"])), 3))
def test_a_kill_while_the_row_is_written_neither_loses_nor_doubles_it(killed, target, moment):
    done = killed.madlite("clean", "--yes", first=(KILL_AT, target, moment))
    assert done.returncode == -signal.SIGKILL, done.stdout + done.stderr
    assert killed.madlite("clean", "--yes").returncode == 0
    assert table(killed, "nightly.csv") == [("a", "FAILURE")]
    (record,) = killed.records()
    assert (record["cause"], record["ended_by"]) == ("interrupted", "interrupted")
    rebuilt = killed.madlite("report", "rebuild", "-o", "again.csv")
    assert "1 row of 1 run" in rebuilt.stdout, rebuilt.stdout + rebuilt.stderr


def cut_off(planned, monkeypatch, target: str, *, after: bool = False) -> None:  # noqa: F811
    plans, options, plugins = planned
    with monkeypatch.context() as patch:
        kill_at(patch, target, after=after)
        with pytest.raises(Killed):
            Batch(plans, options, plugins, Quiet()).run()


@pytest.mark.parametrize("after", [False, True])
def test_a_run_that_was_killed_beside_its_row_keeps_its_result(planned, monkeypatch, after):  # noqa: F811
    _, options, _ = planned
    cut_off(planned, monkeypatch, "madlite.perfcsv.append._append", after=after)
    (said,) = recover(options.workspace, options.output)
    assert "SUCCESS, it was cut off; its row" in said, said
    assert [(row["status"], row["performance"]) for row in csv_rows(options.output)] == [("SUCCESS", "5")]
    (folder,) = (options.workspace / "madlite_runs").glob("id-*")
    record = json.loads((folder / "record.json").read_text())
    assert (record["status"], record["metrics"][0]["value"], record["rows"]["appended"]) == ("SUCCESS", 5.0, True)
    (entry,) = json.loads((options.workspace / "perf_super.json").read_text())
    assert entry["status"] == "SUCCESS" and recover(options.workspace, options.output) == []


def test_a_run_that_another_madlite_has_gets_no_row(planned, monkeypatch):  # noqa: F811
    _, options, _ = planned
    cut_off(planned, monkeypatch, "madlite.run.executor.judge")
    (folder,) = cut_off_runs(options.workspace)
    monkeypatch.setattr("madlite.store.folder.open_locked.__defaults__", (0.0,))
    held = RunFolder.reopen(folder)
    assert cut_off_runs(options.workspace) == () and recover(options.workspace, options.output) == []
    (busy,) = collect_all([folder], options.workspace, options.output, running={})  # it was locked since
    assert busy.busy and not options.output.exists()
    held.close()
    assert len(recover(options.workspace, options.output)) == 1 and rows_of(options.output) == ["m"]
    (late,) = collect_all([folder], options.workspace, options.output, running={})
    assert late.result is None and not (folder / "journal.jsonl").exists(), "it has its record by now"
    (folder / "journal.jsonl").touch()  # as a kill can leave one
    found = Leftover(kind="process", run_id=folder.name, text="", handle=folder.name)
    end_journals(options.workspace, Leftovers(leftovers=(found,)))
    assert (folder / "journal.jsonl").exists(), "something of it is running"
    end_journals(options.workspace, Leftovers())
    assert not (folder / "journal.jsonl").exists()


def test_a_row_for_a_file_elsewhere_stays_with_a_sentence(planned, monkeypatch, tmp_path_factory):  # noqa: F811
    from msgspec.structs import replace

    plans, options, plugins = planned
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "all.csv"
    cut_off((plans, replace(options, output=elsewhere), plugins), monkeypatch, "madlite.run.executor.judge")
    (said,) = recover(options.workspace, options.output)
    assert f"its row is for {elsewhere}, which lies outside of this folder; madlite runs collect id-m-" in said
    assert not options.output.exists() and not elsewhere.exists()
    assert "its row was added" in recover(options.workspace, elsewhere)[0] and rows_of(elsewhere) == ["m"]


def test_of_many_runs_that_were_cut_off_a_few_are_named(planned, monkeypatch):  # noqa: F811
    from msgspec.structs import replace

    plans, options, plugins = planned
    (one,) = plans
    for n in range(8):
        run_id = f"id-m{n}-{os.getpid()}"
        again = replace(one, plan=replace(one.plan, id=run_id, folder=one.plan.folder.with_name(run_id)))
        cut_off(([again], options, plugins), monkeypatch, "madlite.run.executor.RunExecutor._in_session")
    said = recover(options.workspace, options.output)
    assert len(said) == 6 and said[-1] == "3 more runs were left without rows: these were added"
    assert rows_of(Path(options.output)) == ["m"] * 8


@pytest.mark.parametrize(
    "moment",
    ["madlite.run.executor.judge", "madlite.run.result_writer.append_runs", "madlite.run.result_writer.make_output"],
)
def test_a_run_whose_lock_was_not_seen_gets_no_second_row(planned, monkeypatch, moment):  # noqa: F811
    plans, options, plugins = planned
    real, said = resolve_name(moment), []

    def taken(*args, **named):
        with monkeypatch.context() as patch:  # as on NFS whose locks are each host's own
            patch.setattr(moment, real)
            patch.setattr("madlite.store.folder.lock_of", lambda folder, name: folder.open_file(name))
            patch.setattr("madlite.store.folder.is_locked", lambda path: False)
            said.extend(recover(options.workspace, options.output))
        return real(*args, **named)

    monkeypatch.setattr(moment, taken)
    screen = Quiet()
    outcome = Batch(plans, options, plugins, screen).run()
    assert any("its row was added" in text for text in said), said
    assert [(row["model"], row["status"]) for row in csv_rows(options.output)] == [("m", "FAILURE")]
    (folder,) = (options.workspace / "madlite_runs").glob("id-*")
    record = json.loads((folder / "record.json").read_text())
    assert (record["status"], record["cause"], record["rows"]["appended"]) == ("FAILURE", "interrupted", True)
    assert sum("another command took the run for cut off" in one for one in screen.said) == 1, screen.said
    assert any("took the run for cut off" in one for one in outcome.results[0].findings)


def test_a_run_of_another_host_is_taken_only_where_it_is_named(killed):
    (folder,) = killed.folder.glob("madlite_runs/2*")
    journal = folder / "journal.jsonl"
    first, _, rest = journal.read_text().partition("\n")
    entry = json.loads(first)
    assert entry["start"].pop("host") == socket.gethostname()
    entry["start"]["host"] = "node7"
    journal.write_text(f"{json.dumps(entry)}\n{rest}")
    said = f"it began on node7 and may be running there; madlite runs collect {folder.name} adds its FAILURE row"
    for arguments in (("run", "--tags", "b"), ("collect",), ("clean", "--yes"), ("clean", "--yes", "--everywhere")):
        done = killed.run(*arguments[1:]) if arguments[0] == "run" else killed.madlite(*arguments)
        assert done.returncode == 0 and (done.stdout + done.stderr).count(said) == 1, (arguments, done.stdout)
        assert table(killed, "nightly.csv") == [] and not (folder / "record.json").exists()
    listed = killed.madlite("clean").stdout
    assert listed.count(said) == 1 and "removes this" not in listed, listed
    killed.madlite("runs", "collect", folder.name)
    assert table(killed, "nightly.csv") == [("a", "FAILURE")]


def killed_for(checkout: Checkout, file: str) -> None:  # noqa: F811
    checkout.card("a", WAITS)
    checkout.card("b", 'echo "performance: 1 x"\n')
    started = checkout.start("--tags", "a", "-o", file)
    checkout.wait_for("begun")
    kill(started)


def test_the_folder_of_a_results_file_that_is_gone_is_made_again(checkout):  # noqa: F811
    (checkout.folder / "out").mkdir()
    killed_for(checkout, "out/n.csv")
    shutil.rmtree(checkout.folder / "out")
    done = checkout.madlite("clean", "--yes")
    assert done.returncode == 0 and "its row was added to out/n.csv" in done.stdout, done.stdout + done.stderr
    assert table(checkout, "out/n.csv") == [("a", "FAILURE")]


def test_a_run_for_a_file_elsewhere_is_told_once_and_clean_marks_it_as_ended(checkout, tmp_path_factory):  # noqa: F811
    file = tmp_path_factory.mktemp("elsewhere") / "out/n.csv"
    file.parent.mkdir()
    killed_for(checkout, str(file))
    shutil.rmtree(file.parent)
    done = checkout.run("--tags", "b")
    said = f"its row is for {file}, which lies outside of this folder; madlite runs collect "
    assert done.returncode == 0 and done.stdout.count(said) == 1 and "1 earlier run" not in done.stdout, done.stdout
    assert said in checkout.madlite("clean").stdout
    done = checkout.madlite("clean", "--yes")
    assert done.returncode == 0 and "marked as ended" in done.stdout and not file.parent.exists(), done.stdout
    assert "nothing is left behind" in checkout.madlite("clean").stdout
