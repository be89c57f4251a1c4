"""Stored runs → what only they tell of a page: step curves, causes of failures."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from madlite.files import open_plain
from madlite.model import QUANTITIES, Status, Value
from madlite.reports.page.values import Curve, CurvePanel, rounded, thinned
from madlite.reports.runs import StoredRun
from madlite.reports.series import Failure, Series
from madlite.store.folder import STEPS
from madlite.text import shortened

MOST_PANELS = 12
RUNS_OF_PANEL = 3
MOST_POINTS = 600  # of a curve
_MOST_QUANTITIES = 4
_LIMIT_BYTES = 32 << 20  # of a file of steps
_LONGEST = 400  # characters of a reason


def failures_of(runs: Iterable[StoredRun]) -> tuple[Failure, ...]:
    """Return the failed runs with their causes."""
    return tuple(_failure(run) for run in runs if run.is_over and run.record.status is Status.FAILURE)


def _failure(run: StoredRun) -> Failure:
    record = run.record
    return Failure(
        cause=shortened(record.cause, _LONGEST),
        model=record.card,
        device=record.device,
        precision=record.variant.precision if record.variant else "",
        when=run.when,
        run=run.folder.name,
        reason=shortened(record.reason, _LONGEST),
        evidence=shortened(record.evidence or (record.diagnosis.line if record.diagnosis else ""), _LONGEST),
        hint=shortened(record.diagnosis.hint if record.diagnosis else "", _LONGEST),
    )


# Step curves.


class _StepLine(Value, frozen=True):
    """A line of a file of steps, as `store.record.step_lines` writes it."""

    n: int
    rank: int | None = None
    phase: str = ""
    values: dict[str, float | None] = {}


def curve_panels(
    series: Sequence[Series], known: Mapping[str, StoredRun], items: Mapping[tuple[str, ...], int]
) -> tuple[CurvePanel, ...]:
    """Return the step curves of the newest known runs of the series with the newest results."""
    chosen: dict[tuple[str, ...], Series] = {}
    for each in sorted(series, key=lambda series: not is_headline(series, known)):
        ids = tuple(dict.fromkeys(sample.run for sample in each.samples if sample.run in known))[-RUNS_OF_PANEL:]
        if ids and each.key in items:
            chosen.setdefault(ids, each)
    newest = sorted(chosen, key=lambda ids: known[ids[-1]].when, reverse=True)
    panels: list[CurvePanel] = []
    for ids in newest:
        panel = _panel(chosen[ids], [known[name] for name in ids], items[chosen[ids].key])
        panels += [panel] if panel.quantities else []
        if len(panels) == MOST_PANELS:
            break
    return tuple(sorted(panels, key=lambda curve_panel: curve_panel.name))


def is_headline(series: Series, known: Mapping[str, StoredRun]) -> bool:
    """Return whether a series has what its newest run is measured by, as far as that run is known."""
    run = known.get(series.samples[-1].run) if series.samples else None
    return bool(series.values) and (run is None or not run.headline or run.headline.metric == series["metric"])


def _panel(series: Series, runs: Sequence[StoredRun], item: int) -> CurvePanel:
    steps = [read_steps(run.folder) for run in runs]
    speeds = [run.record.window.quantity.label for run in runs if run.record.window is not None]
    names = _drawn(dict.fromkeys(name for step in steps for name in step), speeds[-1] if speeds else "")
    values = {sample.run: sample.value for sample in series.samples}
    return CurvePanel(
        item=item,
        name=shortened(series.name, _LONGEST),
        runs=tuple((run, values.get(run.folder.name)) for run in runs),
        quantities=tuple((shortened(name, 80), tuple(_curves(name, steps))) for name in names),
    )


def curves_of(steps: Mapping[str, Mapping[int, float]]) -> list[tuple[str, Curve]]:
    """Return what is drawn of the steps of a run that is no result, or goes on."""
    return [(shortened(name, 80), curve) for name in _drawn(steps, "") for curve in _curves(name, [steps])]


def _drawn(names: Iterable[str], headline: str) -> list[str]:
    """Return which quantities are drawn: the speed, loss, power, and then what else there is."""
    speeds = [quantity.label for quantity in QUANTITIES.values() if quantity.is_speed or quantity.unit == "s/step"]

    def rank(name: str) -> int:
        is_power = name.casefold().startswith("power") or name in ("W", "watts", "W/GPU")
        kinds = (name == headline, name in speeds, name == "loss", is_power, "GiB" in name or "memory" in name)
        return next((place for place, applies in enumerate(kinds) if applies), len(kinds))

    chosen: dict[int, str] = {}
    for name in sorted(names, key=rank):
        chosen.setdefault(max(0, rank(name) - 1), name)  # of the headline and other speeds one
    return [chosen[kind] for kind in sorted(chosen)][:_MOST_QUANTITIES]


def _curves(name: str, steps: Sequence[Mapping[str, Mapping[int, float]]]) -> Iterator[Curve]:
    """Yield the curve of each run, thinned so that peaks stay."""
    for place, by_name in enumerate(steps):
        if found := by_name.get(name):
            numbers = sorted(found)
            at = thinned([found[n] for n in numbers], MOST_POINTS)
            shown = [numbers[each] for each in at]
            yield Curve(run=place, steps=tuple(shown), values=tuple(rounded(found[n]) for n in shown))


def read_steps(folder: Path) -> dict[str, dict[int, float]]:
    """Return the training steps of a run by quantity and number, those of the first rank that has the quantity.

    A step that was done again, after a restart, counts as it was the last time.  What is no step is left out, and so is
    what a file has beyond its first 32 MiB.
    """
    decoder = msgspec.json.Decoder(_StepLine)
    found: dict[str, dict[int, float]] = {}
    ranks: dict[str, int | None] = {}
    for line in _lines(folder / STEPS):
        with suppress(msgspec.MsgspecError, ValueError):
            step = decoder.decode(line)
            for name, value in step.values.items():
                if value is not None and step.phase != "validate" and ranks.setdefault(name, step.rank) == step.rank:
                    found.setdefault(name, {})[step.n] = value
    return found


def _lines(path: Path) -> list[bytes]:
    try:
        with os.fdopen(open_plain(path, links=False), "rb") as file:
            return file.read(_LIMIT_BYTES).splitlines()
    except OSError:
        return []
