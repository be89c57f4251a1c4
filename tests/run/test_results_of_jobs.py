"""Scripts that start their steps themselves may leave a perf.csv in place of a line: where it is looked for."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from madlite.model import ResultRule
from madlite.run import state
from madlite.run.state import ResultsFile
from tests.factories import make_plan
from tests.rows import each_row

ROWS = "model,performance,metric,status,nnodes\n{name}_64,12.5,tok/s,SUCCESS,3\n{name}_128,9,tok/s,FAILURE,3\n"


@pytest.fixture
def place(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.setattr(
        state, "_OF_JOBS", tuple(one.replace("/shared_inference", f"{tmp_path}/shared") for one in state._OF_JOBS)
    )
    (tmp_path / "space/run_directory").mkdir(parents=True)
    return tmp_path / "space"


def results(place: Path, launcher: str = "slurm_multi", **environ: str) -> ResultsFile:
    rule = ResultRule(kind="performance_line", file="perf_serve.csv" if launcher else "")
    plan = make_plan(place, model_dir="run_directory", result_rule=rule, launcher=launcher)
    plan = replace(plan, card=replace(plan.card, name="serve"))
    found = ResultsFile(plan, {"USER": "me", "SLURM_JOB_ID": "7", **environ})
    found.begin()
    return found


def test_where_the_card_names_no_file_its_rows_are_read_and_nothing_is_copied(place: Path, caplog) -> None:
    plan = make_plan(place, model_dir="run_directory", result_rule=ResultRule(), launcher="slurm_multi")
    found = ResultsFile(plan, {})
    found.begin()
    (place / "run_directory/perf.csv").write_text(ROWS.format(name="serve"))
    read = found.read()
    assert read is not None and len(read.metrics) == 2
    assert not [*place.glob("*.csv")] and not caplog.records


@each_row(
    "file",
    [
        *("run_directory/perf_serve.csv", "perf_serve.csv", "run_directory/perf.csv", "run_directory/perf_x.csv"),
        *("own/perf_x.csv", "../shared/me/7/perf.csv", "../shared/me/model_blog_logs/7/perf.csv"),
        "run_directory/slurm_output/perf_csv/x_7.csv",
    ],
)
def test_a_perf_csv_is_found_where_madengine_looks_for_it(place: Path, file: str) -> None:
    """Its rows are those of the card, one that it calls a FAILURE stays one, and its columns are the row's."""
    found = results(place, MADLITE_RESULTS_DIR="own")
    (place / file).parent.mkdir(parents=True, exist_ok=True)
    (place / file).write_text(ROWS.format(name="serve"))
    read = found.read()
    assert read is not None and read.problem == ""
    told = [(metric.label, metric.text, metric.status.value, metric.columns) for metric in read.metrics]
    assert told == [("64", "12.5", "SUCCESS", {"nnodes": "3"}), ("128", "", "FAILURE", {"nnodes": "3"})]
    assert (place / "perf_serve.csv").read_text() == ROWS.format(name="serve"), "as MAD's tooling expects it"


@each_row("file", ["perf.csv", "../shared/me/8/perf.csv", "../shared/you/7/perf.csv", "slurm_output/perf_csv/x_8.csv"])
def test_rows_of_others_are_none_of_the_run_s(place: Path, file: str) -> None:
    """The checkout's perf.csv is madlite's own: other runs append to it meanwhile."""
    found = results(place)
    (place / file).parent.mkdir(parents=True, exist_ok=True)
    (place / file).write_text(ROWS.format(name="serve"))
    assert found.read() is None and results(place, "", SLURM_JOB_ID="8").read() is None


def test_a_file_that_is_appended_to_gives_what_came_since(place: Path) -> None:
    file = place / "run_directory/perf.csv"
    file.write_text(ROWS.format(name="serve"))
    found = results(place)
    assert found.read() is None, "a left-over"
    with file.open("a") as out:
        out.write("serve_256,20,tok/s,SUCCESS,3\n")
    read = found.read()
    assert read is not None and [metric.label for metric in read.metrics] == ["256"]


@each_row("launcher", ["", "slurm_multi"])
def test_what_lies_there_is_no_result_of_a_script_that_never_began(place: Path, launcher: str) -> None:
    (place / "r.csv").write_text(ROWS.format(name="serve"))
    rule = ResultRule(kind="multiple_results", file="r.csv")
    plan = make_plan(place, model_dir="run_directory", result_rule=rule, launcher=launcher)
    assert ResultsFile(plan, {}).read() is None


def test_a_link_out_of_the_folder_is_not_followed(place: Path) -> None:
    found = results(place)
    (place.parent / "secret.csv").write_text(ROWS.format(name="serve"))
    (place / "run_directory/perf.csv").symlink_to("../../secret.csv")
    read = found.read()
    assert read is None or not read.metrics
