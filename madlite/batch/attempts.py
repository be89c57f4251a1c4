"""Attempts of one run: whether a run that failed is tried again, when, and with which micro batch.

A failed attempt that is followed by another one has a folder and a record of its own, and no row: the row is the last
attempt's.  Until that has its own the failed one is set aside: its result file is on the disk and its folder locked,
so that the next command can write its row where this one is killed meanwhile.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

from msgspec.structs import replace

from madlite.backends.loader import Plugins
from madlite.errors import ExitCode, MadliteError
from madlite.measure.steps import Steps
from madlite.model import Cause, Result, RunPlan, Status, Value, Variant
from madlite.model.results import Attempt, FailedAttempt
from madlite.plan.caches import with_caches_of
from madlite.plan.submission import PlannedRun, RetryPolicy
from madlite.run.from_plan import copied
from madlite.run.planning import find_findings
from madlite.store.events import now
from madlite.store.folder import RunEntry, RunFolder, new_run_id
from madlite.store.record import read_plan

TRANSIENT = frozenset(cause.value for cause in (Cause.NETWORK, Cause.PREEMPTED, Cause.ENGINE))
"""The causes after which a run may succeed though nothing was changed: a server, the hub, a port, a preemption."""
_DECIDED = (Cause.INTERRUPTED, Cause.TIMEOUT, Cause.HANG, Cause.INTERNAL)  # madlite ended it, whatever its log says
_BEGIN_ANEW = (Cause.GPU_MEMORY.value, Cause.NAN_LOSS.value)  # what follows takes no checkpoint over
_SPREAD = 0.25  # jobs that failed together do not come back together


def has_micro_batch(run: PlannedRun) -> bool:
    """Return whether a run has a micro batch that madlite sets: a card's own script has its own."""
    return _micro_batch(run.plan) is not None and not run.plan.own_script and "micro_batch" not in run.declared


MicroBatches: TypeAlias = dict[tuple[object, ...], tuple[int, FailedAttempt]]
"""The micro batches that fit, of runs of one command whose own did not, each with the last attempt that failed."""


def _sizes_of(plan: RunPlan) -> tuple[object, ...]:
    image = plan.image.ref if plan.image is not None else ""
    gpus = (plan.place.where, plan.place.nodes, plan.place.gpus_per_node)
    return (plan.card.name, plan.backend, image, gpus, plan.variant, tuple(sorted(plan.settings.items())))


def _trained(plan: RunPlan) -> tuple[object, ...]:
    return plan.card.name, plan.backend, plan.variant, plan.settings


class NextAttempt(Value, frozen=True):
    """What follows a failure: another attempt after `wait_s`, with this micro batch where it is another one.

    `retry` counts those after failures that pass, of `retries`.
    """

    wait_s: float = 0.0
    micro_batch: int | None = None
    retry: int = 0
    retries: int = 0

    @property
    def text(self) -> str:
        """How the run is tried again, for who can end the command."""
        return self.when if self.micro_batch is not None else f"{self.when}; Ctrl-C ends the command"

    @property
    def when(self) -> str:
        """How the run is tried again."""
        if self.micro_batch is not None:
            return f"tried again with micro batch {self.micro_batch} (--oom-fallback)"
        wait = f"{self.wait_s:.3g}" if self.wait_s < 100 else f"{self.wait_s:,.0f}"
        return f"tried again in {wait} s (retry {self.retry} of {self.retries})"


def next_attempt(
    policy: RetryPolicy,
    plan: RunPlan,
    result: Result,
    earlier: Sequence[FailedAttempt] = (),
    chance: Callable[[], float] = random.random,
) -> NextAttempt | None:
    """Return what follows a run's result after the attempts before it; None where the result stands.

    `chance` returns a number from 0 to 1, by which a wait is up to a quarter longer.
    """
    if result.status is not Status.FAILURE or result.cause in _DECIDED or plan.blocked is not None:
        return None
    if result.code == Cause.GPU_MEMORY.value and policy.oom_fallback:
        micro_batch = smaller(plan)
        return NextAttempt(micro_batch=micro_batch) if micro_batch is not None else None
    retried = sum(1 for attempt in earlier if attempt.cause in TRANSIENT)
    if result.code in TRANSIENT and retried < policy.retries:
        wait_s = policy.pause_s(retried) * (1 + _SPREAD * chance())
        return NextAttempt(wait_s=wait_s, retry=retried + 1, retries=policy.retries)
    return None


def _micro_batch(plan: RunPlan) -> int | None:
    return plan.variant.micro_batch if plan.variant is not None else None


