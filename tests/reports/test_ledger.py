"""The ledger: the same answers as reading every record, whatever happened to its file."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from itertools import product
from pathlib import Path

import pytest

from madlite.errors import UsageProblem
from madlite.files import Folder
from madlite.model import Card, Cause, Machine, Metric, Place, Result, Status, Study, Variant
from madlite.reports import ledger_file, ledger_refresh
from madlite.reports.ledger import Ledger, RunFilter
from madlite.reports.ledger_file import FILE, VERSION
from madlite.reports.listing import as_json, select_runs
from madlite.reports.runs import list_runs
from madlite.reports.series_key import DIMENSIONS
from madlite.reports.sides import of_runs
from madlite.store.events import RunPruned, append
from madlite.store.folder import LOCK, PLAN, RECORD
from tests.cli.stored_runs import good, store
from tests.factories import note_made

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def small_folders_have_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_file, "FEWEST_RUNS", 1)
    monkeypatch.setattr(ledger_refresh, "_RECENT_NS", 0)


def keep(workspace: Path, run_id: str, outcome: Result, **changes: object) -> None:
    """Leave a run that is in the journal, as madlite leaves it."""
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
    store(tmp_path, "20260102T031000-copied-000011", good("h"))  # no journal has it
    (folder / "no run").mkdir()
    return folder


@pytest.fixture
def ledger(runs: Path) -> Iterator[Ledger]:
    with Ledger.open(runs) as opened:
        opened.refresh()
        yield opened


def stored_ids(runs: Path) -> list[str]:
    """Return the ids in a ledger's file, read without madlite."""
    with closing(sqlite3.connect(runs / FILE)) as connection:
        return [row[0] for row in connection.execute("SELECT id FROM runs ORDER BY id")]


def test_its_runs_are_those_of_the_folders(ledger, runs):
    expected = list_runs(runs)
    assert len(expected) == 11 and {run.state for run in expected} >= {"CUT OFF", "UNREADABLE", "SKIPPED"}
    found = ledger.newest()
    assert [as_json(run) for run in found] == [as_json(run) for run in expected]
    assert [run.headline for run in found] == [run.headline for run in expected]
    assert ledger.count() == 11 and sum(ledger.states().values()) == 11
    assert {run.folder.name[16:-7] for run in ledger.problems()} == {"broken"}


def test_a_second_look_reads_only_what_has_no_settled_record(ledger, runs):
    again = ledger.refresh()
    assert (again.runs, again.removed) == (11, 0)
    assert again.read == 2, "the run that was cut off, and the one that cannot be read"


@pytest.mark.parametrize(
    "where", [{}, {"device": "MI300X"}, {"machine": ""}, {"runtime": "docker", "precision": "FP8"}]
)
def test_its_series_are_those_of_the_records(ledger, runs, where):
    expected = of_runs("", list_runs(runs), where)
    series, ids = ledger.results(where)
    assert series == expected.series and ids == expected.runs
    assert ledger.series(where) == expected.series and ledger.runs_of(where) == expected.runs


def test_filters_choose_what_the_list_of_runs_does(ledger, runs):
    listed = list_runs(runs)
    statuses = ("", "success", "suspect", "cut-off", "UNREADABLE", "exit_code", "failure")
    words = ((), ("LLAMA",), ("train", "tiny"), ("03:",))
    for status, some, of, limit in product(statuses, words, ("", "20260102T000000", "none"), (0, 2)):
        expected = select_runs(listed, status=status, tags=some, of=of, limit=limit)
        chosen = RunFilter(status=status, words=some, of=of)
        assert [run.folder for run in ledger.newest(chosen, limit)] == [run.folder for run in expected], chosen
        assert limit or ledger.count(chosen) == len(expected)


def test_a_status_that_is_none_is_refused(ledger):
    with pytest.raises(UsageProblem, match="no run can be that"):
        ledger.count(RunFilter(status="sucess"))


