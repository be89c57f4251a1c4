"""Step patterns, from which a small backend reads its log."""

from __future__ import annotations

import pytest

from madlite import Ended, Line, PatternReader, PluginError, Quantity, step_pattern
from tests.rows import each_row

PATTERN = step_pattern(r"step=(?P<n>\S+) tps=(?P<tokens_per_s_per_gpu>[\d,.]+)(?: loss=(?P<loss>\S+))?")


def test_a_line_gives_every_step_that_matches_and_the_end_mark_ends():
    found = list(PATTERN.steps(Line(text="step=1 tps=2,872 loss=4.5 step=2 tps=3", rank=3, t_s=1.5)))
    assert [(step.n, step.rank, step.t_s, step.values) for step in found] == [
        (1, 3, 1.5, {Quantity.TOKENS_PER_S_PER_GPU: 2872.0, Quantity.LOSS: 4.5}),
        (2, 3, 1.5, {Quantity.TOKENS_PER_S_PER_GPU: 3.0}),
    ]
    # only quantities have names
    with pytest.raises(PluginError, match="tokens_per_s_per_gpu"):
        step_pattern(r"step=(?P<n>\d+) speed=(?P<speed>\d+)")
    with pytest.raises(PluginError):
        step_pattern(r"loss=(?P<loss>\d+)")
    reader = PatternReader(PATTERN, "all done")
    assert reader.feed(Line(text="now all done.")) == (Ended(marker="all done"),)
    assert reader.feed(Line(text="nothing")) == ()


@each_row("n", ["x", "nan", "inf", "9" * 5000])
def test_a_step_without_a_number_is_none(n):
    assert list(PATTERN.steps(Line(text=f"step={n} tps=3"))) == []
