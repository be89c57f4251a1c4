"""`madlite scaling`: the same training on several numbers of GPUs, each an ordinary run with its row.

The runs of one number, card, variant and image are a series, and come in turns with those of the others.  Caches of
compiled kernels are the user's: a steady window begins after what they save.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from madlite.errors import UsageProblem
from madlite.model import Cause, Scalar, Study, Value
from madlite.run.batch import Batch, BatchSettings
from madlite.run.from_plan import copied
from madlite.run.screen import Planned, RunOutcome, Screen
from madlite.run.stop import Signals
from madlite.secrets import masked_json
from madlite.study.efficiency import GPUS, Scaling, scalings_of
from madlite.study.repeat import later_ids
from madlite.study.scaling_page import render_page
from madlite.study.summary import samples_of
from madlite.workspace.study import SUMMARY, StudyFolder

if TYPE_CHECKING:
    from madlite.backends.loader import Plugins
    from madlite.plan.context import Options
    from madlite.results.batch_journal import BatchJournal

KIND = "scaling"
PAGE = "scaling.html"
_BATCH = "global_batch"

PlanWith = Callable[[Mapping[str, Scalar]], Sequence[Planned]]
"""Plans the runs of a command with more values of `--set`, always as many and in the same order."""


class PlannedPoint(Value, frozen=True):
    """The run of one number of GPUs, and what was set for it."""

    varied: dict[str, Scalar]
    planned: Planned


def plan_points(counts: Sequence[int], plan: PlanWith, *, strong: bool) -> list[PlannedPoint]:
    """Return a run of each card, variant and image on each number of GPUs.

    Weak scaling leaves each GPU its work: a global batch that the plan names grows with the GPUs, from that of the
    number of GPUs that the plan has by itself.  Strong scaling keeps the global batch, that of the plan or else of its
    micro batch on the largest number of GPUs.

    Raises:
        UsageProblem: a number is none, there are not so many GPUs, or a batch cannot be divided among them.
    """
    _check_counts(counts)
    own = list(plan({}))
    _check_machine(counts, own)
    made: dict[tuple[tuple[str, Scalar], ...], Sequence[Planned]] = {}
    points = []
    for count in counts:
        for at, one in enumerate(own):
            values = _values(one, count, max(counts), strong=strong)
            key = tuple(values.items())
            if key not in made:
                made[key] = plan(values)
            points.append(PlannedPoint(varied=values, planned=_member(made[key], at, len(own), count)))
    return points


def _check_counts(counts: Sequence[int]) -> None:
    if not counts:
        raise UsageProblem("scaling without numbers of GPUs", "--gpus 1,2,4,8")
    for at, count in enumerate(counts):
        if count < 1:
            raise UsageProblem(f"--gpus {count} is no number of GPUs", "--gpus 1,2,4,8")
        if count in counts[:at]:
            raise UsageProblem(f"--gpus names {count} twice", "--repeat N runs each number N times")


def _check_machine(counts: Sequence[int], own: Sequence[Planned]) -> None:
    for one in own:
        here = len(one.plan.machine.gpus)
        if one.plan.traits.local and max(counts) > here:
            has = f"{here} of {one.plan.machine.device}" if here else "none"
            hint = f"--gpus {','.join(str(count) for count in counts if count <= here)}" if here >= min(counts) else ""
            raise UsageProblem(f"--gpus {max(counts)}: this machine has {has}", hint)


def _values(one: Planned, count: int, largest: int, *, strong: bool) -> dict[str, Scalar]:
    """Return what is set for a run on so many GPUs."""
    variant, card = one.plan.variant, one.plan.card.name
    batch, own = (variant.global_batch if variant else None), one.plan.place.gpus_per_node
    if not strong:
        if not batch or not own:
            return {GPUS: count}
        if batch * count % own:
            what = f"{card}: global batch {batch} of {own} GPUs has no whole part for {count}"
            raise UsageProblem(what, f"--set {_BATCH}={own * -(-batch // own)}, or --strong to keep it")
        return {GPUS: count, _BATCH: batch * count // own}
    micro = variant.micro_batch if variant else None
    if not micro:
        what = f"--strong: {card} has no micro batch that madlite sets, so that nobody knows its global batch"
        raise UsageProblem(what, "leave --strong out: the work of each GPU is kept")
    whole = batch or micro * largest
    if whole % (micro * count):
        what = f"--strong: {card}: global batch {whole} is no multiple of micro batch {micro} × {count} GPUs"
        raise UsageProblem(what, f"--set {_BATCH}={micro * largest * max(1, whole // (micro * largest))}")
    return {GPUS: count, _BATCH: whole}


def _member(plans: Sequence[Planned], at: int, expected: int, count: int) -> Planned:
    if len(plans) != expected:
        what = f"on {count} GPUs the tag has {len(plans)} runs, by itself {expected}"
        raise UsageProblem(what, "--mode, --precision and --image-release select among them")
    blocked = plans[at].plan.blocked
    if blocked is not None and blocked.cause is Cause.GPUS:
        raise UsageProblem(f"--gpus {count}: {blocked.reason}")
    return plans[at]


def order_runs(points: Sequence[PlannedPoint], study_id: str, times: int) -> tuple[Planned, ...]:
    """Return each point so many `times`, one round of all after the other; one that must not start comes once."""
    ids = later_ids()

    def make(number: int, point: PlannedPoint, index: int) -> Planned:
        one = point.planned
        if index > 1:
            one = copied(one, next(ids)(one.plan.card.name))
        count = 1 if one.plan.blocked is not None else times
        study = Study(id=study_id, kind=KIND, varied=point.varied, series=number, index=index, count=count)
        return replace(one, plan=replace(one.plan, study=study))

    return tuple(
        make(number, point, index)
        for index in range(1, times + 1)
        for number, point in enumerate(points, 1)
        if index == 1 or point.planned.plan.blocked is None
    )


class ScalingOutcome(Value, frozen=True):
    """What a scaling study came to: its runs' outcome, its figures, and what could not be written."""

    runs: RunOutcome
    scalings: tuple[Scaling, ...]
    problems: tuple[str, ...] = ()


