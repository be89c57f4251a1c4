"""`madlite scaling`: a training on several numbers of GPUs or nodes, and how its number scales with them.

Each number is an ordinary run with its row.  Weak scaling keeps the micro batch of each GPU, so that the work grows
with the GPUs; strong scaling keeps the global batch.  Base is the smallest number of GPUs of which a run succeeded.
With v(n) the throughput per GPU of n GPUs, the median of their runs, speedup is n·v(n) ÷ base·v(base) and efficiency
v(n) ÷ v(base), the speedup as a part of the ideal one.  Their interval, which two runs of each number are needed for,
is `ratio_interval`'s.  On nodes without GPUs each node counts as one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from statistics import median
from typing import Final, Literal, NamedTuple

from msgspec.structs import replace

from madlite.errors import UsageProblem
from madlite.measure.statistics import Interval, ratio_interval
from madlite.model import Cause, Metric, NodeUse, Scalar, Study, Value
from madlite.plan.submission import PlannedRun
from madlite.study.engine import PlanWith
from madlite.study.summary import CONFIDENCE, Sample, summarise_series
from madlite.text import align, counted, figure, percent

SCALING = "scaling"
"""The kind of the study that has no statistics of series but these figures."""
PAGE = "scaling.html"
_BATCH = "global_batch"
GPUS: Final = "n_gpus"
NODES: Final = "nnodes"
"""What varies in the runs of a scaling study, by the names of `--set`; with both, `n_gpus` is of each node."""
_PER_GPU = ("per_gpu", "/s/gpu", "/gpu")  # in the name or unit of a metric that is of one GPU


class NodeFigure(Value, frozen=True):
    """One node over the runs of a point: medians of what its lines and its GPUs told, None where they do not tell.

    `slow` is why it was slower than the others in one of the runs, the last that says so.
    """

    name: str
    runs: int = 0
    speed: float | None = None
    clock_mhz: float | None = None
    slow: str = ""


class ScalingPoint(Value, frozen=True):
    """One number of GPUs: how its runs ended, and what they came to; None where no run, or none of the base, did.

    `gpus` are those of all nodes, 0 on CPUs.  `figure` is the median of the runs' numbers as they report them,
    `per_gpu` and `total` are throughputs.
    """

    gpus: int
    nodes: int = 1
    requested: int = 1
    succeeded: int = 0
    failed: dict[str, int] = {}  # cause → runs
    values: tuple[float, ...] = ()
    figure: float | None = None
    per_gpu: float | None = None
    total: float | None = None
    speedup: float | None = None
    efficiency: float | None = None
    interval: Interval | None = None  # of the efficiency
    per_node: tuple[NodeFigure, ...] = ()  # of a point of several nodes, where runs tell of them

    @property
    def size(self) -> int:
        """By how many the work is done: GPUs, else nodes."""
        return self.gpus or self.nodes


class Scaling(Value, frozen=True):
    """One card, variant and image over the numbers of GPUs or nodes (`over`).

    `base` is the `size` of the point of which efficiency is 1, 0 without any.  `kind` is "" of one point, which cannot
    tell.
    """

    card: str
    mode: str
    precision: str
    image: str
    kind: Literal["weak", "strong", ""]
    metric: str
    unit: str
    base: int
    points: tuple[ScalingPoint, ...]
    confidence: float = CONFIDENCE
    over: Literal["gpus", "nodes"] = "gpus"

    def count_text(self, point: ScalingPoint) -> str:
        """Return how many GPUs or nodes a point has, as text."""
        return counted(point.nodes, "node") if self.over == "nodes" else counted(point.gpus, "GPU")

    @property
    def base_point(self) -> ScalingPoint | None:
        """The point of which efficiency is 1."""
        return next((point for point in self.points if self.base and point.size == self.base and point.per_gpu), None)


class ScalingSummary(Value, frozen=True):
    """What a study came to."""

    id: str
    kind: str
    scalings: tuple[Scaling, ...]


def scalings_of(samples: Iterable[Sample]) -> tuple[Scaling, ...]:
    """Return what the runs of a scaling study come to, one of each card, variant and image, in the order of the runs.

    Samples for which neither a number of GPUs nor one of nodes was set are none of its.
    """
    groups: dict[tuple[str, ...], list[Sample]] = {}
    for sample in samples:
        if {GPUS, NODES} & sample.study.varied.keys():
            groups.setdefault(_identity(sample), []).append(sample)
    return tuple(_scaling(group) for group in groups.values())


def gpus_of(sample: Sample) -> int:
    """Return how many GPUs a run was to have, over all nodes; 0 on CPUs."""
    return int(sample.study.varied.get(GPUS, sample.gpus_per_node)) * _nodes(sample)


def _nodes(sample: Sample) -> int:
    return int(sample.study.varied.get(NODES, sample.nodes))


def _size(sample: Sample) -> int:
    return gpus_of(sample) or _nodes(sample)


def _identity(sample: Sample) -> tuple[str, ...]:
    variant = sample.variant
    of_variant = (variant.model, variant.mode, variant.precision, str(variant.seq_len)) if variant else ()
    return (sample.card, sample.image, *of_variant)


def _scaling(samples: Sequence[Sample]) -> Scaling:
    first, kind = samples[0], _kind(samples)
    results = [sample.result for sample in samples if sample.result is not None]
    metric = next((result.headline for result in results if result.headline is not None), None)
    by_gpus: dict[tuple[int, int], list[Sample]] = {}
    for sample in samples:
        by_gpus.setdefault((gpus_of(sample), _nodes(sample)), []).append(sample)
    points = [_point(*key, by_gpus[key], metric, kind) for key in sorted(by_gpus)]
    base = next((point for point in points if point.per_gpu), None)
    return Scaling(
        card=first.card,
        mode=first.variant.mode if first.variant else "",
        precision=first.variant.precision if first.variant else "",
        image=first.image,
        kind=kind,
        metric=metric.metric if metric is not None else "",
        unit=metric.unit if metric is not None else "",
        base=base.size if base else 0,
        points=tuple(_against(base, point, metric, kind) for point in points) if base and metric else tuple(points),
        over="nodes" if NODES in first.study.varied else "gpus",
    )


def _kind(samples: Sequence[Sample]) -> Literal["weak", "strong", ""]:
    if len({_size(sample) for sample in samples}) < 2:
        return ""
    batches = {sample.variant.global_batch if sample.variant else None for sample in samples}
    return "strong" if len(batches) == 1 and None not in batches else "weak"


def _point(gpus: int, nodes: int, samples: Sequence[Sample], metric: Metric | None, kind: str) -> ScalingPoint:
    series = summarise_series(0, samples, samples[0].study.count or len(samples))
    point = ScalingPoint(
        gpus=gpus,
        nodes=nodes,
        requested=series.requested,
        succeeded=series.succeeded,
        failed=series.failed,
        per_node=tuple(_per_node(samples)),
    )
    found = next((each for each in series.metrics if metric is not None and each.metric == metric.metric), None)
    if found is None or metric is None:
        return point
    per_gpu = median(_per_gpu(metric, found.values, point.size, kind))
    return replace(point, values=found.values, figure=found.median, per_gpu=per_gpu, total=point.size * per_gpu)


def _per_node(samples: Iterable[Sample]) -> Iterator[NodeFigure]:
    """Yield what the runs tell of each node, by its name: a job may have had others than the one before."""
    found: dict[str, list[NodeUse]] = {}
    for sample in samples:
        for node in sample.result.nodes if sample.result is not None else ():
            if node.speed is not None or node.clock_mhz is not None:
                found.setdefault(node.name or f"node {node.node}", []).append(node)
    for name, nodes in found.items():
        yield NodeFigure(
            name=name,
            runs=len(nodes),
            speed=_median(node.speed for node in nodes),
            clock_mhz=_median(node.clock_mhz for node in nodes),
            slow=next((node.slow for node in reversed(nodes) if node.slow), ""),
        )


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _per_gpu(metric: Metric, values: Sequence[float], gpus: int, kind: str) -> list[float]:
    """Return throughputs of one GPU, in whatever unit: what is no throughput is a time, of which less is better.

    A throughput that does not say that it is of one GPU is that of all of them.
    """
    if metric.lower_is_better:
        return [1 / value / (gpus if kind == "strong" else 1) for value in values if value > 0]
    text = f"{metric.metric} {metric.unit}".casefold()
    return list(values) if any(word in text for word in _PER_GPU) else [value / gpus for value in values]


def _against(base: ScalingPoint, point: ScalingPoint, metric: Metric, kind: str) -> ScalingPoint:
    """Return a point with its speedup and efficiency against the base."""
    if not point.per_gpu or not base.per_gpu:
        return point
    efficiency = point.per_gpu / base.per_gpu
    of_base, of_this = (_per_gpu(metric, each.values, each.size, kind) for each in (base, point))
    interval = None if point.size == base.size else ratio_interval(of_base, of_this, CONFIDENCE)
    return replace(point, speedup=efficiency * point.size / base.size, efficiency=efficiency, interval=interval)


# As text.


def scaling_lines(scaling: Scaling) -> Iterator[str]:
    """Yield the table of a scaling as lines, and what its nodes reported."""
    what = filter(None, (scaling.card, scaling.mode, scaling.precision, scaling.image))
    yield f"{' · '.join(what)}  ({scaling.kind + ' scaling' if scaling.kind else 'one point'}, {_metric(scaling)})"
    rows = [SCALING_HEADS, *(scaling_cells(point) for point in scaling.points)]
    yield from (f"  {line}" for line in align(rows, range(len(SCALING_HEADS))))
    if scaling.base_point is not None and scaling.points[0].size != scaling.base:
        against, first = scaling.count_text(scaling.base_point), scaling.count_text(scaling.points[0])
        yield f"  efficiency is against {against}: no run of {first} succeeded"
    for point in scaling.points:
        yield from (f"  {line}" for line in node_lines(point))


_NAMED = 8  # nodes, of more the range


def node_lines(point: ScalingPoint) -> Iterator[str]:
    """Yield what the nodes of a point reported, and each that is slow."""
    for field, unit in (("speed", ""), ("clock_mhz", " MHz")):
        told = [(node.name, value) for node in point.per_node if (value := getattr(node, field)) is not None]
        if not told:
            continue
        values = [value for _, value in told]
        if len(told) > _NAMED:
            text = f"{figure(min(values))} to {figure(max(values))}, median {figure(median(values))}"
        else:
            text = ", ".join(f"{name} {figure(value)}" for name, value in told)
        yield f"{point.nodes} nodes, each one's {'number' if field == 'speed' else 'GPU clock'}: {text}{unit}"
    yield from (f"  {node.name} is slow: {node.slow}" for node in point.per_node if node.slow)


def _metric(scaling: Scaling) -> str:
    return f"{scaling.metric}, median of the runs" if scaling.metric else "no run succeeded"


SCALING_HEADS = ("GPUs", "nodes", "runs", "number", "per GPU", "total", "speedup", "efficiency", "95 % interval")
"""The heads of the columns of `scaling_cells`."""


def scaling_cells(point: ScalingPoint) -> tuple[str, ...]:
    """Return a point as the cells of a table."""
    causes = ", ".join(f"{count} {cause}" for cause, count in point.failed.items())
    runs = f"{point.succeeded} of {point.requested}" + (f" ({causes})" if causes else "")
    numbers = (figure(value, "-") for value in (point.figure, point.per_gpu, point.total))
    speedup = "-" if point.speedup is None else f"{point.speedup:.2f}x"
    between = f"{100 * point.interval.low:.1f} to {100 * point.interval.high:.1f} %" if point.interval else "-"
    return (str(point.gpus), str(point.nodes), runs, *numbers, speedup, percent(point.efficiency, "-"), between)


# The runs.

Axis = Literal["n_gpus", "nnodes"]
"""What a study varies: the GPUs of each node, or the nodes."""
_OPTIONS = {GPUS: ("--gpus", "GPUs"), NODES: ("--nodes", "nodes")}


def plan_points(
    counts: Sequence[int], plan: PlanWith, *, strong: bool, over: Axis = GPUS, on_cluster: bool = False
) -> list[PlannedRun]:
    """Return a run of each card, variant and image on each number of GPUs, or of nodes; their study has no id yet.

    Weak scaling leaves each GPU its work: a global batch that the plan names grows with the GPUs, from that of the
    number of GPUs that the plan has by itself.  Strong scaling keeps the global batch, that of the plan or else of its
    micro batch on the largest number of GPUs.

    Raises:
        UsageProblem: there are not so many GPUs or nodes, or a batch cannot be divided among them.
    """
    own = list(plan({}))
    made: dict[tuple[tuple[str, Scalar], ...], Sequence[PlannedRun]] = {}
    points: list[PlannedRun] = []
    for count in counts:
        for at, run in enumerate(own):
            values = _values(run, count, max(counts), over, strong=strong)
            key = tuple(values.items())
            if key not in made:
                made[key] = plan(values)
            member = _member(made[key], at, len(own), count, over, on_cluster=on_cluster)
            study = Study(id="", kind=SCALING, varied=values, series=len(points) + 1, index=1, count=1)
            points.append(replace(member, plan=replace(member.plan, study=study)))
    return points


def check_nodes(counts: Sequence[int], there: int, where: str) -> None:
    """Refuse more nodes than there are.

    Raises:
        UsageProblem: the largest number is above `there`, which is what `where` has.
    """
    if max(counts) > there:
        fitting = [count for count in counts if count <= there] or [2**at for at in range(there.bit_length())]
        what = f"--nodes {max(counts)}: {where} has {counted(there, 'node')}"
        raise UsageProblem(what, f"--nodes {','.join(map(str, fitting))}")


def _values(run: PlannedRun, count: int, largest: int, over: Axis, *, strong: bool) -> dict[str, Scalar]:
    """Return what is set for a run on so many GPUs, or nodes."""
    variant, card, place = run.plan.variant, run.plan.card.name, run.plan.place
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
    each = micro * (_ranks(run) if over == NODES else 1)
    whole = batch or each * largest
    if whole % (each * count):
        text = f"--strong: {card}: global batch {whole} is no multiple of micro batch {each} × {count} {what}"
        raise UsageProblem(text, f"--set {_BATCH}={each * largest * max(1, whole // (each * largest))}")
    return {over: count, _BATCH: whole}


def _ranks(run: PlannedRun) -> int:
    """Return how many ranks each node of a plan has."""
    ranks = run.plan.settings.get("cpu_ranks") or run.plan.settings.get("nproc_per_node") or 1
    return run.plan.place.gpus_per_node or (int(ranks) if str(ranks).isdecimal() else 1)


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
    if over == GPUS and plan.traits.local and not plan.machine.gpus:
        hint = f"--dry-run --machine {count}xMI300X plans for a machine that has them"
        raise UsageProblem(f"--gpus {count}: {plan.machine.words} has none", hint)
    if over == NODES and (plan.traits.local or plan.place.nodes != count):
        place = "one node" if on_cluster else "this machine"
        text = f"--nodes {count}: {plan.card.name} runs on {place} alone (runtime {plan.runtime})"
        leave = "leave --runtime out: the cluster decides how a run is on several nodes"
        raise UsageProblem(text, leave if on_cluster else "salloc -N4 madlite scaling …, or --cluster NAME")
    return plans[at]


# The page.


class PlotPoint(NamedTuple):
    """A point of a plot with the ends of its interval, what would be ideal, and what is written beside it."""

    label: str
    text: str
    value: float
    low: float
    high: float
    ideal: float


class Plot(NamedTuple):
    """One plot from 0 to `highest`: its points side by side, and the marks of its upright axis as (value, text)."""

    title: str
    points: Sequence[PlotPoint]
    highest: float
    marks: Sequence[tuple[float, str]]


def render_page(study_id: str, scalings: Sequence[Scaling]) -> str:
    """Return the page: one HTML file that needs no other, without a script."""
    from madlite.reports.page.render import rendered

    sections = [
        {
            "scaling": scaling,
            "heads": SCALING_HEADS,
            "rows": [scaling_cells(point) for point in scaling.points],
            "nodes": [line.strip() for point in scaling.points for line in node_lines(point)],
            "plots": scaling_plots(scaling) if scaling.base else (),
        }
        for scaling in scalings
    ]
    return rendered("scaling.html.j2", study=study_id, sections=sections)


def scaling_plots(scaling: Scaling) -> tuple[Plot, Plot]:
    """Return the efficiency over GPUs or nodes, and the speedup beside the ideal one: their number ÷ the base's."""
    efficiency, speedup = [], []
    for point in scaling.points:
        if point.efficiency is None or point.speedup is None:
            continue
        label, part, times = scaling.count_text(point), point.efficiency, point.speedup
        low, high = (max(0.0, point.interval.low), point.interval.high) if point.interval else (part, part)
        text, ideal = percent(part), point.size / scaling.base
        efficiency.append(PlotPoint(label=label, text=text, value=part, low=low, high=high, ideal=1.0))
        text = f"{times:.2f}x"
        speedup.append(PlotPoint(label=label, text=text, value=times, low=times, high=times, ideal=ideal))
    marks = tuple((part, f"{100 * part:.0f} %") for part in (0.0, 0.25, 0.5, 0.75, 1.0))
    top = 1.05 * max([1.0, *(max(point.value, point.ideal) for point in speedup)])
    against = f" against {scaling.count_text(scaling.base_point)}" if scaling.base_point is not None else ""
    return (
        Plot("Efficiency", efficiency, 1.05 * max([1.0, *(point.high for point in efficiency)]), marks),
        Plot(f"Speedup{against}", speedup, top, tuple((part * top, f"{part * top:.2f}x") for part in (0.0, 0.5, 1.0))),
    )
