"""`madlite export` into files: what each format has, read by its own readers, and each result once."""

from __future__ import annotations

import csv
import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from madlite.cli.main import call
from tests.reports.export.sources import HEADER, VALUES, write_perf
from tests.rows import each_row


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_perf(tmp_path)
    return tmp_path


def export(capsys, *words: str) -> tuple[int, str]:
    code = call(["export", *words])
    told = "".join(capsys.readouterr())
    assert "Traceback" not in told and "internal error" not in told
    return code, told


def rows_of(path: str) -> list[dict[str, str]]:
    with Path(path).open(newline="") as file:
        return list(csv.DictReader(file))


def objects_of(path: str) -> list[dict]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def test_csv_has_a_line_for_each_result_and_no_formula(capsys):
    assert export(capsys, "--to", "csv", "-o", "out.csv") == (0, "exported to out.csv: 5 new\n")
    rows = rows_of("out.csv")
    assert [float(row["value"]) if row["value"] else None for row in rows] == VALUES
    assert [row["status"] for row in rows] == ["SUCCESS", "SUCCESS", "FAILURE", "FAILURE", "FAILURE"]
    assert rows[2]["cause"] == "bad_number", "a success without a number is none"
    assert json.loads(rows[0]["facts"]) == {"git commit": "1234567e8"}
    assert rows[0]["args"] == "'=cmd|' /C calc'!A0", "no formula"
    assert not any(cell[:1] in ("=", "+", "-", "@") for row in rows for cell in row.values())
    assert "\x1b" not in Path("out.csv").read_text()
    assert rows[0]["source"] == "perf.csv:2" and rows[0]["device"] == "gfx942" and rows[0]["unit"] == "tokens/s/GPU"


def test_json_has_numbers_and_nulls(capsys):
    export(capsys, "--to", "jsonl", "-o", "out.jsonl")
    rows = objects_of("out.jsonl")
    assert [row["value"] for row in rows] == VALUES
    assert rows[0]["gpus"] == 8 and rows[0]["run"] is None and rows[0]["started"] is None
    assert rows[2]["gpus"] is None and rows[2]["facts"]["gpus"] == "many", "what is no number is not lost"


def test_the_output_is_the_standard_output_where_no_file_is_named(capfd):
    assert call(["export", "--to", "jsonl"]) == 0
    told = capfd.readouterr()
    assert [json.loads(line)["value"] for line in told.out.splitlines()] == VALUES and not told.err


@each_row(("form", "read"), [("csv", rows_of), ("jsonl", objects_of)])
def test_what_is_appended_is_what_is_not_there(form, read, capsys, folder):
    write_perf(folder)
    out = f"out.{form}"
    assert export(capsys, "--to", form, "-o", out, "--append") == (0, f"exported to {out}: 5 new\n")
    before = Path(out).read_bytes()
    assert export(capsys, "--to", form, "-o", out, "--append")[1] == f"exported to {out}: 0 new, 5 were there\n"
    assert Path(out).read_bytes() == before
    write_perf(folder, "new,1,1,,,7,x,SUCCESS,,\n")
    Path(out).write_bytes(before.removesuffix(b"\n"))
    assert "1 new, 5 were there" in export(capsys, "--to", form, "-o", out, "--append")[1]
    assert len({row["key"] for row in read(out)}) == len(read(out)) == 6


def test_a_column_more_and_another_place_change_no_key(capsys, folder):
    export(capsys, "--to", "jsonl", "-o", "a.jsonl")
    wider = [f"{line},," for line in (folder / "perf.csv").read_text().splitlines()]
    wider[0] = wider[0][:-2] + ",more,most"
    (folder / "sub").mkdir()
    (folder / "sub/other.csv").write_text("\n".join(wider) + "\n")
    export(capsys, "sub/other.csv", "perf.csv", "--to", "jsonl", "-o", "b.jsonl")
    assert [row["key"] for row in objects_of("a.jsonl")] == [row["key"] for row in objects_of("b.jsonl")]


def test_a_filter_keeps_keys(capsys):
    export(capsys, "--to", "jsonl", "-o", "all.jsonl")
    export(capsys, "--to", "jsonl", "-o", "some.jsonl", "--where", "model=gone")
    assert [row["key"] for row in objects_of("some.jsonl")] == [row["key"] for row in objects_of("all.jsonl")][3:]
    code, told = export(capsys, "--to", "jsonl", "-o", "none.jsonl", "--where", "model=nobody")
    assert code == 4 and "this folder has no results with model=nobody" in told and not Path("none.jsonl").exists()


