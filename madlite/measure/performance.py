"""MAD's result line: `performance: <number> <metric>`.

Grammar: the union of madengine 1 and 2, first match wins, never across a line's end; thousands separators are read as
what they are (`2,872` is 2872), and a decimal comma makes no number (madlite/text.py): a line with one is kept,
for it doubts the others.  Fallback: Hugging Face Trainer's `train_samples_per_second`, of several trainings the last
one's; a Trainer separates no groups.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from madlite.files import read_given
from madlite.measure.lines import Block
from madlite.model import Cause, Metric, Quantity, Status, Value
from madlite.text import (
    ANY_NUMERAL,
    NUMERAL,
    foreign_number_at,
    has_decimal_comma,
    is_foreign,
    may_be_foreign,
    unlimited_fields,
    without_groups,
)

# How much is kept of what a workload, a card or a results file says: all of these limits, and what they do to a text.
#
# docs/perf-csv.md lists them.  None of them is near to what a benchmark prints.

CELL_BYTES = 4096  # of UTF-8, of a cell and of a sentence
LINE_BYTES = 1024  # of a log's line that is kept as evidence
NAME_CHARACTERS = 200  # of a column, a label, a metric
MOST_DIGITS = 400  # of a number; a float holds 17, and the longest that is finite has 309
MOST_RESULTS = 10_000  # a row of perf.csv each
MOST_COLUMNS = 1000  # of a results file: as many as the header of perf.csv can have
MOST_CELLS_READ, MOST_CELLS_KEPT = 4_000_000, 250_000  # of a results file
CUT = "…"  # what a text that was cut ends with


def shortened(text: str, most_bytes: int = CELL_BYTES) -> str:
    """Return a text of so many bytes of UTF-8 at most; one that was cut ends with `CUT`."""
    if not is_long(text, most_bytes):
        return text
    data = text.encode("utf-8", "surrogatepass")
    room = most_bytes - len(CUT.encode())
    while room and data[room] & 0xC0 == 0x80:  # in the middle of a character
        room -= 1
    return data[:room].decode("utf-8", "surrogatepass") + CUT


def is_long(text: str, most_bytes: int = CELL_BYTES) -> bool:
    """Return whether a text has more bytes of UTF-8 than that."""
    return 4 * len(text) > most_bytes and len(text.encode("utf-8", "surrogatepass")) > most_bytes


def short_name(text: str) -> str:
    """Return a name of `NAME_CHARACTERS` at most; one that was cut ends with `CUT`."""
    return text if len(text) <= NAME_CHARACTERS else text[: NAME_CHARACTERS - len(CUT)] + CUT


def is_too_long(number: str) -> bool:
    """Return whether a number has more digits than are taken: programs trip over such a one, each in its own way."""
    return len(number) > MOST_DIGITS and sum(map(str.isdigit, number)) > MOST_DIGITS


TOO_LONG = f"a number of more than {MOST_DIGITS} digits is none"


def several(words: list[str], most: int = 5) -> str:
    """Return the first few of many words, each short, and how many more there are."""
    more = f" and {len(words) - most} more" if len(words) > most else ""
    return ", ".join(shortened(word, 60) for word in words[:most]) + more


_RESULT = re.compile(
    rf"performance:\s*(?P<number>{NUMERAL}|[-+]?(?:nan|inf(?:inity)?)\b)"
    r"(?:(?P<unit>/?[A-Za-z][^\s,]{0,200})?,?(?:\s+(?P<metric>[^\s,]+)|\s*$)|(?P<blank>\s*$))",
    re.IGNORECASE,
)
_NUMERAL = re.compile(NUMERAL)
_PLAIN = re.compile(r"[-+]?(?:(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?|nan|inf|infinity)", re.IGNORECASE | re.ASCII)
_LONG = 40  # characters of a number beyond which nobody compares
_SCALE = frozenset("kKMGTPB")  # right behind a number it multiplies it
_MARK = "performance:"
TRAINER_MARK = "train_samples_per_second"
TRAINER_METRIC = "samples_per_second"
_TRAINER = re.compile(rf"{TRAINER_MARK}[\"'\s:=]+(?P<number>{ANY_NUMERAL})")
_AT = re.compile(rf"{_MARK}[\s\"']*")
_UNIT = re.compile(r"[\s\"']*(?P<metric>[^\s,\"']{0,200})")
_THROUGHPUT = re.compile(
    r"per_?s(ec|econd)?(_|$|/)|/s(ec|econd)?(/|$|_)|throughput|tok(en)?s?_per|tps|fps|qps|flop|samples_per|images_per"
    r"|bandwidth|ops_per",
    re.IGNORECASE,
)

_COST = re.compile(
    r"(?:^|[_\s/(])(?:s|secs?|seconds?|ms|msecs?|us|minutes?|hours?|time|latency|duration|elapsed|loss|perplexity)"
    r"(?:[_\s/)]|$)",
    re.IGNORECASE,
)
_SPREAD = re.compile(r"(?:^|_)(?:cv|std|stdev|stddev|var)(?:_|$)", re.IGNORECASE)


class UnreadNumber(Value, frozen=True):
    """The text in the place of a result's number that is a number of another language, its metric, and the line."""

    text: str
    metric: str
    line: str


