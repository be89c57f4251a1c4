"""Rounds of two batches on the same GPUs: each run has one row, no GPU two runs, and `run --resume` completes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.parallel import Batches, draw_parallel

SEEDS = range(1, 13)


@pytest.mark.full
@pytest.mark.host
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "seed", SEEDS, ids=lambda seed: f"{seed}-{draw_parallel(seed).word}-{draw_parallel(seed).target}".replace(" ", "-")
)
def test_every_run_of_two_batches_has_one_row_and_no_gpu_two_runs(seed: int, tmp_path: Path) -> None:
    assert Batches(tmp_path, draw_parallel(seed)).play() == []


def test_the_rounds_are_the_same_every_time_and_attack_everything() -> None:
    rounds = [draw_parallel(seed) for seed in SEEDS]
    assert rounds == [draw_parallel(seed) for seed in SEEDS]
    assert {one.target for one in rounds} == {"batch", "workload", "second batch", "both"}
    assert "SIGKILL" in {one.word for one in rounds} and len({one.word for one in rounds}) > 2
