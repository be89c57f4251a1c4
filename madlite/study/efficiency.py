"""How a number scales with GPUs or nodes: per GPU, in total, speedup and efficiency, from the runs of a scaling study.

Weak scaling keeps the micro batch of each GPU, so that the work grows with the GPUs; strong scaling keeps the global
batch.  Base is the smallest number of GPUs of which a run succeeded.  With v(n) the throughput per GPU of n GPUs, the
median of their runs, speedup is n·v(n) ÷ base·v(base) and efficiency v(n) ÷ v(base), the speedup as a part of the ideal
one.  Their interval, which two runs of each number are needed for, is `ratio_interval`'s.  On nodes without GPUs each
node counts as one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from statistics import median
from typing import Final, Literal

from msgspec.structs import replace

from madlite.measure.statistics import Interval, ratio_interval
from madlite.model import Metric, NodeUse, Status, Value
from madlite.study.summary import CONFIDENCE, Sample
from madlite.text import align

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
        count, name = (point.nodes, "node") if self.over == "nodes" else (point.gpus, "GPU")
        return f"{count} {name}{'s' if count != 1 else ''}"

    @property
    def base_point(self) -> ScalingPoint | None:
        """The point of which efficiency is 1."""
        return next((one for one in self.points if self.base and one.size == self.base and one.per_gpu), None)


def scalings_of(samples: Iterable[Sample]) -> tuple[Scaling, ...]:
    """Return what the runs of a scaling study come to, one of each card, variant and image, in the order of the runs.

    Samples for which neither a number of GPUs nor one of nodes was set are none of its.
    """
    groups: dict[tuple[str, ...], list[Sample]] = {}
    for one in samples:
        if {GPUS, NODES} & one.study.varied.keys():
            groups.setdefault(_identity(one), []).append(one)
    return tuple(_scaling(group) for group in groups.values())


def gpus_of(sample: Sample) -> int:
    """Return how many GPUs a run was to have, over all nodes; 0 on CPUs."""
    return int(sample.study.varied.get(GPUS, sample.gpus_per_node)) * _nodes(sample)


def _nodes(sample: Sample) -> int:
    return int(sample.study.varied.get(NODES, sample.nodes))


def _size(sample: Sample) -> int:
    return gpus_of(sample) or _nodes(sample)


def _identity(one: Sample) -> tuple[str, ...]:
    variant = one.variant
    of_variant = (variant.model, variant.mode, variant.precision, str(variant.seq_len)) if variant else ()
    return (one.card, one.image, *of_variant)


def _scaling(samples: Sequence[Sample]) -> Scaling:
    first, kind = samples[0], _kind(samples)
    metrics = [metric for one in samples if (metric := _headline(one)) is not None]
    name, unit = (metrics[0].metric, metrics[0].unit) if metrics else ("", "")
    by_gpus: dict[tuple[int, int], list[Sample]] = {}
    for one in samples:
        by_gpus.setdefault((gpus_of(one), _nodes(one)), []).append(one)
    points = [_point(*key, by_gpus[key], name, kind) for key in sorted(by_gpus)]
    base = next((one for one in points if one.per_gpu), None)
    return Scaling(
        card=first.card,
        mode=first.variant.mode if first.variant else "",
        precision=first.variant.precision if first.variant else "",
        image=first.image,
        kind=kind,
        metric=name,
        unit=unit,
        base=base.size if base else 0,
        points=tuple(_against(base, one, metrics, kind) for one in points) if base else tuple(points),
        over="nodes" if NODES in first.study.varied else "gpus",
    )


def _kind(samples: Sequence[Sample]) -> Literal["weak", "strong", ""]:
    if len({_size(one) for one in samples}) < 2:
        return ""
    batches = {one.variant.global_batch if one.variant else None for one in samples}
    return "strong" if len(batches) == 1 and None not in batches else "weak"


def _headline(one: Sample) -> Metric | None:
    return one.result.headline if one.result is not None else None


def _point(gpus: int, nodes: int, samples: Sequence[Sample], name: str, kind: str) -> ScalingPoint:
    found = [metric for one in samples if (metric := _headline(one)) is not None and metric.metric == name]
    failed = [one.result.code for one in samples if one.result is not None and one.result.status is Status.FAILURE]
    point = ScalingPoint(
        gpus=gpus,
        nodes=nodes,
        requested=samples[0].study.count or len(samples),
        succeeded=sum(1 for one in samples if one.result is not None and one.result.status is Status.SUCCESS),
        failed=dict(Counter(failed)),
        per_node=tuple(_per_node(samples)),
    )
    values = tuple(metric.value for metric in found if metric.value is not None)
    if not values:
        return point
    per_gpu = median(_per_gpu(found[0], values, point.size, kind))
    return replace(point, values=values, figure=median(values), per_gpu=per_gpu, total=point.size * per_gpu)


def _per_node(samples: Iterable[Sample]) -> Iterator[NodeFigure]:
    """Yield what the runs tell of each node, by its name: a job may have had others than the one before."""
    found: dict[str, list[NodeUse]] = {}
    for one in samples:
        for node in one.result.nodes if one.result is not None else ():
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


def _against(base: ScalingPoint, one: ScalingPoint, metrics: Sequence[Metric], kind: str) -> ScalingPoint:
    """Return a point with its speedup and efficiency against the base."""
    if not one.per_gpu or not base.per_gpu:
        return one
    efficiency = one.per_gpu / base.per_gpu
    of_base, of_this = (_per_gpu(metrics[0], each.values, each.size, kind) for each in (base, one))
    return replace(
        one,
        speedup=efficiency * one.size / base.size,
        efficiency=efficiency,
        interval=None if one.size == base.size else ratio_interval(of_base, of_this, CONFIDENCE),
    )


# As text.

_WIDE = 40  # characters of the longest bar


def scaling_lines(one: Scaling, width: int = _WIDE) -> Iterator[str]:
    """Yield the table of a scaling and the plot of its efficiency as lines."""
    what = filter(None, (one.card, one.mode, one.precision, one.image))
    yield f"{' · '.join(what)}  ({one.kind + ' scaling' if one.kind else 'one point'}, {_metric(one)})"
    rows = [SCALING_HEADS, *(scaling_cells(point) for point in one.points)]
    yield from (f"  {line}" for line in align(rows, range(len(SCALING_HEADS))))
    if one.base_point is not None and one.points[0].size != one.base:
        against, first = one.count_text(one.base_point), one.count_text(one.points[0])
        yield f"  efficiency is against {against}: no run of {first} succeeded"
    if len(one.points) > 1 and one.base:
        yield from _plot(one, width)
    for point in one.points:
        yield from (f"  {line}" for line in node_lines(point))


_NAMED = 8  # nodes, of more the range


def node_lines(point: ScalingPoint) -> Iterator[str]:
    """Yield what the nodes of a point reported, and each that is slow."""
    for field, unit in (("speed", ""), ("clock_mhz", " MHz")):
        told = [(one.name, value) for one in point.per_node if (value := getattr(one, field)) is not None]
        if not told:
            continue
        values = [value for _, value in told]
        if len(told) > _NAMED:
            text = f"{_figure(min(values))} to {_figure(max(values))}, median {_figure(median(values))}"
        else:
            text = ", ".join(f"{name} {_figure(value)}" for name, value in told)
        yield f"{point.nodes} nodes, each one's {'number' if field == 'speed' else 'GPU clock'}: {text}{unit}"
    yield from (f"  {one.name} is slow: {one.slow}" for one in point.per_node if one.slow)


def _metric(one: Scaling) -> str:
    return f"{one.metric}, median of the runs" if one.metric else "no run succeeded"


SCALING_HEADS = ("GPUs", "nodes", "runs", "number", "per GPU", "total", "speedup", "efficiency", "95 % interval")
"""The heads of the columns of `scaling_cells`."""


def scaling_cells(one: ScalingPoint) -> tuple[str, ...]:
    """Return a point as the cells of a table."""
    causes = ", ".join(f"{count} {cause}" for cause, count in one.failed.items())
    runs = f"{one.succeeded} of {one.requested}" + (f" ({causes})" if causes else "")
    between = f"{100 * one.interval.low:.1f} to {100 * one.interval.high:.1f} %" if one.interval else "-"
    numbers = (_figure(value) for value in (one.figure, one.per_gpu, one.total))
    return (
        str(one.gpus),
        str(one.nodes),
        runs,
        *numbers,
        "-" if one.speedup is None else f"{one.speedup:.2f}x",
        "-" if one.efficiency is None else f"{100 * one.efficiency:.1f} %",
        between,
    )


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:,.6g}"


def _plot(scaling: Scaling, width: int) -> Iterator[str]:
    """Yield a bar of each point's efficiency; `|` is where it is ideal."""
    points = scaling.points
    highest = max(1.0, *(one.efficiency or 0.0 for one in points))
    ideal = round(width / highest)
    names = [scaling.count_text(one) for one in points]
    wide = max(len(name.split()[0]) for name in names)
    for one, name in zip(points, names, strict=True):
        length = round(width * (one.efficiency or 0.0) / highest)
        bar = "".join("#" if at < length else "|" if at == ideal - 1 else " " for at in range(width))
        said = "no run succeeded" if one.efficiency is None else f"{100 * one.efficiency:.1f} %"
        count, unit = name.split()
        yield f"  {count:>{wide}} {unit:<{5 if scaling.over == 'nodes' else 4}}  {bar}  {said}"