def smaller(plan: RunPlan) -> int | None:
    """Return the next smaller micro batch of a plan, half of its own; None where there is none that madlite sets."""
    micro_batch = _micro_batch(plan) if not plan.own_script else None
    return micro_batch // 2 if micro_batch is not None and micro_batch > 1 else None


def smaller_plans(run: PlannedRun, plugins: Plugins, largest: int | None = None) -> Iterator[PlannedRun]:
    """Yield a run with each smaller micro batch that its backend can train with, the largest first."""
    micro_batch = (smaller(run.plan) or 0) if largest is None else largest
    while micro_batch:
        if (again := _planned_with(run, micro_batch, plugins)) is not None:
            yield again
        micro_batch //= 2


def _planned_with(run: PlannedRun, micro_batch: int, plugins: Plugins) -> PlannedRun | None:
    try:
        again = run.with_micro_batch(micro_batch)
        if again is None or again.plan.blocked is not None:
            return None
        return None if any(finding.fatal for finding in find_findings(again, plugins)) else again
    except MadliteError:  # there is no run of this size: of the next smaller one there may be
        return None


class Standing(NamedTuple):
    """A failed attempt that is followed by another one: its result, which is on the disk, and its locked folder.

    Without a folder it has its row.
    """

    result: Result
    variant: Variant | None
    folder: RunFolder | None = None