def test_a_secret_is_masked(capsys, folder, monkeypatch):
    token = "hf_" + "a1B2" * 9
    monkeypatch.setenv("LAB_PASSWORD", "correct-horse-battery")
    (folder / "perf.csv").write_text(HEADER + f"m,1,1,,,5,x,SUCCESS,{token} correct-horse-battery,\n")
    export(capsys, "--to", "jsonl", "-o", "out.jsonl")
    text = Path("out.jsonl").read_text()
    assert token not in text and "correct-horse" not in text and '"args":"*** ***"' in text


def test_a_file_of_other_columns_is_not_appended_to(capsys):
    code, told = export(capsys, "--to", "csv", "-o", "perf.csv", "--append")
    assert code == 4 and "perf.csv has other columns than an export: it has n_gpus" in told
    Path("x.jsonl").write_text('{"key": "a"}\nno json\n')
    code, told = export(capsys, "--to", "jsonl", "-o", "x.jsonl", "--append")
    assert code == 4 and "x.jsonl: line 2 is no exported result" in told
    assert Path("x.jsonl").read_text() == '{"key": "a"}\nno json\n'


def test_sqlite_has_numbers_as_numbers_and_each_result_once(capsys, folder):
    assert export(capsys, "--to", "sqlite", "-o", "r.db")[1] == "exported to table results of r.db: 5 new\n"
    write_perf(folder, "new,1,1,,,7,x,SUCCESS,,\n")
    assert "1 new, 5 were there" in export(capsys, "--to", "sqlite", "-o", "r.db")[1]
    with closing(sqlite3.connect("r.db")) as base:
        found = base.execute("SELECT value, typeof(value), typeof(gpus), typeof(model) FROM results ORDER BY rowid")
        assert [row[0] for row in found] == [*VALUES, 7.0]
        assert base.execute("SELECT DISTINCT typeof(value) FROM results WHERE value IS NOT NULL").fetchall() == [
            ("real",)
        ]
        query = "SELECT json_extract(facts, '$.git commit') FROM results WHERE value = 1500"
        assert base.execute(query).fetchone() == ("0012",)


def test_a_table_of_an_earlier_version_gets_its_columns(capsys):
    export(capsys, "--to", "sqlite", "-o", "r.db")
    with closing(sqlite3.connect("r.db")) as base:
        base.execute("ALTER TABLE results DROP COLUMN steady_cv")
        base.execute("ALTER TABLE results ADD COLUMN mine TEXT")
        base.execute("UPDATE results SET mine = 'kept'")
        base.commit()
    code, told = export(capsys, "--to", "sqlite", "-o", "r.db")
    assert code == 0 and "had no column steady_cv: added" in told and "0 new, 5 were there" in told
    with closing(sqlite3.connect("r.db")) as base:
        assert base.execute("SELECT DISTINCT mine, steady_cv FROM results").fetchall() == [("kept", None)]


@each_row(
    ("made", "words"),
    [
        ("CREATE TABLE results (id INTEGER)", "it has no primary key"),
        ("CREATE TABLE results (id INTEGER PRIMARY KEY, key TEXT)", "its primary key is id"),
        ("CREATE TABLE results (key TEXT PRIMARY KEY, value TEXT)", "column value of type TEXT, not REAL"),
    ],
)
def test_another_program_s_table_is_left_alone(made, words, capsys):
    Path("r.db").unlink(missing_ok=True)
    with closing(sqlite3.connect("r.db")) as base:
        base.execute(made)
    code, told = export(capsys, "--to", "sqlite", "-o", "r.db")
    assert code == 4 and words in told and "--option table=NAME" in told
    assert export(capsys, "--to", "sqlite", "-o", "r.db", "--option", "table=mine")[0] == 0


