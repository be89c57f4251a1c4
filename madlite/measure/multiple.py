"""A `multiple_results` file: a CSV that the model's script writes, one result per line.

Needed columns: model, performance, metric.  Every other column joins the row.  Format: MAD's (docs/perf-csv.md).
"""

from __future__ import annotations

import csv
import io
from pathlib import Path

from madlite.csvtext import unlimited_fields
from madlite.measure.performance import make_metric
from madlite.types import Metric, Value

NEEDED = ("model", "performance", "metric")
MOST_RESULTS = 10_000  # a row of perf.csv each


class Stamp(Value, frozen=True):
    """What a file was before the run, so that a left-over is not taken for a result."""

    inode: int
    mtime_ns: int
    size: int


class Read(Value, frozen=True):
    """The results of a file, or why there is none."""

    metrics: tuple[Metric, ...] = ()
    problem: str = ""


def stamp(path: Path) -> Stamp | None:
    """Return what identifies the file's present content; None where there is no file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return Stamp(inode=found.st_ino, mtime_ns=found.st_mtime_ns, size=found.st_size)


def is_fresh(path: Path, before: Stamp | None, started_ns: int) -> bool:
    """Say whether the file was written by this run: changed since `before`, and newer than its start.

    Two seconds of grace are given to file systems that keep coarse times.
    """
    now = stamp(path)
    return now is not None and now != before and now.mtime_ns >= started_ns - 2_000_000_000


def read_results(path: Path) -> Read:
    """Return the file's results; a file that holds none says why, and never raises."""
    try:
        return parse_results(path.name, path.read_bytes())
    except OSError as error:
        return unreadable(path.name, error)


def unreadable(name: str, error: OSError) -> Read:
    """Return the answer for a file that could not be read."""
    return Read(problem=f"{name} cannot be read: {error.strerror}")


def parse_results(name: str, data: bytes) -> Read:
    """Return the results that a file's bytes hold; those that hold none say why, and nothing raises."""
    text = data.decode("utf-8-sig", "surrogateescape")  # what writes it spells such bytes out
    try:
        with unlimited_fields():
            lines = list(csv.reader(io.StringIO(text, newline=""), skipinitialspace=True))
    except csv.Error as error:
        return Read(problem=f"{name} is no CSV: {error}")
    lines = [line for line in lines if any(cell.strip() for cell in line)]
    if not lines:
        return Read(problem=f"{name} is empty")
    header = [column.strip() for column in lines[0]]
    missing = [needed for needed in NEEDED if needed not in header]
    if missing:
        return Read(problem=f"{name} has no column {', '.join(missing)} (its columns: {', '.join(header)[:200]})")
    if len(lines) - 1 > MOST_RESULTS:
        return Read(problem=f"{name} has {len(lines) - 1} results, and {MOST_RESULTS} at most are taken")
    metrics = tuple(_metric(dict(zip(header, line, strict=False))) for line in lines[1:])
    return Read(metrics=metrics, problem="" if metrics else f"{name} has a header and no results")


def _metric(cells: dict[str, str]) -> Metric:
    cells = {name: value.strip() for name, value in cells.items() if name}
    extra = {name: value for name, value in cells.items() if name not in (*NEEDED, "status")}
    text = cells.get("performance", "").replace(",", "")
    return make_metric(text, cells.get("metric", ""), label=cells.get("model", ""), columns=extra)
