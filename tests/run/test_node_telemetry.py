"""What the GPUs of nodes do, asked through the session; nodes that do not answer cost nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from madlite.measure.steps import with_slow
from madlite.model import Completed, Gpu, Machine, NodeUse, Place
from madlite.run.instrumentation import NodeSampler
from tests.factories import SLURM, make_plan
from tests.rows import each_row
from tests.waiting import wait_until

NAMED = replace(SLURM, names_gpus=True)  # traits of a runtime whose sessions name the GPUs of a node
MACHINE = Machine(vendor="AMD", device="MI300X", gpus=tuple(Gpu(index=n) for n in range(2)))


@pytest.fixture(autouse=True)
def time_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a busy machine end the threads: what a node answered by then is part of its samples."""
    monkeypatch.setattr("madlite.run.instrumentation._LEAVE_S", 60.0)


class Nodes:
    """A session whose nodes answer `amd-smi metric` with these clocks; of one without, nothing is there.

    A tuple of clocks is of as many GPUs; `own` has which of them the run's are, by node.
    """

    def __init__(self, *clocks: float | tuple[float, ...] | None, own: Sequence[tuple[int, ...] | None] = ()) -> None:
        self.clocks, self.asked, self.own = clocks, [0] * len(clocks), own
        self.nodes = tuple(f"n{at}" for at in range(len(clocks)))

    def gpu_ids(self, node: int) -> tuple[int, ...] | None:
        return self.own[node] if self.own else None

    def probe(self, argv: Sequence[str], node: int, limit_s: float) -> Completed:
        self.asked[node] += 1
        clocks = self.clocks[node]
        if argv[0] != "amd-smi" or clocks is None:
            return Completed(code=127, stderr=b"amd-smi: command not found")
        gpus = [
            {
                "gpu": index,
                "clock": {"gfx_0": {"clk": {"value": clock, "unit": "MHz"}}},
                "power": {"socket_power": {"value": 700, "unit": "W"}},
                "usage": {"gfx_activity": {"value": 99, "unit": "%"}},
                "temperature": {"hotspot": {"value": 80, "unit": "C"}},
            }
            for index, clock in enumerate(clocks if isinstance(clocks, tuple) else (clocks, clocks))
        ]
        return Completed(code=0, stdout=json.dumps(gpus).encode())


def sampled(folder: Path, session: Nodes, asked: int = 1, **fields: object) -> list[NodeUse]:
    """Ask every node so often, of one sample each where there is no other interval, and return what they did."""
    place = Place(where="slurm", nodes=len(session.nodes), gpus_per_node=2, gpu_ids=(0, 1))
    once = {"telemetry_s": 3600.0}  # the usual interval may pass on a busy machine before the run is over
    plan = make_plan(folder, **{"place": place, "traits": NAMED, "machine": MACHINE, **once, **fields})
    sampler = NodeSampler(plan, lambda: 1.0)
    with sampler.sampling(session):  # type: ignore[arg-type]
        wait_until(lambda: min(session.asked) >= asked, "every node was asked")
    return list(sampler.over([NodeUse(node=at, name=name) for at, name in enumerate(session.nodes)], None))


def test_the_node_whose_gpus_are_slow_is_named(tmp_path):
    found = sampled(tmp_path, Nodes(2100.0, 2095.0, 1300.0))
    assert [one.clock_mhz for one in found] == [2100.0, 2095.0, 1300.0]
    assert (found[0].power_w, found[0].utilization_percent, found[0].temperature_c, found[0].samples) == (
        700,
        99,
        80,
        1,
    )
    assert [one.name for one in with_slow(found, None) if one.slow] == ["n2"]


def test_a_node_that_does_not_answer_has_no_samples(tmp_path):
    found = sampled(tmp_path, Nodes(2100.0, None))
    assert [(one.samples, one.clock_mhz) for one in found] == [(1, 2100.0), (0, None)]
    assert not any(one.slow for one in with_slow(found, None))


def test_a_node_whose_session_raises_costs_the_others_no_sample(tmp_path):
    class Raising(Nodes):
        def probe(self, argv: Sequence[str], node: int, limit_s: float) -> Completed:
            done = super().probe(argv, node, limit_s)
            if node == 0:
                raise ValueError("a mistake of a plugin")
            return done

    found = sampled(tmp_path, Raising(2100.0, 1300.0))
    assert [(one.samples, one.clock_mhz) for one in found] == [(0, None), (1, 1300.0)]


def test_a_node_whose_session_raised_once_is_asked_again(tmp_path, monkeypatch, caplog):
    class RaisingOnce(Nodes):
        def probe(self, argv: Sequence[str], node: int, limit_s: float) -> Completed:
            done = super().probe(argv, node, limit_s)
            if (node, self.asked[node]) == (0, 1):
                raise ValueError("a mistake of a plugin")
            return done

    monkeypatch.setattr("madlite.run.instrumentation.LEAST_INTERVAL_S", 0.01)
    with caplog.at_level("DEBUG"):
        found = sampled(tmp_path, RaisingOnce(2100.0, 2100.0), asked=3, telemetry_s=0.01)
    assert found[0].clock_mhz == 2100.0 and caplog.text.count("node 0: its GPUs could not be sampled") == 1


def test_each_node_is_sampled_on_the_gpus_that_the_run_has_there(tmp_path):
    busy = (900.0, 900.0, 2100.0, 2090.0)
    found = sampled(tmp_path, Nodes((2100.0, 2100.0, 0.0, 0.0), busy, own=((0, 1), (2, 3))))
    assert [one.clock_mhz for one in found] == [2100.0, 2095.0]
    assert not any(one.slow for one in with_slow(found, None))


def test_a_tool_that_reports_as_many_gpus_as_the_run_has_reports_the_run_s(tmp_path):
    """As in a container, or a step that may open no others: they count from 0 there, whatever the node calls them."""
    found = sampled(tmp_path, Nodes(2100.0, 1300.0, own=((4, 5), (6, 7))))
    assert [one.clock_mhz for one in found] == [2100.0, 1300.0]
    assert [one.name for one in with_slow(found, None) if one.slow] == ["n1"]


@each_row(
    "fields", [{"traits": SLURM}, {"own": (None, None)}, {"own": ((4, 5), (0, 7))}], ids=["nobody", "nothing", "wrong"]
)
def test_a_node_of_which_nobody_says_which_gpus_are_the_run_s_has_no_samples(tmp_path, fields):
    nodes = Nodes((2100.0, 900.0, 900.0), (900.0, 900.0, 2100.0), own=fields.pop("own", ((0, 1), (0, 1))))
    found = sampled(tmp_path, nodes, **fields)
    assert [(one.samples, one.clock_mhz) for one in found] == [(0, None)] * 2


def test_without_telemetry_or_on_one_node_nothing_is_asked(tmp_path):
    for session, fields in ((Nodes(2100.0, 2100.0), {"telemetry_s": 0.0}), (Nodes(2100.0), {})):
        assert [one.samples for one in sampled(tmp_path, session, asked=0, **fields)] == [0] * len(session.nodes)
        assert sum(session.asked) == 0