class PerformanceScan:
    """Find the result in the lines of the model's own step."""

    def __init__(self, earlier: frozenset[str] = frozenset()) -> None:
        self.earlier = earlier  # result lines of files from before the run, which a script may print again
        self.first: tuple[str, str] | None = None
        self.evidence = ""
        self.others = 0
        self._again, self._is_earlier = 0, False  # how many of those were printed, and whether the first is one
        self.torn = False  # whether the result is of a last line that nothing ended, its number perhaps cut short
        self._fallback: tuple[str, str] | None = None
        self.unread_line: UnreadNumber | None = None  # the first whose number is one of another language
        self._unread_figure: UnreadNumber | None = None
        self._unnamed: UnreadNumber | None = None  # the first whose metric has no name

    def feed(self, block: Block, whole: bool = True) -> None:
        """Take lines in; `whole` where each was ended."""
        before = self.result, self.unread
        self._look(block)
        self.torn = self.torn or (not whole and (self.result, self.unread) != before)

    def _look(self, block: Block) -> None:
        if _MARK in block.text:
            for line in block.lines:
                if _MARK in line:
                    self._note(line)
        if TRAINER_MARK in block.text:
            for found in filter(None, map(_TRAINER.search, block.lines)):
                self._note_figure(found)

    def _note_figure(self, found: re.Match[str]) -> None:
        text = found["number"]
        if is_foreign(text, groups=False):
            unread = UnreadNumber(text=text, metric=TRAINER_METRIC, line=found.string.strip())
            self._unread_figure = self._unread_figure or unread
        elif _NUMERAL.fullmatch(text):
            self._fallback = _last(self._fallback, without_groups(text)), TRAINER_METRIC

    def _note(self, line: str) -> None:
        self.unread_line = self.unread_line or unread_performance(line)
        self._unnamed = self._unnamed or unnamed_performance(line)
        found = read_performance(line)
        if found is None:
            return
        is_earlier = _result_text(line) in self.earlier
        self._again += is_earlier
        if self.first is None or (self._is_earlier and not is_earlier):
            self.first, self.evidence, self.others, self._is_earlier = found, line.strip(), 0, is_earlier
        elif found != self.first and is_earlier == self._is_earlier:
            self.others += 1

    @property
    def result(self) -> tuple[str, str] | None:
        """The number's text and the metric, or None where no line had one."""
        return self.first or self._fallback

    @property
    def unread(self) -> UnreadNumber | None:
        """The first number of the result's lines that cannot be read; the Trainer's where no other line has one."""
        return self.unread_line or (self._unnamed or self._unread_figure if self.first is None else None)

    @property
    def findings(self) -> tuple[str, ...]:
        """What a reader of the row should know."""
        found = []
        if self._again and not self._is_earlier:
            found.append(f"performance lines that stood in a file before the run are left out: {self._again}")
        if self.others:
            found.append(f"{self.others} more performance lines with other values; the first one counts")
        return tuple(found)


def result_lines(data: bytes) -> frozenset[str]:
    """Return the result lines of a file, each from its mark on, as `PerformanceScan` compares them."""
    lines = data.decode("utf-8", "replace").splitlines() if _MARK.encode() in data else []
    return frozenset(_result_text(line) for line in lines if _MARK in line)


def _result_text(line: str) -> str:
    return line[max(0, line.find(_MARK)) :].strip()


def read_performance(text: str) -> tuple[str, str] | None:
    """Return number and metric of a line's result, as text without thousands separators; None where it has none."""
    return next(filter(None, (_read_at(text, found.start()) for found in re.finditer(_MARK, text))), None)


def unread_performance(text: str) -> UnreadNumber | None:
    """Return the number of a line's result that is one of another language; None where it has none."""
    for found in _AT.finditer(text):
        odd = foreign_number_at(text, found.end())
        if odd and _read_at(text, found.start()) is None:
            unit = _UNIT.match(text, found.end() + len(odd))
            metric = unit["metric"] if unit else ""
            return UnreadNumber(text=odd, metric="" if is_number(metric) else metric, line=text.strip())
    return None


