"""`madlite run --no-rows` and `runs collect`: each result becomes its rows once, whatever happens in between."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from madlite.cli.main import call
from madlite.perfcsv.recorded import rebuild
from madlite.store.folder import RESULT, RUN_JOURNAL
from tests import commands
from tests.csv_rows import perf_rows
from tests.engine.checkout import UNPROBED
from tests.killing import KILL_AT, KILL_AT_NAME, run_killed
from tests.rows import each_row
from tests.tiers import every
from tests.waiting import wait_until

pytestmark = pytest.mark.host
SCRIPT = "sleep 0.0$RANDOM\necho performance: 12.5 tok\n"
MULTI = "printf 'model,performance,metric,heat\\nx,5,a,61\\ny,7,b,62\\n' > ../r.csv\n"


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    return make_checkout(tmp_path, monkeypatch)


def make_checkout(folder: Path, monkeypatch) -> Path:
    monkeypatch.delenv("MODEL_DIR", raising=False)
    monkeypatch.setenv("DOCKER_HOST", f"unix://{folder}/none.sock")
    monkeypatch.chdir(folder)
    (folder / "scripts/a").mkdir(parents=True)
    (folder / "scripts/a/run.sh").write_text(SCRIPT)
    card(folder)
    return folder


def card(folder: Path, **more: object) -> None:
    a = {"name": "a", "scripts": "scripts/a/run.sh", "args": "", "tags": ["t"], "runtimes": ["host"], **more}
    (folder / "models.json").write_text(json.dumps([a]))


class Kept:
    """A checkout as it was when this was made."""

    def __init__(self, checkout: Path) -> None:
        self.checkout = checkout
        self._copy = shutil.copytree(checkout, checkout.with_name(f"{checkout.name}-kept"), symlinks=True)

    def again(self) -> Path:
        """Make the checkout what it was, and return it; its folder of runs stays the one in which they began."""
        runs = self.checkout / "madlite_runs"
        for one in (*self.checkout.iterdir(), *runs.iterdir()):
            if one != runs:
                shutil.rmtree(one) if one.is_dir() and not one.is_symlink() else one.unlink()
        shutil.copytree(self._copy, self.checkout, symlinks=True, dirs_exist_ok=True)
        return self.checkout


RUN = ("run", "--tags", "a", *UNPROBED)


def run(*args: str) -> int:
    return call([*RUN, *args])


def folders(checkout: Path) -> list[Path]:
    found = [one for one in (checkout / "madlite_runs").iterdir() if one.is_dir()]
    return sorted(found, key=lambda one: (one / "plan.json").stat().st_mtime_ns)  # ids of one second are in any order


def listed(capfd) -> list[dict[str, object]]:
    capfd.readouterr()
    assert call(["runs", "--json"]) == 0
    return json.loads(capfd.readouterr().out)


def outputs(checkout: Path) -> dict[str, bytes]:
    return {one.name: one.read_bytes() for one in checkout.iterdir() if one.name.startswith(("perf", "common"))}


def test_a_result_is_all_that_a_run_without_rows_leaves_until_it_is_collected(checkout, capfd):
    assert run("--no-rows") == 0
    said = capfd.readouterr().out
    assert "SUCCESS a  12.5 tok" in said and "madlite runs collect adds them to perf.csv" in said
    (folder,) = folders(checkout)
    assert outputs(checkout) == {} and not (folder / "record.json").exists() and (folder / RESULT).exists()
    (one,) = listed(capfd)
    assert (one["status"], one["collected"], one["performance"]) == ("SUCCESS", False, "12.5")
    assert call(["runs", "--status", "not-collected"]) == 0
    said = capfd.readouterr()
    assert (
        "SUCCESS, not collected" in said.out
        and f"1 run is not collected: {folder.name}. madlite runs collect adds its row" in said.err
    )
    assert call(["show", "last"]) == 0 and "1 row, not collected yet: madlite runs collect" in capfd.readouterr().out
    assert call(["clean"]) == 0 and "nothing is left behind" in capfd.readouterr().out
    assert call(["runs", "collect"]) == 0
    assert f"{folder.name}: SUCCESS 12.5 tok, its row was added to perf.csv" in capfd.readouterr().out
    assert [row["performance"] for row in perf_rows(checkout)] == ["12.5"]
    assert {"perf_super.json", "perf_super.csv", "perf_entry.json", "perf_entry.csv"} <= set(outputs(checkout))
    assert listed(capfd)[0]["collected"] is True and not (folder / RUN_JOURNAL).exists()
    assert call(["runs", "collect"]) == 0 and "nothing to collect" in capfd.readouterr().out


@each_row("more", [(), ("--strict-header", "--add-column", "run"), ("--contract", "1")])
def test_what_is_collected_is_what_the_run_would_have_written(tmp_path, monkeypatch, more):
    checkout = make_checkout(tmp_path, monkeypatch)
    (checkout / "scripts/a/run.sh").write_text(MULTI)
    card(checkout, multiple_results="r.csv")
    assert run(*more) == 0
    direct = outputs(checkout)
    for name in direct:
        (checkout / name).unlink()
    assert run("--no-rows", *more) == 0 and outputs(checkout) == {}
    assert call(["runs", "collect", *(more if "--contract" in more else ())]) == 0
    first, second = folders(checkout)

    def timeless(files: dict[str, bytes], folder: Path) -> dict[str, str]:
        record = json.loads((folder / "record.json").read_text())
        took = repr(record["durations_s"]["run"])
        return {name: data.decode().replace(took, "T").replace(folder.name, "ID") for name, data in files.items()}

    assert timeless(outputs(checkout), second) == timeless(direct, first)
    assert rebuild(checkout / "again.csv", checkout / "madlite_runs", contract=0).notes == ()


@pytest.fixture
def one_waits(checkout) -> Kept:
    """Return a checkout with a run that has its row, and one that is not collected."""
    assert run() == 0 and run("--no-rows") == 0
    return Kept(checkout)


@each_row(
    ("target", "when", "count", "rows_there"),
    [
        ("madlite.perfcsv.append.append_runs", "before", 1, False),
        ("madlite.store.folder.RunFolder.note", "after", 1, False),  # before the row
        ("madlite.perfcsv.append._append", "before", 1, False),
        ("madlite.perfcsv.append._append", "after", 1, True),
        ("madlite.perfcsv.append.append_runs", "after", 1, True),
        ("madlite.batch.collect.leave_entries", "before", 1, True),
        ("madlite.perfcsv.side_files.add_to_list", "after", 1, True),
        ("madlite.perfcsv.side_files.add_to_table", "after", 1, True),
        ("madlite.perfcsv.side_files.write_table", "after", 2, True),
        ("madlite.batch.collect.leave_entries", "after", 1, True),
        ("madlite.store.folder.RunFolder.write_record", "before", 1, True),
    ],
)
def test_a_kill_at_any_moment_of_collecting_leaves_each_row_and_entry_once(
    one_waits, capfd, target, when, count, rows_there
):
    checkout = one_waits.again()
    names = [one.name for one in folders(checkout)]
    run_killed(checkout, (KILL_AT, target, when, str(count)), "runs", "collect")
    assert len(perf_rows(checkout)) == 1 + rows_there
    is_collected = "side_files" in target  # they are written last, of all runs at once, and by the next command
    expected = dict(zip(names, (True, is_collected), strict=True))
    assert {one["id"]: one["collected"] for one in listed(capfd)} == expected
    assert call(["runs", "collect"]) == 0 and len(perf_rows(checkout)) == 2
    entries = json.loads((checkout / "perf_super.json").read_text())
    assert len(entries) == 2 and len((checkout / "perf_super.csv").read_text().splitlines()) == 3
    assert json.loads((checkout / "perf_entry.json").read_text())["test_duration"] == entries[1]["test_duration"]
    assert [one["collected"] for one in listed(capfd)] == [True, True]
    assert not list(checkout.glob(f"madlite_runs/*/{RUN_JOURNAL}"))
    assert call(["runs", "collect"]) == 0 and len(perf_rows(checkout)) == 2
    assert call(["runs"]) == 0 and capfd.readouterr().err == ""


def test_a_kill_after_the_record_is_a_run_that_is_collected(checkout, capfd):
    assert run("--no-rows") == 0
    run_killed(checkout, (KILL_AT, "madlite.store.folder.RunFolder.end_journal", "before"), "runs", "collect")
    assert [one["collected"] for one in listed(capfd)] == [True]
    assert call(["runs", "collect", "last"]) == 0 and "collected already" in capfd.readouterr().out
    assert run() == 0 and len(perf_rows(checkout)) == 2, "the next run adds nothing of it"


@each_row("target", ["madlite.perfcsv.append.append_runs", "madlite.run.result_writer.make_record"])
def test_a_run_of_a_plan_that_was_killed_with_its_result_is_collected(tmp_path, monkeypatch, capfd, target):
    checkout = make_checkout(tmp_path, monkeypatch)
    assert call(["plan", *RUN[1:]]) == 0
    run_killed(checkout, (KILL_AT, target, "before"), "run", "--plan", "plan.json")
    before = perf_rows(checkout) if (checkout / "perf.csv").exists() else []
    assert len(before) == target.endswith("record")
    assert [one["collected"] for one in listed(capfd)] == [False]
    assert call(["runs", "collect"]) == 0 and len(perf_rows(checkout)) == 1
    assert len(json.loads((checkout / "perf_super.json").read_text())) == 1


def test_a_row_that_an_earlier_try_put_into_another_file_is_there_and_nowhere_else(checkout, capfd):
    assert run("--no-rows") == 0
    run_killed(checkout, (KILL_AT, "madlite.batch.collect.leave_entries", "before"), "runs", "collect", "-o", "one.csv")
    assert call(["runs", "collect", "-o", "two.csv"]) == 0
    assert "its row is in one.csv" in capfd.readouterr().out and not (checkout / "two.csv").exists()


def test_several_collect_at_once_and_each_row_is_there_once(checkout, capfd):
    for _ in range(6):
        assert run("--no-rows") == 0
    started = [commands.start(("runs", "collect"), checkout, os.environ) for _ in range(3)]
    said = [one.communicate()[0] for one in started]
    assert all("Traceback" not in text for text in said)
    assert call(["runs", "collect"]) == 0
    ids = [folder.name for folder in folders(checkout)]
    assert len(perf_rows(checkout)) == 6 == len(json.loads((checkout / "perf_super.json").read_text()))
    capfd.readouterr()
    assert sum(text.count("was added to perf.csv") for text in (*said, capfd.readouterr().out)) <= 6 == len(ids)


def test_a_run_that_goes_on_is_not_collected_and_one_that_was_cut_off_is_a_failure(checkout, capfd):
    (checkout / "scripts/a/run.sh").write_text(
        f"touch {checkout}/begun; while [ ! -e {checkout}/go ]; do sleep 0.05; done\n"
    )
    with commands.start((*RUN, "--no-rows"), checkout, os.environ) as started:
        wait_until((checkout / "begun").exists)
        (folder,) = folders(checkout)
        assert call(["runs", "collect"]) == 0 and "nothing to collect" in capfd.readouterr().out
        assert call(["runs", "collect", folder.name]) == 3
        assert f"{folder.name}: not collected: it is still running" in capfd.readouterr().err
        started.kill()
        started.communicate()
    (checkout / "go").touch()
    assert call(["runs", "collect", str(folder)]) == 3
    assert f"{folder.name}: FAILURE [interrupted], it was cut off; its row was added" in capfd.readouterr().out
    assert [row["status"] for row in perf_rows(checkout)] == ["FAILURE"]


def test_a_run_of_a_cluster_s_job_that_was_cut_off_is_left_to_its_job(checkout, capfd, monkeypatch):
    assert run("--no-rows") == 0
    (folder,) = folders(checkout)
    (folder / RESULT).unlink()  # as a kill leaves a run
    submission = SimpleNamespace(open_runs=[SimpleNamespace(id=folder.name)])
    with monkeypatch.context() as patch:
        patch.setattr("madlite.jobs.submission.stored_submissions", lambda here, **named: (submission,))
        assert call(["runs", "collect"]) == 0 and "nothing to collect" in capfd.readouterr().out
        assert call(["runs", "collect", folder.name]) == 3 and "it was cut off" in capfd.readouterr().err
    assert not (checkout / "perf.csv").exists()
    assert call(["runs", "collect"]) == 3 and [row["status"] for row in perf_rows(checkout)] == ["FAILURE"]


def test_a_result_that_cannot_be_read_or_that_something_else_planted_is_refused(checkout, capfd):
    assert run("--no-rows") == 0 and run("--no-rows") == 0
    first, second = folders(checkout)
    text = (first / RESULT).read_text()
    (first / RESULT).write_text(text.replace('"version": 1', '"version": 9', 1))
    assert {one["id"]: one["status"] for one in listed(capfd)} == {first.name: "UNREADABLE", second.name: "SUCCESS"}
    assert call(["runs", "collect"]) == 3
    said = capfd.readouterr()
    assert f"{first.name}: not collected: {RESULT}: it is of version 9, of a newer madlite" in said.err
    assert f"{second.name}: SUCCESS" in said.out, "the other one is collected"
    (first / RESULT).write_text(text)
    assert call(["runs", "collect"]) == 0 and len(perf_rows(checkout)) == 2
    planted = checkout / "madlite_runs/planted"
    shutil.copytree(first, planted)
    (planted / "record.json").unlink()
    assert call(["runs", "collect"]) == 0 and call(["runs", "collect", "planted"]) == 3
    assert "it did not begin in this folder" in capfd.readouterr().err and len(perf_rows(checkout)) == 2


def test_a_result_that_cannot_be_collected_is_acknowledged_by_clean(checkout, capfd):
    assert run("--no-rows") == 0
    (folder,) = folders(checkout)
    (folder / RESULT).write_text((folder / RESULT).read_text().replace('"version": 1', '"version": 9', 1))
    assert call(["clean"]) == 0 and "its result cannot be collected" in capfd.readouterr().out
    assert call(["clean", "--yes"]) == 0 and call(["runs", "collect"]) == 0
    assert "nothing to collect" in capfd.readouterr().out
    assert call(["clean"]) == 0 and "nothing is left behind" in capfd.readouterr().out


def test_a_file_of_that_name_which_a_workload_wrote_is_no_result(checkout, capfd):
    assert run("--no-rows") == 0
    (folder,) = folders(checkout)
    (folder / RESULT).write_text('{"version": 1, "record": {"id": "mine"}}')
    assert call(["runs", "collect"]) == 3 and "no row can be made" in capfd.readouterr().err
    assert call(["clean"]) == 0 and f"{folder.name}  unfinished" in capfd.readouterr().out


def test_everything_is_collected_whoever_stops_reading(checkout):
    for _ in range(3):
        assert run("--no-rows") == 0
    read, write = os.pipe()
    os.close(read)
    commands.start(("runs", "collect"), checkout, os.environ, stdout=write).wait()
    os.close(write)
    assert len(perf_rows(checkout)) == 3


def test_a_result_of_a_link_is_refused(checkout, capfd, tmp_path_factory):
    assert run("--no-rows") == 0
    (folder,) = folders(checkout)
    away = tmp_path_factory.mktemp("away") / RESULT
    (folder / RESULT).rename(away)
    (folder / RESULT).symlink_to(away)
    assert call(["runs", "collect"]) == 3 and "no row can be made" in "".join(capfd.readouterr())


def test_runs_are_named_by_id_part_pattern_and_folder(checkout, capfd, tmp_path_factory):
    for _ in range(4):
        assert run("--no-rows") == 0
    first, second, third, fourth = folders(checkout)
    assert call(["runs", "collect", first.name[-6:], f"madlite_runs/{second.name}", "-o", "res/out.csv"]) == 0
    assert len((checkout / "res/out.csv").read_text().splitlines()) == 3
    assert call(["runs", "collect", "2*-a-*"]) == 0 and len(perf_rows(checkout)) == 2
    said = capfd.readouterr().out
    assert said.count("collected already, its rows are in res/out.csv") == 2
    for name, told in (("nope", "no run 'nope'"), ("x*", "no run is like 'x*'"), ("/tmp/other", "is no run of")):
        assert call(["runs", "collect", name]) == 4
        assert told in capfd.readouterr().err
    assert all((one / "record.json").exists() for one in (third, fourth))


def test_a_failure_is_collected_with_its_exit_code_and_a_file_that_takes_no_row_leaves_it_waiting(checkout, capfd):
    (checkout / "scripts/a/run.sh").write_text("exit 3\n")
    assert run("--no-rows") == 3
    (checkout / "perf.csv").mkdir()
    assert call(["runs", "collect"]) == 4 and "not collected" in listed_words(capfd)
    (checkout / "perf.csv").rmdir()
    assert call(["runs", "collect"]) == 3
    assert [(row["status"], row["performance"]) for row in perf_rows(checkout)] == [("FAILURE", "")]


PASSES = "echo 'torch.distributed.DistNetworkError: The client socket has timed out'; kill -9 $$\n"


@pytest.mark.parametrize(("script", "words"), [(PASSES, "--retry 1 --retry-wait 0"), ("exit 3\n", "")])
def test_what_follows_a_failed_attempt_without_rows_is_collected_as_any_run(checkout, capfd, script, words):
    (checkout / "scripts/a/run.sh").write_text(script)
    assert run("--no-rows", *words.split()) == 3
    if not words:
        assert call(["runs", "collect"]) == 3 and call(["run", "--resume", "--failed"]) == 3
    assert "attempt 2, after" in capfd.readouterr().out
    assert call(["runs", "collect"]) == 3 and "nothing to collect" not in capfd.readouterr().out
    assert len(perf_rows(checkout)) == (1 if words else 2), "a retry takes the first one's place"


def listed_words(capfd) -> str:
    capfd.readouterr()
    call(["runs"])
    return capfd.readouterr().out


def test_the_next_run_adds_no_row_of_what_is_not_collected_and_names_it(checkout, capfd):
    assert run("--no-rows") == 0 and run() == 0
    assert "1 run is not collected" in capfd.readouterr().out and len(perf_rows(checkout)) == 1
    assert call(["report", "rebuild", "-o", "again.csv"]) == 0
    assert "left out, it is not collected" in "".join(capfd.readouterr())


def test_no_secret_is_in_a_result(checkout, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_abcdefghijkl")
    (checkout / "scripts/a/run.sh").write_text("echo $HF_TOKEN\necho performance: 1 $HF_TOKEN\n")
    run("--no-rows")
    (folder,) = folders(checkout)
    assert all(b"hf_abcd" not in one.read_bytes() for one in folder.rglob("*") if one.is_file())
    assert os.environ["HF_TOKEN"] == "hf_abcdefghijkl"  # noqa: S105


# after the row and after half of its entries; tests/crash has such points of a run, too
@each_row(
    ("target", "when"),
    every(
        [
            ("madlite.perfcsv.append._append", "after"),
            pytest.param("madlite.run.result_writer.write_entries", "before"),
            ("madlite.perfcsv.side_files.add_to_list", "after"),
            pytest.param("madlite.perfcsv.side_files.add_to_table", "after"),
            ("madlite.run.result_writer.make_record", "before"),
        ],
        2,
    ),
)
def test_a_kill_between_a_row_and_its_entries_is_mended_by_the_next_command(tmp_path, monkeypatch, capfd, target, when):
    checkout = make_checkout(tmp_path, monkeypatch)
    assert run() == 0
    run_killed(checkout, (KILL_AT, target, when), *RUN)
    assert len(perf_rows(checkout)) == 2
    killed = Kept(checkout)
    for words in (" ".join(RUN), "runs collect", "report rebuild --force; runs collect", "clean --yes"):
        killed.again()
        for _ in range(2):
            for command in words.split("; "):
                call(command.split())
            rows = [row["test_duration"] for row in perf_rows(checkout)]
            entries = json.loads((checkout / "perf_super.json").read_text())
            assert [str(one["test_duration"]) for one in entries] == rows, (words, capfd.readouterr().err)
            assert len((checkout / "perf_super.csv").read_text().splitlines()) == 1 + len(rows), words


def test_an_entry_of_a_killed_run_that_the_user_removed_does_not_come_back(checkout):
    run_killed(checkout, (KILL_AT, "madlite.run.result_writer.write_entries", "before"), *RUN)
    assert call(["runs", "collect"]) == 0 and len(json.loads((checkout / "perf_super.json").read_text())) == 1
    (checkout / "perf_super.json").write_text("[]\n")
    assert call(["runs", "collect"]) == 0 and json.loads((checkout / "perf_super.json").read_text()) == []


@each_row("moment", ["before", "after"])
def test_a_run_that_is_killed_while_its_folder_is_made_gets_its_row(tmp_path, monkeypatch, capfd, moment):
    checkout = make_checkout(tmp_path, monkeypatch)
    run_killed(checkout, (KILL_AT_NAME, "lock", moment), *RUN)
    assert call(["runs", "collect"]) == 3
    assert "FAILURE [interrupted], it was cut off; its row was added" in capfd.readouterr().out
    assert [row["status"] for row in perf_rows(checkout)] == ["FAILURE"]


def test_collect_names_a_run_of_which_no_row_can_be_made(checkout, capfd):
    run_killed(checkout, (KILL_AT_NAME, "lock", "after"), *RUN)
    (folder,) = folders(checkout)
    (folder / "plan.json").unlink()
    assert call(["runs", "collect"]) == 3
    why = "not collected: it was cut off, and its plan or its row is not known"
    assert f"{folder.name}: {why}" in capfd.readouterr().err
    assert call(["clean", "--yes"]) == 0 and call(["runs", "collect"]) == 0
