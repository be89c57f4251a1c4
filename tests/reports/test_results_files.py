"""perf.csv of any origin as series: what is damaged costs its row, and is named."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from madlite.errors import UsageProblem
from madlite.perfcsv.rows import STANDARD_COLUMNS
from madlite.reports.results_files import read_results, read_typed_rows
from madlite.reports.series import group, of_row
from tests.csv_results import noisy, row, write
from tests.rows import each_row

GOLDEN = Path(__file__).parents[1] / "data/golden"


def series_of(path: Path, **options: object) -> dict[str, object]:
    found, _ = read_results(path, **options)
    return {one["model"]: one for one in group(found.get("", ()))}


def test_rows_of_one_series_are_its_samples_in_the_order_of_the_file(tmp_path):
    path = write(tmp_path / "perf.csv", [row(3.5), row(1.25), row(9, model="other"), row(2)])
    found = series_of(path)
    assert found["llama"].values == (3.5, 1.25, 2.0)
    assert found["other"].values == (9.0,)
    assert found["llama"].name == "llama bf16 8xgfx942 tokens_per_s_per_gpu"
    assert found["llama"].samples[2].place == f"{path}:5"


@each_row(
    ("rows", "values", "counts"),
    [
        ([row(3.5), row(""), row("", metric="", status="SKIPPED"), row("nan"), row(0)], (3.5,), (3, 1, 0)),
        ([row(1), row(2, n_gpus="8.0", nnodes="1.0")], (1.0, 2.0), (0, 0, 0)),  # as pandas writes what it made floats
        ([row(1, pipeline="a\nb\n\nc"), row(2)], (1.0, 2.0), (0, 0, 0)),  # a cell of several lines
        ([row(1.0), row("1e200"), row("1.7e308")], (1.0,), (2, 0, 0)),  # numbers whose square is none
        ([row(1.0, status="PASS"), row(2.0)], (1.0, 2.0), (0, 0, 0)),
        ([row(1.0, suspect="loss is flat"), row(2.0), row(3.0, suspect="one GPU")], (1.0, 2.0, 3.0), (0, 0, 2)),
    ],
)
def test_the_rows_of_a_series_are_its_numbers_failures_skipped_and_suspect_runs(tmp_path, rows, values, counts):
    found = series_of(write(tmp_path / "perf.csv", rows, (*STANDARD_COLUMNS, "suspect")))["llama"]
    assert (tuple(sorted(found.values)), (found.failed, found.skipped, found.suspects)) == (values, counts)


@each_row("version", ["v1", "v2"])
def test_madengines_own_files_are_read(version):
    found, _ = read_results(GOLDEN / f"{version}.perf.csv")
    by_model = {one["model"]: one for one in group(found[""]) if one.values}
    assert by_model["mini_single"].values == (123.45,)
    assert by_model["mini_single"]["device"] == "NVIDIA H100 80GB HBM3"
    assert by_model["mini_sci"].values == (1500.0,)


@each_row(
    ("damage", "values", "note"),
    [
        (b"llama,8\n", (1.0, 2.0, 3.0), ""),  # cut in the middle: the cells that are there
        (b",".join([b"x"] * 40) + b"\n", (1.0, 2.0, 3.0), "line 4 has 40 cells under 29 columns"),
        (b'"never closed,8\n', (1.0, 2.0, 3.0), "line 4 has a quote that never closes"),
        (",".join(STANDARD_COLUMNS).encode() + b"\n", (1.0, 2.0, 3.0), ""),  # a header in the middle
        (b"\xff\xfe\x00\n", (1.0, 2.0, 3.0), ""),
        (b"\n\n,,,,\n", (1.0, 2.0, 3.0), ""),
    ],
)
def test_a_damaged_row_costs_itself_alone(tmp_path, damage, values, note):
    path = write(tmp_path / "perf.csv", [row(1), row(2)])
    whole = write(tmp_path / "more.csv", [row(3)]).read_bytes().partition(b"\n")[2]
    path.write_bytes(path.read_bytes() + damage + whole)
    found, notes = read_results(path)
    assert next(one for one in group(found[""]) if one["model"] == "llama" and one.values).values == values
    assert note in " ".join(notes)


def test_a_quote_in_the_last_line_costs_no_row(tmp_path):
    path = tmp_path / "perf.csv"
    path.write_text('model,metric,performance,run\nllama,tokens_per_s,1.5,a\nllama,tokens_per_s,2.5,"b\n')
    (series,) = group(read_results(path)[0][""])
    assert series.values == (1.5, 2.5) and series.samples[1].run == "b"


@each_row("encoding", ["utf-16", "utf-8-sig", "latin-1"])
def test_other_encodings_are_read(tmp_path, encoding):
    path = write(tmp_path / "perf.csv", [row(1, pipeline="ä"), row(2)])
    path.write_bytes(path.read_text().encode(encoding))
    assert series_of(path)["llama"].values == (1.0, 2.0)


@each_row("text", ["", "\n\n", "a,b\n1,2\n", "\0\0\0"])
def test_a_file_without_results_is_refused_in_one_sentence(tmp_path, text):
    path = tmp_path / "perf.csv"
    path.write_text(text)
    with pytest.raises(UsageProblem, match="has no results: its first line names no column metric and no performance"):
        read_results(path)


def test_a_folder_a_pipe_and_a_file_that_is_not_there(tmp_path):
    os.mkfifo(tmp_path / "pipe.csv")
    for name in ("", "pipe.csv", "nothing.csv"):
        with pytest.raises(UsageProblem):
            read_results(tmp_path / name)


def test_columns_by_another_name_and_a_column_that_is_not_there(tmp_path):
    columns = ("model", "seq_len", "precision", "performance", "metric", "status")
    path = write(tmp_path / "perf.csv", [row(1, seq_len=8192, precision="fp8")], columns)
    only = series_of(path)["llama"]
    assert (only["seq_len"], only["precision"], only["gpus"]) == ("8192", "fp8", "")
    with pytest.raises(UsageProblem, match="has no column 'imgae'"):
        read_results(path, by="imgae")


def test_filters_take_dimensions_and_columns(tmp_path):
    rows = [row(1), row(2, machine_name="b"), row(3, training_precision="fp8")]
    path = write(tmp_path / "perf.csv", rows)
    assert series_of(path, where={"machine_name": "b"})["llama"].values == (2.0,)
    assert series_of(path, where={"precision": "fp8"})["llama"].values == (3.0,)
    assert not series_of(path, where={"precision": "fp4"})


def test_rows_that_are_alike_have_their_own_numbers_runs_and_lines(tmp_path):
    rng = random.Random(5)
    rows = [
        row(value, model=f"m{rng.randrange(4)}", docker_image=f"v{rng.randrange(2)}", n_gpus=rng.choice(["8", "8.0"]))
        for value in noisy(300, 1)
    ]
    rows = [{**cells, "run": f"r{n}"} for n, cells in enumerate(rows)]
    rows += [row("", model="m1"), row("", model="m2", status="SKIPPED"), row("-3", model="m3"), row("x", model="m3")]
    rows += [row(5, model="m3", status="")]
    columns = (*STANDARD_COLUMNS, "run")
    path = write(tmp_path / "perf.csv", rows, columns)
    every = [{name: cells.get(name, "") for name in columns} for cells in rows]
    wanted = [of_row(cells, f"{path}:{line}") for line, cells in enumerate(every, 2)]
    assert read_results(path)[0][""] == wanted


def test_rows_that_have_records_keep_what_these_know(tmp_path):
    path = write(tmp_path / "perf.csv", [row(1.0), row(2.0)])
    known = of_row(row(1.0, seq_len="8192"), "madlite_runs/x")
    found, _ = read_results(path, appended=[(row(1.0), known)])
    assert sorted(one["seq_len"] for one in found[""]) == ["", "8192"]


def test_typed_rows_have_keys_that_blanks_and_a_column_more_do_not_change(tmp_path):
    rows, notes = read_typed_rows(write(tmp_path / "perf.csv", [row(1.5), row(1.5), row("x")]))
    assert notes == () and [cells["performance"] for cells in rows.values()] == [1.5, 1.5, "x"]
    wider, _ = read_typed_rows(write(tmp_path / "wide.csv", [row(1.5), row("x")], (*STANDARD_COLUMNS, "mine")))
    assert [*wider] == [[*rows][0], [*rows][2]] and {cells["mine"] for cells in wider.values()} == {None}
    assert len({*rows}) == 3 and all(len(key) == 64 for key in rows)


def test_typed_rows_of_a_damaged_file_come_with_a_note(tmp_path):
    (tmp_path / "a.csv").write_text('model,n_gpus,own,list\na,8,1,"[1, {""b"": 2.5}]"\nb,1,2,3,4\nc,x,nan,[1\n')
    rows, notes = read_typed_rows(tmp_path / "a.csv")
    assert [*rows.values()] == [
        {"model": "a", "n_gpus": 8, "own": 1, "list": [1, {"b": 2.5}]},
        {"model": "c", "n_gpus": "x", "own": None, "list": "[1"},
    ]
    assert notes == (f"{tmp_path / 'a.csv'}: 1 row cannot be read and is left out: line 3 has 5 cells under 4 columns",)


def test_typed_rows_of_json_keep_their_types(tmp_path):
    (tmp_path / "a").write_text(f'[{{"a": 1.50, "b": null, "c": {1 << 70}, "d": [{{"e": NaN}}]}}, {{"a": "1"}}]')
    rows, notes = read_typed_rows(tmp_path / "a")
    assert [*rows.values()] == [{"a": 1.5, "b": None, "c": str(1 << 70), "d": [{"e": None}]}, {"a": "1"}] and not notes
