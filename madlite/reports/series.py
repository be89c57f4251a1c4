"""Results as series and samples: what every comparison, report and page works on.

A series is all that must agree before two numbers can be compared (`series_key`); its samples are runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Literal

from msgspec.structs import replace

from madlite.measure.performance import is_cost, is_throughput, judge_number
from madlite.model import QUANTITIES, Cause, RunPlan, Status, Value
from madlite.reports.series_key import (
    DIMENSIONS,
    FACTS,
    RESULT_COLUMNS,
    agree,
    as_dimensions,
    as_key,
    key_of_row,
    record_dimensions,
    record_facts,
    row_facts,
    row_names,
    series_name,
    unknown_inputs,
)
from madlite.store.record import Record, plan_fields

Direction = Literal["higher", "lower", "neutral"]

_MOST_FACTS = 4  # different values of one fact that a series keeps


class Sample(Value, frozen=True, gc=False):  # millions of them
    """One run's number in a series, or what is known of a run without one, whose `value` is None.

    `run` is its id where its folder is known, `when` its start in UTC, `place` the file and line or the folder,
    `suspect` why it is suspect, `facts` what it ran with, `steady_cv` std ÷ mean of its steady steps, `study` the id of
    the study that it is of.
    """

    value: float | None = None
    run: str = ""
    when: str = ""
    place: str = ""
    suspect: str = ""
    steady_cv: float | None = None
    facts: dict[str, str] = {}
    study: str = ""

    @property
    def sitting(self) -> str:
        """What it shares a level of the machine with: its study's runs, else those of its day; "" where unknown."""
        return self.study or self.when[:10]


class Series(Value, frozen=True):
    """The numbers of runs that can be compared, the oldest first.

    `samples` says more about each of the `values`.  `facts` are the different values of what they ran with, by name.
    `failed` and `skipped` runs have no number.
    """

    key: tuple[str, ...]  # in the order of DIMENSIONS
    values: tuple[float, ...] = ()
    samples: tuple[Sample, ...] = ()
    facts: dict[str, tuple[str, ...]] = {}
    failed: int = 0
    skipped: int = 0
    direction: Direction = "neutral"

    def __getitem__(self, dimension: str) -> str:
        return self.key[DIMENSIONS.index(dimension)]

    @property
    def name(self) -> str:
        """Its dimensions in one line: `llama-3.1-8b bf16 seq 8192 8xMI300X tokens_per_s_per_gpu`."""
        return series_name(as_dimensions(self.key))

    @property
    def sittings(self) -> frozenset[str]:
        """The sittings of its runs; none where that of any is unknown."""
        found = frozenset(sample.sitting for sample in self.samples)
        return found if "" not in found else frozenset()

    @property
    def suspects(self) -> int:
        """How many of the samples are suspect."""
        return sum(bool(sample.suspect) for sample in self.samples)


class Entry(Value, frozen=True, gc=False):
    """One result, whose sample has a number or none, and the key of its series as far as its source has it."""

    key: tuple[str, ...]
    status: str
    sample: Sample = Sample()
    cause: str = ""

    def __getitem__(self, dimension: str) -> str:
        return self.key[DIMENSIONS.index(dimension)]

    @property
    def is_failure(self) -> bool:
        """Whether it has no number, and its run was not skipped."""
        return self.sample.value is None and self.status != Status.SKIPPED.value


class Failure(Value, frozen=True):
    """Failed results with one cause: of a run its id, when and why; of rows without a run how many."""

    cause: str
    model: str
    device: str = ""
    precision: str = ""
    when: str = ""
    run: str = ""
    reason: str = ""
    evidence: str = ""
    hint: str = ""
    count: int = 1

    @classmethod
    def of_key(cls, key: Sequence[str], count: int, cause: str = "") -> Failure:
        """Return so many failed results of a series."""
        known = as_dimensions(key)
        return cls(cause=cause, count=count, **{name: known[name] for name in ("model", "device", "precision")})


def direction_of(metric: str) -> Direction:
    """Return which values of a metric are better, by the quantity that it names or else by its words."""
    for quantity in QUANTITIES.values():
        if metric in (quantity.name, quantity.label):
            return quantity.direction
    if is_cost(metric):
        return "lower"
    return "higher" if is_throughput(metric) or metric.lower() in _MORE_IS_BETTER else "neutral"


