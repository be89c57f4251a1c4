"""`madlite run --each-node`: the same benchmark on every node of a cluster by itself, and which nodes to leave out.

A node is left out that is slow among the others (`measure/steps.py`: below their median by more than a floor and by
more than 3.5 robust deviations), or of which no run succeeded where the runs of more than half of the nodes did.  Both
take `FEWEST` nodes: of three the two others of each one decide, and a second slow node would move their median halfway.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median

from msgspec.structs import replace

from madlite.measure.steps import error_of_median, slow_of
from madlite.model import Study
from madlite.plan.submission import PlannedRun
from madlite.run.from_plan import copied
from madlite.store.folder import new_run_id
from madlite.study.summary import NODE, Sample, SeriesSummary, StudySummary, counts_text, grouped, summarise
from madlite.text import align, counted, figure, percent

EACH_NODE = "each-node"
"""The kind of the study."""
FEWEST = 4  # nodes


def node_of(runs: Study | SeriesSummary) -> str:
    """Return the node that runs are bound to; "" for none."""
    return str(runs.varied.get(NODE, ""))


def plan_nodes(planned: Iterable[PlannedRun], nodes: Sequence[str]) -> list[PlannedRun]:
    """Return each run once for every node, as those of a study that has no id yet; one that must not start comes once.

    Those of a sweep are so at each of its points.
    """
    found: list[PlannedRun] = []
    for run in planned:
        point = run.plan.study.varied if run.plan.study is not None else {}
        for node in nodes if run.plan.blocked is None else ("",):
            made = copied(run, new_run_id(run.plan.card.name)) if node else run
            varied = {**point, NODE: node}
            study = Study(id="", kind=EACH_NODE, varied=varied, series=len(found) + 1, index=1, count=1)
            found.append(replace(made, plan=replace(made.plan, study=study)))
    return found


def summarise_nodes(study_id: str, samples: Iterable[Sample]) -> StudySummary:
    """Return what each node's runs came to, the best of each card first."""
    whole = summarise(study_id, EACH_NODE, samples)
    groups = [sorted(group, key=_rank) for group in grouped(whole.series).values()]
    reasons: dict[str, str] = {}
    for group in groups:
        reasons = {**_left_out(group), **reasons}
    return replace(whole, series=tuple(series for group in groups for series in group), leave_out=reasons)


def _rank(series: SeriesSummary) -> tuple[bool, float, str]:
    metric = series.headline
    if metric is None:
        return True, 0.0, node_of(series)
    return False, metric.median if metric.lower_is_better else -metric.median, node_of(series)


def _left_out(group: Sequence[SeriesSummary]) -> dict[str, str]:
    """Return the nodes of one table to leave out, each with why."""
    metrics = {node_of(series): series.headline for series in group if series.headline is not None}
    if len(group) < FEWEST or 2 * len(metrics) <= len(group):
        return {}
    first = next(iter(metrics.values()))
    numbers = {node: (metric.median, error_of_median(metric.values)) for node, metric in metrics.items()}
    unit, lower = first.label or first.metric, first.lower_is_better
    slow = slow_of(numbers, unit, lower_is_better=lower) if len(numbers) >= FEWEST else {}
    failed = (series for series in group if series.failed and not series.succeeded)
    return {**slow, **{node_of(series): f"failed: {', '.join(series.failed)}" for series in failed}}


def nodes_lines(summary: StudySummary) -> Iterator[str]:
    """Yield a table of each card, variant, image and point, and the nodes to leave out."""
    yield f"{summary.kind} {summary.id}"
    for name, group in grouped(summary.series).items():
        metric = next((series.headline for series in group if series.headline is not None), None)
        what = (*name, f"({metric.label or metric.metric})" if metric is not None else "")
        yield f"  {' · '.join(filter(None, what))}"
        yield from (f"    {line}" for line in _table(group, summary.leave_out))
        if len(group) < FEWEST:
            yield f"    {counted(len(group), 'node')}: none is named as slow of fewer than {FEWEST}"
    if summary.leave_out:
        yield f"  to leave out: --exclude {','.join(summary.leave_out)}"


def _table(group: Sequence[SeriesSummary], reasons: Mapping[str, str]) -> Iterator[str]:
    medians = [series.headline.median for series in group if series.headline is not None]
    usual = median(medians) if medians else 0.0
    rows = [("node", "number", "of the median", "runs")]
    for series in group:
        metric = series.headline
        share = metric.median / usual if metric is not None and usual else None
        number = figure(metric.median if metric is not None else None, "-")
        rows.append((node_of(series), number, percent(share, "-"), counts_text(series)))
    for row, line in zip(rows, align(rows, (1, 2)), strict=True):
        yield f"{line}  <- {reasons[row[0]]}" if row[0] in reasons else line