def test_prometheus_reads_the_latest_of_each_series(capsys):
    export(capsys, "--to", "prometheus", "-o", "m.prom")
    families = {one.name: one for one in text_string_to_metric_families(Path("m.prom").read_text())}
    _, value = families["madlite_result_value"].samples
    assert (
        value.value == 1500.0
        and value.labels["args"].startswith("--name")
        and value.labels["model"] == "llama"
        and value.labels["gpus"] == "8"
    )
    succeeded = {one.labels["model"]: one.value for one in families["madlite_last_run_success"].samples}
    assert succeeded == {"llama": 1.0, 'ev"il\\ [2J': 0.0, "gone": 0.0}
    assert all(one.type == "gauge" and one.documentation for one in families.values())
    labels = {tuple(sample.labels) for sample in families["madlite_last_run_success"].samples}
    assert len(labels) == 1, "node_exporter wants the same labels everywhere"
    assert "end in .prom" in export(capsys, "--to", "prometheus", "-o", "m.txt")[1]


def test_hud_gets_records_of_version_3(capsys, folder):
    write_perf(folder, "other,16,2,,gfx942,7,x,SUCCESS,,\n")
    export(capsys, "--to", "hud", "-o", "hud.json", "--option", "benchmark=nightly")
    (first, third, second) = json.loads(Path("hud.json").read_text())
    # names and types of clickhouse_db_schema/oss_ci_benchmark_v3/schema.sql of pytorch/test-infra
    assert set(first) == {"benchmark", "model", "metric", "inputs", "runners", "dependencies"}
    assert first["benchmark"] == {
        "name": "nightly",
        "mode": "training",
        "dtype": "bf16",
        "extra_info": first["benchmark"]["extra_info"],
    }
    assert first["benchmark"]["extra_info"]["args"] != third["benchmark"]["extra_info"]["args"], "other work"
    assert set(first["model"]) == {"name", "type", "backend", "origins", "extra_info"}
    assert first["metric"]["benchmark_values"] == [2500.5] and second["model"]["name"] == "other"
    assert first["runners"][0]["gpu_count"] == 8 and first["runners"][0]["type"] == "gfx942"
    maps = [first["benchmark"]["extra_info"], first["metric"]["extra_info"], first["runners"][0]["extra_info"]]
    assert all(isinstance(text, str) for one in maps for text in one.values())


@each_row(
    ("words", "told"),
    [
        (("--to", "cvs"), "'cvs' is no format of an export\n hint: did you mean csv?"),
        ((), "no format is named"),
        (("--to", "csv", "--option", "table=x"), "--option table: csv has no such option"),
        (("--to", "sqlite", "-o", "r.db", "--option", "tabel=x"), "did you mean table?"),
        (("--to", "sqlite", "-o", "r.db", "--option", "table=a;b"), "'a;b' is no name for a table"),
        (("--to", "sqlite", "-o", "r.db", "--append"), "sqlite knows no --append"),
        (("--to", "sqlite"), "SQLite is written to a file, and none is named"),
        (("--to", "sqlite", "-o", "perf.csv"), "file is not a database"),
        (("--to", "csv", "-o", "no/such/out.csv"), "no/such/out.csv cannot be written"),
        (("--to", "csv", "-o", "."), ". cannot be written: it is a folder"),
        (("--to", "csv", "--where", "device"), "--where 'device' has no value"),
        (("nobody", "--to", "csv"), "'nobody' is no file, run, study or baseline"),
    ],
)
def test_what_cannot_be_exported_is_told_in_a_sentence(words, told, capsys):
    code, text = export(capsys, *words)
    assert code == 4 and told in text
    assert not Path("r.db").exists() or "file is not" in text or "table" in text


def test_a_database_that_another_program_holds_is_told(capsys, monkeypatch):
    monkeypatch.setattr("madlite_plugins.exports.sqlite._WAIT_S", 0.01)
    export(capsys, "--to", "sqlite", "-o", "r.db")
    with closing(sqlite3.connect("r.db", isolation_level=None)) as base:
        base.execute("BEGIN EXCLUSIVE")
        code, told = export(capsys, "--to", "sqlite", "-o", "r.db")
    assert code == 4 and "r.db cannot be written as SQLite: database is locked" in told


def test_a_link_that_leads_out_is_not_followed(capsys, folder, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "file"
    elsewhere.write_text("as it was")
    for name, form in (("out.csv", "csv"), ("r.db", "sqlite")):
        (folder / name).symlink_to(elsewhere)
        code, told = export(capsys, "--to", form, "-o", name)
        assert code == 4 and "by a link, which is not followed" in told
    assert elsewhere.read_text() == "as it was"