_MORE_IS_BETTER = {"mfu", "mfu_percent", "accuracy", "performance"}


def group(entries: Iterable[Entry]) -> tuple[Series, ...]:
    """Return entries as series, in the order in which they first come."""
    found: dict[tuple[str, ...], list[Entry]] = {}
    for entry in entries:
        found.setdefault(entry.key, []).append(entry)
    return tuple(with_failures(_series(key, members) for key, members in found.items()))


def with_failures(found: Iterable[Series]) -> Iterator[Series]:
    """Yield series, those of failures that name no metric counted with the first that has their other dimensions."""
    every = list(found)
    blank = {series.key[:-1]: series for series in every if not series.key[-1]}
    named = [joined(blank.pop(series.key[:-1], None), series) if series.key[-1] else None for series in every]
    yield from (series for series in named if series is not None)
    yield from blank.values()


def joined(first: Series | None, second: Series) -> Series:
    """Return the samples of two series as one, under the second's dimensions."""
    if first is None:
        return second
    return replace(
        second,
        values=first.values + second.values,
        samples=first.samples + second.samples,
        facts=merged_facts(
            {name: text} for series in (first, second) for name in series.facts for text in series.facts[name]
        ),
        failed=first.failed + second.failed,
        skipped=first.skipped + second.skipped,
    )


def joined_by_key(series: Iterable[Series]) -> tuple[Series, ...]:
    """Return series, those of one key as one, in the order in which they first come."""
    found: dict[tuple[str, ...], Series] = {}
    for each in series:
        found[each.key] = joined(found.get(each.key), each)
    return tuple(found.values())


def matches(key: Sequence[str], cells: Mapping[str, str], where: Mapping[str, str]) -> bool:
    """Return whether a result has these dimensions, or these cells or facts: a fact also by the name of its column."""
    own = dict(zip(DIMENSIONS, key, strict=False))
    return all(
        text in (own.get(name), cells.get(name, own.get(name, "")).strip(), cells.get(FACTS.get(name, name)))
        for name, text in where.items()
    )


def _series(key: tuple[str, ...], members: Sequence[Entry]) -> Series:
    samples = tuple(entry.sample for entry in members if entry.sample.value is not None)
    return Series(
        key=key,
        values=values_of(samples),
        samples=samples,
        facts=merged_facts(sample.facts for sample in samples),
        failed=sum(entry.is_failure for entry in members),
        skipped=sum(entry.status == Status.SKIPPED.value for entry in members),
        direction=direction_of(key[-1]),
    )


def values_of(samples: Iterable[Sample]) -> tuple[float, ...]:
    """Return the numbers of samples, of those that have one."""
    return tuple(sample.value for sample in samples if sample.value is not None)


def merged_facts(facts: Iterable[Mapping[str, str]]) -> dict[str, tuple[str, ...]]:
    """Return the different values of each fact, the latest of them where there are many."""
    first: dict[int, Mapping[str, str]] = {}  # thousands of runs of the index share one
    last: dict[int, Mapping[str, str]] = {}
    for own in facts:
        first.setdefault(id(own), own)
        last.pop(id(own), None)
        last[id(own)] = own
    found: dict[str, dict[str, None]] = {name: {} for own in first.values() for name in own}
    for own in last.values():
        for name, text in own.items():
            found[name].pop(text, None)
            found[name][text] = None
    return {name: tuple(values)[-_MOST_FACTS:] for name, values in found.items()}


# Rows of a results file → entries.


def of_row(cells: Mapping[str, str], place: str) -> Entry:
    """Return one row of a results file; `place` names file and line."""
    run, suspect = cells.get("run", ""), cells.get("suspect", "")
    return _result(key_of_row(cells), cells, Sample(place=place, run=run, suspect=suspect, facts=row_facts(cells)))