def _read_at(text: str, begin: int) -> tuple[str, str] | None:
    match = _RESULT.match(text, begin)
    if match is None:
        return None
    metric, unit = match["metric"] or "", match["unit"] or ""
    if unit in _SCALE or not metric:  # 12.5k tokens/s are 12.5 ktokens/s, as madengine 1 has it
        metric = unit.lstrip("/") + metric
    if is_number(metric) or not names_metric(metric):  # 1 234 tokens/s are not 1, 25.6 K tokens/s no 25.6
        return None
    return without_groups(match["number"]), metric


def unnamed_performance(text: str) -> UnreadNumber | None:
    """Return the number of a line's result whose metric has no name, or is a factor; None where it has none."""
    for match in filter(None, (_RESULT.match(text, found.start()) for found in re.finditer(_MARK, text))):
        metric = (match["unit"] or "").lstrip("/") + (match["metric"] or "")
        if not names_metric(metric):
            return UnreadNumber(text=match["number"], metric=metric, line=text.strip())
    return None


def names_metric(metric: str) -> bool:
    """Return whether a text says what a number counts: it is neither blank nor a factor, as `K`."""
    return bool(metric.strip()) and metric not in _SCALE


def _last(before: tuple[str, str] | None, text: str) -> str:
    """Return the last number; of one that is there again with other digits the first."""
    before_text = before[0] if before else ""
    return before_text if before_text and (_rounds_to(before_text, text) or _rounds_to(text, before_text)) else text


def _rounds_to(number: str, text: str) -> bool:
    _, _, decimals = text.partition(".")
    exact = "e" not in f"{number}{text}".lower() and max(len(number), len(text)) < _LONG
    return exact and f"{float(number):.{len(decimals)}f}" == f"{float(text):.{len(decimals)}f}"


def is_number(metric: str) -> bool:
    """Return whether what stands in the place of a metric's name is a number."""
    return bool(_PLAIN.fullmatch(metric)) and metric[-1].isdigit()


def judge_number(text: str, metric: str, quantity: Quantity | None = None) -> tuple[float | None, Cause]:
    """Return the value and what is wrong with it as a result; what the metric counts its quantity says, or its name.

    Not a number, infinity, text and what has too many digits are no results; zero or less is none where the metric is
    a throughput.
    """
    if is_too_long(text):
        return None, Cause.BAD_NUMBER
    if not _PLAIN.fullmatch(text.strip()):  # Python also takes 1_000 and digits of other scripts
        return None, Cause.BAD_NUMBER if text.strip() else Cause.NO_METRIC
    value = float(text)
    is_speed = quantity.is_speed if quantity is not None else is_throughput(metric)
    if not math.isfinite(value) or (value <= 0 and is_speed):
        return value, Cause.BAD_NUMBER
    return value, Cause.NONE


def is_throughput(metric: str) -> bool:
    """Return whether a metric counts work per time: zero or less cannot be true, as it can of how far one varies."""
    return bool(_THROUGHPUT.search(metric)) and not _SPREAD.search(metric)


def is_cost(metric: str) -> bool:
    """Return whether less of a metric is better: it counts seconds, or a loss, and no work per time."""
    return bool(_COST.search(metric)) and not is_throughput(metric)


def make_metric(
    text: str, metric: str, label: str = "", columns: dict[str, str] | None = None, quantity: Quantity | None = None
) -> Metric:
    """Return the result row of a number as it was printed; a number that is none keeps its text out of the row.

    Without its `quantity` the metric's name says what it counts, and whether less of it is better.
    """
    value, cause = judge_number(text, metric, quantity)
    status = Status.SUCCESS if cause is Cause.NONE else Status.FAILURE
    return Metric(
        metric=metric,
        text=text.strip() if status is Status.SUCCESS else "",
        status=status,
        label=label,
        value=value if value is not None and math.isfinite(value) else None,
        cause=cause,
        columns=columns or {},
        lower_is_better=quantity.direction == "lower" if quantity is not None else is_cost(metric),
        unit=quantity.unit if quantity is not None else "",
    )


# A `multiple_results` file: a CSV that the model's script writes, one result per line.
#
# Needed columns: model, performance, metric.  Every other column joins the row.  Format: MAD's (docs/perf-csv.md).
# A workload writes it: what is read of it is bounded, and so are the time and the memory that reading takes.


