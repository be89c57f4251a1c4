"""Twenty rounds of chaos over a real Slurm; `python -m tests.chaos --cluster --seed N --runs 1` plays one of them."""

from __future__ import annotations

import pytest

from tests.chaos.cluster import KINDS, draw, play

SEEDS = range(1, 21)


@pytest.mark.engine
@pytest.mark.full
@pytest.mark.parametrize("seed", SEEDS, ids=lambda seed: f"{seed}-{draw(seed).kind}")
def test_each_run_of_a_cluster_has_one_row_or_is_named(seed, own_slurm):
    assert play(seed, own_slurm) == [], f"python -m tests.chaos --cluster --seed {seed} --runs 1"


def test_the_twenty_hold_each_attack_and_a_seed_is_always_the_same_round():
    assert [draw(seed) for seed in SEEDS] == [draw(seed) for seed in SEEDS]
    assert {draw(seed).kind for seed in SEEDS} == set(KINDS)
