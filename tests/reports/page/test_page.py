"""What a page shows: of runs, of any results file, of a comparison; limits, and nothing twice."""

from __future__ import annotations

import csv
import hashlib
import json
import math
import re
from pathlib import Path
from statistics import mean, stdev

import pytest
from msgspec.structs import replace

from madlite.errors import UsageProblem
from madlite.model import Card, Cause, Reference, Result, Status
from madlite.reports.index import open_index
from madlite.reports.page.build import MOST_SERIES, level_changes, page_data
from madlite.reports.page.render import payload, render_page
from madlite.reports.page.run_details import read_steps
from madlite.reports.page.values import thinned
from madlite.reports.selectors import collect
from madlite.reports.series import Sample, Series
from madlite.reports.series_key import DIMENSIONS
from madlite.store.folder import RECORD, STEPS, RunRows
from madlite.store.record import record_json
from madlite.text import change, figure, percent
from tests.cli.stored_runs import good, store
from tests.factories import WINDOW
from tests.reports.page.results import MODELS, RUNS, SLOWER_FROM, working_folder
from tests.reports.test_html import Reader
from tests.rows import each_row

DATA = Path(__file__).parents[2] / "data/golden"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return working_folder(tmp_path_factory.mktemp("results"))


@pytest.fixture(scope="module")
def page(folder):
    return of_sources([], folder)


def of_sources(names, folder=Path(), published=(), **where):
    with open_index(folder / "madlite_runs") as index:
        found, runs = collect(names, folder, index, where)
    return page_data(
        found.series, runs, failures=found.failures, published=published, sources=(found.label,), notes=found.notes
    )


def series(values, metric="tokens_per_s_per_gpu", direction="higher", **dimensions):
    known = {"model": "m", "metric": metric, **dimensions}
    samples = tuple(Sample(value=value, place=f"perf.csv:{n}") for n, value in enumerate(values, 2))
    key = tuple(known.get(name, "") for name in DIMENSIONS)
    return Series(key=key, values=tuple(values), samples=samples, direction=direction)


def test_a_working_folder_is_counted(page):
    assert (page.totals.results, page.totals.series, page.totals.models) == (3 * RUNS + 6, 5, 5)
    assert (page.totals.failed, page.totals.suspects) == (3, 3)
    assert {one.model: one.n for one in page.series} == {
        **{model: RUNS for model, *_ in MODELS},
        "sdxl": 6,
        "mixtral-8x7b": 0,
    }


def test_it_leads_with_the_newest_numbers_their_scatter_and_change():
    """The metric that a run is measured by leads; what is no number of a run, of a results file say, does too."""
    slower = replace(series([100.0] * 4 + [90.0]), direction="lower")
    page = page_data([slower, series([5.0], model="alone"), series([], model="none")])
    assert [(one.model, one.last, one.leads) for one in page.series] == [
        ("alone", 5.0, True), ("m", 90.0, True), ("none", None, False)
    ]  # fmt: skip
    assert [one.moved for one in page.series] == [None, pytest.approx(-0.1), None]
    overview = render_page(page).partition('id="overview"')[2].partition("</section>")[0]
    assert re.findall(r'<p class="figure"><b>([^<]*)</b> <span class="soft">(± [^%]*%)?', overview) == [
        ("5", ""), ("90", "± 4.56 %")
    ]  # fmt: skip
    assert change(-0.1) in overview and overview.count("the only result") == 1 and overview.count("<polyline") == 1


def test_a_run_of_several_metrics_leads_once(page):
    assert [one.model for one in page.series if one.leads] == [one.model for one in page.series if one.n]


def test_a_level_change_names_what_changed_there(page):
    (llama,) = (one for one in page.series if one.model == "llama-3.1-8b")
    (found,) = llama.changes
    assert found.at == SLOWER_FROM and found.is_worse and -0.06 < found.change < -0.04
    assert {name: new for name, _, new in found.changed} == {
        "image": "rocm/pytorch-training:v26.2",
        "gpu driver": "6.16.13",
    }
    assert llama.trend.levels[0][0] == 0 and llama.trend.levels[1][0] == SLOWER_FROM
    assert page.attention[0].kind == "change" and "image, gpu driver" in page.attention[0].text


