"""The index: the same answers as reading every record, whatever happened to its file."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import product
from pathlib import Path

import pytest

from madlite.errors import UsageProblem
from madlite.files import Folder
from madlite.model import Card, Cause, Machine, Metric, Place, Result, Status, Study, Variant
from madlite.reports.index import RunFilter, RunIndex
from madlite.reports.listing import as_json, names_of, status_words, value_of
from madlite.reports.runs import list_runs
from madlite.reports.selectors import of_runs
from madlite.reports.series_key import DIMENSIONS, as_dimensions
from madlite.store import index as store_index
from madlite.store.events import RunPruned, append
from madlite.store.folder import LOCK, PLAN, RECORD
from madlite.store.index import FILE
from tests.cli.stored_runs import good, store
from tests.factories import note_made
from tests.forked import end_of, kill_this_process, run_killed, start_forked
from tests.rows import each_row

RECENT_NS = store_index._RECENT_NS


@pytest.fixture(autouse=True)
def small_folders_have_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_index, "FEWEST_RUNS", 1)
    monkeypatch.setattr(store_index, "_RECENT_NS", 0)
    monkeypatch.setattr(store_index, "CHECK_S", 0)  # the file of each record is looked at each time


def keep(workspace: Path, run_id: str, outcome: Result, **changes: object) -> None:
    """Leave a run that is in the event log, as madlite leaves it."""
    store(workspace, run_id, outcome, **changes)
    note_made(workspace / "madlite_runs" / run_id)


def numbered(run_id: str, value: float, minute: int = 4, **changes: object) -> Result:
    metric = Metric(metric="tokens_per_s_per_gpu", text=str(value), status=Status.SUCCESS, value=value)
    return good(run_id, f"2026-01-02T03:{minute:02d}:05+00:00", metrics=(metric,), **changes)


def llama(place: Path) -> dict[str, object]:
    return {
        "card": Card(name="llama", root=place, source="x", tags=("pyt", "Train")),
        "machine": Machine(device="MI300X"),
        "place": Place(gpus_per_node=8),
        "variant": Variant(
            model="llama", mode="pretrain", precision="FP8", seq_len=8192, micro_batch=2, global_batch=16
        ),
    }


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return fill(tmp_path)


def fill(tmp_path: Path) -> Path:
    """Make a folder with a run of each kind."""
    for n in range(4):
        study = Study(id="20260102T000000-3fa91c", kind="repeat") if n < 2 else None
        keep(
            tmp_path,
            f"20260102T03{n:02d}05-llama-00000{n}",
            numbered("a", 9000.0 + n, n),
            study=study,
            **llama(tmp_path),
        )
    keep(tmp_path, "20260102T030905-tiny-000009", good("b", suspect=("it was throttled", "power is low")))
    failed = Result(plan_id="c", status=Status.FAILURE, cause=Cause.EXIT_CODE, started="2026-01-02T03:05:00+00:00")
    keep(tmp_path, "20260102T030500-llama-00000c", failed, batch="20260102T000000-batch1", **llama(tmp_path))
    keep(tmp_path, "20260102T030600-x-00000d", Result(plan_id="d", status=Status.SKIPPED, reason="no such GPU"))
    store(tmp_path, "20260102T030700-cut-off-00000e")
    keep(tmp_path, "20260102T030800-other-00000f", good("f"))
    keep(tmp_path, "20260102T030810-broken-000010", good("g"))
    folder = tmp_path / "madlite_runs"
    (folder / "20260102T030810-broken-000010" / RECORD).write_text("{")
    store(tmp_path, "20260102T031000-copied-000011", good("h"))  # no event log has it
    (folder / "no run").mkdir()
    return folder


@pytest.fixture
def index(runs: Path) -> Iterator[RunIndex]:
    with RunIndex(runs) as opened:
        opened.refresh()
        yield opened


def stored_ids(runs: Path) -> list[str]:
    """Return the ids in a index's file, read without madlite."""
    with closing(sqlite3.connect(runs / FILE)) as connection:
        return [row[0] for row in connection.execute("SELECT id FROM runs ORDER BY id")]