NEEDED = ("model", "performance", "metric")
_RUN_BYTES = 1 << 20
# inside of one cell, of which far less is kept; a run is looked at from its beginning alone
_RUN = re.compile(rb'(?<![^",\r\n])[^",\r\n]{%d,}' % _RUN_BYTES)


class FileBefore(Value, frozen=True):
    """What a file was before the run, so that a left-over is not taken for a result; `data` is what it had."""

    inode: int
    mtime_ns: int
    size: int
    data: bytes = b""


class FileResults(Value, frozen=True):
    """The results of a file, or why there is none; `notes` tell what of it was left out or is no number."""

    metrics: tuple[Metric, ...] = ()
    problem: str = ""
    notes: tuple[str, ...] = ()


def stamp(path: Path, data: bytes = b"") -> FileBefore | None:
    """Return what identifies the file's present content; None where there is no file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return FileBefore(inode=found.st_ino, mtime_ns=found.st_mtime_ns, size=found.st_size, data=data)


def is_fresh(path: Path, before: FileBefore | None, started_ns: int) -> bool:
    """Return whether the file was written by this run: changed since `before`, and newer than its start.

    Two seconds of grace are given to file systems that keep coarse times.
    """
    now = stamp(path, before.data if before is not None else b"")
    return now is not None and now != before and now.mtime_ns >= started_ns - 2_000_000_000


def is_touched(path: Path, before: FileBefore | None) -> bool:
    """Return whether a file got nothing but another date, before anything reads it: touch(1) sets both dates alike.

    A program that writes the same results anew leaves the date of access as it was.
    """
    try:
        now = path.stat()
    except OSError:
        return False
    return before is not None and now.st_ino == before.inode and now.st_atime_ns == now.st_mtime_ns


def results_since(
    name: str, data: bytes, before: FileBefore | None, *, touched: bool, by_status: bool = False
) -> FileResults | None:
    """Return the results that a run added to a file that it wrote; None where that is what was there before it.

    The results that the file began with before, in their order, are an earlier run's: a script may append.
    `by_status` as for `parse_results`.
    """
    read = parse_results(name, data, by_status=by_status)
    if before is None or not before.data:
        return read
    if data == before.data:
        return None if touched else read
    old = parse_results(name, before.data, by_status=by_status).metrics
    count = len(old)
    if not count or len(read.metrics) <= count or [*map(_named, read.metrics[:count])] != [*map(_named, old)]:
        return read
    note = f"{name}: its first {count} results were there before the run, and are not taken"
    return replace(read, metrics=read.metrics[count:], notes=(*read.notes, note))


def _named(metric: Metric) -> tuple[str, str, str]:
    return metric.label, metric.metric, metric.text


def read_results(path: Path) -> FileResults:
    """Return the file's results; a file that holds none says why, and never raises."""
    try:
        return parse_results(path.name, read_given(path))
    except OSError as error:
        return unreadable(path.name, error)


def unreadable(name: str, error: OSError) -> FileResults:
    """Return the answer for a file that could not be read."""
    return FileResults(problem=f"{name} cannot be read: {error.strerror}")


def parse_results(name: str, data: bytes, *, by_status: bool = False) -> FileResults:
    """Return the results that a file's bytes hold; those that hold none say why, and nothing raises.

    `by_status`: one whose column `status` says FAILURE is none, as in a perf.csv.
    """
    parts = sum(map(data.count, (b",", b"\n", b"\r"))) + data.count(b'"') // 2
    if parts > MOST_CELLS_READ:
        return FileResults(problem=f"{name} has {parts} cells and lines, and {MOST_CELLS_READ} at most are read")
    try:
        with unlimited_fields():
            return _read(name, _records(data), by_status)
    except csv.Error as error:
        return FileResults(problem=f"{name} is not valid CSV: {error}")


def _records(data: bytes) -> Iterator[list[str]]:
    """Yield the records that are not blank, as they are read: together they take many times a file's size."""
    data = _RUN.sub(lambda run: run[0][:_RUN_BYTES], data)
    with io.TextIOWrapper(io.BytesIO(data), "utf-8-sig", "surrogateescape", newline="") as text:
        lines = (line.replace("\0", "\\x00") for line in text)  # which csv of Python 3.10 does not read
        for record in csv.reader(lines, skipinitialspace=True):
            if any(cell and not cell.isspace() for cell in record):
                yield record


