"""What a batch leaves on request: its account as JSON (`--summary-output`), no entries of it (`--cleanup-perf`).

Format: docs/reports.md (source: madengine 2.1, observed).
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from madlite.errors import RuntimeProblem, UsageProblem
from madlite.model import Json, Result, RunPlan, Status

if TYPE_CHECKING:
    from madlite.run.screen import Outcome, Planned

ENTRIES = ("perf_entry.json", "perf_entry.csv", "perf_entry_super.json", "perf_entry_super.csv")


def run_summary(planned: Sequence[Planned], outcome: Outcome, start_row: int, row_count: int) -> dict[str, Json]:
    """Return the account of a batch: runs that went well or were skipped, runs that failed or never started.

    `start_row` is how many rows perf.csv had before, `row_count` how many came since.
    """
    ended = list(_ended(planned, outcome))
    never = planned[len(outcome.results) :]
    return {
        "successful_runs": [_succeeded(plan, result) for plan, result in ended if result.status is not Status.FAILURE],
        "failed_runs": [
            *[_failed(plan, result) for plan, result in ended if result.status is Status.FAILURE],
            *[_never_started(one.plan) for one in never],
        ],
        "total_runs": len(planned),
        "session_start_row": start_row,
        "session_row_count": row_count,
    }


def full_summary(
    planned: Sequence[Planned], outcome: Outcome, start_row: int, row_count: int, fail_on_suspect: bool = False
) -> dict[str, Json]:
    """Return the account of a batch from tags: of its builds too, and whether all of it went well.

    A failed build is also a failed run, for its card was asked for; with `fail_on_suspect` a doubt is not well either.
    """
    from madlite.plan.manifest_text import summary
    from madlite.run.manifest_file import builds_of

    runs = run_summary(planned, outcome, start_row, row_count)
    return {
        "build_phase": summary(*builds_of(planned, outcome.results)),
        "run_phase": runs,
        "overall_success": not (runs["failed_runs"] or (fail_on_suspect and suspect_runs(planned, outcome))),
    }


def suspect_runs(planned: Sequence[Planned], outcome: Outcome) -> tuple[str, ...]:
    """Return the cards of the runs whose success is suspect, in order."""
    return tuple(plan.card.name for plan, result in _ended(planned, outcome) if _is_suspect(result))


def write_summary(path: Path, summary: dict[str, Json], secrets: Iterable[str]) -> None:
    """Write a summary, secrets masked.

    Raises:
        RuntimeProblem: it cannot be written; what ran has its rows.
    """
    from madlite.results.named_file import write_named
    from madlite.secrets import masked_json

    try:
        write_named(path, masked_json(summary, secrets))
    except UsageProblem as problem:
        raise RuntimeProblem(f"--summary-output {problem.message}", problem.hint) from problem


def count_rows(path: Path) -> int:
    """Return how many rows a results file has below its header; 0 where there is no such file.

    Raises:
        OSError: it is there and cannot be read.
    """
    from madlite.safe_read import open_named
    from madlite.text import unlimited_fields

    try:
        with unlimited_fields(), os.fdopen(open_named(path), encoding="utf-8", errors="replace", newline="") as file:
            records = csv.reader(line.replace("\0", "") for line in file)  # which Python 3.10 does not read
            return max(0, sum(1 for cells in records if cells) - 1)
    except FileNotFoundError:
        return 0


def remove_entries(folder: Path) -> None:
    """Remove from a working folder the side files that tell of the last run alone; perf_super.* stay.

    Raises:
        RuntimeProblem: one of them cannot be removed.
    """
    for name in ENTRIES:
        try:
            (folder / name).unlink(missing_ok=True)
        except OSError as error:
            raise RuntimeProblem(f"--cleanup-perf: {folder / name} stays: {error.strerror or error}") from error


def _is_suspect(result: Result) -> bool:
    return result.status is Status.SUCCESS and bool(result.suspect)


def _ended(planned: Sequence[Planned], outcome: Outcome) -> Iterator[tuple[RunPlan, Result]]:
    return ((one.plan, result) for one, result in zip(planned, outcome.results, strict=False))


def _succeeded(plan: RunPlan, result: Result) -> dict[str, Json]:
    return {
        **_head(plan, result),
        "performance": _performance(plan, result),
        "duration": result.durations_s.get("run", 0.0),
        **({"suspect": list(result.suspect)} if result.suspect else {}),  # else madengine's keys alone
    }


def _failed(plan: RunPlan, result: Result) -> dict[str, Json]:
    return {**_head(plan, result), "error": result.reason}


def _head(plan: RunPlan, result: Result) -> dict[str, Json]:
    image = result.image.ref or (plan.image.ref if plan.image else "")
    return {"model": plan.card.name, "image": image, "status": result.status.value}


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