class RowParser:
    """Reads the rows of a file with these columns as `of_row` does: what is alike in many rows is made once."""

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        self._file, self._columns = f"{path}:", columns
        wanted = {"status", "suspect", "cause", *RESULT_COLUMNS, *FACTS}
        self._alike = itemgetter(*(at for at, name in enumerate(columns) if name in wanted))
        self._number = columns.index("performance")
        self._run = columns.index("run") if "run" in columns else None
        self._known: dict[object, tuple[str, Entry]] = {}

    def __call__(self, texts: Sequence[str], line: int) -> Entry:
        """Return the result of a row."""
        known = self._known.get(alike := self._alike(texts))
        if known is None:
            cells = dict(zip(self._columns, texts, strict=True))
            known = self._known[alike] = _status(cells), of_row({**cells, "performance": ""}, "")
        status, blank = known
        value = _number(status, texts[self._number], blank.key[-1])
        run, place = "" if self._run is None else texts[self._run], f"{self._file}{line}"
        sample = Sample(value=value, run=run, place=place, suspect=blank.sample.suspect, facts=blank.sample.facts)
        return Entry(key=blank.key, status=blank.status if value is None else status, sample=sample, cause=blank.cause)


def _result(key: tuple[str, ...], cells: Mapping[str, str], about: Sample) -> Entry:
    """Return a row as a result; `about` is what is known of its run, without a number."""
    status, cause = _status(cells), cells.get("cause", "").strip()
    value = _number(status, cells.get("performance", ""), key[-1])
    if value is None:
        return Entry(key=key, status=status or Status.FAILURE.value, sample=about, cause=cause)
    return Entry(key=key, status=status, sample=replace(about, value=value), cause=cause)


def _status(cells: Mapping[str, str]) -> str:
    return cells.get("status", "").strip().upper()


def _number(status: str, text: str, metric: str) -> float | None:
    value, cause = judge_number(text.strip(), metric)
    is_none = status in _WITHOUT_NUMBER or value is None or cause is not Cause.NONE or abs(value) > _LARGEST
    return None if is_none else value


_LARGEST = 1e150  # whose square is a number, too: what is larger is no measurement
_WITHOUT_NUMBER = (Status.FAILURE.value, Status.SKIPPED.value)


# Records of runs → entries.


def of_record(
    record: Record, place: str, dimensions: Mapping[str, str] | None = None, sample: Sample | None = None
) -> Iterator[Entry]:
    """Yield the results of one run: one for each of its rows, as they are or would be in perf.csv.

    A warm-up has none, nor a short run of a search, nor an attempt that another one replaced.  `dimensions` and
    `sample` are the record's where a caller has them.
    """
    if record.is_warm_up or record.is_short or record.is_replaced:
        return
    dimensions, sample = dimensions or record_dimensions(record), sample or _record_sample(record, place)
    rows = record.rows.cells if record.rows is not None else _rows_without_file(record)
    for cells in rows:
        yield replace(_recorded_entry(dimensions, cells, sample), cause=record.cause)


def _record_sample(record: Record, place: str) -> Sample:
    return Sample(
        run=record.id,
        when=record.started,
        place=place,
        suspect="; ".join(record.suspect),
        steady_cv=record.window.cv if record.window is not None else None,
        facts=record_facts(record),
        study=record.study.id if record.study is not None else "",
    )


def of_plan_row(plan: RunPlan, cells: Mapping[str, str]) -> Entry:
    """Return a row that a run is about to append."""
    planned = Record(status=Status.FAILURE, **plan_fields(plan))
    return _recorded_entry(record_dimensions(planned, cells), cells, Sample(run=plan.id))


def _recorded_entry(dimensions: Mapping[str, str], cells: Mapping[str, str], sample: Sample) -> Entry:
    return _result(as_key({**dimensions, **row_names(cells)}), cells, sample)


def _rows_without_file(record: Record) -> Iterator[dict[str, str]]:
    """Yield the rows of a run that appended none (`--no-rows`)."""
    for metric in record.metrics:
        model = f"{record.card}_{metric.label}" if metric.label else record.card
        yield {"model": model, "metric": metric.metric, "performance": metric.text, "status": record.status.value}
    if not record.metrics:
        yield {"model": record.card, "status": record.status.value}


# Which series of two sources belong together.


class Pair(Value, frozen=True):
    """A series of the base and one of the new side, with what not both record."""

    base: Series
    new: Series
    unknown: tuple[str, ...] = ()

    @property
    def known(self) -> dict[str, str]:
        """The dimensions of the new side, and of the base what only that has."""
        both = zip(DIMENSIONS, self.base.key, self.new.key, strict=True)
        return {name: new or base for name, base, new in both}


