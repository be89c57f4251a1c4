"""What each node of a run reports of the training, and which of them is slow.

A node is slow where its number is below the median of the other nodes' by more than `FLOOR` of it and by more than
`Z_SCORE` standard deviations, those of the others' numbers and of its own and theirs from step to step together.  All
are robust: medians, and of deviations the median absolute one (Iglewicz and Hoaglin's score, as for outliers of a
window), so that a slow node does not hide itself or another.  The floor is above what is ordinary: identical GPUs of
one cluster differ by 8 % on average (Sinha et al., Not All GPUs Are Created Equal, SC22, arXiv:2208.11035).  Of two
nodes the slower one is named, by the same limits.

Where each step waits for all nodes, as with gradients that are reduced, their speeds are alike whoever is slow: then
the clock of its GPUs is what tells (docs/scaling.md).
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import TypeVar

from msgspec.structs import replace

from madlite.measure.window import FEWEST, Z_SCORE, robust_deviation
from madlite.model import NodeUse, Quantity, Step, Window

_Node = TypeVar("_Node", int, str)
FLOOR = 0.10  # of the others' median
_OF_MEDIAN = 1.2533  # the normal distribution's median's standard error ÷ its mean's, sqrt(pi / 2)
_MOST = 262144  # values of all nodes that are kept, the last ones of each
_LEAST = 64


class NodeSpeeds:
    """The last values of each quantity that could be a training's speed, by the node whose line had them."""

    def __init__(self, nodes: int) -> None:
        self._most = max(_LEAST, _MOST // max(1, nodes))
        self._values: dict[tuple[int, Quantity], tuple[array[int], array[float]]] = {}

    def note(self, step: Step, node: int) -> None:
        """Take a training step in."""
        for quantity, value in step.values.items():
            if quantity.direction == "neutral" or quantity == Quantity.LOSS:
                continue
            ns, values = self._values.setdefault((node, quantity), (array("q"), array("d")))
            if len(ns) >= 2 * self._most:
                del ns[: -self._most], values[: -self._most]
            ns.append(step.n)
            values.append(value)

    def over(self, window: Window) -> dict[int, list[float]]:
        """Return the values of a window's quantity and steps, by node."""
        found: dict[int, list[float]] = {}
        for (node, quantity), (ns, values) in self._values.items():
            if quantity == window.quantity:
                points = zip(ns, values, strict=True)
                within = [value for n, value in points if window.first_step <= n <= window.last_step]
                found[node] = [*filter(math.isfinite, within)]
        return found


def node_uses(speeds: NodeSpeeds, window: Window | None, names: Sequence[str]) -> tuple[NodeUse, ...]:
    """Return what is known of each node of a run; nothing of one node."""
    if len(names) < 2:
        return ()
    found = speeds.over(window) if window is not None else {}
    return tuple(_use(node, name, found.get(node, ())) for node, name in enumerate(names))


def _use(node: int, name: str, values: Sequence[float]) -> NodeUse:
    if not values:
        return NodeUse(node=node, name=name)
    return NodeUse(node=node, name=name, steps=len(values), speed=median(values), noise=error_of_median(values))


def error_of_median(values: Sequence[float]) -> float:
    """Return the standard error of the median of at least one value, 0 of a single one."""
    return _OF_MEDIAN * robust_deviation(values, median(values)) / math.sqrt(len(values))


def with_slow(nodes: Sequence[NodeUse], quantity: Quantity | None) -> tuple[NodeUse, ...]:
    """Return the nodes, each slow one with why: by the numbers that their lines report, else by their GPUs' clocks."""
    told = [node for node in nodes if node.speed and node.steps >= FEWEST]
    clocked = [node for node in nodes if node.clock_mhz]
    slow: dict[int, str] = {}
    if quantity is not None and quantity.direction != "neutral":
        numbers = {node.node: (node.speed or 0.0, node.noise or 0.0) for node in told}
        slow |= slow_of(numbers, quantity.label, lower_is_better=quantity.direction == "lower")
    clocks = {node.node: (node.clock_mhz or 0.0, 0.0) for node in clocked}
    slow = slow_of(clocks, "MHz", lower_is_better=False) | slow
    return tuple(replace(node, slow=slow.get(node.node, "")) for node in nodes)


def slow_findings(nodes: Iterable[NodeUse]) -> tuple[str, ...]:
    """Return the slow nodes as sentences."""
    return tuple(f"{node.label} is slow: {node.slow}" for node in nodes if node.slow)


def slow_of(numbers: Mapping[_Node, tuple[float, float]], unit: str, *, lower_is_better: bool) -> dict[_Node, str]:
    """Return the slow nodes, each with why; `numbers` are each node's number and its standard error."""
    found: dict[_Node, str] = {}
    for node, (value, noise) in numbers.items() if len(numbers) > 1 else ():
        others = [number for other, number in numbers.items() if other != node]
        usual = median(other for other, _ in others)
        behind = value - usual if lower_is_better else usual - value
        spread = (robust_deviation([other for other, _ in others], usual), noise, median(other for _, other in others))
        if usual > 0 and behind > max(FLOOR * usual, Z_SCORE * math.hypot(*spread)):
            what = "the other node's" if len(others) == 1 else "the median of the other nodes'"
            beyond = "above" if lower_is_better else "below"
            number = f"{value:,.4g} {unit}".rstrip()
            found[node] = f"{number}, {100 * behind / usual:.0f} % {beyond} {what}, {usual:,.4g}"
    return found
