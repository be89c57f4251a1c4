"""Speedup and efficiency, against values worked out by hand."""

from __future__ import annotations

import re

import msgspec
import pytest

from madlite.model import Cause, Metric, NodeUse, Result, Status, Study, Variant
from madlite.study.scaling import render_page, scaling_lines, scaling_plots, scalings_of
from madlite.study.summary import Sample


def sample(gpus: int, value: float | None, metric: str = "tokens_per_s_per_gpu", **fields: object) -> Sample:
    """A run on so many GPUs; without a value it failed."""
    lower = bool(fields.pop("lower_is_better", False))
    found = Metric(metric=metric, text=str(value), status=Status.SUCCESS, value=value, lower_is_better=lower)
    result = Result(plan_id="r", status=Status.SUCCESS, metrics=(found,))
    if value is None:
        result = Result(plan_id="r", status=Status.FAILURE, cause=Cause.TIMEOUT)
    study = Study(id="s", kind="scaling", varied={"n_gpus": gpus, **fields.pop("varied", {})}, series=gpus, count=1)  # type: ignore[dict-item]
    given = {"card": "a", "variant": None, **fields}
    return Sample(study=study, run=f"r{gpus}", image="", result=result, **given)  # type: ignore[arg-type]


def test_a_number_of_one_gpu_is_compared_as_it_is():
    (one,) = scalings_of([sample(1, 100.0), sample(2, 95.0), sample(8, 80.0)])
    assert [(point.gpus, point.per_gpu, point.total) for point in one.points] == [
        (1, 100, 100),
        (2, 95, 190),
        (8, 80, 640),
    ]
    assert [point.speedup for point in one.points] == pytest.approx([1.0, 1.9, 6.4])
    assert [point.efficiency for point in one.points] == pytest.approx([1.0, 0.95, 0.8])
    assert (one.base, one.kind, one.metric) == (1, "weak", "tokens_per_s_per_gpu")


def test_a_number_of_all_gpus_is_divided_by_them():
    (one,) = scalings_of([sample(2, 200.0, "samples_per_second"), sample(4, 300.0, "samples_per_second")])
    assert [(point.figure, point.per_gpu, point.total) for point in one.points] == [(200, 100, 200), (300, 75, 300)]
    assert one.points[1].speedup == pytest.approx(1.5) and one.points[1].efficiency == pytest.approx(0.75)


def test_of_a_time_less_is_better_and_what_was_done_in_it_depends_on_the_kind():
    times = {"metric": "step_time_s", "lower_is_better": True}
    (weak,) = scalings_of([sample(1, 2.0, **times), sample(2, 2.5, **times)])
    assert weak.points[1].efficiency == pytest.approx(0.8) and weak.points[1].speedup == pytest.approx(1.6)
    kept = {**times, "variant": Variant(model="m", global_batch=8)}
    (strong,) = scalings_of([sample(1, 2.0, **kept), sample(2, 1.25, **kept)])
    assert strong.kind == "strong"
    assert strong.points[1].efficiency == pytest.approx(0.8) and strong.points[1].speedup == pytest.approx(1.6)


def test_repeats_give_medians_and_an_interval():
    base, doubled = (98.0, 99.0, 100.0, 102.0, 104.0), (88.0, 89.0, 90.0, 91.0, 94.0)
    (one,) = scalings_of([*(sample(1, value) for value in base), *(sample(2, value) for value in doubled)])
    interval = one.points[1].interval
    assert one.points[1].efficiency == pytest.approx(0.9) and one.points[0].interval is None
    assert interval is not None and (interval.low, interval.high) == pytest.approx((89 / 104, 94 / 99), abs=0.02)
    assert scalings_of([sample(1, 100.0), sample(2, 90.0)])[0].points[1].interval is None


def test_the_base_is_the_smallest_number_that_succeeded():
    (one,) = scalings_of([sample(1, None), sample(2, 50.0), sample(4, 40.0)])
    assert one.base == 2 and one.points[0].failed == {"timeout": 1} and one.points[0].efficiency is None
    assert (one.points[2].speedup, one.points[2].efficiency) == pytest.approx((1.6, 0.8))
    lines = list(scaling_lines(one))
    assert "efficiency is against 2 GPUs: no run of 1 GPU succeeded" in "\n".join(lines)
    assert "0 of 1 (1 timeout)" in lines[2] and "80.0 %" in lines[4]
    (none,) = scalings_of([sample(1, None), sample(2, None)])
    assert (none.base, none.metric) == (0, "") and "no run succeeded" in next(scaling_lines(none))


