"""`madlite scaling`: the same training on several numbers of GPUs or nodes, each an ordinary run with its row.

The runs of one number, card, variant and image are a series, and come in turns with those of the others.  Caches of
compiled kernels are the user's: a steady window begins after what they save.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from msgspec.structs import replace

from madlite.batch.runner import Batch, BatchSettings
from madlite.errors import UsageProblem
from madlite.model import Cause, Scalar, Study, Value
from madlite.run.from_plan import copied
from madlite.run.screen import PlannedRun, RunOutcome, Screen
from madlite.run.stop import Signals
from madlite.secrets import masked_json
from madlite.store.study import SUMMARY, StudyFolder
from madlite.study.efficiency import (
    GPUS,
    NODES,
    SCALING_HEADS,
    Scaling,
    ScalingPoint,
    node_lines,
    scaling_cells,
    scalings_of,
)
from madlite.study.repeat import later_ids
from madlite.study.summary import SCALING, making_folder, samples_of

if TYPE_CHECKING:
    from madlite.backends.loader import Plugins
    from madlite.plan.context import Options
    from madlite.store.batches import BatchLog


KIND = SCALING
PAGE = "scaling.html"
_BATCH = "global_batch"

PlanWith = Callable[[Mapping[str, Scalar]], Sequence[PlannedRun]]
"""Plans the runs of a command with more values of `--set`, always as many and in the same order."""
Axis = Literal["n_gpus", "nnodes"]
"""What a study varies: the GPUs of each node, or the nodes."""
_OPTIONS = {GPUS: ("--gpus", "GPUs"), NODES: ("--nodes", "nodes")}


class PlannedPoint(Value, frozen=True):
    """The run of one number of GPUs or nodes, and what was set for it."""

    varied: dict[str, Scalar]
    planned: PlannedRun


def plan_points(
    counts: Sequence[int], plan: PlanWith, *, strong: bool, over: Axis = GPUS, on_cluster: bool = False
) -> list[PlannedPoint]:
    """Return a run of each card, variant and image on each number of GPUs, or of nodes.

    Weak scaling leaves each GPU its work: a global batch that the plan names grows with the GPUs, from that of the
    number of GPUs that the plan has by itself.  Strong scaling keeps the global batch, that of the plan or else of its
    micro batch on the largest number of GPUs.

    Raises:
        UsageProblem: a number is none, there are not so many GPUs or nodes, or a batch cannot be divided among them.
    """
    _check_counts(counts, over)
    own = list(plan({}))
    if over == GPUS:
        _check_machine(counts, own)
    made: dict[tuple[tuple[str, Scalar], ...], Sequence[PlannedRun]] = {}
    points = []
    for count in counts:
        for at, one in enumerate(own):
            values = _values(one, count, max(counts), over, strong=strong)
            key = tuple(values.items())
            if key not in made:
                made[key] = plan(values)
            member = _member(made[key], at, len(own), count, over, on_cluster=on_cluster)
            points.append(PlannedPoint(varied=values, planned=member))
    return points


def _check_counts(counts: Sequence[int], over: Axis) -> None:
    option, what = _OPTIONS[over]
    if not counts:
        raise UsageProblem(f"scaling without numbers of {what}", f"{option} 1,2,4,8")
    for at, count in enumerate(counts):
        if count < 1:
            raise UsageProblem(f"{option} {count} is no number of {what}", f"{option} 1,2,4,8")
        if count in counts[:at]:
            raise UsageProblem(f"{option} names {count} twice", "--repeat N runs each number N times")


def check_nodes(counts: Sequence[int], there: int, where: str) -> None:
    """Refuse more nodes than there are.

    Raises:
        UsageProblem: the largest number is above `there`, which is what `where` has.
    """
    if max(counts) > there:
        fitting = [count for count in counts if count <= there] or [2**at for at in range(there.bit_length())]
        has = f"{there} node{'s' if there != 1 else ''}"
        raise UsageProblem(f"--nodes {max(counts)}: {where} has {has}", f"--nodes {','.join(map(str, fitting))}")


def _check_machine(counts: Sequence[int], own: Sequence[PlannedRun]) -> None:
    for one in own:
        here = len(one.plan.machine.gpus)
        if one.plan.traits.local and max(counts) > here:
            has = f"{here} of {one.plan.machine.device}" if here else "none"
            hint = f"--gpus {','.join(str(count) for count in counts if count <= here)}" if here >= min(counts) else ""
            pretend = f"--dry-run --machine {max(counts)}xMI300X plans for a machine that has them"
            raise UsageProblem(f"--gpus {max(counts)}: {one.plan.machine.words} has {has}", hint or pretend)


def _values(one: PlannedRun, count: int, largest: int, over: Axis, *, strong: bool) -> dict[str, Scalar]:
    """Return what is set for a run on so many GPUs, or nodes."""
    variant, card, place = one.plan.variant, one.plan.card.name, one.plan.place
    what = _OPTIONS[over][1]
    batch, own = (variant.global_batch if variant else None), (place.nodes if over == NODES else place.gpus_per_node)
    if not strong:
        if not batch or not own:
            return {over: count}
        if batch * count % own:
            text = f"{card}: global batch {batch} of {own} {what} has no whole part for {count}"
            raise UsageProblem(text, f"--set {_BATCH}={own * -(-batch // own)}, or --strong to keep it")
        return {over: count, _BATCH: batch * count // own}
    micro = variant.micro_batch if variant else None
    if not micro:
        text = f"--strong: {card} has no micro batch that madlite sets, so that nobody knows its global batch"
        raise UsageProblem(text, "leave --strong out: the work of each GPU is kept")
    each = micro * (_ranks(one) if over == NODES else 1)
    whole = batch or each * largest
    if whole % (each * count):
        text = f"--strong: {card}: global batch {whole} is no multiple of micro batch {each} × {count} {what}"
        raise UsageProblem(text, f"--set {_BATCH}={each * largest * max(1, whole // (each * largest))}")
    return {over: count, _BATCH: whole}


def _ranks(one: PlannedRun) -> int:
    """Return how many ranks each node of a plan has."""
    ranks = one.plan.settings.get("cpu_ranks") or one.plan.settings.get("nproc_per_node") or 1
    return one.plan.place.gpus_per_node or (int(ranks) if str(ranks).isdecimal() else 1)


def _member(
    plans: Sequence[PlannedRun], at: int, expected: int, count: int, over: Axis, *, on_cluster: bool
) -> PlannedRun:
    option, what = _OPTIONS[over]
    if len(plans) != expected:
        text = f"on {count} {what} the tag has {len(plans)} runs, by itself {expected}"
        raise UsageProblem(text, "--mode, --precision and --image-release select among them")
    plan = plans[at].plan
    if plan.blocked is not None and plan.blocked.cause is Cause.GPUS:
        raise UsageProblem(f"{option} {count}: {plan.blocked.reason}")
    if over == NODES and (plan.traits.local or plan.place.nodes != count):
        place = "one node" if on_cluster else "this machine"
        text = f"--nodes {count}: {plan.card.name} runs on {place} alone (runtime {plan.runtime})"
        leave = "leave --runtime out: the cluster decides how a run is on several nodes"
        raise UsageProblem(text, leave if on_cluster else "salloc -N4 madlite scaling …, or --cluster NAME")
    return plans[at]


def order_runs(points: Sequence[PlannedPoint], study_id: str, times: int) -> tuple[PlannedRun, ...]:
    """Return each point so many `times`, one round of all after the other; one that must not start comes once."""
    ids = later_ids()

    def make(number: int, point: PlannedPoint, index: int) -> PlannedRun:
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
    runs: Sequence[PlannedRun],
    study_id: str,
    options: Options,
    plugins: Plugins,
    screen: Screen,
    journal: BatchLog,
    settings: BatchSettings = BatchSettings(),  # noqa: B008 - frozen
) -> ScalingOutcome:
    """Run all of them, whichever fails, and write the figures and the page of the study.

    Raises:
        UsageProblem: the folder of the study cannot be made; nothing has run.
    """
    from madlite.run.executor import secrets_for

    with making_folder(study_id, options.workspace):
        folder = StudyFolder.create(options.workspace, study_id)
    problems = []
    try:
        with Signals() as signals:
            batch = Batch(runs, options, plugins, screen, journal=journal, settings=settings)
            outcome = batch.run(signals)
        scalings = scalings_of(samples_of(runs, outcome.results))
        secrets = [text for one in runs for text in secrets_for(one, options.environ)]
        problems += [folder.write(name, text) for name, text in scaling_files(study_id, scalings, secrets).items()]
    finally:
        problems.append(folder.close())
    return ScalingOutcome(runs=outcome, scalings=scalings, problems=tuple(filter(None, problems)))


def scaling_files(study_id: str, scalings: tuple[Scaling, ...], secrets: Sequence[str] = ()) -> dict[str, str]:
    """Return the files of a study by name: its figures and its page."""
    content = {"id": study_id, "kind": KIND, "scalings": scalings}
    return {SUMMARY: masked_json(content, secrets), PAGE: render_page(study_id, scalings)}


# of the drawing, in its own units
_LEFT, _RIGHT, _TOP, _BOTTOM = 60.0, 440.0, 20.0, 230.0


class PlotPoint(Value, frozen=True):
    """A point of a plot: its place, the ends of its interval, and what is written beside it."""

    x: float
    y: float
    low: float
    high: float
    label: str
    text: str


class Plot(Value, frozen=True):
    """One plot: its points, the line of the ideal, and the marks of its upright axis as (place, text)."""

    title: str
    points: tuple[PlotPoint, ...]
    ideal: str
    marks: tuple[tuple[float, str], ...]

    @property
    def line(self) -> str:
        """The points as an SVG polyline has them."""
        return " ".join(f"{one.x:.1f},{one.y:.1f}" for one in self.points)


def render_page(study_id: str, scalings: Sequence[Scaling]) -> str:
    """Return the page: one HTML file that needs no other, without a script."""
    from madlite.reports.page.render import environment

    sections = [
        {
            "scaling": one,
            "heads": SCALING_HEADS,
            "rows": [scaling_cells(point) for point in one.points],
            "nodes": [line.strip() for point in one.points for line in node_lines(point)],
            "plots": (efficiency_plot(one), total_plot(one)) if one.base else (),
        }
        for one in scalings
    ]
    return environment().get_template("scaling.html.j2").render(study=study_id, sections=sections)


def efficiency_plot(one: Scaling) -> Plot:
    """Return the efficiency over GPUs or nodes, from 0 to at least 1."""
    parts = [(point, point.efficiency) for point in one.points if point.efficiency is not None]
    ends = [point.interval.high if point.interval else part for point, part in parts]
    highest = max([1.0, *ends]) * 1.05
    texts = [f"{100 * part:.1f} %" for _, part in parts]
    marks = tuple((_y(part / highest), f"{100 * part:.0f} %") for part in (0.0, 0.25, 0.5, 0.75, 1.0))
    ideal = f"{_LEFT:.1f},{_y(1 / highest):.1f} {_RIGHT:.1f},{_y(1 / highest):.1f}"
    return Plot(title="Efficiency", points=_points(one, parts, highest, texts), ideal=ideal, marks=marks)


def total_plot(one: Scaling) -> Plot:
    """Return the speedup over GPUs or nodes beside the ideal one, which is their number ÷ the base's."""
    parts = [(replace(point, interval=None), point.speedup) for point in one.points if point.speedup is not None]
    highest = max(*(point.size / one.base for point, _ in parts), *(part for _, part in parts), 1.0) * 1.05
    points = _points(one, parts, highest, [f"{part:.2f}x" for _, part in parts])
    heights = [_y(point.size / one.base / highest) for point, _ in parts]
    ideal = " ".join(f"{point.x:.1f},{height:.1f}" for point, height in zip(points, heights, strict=True))
    marks = tuple((_y(part), f"{part * highest:.1f}x") for part in (0.0, 0.5, 1.0))
    against = f" against {one.count_text(one.base_point)}" if one.base_point is not None else ""
    return Plot(title=f"Speedup{against}", points=points, ideal=ideal, marks=marks)


def _points(
    one: Scaling, parts: Sequence[tuple[ScalingPoint, float]], highest: float, texts: Sequence[str]
) -> tuple[PlotPoint, ...]:
    """Return the points of a plot side by side, each with the interval that it has."""
    width, points = (_RIGHT - _LEFT) / len(parts), []
    for at, ((point, part), text) in enumerate(zip(parts, texts, strict=True)):
        low, high = (max(0.0, point.interval.low), point.interval.high) if point.interval else (part, part)
        x, (y, bottom, top) = _LEFT + (at + 0.5) * width, (_y(each / highest) for each in (part, low, high))
        points.append(PlotPoint(x=x, y=y, low=bottom, high=top, label=one.count_text(point), text=text))
    return tuple(points)


def _y(part: float) -> float:
    return _BOTTOM - part * (_BOTTOM - _TOP)
