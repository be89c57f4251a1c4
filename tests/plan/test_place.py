"""Which runtime a card gets."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from madlite.errors import UsageProblem
from madlite.model import Card, Cause, Problem, Traits
from madlite.plan.context import Options
from madlite.plan.place import choose_runtime
from tests.rows import each_row

TRAITS = {"docker": Traits(), "host": Traits(containerised=False), "pods": Traits(local=False)}
OPTIONS = Options(workspace=Path(), output=Path("perf.csv"))


def card(*runtimes: str) -> Card:
    return Card(name="tiny", root=Path(), source="models.json", runtimes=runtimes)


def available(name: str) -> Problem | None:
    """Know docker, which is down, and host and pods, which work."""
    if name not in ("docker", "host", "pods"):
        raise UsageProblem(f"no runtime '{name}'", "runtimes: docker, host, pods")
    return Problem(where="docker", what="no engine answers") if name == "docker" else None


@each_row("name", ["slurm", "Host"])
def test_a_runtime_that_does_not_exist_is_told_with_its_card(name):
    with pytest.raises(UsageProblem) as refused:
        choose_runtime(card(name), OPTIONS, True, available, TRAITS)
    assert "card 'tiny' (models.json)" in refused.value.message and f"'{name}'" in refused.value.message
    assert "docker, host" in refused.value.hint


def test_the_host_stands_in_only_where_card_and_runtime_allow_it():
    # the host stands in for an engine that is down only where the card says so
    assert choose_runtime(card("docker", "host"), OPTIONS, True, available, TRAITS).runtime == "host"
    refused = choose_runtime(card(), OPTIONS, True, available, TRAITS)
    assert refused.runtime == "docker" and refused.blocked is not None
    # a runtime without containers stands in whatever its name
    traits = {**TRAITS, "bare": Traits(containerised=False)}
    found = choose_runtime(card("docker", "bare"), OPTIONS, True, available, traits)
    assert (found.runtime, found.traits, found.note) == ("bare", traits["bare"], "runs on the bare: no engine answers")
    # a cards own runtime is used and asked whether it can be
    assert choose_runtime(card("pods"), OPTIONS, True, available, TRAITS).blocked is None
    down = choose_runtime(card("pods"), OPTIONS, True, lambda name: Problem(where=name, what="no cluster"), TRAITS)
    assert down.blocked is not None and (down.blocked.cause, down.blocked.reason) == (Cause.ENGINE, "no cluster")

    # without an image no engine is asked where a card can do without one
    def never(name: str) -> Problem | None:
        raise AssertionError(name)

    found = choose_runtime(card("docker", "host"), OPTIONS, False, never, TRAITS)
    assert (found.runtime, found.note) == ("host", "runs on the host: the card names no image")
    # an image that nodes cannot start is refused
    traits = {**TRAITS, "nodes": NODES}
    options = replace(OPTIONS, runtime="nodes", image="i:1")
    with pytest.raises(UsageProblem, match="--image i:1: the nodes run commands without a container"):
        choose_runtime(card(), options, True, available_nodes, traits)


NODES = Traits(containerised=False, local=False)


@each_row(
    ("listed", "has_image", "origin", "blocked"),
    [
        ((), True, "the allocation", True),
        (("docker",), False, "cluster 'lab'", True),
        (("docker", "host"), True, "the allocation", False),
        ((), False, "the allocation", False),
        ((), True, "--runtime", False),
    ],
)
def test_a_card_with_an_image_does_not_run_on_nodes_without_containers(listed, has_image, origin, blocked):
    traits = {**TRAITS, "nodes": NODES}
    options = replace(OPTIONS, runtime="nodes", runtime_origin=origin)
    found = choose_runtime(card(*listed), options, has_image, available_nodes, traits)
    assert (found.runtime, found.origin, found.blocked is not None) == ("nodes", origin, blocked)
    if found.blocked is not None:
        assert "runs in an image, and the nodes have no container for it" in found.blocked.reason
        assert "--runtime nodes runs the card without one" in found.blocked.hint
    own = choose_runtime(card(*listed), options, has_image, available_nodes, traits, launcher="slurm-multi")
    assert own.blocked is None, "its script starts the containers"


def available_nodes(name: str) -> Problem | None:
    return None
