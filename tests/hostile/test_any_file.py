"""Any bytes as any file that madlite reads back: an answer or one sentence, never an exception of another kind."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from madlite.backends.loader import load_plugins
from madlite.cli.show import page
from madlite.errors import MadliteError, RecordError, UsageProblem
from madlite.measure.performance import parse_results
from madlite.model import Line, Status
from madlite.perfcsv.append import append_rows
from madlite.perfcsv.recorded import are_in_file, rebuild
from madlite.perfcsv.side_files import Addition, add_to_list, read_configs
from madlite.perfcsv.update_perf import update_perf
from madlite.reports.html import render_page
from madlite.reports.listing import COLUMNS, as_table
from madlite.reports.log import plain_text
from madlite.reports.results_files import read_table
from madlite.reports.runs import as_json, find_run, list_runs
from madlite.store.folder import LOCK, PLAN, RECORD, RUN_JOURNAL, RunRows, read_run
from madlite.store.record import Entries, Record, record_json
from tests.factories import make_plan
from tests.tiers import examples

pytestmark = pytest.mark.host

BACKENDS = [backend for backend, _ in load_plugins("", only_built_in=True).backends().values()]
WHOLE = json.loads(
    record_json(Record(id="r", status=Status.SUCCESS, rows=RunRows(path="perf.csv", cells=({"model": "m"},))))
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
CHANGED = st.dictionaries(st.sampled_from(sorted(WHOLE)), JSON, max_size=2).map(
    lambda changes: json.dumps({**WHOLE, **changes}).encode()
)
TABLE = st.lists(
    st.sampled_from(["model", "performance", "metric", "status", ",", "\n", "\r", '"', "\0", "5", "é", "=1"])
)
BYTES = (
    st.binary(max_size=100)
    | JSON.map(lambda value: json.dumps(value).encode())
    | CHANGED
    | st.tuples(CHANGED, st.integers(0, 400)).map(lambda cut: cut[0][: cut[1]])
    | TABLE.map(lambda words: "".join(words).encode())
)
MANY = settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])


def in_a_folder(look: Callable[[Path], object], *allowed: type[MadliteError]) -> None:
    """Call it with a folder of its own; of all exceptions those that are one sentence are allowed."""
    with TemporaryDirectory() as made:
        try:
            look(Path(made))
        except allowed as problem:
            assert problem.message


@MANY
@given(BYTES, BYTES, st.sampled_from([RECORD, PLAN, RUN_JOURNAL, LOCK]))
def test_files_of_a_run_s_folder(data: bytes, other: bytes, name: str) -> None:
    def look(place: Path) -> None:
        folder = place / "madlite_runs/20260102T030405-r-000001"
        folder.mkdir(parents=True)
        (folder / PLAN).write_bytes(other)
        (folder / name).write_bytes(data)
        (run,) = list_runs(folder.parent)
        assert all("\x1b" not in line for line in as_table([run], COLUMNS))
        assert list(page(run)) and json.loads(as_json(run))["status"] == run.state
        assert find_run(folder.parent, "last") == folder
        rows = read_run(folder).rows
        if rows is not None:
            assert are_in_file(rows, place, []) in (False, None)
        rebuild(place / "again.csv", folder.parent)

    in_a_folder(look, UsageProblem, RecordError)


@MANY
@given(BYTES)
@example(b"model,performance,metric,status\n" + b'"' * 70_000)
@example(b'"\xef\xbb\xbfmodel",model,performance,metric,status\n')
def test_results_files(data: bytes) -> None:
    def look(place: Path) -> None:
        path = place / "perf.csv"
        path.write_bytes(data)
        read = parse_results("r.csv", data)
        assert read.metrics or read.problem
        # a header that would be read as another one with a column more has no room
        no_room = append_rows(path, [{"model": "ours", "heat": "7"}])
        with path.open(newline="", encoding="utf-8-sig", errors="surrogateescape") as file:
            lines = (line.replace("\0", "?") for line in file)
            last = [cells for cells in csv.reader(lines, strict=False) if cells][-1]
            assert "ours" in last if no_room else last[-1] == "7"

    in_a_folder(look, RecordError)


@MANY
@given(BYTES)
def test_tables_and_json_of_reports(data: bytes) -> None:
    def table(place: Path) -> None:
        (place / "x.csv").write_bytes(data)
        assert "<html" in render_page("x", read_table(place / "x.csv"))

    def update(place: Path) -> None:
        (place / "perf.csv").touch()
        (place / "x.json").write_bytes(data)
        update_perf(
            place / "perf.csv",
            single=place / "x.json",
            exception=None,
            multiple=None,
            common_info=None,
            model_name="m",
            folder=place,
        )

    in_a_folder(table, UsageProblem)
    in_a_folder(update, UsageProblem, RecordError)


@MANY
@given(BYTES)
def test_a_list_that_grows(data: bytes) -> None:
    def look(place: Path) -> None:
        path = place / "perf_super.json"
        path.write_bytes(data)
        ours = Entries(entry=(), superset=({"model": "ours"},), common=None, ran=True)
        add_to_list(path, [Addition(entries=ours)])
        assert json.loads(path.read_bytes())[-1] == {"model": "ours"}

    in_a_folder(look, RecordError)


STATES = JSON.map(lambda value: json.dumps({"log_history": [{"step": value, "loss": value}, value]}).encode())


@MANY
@given(BYTES | STATES, st.sampled_from(["trainer_state.json", "checkpoint-5/trainer_state.json"]))
def test_files_that_a_trainer_leaves(data: bytes, name: str) -> None:
    def look(place: Path) -> None:
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_bytes(data)
        for reader in filter(None, (backend.reader(None) for backend in BACKENDS)):
            list(
                reader.feed(Line(text="{'loss': 1.5, 'grad_norm': 1.0, 'learning_rate': 1e-05, 'epoch': 0.1}", t_s=1.0))
            )
            list(reader.finish(place))

    in_a_folder(look)


@MANY
@given(BYTES, st.sampled_from(["csv", "json", "yaml", "toml"]))
def test_files_that_args_name(data: bytes, kind: str) -> None:
    def look(place: Path) -> None:
        plan = make_plan(place, args=f"--config c.{kind}")
        script = plan.card.root / plan.card.scripts
        script.parent.mkdir(parents=True, exist_ok=True)
        (script.parent / f"c.{kind}").write_bytes(data)
        read_configs(plan)

    in_a_folder(look)


@MANY
@given(BYTES, st.integers(1, 7))
def test_a_log_as_it_is_shown(data: bytes, size: int) -> None:
    text = b"".join(plain_text(data[at : at + size] for at in range(0, len(data), size)))
    assert text == b"".join(plain_text([data]))
    assert all(char.isprintable() or char in "\n\t" for char in text.decode())
