"""Files of a batch: its summary as JSON (`--summary-output`), and removal of its entries (`--cleanup-perf`).

Format: docs/reports.md (source: madengine 2.1, observed).
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from madlite.cli.arguments import MANIFEST, closing_lines
from madlite.cli.format import may_have_reference
from madlite.cli.planning import is_manifest, save_manifest
from madlite.errors import ExitCode, RuntimeProblem, UsageProblem
from madlite.files import check_writable, exists
from madlite.model import Json, Result, RunPlan, Status
from madlite.plan.inputs import RUNS

if TYPE_CHECKING:
    from madlite.backends.loader import Plugins
    from madlite.cli.compare import AgainstBaseline
    from madlite.cli.screens import PlainScreen
    from madlite.plan.context import Options
    from madlite.run.screen import PlannedRun, RunOutcome

ENTRIES = ("perf_entry.json", "perf_entry.csv", "perf_entry_super.json", "perf_entry_super.csv")


def run_summary(planned: Sequence[PlannedRun], outcome: RunOutcome, start_row: int, row_count: int) -> dict[str, Json]:
    """Return the summary of a batch: successful and skipped runs, failed runs and runs that never started.

    `start_row` is how many rows perf.csv had before, `row_count` how many came since.
    """
    ended = list(_ended(planned, outcome))
    over = {plan.id for plan, _ in ended}
    never = [one for one in planned if one.plan.id not in over]
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
    planned: Sequence[PlannedRun], outcome: RunOutcome, start_row: int, row_count: int, fail_on_suspect: bool = False
) -> dict[str, Json]:
    """Return the summary of a batch from tags: also its builds, and whether everything succeeded.

    A failed build is also a failed run of its card; with `fail_on_suspect` a suspect success is a failure too.
    """
    from madlite.plan.manifest import summary
    from madlite.run.from_manifest import builds_of

    runs = run_summary(planned, outcome, start_row, row_count)
    return {
        "build_phase": summary(*builds_of(planned, outcome.results)),
        "run_phase": runs,
        "overall_success": not (runs["failed_runs"] or (fail_on_suspect and suspect_runs(planned, outcome))),
    }


def suspect_runs(planned: Sequence[PlannedRun], outcome: RunOutcome) -> tuple[str, ...]:
    """Return the cards of the runs whose success is suspect, in order."""
    ended = _ended(planned, outcome)
    return tuple(plan.card.name for plan, result in ended if result.status is Status.SUCCESS and result.suspect)


def write_summary(path: Path, summary: dict[str, Json], secrets: Iterable[str]) -> None:
    """Write a summary, secrets masked.

    Raises:
        RuntimeProblem: it cannot be written; what ran has its rows.
    """
    from madlite.files import write_named
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
    from madlite.files import open_named
    from madlite.text import unlimited_fields

    try:
        with unlimited_fields(), os.fdopen(open_named(path), encoding="utf-8", errors="replace", newline="") as file:
            records = csv.reader(line.replace("\0", "") for line in file)  # which Python 3.10 does not read
            return max(0, sum(1 for cells in records if cells) - 1)
    except FileNotFoundError:
        return 0


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


def _ended(planned: Sequence[PlannedRun], outcome: RunOutcome) -> Iterator[tuple[RunPlan, Result]]:
    from madlite.run.screen import pair

    return ((one.plan, result) for one, result in pair(planned, outcome.results) if result is not None)


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


# What a batch of runs leaves beside its rows: the manifest, and on request a summary, or no entry files.


class BatchFiles:
    """The files of one batch; that they can be written is checked before anything runs."""

    def __init__(self, planned: Sequence[PlannedRun], options: Options, params: dict[str, Any]) -> None:
        self._planned, self._options, self._given = planned, options, params
        manifest = params["manifest_file"]
        self.from_tags = params["plan_file"] is None and (manifest is None or not exists(manifest))
        self._summary = params["summary_output"]
        if self._summary is not None:
            check_writable(self._summary)
        if self.from_tags:
            explicit = params["manifest_output"] != MANIFEST  # the default file never blocks a run
            check_writable(
                options.workspace / params["manifest_output"], is_manifest if explicit else lambda file: True
            )
        self._rows_before = 0
        self._study: Json = None
        self.failed = False  # whether a requested file could not be written, or --fail-on-suspect applies

    def begin(self) -> None:
        """Count the rows that are there before the first run's."""
        if self._summary is not None:
            self._rows_before = count_rows(self._options.output)

    def close(self, outcome: RunOutcome, study: Json = None) -> tuple[str, ...]:
        """Write the files and return what could not be written; every run has its row by now."""
        problems: list[str] = []
        self._study = study
        if self.from_tags:
            problems.append(save_manifest(self._planned, outcome.results, self._options, self._given))
            self.failed |= bool(problems[0]) and self._given["manifest_output"] != MANIFEST
        for write in (self._write_summary, self._clean_up):
            try:
                write(outcome)
            except RuntimeProblem as problem:
                problems.append(problem.message)
                self.failed = True
        if self._given["fail_on_suspect"] and (names := suspect_runs(self._planned, outcome)):
            problems.append(f"suspect: {', '.join(names)} (--fail-on-suspect: exit code 3)")
            self.failed = True
        return tuple(filter(None, problems))

    def exit_code(self, outcome: RunOutcome, against: AgainstBaseline | None) -> int:
        """Print what the runs compare with, and return the exit code of the command; after `close`."""
        folders = (self._options.workspace / RUNS / result.plan_id for result in outcome.results)
        failed_gate = against is not None and against.show(folders)
        if failed_gate and outcome.exit_code is ExitCode.OK and not self.failed:
            return int(ExitCode.RESULT_CHECK_FAILED)
        only_builds = outcome.exit_code in (ExitCode.OK, ExitCode.BUILD_FAILED)
        return int(ExitCode.RUN_FAILED if self.failed and only_builds else outcome.exit_code)

    def _write_summary(self, outcome: RunOutcome) -> None:
        if self._summary is None:
            return
        from madlite.run.executor import secrets_for

        rows = count_rows(self._options.output) - self._rows_before if self._options.rows else 0
        facts = (self._planned, outcome, self._rows_before, rows)
        summary = full_summary(*facts, self._given["fail_on_suspect"]) if self.from_tags else run_summary(*facts)
        if self._study is not None:
            summary = {**summary, "study": self._study}
        secrets = [text for one in self._planned for text in secrets_for(one, self._options.environ)]
        write_summary(self._summary, summary, secrets)

    def _clean_up(self, outcome: RunOutcome) -> None:
        if self._given["cleanup_perf"]:
            remove_entries(self._options.workspace)


