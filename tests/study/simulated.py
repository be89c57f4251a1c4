"""A simulated trainer: throughput, memory and failures of every configuration follow from a few numbers."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from madlite.study.tune_models import Point, Space, Trial
from madlite.study.tune_search import Budget, NextRun, Stop, next_run

LIMIT = 40  # runs after which a search counts as one without end


@dataclass
class Trainer:
    """What a run of a point would come to: `speed` and `memory_gib` of it, or why it fails."""

    space: Space
    speed: Callable[[Point], float]
    memory_gib: Callable[[Point], float]
    limit_gib: float
    short_gib: float = math.inf  # from here on a run is short of memory
    noise: float = 0.0
    tells_memory: bool = True
    fails: Callable[[Point], str] = lambda point: ""
    refuses: Callable[[Point], str] = lambda point: ""
    run_s: float = 45.0
    cold_s: float = 0.0  # by which the first run takes longer: it fills the caches
    more_s: Callable[[Point], float] = lambda point: 0.0  # by which a start of this point takes longer than `run_s`
    step_s: Callable[[Point], float] | None = None  # else a run takes `run_s`; with it that, and its steps
    known_after: int = LIMIT * 1000  # steps of a full run whose number of steps is not given
    seed: int = 0
    trials: list[Trial] = field(default_factory=list)
    random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    def run(self, next_one: NextRun) -> Trial:
        """Return the trial that a run comes to."""
        point, full = next_one.point, next_one.full
        if why := self.refuses(point):
            return Trial(point=point, status="refused", full=full, reason=why)
        if why := self.fails(point):
            return Trial(point=point, status="failed", full=full, reason=why, duration_s=self.run_s)
        steps, duration_s = self._length(next_one)
        memory = self.memory_gib(point)
        if memory > self.limit_gib:
            return Trial(point=point, status="out_of_memory", full=full, duration_s=self.run_s)
        speed = self.speed(point) * self.random.gauss(1, self.noise)
        told = memory if self.tells_memory else None
        step_s = self.step_s(point) if self.step_s is not None else 0.0
        return Trial(
            point=point,
            status="ok",
            full=full,
            speed=speed,
            memory_gib=told,
            short_of_memory=memory > self.short_gib,
            duration_s=duration_s,
            steps=steps,
            step_s=step_s,
        )

    def _length(self, next_one: NextRun) -> tuple[int, float]:
        """Return how many steps a run makes, and how long it takes."""
        if self.step_s is None or self.space.steps is None:
            return 0, self.run_s
        usual = self.space.steps
        steps = next_one.steps or (min(usual.full, self.known_after) if next_one.full else usual.short)
        start_s = self.run_s + (0.0 if self.trials else self.cold_s) + self.more_s(next_one.point)
        return steps, start_s + steps * self.step_s(next_one.point)

    def tune(self, budget: Budget) -> Stop:
        """Run until the search stops; `trials` has all of them."""
        while len(self.trials) < LIMIT:
            what = next_run(self.space, self.trials, budget)
            if isinstance(what, Stop):
                return what
            self.trials.append(self.run(what))
        raise AssertionError(f"no end after {LIMIT} runs: {self.trials}")

    @property
    def spent_s(self) -> float:
        """How long all runs took."""
        return sum(one.duration_s for one in self.trials)
