"""Results files into MongoDB by the whole command and the real client; the server is our own, tests/mongo_server.py."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest

from madlite.cli.main import call
from madlite_plugins.exports.mongodb import Server
from tests.mongo_server import Mongo, mongo_server
from tests.rows import each_row

HEADER = "model,n_gpus,git_commit,performance,metric,status,dataname,configs,steps\n"
ROWS = (
    'llama,8,1234567e8,12.50,tokens/s,SUCCESS,0012,"{""lr"": 0.1}",100\n'
    "bert,1,abc,14|18,cpu_bound,SUCCESS,,,200\n"
    "gone,1,,,,FAILURE,,,\n"
    "gone,1,,,,FAILURE,,,\n"
)
TARGET = ("--db", "bench", "-c", "runs")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch) -> Path:
    for name in ("HOST", "PORT", "USER", "PASSWORD", "AUTH_SOURCE", "TIMEOUT_MS"):
        monkeypatch.delenv(f"MONGO_{name}", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "perf.csv").write_text(HEADER + ROWS)
    return tmp_path


@pytest.fixture
def mongo(monkeypatch):
    with mongo_server() as server:
        ask(monkeypatch, server)
        yield server


def ask(monkeypatch, server: Mongo) -> None:
    monkeypatch.setenv("MONGO_HOST", "127.0.0.1")
    monkeypatch.setenv("MONGO_PORT", str(server.port))


def upload(capsys, *words: str) -> tuple[int, str]:
    code = call(["export", "--to", "mongodb", *words])
    told = "".join(capsys.readouterr())
    assert "Traceback" not in told
    return code, told


def without_dates(server: Mongo, name: str = "bench.runs") -> list[dict]:
    left = ("_id", "_meta_uploaded_at", "created_date")
    return [{key: value for key, value in one.items() if key not in left} for one in server.collections[name]]


def test_rows_become_documents_with_numbers_texts_and_nulls(mongo, capsys):
    code, told = upload(capsys, "-f", "perf.csv", *TARGET)
    assert (code, told) == (0, f"uploaded perf.csv to bench.runs at 127.0.0.1:{mongo.port}: 4 new, 0 were there\n")
    llama, bert, gone, again = without_dates(mongo)
    assert llama == {
        **{"model": "llama", "n_gpus": 8, "git_commit": "1234567e8", "performance": 12.5, "metric": "tokens/s"},
        **{"status": "SUCCESS", "dataname": "0012", "configs": {"lr": 0.1}, "steps": 100},
    }
    assert bert["performance"] == "14|18" and bert["dataname"] is None and bert["configs"] is None
    assert gone == again, "two runs that failed alike are two"
    stamps = mongo.collections["bench.runs"][0]
    assert isinstance(stamps["_meta_uploaded_at"], datetime)
    datetime.strptime(stamps["created_date"], "%Y-%m-%d %H:%M:%S")
    assert mongo.indexes == [("model",), ("status",)]


def test_what_was_uploaded_is_not_doubled_and_what_came_since_is_added(mongo, capsys, folder):
    upload(capsys, "-f", "perf.csv", *TARGET)
    created = [one["created_date"] for one in mongo.collections["bench.runs"]]
    wider = "".join(f"{line},\n" for line in ROWS.splitlines())
    (folder / "perf.csv").write_text(HEADER.strip() + ",more\n" + wider + "new,1,,3,x,SUCCESS,,,abc,\n")
    code, told = upload(capsys, "-f", "perf.csv", *TARGET)
    assert code == 0 and ": 1 new, 4 were there" in told
    assert [one["model"] for one in without_dates(mongo)] == ["llama", "bert", "gone", "gone", "new"]
    assert [one["created_date"] for one in mongo.collections["bench.runs"]][:4] == created


def test_the_json_of_an_entry_keeps_its_types(mongo, capsys, folder):
    entry = {"model": "a", "performance": 5.25, "n_gpus": "8", "configs": [{"lr": 0.1}], "flag": True, "none": None}
    text = json.dumps({**entry, "big": 1 << 70}).replace('"none": null', '"none": NaN')
    (folder / "perf_entry.json").write_text(f"[{text}]")
    (folder / "entry").write_text(f"\n {text}")
    assert upload(capsys, "-f", "perf_entry.json", *TARGET)[0] == 0
    assert without_dates(mongo) == [{**entry, "big": str(1 << 70)}]
    code, told = upload(capsys, "-f", "entry", *TARGET)
    assert code == 0 and "0 new, 1 were there" in told, "a file without an end is known by its first character"


def test_fields_of_one_s_own_say_what_is_the_same(mongo, capsys):
    code, told = upload(capsys, "-f", "perf.csv", *TARGET, "-k", "model, status")
    assert code == 0 and "warning: 1 rows have the model, status of another: of each such the last stays" in told
    assert "3 new, 1 were there" in told and len(without_dates(mongo)) == 3
    assert mongo.indexes == [("model",), ("status",), ("model", "status")]
    code, told = upload(capsys, "-f", "perf.csv", *TARGET, "-k", "dataname")
    assert code == 4 and "row 2 has no 'dataname', which is to tell rows apart" in told


def test_without_upsert_each_is_added_and_without_index_none_is_made(mongo, capsys):
    for _ in range(2):
        assert upload(capsys, "-f", "perf.csv", *TARGET, "--no-upsert", "--no-index", "--batch-size", "3")[0] == 0
    assert len(without_dates(mongo)) == 8 and mongo.indexes == [] and mongo.batches == [3, 1, 3, 1]


def test_madengine_1_s_spelling(mongo, capsys):
    words = ("--csv-file-path", "perf.csv", "--database-name", "bench", "--collection-name", "runs")
    assert call(["database", "upload-mongodb", *words]) == 0 and len(without_dates(mongo)) == 4
    capsys.readouterr()
    assert call(["database", "create-table", *words]) == call(["database", "create-table"]) == 4, "tables are not there"
    assert "madlite export --to mongodb --help" in capsys.readouterr().err


def test_the_file_may_stand_without_an_option_and_is_one(capsys):
    code, told = upload(capsys, "perf.csv", *TARGET, "--dry-run")
    assert code == 0 and "documents of perf.csv to" in told
    assert call(["export", "--to=mongodb", "perf.csv", *TARGET, "--dry-run"]) == 0
    assert upload(capsys, *TARGET)[0] == 4 and upload(capsys, "perf.csv", "-f", "perf.csv", *TARGET)[0] == 4


def test_a_dry_run_asks_nobody(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "pymongo", None)
    code, told = upload(capsys, "-f", "perf.csv", *TARGET, "--dry-run")
    text = "would upload 4 documents of perf.csv to bench.runs at localhost:27017, told apart by all they hold\n"
    assert (code, told) == (0, text)
    assert "each added" in upload(capsys, "-f", "perf.csv", *TARGET, "--dry-run", "--no-upsert")[1]


def test_a_login(capsys, monkeypatch):
    with mongo_server(lab="s3cret@word") as server:
        ask(monkeypatch, server)
        code, told = upload(capsys, "-f", "perf.csv", *TARGET)
        assert code == 4 and "lets a caller without a login not write there" in told
        monkeypatch.setenv("MONGO_USER", "lab")
        code, told = upload(capsys, "-f", "perf.csv", *TARGET)
        assert code == 4 and "has no MONGO_PASSWORD: the server is asked without a login" in told
        monkeypatch.setenv("MONGO_PASSWORD", "wrong-hush")
        monkeypatch.setenv("MONGO_AUTH_SOURCE", "people")
        code, told = upload(capsys, "-f", "perf.csv", *TARGET)
        assert code == 4 and f"MongoDB at 127.0.0.1:{server.port} does not let user 'lab' in" in told
        assert "hush" not in told and "people (MONGO_AUTH_SOURCE)" in told and server.collections == {}
        monkeypatch.setenv("MONGO_PASSWORD", "s3cret@word")
        assert upload(capsys, "-f", "perf.csv", *TARGET)[0] == 0 and len(without_dates(server)) == 4


def test_an_address_is_told_without_what_it_has_of_a_login():
    named = {"db.lab": "db.lab:27017", "me:hush@db.lab": "db.lab:27017", "mongodb://me:hush@db.lab:1/x": "db.lab:1/x"}
    assert {host: Server(host=host).address for host in named} == named


@pytest.mark.host
def test_no_server_is_one_sentence(capsys, monkeypatch):
    monkeypatch.setenv("MONGO_PORT", "1")
    monkeypatch.setenv("MONGO_TIMEOUT_MS", "200")
    code, told = upload(capsys, "-f", "perf.csv", *TARGET)
    assert code == 4 and "error: no MongoDB server answers at localhost:1 within 0.2 s\n hint: MONGO_HOST" in told
    monkeypatch.setenv("MONGO_HOST", "mongodb://me:hush-hush@127.0.0.1:1/x")
    code, told = upload(capsys, "-f", "perf.csv", *TARGET)
    assert code == 4 and "at 127.0.0.1:1/x within" in told and "hush" not in told


@each_row(("name", "value"), [("MONGO_PORT", "x"), ("MONGO_PORT", "70000"), ("MONGO_TIMEOUT_MS", "0")])
def test_a_number_of_the_environment_that_is_none(capsys, monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    code, told = upload(capsys, "-f", "perf.csv", *TARGET)
    assert code == 4 and f"{name} of the environment is '{value}', which is no number from 1 to" in told


def test_without_pymongo_what_to_install_is_told(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "pymongo", None)
    code, told = upload(capsys, "-f", "perf.csv", *TARGET)
    assert code == 4 and "pymongo is not installed" in told and "'madlite[mongodb]'" in told


@each_row(
    ("name", "text", "said"),
    [
        ("gone.csv", None, "gone.csv cannot be read: No such file"),
        ("gone.json", None, "gone.json cannot be read"),
        ("a.csv", "", "is empty: no line names its columns"),
        ("a.csv", "model,status\n", "holds no row"),
        ("a.csv", "a,b\n1,2,3\n", "line 2 has 3 cells under 2 columns"),
        ("a.csv", "a,b.c\n1,2\n", "a column 'b.c', which MongoDB takes for no field"),
        ("a.txt", "a,b\n1,2\n", "is no .csv file"),
        ("a.json", "[]", "holds no row"),
        ("a.json", "[1]", "entry 1 is no object but a int"),
        ("a.json", '{"a": 1,}', "is no JSON: "),
        ("a.json", "[" * 100_000, "is no JSON: "),
    ],
)
def test_a_bad_file_is_one_sentence_and_nothing_is_uploaded(mongo, capsys, folder, name, text, said):
    if text is not None:
        (folder / name).write_text(text)
    code, told = upload(capsys, "-f", name, *TARGET)
    assert code == 4 and said in told and told.startswith("error: ") and mongo.collections == {}


def test_a_name_that_is_none_is_the_servers_sentence(mongo, capsys):
    code, told = upload(capsys, "-f", "perf.csv", "--db", "a b", "-c", "runs")
    assert code == 4 and "database name" in told.lower()


def test_documents_that_the_server_refuses_are_counted(mongo, capsys):
    mongo.refuse = lambda document: "no failures here" if document.get("status") == "FAILURE" else ""
    mongo.refuse_index = "an index of that name has other options"
    code, told = upload(capsys, "-f", "perf.csv", *TARGET)
    assert code == 3 and "2 new, 0 were there, 2 refused" in told
    assert "warning: no failures here" in told and "no index of model: an index of that name" in told
    assert [one["model"] for one in without_dates(mongo)] == ["llama", "bert"]
    code, told = upload(capsys, "-f", "perf.csv", *TARGET, "--no-upsert")
    assert code == 3 and "2 new, 0 were there, 2 refused" in told


def test_a_server_that_goes_away_is_told_with_what_it_has(mongo, capsys):
    mongo.writes = 1
    code, told = upload(capsys, "-f", "perf.csv", *TARGET, "--batch-size", "2", "--no-index")
    assert code == 3 and "went away after 2 documents" in told and "upload again" in told
    mongo.writes = 100
    assert ": 2 new, 2 were there" in upload(capsys, "-f", "perf.csv", *TARGET)[1]


def test_what_bson_cannot_hold_is_told(mongo, capsys, folder):
    mongo.largest = 1 << 16
    (folder / "a.json").write_text(json.dumps([{"model": "a"}, {"model": "b", "args": "x" * (1 << 20)}]))
    code, told = upload(capsys, "-f", "a.json", *TARGET, "--batch-size", "1")
    assert code == 3 and "MongoDB cannot hold a row from 2 on" in told and "1 documents are there" in told


def test_other_exports_do_without_pymongo():
    code = (
        "import sys; sys.modules['bson'] = sys.modules['pymongo'] = None;"
        "from madlite.cli.main import call; sys.exit(call(['export', 'perf.csv', '--to', 'csv']))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.count("\n") == 5 and done.stderr == ""
