"""Writes what a run came to: rows, side files, record; and the order in which no kill loses anything silently."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from pathlib import Path

import msgspec
from msgspec.structs import replace

from madlite.errors import RecordError
from madlite.measure.steps import Steps
from madlite.model import Result, RunPlan
from madlite.model.results import Attempt
from madlite.perfcsv.append import RunAppend, append_runs, left_out_text
from madlite.perfcsv.rows import new_columns
from madlite.perfcsv.side_files import (
    RunOutput,
    due_in_s,
    entries_line,
    leave_entries,
    make_output,
    make_result,
    write_entries,
    write_waiting,
)
from madlite.plan.context import Options
from madlite.plan.inputs import RUNS
from madlite.plan.submission import PlannedRun
from madlite.run.screen import Screen
from madlite.run.state import context_file
from madlite.store.events import now
from madlite.store.folder import RECORD, RESULT, STEPS, RunEntry, RunFolder, RunRows, RunStart, rows_path
from madlite.store.record import Entries, make_record, record_json, result_text, step_lines

# What is written of a run that has ended, in an order in which no kill loses anything silently.
#
# steps.jsonl → the rows in the run's journal → perf.csv → the side files → record.json; then the journal is removed.
# Of a run from a plan file result.json comes after the steps; with `--no-rows` it is the last: `collect` writes the
# rest.

_log = logging.getLogger(__name__)

RelativeChange = Callable[[RunPlan, Mapping[str, str]], str]
"""The cell `relative_change` of a row: in percent of the number that a run is compared with; "" without one."""


class SideFiles:
    """The side files of a batch: what runs that end in quick succession add to them is written together.

    A long list is not written more often than its size allows; what waits is written when it may be, and at the end.
    """

    def __init__(self, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._lock = threading.Lock()
        self._later: dict[Path, threading.Timer] = {}  # by working folder

    def add(self, folder: Path, entries: Entries) -> tuple[str, ...]:
        """Add a run's part to the side files of a working folder; return the error messages."""
        if not (left_s := due_in_s(folder)):
            return write_entries(folder, entries)
        with self._lock:
            if folder not in self._later:
                timer = self._later[folder] = threading.Timer(max(left_s, 1.0), self._write, [folder])
                timer.daemon = True
                timer.start()
        return leave_entries(folder, entries)

    def close(self) -> None:
        """Write what waits."""
        with self._lock:
            timers = dict(self._later)
        for folder, timer in timers.items():
            timer.cancel()
            self._write(folder)

    def _write(self, folder: Path) -> None:
        with self._lock:
            self._later.pop(folder, None)
        for problem in write_waiting(folder):
            self._warn(problem)


_TAKEN = "another command took the run for cut off: the row and the record that it wrote stay, and this result has none"


class _TakenError(Exception):
    """Another command has the run's row by now."""


