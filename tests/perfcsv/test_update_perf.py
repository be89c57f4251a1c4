"""Results from elsewhere become rows of a perf.csv that is there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from madlite.errors import MadliteError, RecordError, UsageProblem
from madlite.perfcsv.rows import STANDARD_COLUMNS
from madlite.perfcsv.update_perf import update_perf
from tests.rows import each_row

from .golden import BLANK, GOLDEN, OVERRIDE
from .reading import V2, models, table

# perf_entry.json of madengine 1: its order of keys, tags as a list, a pipeline that is null
SINGLE = """{"model": "llama", "pipeline": null, "n_gpus": "8", "training_precision": "bf16", "args": "--steps 20",
"tags": ["pyt", "train"], "docker_file": "docker/a.ubuntu.amd.Dockerfile", "performance": "1.50e+03",
"metric": "tokens_per_second", "relative_change": "", "status": "SUCCESS", "build_duration": 41.50,
"test_duration": 612.25, "build_number": "0", "additional_docker_run_options": ""}"""
COMMON = """{"pipeline": null, "n_gpus": "8", "training_precision": "", "args": "", "tags": ["a", "b"],
"gpu_architecture": "gfx942", "build_duration": 0.10, "test_duration": 7.50, "build_number": "0", "configs": null}"""


@pytest.fixture
def perf(tmp_path: Path) -> Path:
    path = tmp_path / "perf.csv"
    path.write_text(V2 + "\n")
    return path


def add(perf: Path, **given: Any) -> int:
    """Call it with files made of the texts given."""
    files: dict[str, Any] = dict.fromkeys(("single", "exception", "multiple", "common_info"))
    model_name = given.pop("model_name", "")
    for name, text in given.items():
        files[name] = perf.parent / f"{name}.txt"
        files[name].write_text(text)
    return update_perf(perf, model_name=model_name, folder=perf.parent, **files)


def test_single_result_of_madengine_1(perf: Path) -> None:
    assert add(perf, single=SINGLE) == 1
    (row,) = table(perf)
    assert list(row) == list(STANDARD_COLUMNS)
    assert {name: text for name, text in row.items() if text} == {
        "model": "llama",
        "n_gpus": "8",
        "training_precision": "bf16",
        "args": "--steps 20",
        "tags": "pyt,train",
        "docker_file": "docker/a.ubuntu.amd.Dockerfile",
        "performance": "1.50e+03",
        "metric": "tokens_per_second",
        "status": "SUCCESS",
        "build_duration": "41.50",
        "test_duration": "612.25",
        "build_number": "0",
    }


def test_rows_are_left_as_perf_entry_too(perf: Path) -> None:
    (perf.parent / "perf_entry.csv").write_text("of a former run\n")
    add(perf, single=SINGLE)
    (row,) = table(perf.parent / "perf_entry.csv")
    assert list(row)[:2] == ["model", "pipeline"] and row["tags"] == "pyt,train"


def test_text_that_is_no_utf_8_is_spelled_out_in_both_files(perf: Path) -> None:
    files = {name: perf.parent / f"{name}.txt" for name in ("multiple", "common_info")}
    files["multiple"].write_bytes(b"model,performance,metric,c\xff\na\xe9,5,x,caf\xe9\n")
    files["common_info"].write_text(COMMON.replace('"pipeline": null', r'"pipeline": "n\udce9"'))
    update_perf(perf, single=None, exception=None, model_name="m\udcff", folder=perf.parent, **files)
    for path in (perf, perf.parent / "perf_entry.csv"):
        path.read_text(encoding="utf-8")
        (row,) = table(path)
        assert (row["model"], row["pipeline"], row["c\\udcff"]) == ("m\\udcff_a\\udce9", "n\\udce9", "caf\\udce9")


@each_row("name", ["x_args", "x_noperf", "x_multi_blank"])
def test_entries_of_madengine_2_bring_no_configs_column(perf: Path, name: str) -> None:
    perf.write_text(V2 + "\n")
    text = (GOLDEN / name / "perf_entry.json").read_text()
    entries = json.loads(text, parse_constant=lambda nan: None)
    entries = entries if isinstance(entries, list) else [entries]
    assert add(perf, single=text) == len(entries)
    rows = table(perf)
    assert "configs" not in rows[0]
    for row, entry in zip(rows, entries, strict=True):
        assert row == {key: "" if value is None else str(value) for key, value in entry.items() if key != "configs"}


def test_exception_result_without_a_status_failed(perf: Path) -> None:
    assert add(perf, exception='{"model": "m", "performance": "", "tags": "a,b"}') == 1
    (row,) = table(perf)
    assert (row["model"], row["status"], row["tags"]) == ("m", "FAILURE", "a,b")


@each_row(("performance", "status"), [('"5"', "SUCCESS"), ("5", "SUCCESS"), ("null", "FAILURE"), ('"nan"', "FAILURE")])
def test_single_result_without_a_status_is_judged_by_its_number(perf: Path, performance: str, status: str) -> None:
    perf.write_text(V2 + "\n")
    add(perf, single=f'{{"performance": {performance}, "metric": "u"}}', model_name="m")
    (row,) = table(perf)
    assert (row["model"], row["status"]) == ("m", status)


def test_multiple_results_share_what_the_run_says(perf: Path) -> None:
    assert add(perf, multiple=BLANK, common_info=COMMON, model_name="card") == 2
    first, second = table(perf)
    assert [first[name] for name in ("model", "performance", "metric", "status", "extra")] == [
        *("card_a", "10.5", "tok/s", "SUCCESS", "e1")
    ]
    assert [second[name] for name in ("model", "performance", "status", "extra")] == ["card_b", "", "FAILURE", "e2"]
    for row in (first, second):
        assert (row["tags"], row["n_gpus"], row["build_duration"], row["test_duration"]) == ("a,b", "8", "0.10", "7.50")
        assert "configs" not in row


def test_a_result_may_override_anything_but_its_status(perf: Path) -> None:
    add(perf, multiple=OVERRIDE, common_info=COMMON, model_name="card")
    (row,) = table(perf)
    assert [row[name] for name in ("model", "n_gpus", "gpu_architecture", "test_duration", "status")] == [
        *("card_a", "4", "gfx999", "77", "SUCCESS")
    ]


def test_first_of_multiple_single_and_exception_counts(perf: Path) -> None:
    other = SINGLE.replace("llama", "failed")
    assert add(perf, multiple=BLANK, common_info=COMMON, model_name="card", single=SINGLE, exception=other) == 2
    assert add(perf, single=SINGLE, exception=other) == 1
    assert models(perf) == ["card_a", "card_b", "llama"]


@each_row(
    ("given", "words"),
    [
        ({}, "no result to append"),
        ({"single": "{"}, "is no JSON"),
        ({"single": "3"}, "no object"),
        ({"single": "[]"}, "no object"),
        ({"exception": '{"tags": []}'}, "names no model"),
        ({"single": '{"unheard": "of"}', "model_name": "m"}, "unheard"),
        ({"multiple": BLANK, "common_info": COMMON}, "need the name of their model"),
        ({"multiple": BLANK, "model_name": "m"}, "need what they have in common"),
        ({"multiple": BLANK, "model_name": "m", "common_info": "model"}, "is no JSON"),
        ({"multiple": "model,performance\na,1\n", "model_name": "m", "common_info": COMMON}, "no column metric"),
        ({"multiple": "", "model_name": "m", "common_info": COMMON}, "is empty"),
    ],
)
def test_what_cannot_be_used_is_said_and_nothing_is_appended(perf: Path, given: dict[str, str], words: str) -> None:
    before = perf.read_bytes()
    with pytest.raises(UsageProblem, match=words):
        add(perf, **given)
    assert perf.read_bytes() == before and not (perf.parent / "perf_entry.csv").exists()


@each_row("name", ["single", "exception", "multiple", "common_info"])
def test_file_that_is_not_there_is_named(perf: Path, name: str) -> None:
    files: dict[str, Path | None] = dict.fromkeys(("single", "exception", "multiple", "common_info"))
    if name == "common_info":
        files["multiple"] = perf.parent / "r.csv"
        (perf.parent / "r.csv").write_text(BLANK)
    if name == "multiple":
        files["common_info"] = perf.parent / "c.json"
        (perf.parent / "c.json").write_text(COMMON)
    files[name] = perf.parent / "gone.json"
    with pytest.raises(UsageProblem, match=r"gone\.json.*No such file"):
        update_perf(perf, model_name="m", folder=perf.parent, **files)


def test_perf_csv_must_be_there_and_be_one(perf: Path) -> None:
    perf.write_text("a,b\n1,2\n")
    with pytest.raises(RecordError, match=r"no perf\.csv header"):
        add(perf, single=SINGLE)
    perf.unlink()
    with pytest.raises(UsageProblem, match="there is no file") as problem:
        add(perf, single=SINGLE)
    assert isinstance(problem.value, MadliteError) and str(perf) in problem.value.message
    assert not perf.exists()


def test_perf_entry_that_cannot_be_written_costs_no_row(perf: Path, caplog: pytest.LogCaptureFixture) -> None:
    (perf.parent / "perf_entry.csv").mkdir()
    assert add(perf, single=SINGLE) == 1
    assert models(perf) == ["llama"] and "perf_entry.csv is a folder" in caplog.text


def test_each_row_is_one_line_and_short_and_what_was_cut_is_told(perf: Path, caplog: pytest.LogCaptureFixture) -> None:
    key = "ssh-ed25519 AAAA me"
    single = {
        "model": f"a\n{key}",
        "metric": f"m\u2028{key}",
        f"col\n{key}": "x",
        "note": "n" * 5000,
        "status": "SUCCESS",
    }
    add(perf, single=json.dumps(single))
    several = f'model,performance,metric\n"b\n{key}",5,{"m" * 300}\n'
    add(perf, multiple=several, common_info=COMMON, model_name="c")
    lines = perf.read_text().splitlines()
    assert len(lines) == 3 and len((perf.parent / "perf_entry.csv").read_text().splitlines()) == 2
    rows = table(perf)
    assert rows[0]["model"] == f"a\\n{key}" and rows[0][f"col\\n{key}"] == "x" and len(rows[0]["note"].encode()) == 4096
    assert rows[1]["model"] == f"c_b\\n{key}" and rows[1]["metric"] == "m" * 199 + "…"
    assert "were cut: note" in caplog.text and "were cut: mmm" in caplog.text
