"""Two sides compared: results with results, runs of a command with a baseline, results with published figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median

from msgspec.structs import replace

from madlite.errors import MadliteError, UsageProblem, one_hint
from madlite.model import Reference, RunPlan, StepProfile
from madlite.plan.inputs import RUNS
from madlite.references import unit_of
from madlite.reports.compare import DEFAULTS, Comparison, History, Report, Settings, compare, compare_pair, report_of
from madlite.reports.index import RunIndex, open_index
from madlite.reports.references import Measured, matches_for, of_dimensions, of_record, stated_otherwise
from madlite.reports.runs import open_run
from madlite.reports.selectors import PUBLISHED, Side, of_runs, run_history
from madlite.reports.series import Pair, Series, direction_of, group, of_plan_row, pair
from madlite.reports.series_key import DIMENSIONS, Input, as_dimensions, as_key
from madlite.store.record import Record, read_record
from madlite.text import change, figure


def relative_change(side: Side, plan: RunPlan, cells: Mapping[str, str]) -> str:
    """Return the cell `relative_change` of a row: new ÷ median of the base - 1, in percent, as `-2.91`.

    "" where the base has no such series or several, or the row no number.
    """
    entry = of_plan_row(plan, cells)
    if (value := entry.sample.value) is None:
        return ""
    with_numbers = [series for series in side.series if series.values]
    pairs, _, _ = pair(with_numbers, [Series(key=entry.key, values=(value,))])
    middle = median(pairs[0].base.values) if len(pairs) == 1 else 0.0
    return f"{100 * (value - middle) / abs(middle):.2f}" if middle else ""


def compare_sides(
    base: Side, new: Side, index: RunIndex, settings: Settings = DEFAULTS, *, across: Iterable[str] = ()
) -> Report:
    """Return the comparison of two sides; noise is learned from the other runs of a folder."""
    report = compare(
        base.series,
        new.series,
        labels=(base.label, new.label),
        settings=settings,
        history=run_history(index, (*base.runs, *new.runs)),
        across=across,
        notes=(*base.notes, *new.notes),
    )
    return replace(report, comparisons=tuple(map(_with_steps, report.comparisons)))


_LEAST_MOVED = 0.01  # of a step: a part that moved by less is no difference


def _with_steps(compared: Comparison) -> Comparison:
    """Return a comparison with where a step's time went, where both sides have a profile: the latest of each."""
    base, new = (_profile(side) for side in (compared.pair.base, compared.pair.new))
    if base is None or new is None:
        return compared
    before, after = ({part.name: part.time_s for part in own.parts} for own in (base, new))
    moved = {name: after.get(name, 0.0) - before.get(name, 0.0) for name in {**before, **after}}
    found = [
        Input(f"{name} per step", ((_ms(before.get(name, 0.0)),), (_ms(after.get(name, 0.0)),)), differs=True)
        for name, by_s in sorted(moved.items(), key=lambda item: -abs(item[1]))
        if abs(by_s) > _LEAST_MOVED * base.step_s
    ]
    return replace(compared, differences=(*found, *compared.differences))


def _ms(time_s: float) -> str:
    return f"{figure(1e3 * time_s)} ms"


def _profile(side: Series) -> StepProfile | None:
    return next((record.profile for record in _records(side) if record.profile), None)


def _records(series: Series) -> Iterator[Record]:
    """Yield the records of a series' runs that are there, the newest first."""
    places = (Path(sample.place) for sample in reversed(series.samples) if sample.run)
    yield from (record for place in places if (record := read_record(place)) is not None)


def compare_runs(side: Side, runs: Path, folders: Iterable[Path]) -> Report:
    """Return the comparison of a side with the runs that a command has just done."""
    new = of_runs("this command", (run for run in map(open_run, folders) if run.is_over), {})
    wanted = {(series.key[0], series.key[-1]) for series in new.series}
    like = tuple(series for series in side.series if (series.key[0], series.key[-1]) in wanted)
    with open_index(runs) as index:
        return compare_sides(replace(side, series=like), new, index)


_FEWEST_EARLIER, _MOST_EARLIER = 5, 10  # runs of a series, the newest, that tell what is usual
_CLEAR_FLOORS, _CLEAR_CHANGE = 3.0, 0.05  # noise floors, and part of the median, that a slowdown has to be above


def slowdowns(workspace: Path, ids: Sequence[str]) -> list[str]:
    """Return a line for each series in which runs are clearly worse than the last ones before them on their machine.

    Clearly: all are worse than each of those, none of which is suspect, and the change is above three noise floors and
    5 %.  Of a series that varies by 1 % or less nothing else is, and of others one run in 600 (docs/compare.md).
    """
    runs = workspace / RUNS
    found: list[str] = []
    with suppress(MadliteError, OSError), open_index(runs) as index:
        for new in of_runs("", map(open_run, map(runs.joinpath, ids)), {}).series:
            here = {"machine": name} if (name := next(iter(new.facts.get("machine", ())), "")) else {}
            entries = (entry for run, entry in index.entries({**as_dimensions(new.key), **here}) if run not in ids)
            base = [entry for entry in entries if entry.sample.value is not None and not entry.sample.suspect]
            if new.values and len(base) >= _FEWEST_EARLIER:
                found += _slowdown(Pair(base=group(base[-_MOST_EARLIER:])[0], new=new))
    return found