class Attempts:
    """The attempts of one run of a batch, which has `run_id` as it was planned, the first one's.

    `failed` is the attempt that is set aside, if one is.
    """

    def __init__(
        self,
        run_id: str,
        policy: RetryPolicy,
        plugins: Plugins,
        before: Standing | None = None,
        micro_batches: MicroBatches | None = None,
    ) -> None:
        """Begin after the attempts of earlier commands, the last of which is `before` the first one."""
        self.run_id, self._policy, self._plugins = run_id, policy, plugins
        self._earlier = () if before is None else attempts_with(before.result, before.variant)
        is_over = before is not None and before.folder is None and before.result.cause is not Cause.INTERRUPTED
        self._retried_before = len(self._earlier) if is_over else 0  # by an earlier command
        self.failed = before if before is not None and before.folder is not None else None
        self._known = micro_batches
        self._planned: RunPlan | None = None  # as the run was planned
        self._of_another: FailedAttempt | None = None  # a run like this one, whose micro batch did not fit

    def first(self, run: PlannedRun) -> PlannedRun:
        """Return the run as it is tried first: with the micro batch that fits, where the command knows that."""
        self._planned = run.plan
        if self.failed is not None and self.failed.folder is not None:
            self.failed.folder.note(RunEntry(at=now(), next=run.plan.id))
        again = None
        if self._earlier:
            of_memory = self._earlier if self._policy.oom_fallback else ()
            sizes = [before.micro_batch for before in of_memory if before.cause == Cause.GPU_MEMORY.value]
            again = self._smaller(run, (sizes[-1] or 0) // 2) if sizes else None
        elif self._known is not None and (found := self._known.get(_sizes_of(run.plan))) is not None:
            again = _planned_with(run, found[0], self._plugins)
            self._of_another = found[1] if again is not None else None
        return run if again is None else _in_place_of(run, again, run.plan.id)

    def attempt_of(self, run: PlannedRun) -> Attempt | None:
        """Return which attempt a run is, and what came before it; None of one that is tried once."""
        if not self._policy.is_active and not self._earlier:
            return None
        return Attempt(
            number=1 + len(self._earlier),
            retries=self._policy.retries,
            earlier=self._earlier,
            micro_batch=self._fallback(run.plan),
        )

    def checkpointed(self, run: PlannedRun) -> Path | None:
        """Return the folder of the attempt whose checkpoint this one goes on from, if it has one; None of the first.

        A training of another micro batch or with other settings does not go on from it, nor one from weights that may
        be NaN.
        """
        last = self._earlier[-1] if self._earlier else None
        if last is None or last.cause in _BEGIN_ANEW:
            return None
        folder = run.plan.folder.parent / last.run
        is_same = (before := read_plan(folder)) is not None and _trained(before) == _trained(run.plan)
        return folder if is_same else None

    def annotated(self, run: PlannedRun, result: Result, steps: Steps) -> Result:
        """Return the result of an attempt with what came before it; `steps` are those of its own log."""
        attempt = self.attempt_of(run)
        if attempt is None:
            return result
        findings = (*result.findings, *self._findings(run.plan), *self._parts(steps))
        return replace(result, attempt=attempt, findings=findings)

    def _parts(self, steps: Steps) -> Iterator[str]:
        """Yield which attempts did the steps before the first one of this log, which went on from their checkpoint."""
        if steps.begin > 1 and self._earlier:
            before = ", ".join(f"{each.run} [{each.cause}]" for each in self._earlier)
            yield f"steps 1 to {steps.begin - 1} were trained by {before}"

    def _fallback(self, plan: RunPlan) -> int | None:
        """Return the micro batch of an attempt; None where it is the planned one."""
        ran, planned = (_micro_batch(each) for each in (plan, self._planned or plan))
        return None if ran == planned else ran

    def _findings(self, plan: RunPlan) -> list[str]:
        failed = ", ".join(f"{attempt.run} [{attempt.cause}]" for attempt in self._earlier)
        texts = [f"attempt {1 + len(self._earlier)}, after {failed}"] if failed else []
        before = () if self._of_another is None else (self._of_another,)
        too_large = [attempt for attempt in (*before, *self._earlier) if attempt.cause == Cause.GPU_MEMORY.value]
        if too_large and plan.variant is not None:
            sizes = ", ".join(str(attempt.micro_batch) for attempt in too_large)
            which = f" (run {before[0].run})" if before else ""
            texts.append(f"micro batch {sizes} did not fit{which}, ran with {plan.variant.micro_batch}")
        return texts

    def next(self, run: PlannedRun, result: Result) -> tuple[PlannedRun, NextAttempt] | None:
        """Return the attempt that follows, as it is planned, and when; None where this one stands."""
        found = next_attempt(self._policy, run.plan, result, self._earlier[self._retried_before :])
        if found is None or self._policy.elsewhere:
            return None
        again = run if found.micro_batch is None else self._smaller(run, found.micro_batch)
        if again is None:
            return None
        is_warm_up = run.plan.study is not None and run.plan.study.warm_up
        run_id = new_run_id(f"warm-up {run.plan.card.name}" if is_warm_up else run.plan.card.name)
        planned = _in_place_of(run, again, run_id, was_begun="run" in result.durations_s)
        return planned, replace(found, micro_batch=None if found.micro_batch is None else _micro_batch(planned.plan))

    def _smaller(self, run: PlannedRun, micro_batch: int) -> PlannedRun | None:
        """Return the run with the next smaller micro batch that its backend can train with."""
        return next(smaller_plans(run, self._plugins, micro_batch), None)

    def set_aside(self, plan: RunPlan, result: Result, folder: RunFolder, following: PlannedRun) -> None:
        """Set a failed attempt aside whose result file is written; the one before it has its record by now."""
        failed = _failed_attempt(result, plan.variant)
        self._earlier = (*self._earlier, failed)
        self.failed = Standing(result, plan.variant, folder)
        folder.note(RunEntry(at=now(), next=following.plan.id))
        other = following.plan.variant
        known = self._known
        if known is not None and other is not None and other.micro_batch and other.micro_batch != failed.micro_batch:
            known[_sizes_of(self._planned or plan)] = (other.micro_batch, failed)


def attempts_with(result: Result, variant: Variant | None) -> tuple[FailedAttempt, ...]:
    """Return the attempts of a run up to one that failed, for the next one."""
    return (*(result.attempt.earlier if result.attempt is not None else ()), _failed_attempt(result, variant))


def attempt_after(before: Standing | None) -> Attempt | None:
    """Return which attempt follows a failed one; None where it is the first."""
    earlier = attempts_with(before.result, before.variant) if before is not None else ()
    return Attempt(number=1 + len(earlier), earlier=earlier) if earlier else None


def _failed_attempt(result: Result, variant: Variant | None) -> FailedAttempt:
    return FailedAttempt(run=result.plan_id, cause=result.code, micro_batch=variant.micro_batch if variant else None)


def _in_place_of(run: PlannedRun, again: PlannedRun, run_id: str, *, was_begun: bool = False) -> PlannedRun:
    """Return an attempt in the batch and the study of the one before, under an id of its own.

    Caches that were empty for a workload that began are what it left.
    """
    plan = copied(again, run_id)
    study = run.plan.study
    if study is not None and study.caches == "cold" and was_begun:
        study = replace(study, caches="warm")
    moved = replace(plan.plan, batch=run.plan.batch, study=study, writes_row=run.plan.writes_row)
    if again is not run:
        moved = with_caches_of(moved, run.plan)
    return replace(plan, plan=moved)


def exit_code(results: Iterable[Result]) -> ExitCode:
    """Return 3 where a run failed, 2 where every failure is a failed build, else 0."""
    causes = [result.cause for result in results if result.status is Status.FAILURE]
    if not causes:
        return ExitCode.OK
    return ExitCode.BUILD_FAILED if all(cause is Cause.BUILD for cause in causes) else ExitCode.RUN_FAILED
