"""What a batch came to, as `--summary-output` has it (madengine 2 has the shape), and what `--cleanup-perf` removes."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from madlite.errors import RuntimeProblem, UsageProblem
from madlite.files import open_plain, write_named
from madlite.model import Json, Result, RunPlan, Status
from madlite.plan.manifest import summary
from madlite.plan.submission import PlannedRun
from madlite.run.from_manifest import builds_of
from madlite.run.screen import RunOutcome, pair
from madlite.secrets import masked_json
from madlite.text import unlimited_fields

ENTRIES = ("perf_entry.json", "perf_entry.csv", "perf_entry_super.json", "perf_entry_super.csv")


def run_summary(planned: Sequence[PlannedRun], outcome: RunOutcome, start_row: int, row_count: int) -> dict[str, Json]:
    """Return the summary of a batch: successful and skipped runs, failed runs and runs that never started.

    `start_row` is how many rows perf.csv had before, `row_count` how many came since.
    """
    runs = [(run.plan, result) for run, result in pair(planned, outcome.results)]
    never = [_never_started(plan) for plan, result in runs if result is None]
    ended = [(plan, result) for plan, result in runs if result is not None]
    return {
        "successful_runs": [_ended(*run) for run in ended if run[1].status is not Status.FAILURE],
        "failed_runs": [*(_ended(*run) for run in ended if run[1].status is Status.FAILURE), *never],
        "total_runs": len(planned),
        "session_start_row": start_row,
        "session_row_count": row_count,
    }


def full_summary(
    planned: Sequence[PlannedRun], outcome: RunOutcome, start_row: int, row_count: int, fail_on_suspect: bool = False
) -> dict[str, Json]:
    """Return the summary of a batch from tags: also its builds, and whether everything succeeded.

    A failed build is also a failed run of its card; with `fail_on_suspect` a suspect success is a failure too.
    """
    runs = run_summary(planned, outcome, start_row, row_count)
    return {
        "build_phase": summary(*builds_of(planned, outcome.results)),
        "run_phase": runs,
        "overall_success": not (runs["failed_runs"] or (fail_on_suspect and suspect_runs(planned, outcome))),
    }


def suspect_runs(planned: Sequence[PlannedRun], outcome: RunOutcome) -> tuple[str, ...]:
    """Return the cards of the runs whose success is suspect, in order."""
    pairs = pair(planned, outcome.results)
    good = [(run, result) for run, result in pairs if result is not None and result.status is Status.SUCCESS]
    return tuple(run.plan.card.name for run, result in good if result.suspect)


def count_rows(path: Path) -> int:
    """Return how many rows a results file has below its header; 0 where there is no such file.

    Raises:
        OSError: it is there and cannot be read.
    """
    try:
        with unlimited_fields(), os.fdopen(open_plain(path), encoding="utf-8", errors="replace", newline="") as file:
            records = csv.reader(line.replace("\0", "") for line in file)  # which Python 3.10 does not read
            return max(0, sum(1 for cells in records if cells) - 1)
    except FileNotFoundError:
        return 0


def _ended(plan: RunPlan, result: Result) -> dict[str, Json]:
    image = result.image.ref or (plan.image.ref if plan.image else "")
    head: dict[str, Json] = {"model": plan.card.name, "image": image, "status": result.status.value}
    if result.status is Status.FAILURE:
        return {**head, "error": result.reason}
    suspect: dict[str, Json] = (
        {"suspect": list(result.suspect)} if result.suspect else {}
    )  # else madengine's keys alone
    seconds = result.durations_s.get("run", 0.0)
    return {**head, "performance": _performance(plan, result), "duration": seconds, **suspect}


def _never_started(plan: RunPlan) -> dict[str, Json]:
    image = plan.image.ref if plan.image else ""
    return {"model": plan.card.name, "image": image, "status": "NOT_STARTED", "error": "the batch ended before it"}


def _performance(plan: RunPlan, result: Result) -> str:
    """Return the number as perf.csv has it: the file of several results, the window's median of steps."""
    if not result.metrics:
        return ""
    if plan.result_rule.kind == "multiple_results":
        return plan.result_rule.file
    return result.metrics[-1 if result.window else 0].text


def write_summary(path: Path, summary: dict[str, Json], secrets: Iterable[str]) -> None:
    """Write a summary, secrets masked.

    Raises:
        RuntimeProblem: it cannot be written; what ran has its rows.
    """
    try:
        write_named(path, masked_json(summary, secrets))
    except UsageProblem as problem:
        raise RuntimeProblem(f"--summary-output {problem.message}", problem.hint) from problem


def remove_entries(folder: Path) -> None:
    """Remove the side files of the last run alone from a working folder; perf_super.* stay.

    Raises:
        RuntimeProblem: one of them cannot be removed.
    """
    for name in ENTRIES:
        try:
            (folder / name).unlink(missing_ok=True)
        except OSError as error:
            raise RuntimeProblem(f"--cleanup-perf: {folder / name} stays: {error.strerror or error}") from error
