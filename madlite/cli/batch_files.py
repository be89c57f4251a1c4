"""What a batch of runs leaves beside its rows: the manifest, and on request a summary, or no entry files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from madlite.cli.manifest import is_manifest, save_manifest
from madlite.cli.result_options import MANIFEST
from madlite.cli.summary import (
    count_rows,
    full_summary,
    remove_entries,
    run_summary,
    suspect_runs,
    write_summary,
)
from madlite.errors import RuntimeProblem
from madlite.files import exists
from madlite.results.named_file import check_writable

if TYPE_CHECKING:
    from madlite.plan.options import Options
    from madlite.run.screen import Outcome, Planned


class BatchFiles:
    """One batch from its start to its files; what they need is asked for before anything runs."""

    def __init__(self, planned: Sequence[Planned], options: Options, given: dict[str, Any]) -> None:
        self._planned, self._options, self._given = planned, options, given
        manifest = given["manifest_file"]
        self.from_tags = given["plan_file"] is None and (manifest is None or not exists(manifest))
        self._summary = given["summary_output"]
        if self._summary is not None:
            check_writable(self._summary)
        if self.from_tags:
            asked = given["manifest_output"] != MANIFEST  # what nobody asked for costs no run
            check_writable(options.workspace / given["manifest_output"], is_manifest if asked else lambda file: True)
        self._rows_before = 0
        self.failed = False  # whether something could not be written that an option asked for, or a doubt counts

    def begin(self) -> None:
        """Count the rows that are there before the first run's."""
        if self._summary is not None:
            self._rows_before = count_rows(self._options.output)

    def close(self, outcome: Outcome) -> tuple[str, ...]:
        """Write what is wanted and return what could not be; every run has its row by now."""
        problems = []
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

    def _write_summary(self, outcome: Outcome) -> None:
        if self._summary is None:
            return
        from madlite.run.one import secrets_for

        rows = count_rows(self._options.output) - self._rows_before if self._options.rows else 0
        told = (self._planned, outcome, self._rows_before, rows)
        summary = full_summary(*told, self._given["fail_on_suspect"]) if self.from_tags else run_summary(*told)
        secrets = [text for one in self._planned for text in secrets_for(one, self._options.environ)]
        write_summary(self._summary, summary, secrets)

    def _clean_up(self, outcome: Outcome) -> None:
        if self._given["cleanup_perf"]:
            remove_entries(self._options.workspace)
