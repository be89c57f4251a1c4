"""What a study came to, read again: by `madlite runs --of` and `madlite show`."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from madlite.cli.repeat import statistics_of
from madlite.cli.terminal import shell_line
from madlite.errors import nearest_words
from madlite.model import Status, Value
from madlite.store.folder import exists
from madlite.store.study import SUMMARY, is_running, read_summary, study_path
from madlite.study.bisect_runs import KIND as BISECT
from madlite.study.bisect_runs import BisectSummary
from madlite.study.bisect_runs import summary_lines as bisect_lines
from madlite.study.tune import KIND as TUNE
from madlite.study.tune_report import PAGE, RECIPE, TuneReport, recipe_command, report_lines

if TYPE_CHECKING:
    from madlite.reports.index import RunIndex
    from madlite.reports.runs import StoredRun

_Summary = TypeVar("_Summary", bound=Value)


def outcome_lines(runs: Sequence[StoredRun], workspace: Path) -> list[str]:
    """Return what the study of these runs came to, and where its files are; nothing of runs of none or of several."""
    studies = {(run.record.study.id, run.record.study.kind) for run in runs if run.record.study is not None}
    if len(studies) != 1:
        return []
    ((study_id, kind),) = studies
    if kind in (TUNE, BISECT) and any(run.origin for run in runs):  # what it came to is not here, nor goes it on here
        return []
    if kind not in (TUNE, BISECT):
        return statistics_of([run.record for run in runs if run.state in (*Status,)])
    command = next((run.record.command for run in reversed(runs) if run.record.command), ())
    lines = _tune_lines if kind == TUNE else _bisect_lines
    return [*lines(workspace, study_id, command)]


def _tune_lines(workspace: Path, study_id: str, command: Sequence[str]) -> Iterator[str]:
    report = yield from _summary(workspace, study_id, command, TuneReport)
    if report is not None:
        yield from report_lines(report)
        where = study_path(workspace, study_id)
        if exists(where / RECIPE):
            yield f"  {recipe_command(where)}"
        yield f"  {where / SUMMARY}; {where / PAGE}"


def _bisect_lines(workspace: Path, study_id: str, command: Sequence[str]) -> Iterator[str]:
    summary = yield from _summary(workspace, study_id, command, BisectSummary)
    if summary is not None:
        yield from bisect_lines(summary)
        yield f"  {study_path(workspace, study_id) / SUMMARY}"


def _summary(
    workspace: Path, study_id: str, command: Sequence[str], kind: type[_Summary]
) -> Generator[str, None, _Summary | None]:
    """Return what was written down at the end of a study; None where it was not, and yield why."""
    try:
        found = msgspec.json.decode(read_summary(workspace, study_id), type=kind)
    except FileNotFoundError:
        found = None
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        yield f"{study_path(workspace, study_id) / SUMMARY} cannot be read: {error}"
        return None
    if is_running(workspace, study_id):
        yield f"study {study_id} goes on: madlite watch"
    elif found is None:
        words = [word for word in command if not word.startswith("--resume")]
        again = (
            shell_line(("madlite", *words, f"--resume={study_id}"))
            if words
            else f"its command with --resume={study_id}"
        )
        yield f"study {study_id} has not come to its end: {again} goes on with it"
    return found


def unknown_id(index: RunIndex, of: str) -> str:
    """Return that nothing has an id that begins so, with the nearest ones; "" where something has."""
    known = [*dict.fromkeys((*index.values("study"), *index.values("batch")))]
    if any(name.startswith(of) for name in known):
        return ""
    near = nearest_words(of, known, 3)
    hint = f"did you mean {', '.join(near)}?   " if near else ""
    return f"no batch and no study has an id that begins with '{of}': {hint}madlite runs --group study lists them"
