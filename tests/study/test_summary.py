"""The statistics of a repeat, against values worked out by hand, and how they stand on the screen."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from madlite.cli.studies import answer_of
from madlite.model import Cause, GpuStart, ImageUsed, Metric, Result, Status, Study, Telemetry
from madlite.model.results import Attempt
from madlite.store.record import Record
from madlite.study.summary import Sample, samples_of_records, study_lines, summarise
from tests.factories import WINDOW

ID = "20261124T021500-3fa91c"


def good(value: float, **fields: object) -> Result:
    metric = Metric(metric="samples/s", text=f"{value:g}", status=Status.SUCCESS, value=value)
    return Result(plan_id="r", status=Status.SUCCESS, **{"metrics": (metric,), **fields})  # type: ignore[arg-type]


def failed(cause: Cause) -> Result:
    return Result(plan_id="r", status=Status.FAILURE, cause=cause)


def sample(result: Result | None, *, card: str = "a", series: int = 1, count: int = 5) -> Sample:
    study = Study(id=ID, kind="repeat", series=series, index=1, count=count, caches="warm")
    return Sample(study=study, run="r", card=card, variant=None, image="", result=result)


def test_the_interval_is_student_s_t_of_the_runs():
    """Of 98, 100, 102, 104, 96: mean 100, s² = 40/4, s = 3.1623; t(4; 0.975) = 2.7764; half 2.7764 x 3.1623 / √5."""
    (series,) = summarise(ID, "repeat", [sample(good(value)) for value in (98, 100, 102, 104, 96)]).series
    (metric,) = series.metrics
    assert (metric.n, metric.mean, metric.median, metric.min, metric.max) == (5, 100.0, 100.0, 96.0, 104.0)
    assert metric.interval is not None
    assert (metric.interval.low, metric.interval.high) == pytest.approx((96.0735, 103.9265), abs=1e-3)
    assert metric.cv == pytest.approx(0.0316228, abs=1e-6)
    assert metric.values == (98.0, 100.0, 102.0, 104.0, 96.0)


def test_runs_without_a_number_are_counted_by_their_cause_and_suspect_ones_are_samples():
    ends = [good(10), failed(Cause.TIMEOUT), failed(Cause.TIMEOUT), good(12, suspect=("odd",)), None]
    summary = summarise(ID, "repeat", [sample(end) for end in ends])
    (one,) = summary.series
    assert (one.requested, one.succeeded, one.suspect, one.not_started) == (5, 2, 1, 1)
    assert one.failed == {"timeout": 2} and one.metrics[0].values == (10.0, 12.0)
    head, line, metric = study_lines(summary)
    assert head == f"repeat {ID}"
    assert line == "  a  (2 of 5 runs, 2 failed (2 x timeout), 1 not started, 1 suspect, counted, caches warm)"
    # s = √2, CV = 1.41421 / 11; t(1; 0.975) = 12.7062 would make it -1.7062 to 23.7062: that says nothing
    assert one.metrics[0].interval is None
    assert metric == (
        "    samples/s: mean 11 (2 runs are too few for an interval: --repeat 5), median 11, 10 to 12, "
        "between-run CV 12.9 %"
    )


def test_the_interval_of_a_speed_does_not_go_below_0_and_says_what_makes_it_narrower():
    """Of 1, 2, 9: mean 4, s² = 38/2, s = 4.3589; t(2; 0.975) = 4.3027; half 4.3027 x 4.3589 / √3 = 10.828."""
    *_, metric = study_lines(summarise(ID, "repeat", [sample(good(value), count=3) for value in (1, 2, 9)]))
    assert "mean 4 (95 % interval 0 to 14.8281, Student's t, n 3; wide, for the runs scatter: --repeat 6)" in metric
    (series,) = summarise(ID, "repeat", [sample(good(value), count=3) for value in (-1, 2, 9)]).series
    interval = series.metrics[0].interval
    assert interval is not None and interval.low < 0, "of what can be below 0 nothing is cut off"


def test_one_run_has_no_interval_and_none_no_statistics():
    *_, metric = study_lines(summarise(ID, "repeat", [sample(good(10), count=1)]))
    assert metric == "    samples/s: 10, of one run: no interval"
    *_, line = study_lines(summarise(ID, "repeat", [sample(failed(Cause.EXIT_CODE), count=1)]))
    assert line == "  a  (0 of 1 run, 1 failed (exit_code), caches warm)"


def test_a_steady_window_s_median_is_the_sample_and_every_result_of_a_script_is_one():
    mad = Metric(metric="tok_per_s", text="7", status=Status.SUCCESS, value=7.0)
    median = Metric(metric="tokens_per_s_per_gpu", text="10", status=Status.SUCCESS, value=10.0)
    (series,) = summarise(ID, "repeat", [sample(good(0, window=WINDOW, metrics=(mad, median)))] * 2).series
    assert [one.metric for one in series.metrics] == ["tokens_per_s_per_gpu"]
    (series,) = summarise(ID, "repeat", [sample(good(0, metrics=(mad, median)))] * 2).series
    assert [one.metric for one in series.metrics] == ["tok_per_s", "tokens_per_s_per_gpu"]


def test_starts_far_apart_and_different_images_are_told():
    def began(celsius: float) -> Telemetry:
        return Telemetry(start=(GpuStart(index=0, temperature_c=30.0), GpuStart(index=1, temperature_c=celsius)))

    ends = [good(1, telemetry=began(at), image=ImageUsed(id=name)) for at, name in ((35, "x"), (52, "y"))]
    *_, hot, images = study_lines(summarise(ID, "repeat", map(sample, ends)))
    assert hot == "    the runs began with GPUs of 35 to 52 °C: --settle waits until they have cooled down"
    assert images == "    the runs had 2 different images"
    near = [good(1, telemetry=began(35)), good(1, telemetry=began(39))]
    assert not [line for line in study_lines(summarise(ID, "repeat", map(sample, near))) if "°C" in line]


def test_the_same_statistics_come_from_records_without_the_warm_up():
    def record(value: float, index: int | None) -> Record:
        study = Study(id=ID, kind="repeat", series=1, index=index, count=2, warm_up=index is None, caches="warm")
        metrics = good(value).metrics
        return Record(id=f"r{index}", status=Status.SUCCESS, card="a", study=study, caches="warm", metrics=metrics)

    records = [record(500, None), record(10, 1), record(12, 2)]
    (series,) = summarise(ID, "repeat", samples_of_records(records)).series
    assert series.runs == ("r1", "r2") and series.metrics[0].mean == 11.0
    answer = answer_of(records)
    assert answer is not None and answer.lines[1] == "  a  (2 of 2 runs, caches warm)"
    other = Record(id="x", status=Status.SUCCESS, card="a")
    assert answer_of([*records, other]) is None, "what is of no study is no sample of one"


def test_a_failed_warm_up_says_why_there_is_nothing():
    def warm_up(end: Result) -> Sample:
        return replace(sample(end), study=Study(id=ID, kind="repeat", series=1, warm_up=True, caches="cold"))

    no, yes = (warm_up(end) for end in (failed(Cause.EXIT_CODE), good(1)))
    lines = list(study_lines(summarise(ID, "repeat", [no, sample(None)])))
    assert lines[1] == "  the warm-up failed: a; nothing was repeated"
    again = summarise(ID, "repeat", [no, yes, sample(good(10))])
    assert again.failed_warm_ups == (), "it succeeded when the study was resumed"


def test_runs_with_a_smaller_micro_batch_are_no_samples_of_the_planned_one():
    small = Attempt(number=2, micro_batch=4)
    ends = [good(10), good(12), good(5, attempt=small), None]
    full, fallback = summarise(ID, "repeat", [sample(end, count=4) for end in ends]).series
    assert (full.metrics[0].values, full.requested, full.not_started) == ((10.0, 12.0), 2, 0)
    assert (fallback.metrics[0].values, fallback.requested, fallback.not_started) == ((5.0,), 2, 1)
    _, _, _, line, number = study_lines(summarise(ID, "repeat", [sample(end, count=4) for end in ends]))
    assert line == "  a · (ran with micro batch 4)  (1 of 2 runs, 1 not started, caches warm)"
    assert number == "    samples/s: 5, of one run: no interval"
    (one,) = summarise(ID, "repeat", [sample(good(5, attempt=small), count=3)] * 3).series
    assert (one.micro_batch, one.requested, one.succeeded) == (4, 3, 3)
