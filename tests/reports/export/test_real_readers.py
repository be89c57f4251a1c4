"""Parquet, SQLite and PostgreSQL, read by other programs: pandas, DuckDB, sqlite3, a real server."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from madlite.cli.main import call
from tests import commands
from tests.engine_fixture import give_up
from tests.postgres_server import PASSWORD, Postgres, postgres_server
from tests.reports.export.sources import VALUES, write_perf
from tests.rows import each_row

pytestmark = pytest.mark.host


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_perf(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def postgres():
    with postgres_server() as server:
        yield server


def export(capsys, *words: str) -> tuple[int, str]:
    code = call(["export", *words])
    told = "".join(capsys.readouterr())
    assert "Traceback" not in told and "internal error" not in told
    return code, told


def test_pandas_and_duckdb_read_parquet_with_its_types(capsys, folder):
    import duckdb
    import pandas

    assert export(capsys, "--to", "parquet", "-o", "r.parquet")[1] == "exported to r.parquet: 5 new\n"
    frame = pandas.read_parquet("r.parquet")
    assert frame["value"].dtype == "float64" and str(frame["started"].dtype).startswith("datetime64")
    assert [None if pandas.isna(one) else one for one in frame["value"]] == VALUES
    write_perf(folder, "new,1,1,,,7,x,SUCCESS,,\n")
    assert "1 new, 5 were there" in export(capsys, "--to", "parquet", "-o", "r.parquet", "--append")[1]
    columns = "model, max(value), sum(gpus), any_value(json_extract_string(facts, '$.\"git commit\"'))"
    assert duckdb.sql(f"SELECT {columns} FROM 'r.parquet' GROUP BY 1 ORDER BY 2").fetchall()[:2] == [
        ("new", 7.0, 1, None),
        ("llama", 2500.5, 16, "1234567e8"),
    ]
    kinds = dict(duckdb.sql("SELECT column_name, column_type FROM (DESCRIBE SELECT * FROM 'r.parquet')").fetchall())
    assert (kinds["value"], kinds["gpus"], kinds["started"]) == ("DOUBLE", "BIGINT", "TIMESTAMP WITH TIME ZONE")


def test_a_file_that_is_no_parquet_is_not_appended_to(capsys, folder):
    code, told = export(capsys, "--to", "parquet", "-o", "perf.csv", "--append")
    assert code == 4 and "perf.csv is no Parquet file" in told
    assert export(capsys, "--to", "parquet")[1].startswith("error: Parquet is written to a file")


def test_the_sqlite3_program_reads_the_table(capsys):
    export(capsys, "--to", "sqlite", "-o", "r.db")
    if not shutil.which("sqlite3"):
        give_up("sqlite3 is not installed (Debian: sqlite3)")
    query = "SELECT model, value, typeof(value) FROM results WHERE value > 2000"
    done = subprocess.run(["sqlite3", "r.db", query], capture_output=True, text=True, check=True)
    assert done.stdout == "llama|2500.5|real\n"


@each_row(("form", "module"), [("parquet", "pyarrow"), ("postgresql", "psycopg"), ("mlflow", "mlflow")])
def test_a_missing_package_is_named_with_its_extra(form, module, capsys, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == module]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    code, told = export(capsys, "--to", form, "-o", "postgresql://x/y" if form == "postgresql" else "out")
    assert code == 4 and f"{module.partition('.')[0]} is not installed" in told
    assert f"pip install 'madlite[{form}]'" in told


def test_postgresql_has_each_result_once_with_its_types(postgres: Postgres, capsys, folder, monkeypatch):
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    words = ("--to", "postgresql", "-o", postgres.url)
    where = f"bench@127.0.0.1:{postgres.port}/postgres"
    assert export(capsys, *words) == (0, f"exported to table results of {where}: 5 new\n")
    write_perf(folder, "new,1,1,,,7,x,SUCCESS,,\n")
    assert "1 new, 5 were there" in export(capsys, *words)[1]
    query = "SELECT model, max(value), sum(gpus), max(facts->>'git commit') FROM results GROUP BY 1 ORDER BY 2, 1"
    assert postgres.query(query)[:2] == [("new", 7.0, 1, None), ("llama", 2500.5, 16, "1234567e8")]
    query = "SELECT attname, atttypid::regtype::text FROM pg_attribute WHERE attrelid='results'::regclass"
    types = dict(postgres.query(query))
    assert (types["value"], types["gpus"]) == ("double precision", "bigint")
    assert (types["facts"], types["started"]) == ("jsonb", "timestamp with time zone")


def test_two_exports_at_once_make_one_table(postgres: Postgres, folder):
    words = ("export", "--to", "postgresql", "-o", postgres.url, "--option", "table=both")
    environ = {**os.environ, "PGPASSWORD": PASSWORD}
    both = [commands.start(words, folder, environ, stdout=subprocess.DEVNULL) for _ in range(2)]
    assert [one.wait() for one in both] == [0, 0]
    assert postgres.query("SELECT count(*) FROM both_".replace("both_", '"both"')) == [(5,)]


def test_files_that_several_append_to_lose_nothing(folder):
    """Each of five processes appends a result of its own and one that they share."""
    names = [f"p{n}.csv" for n in range(5)]
    for n, name in enumerate(names):
        (folder / name).write_text(f"model,performance,metric,status\nown{n},{n + 1},x,SUCCESS\nshared,9,x,SUCCESS\n")
    words = ("export", "--to", "csv", "--append", "-o", "all.csv")
    started = [commands.start((*words, name), folder, os.environ, stdout=subprocess.DEVNULL) for name in names]
    assert [one.wait() for one in started] == [0] * 5
    lines = (folder / "all.csv").read_text().splitlines()
    assert len(lines) == 1 + 5 + 1 and len({line.split(",")[0] for line in lines}) == 7


def test_a_password_is_shown_nowhere(postgres: Postgres, capsys):
    for password in ("wrong-p4ssword", "wr%ong-p4ssword", "p%4"):
        url = postgres.url.replace("bench@", f"bench:{password}@")
        code, told = export(capsys, "--to", "postgresql", "-o", url)
        assert code == 4 and "PostgreSQL" in told and password not in told, told


def test_what_a_server_refuses_is_told(postgres: Postgres, capsys, monkeypatch):
    monkeypatch.setenv("PGPASSWORD", "guest")
    postgres.query("CREATE TABLE owned (key text PRIMARY KEY); CREATE ROLE guest LOGIN PASSWORD 'guest'")
    guest = postgres.url.replace("bench@", "guest@")
    code, told = export(capsys, "--to", "postgresql", "-o", guest, "--option", "table=owned")
    assert code == 4 and "must be owner of table owned" in told
    code, told = export(capsys, "--to", "postgresql", "-o", guest, "--option", "table=nowhere.results")
    assert code == 4 and 'schema "nowhere" does not exist' in told
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    postgres.query("CREATE TABLE other (id int)")
    code, told = export(capsys, "--to", "postgresql", "-o", postgres.url, "--option", "table=other")
    assert code == 4 and "is no table of results: it has no primary key" in told
    code, told = export(capsys, "--to", "postgresql", "-o", "postgresql://u@127.0.0.1:1/x")
    assert code == 4 and "Connection refused" in told
    assert "names no PostgreSQL database" in export(capsys, "--to", "postgresql", "-o", "x")[1]


def test_a_server_that_goes_away_leaves_nothing_half_written(postgres: Postgres, monkeypatch):
    from madlite.errors import RuntimeProblem
    from madlite.model import ExportOptions, ExportRow
    from madlite_plugins.exports.postgresql import PostgresqlExporter

    def rows():
        yield ExportRow(key="1", model="m")
        postgres.query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'madlite'")
        yield from (ExportRow(key=str(n), model="m" * 1000) for n in range(2, 5000))

    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    with pytest.raises(RuntimeProblem, match="went away, nothing was written") as raised:
        PostgresqlExporter().write(rows(), postgres.url, ExportOptions(values={"table": "cut"}))
    assert raised.value.exit_code == 3
    assert postgres.query("SELECT to_regclass('cut')") == [(None,)]


def test_a_column_of_an_earlier_table_is_added(postgres: Postgres, capsys, monkeypatch):
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    words = ("--to", "postgresql", "-o", postgres.url, "--option", "table=earlier")
    export(capsys, *words)
    postgres.query("ALTER TABLE earlier DROP COLUMN steady_cv")
    code, told = export(capsys, *words)
    assert code == 0 and "had no column steady_cv: added" in told and "0 new, 5 were there" in told
