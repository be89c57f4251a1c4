"""`madlite bisect`: the list, the runs of a bisection, and what it came to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from msgspec.structs import asdict, replace

from madlite.errors import ExitCode, UsageProblem, did_you_mean
from madlite.files import exists, read_text
from madlite.measure.statistics import Interval
from madlite.model import Cause, Metric, Status, Study, Value
from madlite.plan.submission import PlannedRun
from madlite.reports.series import Direction, direction_of
from madlite.run.from_plan import copied
from madlite.store.folder import new_run_id
from madlite.study.bisect import Bisection, Found, Judge, Measurement, NextItem, Standing, change_interval
from madlite.study.engine import Answer, Ask, Strategy
from madlite.study.summary import Sample
from madlite.text import align, change, counted, figure, shortened_middle

KIND = "bisect"
SHAPE = "--between IMAGE,IMAGE,…, --between a.toml,b.toml,…, --between FILE with one a line, or --repository PATH"


class BisectItem(Value, frozen=True):
    """One item of the list: `key` is what it is a value of (`image`, `recipe_file`, `commit`), `note` is for people."""

    key: str
    name: str
    planned: PlannedRun
    note: str = ""

    @property
    def label(self) -> str:
        """The item as people read it."""
        return f"{self.name} {self.note[:60]}".strip()


def read_items(given: Sequence[str], workspace: Path) -> list[str]:
    """Return the items of `--between`, in order: those of a list, or of a file with one a line.

    Raises:
        UsageProblem: they are fewer than two, or one comes twice.
    """
    words = [word.strip() for text in given for word in text.split(",") if word.strip()]
    if len(words) == 1 and not words[0].endswith(".toml") and exists(workspace / words[0]):
        lines = read_text(workspace / words[0], f"--between {words[0]}", given=True).splitlines()
        words = [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]
    if repeated := next((word for at, word in enumerate(words) if word in words[:at]), ""):
        raise UsageProblem(f"--between has '{repeated}' twice", "each item once, in order")
    if len(words) < 2:
        no_file = "" if not words or exists(workspace / words[0]) else ", and no file with a list has that name"
        has = f"only '{words[0]}'{no_file}" if words else "nothing"
        raise UsageProblem(f"--between has {has}: a change lies between two items", SHAPE)
    return words


def from_good_to_bad(names: Sequence[str], good: str, bad: str) -> list[str]:
    """Return the items between two of them, in the order from the good one.

    Raises:
        UsageProblem: one of them is not in the list, or they are the same.
    """
    for option, name in (("--good", good), ("--bad", bad)):
        if name not in names:
            hint = did_you_mean(name, names, most=1) or f"it has: {', '.join(names[:8])}"
            raise UsageProblem(f"{option} {name} is not in the list of --between", hint)
    if good == bad:
        raise UsageProblem(f"--good and --bad are both {good}", "name two items of the list")
    first, last = names.index(good), names.index(bad)
    return list(names[first : last + 1] if first < last else names[last : first + 1][::-1])


class BisectStudy(Strategy):
    """The strategy of a bisection: one run after another, each of the item that tells most."""

    kind = KIND
    machine_causes = frozenset((Cause.DISK, Cause.INODES, Cause.ENGINE))  # whatever image, file or commit is tried

    def __init__(self, study_id: str, items: Sequence[BisectItem], judge: Judge, metric: str) -> None:
        super().__init__(study_id, [item.planned for item in items])
        self._items, self._metric = items, metric
        self._bisection = Bisection([item.name for item in items], judge)

    def ask(self, samples: Sequence[Sample]) -> Ask | None:
        """Return a run of the next item, None where the pair is found.

        Raises:
            UsageProblem: the samples are those of another search.
        """
        try:
            for sample in samples[len(self._bisection.samples) :]:
                self._bisection.add(measurement_of(sample, self._metric))
        except ValueError as error:
            what = f"the records of bisect {self.id} are not those of this search: {error}"
            raise UsageProblem(what, "leave --resume out to begin anew") from error
        upcoming = self._bisection.upcoming
        if upcoming is None:
            return None
        self.planned.append(self._member(upcoming.item))
        return Ask(runs=self.planned[-1:], text=self._next_text(upcoming))

    def summary(self, samples: Sequence[Sample]) -> Answer:
        """Return where the number changed, or how far the search is.

        The exit code is 0 where the pair was found, 3 where an end has no number or the search has not ended, else 5.
        """
        summary, found = summarise_bisection(self.id, self._items, self._bisection), self._bisection.found
        code = ExitCode.OK if found is not None and found.conclusion == "found" else ExitCode.RESULT_CHECK_FAILED
        if found is None or found.conclusion == "end failed":
            code = ExitCode.RUN_FAILED
        return Answer(content=summary, lines=tuple(summary_lines(summary)), exit_code=code)

    def _member(self, number: int) -> PlannedRun:
        item = self._items[number]
        index = 1 + sum(measurement.item == number for measurement in self._bisection.samples)
        study = Study(id=self.id, kind=KIND, varied={item.key: item.name}, series=number + 1, index=index)
        run = copied(item.planned, new_run_id(item.planned.plan.card.name))
        image = run.plan.image
        if image is not None and index > 1:  # what is built without a cache is so once
            run = replace(run, plan=replace(run.plan, image=replace(image, no_cache=False)))
        return replace(run, plan=replace(run.plan, study=study))

    def _next_text(self, upcoming: NextItem) -> str:
        what = {
            "ends": "whether the ends differ",
            "control": "the good one again, by which the others are judged",
            "middle": f"about {counted(upcoming.left, 'item')} to judge",
            "pair": "last good and first bad again, in turns",
        }
        return f"next: {self._items[upcoming.item].label}  ({what[upcoming.purpose]})"


def measurement_of(sample: Sample, metric: str) -> Measurement:
    """Return what a run of an item came to: the metric of a name, or its headline."""
    result, item = sample.result, (sample.study.series or 1) - 1
    if result is None or result.status is not Status.SUCCESS:
        reason = ": ".join(filter(None, (result.code, result.reason))) if result is not None else ""
        return Measurement(item=item, value=None, reason=reason, run=sample.run)
    named = (each for each in result.metrics if each.value is not None and metric in _names_of(each))
    found = next(named, None) if metric else result.headline
    if found is None:
        has = ", ".join(dict.fromkeys(_names_of(each)[-1] for each in result.metrics)) or "no number"
        return Measurement(item=item, value=None, reason=f"no metric '{metric}' among {has}", run=sample.run)
    return Measurement(
        item=item,
        value=float(found.value or 0.0),
        run=sample.run,
        suspect=bool(result.suspect),
        direction=_direction(found),
        metric=f"{found.label} {found.metric}".strip(),
    )


def _names_of(metric: Metric) -> tuple[str, ...]:
    return (metric.metric, metric.label, f"{metric.label} {metric.metric}".strip())


def _direction(metric: Metric) -> Direction:
    return "lower" if metric.lower_is_better else direction_of(metric.metric)


class ItemSummary(Value, frozen=True):
    """One item; `change` and `interval` compare it with the good one, as parts of it: below 0 is worse.

    `suspect` is how many of its numbers are, and count all the same.
    """

    name: str
    note: str
    standing: Standing
    values: tuple[float, ...]
    median: float | None
    change: float | None
    interval: Interval | None
    runs: tuple[str, ...]
    failures: tuple[str, ...]  # why its failed runs failed
    suspect: int = 0


class BisectSummary(Found, frozen=True, kw_only=True):
    """A bisection; `in_turns`: its first pair was not confirmed, and all was judged once more."""

    id: str
    kind: str
    metric: str
    in_turns: bool
    runs: int
    items: tuple[ItemSummary, ...]


def summarise_bisection(study_id: str, items: Sequence[BisectItem], bisection: Bisection) -> BisectSummary:
    """Return what a search came to, or how far it is."""
    return BisectSummary(
        **asdict(bisection.found or Found()),
        id=study_id,
        kind=KIND,
        metric=next((measurement.metric for measurement in bisection.samples if measurement.metric), ""),
        in_turns=bisection.in_turns,
        runs=len(bisection.samples),
        items=tuple(_item(number, item, bisection) for number, item in enumerate(items)),
    )


def _item(number: int, item: BisectItem, bisection: Bisection) -> ItemSummary:
    values = tuple(bisection.values(number))
    samples = [measurement for measurement in bisection.samples if measurement.item == number]
    change = bisection.change(0, number) if values and number and bisection.values(0) else None
    return ItemSummary(
        name=item.name,
        note=item.note,
        standing=bisection.standing.get(number, ""),
        values=values,
        median=median(values) if values else None,
        change=change.change if change is not None else None,
        interval=change_interval(change) if change is not None else None,
        runs=tuple(measurement.run for measurement in samples),
        failures=tuple(dict.fromkeys(measurement.reason for measurement in samples if measurement.value is None)),
        suspect=sum(measurement.suspect for measurement in samples),
    )


# The table, and the pair.


def summary_lines(summary: BisectSummary) -> Iterator[str]:
    """Yield the items that were run, and where the number changed."""
    yield f"bisect {summary.id}: {summary.metric or 'no number'}, {counted(summary.runs, 'run')}"
    rows = [("", "ITEM", "RUNS", "MEDIAN", "CHANGE", "INTERVAL", "STANDS")]
    for number, item in enumerate(summary.items, 1):
        if item.runs:
            name = shortened_middle(f"{item.name} {item.note}".strip(), 60)
            stands = _standing_text(summary, number) + (f", {item.suspect} suspect" if item.suspect else "")
            stands += f": {item.failures[0]}" if item.failures else ""
            row = (figure(item.median, "-"), change(item.change, "-"), _interval_text(item.interval), stands)
            rows.append((str(number), name, str(len(item.runs)), *row))
    if len(rows) > 1:
        yield from (f"  {line}" for line in align(rows))
    if summary.in_turns:
        yield "  the first pair was not confirmed: each item was run once more, in turns with the good one"
    yield f"  {_conclusion(summary)}"


def _standing_text(summary: BisectSummary, number: int) -> str:
    """Return how an item stands; the ends, of which nothing is known before they differ, by what they were given as."""
    standing = summary.items[number - 1].standing or "not decided"
    is_end = number in (1, len(summary.items))
    return f"the {standing} end" if is_end and summary.conclusion not in ("found", "not confirmed") else standing


def _interval_text(interval: Interval | None) -> str:
    return "-" if interval is None else f"[{change(interval.low)}, {change(interval.high)}]"


def _no_change_text(summary: BisectSummary, by: str) -> str:
    good, bad = summary.items[0], summary.items[-1]
    return (
        f"nothing to find: {good.name} (the good end) and {bad.name} (the bad end) do not differ: "
        f"{figure(good.median)} and {figure(bad.median)} by {len(good.values)} and {len(bad.values)} runs, "
        f"change {by}; other ends: --good, --bad; a smaller change: --max-repeats and --fail-on"
    )


def _end_failed_text(summary: BisectSummary) -> str:
    end = "good" if summary.failed == summary.items[0].name else "bad"
    failed = next(item for item in summary.items if item.name == summary.failed)
    why = f" ({failed.failures[0]})" if failed.failures else ""
    see = f"madlite show {failed.runs[-1]} has the cause; " if failed.runs else ""
    return (
        f"{summary.failed} has no number{why}, and it is the {end} end, by which the others are judged: "
        f"{see}--{end} ITEM names another one"
    )


def _conclusion(summary: BisectSummary) -> str:
    if summary.conclusion == "end failed":
        return _end_failed_text(summary)
    by = "" if summary.change is None else f"{change(summary.change)} {_interval_text(summary.interval)}"
    if summary.conclusion == "no change":
        return _no_change_text(summary, by)
    pair = f"last good {summary.last_good}, first bad {summary.first_bad}"
    if summary.conclusion == "found" and summary.candidates:
        names = ", ".join((*summary.candidates, summary.first_bad))
        return (
            f"last good {summary.last_good}; the first bad one is one of: {names} "
            f"({', '.join(summary.candidates)} could not be tested); change {by}"
        )
    texts = {
        "found": f"{pair}: change {by}",
        "not confirmed": f"not confirmed: {pair}, but in turns the change is {by}: the number changes little by "
        "little, or the machine does",
    }
    return texts.get(summary.conclusion, f"not finished: the same command with --resume={summary.id} goes on")