def test_variants_and_nodes_are_kept_apart():
    both = [sample(1, 1.0, variant=Variant(model="m", precision=name)) for name in ("BF16", "FP8")]
    assert [one.precision for one in scalings_of(both)] == ["BF16", "FP8"]
    (one,) = scalings_of([sample(8, 10.0), sample(8, 9.0, varied={"nnodes": 2})])
    assert [(point.gpus, point.nodes) for point in one.points] == [(8, 1), (16, 2)]


def test_nodes_without_gpus_count_as_one_each():
    runs = [sample(0, value, varied={"nnodes": nodes}) for nodes, value in ((1, 100.0), (2, 96.0), (4, 90.0))]
    (one,) = scalings_of(runs)
    assert (one.over, one.kind, one.base) == ("nodes", "weak", 1)
    assert [(point.gpus, point.nodes, point.total) for point in one.points] == [(0, 1, 100), (0, 2, 192), (0, 4, 360)]
    assert [point.speedup for point in one.points] == pytest.approx([1, 1.92, 3.6])
    efficiency, speedup = scaling_plots(one)
    assert [point.label for point in efficiency.points] == ["1 node", "2 nodes", "4 nodes"]
    assert speedup.title == "Speedup against 1 node"


def test_the_gpus_of_a_node_are_those_of_its_place():
    runs = [sample(0, 10.0, nodes=nodes, gpus_per_node=8, varied={"nnodes": nodes}) for nodes in (1, 2)]
    for one in runs:
        del one.study.varied["n_gpus"]
    (one,) = scalings_of(runs)
    assert [(point.gpus, point.nodes, point.total) for point in one.points] == [(8, 1, 80), (16, 2, 160)]
    assert one.points[1].speedup == pytest.approx(2.0)


def test_each_node_s_number_and_the_slow_node_are_told():
    def run(names: str, slow: str = "") -> Sample:
        told = tuple(
            NodeUse(
                node=at,
                name=name,
                steps=30,
                speed=80.0 if name == slow else 100.0 + at,
                slow="20 % below" * (name == slow),
            )
            for at, name in enumerate(names.split())
        )
        one = sample(8, 90.0, varied={"nnodes": len(told)})
        return msgspec.structs.replace(one, result=msgspec.structs.replace(one.result, nodes=told))

    (one,) = scalings_of([run("a b c", "c"), run("a b c"), run(" ".join(f"n{at}" for at in range(12)))])
    text = "\n".join(scaling_lines(one))
    assert "3 nodes, each one's number: a 100, b 101, c 91" in text and "    c is slow: 20 % below" in text
    assert "12 nodes, each one's number: 100 to 111, median 105.5" in text
    assert "c is slow: 20 % below" in render_page("20260101T000000-abcdef", [one])


def test_the_page_draws_what_the_table_has_and_runs_no_script():
    scalings = scalings_of([sample(1, 100.0), sample(2, 120.0), sample(4, 60.0)])
    efficiency, speedup = scaling_plots(scalings[0])
    assert [point.text for point in efficiency.points] == ["100.0 %", "120.0 %", "60.0 %"]
    drawn = re.findall(r'<circle class="dot" cx="([\d.]+)" cy="([\d.]+)"', render_page("s", scalings))
    places, heights = ([float(dot[at]) for dot in drawn[:3]] for at in (0, 1))
    assert 20 < heights[1] < heights[0] < heights[2] < 230 and 60 < places[0] < places[2] < 440
    assert [point.text for point in speedup.points] == ["1.00x", "2.40x", "2.40x"]
    hostile = scalings_of([sample(1, 1.0, card="<script>alert(1)</script>")])
    page = render_page("20260101T000000-abcdef", [*scalings, *hostile])
    assert (
        "<script" not in page
        and "&lt;script&gt;alert" in page
        and "120.0 %" in page
        and "http" not in page.replace("http-equiv", "")
    )
