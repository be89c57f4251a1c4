"""What a tuning came to: its table, the page with a plot of throughput over memory, and the recipe file."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from string import ascii_uppercase

from msgspec.structs import replace

from madlite.measure.memory import sequences_per_step
from madlite.measure.statistics import Interval
from madlite.model import RunPlan, Scalar, Value
from madlite.plan.recipe_file import recipe_text
from madlite.store.batches import study_path
from madlite.study.tune_models import KIND, Point, Seen, Space, Trial, Tuning, point_text
from madlite.study.tune_search import FEWEST_RUNS, LEVELS, gain_interval, ranked
from madlite.text import align, change, counted, duration, figure

PAGE, RECIPE = "tune.html", "recipe.toml"


class TunedPoint(Value, frozen=True):
    """One configuration: its mean throughput (of full runs where there are any), its peak memory and its outcome.

    `ratio` is its throughput ÷ that of the default, the middle of its `interval` over full runs (None of too few).
    """

    text: str
    varied: dict[str, Scalar]
    outcome: str
    speed: float | None = None
    ratio: float | None = None
    interval: Interval | None = None
    memory_gib: float | None = None
    global_batch: int | None = None
    short: int = 0
    full: int = 0
    reason: str = ""


class TuneReport(Value, frozen=True):
    """The outcome of a study: its points, the fastest first, and the best against the default.

    `confirmed` says whether the whole interval of the best is above 1; that is None where the default failed.
    """

    id: str
    card: str
    backend: str
    metric: str
    unit: str
    points: tuple[TunedPoint, ...]
    best: TunedPoint | None
    default: TunedPoint | None
    confirmed: bool = False
    why: str = ""
    memory_gib: float | None = None
    runs: int = 0
    spent_s: float = 0.0
    kind: str = KIND


def make_report(study_id: str, tuning: Tuning, trials: Sequence[Trial], why: str, lost_s: float) -> TuneReport:
    """Return what the trials of a study came to, and why it stopped; `lost_s` went into runs that tell nothing."""
    space, plan = tuning.space, tuning.default.plan
    seen = Seen(space, trials)
    points = {point: _tuned(tuning, point, seen) for point in dict.fromkeys(trial.point for trial in trials)}
    best = _chosen(seen) if space.default in seen.ok else None
    headline = plan.result_rule.headline
    chosen = points.get(best) if best is not None else None
    interval = chosen.interval if chosen is not None else None
    return TuneReport(
        id=study_id,
        card=plan.card.name,
        backend=plan.backend,
        metric=plan.result_rule.headline_metric or headline.name,
        unit=headline.unit,
        points=tuple(
            points[point] for point in sorted(points, key=lambda point: (point != best, -(points[point].speed or 0)))
        ),
        best=chosen,
        default=points.get(space.default),
        confirmed=interval is not None and interval.low > 1,
        why=why,
        memory_gib=space.memory_gib,
        runs=sum(1 for trial in trials if trial.status != "refused"),
        spent_s=sum(trial.duration_s for trial in trials) + lost_s,
    )


def _ratio(seen: Seen, point: Point, interval: Interval | None) -> float | None:
    """Return throughput of a point ÷ that of the default; of logarithms, as the interval is, where there is one."""
    if interval is not None:
        return math.sqrt(interval.low * interval.high)
    both = seen.ok.get(point), seen.ok.get(seen.space.default)
    return both[0] / both[1] if both[0] and both[1] else None


def _chosen(seen: Seen) -> Point:
    """Return the best point: of those with full runs beside the default, where there are any."""
    default = seen.space.default
    full = [point for point in seen.ok if point != default and seen.full(point)]
    return ranked(seen, [*full, default] if full else seen.ok)[0]


def _tuned(tuning: Tuning, point: Point, seen: Seen) -> TunedPoint:
    space = tuning.space
    trials = [trial for trial in seen.trials if trial.point == point]
    good = [trial for trial in trials if trial.status == "ok"]
    bad = next((trial for trial in trials if trial.status != "ok"), None)
    told = bad or next((trial for trial in good if trial.reason), None)
    peaks = [trial.memory_gib for trial in trials if trial.memory_gib is not None]
    interval = gain_interval(seen, point) if point != space.default else None
    return TunedPoint(
        text=point_text(space, point),
        varied=space.varied(point),
        outcome=bad.status.replace("_", " ") if bad is not None else "suspect" if told is not None else "ok",
        speed=seen.ok.get(point),
        ratio=_ratio(seen, point, interval),
        interval=interval,
        memory_gib=max(peaks, default=None),
        global_batch=_global_batch(tuning.default.plan, space, point),
        short=sum(1 for trial in good if not trial.full),
        full=sum(1 for trial in good if trial.full),
        reason=told.reason if told is not None else "",
    )


def _global_batch(plan: RunPlan, space: Space, point: Point) -> int | None:
    plan = replace(plan, settings={**plan.settings, **space.varied(point)})
    if plan.variant is None or not point.batch:
        return sequences_per_step(plan)
    return sequences_per_step(replace(plan, variant=replace(plan.variant, micro_batch=point.batch)))


# In words.

_WHY = {
    "default_failed": "stopped, the default failed",
    "default_best": "stopped, nothing else was faster or promised to be",
    "confirmed": "stopped, the gain is confirmed by full runs",
    "undecided": "stopped, further full runs would not tell the best one from the default",
    "budget": "stopped, the rest of the budget is too little for another run",
    "machine": "stopped, the last run was ended by what is not its configuration's",
    "interrupted": "interrupted",
}
_HEADS = ("configuration", "throughput", "against default", "memory", "global batch", "runs", "outcome")


def table_cells(report: TuneReport) -> Iterator[tuple[str, ...]]:
    """Yield the heads of the table, and each point, the fastest first."""
    yield _HEADS
    base = report.default.speed if report.default is not None else None
    for tuned_point in report.points:
        runs = [f"{n} {kind}" for n, kind in ((tuned_point.full, "full"), (tuned_point.short, "short")) if n]
        yield (
            tuned_point.text,
            figure(tuned_point.speed, "-"),
            change(tuned_point.speed / base - 1 if tuned_point.speed and base else None, "-"),
            "-" if tuned_point.memory_gib is None else f"{tuned_point.memory_gib:.1f} GiB",
            "-" if tuned_point.global_batch is None else str(tuned_point.global_batch),
            ", ".join(runs) or "-",
            tuned_point.outcome,
        )


def table_lines(report: TuneReport) -> Iterator[str]:
    """Yield the table as lines, and why points did not run."""
    unit = f" ({report.unit})" if report.unit else ""
    yield f"tune {report.id}: {report.card}, backend {report.backend}, {report.metric}{unit}"
    yield from (f"  {line}" for line in align([*table_cells(report)], range(1, len(_HEADS))))
    yield from _reasons(report)


def report_lines(report: TuneReport) -> Iterator[str]:
    """Yield all of it: the table, and what is the fastest."""
    yield from table_lines(report)
    yield from conclusion_lines(report)
    if report.best is not None:
        yield f"  {_recipe_command(report)}"


def _recipe_command(report: TuneReport) -> str:
    """Return the command that runs the best configuration."""
    return f"madlite run --recipe-file {study_path(Path(), report.id) / RECIPE}"


def _reasons(report: TuneReport) -> Iterator[str]:
    """Yield why points did not run, failed, or have a doubtful number."""
    for tuned_point in report.points:
        if tuned_point.outcome not in ("ok", "out of memory"):
            outcome = "was not run" if tuned_point.outcome == "refused" else tuned_point.outcome
            yield f"  {tuned_point.text} {outcome}: {tuned_point.reason}"


def conclusion_lines(report: TuneReport) -> Iterator[str]:
    """Yield what is the fastest, how sure that is, and what else it changes."""
    best, default = report.best, report.default
    yield f"  {counted(report.runs, 'run')} in {duration(report.spent_s)}: {_WHY.get(report.why, report.why)}"
    if best is None or default is None or best.ratio is None:
        if default is not None and report.why == "default_failed":
            yield f"  the default itself failed ({default.outcome}: {default.reason}): there is nothing to compare with"
    elif best.varied:
        yield from _gain_lines(report, best, default)
    elif len(report.points) > 1:
        yield "  the default is the fastest of what was tried"
    else:
        yield f"  nothing but the default was tried: a comparison takes {FEWEST_RUNS} runs or more"
    if report.why in ("budget", "interrupted", "machine"):
        yield f"  the same command with --resume={report.id} goes on, and --minutes or --runs gives it more"


def _gain_lines(report: TuneReport, best: TunedPoint, default: TunedPoint) -> Iterator[str]:
    """Yield what the best point gains over the default; before it the best one that keeps the global batch."""
    if best.global_batch == default.global_batch:
        yield f"  fastest: {best.text}: {_gain(report, best)}"
    else:
        batch = default.global_batch
        kept = max(
            (other for other in report.points if other.global_batch == batch), key=lambda other: other.speed or 0
        )
        yield f"  fastest with the default's global batch of {batch}: {kept.text}: {_gain(report, kept)}"
        yield f"  fastest with another one, of {best.global_batch}: {best.text}: {_gain(report, best)}"
        yield "  another global batch is another benchmark where that counts; --keep-global-batch keeps the default's"
    for point in report.points:
        if point.speed and best.speed and point != best and point.speed >= best.speed and not point.full:
            yield f"  as fast or faster in a short run, and not confirmed: {point.text}"


def _gain(report: TuneReport, point: TunedPoint) -> str:
    """Return what a point gains over the default, and how sure that is."""
    default, interval = report.default, point.interval
    if default is None or point.ratio is None:
        return change(None, "-")
    gain = change(point.ratio - 1)
    if point == default:
        return gain
    if interval is None:
        return gain + (", not told from noise" if point.full else ", not confirmed by a full run")
    pairs = min(point.full, default.full)
    between = f"{change(interval.low - 1)} to {change(interval.high - 1)}"
    gain += f" ({100 * LEVELS[pairs]:g} % interval {between}, Student's t, {pairs} full runs each)"
    return gain + ("" if interval.low > 1 else ", not told from noise")


# The page.


def _plotted(report: TuneReport) -> dict[str, TunedPoint]:
    """Return the points of the plot by their letters, the fastest first; the alphabet is as many as a plot can show."""
    measured = (point for point in report.points if point.speed is not None and point.memory_gib is not None)
    return dict(zip(ascii_uppercase, measured, strict=False))


class Span(Value, frozen=True):
    """The range of an axis."""

    low: float
    high: float

    def part(self, value: float) -> float:
        """Return where a value lies, from 0 to 1."""
        return min(1.0, max(0.0, (value - self.low) / (self.high - self.low)))

    def levels(self) -> list[float]:
        """Return some four round numbers to stand along it: multiples of 1, 2, 2.5 or 5 times a power of ten."""
        rough = (self.high - self.low) / 5
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough)
        return [n * step for n in range(math.ceil(self.low / step), math.floor(self.high / step) + 1)]


def _spans(points: Collection[TunedPoint], limit: float | None) -> tuple[Span, Span]:
    memory = [point.memory_gib for point in points if point.memory_gib is not None]
    speeds = [point.speed for point in points if point.speed is not None]
    reach = max(*memory, limit or 0.0)
    margin = 0.08 * (max(speeds) - min(speeds)) or 0.05 * max(speeds)
    return Span(low=0.0, high=reach or 1.0), Span(low=max(0.0, min(speeds) - margin), high=max(speeds) + margin)


def render_page(report: TuneReport, recipe: str) -> str:
    """Return the page: one HTML file that needs no other, without a script; `recipe` is the text of the recipe file."""
    from madlite.reports.page.render import rendered

    points = _plotted(report)
    letters = {point.text: letter for letter, point in points.items()}
    heads, *cells = table_cells(report)
    marks = (letters.get(point.text, "") for point in report.points)
    rows = [(text, mark, *rest) for mark, (text, *rest) in zip(marks, cells, strict=True)]
    return rendered(
        "tune.html.j2",
        report=report,
        heads=(heads[0], "plot" if points else "", *heads[1:]),
        rows=rows,
        points=points,
        spans=_spans(points.values(), report.memory_gib) if points else (),
        reasons=[text.strip() for text in _reasons(report)],
        lines=[text.strip() for text in conclusion_lines(report)],
        recipe=recipe,
        command=_recipe_command(report) if recipe else "",
    )


# The recipe file.


def make_recipe(report: TuneReport, fixed: Mapping[str, Scalar], plan: RunPlan) -> str:
    """Return the best point as a recipe file; `fixed` is what the user set, which it needs to be the same run.

    The variant's mode and precision are written out: they select the run where the tag stands for several.
    """
    best = report.best
    if best is None:
        return ""
    variant = plan.variant
    chosen = {"mode": variant.mode, "precision": variant.precision, "release": variant.release} if variant else {}
    values = {**{key: value for key, value in chosen.items() if value}, **fixed, **best.varied}
    about: dict[str, Scalar] = {
        "study": report.id,
        "device": plan.machine.device,
        "gpus": plan.place.gpus_per_node,
        "metric": report.metric,
        "throughput": best.speed or 0.0,
        "against_default": best.ratio or 0.0,
        "confirmed": report.confirmed,
    }
    if best.global_batch is not None:
        about["global_batch"] = best.global_batch
    return recipe_text(plan.card.name, report.backend, values, about, f"{report.card}, found by madlite tune")