def pair(
    base: Sequence[Series], new: Sequence[Series], across: Sequence[str] = ()
) -> tuple[list[Pair], list[Series], list[Series]]:
    """Return the pairs whose known dimensions agree but for those `across`, and what is left of either side.

    A series with several possible partners gets the one that shares the most known dimensions; where two share equally
    many it gets none: the caller names a filter.  What ran at no point of a study is paired with each point of the
    other side, unless its own side has points of it, too.
    """
    candidates: dict[tuple[str, str], list[Series]] = {}
    ends = [DIMENSIONS.index(name) for name in ("model", "metric")]
    ignored = [DIMENSIONS.index(name) for name in across]
    for series in base:
        candidates.setdefault(_key_ends(series, ends, ignored), []).append(series)
    pairs: list[Pair] = []
    unpaired: list[Series] = []
    with_points = [{_pointless(series) for series in side if series["varied"]} for side in (base, new)]
    for series in new:
        possible = candidates.get(_key_ends(series, ends, ignored), ())
        if "varied" not in across:
            possible = [partner for partner in possible if _is_of_point(partner, series, *with_points)]
        partners = _partners(possible, series, ignored)
        if len(partners) == 1 or (not series["varied"] and len({*map(_pointless, partners)}) == 1):
            pairs += [Pair(base=partner, new=series, unknown=_unknown(partner, series)) for partner in partners]
        else:
            unpaired.append(series)
    paired = {id(pair.base) for pair in pairs}
    left = [series for series in base if id(series) not in paired]
    return _with_failed_runs(pairs, left, unpaired, ignored)


def _pointless(series: Series) -> tuple[str, ...]:
    """Return a series' key without the point of a study that it ran at."""
    return tuple("" if name == "varied" else text for name, text in zip(DIMENSIONS, series.key, strict=True))


def _is_of_point(
    base: Series, new: Series, base_points: set[tuple[str, ...]], new_points: set[tuple[str, ...]]
) -> bool:
    """Return whether both ran at a point of a study or neither, or the side of the one that did not has no points."""
    if bool(base["varied"]) == bool(new["varied"]):
        return True
    return _pointless(new) not in new_points if base["varied"] else _pointless(base) not in base_points


def _with_failed_runs(
    pairs: list[Pair], base: list[Series], new: list[Series], ignored: Sequence[int]
) -> tuple[list[Pair], list[Series], list[Series]]:
    """Return what `pair` does, with runs that failed before they had a metric beside the series they would be of."""
    failed = [series for series in new if not series.key[-1] and not series.values]
    left: list[Series] = []
    used: set[int] = set()
    for series in base:
        partner = next((blank for blank in failed if _agrees(blank.key[:-1], series.key[:-1], ignored)), None)
        if partner is None:
            left.append(series)
            continue
        used.add(id(partner))
        empty = replace(partner, key=(*partner.key[:-1], series.key[-1]), direction=series.direction)
        pairs.append(Pair(base=series, new=empty, unknown=_unknown(series, empty)))
    return pairs, left, [series for series in new if id(series) not in used]


def _key_ends(series: Series, ends: Sequence[int], ignored: Sequence[int]) -> tuple[str, str]:
    """Return model and metric, which every source has."""
    model, metric = ("" if place in ignored else series.key[place] for place in ends)
    return model, metric


def _partners(candidates: Iterable[Series], series: Series, ignored: Sequence[int]) -> list[Series]:
    """Return the candidates that agree with a series, those of them that share the most known dimensions."""
    fitting = [other for other in candidates if _agrees(other.key, series.key, ignored)]
    if same := [other for other in fitting if other.key == series.key]:  # also in what both do not record
        return same
    most = max((_shared(other.key, series.key) for other in fitting), default=0)
    return [other for other in fitting if _shared(other.key, series.key) == most]


def _agrees(key: Sequence[str], other: Sequence[str], ignored: Sequence[int]) -> bool:
    """Return whether no dimension differs that both have."""
    both = enumerate(zip(DIMENSIONS, key, other, strict=False))
    return all(place in ignored or agree(name, a, b) for place, (name, a, b) in both)


def _shared(key: Sequence[str], other: Sequence[str]) -> int:
    return sum(bool(a) and a == b for a, b in zip(key, other, strict=True))


def _unknown(base: Series, new: Series) -> tuple[str, ...]:
    return unknown_inputs((base.key, new.key), (base.facts, new.facts))
