"""The page of a tuning: its plot has the letters of the table, it says what cannot be drawn, and has the recipe."""

import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from madlite.model import Metric, Result, Status, Study
from madlite.study.summary import Sample
from madlite.study.tune import trial_of
from madlite.study.tune_models import Point, Space
from madlite.study.tune_report import Span, TunedPoint, TuneReport, conclusion_lines, render_page, table_lines

FASTEST = TunedPoint(
    text="activation_checkpoint=none",
    varied={"activation_checkpoint": "none"},
    outcome="ok",
    speed=9305.5,
    memory_gib=68.1,
    global_batch=1,
    full=3,
    ratio=1.09,
)
DEFAULT = TunedPoint(
    text="default", varied={}, outcome="ok", speed=8538.0, memory_gib=52.3, global_batch=1, full=3, ratio=1.0
)
FAILED = TunedPoint(
    text="compile=true", varied={"compile": True}, outcome="failed", reason="no <C> compiler & no Triton"
)


def report_of(*points: TunedPoint, memory_gib: float | None = 79.1) -> TuneReport:
    """Return the report of a study that tried these, the fastest first and the default last of those that ran."""
    return TuneReport(
        id="20261127T120000-abc123",
        card="pyt_train_llama-3.1-8b",
        backend="torchtitan",
        metric="tokens_per_s_per_gpu",
        unit="tokens/s/GPU",
        points=points,
        best=points[0],
        default=points[1],
        confirmed=True,
        why="confirmed",
        memory_gib=memory_gib,
        runs=7,
        spent_s=474.0,
    )


def letters_on(page: str) -> dict[str, str]:
    """Return the letters beside the dots of the plot, by what the dots say."""
    found = re.findall(r"<title>(.*?): .*?</title></circle><text [^>]*>([A-Z])</text>", page)
    return {name: letter for name, letter in found}


def test_the_letters_of_the_plot_are_those_of_the_table():
    report = report_of(FASTEST, DEFAULT, FAILED)
    page = render_page(report, "")
    drawn = letters_on(page)
    assert drawn == {"activation_checkpoint=none": "A", "default": "B"}
    in_table = re.findall(r"<tr><td>(.*?)</td><td>([A-Z]?)</td>", page)
    assert dict(in_table) == {**drawn, "compile=true": ""}


def test_round_numbers_stand_along_the_axes():
    assert Span(low=8476.6, high=9366.9).levels() == [8600, 8800, 9000, 9200]
    assert Span(low=0, high=79.1).levels() == [0, 20, 40, 60]
    assert Span(low=0.0012, high=0.0019).levels() == pytest.approx([0.0012, 0.0014, 0.0016, 0.0018])
    page = render_page(report_of(FASTEST, DEFAULT), "")
    for text in ("0", "20", "40", "60", "8,600", "9,200"):
        assert f">{text}</text>" in page


def test_a_doubtful_number_is_told_with_its_reason():
    metric = Metric(metric="samples/s", text="7", status=Status.SUCCESS, value=7.0)
    tried = Result(plan_id="r", status=Status.SUCCESS, metrics=(metric,), suspect=("the allocator tried again",))
    study = Study(id="s", kind="tune", varied={"micro_batch": 2}, short=True)
    sample = Sample(study=study, run="r", card="a", variant=None, image="", result=tried)
    trial = trial_of(sample, Space(default=Point(batch=1)), Path("/nonexistent"))
    assert trial is not None and trial.status == "ok" and trial.reason == "the allocator tried again"
    doubtful = replace(FASTEST, text="micro_batch=2", outcome="suspect", reason=trial.reason)
    report = report_of(FASTEST, DEFAULT, doubtful)
    assert "  micro_batch=2 suspect: the allocator tried again" in table_lines(report)
    assert "micro_batch=2 suspect: the allocator tried again" in render_page(report, "")


def test_what_was_not_tried_or_not_confirmed_is_told():
    alone = replace(report_of(DEFAULT, DEFAULT), points=(DEFAULT,), why="budget", confirmed=False)
    said = " ".join(conclusion_lines(alone))
    assert "nothing but the default was tried" in said and "--resume=" in said
    larger = replace(FASTEST, text="micro_batch=3", varied={"micro_batch": 3}, global_batch=3)
    short = replace(FASTEST, full=0, ratio=1.08)
    _, kept, other, *_ = conclusion_lines(replace(report_of(larger, short, DEFAULT), default=DEFAULT))
    assert "fastest with the default's global batch of 1: activation_checkpoint=none: +8" in kept
    assert "not confirmed" in kept and "fastest with another one, of 3: micro_batch=3: " in other
    _, kept, other, *_ = conclusion_lines(replace(report_of(larger, DEFAULT), default=DEFAULT))
    assert "fastest with the default's global batch of 1: default: +0.00 %" in kept and "of 3: micro_batch=3" in other


def test_a_gpus_memory_is_drawn_where_it_is_known():
    assert "vertical: all of its memory" in render_page(report_of(FASTEST, DEFAULT), "")
    assert "all of its memory" not in render_page(report_of(FASTEST, DEFAULT, memory_gib=None), "")


def test_an_axis_that_does_not_begin_at_zero_is_marked():
    page = render_page(report_of(FASTEST, DEFAULT), "")
    assert "the upright axis begins at 8,476.6, not at 0" in page and 'class="break"' in page
    slow = replace(DEFAULT, speed=1.0)
    page = render_page(report_of(FASTEST, slow), "")
    assert "the upright axis begins" not in page and 'class="break"' not in page


def test_what_cannot_be_drawn_is_said():
    unmeasured = [
        TunedPoint(text=one.text, varied=one.varied, outcome="ok", speed=one.speed) for one in (FASTEST, DEFAULT)
    ]
    page = render_page(report_of(*unmeasured, memory_gib=None), "")
    assert "<svg" not in page and "told no peak of a GPU's memory" in page


def test_why_a_point_failed_and_the_recipe_are_text_not_markup():
    page = render_page(report_of(FASTEST, DEFAULT, FAILED), 'tag = "<b>"\nset = 1\n')
    assert "compile=true failed: no &lt;C&gt; compiler &amp; no Triton" in page
    assert (
        "<pre>madlite run --recipe-file madlite_runs/study-20261127T120000-abc123/recipe.toml</pre>" in page
        and "tag = &#34;&lt;b&gt;&#34;\nset = 1" in page
    )