def print_totals(
    screen: PlainScreen,
    outcome: RunOutcome,
    output: Path | str | None,
    lines: Iterable[str],
    version: int,
    *,
    from_manifest: bool = False,
) -> None:
    """Print what all runs of a batch came to: totals, where their rows are, `lines` of a study, madengine's last line.

    `output` is None where no results file has the rows; `version` is that of madengine whose contract holds.
    """
    screen.total(outcome, output)
    screen.end(lines)
    screen.end(closing_lines(version, outcome, from_manifest=from_manifest))


def compare_run(plugins: Plugins, plan: RunPlan, result: Result) -> str:
    """Return how a success compares with published figures; what can have none loads none."""
    if not may_have_reference(result, plan.variant):
        return ""
    from madlite.cli.references import compare_planned

    return compare_planned(plugins, plan.workspace, plan, result)


def against_baseline(params: dict[str, Any], options: Options) -> AgainstBaseline | None:
    """Return what the runs of a command are compared with when they have ended.

    Raises:
        UsageProblem: nothing is named so, or a gate is none.
    """
    if not params["baseline"]:
        return None
    from madlite.cli.compare import AgainstBaseline

    against = AgainstBaseline(
        params["baseline"], params["fail_on"], options.workspace, allow_undecided=params["allow_undecided"]
    )
    if warning := against.warning(params["repeat"] or 1):
        from madlite.cli import setup

        setup.warn(warning)
    return against