def test_its_runs_are_those_of_the_folders(index, runs):
    expected = list_runs(runs)
    assert len(expected) == 11 and {run.state for run in expected} >= {"CUT OFF", "UNREADABLE", "SKIPPED"}
    found = index.newest()
    assert [as_json(run) for run in found] == [as_json(run) for run in expected]
    assert [run.headline for run in found] == [run.headline for run in expected]
    assert index.count() == 11 and sum(index.states().values()) == 11
    assert {run.folder.name[16:-7] for run in index.problems()} == {"broken"}


def test_a_second_look_reads_only_what_has_no_settled_record(index, runs):
    again = index.refresh()
    assert index.count() == 11
    assert again == 2, "the run that was cut off, and the one that cannot be read"


@each_row("where", [{}, {"device": "MI300X"}, {"machine": ""}, {"runtime": "docker", "precision": "FP8"}])
def test_its_series_are_those_of_the_records(index, runs, where):
    expected = of_runs("", list_runs(runs), where)
    assert index.results(where) == (expected.series, expected.runs)


def select_runs(runs, status, words, of, limit):
    """Return the runs of a status, of cards with one of the words, and of a batch or study: the newest."""
    wanted = status.lower().replace("-", " ").replace("_", " ")
    chosen = [run for run in runs if not wanted or wanted in status_words(run)]
    words = [word.lower() for word in words]
    chosen = [run for run in chosen if not words or any(word in name for word in words for name in names_of(run))]
    return [run for run in chosen if any(value_of(run, name).startswith(of) for name in ("batch", "study"))][-limit:]


def test_filters_choose_what_the_list_of_runs_does(index, runs):
    listed = list_runs(runs)
    statuses = ("", "success", "suspect", "cut-off", "UNREADABLE", "exit_code", "failure")
    words = ((), ("LLAMA",), ("train", "tiny"), ("03:",))
    for status, some, of, limit in product(statuses, words, ("", "20260102T000000", "none"), (0, 2)):
        expected = select_runs(listed, status, some, of, limit)
        chosen = RunFilter(status=status, q=", ".join(some), of=of)
        assert [run.folder for run in index.newest(chosen, limit)] == [run.folder for run in expected], chosen
        assert limit or index.count(chosen) == len(expected)


def test_a_status_that_is_none_is_refused(index):
    with pytest.raises(UsageProblem, match="no run can be that"):
        index.count(RunFilter(status="sucess"))


def test_columns_times_and_order(index):
    assert index.values("card") == ("llama", "tiny")
    assert index.count(RunFilter(columns={"precision": "FP8", "gpus": "8"})) == 5
    assert index.count(RunFilter(since="2026-01-02 03:02", until="2026-01-02 03:03")) == 2
    numbers = [run.headline.value for run in index.runs(order="number", descending=True, limit=3)]
    assert numbers == [9003.0, 9002.0, 9001.0]
    assert [run.headline.value for run in index.runs(order="number", descending=True, limit=2, offset=1)] == numbers[1:]
    with pytest.raises(KeyError):
        index.values("id; DROP TABLE runs")


def test_a_series_and_its_history(index):
    (one,) = [each for each in index.summaries() if each.key[0] == "llama"]
    assert one.runs == 4
    (known,) = index.series_of([one.id])
    assert (known.samples[-1].value, known.samples[-1].when[:19]) == (9003.0, "2026-01-02T03:03:05")
    assert index.series_key(one.id) == one.key and index.series_key(10_000) is None
    assert index.results(as_dimensions(one.key))[0][0].values == (9000.0, 9001.0, 9002.0, 9003.0)
    assert index.results(as_dimensions(("none",) * len(DIMENSIONS))) == ((), ())


