"""The record: what it says, that it is JSON to anybody, and that its schema is the one that is shipped."""

from __future__ import annotations

import json
import math
from pathlib import Path

import jsonschema
import msgspec
import pytest
from msgspec.structs import replace

import madlite.store.record as module
from madlite.errors import RecordError
from madlite.measure.steps import Steps
from madlite.model import Cause, Metric, Provenance, Quantity, Result, Status, Step, Variant
from madlite.store.folder import PLAN, RECORD, RunRows, RunStart
from madlite.store.record import (
    SCHEMA,
    VERSION,
    Record,
    load_record,
    load_result,
    make_record,
    read_plan,
    read_record,
    record_json,
    result_of,
    sanitized,
    step_lines,
)
from scripts.record_schema import record_schema
from tests.factories import WINDOW, make_plan
from tests.rows import each_row

SHIPPED = Path(module.__file__).with_name(SCHEMA)
RESULTS = Path(__file__).parents[2] / "docs" / "results"
GOOD = Metric(metric="tps", text="10", status=Status.SUCCESS, value=10.0)


def result(**changes: object) -> Result:
    values = {"plan_id": "r", "status": Status.SUCCESS, "metrics": (GOOD,), "started": "2026-01-02T03:04:05+00:00"}
    return Result(**{**values, **changes})  # type: ignore[arg-type]


