"""Simulated trainings for `--until`: the speed of each step, of kinds whose steps are not independent of each other.

What the full run would have reported is the median of all of its steps; an early end is right where
its interval has it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from statistics import median

from madlite.measure.adaptive import ConvergenceMonitor
from madlite.measure.steps import Steps
from madlite.model import AdaptiveLength, Quantity, Step, Value

SPEED = Quantity.TOKENS_PER_S_PER_GPU
LEVEL = 1000.0
STEP_S = 0.5


class Training(Value, frozen=True):
    """The speeds of all planned steps, and after how many of them the level changes; 0 where it never does."""

    values: tuple[float, ...]
    changes_after: int = 0


def noise(draw: random.Random, count: int, cv: float, rho: float) -> list[float]:
    """Return an AR(1) series around LEVEL with this coefficient of variation."""
    found, state = [], draw.gauss(0, 1)
    for _ in range(count):
        found.append(LEVEL * (1 + cv * state))
        state = rho * state + math.sqrt(1 - rho * rho) * draw.gauss(0, 1)
    return found


def independent(draw: random.Random, count: int, cv: float) -> Training:
    return Training(values=tuple(noise(draw, count, cv, 0)))


def autocorrelated(rho: float) -> Callable[[random.Random, int, float], Training]:
    def make(draw: random.Random, count: int, cv: float) -> Training:
        return Training(values=tuple(noise(draw, count, cv, rho)))

    return make


def drifting(part: float, rho: float = 0.0) -> Callable[[random.Random, int, float], Training]:
    """Speeds that move by this part over all steps, one way or the other."""

    def make(draw: random.Random, count: int, cv: float) -> Training:
        way = draw.choice((-part, part))
        return Training(values=tuple(one * (1 + way * n / count) for n, one in enumerate(noise(draw, count, cv, rho))))

    return make


def changing(part: float) -> Callable[[random.Random, int, float], Training]:
    """A level that changes by this part, one way or the other, at any step."""

    def make(draw: random.Random, count: int, cv: float) -> Training:
        way, at = draw.choice((-part, part)), draw.randrange(1, count)
        values = (one * (1 + way * (n >= at)) for n, one in enumerate(noise(draw, count, cv, 0)))
        return Training(values=tuple(values), changes_after=at)

    return make


def late_slow_steps(draw: random.Random, count: int, cv: float) -> Training:
    """Every so many steps, from some step on, a checkpoint that takes half of a step's time to twice as much."""
    every, first, cost = draw.randrange(10, 50), draw.randrange(count), draw.uniform(1.5, 3)
    values = noise(draw, count, cv, 0)
    return Training(values=tuple(one / cost if n >= first and n % every == 0 else one for n, one in enumerate(values)))


def warming_up(draw: random.Random, count: int, cv: float) -> Training:
    """A warm-up that outlasts the planned one: up to a fifth slower at first, falling off in 5 to 30 % of the run."""
    slower, steps = draw.uniform(0.02, 0.2), count * draw.uniform(0.05, 0.3)
    values = noise(draw, count, cv, 0)
    return Training(values=tuple(one * (1 - slower * math.exp(-n / steps)) for n, one in enumerate(values)))


def begins_slowly(draw: random.Random, count: int, cv: float) -> Training:
    """The first steps at less than half of the later speed, each like the other: a data loader that fills its cache."""
    values, at = noise(draw, count, cv, 0), draw.randrange(20, count // 8)
    return Training(values=tuple(one * (0.4 if n < at else 1) for n, one in enumerate(values)), changes_after=at)


KINDS: dict[str, Callable[[random.Random, int, float], Training]] = {
    "independent": independent,
    "AR(1), 0.5": autocorrelated(0.5),
    "AR(1), 0.9": autocorrelated(0.9),
    "drift of 1 %": drifting(0.01),
    "drift of 2 %": drifting(0.02),
    "drift of 5 %": drifting(0.05),
    "drift of 2 %, AR(1), 0.5": drifting(0.02, 0.5),
    "late slow steps": late_slow_steps,
    "slow warm-up": warming_up,
    "slow first steps": begins_slowly,
    "level change of 1 %": changing(0.01),
    "level change of 3 %": changing(0.03),
    "level change of 10 %": changing(0.1),
}


def end_of(values: Sequence[float], target: float) -> AdaptiveLength | None:
    """Return how a training of these speeds ended early; None where it went to its last step."""
    monitor, steps = ConvergenceMonitor(target, SPEED, 0, len(values)), Steps()
    for n, value in enumerate(values, 1):
        step = Step(n=n, values={SPEED: value}, t_s=n * STEP_S)
        steps.add(step)
        if found := monitor.check(step, steps):
            return found
    return None


class Tally(Value, frozen=True):
    """Of how many trainings how many ended early, after how many steps in all, and in how many the interval was right.

    Those that ended before their level changed are counted apart: nothing in their steps could tell.
    """

    runs: int
    ended: int
    steps: int
    inside: int
    before_change: int
    inside_before_change: int

    @property
    def known(self) -> int:
        """How many ended early and had seen what there was to see."""
        return self.ended - self.before_change

    @property
    def coverage(self) -> float:
        """Of these the part whose interval has the full run's median; 1 where none ended early."""
        return (self.inside - self.inside_before_change) / self.known if self.known else 1.0


def simulate(kind: str, runs: int, count: int = 500, target: float = 0.005) -> Tally:
    """Return how trainings of a kind end, with steps that vary by 0.2, 0.5 and 1 % in turns."""
    found = []
    for seed in range(runs):
        draw = random.Random(f"{kind} {count} {seed}")
        training = KINDS[kind](draw, count, (0.002, 0.005, 0.01)[seed % 3])
        early = end_of(training.values, target)
        if early is None or early.low is None or early.high is None:
            continue
        is_inside = early.low <= median(training.values) <= early.high
        found.append((early.steps_run, is_inside, early.steps_run <= training.changes_after))
    return Tally(
        runs=runs,
        ended=len(found),
        steps=sum(steps for steps, _, _ in found),
        inside=sum(inside for _, inside, _ in found),
        before_change=sum(before for _, _, before in found),
        inside_before_change=sum(inside and before for _, inside, before in found),
    )