def test_a_trend_is_by_date_and_its_level_change_has_a_label(page):
    drawn = json.loads(payload(page))["trends"]
    (changed,) = (one for one in drawn.values() if one["changes"])
    assert changed["changes"] == ["-5.00 % image, gpu driver"]
    assert changed["when"][0] == "2026-09-01T06:00:00+00:00" and len(changed["when"]) == RUNS
    assert [one["when"] for one in drawn.values() if len(one["values"]) == 6] == [[""] * 6], (
        "a file's rows have no date"
    )


def test_failures_have_their_causes_and_what_to_do(page):
    assert {one.cause: one.count for one in page.causes} == {"gpu_out_of_memory": 1, "hang": 1, "": 1}
    (group,) = (one for one in page.causes if one.cause == "gpu_out_of_memory")
    ((item, failure),) = group.failures
    assert failure.hint == "a smaller micro batch: --batch-size 1" and failure.run.endswith("abcde0")
    assert page.items[item].status == ("failure",) and page.items[item].model == "mixtral-8x7b"


def test_step_curves_are_of_the_newest_runs_and_keep_their_peaks(page):
    assert [one.name.split()[0] for one in page.panels] == ["flux", "llama-3.1-70b", "llama-3.1-8b"]
    panel = page.panels[-1]
    assert [run.folder.name[-2:] for run, _ in panel.runs] == ["11", "12", "13"]  # hexadecimal, of 20 runs
    last = panel.runs[-1][0].record
    assert (last.window.first_step, last.window.last_step, last.telemetry.power_w) == (11, 60, 702.0)
    assert [name for name, _ in panel.quantities] == ["tokens/s/GPU", "loss", "GiB reserved"]
    newest = panel.quantities[0][1][-1]
    lowest = min(newest.values[10:])
    assert newest.steps[newest.values.index(lowest)] == 41 and lowest == pytest.approx(0.7 * 0.95 * 9210)


def test_a_row_that_a_run_appended_is_no_second_result(tmp_path):
    cells = {"model": "tiny", "performance": "12.5", "metric": "tps", "status": "SUCCESS"}
    other = {**cells, "performance": "13.5"}
    failed = {"model": "tiny", "performance": "", "metric": "", "status": "FAILURE"}
    with (tmp_path / "perf.csv").open("w") as file:
        writer = csv.DictWriter(file, list(cells))
        writer.writeheader()
        writer.writerows([cells, other, cells, failed])
    for n, row in enumerate((cells, failed)):
        outcome = good(f"r{n}") if row is cells else replace(good("r1"), status=Status.FAILURE, metrics=())
        record = store(tmp_path, f"r{n}", outcome, card=Card(name="tiny", root=tmp_path, source="a test"))
        rows = RunRows(path="perf.csv", cells=(row,), at="t")
        (tmp_path / "madlite_runs" / f"r{n}" / RECORD).write_text(record_json(replace(record, rows=rows)))
    of_folder, of_file = of_sources([], tmp_path), of_sources([str(tmp_path / "perf.csv")], tmp_path)
    assert of_folder.totals.results == of_file.totals.results == 3  # the row of the run, and two like it
    assert of_folder.totals.failed == of_file.totals.failed == 1


def is_usable(text):
    try:
        return 0 < float(text) < math.inf
    except ValueError:
        return False


@each_row("name", ["v1.perf.csv", "v2.perf.csv"])
def test_a_bare_results_file_is_enough(name):
    with (DATA / name).open() as file:
        rows = list(csv.DictReader(file))
    page = of_sources([str(DATA / name)])
    assert page.totals.results == sum(row["status"] == "SUCCESS" and is_usable(row["performance"]) for row in rows)
    assert page.totals.results + page.totals.failed + page.totals.skipped == len(rows)
    assert render_page(page).startswith("<!DOCTYPE html>")


def test_a_damaged_file_has_a_page_and_a_note(tmp_path):
    text = (
        'model,performance,metric,status\na,1,tps,SUCCESS\n"b,2,tps\nc,3,tps,SUCCESS\nd,4,tps,SUCCESS,5,6\n\x00\xff\n'
    )
    (tmp_path / "perf.csv").write_bytes(text.encode("latin-1"))
    page = of_sources([], tmp_path)
    assert [one.model for one in page.series if one.n] == ["a", "c"]
    assert page.notes and "line 5 has 6 cells" in page.notes[0]
    render_page(page)


def test_a_column_of_causes_is_used(tmp_path):
    lines = ["model,performance,metric,status,cause", "a,1,tps,SUCCESS,", *["a,,,FAILURE,hang"] * 3, "b,,,FAILURE,"]
    (tmp_path / "perf.csv").write_text("\n".join(lines))
    for names in ([], [str(tmp_path / "perf.csv")]):
        assert [(one.cause, one.count) for one in of_sources(names, tmp_path).causes] == [("hang", 3), ("", 1)]