def valid(record: Record) -> dict:
    """Return a record as anybody's JSON reader has it, once it fits the schema that is shipped."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    read = json.loads(record_json(record), parse_constant=refuse)
    jsonschema.validate(read, json.loads(SHIPPED.read_text()), jsonschema.Draft202012Validator)
    return read


def test_the_schema_that_is_shipped_is_that_of_the_record():
    jsonschema.Draft202012Validator.check_schema(record_schema())
    made = json.loads(json.dumps(record_schema()))
    assert json.loads(SHIPPED.read_text()) == made, "make it again: python scripts/record_schema.py"


@each_row("path", sorted(RESULTS.glob("*/record.json")), ids=lambda path: path.parent.name)
def test_the_records_of_published_results_are_read_and_fit_the_schema(path):
    assert valid(load_record(path.parent))["status"] == "SUCCESS"


@each_row(
    "wrong",
    [
        {"id": "../x"},
        {"batch": "a/b"},
        {"files": [{"path": "../perf.csv", "bytes": 1}]},
        {"files": [{"path": "/etc/passwd", "bytes": 1}]},
        {"attempt": {"next": ".."}},
    ],
)
def test_a_name_in_a_record_or_a_result_that_leaves_the_folder_of_runs_is_refused(tmp_path, wrong):
    record = {**valid(make_record(make_plan(tmp_path), result(), None)), **wrong}
    (tmp_path / "record.json").write_text(json.dumps(record))
    with pytest.raises(RecordError, match="record.json: "):
        load_record(tmp_path)
    (tmp_path / "result.json").write_text(json.dumps({"version": 1, "record": record, "entries": None}))
    with pytest.raises(RecordError, match=r"result.json: key 'record\..*' is wrong: '(\.\.|a/b|/etc|\.\./x)"):
        load_result(tmp_path)


@each_row(
    "data",
    [
        b'{"version":2,"id":5,"x":"\xff"}',
        b'{"version":"2", "id',
        b"[1,",
        b'{"version":2,"id":5,"exit_code":1e999}',
        b"[" * 9999,
    ],
)
def test_a_damaged_record_or_result_is_refused_however_it_is_damaged(tmp_path, data):
    for name, load in (("record.json", load_record), ("result.json", load_result)):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(RecordError, match=f"{name}: "):
            load(tmp_path)


def test_a_record_without_later_fields_is_read_and_one_of_another_version_is_not(tmp_path):
    rows = RunRows(path="perf.csv", cells=({"model": "tiny"},), at="t", appended=True)
    record = valid(make_record(make_plan(tmp_path), result(window=WINDOW), rows))
    old = {name: value for name, value in record.items() if name not in ("batch", "study", "traits", "log_limit_bytes")}
    (tmp_path / "record.json").write_text(json.dumps(old))
    read = load_record(tmp_path)
    assert (read.version, read.batch, read.study, read.window.median) == (VERSION, "", None, WINDOW.median)
    valid(read)
    (tmp_path / "record.json").write_text(json.dumps({**old, "version": 1}))
    with pytest.raises(RecordError, match="it is of version 1, of an older madlite"):
        load_record(tmp_path)


def drop(record: dict, *path: str) -> dict:
    copy = json.loads(json.dumps(record))
    inner = copy
    for name in path[:-1]:
        inner = inner[name]
    del inner[path[-1]]
    return copy


def test_the_schema_refuses_what_is_no_record_of_this_version(tmp_path):
    rows = RunRows(path="perf.csv", cells=({"model": "tiny"},), at="t", appended=True)
    record = valid(make_record(make_plan(tmp_path), result(window=WINDOW), rows))
    wrong = [
        *(drop(record, name) for name in record),
        *(drop(record, "window", name) for name in record["window"]),
        *(drop(record, "rows", name) for name in record["rows"]),
        *({**record, "version": version} for version in (0, VERSION + 1, str(VERSION), None)),
        *({**record, "status": status} for status in ("RUNNING", "success", 1)),
        *({**record, name: ["x", 5]} for name in record if name not in ("origins", "settings")),
    ]
    judge = jsonschema.Draft202012Validator(json.loads(SHIPPED.read_text()))
    assert [one for one in wrong if judge.is_valid(one)] == []
    assert judge.is_valid({**record, "of a later version": 1})


@each_row(
    "outcome",
    [
        result(window=WINDOW, suspect=("doubtful",), provenance=Provenance(versions={"madlite": "1"})),
        result(status=Status.FAILURE, cause=Cause.TIMEOUT, metrics=(), exit_code=-9, reason="timed out"),
        result(status=Status.SKIPPED, cause=Cause.DEPRECATED, metrics=()),
        result(window=replace(WINDOW, cv=math.inf), metrics=(replace(GOOD, value=math.nan),)),
        result(durations_s={"run": math.nan, "total": 1.0}, reason="odd \udcff \x1b[2J"),
    ],
    ids=["success", "failure", "skipped", "no numbers", "odd"],
)
def test_a_record_of_any_status_fits_the_schema_and_is_read_back(tmp_path, outcome):
    plan = make_plan(tmp_path, variant=Variant(model="m", precision="BF16"), settings={"lr": math.inf, "x": 1})
    rows = RunRows(path="perf.csv", cells=({"model": "tiny"},), at="t", appended=True)
    record = make_record(plan, outcome, rows, RunStart(command=("run", "--tags", "tiny")))
    read = valid(record)
    assert (read["version"], read["id"], read["card"]) == (VERSION, plan.id, "tiny")
    assert read["rows"]["cells"] == [{"model": "tiny"}] and read["status"] == outcome.status.value
    (plan.folder / RECORD).write_text(record_json(record))
    assert record_json(load_record(plan.folder)) == record_json(record)


def test_a_number_that_is_none_takes_along_what_cannot_be_without_it(tmp_path):
    outcome = result(window=replace(WINDOW, cv=math.inf, drift=math.nan), metrics=(replace(GOOD, value=math.nan),))
    record = make_record(make_plan(tmp_path, settings={"lr": math.inf, "x": 1}), outcome, None)
    assert record.window is None and record.metrics[0].value is None and record.settings == {"x": 1}
    assert sanitized(replace(WINDOW, drift=math.nan), str) == replace(WINDOW, drift=None)
    assert sanitized(math.nan, str) is None


def test_secrets_are_in_no_word_that_somebody_typed_or_said_and_rows_stay_as_they_were_appended(tmp_path):
    plan = make_plan(tmp_path, args="--t hush", overrides=(("t", "hush"), ("flag", None)), settings={"key": "hush"})
    outcome = result(reason="hush", evidence="a hush", config={"token": "hush"}, findings=("hush",))
    rows = RunRows(path="perf.csv", cells=({"docker_image": "hush/hush"},))
    record = make_record(
        plan, outcome, rows, RunStart(command=("run", "hush")), mask=lambda text: text.replace("hush", "***")
    )
    assert record_json(record).count("hush") == 2
    assert record.rows == rows and record.overrides == (("t", "***"), ("flag", None))


def test_what_is_a_secret_by_its_shape_is_nowhere_in_a_record(tmp_path):
    token, url = "ghp_" + "aB3" * 12, "https://me:p4ssword@host/x.git"
    card = replace(make_plan(tmp_path).card, url=url, tags=("t", token), source=f"/srv/{token}/models.json")
    outcome = result(reason=f"cloning {url} failed", provenance=Provenance(script=f"{token}.sh"))
    text = record_json(
        make_record(make_plan(tmp_path, card=card, settings={token: url}), outcome, None, RunStart(command=(url,)))
    )
    assert token not in text and "p4ssword" not in text and "https://me:***@host/x.git" in text


def test_the_result_can_be_had_back(tmp_path):
    outcome = result(window=WINDOW, status=Status.FAILURE, cause=Cause.NO_METRIC, exit_code=1)
    record = make_record(make_plan(tmp_path), outcome, None)
    assert result_of(record) == replace(outcome, plan_id=record.id)
    assert record.cause == "no_metric" and record.ended_by is Cause.NO_METRIC


def test_files_are_listed_without_links_and_with_the_digest_of_what_was_rendered(tmp_path):
    import hashlib

    plan = make_plan(tmp_path)
    (plan.folder / "run.sh").write_bytes(b"echo\n")
    (plan.folder / "deep").mkdir()
    (plan.folder / "deep/out.bin").write_bytes(b"12345")
    (plan.folder / "passwd").symlink_to("/etc/passwd")
    (plan.folder / "lock").touch()
    files = {one.path: one for one in make_record(plan, result(), None, rendered=[("run.sh", b"echo\n")]).files}
    assert set(files) == {"run.sh", "deep/out.bin"}
    assert files["run.sh"].sha256 == hashlib.sha256(b"echo\n").hexdigest() and files["deep/out.bin"].bytes == 5


def test_of_many_files_the_first_are_listed(tmp_path, monkeypatch):
    monkeypatch.setattr("madlite.store.record._MOST_FILES", 3)
    plan = make_plan(tmp_path)
    for n in range(5):
        (plan.folder / f"f{n}").touch()
    assert [one.path for one in make_record(plan, result(), None).files] == ["f0", "f1", "f2"]


def test_steps_are_lines_of_json():
    loss, speed = Quantity.LOSS, Quantity.TOKENS_PER_S_PER_GPU
    steps = Steps(
        [
            Step(n=1, values={loss: math.nan, speed: 5.0}, rank=0, t_s=1.23456),
            Step(n=2, values={loss: 2.0}),
            Step(n=2, values={loss: 1.0}, phase="validate"),
        ]
    )
    assert [json.loads(line) for line in step_lines(steps)] == [
        {"n": 1, "rank": 0, "phase": "train", "t_s": 1.235, "values": {"loss": None, "tokens/s/GPU": 5.0}},
        {"n": 2, "rank": None, "phase": "train", "values": {"loss": 2.0}},
        {"n": 2, "rank": None, "phase": "validate", "values": {"loss": 1.0}},
    ]


@each_row(
    ("data", "said"),
    [
        (b"", "truncated"),
        (b"\xff\xfe", "malformed"),
        (b"[1]", "array"),
        (b'{"version": 2, "id": "x", "status": "GREAT"}', "GREAT"),
        (b'{"id": "x", "status": "SUCCESS"}', "version"),
        (b'{"version": 9, "id": 5}', "version 9, of a newer madlite"),
        (b'{"version": 3, "id": "x", "status": "SUCCESS"}', "version 3, of a newer madlite"),
        (b"[" * 100_000, ""),
    ],
)
def test_a_record_that_is_none_is_told_and_never_an_exception_of_another_kind(tmp_path, data, said):
    (tmp_path / RECORD).write_bytes(data)
    with pytest.raises(RecordError) as raised:
        load_record(tmp_path)
    assert said in raised.value.message
    assert read_record(tmp_path) is None


def test_links_pipes_and_what_is_too_large_are_not_read(tmp_path, monkeypatch):
    import os

    (tmp_path / "elsewhere").write_text(record_json(Record(id="x", status=Status.SUCCESS)))
    (tmp_path / RECORD).symlink_to(tmp_path / "elsewhere")
    assert read_record(tmp_path) is None
    (tmp_path / RECORD).unlink()
    os.mkfifo(tmp_path / RECORD)
    assert read_record(tmp_path) is None
    (tmp_path / RECORD).unlink()
    (tmp_path / RECORD).write_bytes((tmp_path / "elsewhere").read_bytes())
    assert read_record(tmp_path) is not None
    monkeypatch.setattr("madlite.store.record.LIMIT_BYTES", 10)
    with pytest.raises(RecordError, match="larger than"):
        load_record(tmp_path)


def test_a_plan_of_another_madlite_has_fields_that_are_unknown_here(tmp_path):
    shape = {"layers": 2, "hidden": 8, "heads": 2, "ffn": 16, "vocab": 10, "name": "Tiny", "depth": 3}
    plan = msgspec.to_builtins(make_plan(tmp_path), enc_hook=str)
    (tmp_path / PLAN).write_bytes(msgspec.json.encode({**plan, "later": 1, "architecture": shape}))
    read = read_plan(tmp_path)
    assert read is not None and read.architecture is not None and read.architecture.layers == 2


def test_a_plan_that_nobody_can_read_is_none(tmp_path):
    assert read_plan(tmp_path) is None
    (tmp_path / PLAN).write_text('{"card": 5}')
    assert read_plan(tmp_path) is None
    with pytest.raises(msgspec.DecodeError):
        msgspec.json.decode((tmp_path / PLAN).read_bytes() + b"}")