def _read(name: str, records: Iterator[list[str]], by_status: bool) -> FileResults:
    header = [column.strip() for column in next(records, [])]
    if not header:
        return FileResults(problem=f"{name} is empty")
    missing = [needed for needed in NEEDED if needed not in header]
    if missing:
        return FileResults(problem=f"{name} has no column {', '.join(missing)} (its columns: {several(header, 20)})")
    first = _first(header, MOST_COLUMNS)
    taken = islice(records, MOST_RESULTS)
    rows = [_taken(cells, header, first) for cells in taken]
    count = len(rows) + sum(1 for _ in records)
    if count > MOST_RESULTS:
        return FileResults(problem=f"{name} has {count} results, and {MOST_RESULTS} at most are taken")
    names = [header[place] for place in first]
    taken_places = _first(names, MOST_CELLS_KEPT // max(1, count))
    places = [(place, names[place]) for place in taken_places]
    table = [{name: row.cells[at].strip() for at, name in places if at < len(row.cells)} for row in rows]
    table = [cells | {"performance": ""} if by_status and _has_failed(cells) else cells for cells in table]
    foreign = any(has_decimal_comma(cells.get("performance", "")) for cells in table)
    metrics = tuple(_metric(cells, row.misfit, foreign) for cells, row in zip(table, rows, strict=True))
    problem = "" if metrics else f"{name} has a header and no results"
    notes = (*_notes(name, header, len(taken_places), table), *_misfits(name, rows))
    return FileResults(metrics=metrics, problem=problem, notes=notes)


def _has_failed(cells: dict[str, str]) -> bool:
    return cells.get("status", "").upper() == "FAILURE"


def _first(header: Sequence[str], most: int) -> list[int]:
    """Return the places of the first columns that have a name, and of those that a result needs, wherever they are."""
    named = [place for place, column in enumerate(header) if column]
    late = [place for place in named[most:] if header[place] in NEEDED]
    return [*named[:most], *late]


def _notes(name: str, header: Sequence[str], taken_places: int, table: Sequence[dict[str, str]]) -> Iterator[str]:
    named = sum(1 for column in header if column)
    if taken_places < named:
        yield f"{name} has {named} columns: {taken_places} are taken, and {named - taken_places} are left out"
    if odd := [cells["performance"] for cells in table if has_decimal_comma(cells.get("performance", ""))]:
        text = shortened(odd[0], 60)
        yield f"{name} has '{text}', which is no number: a comma separates groups of three digits and nothing else"
    if long := [cells.get("model", "") for cells in table if is_too_long(cells.get("performance", ""))]:
        yield f"{name} has no number for {several(long)}: {TOO_LONG}"


class _Record(NamedTuple):
    """The cells of the columns that are taken; `misfit` says how many there are, "" where they fit the header."""

    cells: list[str]
    misfit: str = ""


def _taken(cells: Sequence[str], header: Sequence[str], first: Sequence[int]) -> _Record:
    """Return a record's cells of the columns that are taken.

    A comma that nothing quotes, as in `12,5`, has moved the cells behind it, and a line that was cut short has lost
    some: of a record with more or fewer cells than columns nobody knows whose its cells are, from the number on.
    """
    columns = max(place for place, column in enumerate(header) if column) + 1
    moved = any(cell.strip() for cell in cells[len(header) :])
    if not moved and len(cells) >= columns:
        return _Record([cells[at] for at in first if at < len(cells)])
    sure = header.index("performance")
    text = f"{len(cells)} cells, and the header {columns}"
    return _Record([cells[at] if at < sure else "" for at in first if at < len(cells)], misfit=text)


def _misfits(name: str, rows: Sequence[_Record]) -> Iterator[str]:
    """Yield how many records are no results for their number of cells, and what the first of them has."""
    found = [(place, row.misfit) for place, row in enumerate(rows, 1) if row.misfit]
    if found:
        place, text = found[0]
        of = f" ({len(found)} such records)" if len(found) > 1 else ""
        yield f"{name}: record {place} has {text}, so that none of them is a number{of}: quote a cell that has a comma"


def _metric(cells: dict[str, str], misfit: str, foreign: bool) -> Metric:
    """Return a record's result; in a `foreign` file, which has a decimal comma, only what is the same number there."""
    extra = {name: value for name, value in cells.items() if name not in (*NEEDED, "status")}
    text, metric = cells.get("performance", ""), cells.get("metric", "")
    # 12,5 that nothing quotes is a number and another one in the place of its metric
    moved = is_number(metric) or (foreign and may_be_foreign(text))
    metric = "" if is_number(metric) else metric
    unnamed = bool(text) and not names_metric(metric)  # nobody knows what it counts
    number = "" if moved or unnamed else without_groups(text)
    found = make_metric(number, metric, label=cells.get("model", ""), columns=extra)
    return replace(found, cause=Cause.BAD_NUMBER) if misfit or (moved and text) or unnamed else found