def test_a_cause_in_the_row_of_a_run_is_counted_once(tmp_path):
    row = {"model": "tiny", "performance": "", "metric": "", "status": "FAILURE", "cause": "hang"}
    lines = [",".join(row), ",".join(row.values()), "other,,,FAILURE,hang"]
    (tmp_path / "perf.csv").write_text("\n".join(lines) + "\n")
    failed = Result(plan_id="r0", status=Status.FAILURE, cause=Cause.HANG, reason="no step")
    record = store(tmp_path, "r0", failed, card=Card(name="tiny", root=tmp_path, source="a test"))
    rows = RunRows(path="perf.csv", cells=(row,), at="t")
    (tmp_path / "madlite_runs/r0" / RECORD).write_text(record_json(replace(record, rows=rows)))
    for names in ([], [str(tmp_path / "perf.csv")]):
        assert [(one.cause, one.count) for one in of_sources(names, tmp_path).causes] == [("hang", 2)]


def test_what_is_filtered_out_is_not_there(folder):
    page = of_sources([], folder, device="MI355X")
    assert [one.model for one in page.series] == ["llama-3.1-70b"] and not page.causes


def test_a_folder_without_results_says_so(tmp_path):
    with pytest.raises(UsageProblem, match="has no results"):
        of_sources([], tmp_path)


def test_a_working_folder_is_its_runs_and_the_rows_of_perf_csv_that_none_of_them_appended(tmp_path):
    (tmp_path / "perf.csv").write_text("no,results\n")
    with pytest.raises(UsageProblem, match="has no results: .* names no column"):
        of_sources([], tmp_path)
    store(tmp_path, "20260101T000000-a-000001", good("20260101T000000-a-000001"))
    page = of_sources([], tmp_path)
    assert page.totals.results == 1 and "names no column" in page.notes[0]
    (tmp_path / "other.csv").write_text("not,looked,at\n")
    (tmp_path / "perf.csv").write_text("model,performance,metric,run\nother,1,tps,20200101T000000-gone-000001\n")
    page = of_sources([], tmp_path)
    assert page.totals.results == 2 and "other" in [one.model for one in page.series] and not page.notes


def test_thinned_values_keep_their_ends_and_peaks():
    values = [float(n % 7) for n in range(10_001)]
    values[5000], values[7001] = 99.0, -99.0
    at = thinned(values, 1000)
    assert len(at) <= 1001 and list(at) == sorted({*at})
    assert {5000, 7001} <= {*at}
    assert list(thinned(values[:1000], 1000)) == list(range(1000))


def test_a_level_change_of_a_long_series_is_found_to_the_nearest_piece():
    values = [100.0 + n % 5 for n in range(6000)] + [90.0 + n % 5 for n in range(4000)]
    (found,) = level_changes(series(values))
    assert abs(found.at - 6000) <= 20 and (found.before, found.after) == (102.0, 92.0)


@each_row(("direction", "worse"), [("higher", True), ("lower", False), ("neutral", None)])
def test_whether_a_change_is_worse_is_the_directions_word(direction, worse):
    (found,) = level_changes(
        series(
            [100.0, 101, 100.5, 101.5, 100.2, 101.2, 100.7, 101.7, 90, 91, 90.5, 91.5, 90.2, 91.2, 90.7, 91.7],
            direction=direction,
        )
    )
    assert found.at == 8 and found.is_worse is worse


def test_more_series_than_there_is_room_for_are_counted():
    page = page_data([series([1.0, 2.0], model=f"a model with a rather long name {n}") for n in range(3000)])
    assert len(page.series) == MOST_SERIES and page.series_left_out == 3000 - MOST_SERIES
    assert len(render_page(page).encode()) < 6_000_000


def test_published_numbers_stand_beside_the_series_that_they_match(folder):
    one = Reference(
        model="llama-3.1-8b", device="MI300X", precision="BF16", seq_len=8192, metric="tokens_per_s_per_gpu",
        value=10_000.0, micro_batch=3, source="a README", date="2026-05",
    )  # fmt: skip
    page = of_sources([], folder, published=[one])
    (view,) = (view for view in page.series if view.references)
    assert view.model == "llama-3.1-8b" and view.references[0].label == "a README, 2026-05"
    assert view.references[0].differences == ("batch 3, here 4",)
    assert view.of_reference == pytest.approx(view.median / 10_000)
    assert "published" in render_page(page)