class ResultWriter:
    """Writes one run's result: its rows once, whatever happens before or after them."""

    def __init__(
        self,
        run: PlannedRun,
        options: Options,
        screen: Screen,
        mask: Callable[[str], str],
        relative_change: RelativeChange | None,
        side_files: SideFiles,
        *,
        recoverable: bool,
    ) -> None:
        self._relative_change = relative_change
        self._recoverable = recoverable  # whether the next command writes the rows where this one is killed
        self._side_files = side_files  # of a batch
        self.saved = True  # whether the rows are in their file
        self._planned, self._plan = run, run.plan
        self._rendered = [(file.path, file.data) for file in run.files]
        self._options, self._screen, self._mask = options, screen, mask
        self._rows: RunRows | None = None
        self._attempted = False
        self._has_result_file = False

    def begin_entry(self, attempt: Attempt | None) -> RunEntry:
        """Return what the run's journal begins with: with it the next command writes the row after a kill."""
        file = self._path() if self._options.rows else ""
        return RunEntry(at=now(), start=replace(self._start, attempt=attempt), file=file)

    @cached_property
    def _start(self) -> RunStart:
        """What the row and the record need that the plan does not have."""
        options = self._options
        here = context_file(self._planned.context, self._mask).left_out
        return RunStart(
            strict_header=options.strict_header,
            columns=options.columns,
            pipeline=self._mask(options.environ.get("pipeline", "")),
            build_number=options.environ.get("BUILD_NUMBER", "0"),
            command=options.command,
            left_out=tuple(dict.fromkeys((*self._planned.context_left_out, *here))),
            host=socket.gethostname(),
            side_files=options.side_files,
        )

    def _path(self) -> str:
        """Return the results file, as rows name it."""
        return rows_path(self._options.output_target or self._options.output, self._plan.workspace)

    def write(self, result: Result, steps: Steps, folder: RunFolder | None) -> Result:
        """Write all of it, and return the result with errors as findings; without a folder only the rows."""
        problems = [folder.save(STEPS, step_lines(steps))] if folder is not None and len(steps) else []
        try:
            return self._write_all(result, problems, folder)
        except _TakenError:
            self._screen.warn(f"{self._plan.id}: {_TAKEN}")
            return replace(result, findings=(*result.findings, *filter(None, problems), _TAKEN))

    def _write_all(self, result: Result, problems: list[str], folder: RunFolder | None) -> Result:
        """Write all but the steps.

        Raises:
            _TakenError: another command has the run's row, and nothing of this one is written.
        """
        if not self._attempted:  # a bug after the rows were written must not write them a second time
            self._check_taken(folder)
            self._attempted = True
            output = self._output(result)
            if self._options.result_file or self._recoverable or not self._options.rows:
                problems.append(problem := self._save_result(result, output, folder, problems))
                if problem and not self._options.rows:
                    self.saved = False
                    self._screen.warn(f"{self._plan.id}: {problem}, so that it gets no row of its own (df -h .)")
            if self._options.rows and (rows := self._rows_of(output)) is not None:
                self._note_entries(output.entries, folder)
                if why := self._append_rows(rows, folder):
                    self.saved = False
                    self._leave_uncollected(why, result, output, problems, folder)
                else:
                    self._write_side_files(output)
            problems.append(output.truncated)
        if folder is not None and self._options.rows and self.saved:
            findings = (*result.findings, *filter(None, problems))
            problems.append(self._write_record(replace(result, findings=findings), folder))
        return replace(result, findings=(*result.findings, *filter(None, problems)))

    def _check_taken(self, folder: RunFolder | None) -> None:
        if folder is not None and folder.is_taken():
            raise _TakenError

    def write_result(self, result: Result, steps: Steps, folder: RunFolder | None) -> str:
        """Write steps and result file alone; return the error message, "" if none."""
        problem = folder.save(STEPS, step_lines(steps)) if folder is not None and len(steps) else ""
        return problem or self._save_result(result, self._output(result), folder)

    def _save_result(
        self, result: Result, output: RunOutput, folder: RunFolder | None, problems: Iterable[str] = ()
    ) -> str:
        """Write the result file after where its rows go, once; return the error message, "" if none."""
        if self._has_result_file:
            return ""
        findings = (*result.findings, *filter(None, (*problems, output.truncated)))
        try:
            result = replace(result, findings=findings)
            text = result_text(make_result(self._plan, result, self._start, self._mask, output, self._rendered))
            problem = "the run has no folder" if folder is None else folder.write_result(text)
        except Exception as bug:  # noqa: BLE001 - the verdict stands, and rows may still be written
            _log.debug("result file of %s", self._plan.id, exc_info=True)
            return f"internal error in {RESULT}: {type(bug).__name__}: {bug}"
        self._has_result_file = not problem
        return problem

    def _append_rows(self, rows: RunRows, folder: RunFolder | None) -> str:
        """Append the run's rows; return why that is not possible, "" where they are there."""
        options = self._options
        output, begin, target = options.output, new_columns(options.contract), options.output_target

        def note(tried: RunRows) -> RunRows:
            self._check_taken(folder)
            return self._note_rows(tried, folder)

        try:
            ((self._rows, omitted),) = append_runs(output, [RunAppend(rows, note)], target=target, begin=begin)
        except (RecordError, OSError) as problem:
            return str(problem)
        if omitted:
            self._screen.warn(f"{left_out_text(output, omitted)}; {RECORD} has them")
        return ""

    def _leave_uncollected(
        self, why: str, result: Result, output: RunOutput, problems: Iterable[str], folder: RunFolder | None
    ) -> None:
        """Leave the result of a run whose rows its results file did not take to the next command, which collects it."""
        problem = self._save_result(result, output, folder, problems)
        what = f"the result is saved in {RUNS}/{self._plan.id}, and the next madlite run adds the row"
        if problem:
            rows = RunRows(path=self._path(), cells=output.rows, at=now())
            if self._rows is None:
                self._note_rows(rows, folder)
            lost = "it is lost unless the next madlite run adds it, for it cannot be saved either"
            what = f"{lost} ({problem}): {msgspec.json.encode(rows.cells).decode()}"
        self._screen.warn(f"no row in {self._options.output}: {why}; {what}")

    def _output(self, result: Result) -> RunOutput:
        change = self._relative_change

        def added(cells: Mapping[str, str]) -> Mapping[str, str]:
            return {"relative_change": change(self._plan, cells)} if change is not None else {}

        has_readers = self._options.side_files or not self._options.rows  # else who writes the rows decides
        start = replace(self._start, side_files=has_readers)
        return make_output(self._plan, result, start, mask=self._mask, added=added)

    def _rows_of(self, output: RunOutput) -> RunRows | None:
        cells = output.rows
        return RunRows(path=self._path(), cells=cells, strict_header=self._options.strict_header) if cells else None

    def _note_rows(self, rows: RunRows, folder: RunFolder | None) -> RunRows:
        """Record what is about to be appended; a full disk costs the entry, not the row."""
        self._rows = rows
        _note(folder, RunEntry(at=rows.at, rows=rows))
        return rows

    def _note_entries(self, entries: Entries | None, folder: RunFolder | None) -> None:
        """Record what the side files get before the row is there; a result file has it already."""
        if entries is not None and entries.ran and not self._has_result_file:
            _note(folder, RunEntry(at=now(), entries=entries_line(entries).decode()))

    def _write_side_files(self, output: RunOutput) -> None:
        """Write the side files; an error is shown, and costs no row."""
        entries, add = output.entries, self._side_files.add
        problems = add(self._plan.workspace, entries) if entries is not None else (output.problem,)
        for problem in filter(None, problems):
            self._screen.warn(problem)

    def _write_record(self, result: Result, folder: RunFolder) -> str:
        """Write the record and return the error message: a full disk costs the record, not the verdict."""
        plan, start, rendered = self._plan, self._start, self._rendered
        try:
            record = make_record(plan, result, self._rows, start, rendered=rendered, mask=self._mask)
            text = record_json(record)
        except Exception as bug:  # noqa: BLE001 - the row is there, and the verdict stands
            _log.debug("record of %s", self._plan.id, exc_info=True)
            return f"internal error in {RECORD}: {type(bug).__name__}: {bug}"
        problem = folder.write_record(text)
        if not problem:
            folder.end_journal()
        return problem


def _note(folder: RunFolder | None, entry: RunEntry) -> None:
    if folder is not None and (problem := folder.note(entry)):
        _log.debug("%s", problem)
