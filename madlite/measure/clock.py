"""The trainer's clock against another: the time between its lines, by madlite's clock or the log's own time stamps.

A speed times the time that its steps took is the tokens that they would have had.  Time in which no step was done is
left out: of intervals with a validation, a checkpoint or another phase, and of those that are much longer than usual,
of which nothing is said.  Lines that arrive together are taken together; where all do, or few, no clock says anything.
"""

from __future__ import annotations

import statistics
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from itertools import pairwise

from madlite.measure.steps import Steps
from madlite.model import Quantity, RunPlan, Value, Window
from madlite.text import whole_number

MOST_TIMES = 2.0  # the work of the steps, that a speed may come to
_MOST_LINES = 10_000  # that are looked at, the last of a window
_TOGETHER = 0.05  # of the usual time between two lines: lines that are closer arrived together
_TOGETHER_S = 0.002
_USUAL = 3.0  # times the usual time of a step: in a longer interval something else was done
_FEWEST, _FEWEST_BLOCKS = 2, 3  # intervals; where lines come in blocks the last one waits for the program's end
_LEAST_S = 0.005  # of a step that the speed does not explain: printing takes time as well
_PER_SEQUENCE = (Quantity.SAMPLES_PER_S_PER_GPU, Quantity.IMAGES_PER_S_PER_GPU)
_RANKS = ("nproc_per_node", "cpu_ranks")  # settings of runs without GPUs
_PASSES = ("accumulation", "gradient_accumulation_steps", "grad_accumulation")


class Work(Value, frozen=True):
    """Tokens, samples or images of a step on each GPU; `at_most` where parallel degrees may lower them, unknown."""

    amount: float
    at_most: bool = False


class Clocked(Value, frozen=True):
    """The work that a window's speed would come to in the time of `steps` steps, and what they have, per GPU."""

    expected: float
    done: float
    steps: int
    seconds: float

    @property
    def is_too_fast(self) -> bool:
        """Whether the speed is above what the clock allows."""
        if self.expected <= MOST_TIMES * self.done:
            return False
        return self.seconds * (1 - self.done / self.expected) / self.steps > _LEAST_S


class _Interval(Value, frozen=True):
    steps: int
    seconds: float

    @property
    def per_step(self) -> float:
        return self.seconds / self.steps


def read_clock(steps: Steps, window: Window, work: float, interrupted: Sequence[int]) -> Clocked | str:
    """Return what a window's speed comes to by the clock, or why nobody knows.

    `work` is what a step has on each GPU, in the speed's unit; `interrupted` are steps before whose line something else
    than training was done, in order.
    """
    blocks = _blocks(_reports(steps, window))
    if len(blocks) < 2:
        return "the lines have no time" if not blocks else "all lines arrived at once"
    found = [one for one in _intervals(blocks, sorted(interrupted)) if one is not None]
    in_blocks = any(lines > 1 for _, _, lines in blocks)
    if len(found) < (_FEWEST_BLOCKS if in_blocks else _FEWEST):
        return "too few of the steps' times are known that hold nothing else"
    usual = statistics.median_low(one.per_step for one in found)
    kept = [one for one in found if one.per_step <= _USUAL * usual]
    seconds, count = sum(one.seconds for one in kept), sum(one.steps for one in kept)
    return Clocked(expected=window.median * seconds, done=work * count, steps=count, seconds=seconds)


def work_of_step(quantity: Quantity, plan: RunPlan | None, config: Mapping[str, str]) -> Work | None:
    """Return the tokens, samples or images of a step on each GPU; None where that is not known.

    What the trainer's log says goes before the plan.  Where nobody says how many ranks share a global batch, it is
    what one rank passes through the model in a step: GPUs that share a rank's sequences have less each, never more.
    """
    variant = plan.variant if plan else None
    sizes = {
        name: whole_number(config.get(name, "")) or (getattr(variant, name) if variant else None) or 0
        for name in ("seq_len", "micro_batch", "global_batch")
    }
    each = 1 if quantity in _PER_SEQUENCE else sizes["seq_len"]
    if quantity != Quantity.TOKENS_PER_S_PER_GPU and quantity not in _PER_SEQUENCE:
        return None
    ranks = whole_number(config.get("world_size", "")) or (_ranks(plan) if plan else 0)
    if sizes["global_batch"] and ranks:
        return Work(amount=each * sizes["global_batch"] / ranks) if each else None
    passes = whole_number(config.get("gradient_accumulation_steps", "")) or (_passes(plan) if plan else 0)
    amount = each * sizes["micro_batch"] * passes
    return Work(amount=amount, at_most=True) if amount else None


def _reports(steps: Steps, window: Window) -> list[tuple[int, float]]:
    """Return number and time of the window's lines, and of the line before them."""
    ns = steps.curve(window.quantity).ns
    begin, end = max(0, bisect_left(ns, window.first_step) - 1), bisect_right(ns, window.last_step)
    told = [(n, steps.reported_s(n)) for n in ns[max(begin, end - _MOST_LINES) : end]]
    return [(n, at) for n, at in told if at is not None]


def _blocks(reports: Sequence[tuple[int, float]]) -> list[tuple[int, float, int]]:
    """Return lines that arrived together as one: the last one's step, the first one's time, and how many they are."""
    if not reports:
        return []
    gaps = [after - before for (_, before), (_, after) in pairwise(reports)]
    near = max(_TOGETHER_S, _TOGETHER * statistics.median_low(gaps or [0.0]))
    blocks: list[tuple[int, float, int]] = []
    for n, at in reports:
        if blocks and 0 <= at - blocks[-1][1] <= near:
            blocks[-1] = (n, blocks[-1][1], blocks[-1][2] + 1)
        else:
            blocks.append((n, at, 1))
    return blocks


def _intervals(blocks: Sequence[tuple[int, float, int]], interrupted: Sequence[int]) -> list[_Interval | None]:
    """Return the steps and seconds between blocks, None where something else was done or the clock went back."""
    held = array("q", interrupted)
    found: list[_Interval | None] = []
    for (before, began_s, _), (last, ended_s, _) in pairwise(blocks):
        dirty = bisect_right(held, before) < bisect_right(held, last)
        good = not dirty and last > before and ended_s > began_s
        found.append(_Interval(steps=last - before, seconds=ended_s - began_s) if good else None)
    return found


def _ranks(plan: RunPlan) -> int:
    """Return how many ranks a run has."""
    asked = [whole_number(str(plan.settings.get(name, ""))) or 0 for name in _RANKS]
    return max(1, plan.place.nodes) * max(1, plan.place.gpus_per_node or max(asked))


def _passes(plan: RunPlan) -> int:
    """Return how many forward passes a step has, as far as the plan says."""
    return max(1, *(whole_number(str(plan.settings.get(name, ""))) or 0 for name in _PASSES))
