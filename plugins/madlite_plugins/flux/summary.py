"""Read runs_summary.csv, in which the launcher sums up its runs.

Columns differ by version: run_id, status (success, oom, oom-skipped, error, not_run), the averages of all steps but the
first five as avg_fps_gpu, earlier avg_fps, and avg_tflops, and the arguments of each run.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping
from pathlib import Path

from madlite import Ended, Event, Summary, read_output

FPS, TFLOPS = "avg_fps_gpu", "avg_tflops"
_COLUMNS = {FPS: (FPS, "fps_gpu", "avg_fps"), TFLOPS: (TFLOPS, "tflops"), "avg_step_time_gpu": ("avg_step_time_gpu",)}
_GRACE_S = 2.0  # of file systems that keep coarse times


def read_summaries(outputs: Path, since_s: float) -> Iterator[Event]:
    """Yield what the newest summary below a folder says, and that a run of it failed; nothing of one before `since_s`.

    The figures are those of its last row, as MAD takes them.
    """
    rows = _rows(outputs, since_s)
    if not rows:
        return
    values = {name: text for name, columns in _COLUMNS.items() if (text := _first(rows[-1], columns))}
    if values:
        yield Summary(values=values)
    for row in rows:
        status = row.get("status", "success").strip()
        if status.lower() != "success":
            marker = f"runs_summary.csv: run {row.get('run_id', '?')} has the status '{status}'"
            yield Ended(marker=marker, code=1)


def _rows(outputs: Path, since_s: float) -> list[Mapping[str, str]]:
    try:
        text = _newest(outputs, since_s)
        rows = csv.DictReader(io.StringIO(text, newline=""), restval="")
        return [{name.strip(): value or "" for name, value in row.items() if isinstance(name, str)} for row in rows]
    except (OSError, csv.Error, ValueError):
        return []


def _newest(outputs: Path, since_s: float) -> str:
    """Return the text of the summary that was written last since then; "" where there is none."""
    folder = outputs / "outputs/runs"
    found = [(path.stat(), path) for path in folder.rglob("runs_summary.csv") if path.is_file()]
    ours = [(stat.st_mtime_ns, path) for stat, path in found if stat.st_mtime >= since_s - _GRACE_S]
    return read_output(max(ours)[1], outputs).decode("utf-8-sig", "replace") if ours else ""


def _first(row: Mapping[str, str], columns: tuple[str, ...]) -> str:
    """Return the first column that has a number; 0 is none: the launcher could not count."""
    texts = (row.get(column, "").strip() for column in columns)
    return next((text for text in texts if text.strip("0.+-") and text.lower() not in ("nan", "none")), "")
