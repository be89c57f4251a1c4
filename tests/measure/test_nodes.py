"""Which node of several is slow: by what its lines report, else by its GPUs' clocks; ordinary noise is no finding."""

from __future__ import annotations

import random

from madlite.measure.monitor import LogMonitor
from madlite.measure.steps import NodeSpeeds, Steps, node_uses, slow_findings, steady_window, with_slow
from madlite.model import Line, NodeUse, Quantity, Step
from tests.rows import each_row
from tests.tiers import examples

SPEED, TIME = Quantity.TOKENS_PER_S_PER_GPU, Quantity.STEP_TIME_S


def uses(*speeds: float, steps: int = 50, noise: float = 0.0) -> list[NodeUse]:
    return [NodeUse(node=at, name=f"n{at}", steps=steps, speed=one, noise=noise) for at, one in enumerate(speeds)]


def slow(nodes: list[NodeUse], quantity: Quantity | None = SPEED) -> dict[int, str]:
    return {one.node: one.slow for one in with_slow(nodes, quantity) if one.slow}


@each_row(
    ("speeds", "expected"),
    [
        ((1000.0, 1001.0, 999.0, 870.0), {3}),
        ((1000.0, 1001.0, 999.0, 905.0), set()),  # within what is ordinary of equal GPUs
        ((1000.0, 850.0), {1}),
        ((1000.0, 950.0), set()),
        ((1000.0, 1002.0, 700.0, 600.0, 998.0), {2, 3}),  # one slow node does not hide another
        ((1000.0, 1001.0, 1400.0), set()),  # a fast one is no finding
        ((1000.0, 1300.0, 800.0, 1150.0, 850.0), set()),  # the others differ as much
    ],
)
def test_a_node_below_the_others_is_slow(speeds, expected):
    assert set(slow(uses(*speeds))) == expected


def test_of_a_time_more_is_slow_and_few_or_scattered_steps_name_nobody():
    found = slow(uses(0.5, 0.51, 0.5, 0.65), TIME)
    assert found == {3: "0.65 s/step, 30 % above the median of the other nodes', 0.5"}
    assert slow_findings(with_slow(uses(0.5, 0.8), TIME)) == (
        "node 1 (n1) is slow: 0.8 s/step, 60 % above the other node's, 0.5",
    )
    # a few steps or wide scatter name nobody
    assert slow(uses(1000.0, 1000.0, 500.0, steps=4)) == {}
    assert slow(uses(1000.0, 1000.0, 800.0, noise=60.0)) == {}
    assert slow(uses(1000.0, 1000.0, 800.0, noise=20.0)) != {}
    # where all wait for each other the clock of the gpus tells
    alike = [NodeUse(node=at, steps=30, speed=1000.0, clock_mhz=mhz) for at, mhz in enumerate((2100.0, 2090.0, 1400.0))]
    assert slow(alike) == {2: "1,400 MHz, 33 % below the median of the other nodes', 2,095"}
    assert slow([NodeUse(node=0, clock_mhz=2100.0), NodeUse(node=1, clock_mhz=2000.0)], None) == {}


def test_ordinary_noise_raises_no_alarm_and_a_slow_node_does():
    """Of runs of up to 64 nodes, whose speeds differ by 3 % and steps by 10 %."""
    random_of, runs = random.Random(7), examples(400)
    false, found = 0, 0
    for _ in range(runs):
        count = random_of.choice([2, 3, 4, 8, 16, 64])
        real = [random_of.gauss(1000, 30) for _ in range(count)]
        bad = random_of.randrange(count)
        for late in (False, True):
            steps, speeds = Steps(), NodeSpeeds(count)
            for node, speed in enumerate(real):
                factor = 0.7 if late and node == bad else 1.0
                for n in range(1, 31):
                    step = Step(n=n, values={SPEED: random_of.gauss(speed, speed / 10) * factor}, rank=node)
                    steps.add(step)
                    speeds.note(step, node)
            window = steady_window(steps, SPEED, 5)
            nodes = with_slow(node_uses(speeds, window, [f"n{at}" for at in range(count)]), SPEED)
            named = {one.node for one in nodes if one.slow}
            false += bool(named - {bad}) if late else bool(named)
            found += late and bad in named
    assert false <= 0.01 * runs
    assert found >= 0.95 * runs


class _Reader:
    def feed(self, line: Line):
        _, step, rest = line.text.partition("step ")
        if step:
            n, speed = rest.split()
            yield Step(n=int(n), values={SPEED: float(speed)}, rank=line.rank, t_s=line.t_s)

    def finish(self, outputs):
        return ()


@each_row("label", ["", "[default0]:", "[rank0]: "])  # the last two may be the rank on the node
def test_the_lines_of_each_node_count_for_it_whatever_ranks_they_name(label):
    monitor = LogMonitor([_Reader()], nodes=3)
    for n in range(1, 21):
        for node, speed in ((0, 1000), (1, 700)):
            monitor.feed(f"{label}step {n} {speed + n % 2}\n".encode(), 1, node)
    monitor.finish()
    window = steady_window(monitor.steps, SPEED, 5)
    found = with_slow(node_uses(monitor.node_speeds, window, ("a", "b", "c")), SPEED)
    assert [(one.name, one.steps, one.speed) for one in found] == [("a", 15, 1000), ("b", 15, 700), ("c", 0, None)]
    assert [bool(one.slow) for one in found] == [False, True, False]
    assert node_uses(monitor.node_speeds, window, ("a",)) == ()


def test_of_a_long_run_the_last_values_of_each_node_are_kept():
    speeds, steps = NodeSpeeds(4096), Steps()
    for n in range(1000):
        step = Step(n=n, values={SPEED: float(n), Quantity.LOSS: 1.0})
        steps.add(step)
        speeds.note(step, 0)
    (values,) = speeds.over(steady_window(steps, SPEED, 0)).values()
    assert len(values) <= 128
    assert values[-1] == 999.0