def _slowdown(found: Pair) -> Iterator[str]:
    base, new, compared = found.base, found.new, compare_pair(found, DEFAULTS, lambda series: ())
    worse = min(new.values) > max(base.values) if new.direction == "lower" else max(new.values) < min(base.values)
    less = (compared.change or 0.0) * (new.direction != "neutral")
    if worse and less < -max(_CLEAR_FLOORS * compared.floor, _CLEAR_CHANGE):
        names = f"madlite show {base.samples[-1].run} {new.samples[-1].run} shows what differs"
        yield f"{new['model']}: {change(less)} against the last {len(base.values)} runs of its series; {names}"


_STATED = ("backend", "micro_batch", "global_batch")  # dimensions in which a figure may differ from a series
_AGREED = ("model", "precision", "seq_len", "device", "nodes", "metric")  # those that always agree where one applies


def compare_published(references: Sequence[Reference], new: Side, *, settings: Settings, history: History) -> Report:
    """Return each series of the new side beside each figure that applies to its newest run.

    Series without one are only on the new side.

    Raises:
        UsageProblem: no figure applies to any series.
    """
    found: list[tuple[Series, Measured, Reference]] = []
    alone: list[Series] = []
    for series in new.series:
        run = _measured(series)
        matches = matches_for(references, series["metric"], run) if series.values else ()
        found += [(series, run, match.reference) for match in matches]
        alone += [] if matches else [series]
    if not found:
        raise _none_applies(new)
    counts = Counter((series.key, reference.source) for series, _, reference in found)
    comparisons = [
        _comparison(series, run, reference, settings, history, alone=counts[series.key, reference.source] == 1)
        for series, run, reference in found
    ]
    notes = dict.fromkeys(_source_note(reference) for _, _, reference in found)
    return report_of(comparisons, (PUBLISHED, new.label), (), alone, (*notes, *new.notes), settings)


def _none_applies(new: Side) -> UsageProblem:
    with_number = [series for series in new.series if series.values]
    if not with_number:
        return UsageProblem(f"{new.label} has no number to compare with published figures", f"madlite show {new.label}")
    unknown = [name for name in ("precision", "seq_len", "device", "nodes") if not with_number[0][name]]
    lacking = f"; not known of {with_number[0].name}: {', '.join(unknown)}" if unknown else ""
    hint = one_hint(
        "madlite compare published --list lists them",
        "model, precision, sequence length, GPU and nodes have to be known and agree",
    )
    return UsageProblem(f"no published figure applies to {new.label}{lacking}", hint)


# What is known of a series.


def _measured(series: Series) -> Measured:
    """Return what is known of its newest run: of that run's record, else the dimensions of the series."""
    record = next(_records(series), None)
    return _of_run(series, record) if record is not None else of_dimensions(as_dimensions(series.key))


def _of_run(series: Series, record: Record) -> Measured:
    """Return what is known of one run; of a script's results of several models, that this one is of none."""
    run, result = of_record(record)
    if record.variant is not None:
        return run
    names = ((f"{record.card}_{metric.label}" if metric.label else record.card, metric) for metric in record.metrics)
    own = [metric for name, metric in names if name == series["model"]]
    return run if own and all(metric in result.metrics for metric in own) else replace(run, model="")


# A series beside a figure.


def _comparison(
    series: Series, run: Measured, reference: Reference, settings: Settings, history: History, *, alone: bool
) -> Comparison:
    """Return a series beside a figure, which is named by its value too where it is not alone of its document."""
    found = Pair(base=_as_series(reference, series), new=series)
    unknown = tuple(name for name in DIMENSIONS if not found.base[name] or not series[name])
    compared = compare_pair(replace(found, unknown=unknown), settings, history, _reason(series))
    source = reference.source if alone else f"{reference.source}: {reference.value:,.6g}"
    differences = (
        Input(name, ((published,), (here,) if here else ()), differs=True)
        for name, published, here in stated_otherwise(reference, run)
    )
    return replace(compared, source=source, differences=tuple(differences))


def _reason(series: Series) -> str:
    doubt = f"; {series.suspects} of {len(series.values)} runs are suspect" if series.suspects else ""
    return f"a published figure has no spread{doubt}"


def _as_series(reference: Reference, series: Series) -> Series:
    """Return a figure as the series that it applies to, with what the document itself states."""
    stated = {name: str(getattr(reference, name) or "") for name in (*_STATED, "mode", "gpus")}
    key = {**{name: series[name] for name in _AGREED}, **stated}
    for name in ("mode", "gpus"):  # stated, they agree, in whatever spelling
        key[name] = series[name] if key[name] else ""
    return Series(key=as_key(key), values=(reference.value,), direction=direction_of(series["metric"]))


def _source_note(reference: Reference) -> str:
    """Return where a figure is from, and with what it was measured."""
    unit = unit_of(reference.metric, reference.unit) or reference.metric
    stated = (reference.date or "undated", reference.release and f"release {reference.release}", reference.url)
    head = f"{reference.source} ({', '.join(filter(None, stated))}): {reference.model} {reference.precision}".rstrip()
    figure = f"{reference.value:,.6g} {unit} on {reference.gpus or ''}{'x' if reference.gpus else ''}{reference.device}"
    return ": ".join(filter(None, (f"{head} {figure}", reference.condition)))
