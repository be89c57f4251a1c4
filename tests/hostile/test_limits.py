"""How much a workload can say: results of any size are read in bounded time, and what is too much is told."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from madlite.batch.runner import Batch
from madlite.measure.monitor import LogMonitor
from madlite.measure.number import number_from_line
from madlite.measure.performance import CUT, is_too_long, parse_results, short_name, shortened
from madlite.model import Cause, Metric, Result, ResultRule, Status
from madlite.perfcsv.append import append_rows
from madlite.perfcsv.recorded import are_in_file
from madlite.perfcsv.rows import as_number, typed_rows
from madlite.perfcsv.side_files import configs_of, read_configs
from madlite.run.state import masked
from madlite.store.folder import RunRows
from tests.engine.test_batch import Quiet, planned  # noqa: F401 - a fixture
from tests.factories import make_plan
from tests.rows import each_row

HEAD = "model,performance,metric"
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAA me"


@given(st.text(st.characters(), max_size=60), st.integers(3, 40))
def test_a_shortened_text_is_a_beginning_of_it_that_fits_and_stays_as_it_is(text: str, most_bytes: int) -> None:
    short = shortened(text, most_bytes)
    assert len(short.encode("utf-8", "surrogatepass")) <= most_bytes and shortened(short, most_bytes) == short
    assert short == text or (short.endswith(CUT) and text.startswith(short.removesuffix(CUT)))


def test_a_name_is_short_and_says_that_it_was_cut() -> None:
    assert short_name("x" * 200) == "x" * 200 and short_name("é" * 201) == "é" * 199 + CUT


@each_row("number", ["9" * 401, "0." + "0" * 400 + "1", "1e" + "0" * 400, "9," * 401])
def test_a_number_of_more_than_400_digits_is_none(number: str) -> None:
    assert is_too_long(number) and not is_too_long("9" * 400) and not is_too_long("x" * 500)
    assert as_number(number) is None
    (metric,) = parse_results("r.csv", f'{HEAD}\na,"{number}",x\n'.encode()).metrics
    assert (metric.status, metric.cause, metric.text) == (Status.FAILURE, Cause.BAD_NUMBER, "")


@each_row("number", ["7" * 60_000, "1e999999999", "9" * 401])
def test_such_a_line_of_a_log_is_refused_in_a_short_sentence(number: str) -> None:
    log = LogMonitor(())
    log.feed(f"performance: {number} tokens/s\n".encode())
    log.finish()
    found = number_from_line(log)
    assert found.cause is Cause.BAD_NUMBER and len(found.reason) < 200
    assert ("more than 400 digits" in found.reason) == (number != "1e999999999")
    assert found.metrics[0].text == "" and found.metrics[0].value is None


def test_columns_beyond_the_limit_are_left_out_and_counted() -> None:
    more = [f"c{n}" for n in range(200_000)]
    data = f"{','.join(more)},{HEAD}\n{','.join('1' for _ in more)},a,5,x\n".encode()
    read = parse_results("r.csv", data)
    (metric,) = read.metrics
    assert (metric.label, metric.text, metric.metric) == ("a", "5", "x"), "needed ones are found wherever they are"
    assert list(metric.columns) == more[:1000]
    assert read.notes == ("r.csv has 200003 columns: 1003 are taken, and 199000 are left out",)


@pytest.mark.host
def test_of_many_results_fewer_columns_are_taken() -> None:
    names = [f"c{n}" for n in range(50)]
    row = f"a,5,x,{','.join('1' for _ in names)}\n"
    read = parse_results("r.csv", (f"{HEAD},{','.join(names)}\n" + row * 10_000).encode())
    assert len(read.metrics) == 10_000 and len(read.metrics[-1].columns) == 22
    assert "28 are left out" in read.notes[0]


@each_row(
    ("data", "said"),
    [
        (f"{HEAD}\n".encode() + b"\n" * 5_000_000, "5000003 cells and lines"),
        (HEAD.encode() + b"," * 5_000_000, "5000002 cells and lines"),
        (HEAD.encode() + b'\na,1,"' + b'""' * 5_000_000, "cells and lines"),
        (f"{HEAD}\n".encode() + b"a,1,x\n" * 10_001, "10001 results, and 10000 at most"),
    ],
    ids=["lines", "columns", "quotes", "rows"],
)
def test_a_file_of_more_than_is_read_is_no_result_and_says_so(data: bytes, said: str) -> None:
    read = parse_results("r.csv", data)
    assert said in read.problem and not read.metrics


def test_one_endless_cell_is_cut_and_a_nul_is_spelled_out() -> None:
    read = parse_results("r.csv", f"{HEAD},note\n".encode() + b"a,5,x\0y," + b"n" * (8 << 20) + b"\n")
    (metric,) = read.metrics
    assert metric.metric == "x\\x00y" and metric.columns["note"].startswith("nnn")
    result = masked(Result(plan_id="p", status=Status.SUCCESS, metrics=read.metrics), str)
    assert len(result.metrics[0].columns["note"].encode()) == 4096 and result.metrics[0].columns["note"][-1] == CUT
    assert result.findings == ("cells of more than 4 KiB, or names of more than 200 characters, were cut: note",)


def test_what_is_said_is_masked_before_it_is_cut() -> None:
    secret = "hf_" + "0123456789" * 3

    def mask(text: str) -> str:
        return text.replace(secret, "***")

    near = "x" * 1010 + secret
    metric = Metric(metric="m" * 190 + secret, text="5", status=Status.SUCCESS, columns={"c": "y" * 4080 + secret})
    result = Result(plan_id="p", status=Status.FAILURE, evidence=near, reason="r" * 9000, metrics=(metric,))
    result = masked(replace(result, config={f"k{n}": "v" for n in range(5000)}), mask)
    assert result.evidence == "x" * 1010 + "***" and len(result.reason.encode()) == 4096
    assert result.metrics[0].metric == "m" * 190 + "***" and "hf_" not in result.metrics[0].columns["c"]
    assert len(result.config) == 1000 and "hf_" not in str(result)


def test_a_long_line_of_a_log_is_short_evidence() -> None:
    result = masked(Result(plan_id="p", status=Status.FAILURE, evidence="e" * 60_000), str)
    assert len(result.evidence.encode()) == 1024


@pytest.mark.host
def test_work_on_columns_and_rows_grows_with_them_alone(tmp_path: Path) -> None:
    """Each of these took minutes to hours where it grew with the square of what a file held."""
    names = [f"c{n}" for n in range(100_000)]
    rows = RunRows(path="p", cells=(dict.fromkeys(names, "1"),)).without(names[1:])
    assert rows.cells == ({"c0": "1"},)
    short = typed_rows([{name: "1"} for name in names])
    assert len(short) == 100_000 and bytes(short[-1]["c99999"]) == b"1"
    alike = [{"model": "a", "status": "SUCCESS"}] * 1000
    append_rows(tmp_path / "perf.csv", [{"model": "b"}, *alike * 20])
    wanted = RunRows(path="perf.csv", cells=({"model": "b", "status": ""}, *alike))
    assert are_in_file(wanted, tmp_path, ()) is True
    assert are_in_file(replace(wanted, cells=(*wanted.cells, {"model": "c"})), tmp_path, ()) is False
    assert are_in_file(replace(wanted, cells=()), tmp_path, ()) is False


def test_a_configuration_of_far_more_than_the_results_belongs_to_none(tmp_path: Path, caplog) -> None:
    metrics = [Metric(metric="m", text="5", status=Status.SUCCESS, label=f"r{n}") for n in range(1000)]
    assert configs_of({"a": "x" * (1 << 20)}, metrics) == [None] * 1000 and "more than 64 MiB" in caplog.text
    assert configs_of([{"model": f"r{n}"} for n in range(2000)], metrics) == [None] * 1000
    assert configs_of([{"model": f"r{n}"} for n in range(100)], metrics)[:2] == [{"model": "r0"}, {"model": "r1"}]


def test_lines_of_a_configuration_stay(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text(json.dumps({"prompt": "a\nb\u2028c"}))
    plan = make_plan(tmp_path, args="--config c.json")
    assert read_configs(plan) == {"prompt": "a\nb\u2028c"}


BREAKS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029\0"
NASTY = (
    f'{HEAD},"col{BREAKS}{KEY}",tp\n'
    f'"la\n{KEY}\nbel",5,"tok\n{KEY}\n","v\r{KEY}",8\n'
    f"b,6,tok\u2028{KEY},\x85{KEY}\v,\x0c\n"
)


def lines_of(path: Path) -> list[str]:
    return path.read_bytes().decode("utf-8").splitlines()


@pytest.mark.parametrize("kind", ["results file", "log line"])
def test_no_file_of_a_run_has_a_line_that_the_workload_made_up(planned, kind: str) -> None:  # noqa: F811
    ((one,), options, plugins) = planned
    (options.workspace / "prepared").write_text(NASTY, newline="")
    (options.workspace / "c.json").write_text(json.dumps(f"first\n{KEY}\u2028{KEY}"))
    script = "cp prepared r.csv\n" if kind == "results file" else f"printf 'performance: 5 tok\\x0b{KEY}\\n'\n"
    (options.workspace / "run.sh").write_text(f"cd {options.workspace}\n{script}")
    options.output.touch()
    rule = ResultRule(kind="multiple_results", file="r.csv") if kind == "results file" else ResultRule()
    plan = replace(one.plan, result_rule=rule, args=f"--config c.json --note 'a\n{KEY}'")
    outcome = Batch([replace(one, plan=plan)], options, plugins, Quiet()).run()
    assert outcome.results[0].status is Status.SUCCESS
    tables = [path for path in options.workspace.glob("*.csv") if path.name != "r.csv"]
    assert len(tables) == 4, "perf.csv, perf_entry, perf_super, perf_entry_super"
    rows = 2 if kind == "results file" else 1
    for path in tables:
        assert len(lines_of(path)) == 1 + rows, path.name
        with path.open(newline="", encoding="utf-8") as file:
            assert len(list(csv.reader(file, strict=True))) == 1 + rows, path.name
    for path in (*tables, *options.workspace.glob("*.json")):
        assert not any(line.lstrip().startswith("ssh-") for line in lines_of(path)), path.name
    entries = json.loads((options.workspace / "perf_super.json").read_text())
    if kind == "results file":
        assert entries[0]["metric"] == f"tok\\n{KEY}" and entries[1]["metric"] == f"tok\\u2028{KEY}"
    assert entries[0]["args"] == f"--config c.json --note 'a\\n{KEY}'"
    assert entries[0]["configs"] == f"first\n{KEY}\u2028{KEY}", "the content of a file has its lines"