def test_columns_times_and_order(ledger):
    assert ledger.values("card") == ("llama", "tiny")
    assert ledger.count(RunFilter(columns={"precision": "FP8", "gpus": "8"})) == 5
    assert ledger.count(RunFilter(since="2026-01-02 03:02", until="2026-01-02 03:03")) == 2
    numbers = [run.headline.value for run in ledger.runs(order="number", descending=True, limit=3)]
    assert numbers == [9003.0, 9002.0, 9001.0]
    assert [run.headline.value for run in ledger.runs(order="number", descending=True, limit=2, offset=1)] == numbers[
        1:
    ]
    with pytest.raises(KeyError):
        ledger.values("id; DROP TABLE runs")


def test_a_series_and_its_history(ledger):
    (one,) = [each for each in ledger.summaries() if each.key[0] == "llama"]
    assert (one.runs, one.failed, one.last, one.last_at) == (4, 1, 9003.0, "2026-01-02 03:03:05")
    assert ledger.series_key(one.id) == one.key and ledger.series_key(10_000) is None
    assert ledger.history(one.key).values == (9000.0, 9001.0, 9002.0, 9003.0)
    assert ledger.history(("none",) * len(DIMENSIONS)) is None


def test_a_record_changed_in_its_place_is_read_again(ledger, runs):
    record = runs / "20260102T030005-llama-000000" / RECORD
    before = record.stat()
    record.write_text(record.read_text().replace("9000.0", "9900.0"))
    os.utime(record, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert record.stat().st_size == before.st_size
    ledger.refresh()
    assert [as_json(run) for run in ledger.newest()] == [as_json(run) for run in list_runs(runs)]


def test_new_ended_and_removed_runs(ledger, runs):
    keep(runs.parent, "20260102T040000-new-000020", numbered("n", 7.0, 50))
    shutil.rmtree(runs / "20260102T030005-llama-000000")
    looked = ledger.refresh()
    assert (looked.runs, looked.removed) == (11, 1)
    assert [as_json(run) for run in ledger.newest()] == [as_json(run) for run in list_runs(runs)]
    assert ledger.ids(RunFilter(words=("-new-",))) == ["20260102T040000-new-000020"]
    cut_off = runs / "20260102T030700-cut-off-00000e"
    assert [run.state for run in ledger.newest() if run.folder == cut_off] == ["CUT OFF"]


def test_of_a_run_that_the_journal_has_a_new_line_of_the_record_is_read_again(ledger, runs):
    name = "20260102T030005-llama-000000"
    ledger.refresh()
    assert not ledger.newest()[0].pruned
    before = ledger.refresh().read
    with Folder.open(runs) as folder:
        append(folder, RunPruned(run=name))
    assert ledger.refresh().read == before + 1
    assert ledger.newest()[0].pruned


def test_a_small_folder_has_no_file(runs, monkeypatch):
    monkeypatch.setattr(ledger_file, "FEWEST_RUNS", 500)
    with Ledger.open(runs) as ledger:
        ledger.refresh()
        assert (ledger.count(), ledger.path, ledger.notes) == (11, None, ())
    assert not (runs / FILE).exists()


def test_a_folder_that_is_not_there_has_no_runs(tmp_path):
    with Ledger.open(tmp_path / "madlite_runs") as ledger:
        ledger.refresh()
        assert ledger.runs() == [] and ledger.notes == ()


# Its file.


def damage_head(file: Path) -> None:
    file.write_bytes(b"no database at all" * 500)


def damage_pages(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[4096:] = os.urandom(len(data) - 4096)
    file.write_bytes(data)


def cut(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


@pytest.mark.parametrize("damage", [damage_head, damage_pages, cut])
def test_a_damaged_file_is_made_again(runs, damage):
    with Ledger.open(runs) as ledger:
        ledger.refresh()
    damage(runs / FILE)
    with Ledger.open(runs) as ledger:
        ledger.refresh()
        assert [as_json(run) for run in ledger.newest()] == [as_json(run) for run in list_runs(runs)]
        assert ledger.path == runs / FILE
    assert len(stored_ids(runs)) == 11


def test_a_file_of_a_newer_madlite_is_left_alone(runs):
    with closing(sqlite3.connect(runs / FILE)) as newer:
        newer.execute("CREATE TABLE of_the_future(x)")
        newer.execute("PRAGMA user_version = 99")
    before = (runs / FILE).read_bytes()
    for _ in range(2):
        with Ledger.open(runs) as ledger:
            ledger.refresh()
            assert ledger.count() == 11 and ledger.path == runs / f".ledger-{VERSION}.sqlite3"
            (note,) = ledger.notes
            assert "version 99, of a newer madlite" in note
    assert (runs / FILE).read_bytes() == before


def test_what_another_program_put_into_a_file_is_not_believed(runs):
    with Ledger.open(runs) as ledger:
        ledger.refresh()
    with closing(sqlite3.connect(runs / FILE)) as planted:
        planted.execute(
            "CREATE TRIGGER lie AFTER INSERT ON runs BEGIN UPDATE runs SET state = 'SUCCESS', doubt = ''; END"
        )
        planted.commit()
    with Ledger.open(runs) as ledger:
        ledger.refresh()
        assert [as_json(run) for run in ledger.newest()] == [as_json(run) for run in list_runs(runs)]
    with closing(sqlite3.connect(runs / FILE)) as connection:
        assert connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall() == []


def test_a_file_that_came_with_a_copied_folder_is_made_again(runs, tmp_path):
    with Ledger.open(runs) as ledger:
        ledger.refresh()
    with closing(sqlite3.connect(runs / FILE)) as connection:  # as a foreign folder could bring it
        connection.execute("UPDATE runs SET state = 'SUCCESS', doubt = ''")
        connection.commit()
    copy = tmp_path / "copy" / "madlite_runs"
    shutil.copytree(runs, copy)
    with Ledger.open(copy) as ledger:
        assert ledger.count() == 0
        ledger.refresh()
        assert [as_json(run) for run in ledger.newest()] == [as_json(run) for run in list_runs(copy)]


def test_a_file_of_another_user_is_not_opened(runs, monkeypatch):
    with Ledger.open(runs) as ledger:
        ledger.refresh()
    before = (runs / FILE).read_bytes()
    another = os.geteuid() + 4242
    monkeypatch.setattr(os, "geteuid", lambda: another)
    with Ledger.open(runs) as ledger:
        ledger.refresh()
        assert ledger.path is None and ledger.count() == 11
        assert "belongs to another user" in ledger.notes[0]
    assert (runs / FILE).read_bytes() == before


@pytest.mark.parametrize("name", [FILE, f"{FILE}-wal"])
def test_a_link_in_its_place_is_not_followed(runs, tmp_path, name):
    target = tmp_path / "precious"
    target.write_text("mine")
    (runs / name).symlink_to(target)
    with Ledger.open(runs) as ledger:
        ledger.refresh()
        assert ledger.path is None and ledger.count() == 11 and "link" in ledger.notes[0]
    assert target.read_text() == "mine"


def test_a_full_disk_costs_the_file_and_no_answer(runs, monkeypatch):
    prepare = ledger_file._prepare

    def small(connection: sqlite3.Connection, *rest: Path) -> None:
        prepare(connection, *rest)
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages + 1}")

    monkeypatch.setattr(ledger_file, "_prepare", small)
    with Ledger.open(runs) as ledger:
        ledger.refresh()
        assert [as_json(run) for run in ledger.newest()] == [as_json(run) for run in list_runs(runs)]
        assert ledger.path is None and "disk is full; it is made in memory" in ledger.notes[0]


def test_damage_while_it_is_open_costs_no_answer(ledger, runs, monkeypatch):
    expected = [as_json(run) for run in list_runs(runs)]
    ledger._file._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    ledger._file._connection.execute("PRAGMA shrink_memory")
    damage_pages(runs / FILE)
    assert [as_json(run) for run in ledger.newest()] == expected
    assert "damaged and is made again" in ledger.notes[0] and len(stored_ids(runs)) == 11


def test_names_that_are_no_text(runs):
    odd = os.fsencode(runs) + b"/20260102T050000-\xff\x01-000030"
    shutil.copytree(os.fsencode(runs / "20260102T030905-tiny-000009"), odd)
    with Ledger.open(runs) as ledger:
        ledger.refresh()
        ledger.refresh()
        names = [run.folder.name for run in list_runs(runs)]
        assert ledger.ids() == names and os.fsdecode(odd).rpartition("/")[2] in names
        assert [as_json(run) for run in ledger.newest()] == [as_json(run) for run in list_runs(runs)]


def test_a_run_that_goes_on_is_followed(ledger, runs):
    import fcntl

    folder = runs / "20260102T030700-cut-off-00000e"
    assert (folder / PLAN).exists()
    with (folder / LOCK).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        ledger.refresh()
        assert ledger.states()["RUNNING"] == 1
    ledger.refresh()
    assert "RUNNING" not in ledger.states()


REFRESH = """
import sys
from pathlib import Path
from madlite.reports import ledger_file
from madlite.reports.ledger import Ledger
ledger_file.FEWEST_RUNS = 1
for _ in range(15):
    with Ledger.open(Path(sys.argv[1])) as ledger:
        ledger.refresh()
        assert ledger.path is not None and not ledger.notes, ledger.notes
        ledger.summaries()
"""


@pytest.mark.host
def test_processes_refresh_one_ledger_at_once(runs):
    others = [subprocess.Popen([sys.executable, "-c", REFRESH, str(runs)], cwd=ROOT) for _ in range(4)]
    for n in range(40):
        keep(
            runs.parent,
            f"2026010{2 + n % 7}T05{n:02d}00-more-0001{n:02d}",
            numbered("m", 5.0 + n, n),
            **llama(runs.parent),
        )
        if n % 3 == 0:
            shutil.rmtree(runs / f"2026010{2 + n % 7}T05{n:02d}00-more-0001{n:02d}")
    assert [one.wait(120) for one in others] == [0] * 4
    with Ledger.open(runs) as ledger:
        ledger.refresh()
        assert [as_json(run) for run in ledger.newest()] == [as_json(run) for run in list_runs(runs)]
        assert ledger.series() == of_runs("", list_runs(runs), {}).series
    with closing(sqlite3.connect(runs / FILE)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


@pytest.mark.host
def test_a_folder_that_may_only_be_read_keeps_its_ledger(runs):
    """As another user, for root may write anywhere; a process of its own changes who it is."""
    with Ledger.open(runs) as ledger:
        ledger.refresh()
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    nobody = 65534
    for path in (runs.parent, *runs.parents):
        if path.stat().st_mode & 0o005 != 0o005 and str(path).startswith("/tmp/"):
            path.chmod(0o755)
    for path in (runs, *runs.rglob("*")):
        os.chown(path, nobody, nobody)
    runs.chmod(0o555)
    script = (
        "import os, sys; sys.path.insert(0, sys.argv[2]); from pathlib import Path\n"
        "from madlite.reports.ledger import Ledger; import sqlite3, msgspec, pwd\n"
        "import madlite.reports.runs, madlite.reports.sides, madlite.reports.compare\n"
        f"os.setegid({nobody}); os.seteuid({nobody})\n"
        "ledger = Ledger.open(Path(sys.argv[1])); before = ledger.count(); done = ledger.refresh()\n"
        "print(ledger.path, before, done.read, ledger.count(), len(ledger.notes))"
    )
    told = subprocess.run([sys.executable, "-c", script, str(runs), str(ROOT)], capture_output=True, text=True, cwd="/")
    assert told.stdout.split()[:2] == ["None", "11"], told.stderr
    assert told.stdout.split()[3:] == ["11", "0"], "it knew them, and has nothing to complain about"