def test_a_record_changed_in_its_place_is_read_again(index, runs):
    record = runs / "20260102T030005-llama-000000" / RECORD
    before = record.stat()
    record.write_text(record.read_text().replace("9000.0", "9900.0"))
    os.utime(record, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert record.stat().st_size == before.st_size
    index.refresh()
    assert [as_json(run) for run in index.newest()] == [as_json(run) for run in list_runs(runs)]


def test_new_ended_and_removed_runs(index, runs):
    keep(runs.parent, "20260102T040000-new-000020", numbered("n", 7.0, 50))
    shutil.rmtree(runs / "20260102T030005-llama-000000")
    index.refresh()
    assert index.count() == 11
    assert [as_json(run) for run in index.newest()] == [as_json(run) for run in list_runs(runs)]
    assert index.ids(RunFilter(q="-new-")) == ["20260102T040000-new-000020"]
    cut_off = runs / "20260102T030700-cut-off-00000e"
    assert [run.state for run in index.newest() if run.folder == cut_off] == ["CUT OFF"]


def test_of_a_run_that_the_event_log_has_a_new_line_of_the_record_is_read_again(index, runs):
    name = "20260102T030005-llama-000000"
    index.refresh()
    assert not index.newest()[0].pruned
    before = index.refresh()
    with Folder.open(runs) as folder:
        append(folder, RunPruned(run=name))
    assert index.refresh() == before + 1
    assert index.newest()[0].pruned


def test_between_two_checks_new_ended_removed_and_noted_runs_are_found_without_a_look_at_the_others(
    index, runs, monkeypatch
):
    monkeypatch.setattr(store_index, "CHECK_S", 3600)
    changed, pruned, gone = (runs / f"20260102T030{n}05-llama-00000{n}" for n in range(3))
    keep(runs.parent, "20260102T040000-new-000020", numbered("n", 7.0, 50))
    shutil.rmtree(gone)
    with Folder.open(runs) as folder:
        append(folder, RunPruned(run=pruned.name))
    looked_at: list[str] = []
    lstat = os.lstat

    def counted(path: str, **options: int) -> os.stat_result:
        looked_at.append(str(path))
        return lstat(path, **options)

    monkeypatch.setattr(os, "lstat", counted)
    done = index.refresh()
    assert (index.count(), done) == (11, 4), "new, noted, cut off, unreadable"
    assert not [path for path in looked_at if changed.name in path]
    assert [as_json(run) for run in index.newest()] == [as_json(run) for run in list_runs(runs)]


def test_a_record_that_another_program_changed_is_read_again_at_the_next_check(index, runs, monkeypatch):
    monkeypatch.setattr(store_index, "CHECK_S", 3600)
    record = runs / "20260102T030005-llama-000000" / RECORD
    record.write_text(record.read_text().replace("9000.0", "9900.0"))
    index.refresh()
    monkeypatch.setattr(store_index, "CHECK_S", 0)
    index.refresh()
    assert [as_json(run) for run in index.newest()] == [as_json(run) for run in list_runs(runs)]


def test_a_small_folder_has_no_file(runs, monkeypatch):
    monkeypatch.setattr(store_index, "FEWEST_RUNS", 500)
    with RunIndex(runs) as index:
        index.refresh()
        assert (index.count(), index.path, index.notes) == (11, None, ())
    assert not (runs / FILE).exists()


def test_a_folder_that_is_not_there_has_no_runs(tmp_path):
    with RunIndex(tmp_path / "madlite_runs") as index:
        index.refresh()
        assert index.runs() == [] and index.notes == ()


def test_a_query_is_answered_from_one_state_of_the_tables(index, runs, monkeypatch):
    def keep_another(n: int) -> None:  # with facts and a series of its own
        keep(
            runs.parent,
            f"20260102T0400{n:02d}-new-00002{n}",
            numbered("n", 7.0, 50),
            card=Card(name=f"c{n}", root=runs, source="x"),
        )
        with RunIndex(runs) as other:
            other.refresh()

    use, calls = index.use, iter(range(10))

    def with_a_writer_behind(work: Callable[[sqlite3.Connection], object]) -> object:
        found = use(work)
        keep_another(next(calls))
        return found

    monkeypatch.setattr(index, "use", with_a_writer_behind)
    before = of_runs("", list_runs(runs), {}).series
    assert index.results({})[0] == before
    assert len(index.results({"model": "c0"})[0]) == 1


# Its file.


def damage_head(file: Path) -> None:
    file.write_bytes(b"no database at all" * 500)


def damage_pages(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[4096:] = os.urandom(len(data) - 4096)
    file.write_bytes(data)


def cut(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


@each_row("damage", [damage_head, damage_pages, cut])
def test_a_damaged_file_is_made_again(runs, damage):
    with RunIndex(runs) as index:
        index.refresh()
    damage(runs / FILE)
    with RunIndex(runs) as index:
        index.refresh()
        assert [as_json(run) for run in index.newest()] == [as_json(run) for run in list_runs(runs)]
        assert index.path == runs / FILE
    assert len(stored_ids(runs)) == 11


@each_row("other", ["PRAGMA user_version = 7", "DROP TABLE results"])
def test_a_file_of_another_version_is_made_anew(runs, other):
    with RunIndex(runs) as index:
        index.refresh()
    with closing(sqlite3.connect(runs / FILE)) as connection:
        connection.execute("CREATE TABLE of_the_future(x)")
        connection.execute("CREATE VIEW seen AS SELECT * FROM runs")
        connection.execute("UPDATE runs SET state = 'SUCCESS'")
        connection.execute(other)
        connection.commit()
    with RunIndex(runs) as index:
        index.refresh()
        assert [as_json(run) for run in index.newest()] == [as_json(run) for run in list_runs(runs)]
        assert index.path == runs / FILE and index.results({})[0] == of_runs("", list_runs(runs), {}).series
    with closing(sqlite3.connect(runs / FILE)) as connection:
        assert (
            connection.execute("SELECT name FROM sqlite_master WHERE name IN ('of_the_future', 'seen')").fetchall()
            == []
        )


def test_a_database_of_another_program_is_made_anew(runs):
    with closing(sqlite3.connect(runs / FILE)) as connection:
        connection.execute("CREATE TABLE runs(x)")
        connection.commit()
    with RunIndex(runs) as index:
        assert index.refresh() == 11 and index.notes == ()
    assert len(stored_ids(runs)) == 11


def test_the_first_fill_that_was_cut_off_is_finished_by_the_next_command(runs, monkeypatch):
    monkeypatch.setattr(store_index, "_AT_ONCE", 4)
    insert, parts = store_index._insert, []

    def die_in_the_second(*args: object) -> None:
        parts.append(insert(*args))
        if len(parts) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(store_index, "_insert", die_in_the_second)
    with pytest.raises(KeyboardInterrupt), RunIndex(runs) as index:
        index.refresh()
    assert len(stored_ids(runs)) == 4
    with RunIndex(runs) as index:
        index.refresh()
        assert [as_json(run) for run in index.newest()] == [as_json(run) for run in list_runs(runs)]
    with closing(sqlite3.connect(runs / FILE)) as connection:
        made = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'index'")}
    assert made >= {"runs_by_at", "runs_by_stamp", "results_by_series"}


def test_nothing_lies_beside_the_file_after_a_command(runs):
    before = {path.name for path in runs.iterdir()}
    with RunIndex(runs) as index:
        index.refresh()
        index.newest()
    assert {path.name for path in runs.iterdir()} - before == {FILE}
    assert (runs / FILE).stat().st_mode & 0o777 == 0o600


def test_a_file_that_is_removed_while_it_is_open_costs_no_answer(index, runs):
    (runs / FILE).unlink()
    with RunIndex(runs) as other:  # a command of another process makes it again
        other.refresh()
    keep(runs.parent, "20260102T040000-new-000020", numbered("n", 7.0, 50))
    index.refresh()
    expected = [as_json(run) for run in list_runs(runs)]
    assert [as_json(run) for run in index.newest()] == expected and index.notes == ()
    with RunIndex(runs) as other:
        other.refresh()
        assert [as_json(run) for run in other.newest()] == expected
    assert len(stored_ids(runs)) == 12


def test_a_file_that_came_with_a_copied_folder_is_made_again(runs, tmp_path):
    with RunIndex(runs) as index:
        index.refresh()
    with closing(sqlite3.connect(runs / FILE)) as connection:  # as a foreign folder could bring it
        connection.execute("UPDATE runs SET state = 'SUCCESS', problem = ''")
        connection.execute("CREATE TRIGGER lie AFTER INSERT ON runs BEGIN UPDATE runs SET state = 'SUCCESS'; END")
        connection.commit()
    copy = tmp_path / "copy" / "madlite_runs"
    shutil.copytree(runs, copy)
    with RunIndex(copy) as index:
        assert index.count() == 0
        index.refresh()
        assert [as_json(run) for run in index.newest()] == [as_json(run) for run in list_runs(copy)]


def test_a_file_of_another_user_is_not_opened(runs, monkeypatch):
    with RunIndex(runs) as index:
        index.refresh()
    before = (runs / FILE).read_bytes()
    another = os.geteuid() + 4242
    monkeypatch.setattr(os, "geteuid", lambda: another)
    with RunIndex(runs) as index:
        index.refresh()
        assert index.path is None and index.count() == 11
        assert "belongs to another user" in index.notes[0]
    assert (runs / FILE).read_bytes() == before


@each_row("name", [FILE, f"{FILE}-journal"])
def test_a_link_in_its_place_is_not_followed(runs, tmp_path, name):
    target = tmp_path / "precious"
    target.write_text("mine")
    (runs / name).symlink_to(target)
    with RunIndex(runs) as index:
        index.refresh()
        assert index.path is None and index.count() == 11 and "link" in index.notes[0]
    assert target.read_text() == "mine"
    (runs / name).unlink()


@each_row("pages", [3, 14, 20])  # full when the tables are made, at the first run, at an index
def test_a_full_disk_costs_the_file_and_no_answer(runs, monkeypatch, pages):
    (runs / FILE).unlink(missing_ok=True)
    connected = store_index._connected

    def small(uri: str) -> sqlite3.Connection:
        connection = connected(uri)
        connection.execute(f"PRAGMA max_page_count = {pages if FILE in uri else 1 << 30}")
        return connection

    monkeypatch.setattr(store_index, "_connected", small)
    with RunIndex(runs) as index:
        index.refresh()
        assert [as_json(run) for run in index.newest()] == [as_json(run) for run in list_runs(runs)]
        assert index.path is None and "disk is full; it is made in memory" in index.notes[0], index.notes


def test_a_file_that_may_only_be_read_costs_no_answer(index, runs, monkeypatch):
    connected = store_index._connected
    monkeypatch.setattr(store_index, "_connected", lambda uri: connected(uri.replace("mode=rw", "mode=ro")))
    with RunIndex(runs) as other:
        assert other.count() == 11, "until it is brought up to date"
        other.refresh()
        assert [as_json(run) for run in other.newest()] == [as_json(run) for run in list_runs(runs)]
        assert other.path is None and "readonly database; it is made in memory" in other.notes[0]


@each_row("made", [False, True])
def test_a_file_that_another_process_does_not_let_go_costs_no_answer(runs, monkeypatch, made):
    monkeypatch.setattr(store_index, "BUSY_S", 0.01)
    if made:
        with RunIndex(runs) as first:
            first.refresh()
    with closing(sqlite3.connect(runs / FILE, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with RunIndex(runs) as index:
            index.refresh()
            assert [as_json(run) for run in index.newest()] == [as_json(run) for run in list_runs(runs)]
            assert index.path is None and "database is locked; it is made in memory" in index.notes[0]


def fill_until_killed(runs: Path) -> None:
    """Fill the index until the second part is written and its transaction goes on."""
    store_index._AT_ONCE = 4
    insert, parts = store_index._insert, []

    def killed(connection: sqlite3.Connection, *rest: object) -> None:
        connection.execute("PRAGMA cache_size = 1")  # what does not fit is in the file before the transaction ends
        insert(connection, *rest)
        parts.append(rest)
        if len(parts) == 2:
            kill_this_process()

    store_index._insert = killed
    with RunIndex(runs) as index:
        index.refresh()


@pytest.mark.host
def test_a_kill_amid_a_transaction_costs_no_answer(runs):
    before = {path.name for path in runs.iterdir()}
    run_killed(lambda: fill_until_killed(runs))
    assert {path.name for path in runs.iterdir()} - before == {FILE, f"{FILE}-journal"}
    with RunIndex(runs) as index:
        index.refresh()
        assert [as_json(run) for run in index.newest()] == [as_json(run) for run in list_runs(runs)]
        assert index.notes == ()
    assert {path.name for path in runs.iterdir()} - before == {FILE}
    with closing(sqlite3.connect(runs / FILE)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_damage_while_it_is_open_costs_no_answer(index, runs, monkeypatch):
    expected = [as_json(run) for run in list_runs(runs)]
    index._connection.execute("PRAGMA shrink_memory")
    damage_pages(runs / FILE)
    assert [as_json(run) for run in index.newest()] == expected
    assert "damaged and is made again" in index.notes[0] and len(stored_ids(runs)) == 11


def test_a_folder_whose_name_is_no_text_is_no_run(runs):
    odd = os.fsencode(runs) + b"/20260102T050000-\xff\x01-000030"
    shutil.copytree(os.fsencode(runs / "20260102T030905-tiny-000009"), odd)
    with RunIndex(runs) as index:
        index.refresh()
        index.refresh()
        others = [run for run in list_runs(runs) if run.folder.name != os.fsdecode(odd).rpartition("/")[2]]
        assert index.ids() == [run.folder.name for run in others]
        assert [as_json(run) for run in index.newest()] == [as_json(run) for run in others]


def test_a_run_that_goes_on_is_followed(index, runs):
    import fcntl

    folder = runs / "20260102T030700-cut-off-00000e"
    assert (folder / PLAN).exists()
    with (folder / LOCK).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        index.refresh()
        assert index.states()["RUNNING"] == 1
    index.refresh()
    assert "RUNNING" not in index.states()


def refresh_again_and_again(runs: Path) -> None:
    store_index._RECENT_NS = RECENT_NS
    store_index.BUSY_S = 240.0  # a slow disk makes each transaction of five processes a long one
    for _ in range(15):
        with RunIndex(runs) as index:
            index.refresh()
            assert index.path is not None and not index.notes, index.notes
            index.summaries()


@pytest.mark.host
def test_processes_refresh_one_index_at_once(runs):
    others = [start_forked(lambda: refresh_again_and_again(runs)) for _ in range(4)]
    for n in range(40):
        keep(
            runs.parent,
            f"2026010{2 + n % 7}T05{n:02d}00-more-0001{n:02d}",
            numbered("m", 5.0 + n, n),
            **llama(runs.parent),
        )
        if n % 3 == 0:
            shutil.rmtree(runs / f"2026010{2 + n % 7}T05{n:02d}00-more-0001{n:02d}")
    assert [end_of(one) for one in others] == [0] * 4
    with RunIndex(runs) as index:
        index.refresh()
        assert [as_json(run) for run in index.newest()] == [as_json(run) for run in list_runs(runs)]
        assert index.results({})[0] == of_runs("", list_runs(runs), {}).series
    with closing(sqlite3.connect(runs / FILE)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