def run_scaling(
    runs: Sequence[Planned],
    study_id: str,
    options: Options,
    plugins: Plugins,
    screen: Screen,
    journal: BatchJournal,
    settings: BatchSettings = BatchSettings(),  # noqa: B008 - frozen
) -> ScalingOutcome:
    """Run all of them, whichever fails, and write the figures and the page of the study.

    Raises:
        UsageProblem: the folder of the study cannot be made; nothing has run.
    """
    from madlite.run.one import secrets_for

    folder = _open_folder(options.workspace, study_id)
    problems = []
    try:
        with Signals() as signals:
            batch = Batch(runs, options, plugins, screen, journal=journal, settings=settings)
            outcome = batch.run(signals)
        scalings = scalings_of(samples_of(runs, outcome.results))
        secrets = [text for one in runs for text in secrets_for(one, options.environ)]
        content = {"id": study_id, "kind": KIND, "scalings": scalings}
        problems.append(folder.write(SUMMARY, masked_json(content, secrets)))
        problems.append(folder.write(PAGE, render_page(study_id, scalings)))
    finally:
        problems.append(folder.close())
    return ScalingOutcome(runs=outcome, scalings=scalings, problems=tuple(filter(None, problems)))


def _open_folder(workspace: Path, study_id: str) -> StudyFolder:
    try:
        return StudyFolder.create(workspace, study_id)
    except OSError as error:
        where = error.filename or workspace
        what = f"the folder of the study cannot be made: {error.strerror or error} ({where})"
        raise UsageProblem(what, "run madlite in a folder of yours, on a disk with room") from error
