"""Which runtime a card gets."""

from __future__ import annotations

from pathlib import Path

import pytest

from madlite.errors import UsageProblem
from madlite.plan.options import Options
from madlite.plan.place import choose_runtime
from madlite.types import Card, Cause, Problem

OPTIONS = Options(workspace=Path(), output=Path("perf.csv"))


def card(*runtimes: str) -> Card:
    return Card(name="tiny", root=Path(), source="models.json", runtimes=runtimes)


def available(name: str) -> Problem | None:
    """Know docker, which is down, and host and pods, which work."""
    if name not in ("docker", "host", "pods"):
        raise UsageProblem(f"no runtime '{name}'", "runtimes: docker, host, pods")
    return Problem(where="docker", what="no engine answers") if name == "docker" else None


@pytest.mark.parametrize("name", ["slurm", "Host"])
def test_a_runtime_that_does_not_exist_is_told_with_its_card(name):
    with pytest.raises(UsageProblem) as refused:
        choose_runtime(card(name), OPTIONS, True, available)
    assert "card 'tiny' (models.json)" in refused.value.message and f"'{name}'" in refused.value.message
    assert "docker, host" in refused.value.hint


def test_a_cards_own_runtime_is_used_and_asked_whether_it_can_be():
    assert choose_runtime(card("pods"), OPTIONS, True, available).blocked is None
    down = choose_runtime(card("pods"), OPTIONS, True, lambda name: Problem(where=name, what="no cluster"))
    assert down.blocked is not None and (down.blocked.cause, down.blocked.reason) == (Cause.ENGINE, "no cluster")


def test_the_host_stands_in_for_an_engine_that_is_down_only_where_the_card_says_so():
    assert choose_runtime(card("docker", "host"), OPTIONS, True, available).runtime == "host"
    refused = choose_runtime(card(), OPTIONS, True, available)
    assert refused.runtime == "docker" and refused.blocked is not None