def test_steps_that_are_none_are_left_out(tmp_path):
    lines = [
        {"n": 1, "rank": 0, "phase": "train", "values": {"loss": 2.0}},
        {"n": 1, "rank": 1, "phase": "train", "values": {"loss": 9.0, "tps": 5.0}},
        {"n": 2, "rank": 0, "phase": "validate", "values": {"loss": 8.0}},
        {"n": "x"},
        {"n": 1, "rank": 0, "phase": "train", "values": {"loss": 1.5}},
    ]
    (tmp_path / STEPS).write_text("\n".join(map(json.dumps, lines)) + '\n{"n": 3, "val')
    assert read_steps(tmp_path) == {"loss": {1: 1.5}, "tps": {1: 5.0}}
    (tmp_path / STEPS).unlink()
    (tmp_path / STEPS).symlink_to("/dev/zero")
    assert read_steps(tmp_path) == {}


def test_markup_matches_and_every_link_leads_to_something(page):
    found = Reader(render_page(page))
    ids = [attrs["id"] for _, attrs in found.elements if "id" in attrs]
    assert len(ids) == len({*ids})
    links = {attrs["href"] for name, attrs in found.elements if name == "a"}
    assert {link[1:] for link in links} <= {*ids}


def test_what_is_vendored_is_as_it_was_published():
    home = Path(__file__).parents[3] / "madlite/reports/page/vendor"
    noted = dict(
        reversed(line.split())
        for line in (home / "NOTICE").read_text().splitlines()
        if len(line.split()[:1] and line.split()[0]) == 64
    )
    files = {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in home.iterdir() if file.name != "NOTICE"
    }
    assert noted == files and len(files) == 2


def test_numbers_are_short():
    assert [figure(value) for value in (9210.4, 542.94, 0.01234, 0.0, 1.5e10, None)] == [
        "9,210",
        "542.9",
        "0.01234",
        "0",
        "1.500e+10",
        "–",
    ]
    assert (percent(0.984), percent(0.0042), change(-0.042)) == ("98.4 %", "0.42 %", "-4.20 %")


def test_drift_and_scatter_of_a_run_and_failures_stand_out(tmp_path):
    card = Card(name="tiny", root=tmp_path, source="a test")
    steady = replace(WINDOW, cv=0.01, drift=0.002)
    store(tmp_path, "20260101T000000-a-000001", replace(good("a"), window=steady), card=card)
    calm = of_sources([], tmp_path)
    assert not calm.attention and "Nothing stands out: no failure" in render_page(calm)
    store(
        tmp_path,
        "20260102T000000-a-000002",
        replace(good("b"), window=replace(WINDOW, cv=0.238, drift=-0.627)),
        card=card,
    )
    failed = Result(plan_id="c", status=Status.FAILURE, started="2026-01-03T00:00:00+00:00")
    store(tmp_path, "20260103T000000-a-000003", failed, card=card)
    page = of_sources([], tmp_path)
    assert [one.kind for one in page.attention] == ["drift", "failure"]
    assert page.attention[0].text.endswith("drifts -62.7 % over its steady steps, CV 23.8 % of its steps")
    assert "1 failure beside 2 results" in page.attention[1].text and "Nothing stands out" not in render_page(page)
    (scattered,) = page_data([series([1.0, 2.0, 1.5])]).attention
    assert scattered.kind == "scatter" and "between 3 results" in scattered.text


@each_row(
    ("levels", "direction", "kind"),
    [
        ((100.0, 90.0), "higher", "bad"),
        ((100.0, 90.0), "lower", "good"),
        ((100.0, 90.0), "neutral", ""),
        ((80.0, 100.0, 60.0), "higher", ""),  # the last result fell after a level that rose
    ],
)
def test_a_move_has_a_colour_where_the_last_level_change_goes_the_same_way(levels, direction, kind):
    values = [level + n % 3 for level in levels[:2] for n in range(9)] + list(levels[2:])
    (view,) = page_data([series(values, direction=direction)]).series
    assert view.changes and view.moved_to == kind
    before, at = view.changes[-1].before, view.changes[-1].at
    assert view.moved == pytest.approx(values[-1] / before - 1), "against the level before, not the median of both"
    assert view.level_cv == pytest.approx(stdev(values[at:]) / mean(values[at:])) and view.level_cv < view.cv
